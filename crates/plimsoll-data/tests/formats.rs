//! Records of other tools: `.npz`, TFRecord, WebDataset. The files are written by `reference/make_formats.py`.

use collect::{column, complaint, floats, ints, numbers};
use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_data::ops::{Method, decode, resize};
use plimsoll_data::source::{Feature, RecordValues, TfRecord, files};
use plimsoll_data::{Cache, Dataset, PadTo, Parallelism, Shuffle};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

mod collect;
mod fixture_files;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

#[test]
fn arrays_of_an_npz_are_read_where_they_lie() {
    let data = Dataset::npz(reference("arrays.npz"), &[("x", "images"), ("y", "labels")]).unwrap();
    assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[3, 2], y: i32[]");
    assert_eq!(floats(&data.clone().batch(3), 0).concat(), (0..24).map(|n| n as f32).collect::<Vec<_>>());
    let shuffled = data.shuffle(Shuffle::seed(1)).batch(3);
    let labels: Vec<f32> =
        numbers(&shuffled, 1).iter().map(|label| [3, 1, 2, 0].iter().position(|n| n == label).unwrap() as f32 * 6.0).collect();
    assert_eq!(floats(&shuffled, 0).iter().map(|row| row[0]).collect::<Vec<_>>(), labels);
}

/// `packed.npz` with another number for how its arrays are packed.
fn packed_by(method: u8) -> Vec<u8> {
    let mut bytes = fs::read(reference("packed.npz")).unwrap();
    let entries: Vec<usize> = (0..bytes.len() - 4).filter(|&at| bytes[at..at + 4] == *b"PK\x01\x02").collect();
    entries.iter().for_each(|at| bytes[at + 10] = method);
    bytes
}

#[test]
fn arrays_of_a_packed_npz_are_unpacked_on_the_way() {
    let arrays = [("x", "images"), ("y", "labels")];
    let (plain, packed) =
        (Dataset::npz(reference("arrays.npz"), &arrays).unwrap(), Dataset::npz(reference("packed.npz"), &arrays).unwrap());
    assert_eq!((packed.size(), packed.output_schema().unwrap()), (Some(4), plain.output_schema().unwrap()));
    for index in 0..2 {
        assert_eq!(column(&packed.clone().batch(3), index, 1, None).unwrap(), column(&plain.clone().batch(3), index, 1, None).unwrap());
    }
    let mut labels = numbers(&packed.shuffle(Shuffle::seed(1)).batch(3), 1);
    labels.sort_unstable();
    assert_eq!(labels, [0, 1, 2, 3]);
    // Damage inside what is packed is found when it is read.
    let folder = tempfile::tempdir().unwrap();
    let mut bytes = packed_by(8);
    let middle = bytes.windows(4).position(|four| four == b"PK\x01\x02").unwrap() / 2;
    bytes[middle - 20..middle + 20].fill(0xFF);
    let path = folder.path().join("damaged.npz");
    fs::write(&path, bytes).unwrap();
    let outcome = Dataset::npz(&path, &arrays).and_then(|data| column(&data.batch(3), 0, 0, None));
    assert!(complaint(outcome, folder.path()).starts_with("damaged.npz cannot be read as .npy"));
}

#[test]
fn pictures_inside_examples_are_decoded_and_cached() {
    let features = [("x", Feature::image("image/encoded")), ("y", Feature::i32("image/class/label", []))];
    let open = |path: &Path| Dataset::tfrecord(path, &features);
    let data = open(&reference("encoded_images.tfrecord")).unwrap();
    assert_eq!(data.output_schema().unwrap().to_string(), "x: files, y: i32[]");
    let small = |data: Dataset| data.map("x", [decode(), resize(2, 2, Method::Bilinear)]);
    let shown = |data: &Dataset| floats(data, 0).iter().map(|row| row[0]).collect::<Vec<_>>();
    assert_eq!((shown(&small(data.clone()).batch(2)), numbers(&small(data).batch(2), 1)), (vec![10.0, 50.0, 90.0], vec![7, 6, 5]));
    // A cache is of these files, and not of others with the same name.
    let folder = tempfile::tempdir().unwrap();
    let (path, cache) = (folder.path().join("a.tfrecord"), folder.path().join("cache.plc"));
    let whole = fs::read(reference("encoded_images.tfrecord")).unwrap();
    fs::write(&path, &whole).unwrap();
    let cached = |path: &Path| small(open(path).unwrap()).cache(Cache::File(cache.clone())).batch(2);
    let first = column(&cached(&path), 0, 0, None).unwrap();
    assert!(cached(&path).cache_file().unwrap().unwrap().whole);
    assert_eq!(column(&cached(&path), 0, 1, None).unwrap(), first);
    fs::write(&path, [&whole[..], &whole].concat()).unwrap();
    assert!(cached(&path).cache_file().is_ok_and(|file| !file.unwrap().whole));
    // What is wrong is reported with its place.
    let told = |features: &[(&str, Feature)], bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let outcome = Dataset::tfrecord(&path, features).and_then(|data| column(&small(data).batch(2), 0, 0, None));
        complaint(outcome, folder.path())
    };
    let mut broken = whole.clone();
    let second = whole.windows(4).enumerate().filter(|(_, four)| four == b"\x89PNG").nth(1).unwrap().0;
    broken[second] ^= 1;
    let complaints = [
        told(&features, &broken),
        told(&[("x", Feature::image("image/pixels")), ("y", Feature::i32("image/class/label", []))], &whole),
        told(&[("x", Feature::image("image/class/label"))], &whole),
        told(&[("x", Feature::image("image/format"))], &whole),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    a.tfrecord, the record at byte 173: its bytes do not match their checksum; the file is damaged, copy or write it again
    a.tfrecord, the record at byte 0: it has no feature `image/pixels`
    a.tfrecord, the record at byte 0: feature `image/class/label` is numbers and no image; declare it as what it is
    a.tfrecord cannot be decoded: the image at byte 166: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder
    ");
}

#[test]
fn rows_of_examples_may_differ_in_length() {
    for name in ["examples.tfrecord", "examples.tfrecord.gz"] {
        let words = |feature: Feature| Dataset::tfrecord(reference(name), &[("words", feature)]).unwrap();
        let data = words(Feature::i32("words", [6]).up_to()).padded_batch(2, PadTo::Longest, -9.0);
        assert_eq!(ints(&data, 0), [vec![-1, -9], vec![-1, 0], vec![-1, 0, 1, -9], vec![-1, 0, 1, 2]]);
        assert_eq!(ints(&words(Feature::i32("words", [4]).padded_with(7.0)).batch(4), 0)[0], [-1, 7, 7, 7]);
        let short = words(Feature::i32("words", [3]).up_to()).padded_batch(2, PadTo::Longest, 0.0);
        let told = complaint(column(&short, 0, 0, None), reference("").parent().unwrap());
        assert!(told.contains("feature `words` has 4 values where shape [3] has 3") && told.contains("the record at byte"), "{told}");
    }
}

#[test]
fn what_is_wrong_with_an_npz_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(reference("arrays.npz")).unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let open = |path: &Path| complaint(Dataset::npz(path, &[("x", "images")]), path.parent().unwrap());
    let complaints = [
        complaint(Dataset::npz(reference("arrays.npz"), &[("x", "pictures")]), reference("arrays.npz").parent().unwrap()),
        open(&file("odd.npz", &packed_by(12))),
        open(&folder.path().join("none.npz")),
        open(&file("cut.npz", &whole[..whole.len() - 30])),
        open(&file("head.npz", &whole[100..])),
        open(&file("empty.npz", b"")),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    arrays.npz cannot be read as .npy: it has no array `pictures`; its arrays are images, labels
    odd.npz cannot be read as .npy: its array `images.npy` is packed by method 12; save it with numpy.savez or savez_compressed
    cannot open none.npz: No such file or directory (os error 2)
    cut.npz cannot be read as .npy: it is no .npz; save it with numpy.savez
    head.npz cannot be read as .npy: its zip directory is damaged or cut off; copy or write it again
    empty.npz cannot be read as .npy: it is no .npz; save it with numpy.savez
    ");
}

fn features() -> [(&'static str, Feature); 4] {
    [
        ("x", Feature::f32("pixels", [3])),
        ("y", Feature::i32("label", [])),
        ("raw", Feature::u8("raw", [2])),
        ("words", Feature::i32("words", [5]).padded()),
    ]
}

#[test]
fn examples_are_read_from_plain_and_packed_files() {
    for name in ["examples.tfrecord", "examples.tfrecord.gz"] {
        let data = Dataset::tfrecord(reference(name), &features()).unwrap().batch(3);
        assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[3], y: i32[], raw: u8[2], words: i32[5]");
        assert_eq!(floats(&data, 0), [[0.5, 0.0, 3.25], [1.5, -1.0, 3.25], [2.5, -2.0, 3.25], [3.5, -3.0, 3.25]]);
        assert_eq!(numbers(&data, 1), [0, 1, 2, 3]);
        assert_eq!(column(&data, 2, 1, None).unwrap(), [[0, 255], [1, 254], [2, 253], [3, 252]]);
        assert_eq!(ints(&data, 3)[3], [-1, 0, 1, 2, 0]);
    }
}

#[test]
fn records_of_several_files_are_shuffled_by_number() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(reference("examples.tfrecord")).unwrap();
    for name in ["b-1.tfrecord", "b-0.tfrecord", "b-2.tfrecord"] {
        fs::write(folder.path().join(name), &whole).unwrap();
    }
    fs::write(folder.path().join("b-3.tfrecord"), b"").unwrap();
    let data = Dataset::tfrecord(folder.path().join("b-*.tfrecord"), &features()).unwrap();
    assert_eq!(data.size(), Some(12));
    assert_eq!(numbers(&data.clone().batch(5), 1), [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]);
    let shuffled = data.shuffle(Shuffle::seed(4)).batch(5);
    let one = column(&shuffled, 1, 2, None).unwrap();
    assert_eq!(column(&shuffled.clone().parallelism(Parallelism::Threads(3)), 1, 2, None).unwrap(), one);
    let mut rows = numbers(&shuffled, 1);
    rows.sort_unstable();
    assert_eq!(rows, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
}

#[test]
fn a_damaged_record_is_named_by_file_and_place() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(reference("examples.tfrecord")).unwrap();
    let length = |at: usize| u64::from_le_bytes(whole[at..at + 8].try_into().unwrap()) as usize;
    let second = length(0) + 16;
    let read = |name: &str, bytes: &[u8], features: &[(&str, Feature)]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let outcome = Dataset::tfrecord(&path, features).and_then(|data| column(&data.batch(2), 0, 0, None));
        complaint(outcome, folder.path())
    };
    let changed = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        bytes
    };
    let pack = |bytes: &[u8]| {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(bytes).unwrap();
        packed.finish().unwrap()
    };
    let packed = pack(&whole);
    let complaints = [
        read("body.tfrecord", &changed(second + 40), &features()),
        read("length.tfrecord", &changed(second + 2), &features()),
        read("cut.tfrecord", &whole[..whole.len() - 7], &features()),
        read("text.tfrecord", b"this is a text and nothing else", &features()),
        read("body.gz", &pack(&changed(second + 40)), &features()),
        read("cut.gz", &packed[..packed.len() - 20], &features()),
        read("cut-record.gz", &pack(&whole[..second + 5]), &features()),
        read("a.tfrecord", &whole, &[("x", Feature::f32("colour", [3]))]),
        read("a.tfrecord", &whole, &[("x", Feature::f32("pixels", [4]))]),
        read("a.tfrecord", &whole, &[("x", Feature::i32("pixels", [3]))]),
        read("a.tfrecord", &whole, &[("x", Feature::f32("raw", [2]))]),
        read("a.tfrecord", &whole, &[("x", Feature::i32("words", [2]).padded())]),
    ];
    // Compression is told by content, not by name.
    let plain = folder.path().join("plain.gz");
    fs::write(&plain, &whole).unwrap();
    assert_eq!(
        Dataset::tfrecord(&plain, &features()).unwrap().size(),
        Dataset::tfrecord(reference("examples.tfrecord"), &features()).unwrap().size()
    );
    insta::assert_snapshot!(complaints.join("\n"), @"
    body.tfrecord, the record at byte 102: its bytes do not match their checksum; the file is damaged, copy or write it again
    length.tfrecord, the record at byte 102: its length does not match its checksum; the file is damaged or no TFRecord file
    cut.tfrecord, the record at byte 309: the file ends inside it; copy or write the file again
    text.tfrecord, the record at byte 0: its length does not match its checksum; the file is damaged or no TFRecord file
    body.gz, the record at byte 102: its bytes do not match their checksum; the file is damaged, copy or write it again
    cut.gz, the record at byte 309: the file ends inside it; copy or write the file again
    cut-record.gz, the record at byte 102: the file ends inside it; copy or write the file again
    a.tfrecord, the record at byte 0: it has no feature `colour`
    a.tfrecord, the record at byte 0: feature `pixels` has 3 values where shape [4] has 4
    a.tfrecord, the record at byte 0: feature `pixels` is not of i32; declare it as what it is
    a.tfrecord, the record at byte 0: feature `raw` is bytes and not f32; declare it as u8
    a.tfrecord, the record at byte 205: feature `words` has 3 values where shape [2] has 2
    ");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every byte of a record file is under a checksum, and no damage is a panic.
    #[test]
    fn no_changed_byte_goes_unnoticed(at in 0usize..10_000, bit in 0u8..8) {
        let folder = tempfile::tempdir().unwrap();
        let mut bytes = fs::read(reference("examples.tfrecord")).unwrap();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        let path = folder.path().join("x.tfrecord");
        fs::write(&path, bytes).unwrap();
        let read = Dataset::tfrecord(&path, &features()).and_then(|data| column(&data.batch(2), 0, 0, None));
        prop_assert!(read.is_err());
    }

    /// Damaged archives are refused or read, never panicked on.
    #[test]
    fn damaged_archives_are_no_panic(at in 0usize..20_000, byte: u8, cut in 0usize..2000) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["shard.tar", "arrays.npz"] {
            let mut bytes = fs::read(reference(name)).unwrap();
            let at = at % bytes.len();
            bytes[at] = byte;
            bytes.truncate(bytes.len() - cut % bytes.len());
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            let outcome = match name {
                "shard.tar" => Dataset::webdataset(&path).map(|data| data.map("x", [decode(), resize(2, 2, Method::Nearest)])),
                _ => Dataset::npz(&path, &[("x", "images")]),
            };
            if let Err(error) = outcome.and_then(|data| column(&data.batch(2), 0, 0, None)) {
                prop_assert!(!error.to_string().contains("panicked"), "{}", error);
            }
        }
    }
}

fn pictures(path: impl AsRef<Path>) -> Dataset {
    Dataset::webdataset(path).unwrap().map("x", [decode(), resize(2, 2, Method::Nearest)])
}

#[test]
fn samples_of_tar_files_are_pictures_with_classes() {
    let data = pictures(reference("shard.tar")).batch(2);
    assert_eq!(numbers(&data, 1), [7, 6, 5]);
    assert_eq!(floats(&data, 0).iter().map(|row| row[0]).collect::<Vec<_>>(), [10.0, 50.0, 90.0]);
    let shuffled = pictures(reference("shard.tar")).shuffle(Shuffle::seed(2)).parallelism(Parallelism::Threads(2)).batch(2);
    let pairs: Vec<(f32, i32)> = floats(&shuffled, 0).iter().map(|row| row[0]).zip(numbers(&shuffled, 1)).collect();
    assert!(pairs.iter().all(|(pixel, label)| *pixel == (7 - label) as f32 * 40.0 + 10.0), "{pairs:?}");
}

/// A tar file with these entries, as POSIX has them.
fn tar(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, contents) in entries {
        let mut header = [0u8; 512];
        header[..name.len()].copy_from_slice(name.as_bytes());
        header[124..135].copy_from_slice(format!("{:011o}", contents.len()).as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..262].copy_from_slice(b"ustar");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(contents);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

#[test]
fn what_is_wrong_with_a_tar_file_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let read = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        let data = Dataset::webdataset(&path).map(|data| data.map("x", [decode(), resize(2, 2, Method::Nearest)]));
        complaint(data.and_then(|data| column(&data.batch(2), 0, 0, None)), folder.path())
    };
    let whole = fs::read(reference("shard.tar")).unwrap();
    let mut changed = whole.clone();
    changed[3] ^= 1;
    let complaints = [
        read("up.tar", &tar(&[("a/../../b.cls", b"1")])),
        read("root.tar", &tar(&[("/etc/b.cls", b"1")])),
        read("label.tar", &tar(&[("b.cls", b"cat"), ("b.png", b"")])),
        read("alone.tar", &tar(&[("a.cls", b"1"), ("b.cls", b"1")])),
        read("nameless.tar", &tar(&[("a.png", b"1")])),
        read("picture.tar", &tar(&[("a.png", b"no image"), ("a.cls", b"1")])),
        read("changed.tar", &changed),
        read("cut.tar", &whole[..1200]),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @r#"
    up.tar, the record at byte 0: its name "a/../../b.cls" leads out of the folder; such files are refused
    root.tar, the record at byte 0: its name "/etc/b.cls" leads out of the folder; such files are refused
    label.tar, the record at byte 0: b.cls is "cat", which is no class number
    alone.tar, the record at byte 0: sample a has a class and no image (.jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff)
    nameless.tar, the record at byte 0: sample a has an image and no class (.cls)
    picture.tar cannot be decoded: the image at byte 512: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder
    changed.tar, the record at byte 0: its header does not match its checksum; the file is damaged or no tar file
    cut.tar, the record at byte 1024: the file ends inside it; copy or write the file again
    "#);
}

#[test]
fn files_are_listed_by_pattern_and_sorted() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["b-10.tar", "b-02.tar", "c.txt", "sub/b-03.tar"] {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }
    let listed = |pattern: &str| {
        let found = files(folder.path().join(pattern)).unwrap();
        found.iter().map(|path| path.strip_prefix(folder.path()).unwrap().display().to_string()).collect::<Vec<_>>()
    };
    assert_eq!(listed("b-*.tar"), ["b-02.tar", "b-10.tar"]);
    assert_eq!(listed("**/b-0?.tar"), ["b-02.tar", "sub/b-03.tar"]);
    assert_eq!(listed("c.txt"), ["c.txt"]);
    assert!(complaint(files(folder.path().join("b-[.tar")), folder.path()).starts_with("the pattern b-[.tar is wrong at character"));
}

#[test]
fn what_records_hold_can_be_asked() {
    let found = |name: &str| {
        let found = TfRecord::features(reference(name)).unwrap();
        found.into_iter().map(|feature| (feature.name, feature.values, feature.count, feature.is_image)).collect::<Vec<_>>()
    };
    let examples = found("examples.tfrecord");
    assert_eq!(found("examples.tfrecord.gz"), examples);
    insta::assert_debug_snapshot!(examples, @r#"
    [
        (
            "label",
            Ints,
            1,
            false,
        ),
        (
            "pixels",
            Floats,
            3,
            false,
        ),
        (
            "raw",
            Bytes,
            2,
            false,
        ),
        (
            "words",
            Ints,
            1,
            false,
        ),
    ]
    "#);
    let picture = found("encoded_images.tfrecord").into_iter().find(|(name, ..)| name == "image/encoded").unwrap();
    assert!(picture.1 == RecordValues::Bytes && picture.3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut.tfrecord");
    fs::write(&path, &fs::read(reference("examples.tfrecord")).unwrap()[..20]).unwrap();
    assert_eq!(
        complaint(TfRecord::features(&path), folder.path()),
        "cut.tfrecord, the record at byte 0: the file ends inside it; copy or write the file again"
    );
}
