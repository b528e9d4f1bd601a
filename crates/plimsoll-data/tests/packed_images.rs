//! Images inside packed records: the same rows as from unpacked ones, wherever what makes them alike is written, in
//! planned bytes.

use collect::{column, column_and_peak, complaint, floats, numbers};
use image_files::{picture, png};
use jpeg_encoder::{ColorType, Encoder};
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{
    CropArea, Decode, Method, center_crop, crop_or_pad, decode, flip_left_right, random_crop, random_resized_crop, resize, scale,
};
use plimsoll_data::source::Feature;
use plimsoll_data::{Cache, Dataset, Feed, Options, Parallelism, ScanOptions, Shuffle};
use sample_files::{Value, example, gzip, record};
use std::fs;
use std::path::Path;
use std::sync::Arc;

mod collect;
mod image_files;
mod sample_files;

fn jpeg(width: usize, height: usize, number: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    let pixels = picture(width, height, number);
    Encoder::new(&mut bytes, 85).encode(&pixels, width as u16, height as u16, ColorType::Rgb).unwrap();
    bytes
}

fn framed(n: usize) -> Vec<u8> {
    let (width, height) = (20 + n * 3 % 17, 18 + n * 5 % 23);
    let encoded = match n % 2 {
        0 => png(&picture(width, height, n as u8), width, height, png::ColorType::Rgb),
        _ => jpeg(width, height, n as u8),
    };
    record(&example(&[("label", Value::Ints(&[n as i64])), ("image", Value::Bytes(&encoded)), ("name", Value::Bytes(b"picture"))]))
}

/// Two files, unpacked and packed.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, rows) in [(0, 0..9), (1, 9..14)] {
        let bytes: Vec<u8> = rows.flat_map(framed).collect();
        fs::write(folder.path().join(format!("{file}.tfrecord")), &bytes).unwrap();
        fs::write(folder.path().join(format!("{file}.tfrecord.gz")), gzip(&bytes)).unwrap();
    }
    folder
}

fn open(pattern: impl AsRef<Path>) -> Dataset {
    Dataset::tfrecord(pattern, &[("y", Feature::i32("label", [])), ("x", Feature::image("image"))]).unwrap()
}

const THREADS: [Parallelism; 4] = [Parallelism::Threads(1), Parallelism::Threads(2), Parallelism::Threads(5), Parallelism::Auto];

type Ops = Vec<Arc<dyn plimsoll_data::ops::Op>>;

#[test]
fn packed_pictures_are_the_same_rows_as_unpacked_ones_bit_for_bit() {
    let folder = folder();
    let ways: [fn() -> Ops; 5] = [
        || vec![decode(), resize(8, 8, Method::Bilinear), scale(1.0 / 255.0)],
        || vec![Decode::new().upright().op(), flip_left_right(3), resize(9, 7, Method::Area)],
        || vec![decode(), random_crop(12, 11, 4)],
        || vec![Decode::new().grey().op(), random_resized_crop(6, 5, CropArea { seed: 9, ..CropArea::default() })],
        || vec![decode(), center_crop(10, 10)],
    ];
    for ops in ways {
        let read = |name: &str, epoch, limit: Option<Bytes>, threads| {
            let data = open(folder.path().join(name)).map("x", ops()).parallelism(threads).batch(4);
            let least = data.plan(None).unwrap().minimum();
            let limit = limit.map(|limit| limit.max(least));
            (column(&data, 1, epoch, limit).unwrap(), column(&data, 0, epoch, limit).unwrap())
        };
        for (epoch, limit) in [(0, None), (3, Some(Bytes::ZERO)), (3, Some(Bytes::mib(40)))] {
            let unpacked = read("*.tfrecord", epoch, limit, Parallelism::Auto);
            assert_eq!(unpacked.0.len(), 14);
            for threads in THREADS {
                assert!(read("*.tfrecord.gz", epoch, limit, threads) == unpacked, "{threads:?}");
            }
        }
    }
}

#[test]
fn pictures_may_be_brought_to_size_after_stages_that_only_reorder() {
    let folder = folder();
    let packed = || open(folder.path().join("*.tfrecord.gz"));
    let small = |data: Dataset| data.map("x", [decode()]).map("x", [resize(4, 4, Method::Bilinear), scale(0.5)]).batch(5);
    let first = small(packed());
    assert_eq!(
        first.describe().replace(&format!("{}/", folder.path().display()), ""),
        "tfrecord 0.tfrecord.gz, 1.tfrecord.gz → map(x: decode()) → map(x: resize(4, 4, bilinear)) → map(x: scale(0.5)) → batch(5)"
    );
    // Of many files, the first and the last are named: what a position says of them stays small.
    let many = tempfile::tempdir().unwrap();
    (10..40).for_each(|n| fs::write(many.path().join(format!("{n}.tfrecord.gz")), gzip(&framed(n))).unwrap());
    let many = (open(many.path().join("*.gz")).describe(), many.path().display().to_string());
    assert_eq!(many.0.replace(&format!("{}/", many.1), ""), "tfrecord 10.tfrecord.gz … 39.tfrecord.gz (30 files)");
    let rows = floats(&first, 1);
    let sorted = |data: &Dataset| {
        let mut rows = numbers(data, 0);
        rows.sort_unstable();
        rows
    };
    let shuffled = small(packed().shuffle(Shuffle::seed(2)).repeat(2).skip(3));
    assert_eq!(shuffled.output_schema().unwrap().to_string(), "y: i32[], x: f32[4, 4, 3]");
    assert_eq!(sorted(&shuffled).len(), 25);
    let labels = numbers(&shuffled, 0);
    assert!(floats(&shuffled, 1).iter().zip(&labels).all(|(row, label)| *row == rows[*label as usize]));
    // Files in turn, each with a thread; and beside other columns.
    let parts = || ["0.tfrecord.gz", "1.tfrecord.gz"].map(|name| open(folder.path().join(name)));
    let interleaved = small(Dataset::interleave_parallel(parts(), 2, 1).max_item(Bytes::mib(1)));
    assert_eq!(sorted(&interleaved), (0..14).collect::<Vec<_>>());
    let labels = numbers(&interleaved, 0);
    assert_eq!(labels[..4], [0, 9, 1, 10]);
    assert!(floats(&interleaved, 1).iter().zip(&labels).all(|(row, label)| *row == rows[*label as usize]));
    // The same of files whose records have numbers.
    let unpacked = ["0.tfrecord", "1.tfrecord"].map(|name| open(folder.path().join(name)));
    assert!(floats(&small(Dataset::interleave_parallel(unpacked, 2, 1)), 1) == floats(&interleaved, 1));
    let counted = small(packed().take(3).enumerate("n"));
    assert_eq!((numbers(&counted, 0), numbers(&counted, 1)), (vec![0, 1, 2], vec![0, 1, 2]));
    // What looks at rows has to see images that are alike.
    let complaints = [
        packed().filter(|_| true).map("x", [decode(), resize(4, 4, Method::Area)]),
        packed(),
        packed().map("x", [decode()]),
        packed().map("x", [scale(2.0)]),
    ];
    let complaints = complaints.map(|data| complaint(data.batch(2).plan(None), folder.path()));
    insta::assert_snapshot!(complaints.join("\n"), @"
    column `x` has rows that differ in size, which filter cannot hold; put decode and resize before it
    column `x` has rows that differ in size and cannot be batched; map it with decode and resize
    column `x` has rows that differ in size and cannot be batched; map it with resize or a crop
    scale(2) cannot be applied to column `x`: its rows are files; put decode before it
    ");
}

#[test]
fn what_is_held_for_packed_pictures_is_planned() {
    let folder = folder();
    let data = open(folder.path().join("*.gz")).map("x", [decode(), resize(4, 4, Method::Bilinear)]);
    let stages = |data: &Dataset, limit| {
        let plan = data.clone().batch(4).plan(limit).unwrap();
        plan.stages()
            .iter()
            .filter(|(name, _)| name.contains('≤'))
            .map(|(name, bytes)| format!("{name}: {bytes}"))
            .collect::<Vec<_>>()
            .join(", ")
    };
    insta::assert_snapshot!(stages(&data, None), @"packed records (each ≤ 4.00 MiB): 4.19 MiB, decode (each ≤ 702 KiB): 757 KiB");
    insta::assert_snapshot!(stages(&data, Some(Bytes::mib(10))), @"packed records (each ≤ 4.00 MiB): 4.19 MiB, decode (each ≤ 702 KiB): 757 KiB");
    insta::assert_snapshot!(stages(&data.max_item(Bytes::mib(2)), None), @"packed records (each ≤ 4.00 MiB): 4.19 MiB, decode (each ≤ 702 KiB): 757 KiB");
}

#[test]
fn what_is_wrong_with_a_packed_picture_is_told_with_its_record_or_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let with = |bytes: &[u8]| record(&example(&[("label", Value::Ints(&[7])), ("image", Value::Bytes(bytes))]));
    let whole = png(&picture(9, 9, 1), 9, 9, png::ColorType::Rgb);
    let cases = [
        with(b"no image at all"),
        with(b""),
        with(&whole[..whole.len() / 2]),
        with(&png(&picture(700, 600, 1), 700, 600, png::ColorType::Rgb)),
        with(&png(&picture(3, 3, 1), 3, 3, png::ColorType::Rgb)),
        record(&example(&[("label", Value::Ints(&[7])), ("image", Value::Ints(&[1, 2]))])),
        record(&example(&[("label", Value::Ints(&[7]))])),
        with(&vec![1; 5 << 20]),
        {
            let mut changed = with(&whole);
            changed[60] ^= 1;
            changed
        },
    ];
    let path = folder.path().join("a.tfrecord.gz");
    let data = |path: &Path| open(path).map("x", [decode(), center_crop(5, 5)]).max_item(Bytes::mib(1));
    let told = cases.clone().map(|case| {
        fs::write(&path, gzip(&[with(&whole), case].concat())).unwrap();
        let told = THREADS.map(|threads| complaint(column(&data(&path).parallelism(threads).batch(2), 0, 0, None), folder.path()));
        assert!(told.iter().all(|same| *same == told[0]), "{told:?}");
        told[0].clone()
    });
    let at = with(&whole).len();
    insta::assert_snapshot!(told.join("\n").replace(&format!("at byte {at}"), "at byte AT"), @"
    a.tfrecord.gz, the record at byte AT: its image cannot be decoded: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF
    a.tfrecord.gz, the record at byte AT: its image cannot be decoded: it is empty
    a.tfrecord.gz, the record at byte AT: its image cannot be decoded: its data is broken (unexpected end of file)
    a.tfrecord.gz, the record at byte AT: its image is 700 × 600 pixels and takes 1.66 MiB to read and decode, but a single item may take 1.00 MiB; raise max_item, or make the image smaller
    a.tfrecord.gz, the record at byte AT: its image is 3 × 3 pixels, too small to cut 5 × 5 out of it; resize before cropping, or crop less
    a.tfrecord.gz, the record at byte AT: feature `image` is numbers and no image; declare it as what it is
    a.tfrecord.gz, the record at byte AT: it has no feature `image`
    a.tfrecord.gz, the record at byte AT: it is of 5.00 MiB and may be of 4.00 MiB; split it
    a.tfrecord.gz, the record at byte AT: its bytes do not match their checksum; the file is damaged, copy or write it again
    ");
    // Each by itself, and the good ones between them come.
    let bytes = cases.iter().flat_map(|case| [&with(&whole)[..], case].concat()).collect::<Vec<u8>>();
    fs::write(&path, gzip(&bytes)).unwrap();
    for threads in THREADS {
        let lenient = data(&path).parallelism(threads).ignore_errors(cases.len() as u64);
        assert_eq!(column(&lenient.clone().batch(2), 1, 0, None).unwrap().len(), cases.len());
        assert_eq!(lenient.ignored().0, cases.len() as u64);
        let first = complaint(column(&data(&path).parallelism(threads).batch(2), 1, 0, None), folder.path());
        assert!(first.contains("it begins like no JPEG"), "the first of them is reported: {first}");
    }
    // One that was not scanned, and is larger than the pool, is one of them.
    let giant = with(&png(&picture(1400, 1200, 1), 1400, 1200, png::ColorType::Rgb));
    fs::write(&path, gzip(&[with(&whole), giant].concat())).unwrap();
    let some = |lenient: bool| {
        let data = open(&path).map("x", [decode(), center_crop(5, 5)]);
        let data = if lenient { data.ignore_errors(2) } else { data }.batch(2);
        data.scan_images(&ScanOptions { files: 1, ..ScanOptions::default() }).unwrap();
        data
    };
    let limit = Some(some(true).plan(None).unwrap().minimum());
    assert_eq!(column(&some(true), 1, 0, None).unwrap().len(), 2);
    assert_eq!(column(&some(true), 1, 0, limit).unwrap().len(), 1);
    let told = complaint(column(&some(false), 1, 0, limit), folder.path());
    insta::assert_snapshot!(told.replace(&format!("at byte {at}"), "at byte AT"), @"a.tfrecord.gz, the record at byte AT: its image is 1400 × 1200 pixels and takes 5.28 MiB to read and decode, but the plan reserves 4.00 MiB for a single item: its header was not read before planning, or the file has changed since; raise the limit, or drop such rows with ignore_errors");
}

/// One image of a record is decoded before there is space for the next, so that nobody waits for space while holding
/// some.
#[test]
fn records_with_several_pictures_pass_through_a_room_for_one() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<u8>> = (0..20)
        .map(|n| {
            let [left, right] = [200, 220].map(|side| png(&picture(side, side + n, n as u8), side, side + n, png::ColorType::Rgb));
            record(&example(&[("left", Value::Bytes(&left)), ("label", Value::Ints(&[n as i64])), ("right", Value::Bytes(&right))]))
        })
        .collect();
    fs::write(folder.path().join("a.tfrecord.gz"), gzip(&rows.concat())).unwrap();
    let features = [("a", Feature::image("left")), ("y", Feature::i32("label", [])), ("b", Feature::image("right"))];
    let pictures = Dataset::tfrecord(folder.path().join("*.gz"), &features).unwrap().max_item(Bytes::kib(900));
    let data = pictures.map("a", [decode(), resize(4, 4, Method::Area)]).map("b", [decode(), resize(3, 3, Method::Area)]);
    let expected = [0, 2].map(|of| column(&data.clone().parallelism(Parallelism::Threads(1)).batch(3), of, 0, None).unwrap());
    assert_eq!(expected[0].len(), 20);
    for threads in THREADS {
        let data = data.clone().parallelism(threads).batch(3);
        assert!([0, 2].map(|of| column(&data, of, 0, None).unwrap()) == expected, "{threads:?}");
        assert_eq!(numbers(&data, 1), (0..20).collect::<Vec<_>>());
    }
}

#[test]
fn random_crops_go_by_the_number_of_the_record_whatever_was_left_out_before() {
    let folder = tempfile::tempdir().unwrap();
    let rows: Vec<Vec<u8>> = (0..12).map(framed).collect();
    let mut damaged = rows.clone();
    for row in [2, 7] {
        let last = damaged[row].len() - 1;
        damaged[row][last] ^= 1;
    }
    fs::write(folder.path().join("a.tfrecord"), rows.concat()).unwrap();
    fs::write(folder.path().join("a.tfrecord.gz"), gzip(&damaged.concat())).unwrap();
    let read = |name: &str| {
        let data = open(folder.path().join(name)).map("x", [decode(), random_crop(8, 8, 1)]).ignore_errors(2);
        column(&data.batch(3), 1, 5, None).unwrap()
    };
    let mut expected = read("a.tfrecord");
    expected.remove(7);
    expected.remove(2);
    assert!(read("a.tfrecord.gz") == expected);
}

#[test]
fn an_epoch_of_packed_pictures_is_resumed_where_it_was_left() {
    let folder = folder();
    let data = open(folder.path().join("*.gz")).map("x", [decode(), flip_left_right(1), resize(3, 3, Method::Nearest)]);
    let data = data.shuffle_buffer(Shuffle::seed(5), Bytes(600)).batch(3);
    let (plan, ledger) = (data.plan(None).unwrap(), Ledger::new("host", None));
    let mut feed = Feed::start(&data, &plan, &ledger, Options::default()).unwrap();
    feed.next().unwrap();
    feed.next().unwrap();
    let state = feed.state();
    let third = feed.next().unwrap().unwrap().column(1).to_vec();
    let mut resumed = Feed::start(&data, &plan, &ledger, Options::resume(&state, &data).unwrap()).unwrap();
    assert!(resumed.next().unwrap().unwrap().column(1) == third);
    let fitted = open(folder.path().join("*.gz")).map("x", [decode(), crop_or_pad(30, 30, 7.0)]);
    assert_eq!(column(&fitted.batch(3), 1, 0, None).unwrap().len(), 14);
}

#[test]
fn packed_pictures_are_kept_as_any_stream_and_found_again_while_their_files_are_the_same() {
    let folder = folder();
    let cache = Cache::File(folder.path().join("pictures.plc"));
    let small = || open(folder.path().join("*.tfrecord.gz")).map("x", [decode(), resize(4, 4, Method::Bilinear)]);
    let kept = || small().cache(cache.clone()).batch(5);
    let found = || kept().cache_file().unwrap().unwrap().whole;
    let expected = floats(&small().batch(5), 1);
    assert!(!found());
    assert!(floats(&kept(), 1) == expected && found());
    let (rows, peak, planned) = column_and_peak(&kept(), 1, 0, None).unwrap();
    assert!(rows == column(&small().batch(5), 1, 0, None).unwrap() && peak <= planned, "what decodes may not even be begun");
    let other = open(folder.path().join("*.tfrecord.gz")).map("x", [decode(), resize(4, 5, Method::Bilinear)]);
    assert!(!other.cache(cache.clone()).batch(5).cache_file().unwrap().unwrap().whole, "other operations");
    fs::write(folder.path().join("1.tfrecord.gz"), gzip(&framed(3))).unwrap();
    assert!(!found(), "another file");
    let by_lot = open(folder.path().join("*.tfrecord.gz")).map("x", [decode(), random_crop(4, 4, 1)]).cache(cache).batch(5);
    let problem = by_lot.plan(None).unwrap_err().to_string();
    assert!(problem.contains("it differs from epoch to epoch and stands before the cache; put it after"), "{problem}");
}

/// Each thread of a stage more would leave less for an image, if what the limit has space for were cut up among stages.
#[test]
fn what_a_limit_has_room_for_is_the_same_behind_any_stage_and_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let (width, height) = (1200, 1100);
    let large = png(&picture(width, height, 3), width, height, png::ColorType::Rgb);
    let records: Vec<u8> =
        (0..3).flat_map(|n| record(&example(&[("label", Value::Ints(&[n])), ("image", Value::Bytes(&large))]))).collect();
    fs::write(folder.path().join("large.tfrecord.gz"), gzip(&records)).unwrap();
    let data = |threads| {
        let small = open(folder.path().join("large.tfrecord.gz")).map("x", [decode(), resize(4, 4, Method::Area)]).parallelism(threads);
        let behind = small.clone().filter(|_| true);
        let further = behind.clone().map("x", [resize(3, 3, Method::Area)]).parallelism(threads).filter(|_| true);
        [small, behind, further].map(|data| data.batch(2))
    };
    let told = |data: &Dataset, limit| match column(data, 0, 0, Some(Bytes::mib(limit))) {
        Ok(rows) => format!("{} rows", rows.len()),
        Err(error) => complaint(Err::<(), _>(error), folder.path()),
    };
    // Their headers are read before planning, so there is memory for them wherever there is a plan.
    for limit in [17, 20, 24, 32, 48] {
        let expected = told(&data(Parallelism::Threads(1))[0], limit);
        assert_eq!(expected, "3 rows");
        for threads in THREADS {
            for data in data(threads) {
                assert_eq!(told(&data, limit), expected, "{} on {threads:?} in {limit} MiB", data.describe());
            }
        }
    }
}
