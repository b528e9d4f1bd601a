//! Every parser under damaged files: a fixed number of mutations of good ones, the same each time. `fuzz/` has the same
//! ways in for cargo-fuzz, which looks further. With `PLIMSOLL_MUTATE_SECONDS=60` each parser gets mutations for that
//! long, others each time; `PLIMSOLL_SEEDS=FOLDER` writes the good files there.

mod entries;

use entries::{ENTRIES, enter};
use flate2::Compression;
use flate2::write::GzEncoder;
use jpeg_encoder::{ColorType, Encoder, SamplingFactor};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

const ROUNDS: u64 = 250;

fn reference(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)).unwrap()
}

fn fixture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)).unwrap()
}

/// A bitmap of run lengths: literals, a run, an end of line, a jump.
fn run_lengths() -> Vec<u8> {
    let data = [3, 1, 0, 3, 1, 2, 3, 0, 0, 0, 0, 2, 1, 1, 4, 2, 0, 1];
    let palette: Vec<u8> = (0..4).flat_map(|n| [n * 40, 10, 200 - n, 0]).collect();
    let word = |n: u32| n.to_le_bytes();
    let header = [&b"BM"[..], &word(0), &word(0), &word(54 + 16)].concat();
    let info = [word(40), word(7), word(5), word(1 | 8 << 16), word(1), word(0), word(0), word(0), word(4), word(0)].concat();
    [header, info, palette, data.to_vec()].concat()
}

fn jpeg(progressive: bool, color: ColorType, channels: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 90);
    encoder.set_progressive(progressive);
    encoder.add_app_segment(1, b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0".to_vec()).unwrap();
    let pixels: Vec<u8> = (0..17 * 11 * channels).map(|index| (index * 7) as u8).collect();
    encoder.encode(&pixels, 17, 11, color).unwrap();
    bytes
}

/// Colours at half the size, and marks to start again at.
fn halved() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = Encoder::new(&mut bytes, 60);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.set_restart_interval(2);
    let pixels: Vec<u8> = (0..45 * 37 * 3).map(|index| (index * index / 5) as u8).collect();
    encoder.encode(&pixels, 45, 37, ColorType::Rgb).unwrap();
    bytes
}

fn png() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 13, 9);
    encoder.set_color(png::ColorType::Rgba);
    encoder.set_depth(png::BitDepth::Sixteen);
    let pixels: Vec<u8> = (0..13 * 9 * 8).map(|index| (index * 3) as u8).collect();
    encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
    bytes
}

fn npy() -> Vec<u8> {
    let mut header = "{'descr': '<f8', 'fortran_order': False, 'shape': (5, 3), }".to_string();
    while !(header.len() + 11).is_multiple_of(64) {
        header.push(' ');
    }
    header.push('\n');
    let numbers = (0..15).flat_map(|number| f64::from(number).to_le_bytes());
    [b"\x93NUMPY\x01\x00", &(header.len() as u16).to_le_bytes()[..], header.as_bytes()].concat().into_iter().chain(numbers).collect()
}

/// Good files for an entry. A cache is one that the entry itself has made.
fn seeds(name: &str, folder: &Path) -> Vec<Vec<u8>> {
    match name {
        "npy" => {
            let arrays = ["fortran_f4", "fortran_f8_big_endian", "big_endian_i8", "fortran_bool"];
            arrays.iter().map(|name| fixture(&format!("npy/{name}.npy"))).chain([npy()]).collect()
        }
        "npz" => vec![reference("arrays.npz"), reference("packed.npz")],
        "csv" => vec![b"a,\"b\",y\r\n1,2.5,0\n-3e4,\"4\",1\n\n5,6,2\n".to_vec()],
        "parquet" => vec![reference("plain.parquet"), reference("snappy.parquet"), reference("gzip.parquet")],
        "arrow" => [
            "none.arrow",
            "lz4.arrow",
            "zstd.arrows",
            "polars_zstd.arrow",
            "delta.arrow",
            "replaced.arrows",
            "list_fixed.arrow",
            "struct.arrow",
        ]
        .map(|name| fixture(&format!("tables/{name}")))
        .to_vec(),
        "text" => vec!["to be or not to be, that is: äöü ✓".into()],
        "image" => vec![
            halved(),
            jpeg(false, ColorType::Rgb, 3),
            jpeg(true, ColorType::Rgb, 3),
            jpeg(false, ColorType::Cmyk, 4),
            jpeg(false, ColorType::Luma, 1),
            png(),
            reference("lossy.webp"),
            reference("lossless.webp"),
            reference("alpha.webp"),
            reference("animated.webp"),
            reference("animated.gif"),
            reference("interlaced.gif"),
        ],
        "tfrecord" => vec![reference("examples.tfrecord")],
        "tfrecord_gzip" => vec![reference("examples.tfrecord.gz")],
        "tfrecord_images" => vec![reference("encoded_images.tfrecord")],
        "tfrecord_images_gzip" => {
            // And stored as they are, so that damage reaches the records.
            let mut stored = GzEncoder::new(Vec::new(), Compression::none());
            stored.write_all(&reference("encoded_images.tfrecord")).unwrap();
            vec![reference("encoded_images.tfrecord.gz"), stored.finish().unwrap()]
        }
        "webdataset" => vec![reference("shard.tar")],
        "webdataset_gzip" => {
            // And stored as it is, so that damage reaches the samples.
            let mut stored = GzEncoder::new(Vec::new(), Compression::none());
            stored.write_all(&reference("shard.tar")).unwrap();
            vec![fixture("webdataset/packed.tar.gz"), stored.finish().unwrap()]
        }
        "bmp_tiff" => [
            "rgb.bmp",
            "palette.bmp",
            "bilevel.bmp",
            "rgb.tiff",
            "lzw_predictor.tiff",
            "deflate.tiff",
            "packbits.tiff",
            "palette.tiff",
            "bilevel.tiff",
            "grey16.tiff",
            "cmyk.tiff",
            "tiles.tiff",
            "planes.tiff",
            "big_endian.tiff",
            "white_is_zero.tiff",
        ]
        .map(|name| fixture(&format!("image/{name}")))
        .into_iter()
        .chain([run_lengths()])
        .collect(),
        "mask" => ["palette.png", "palette_2bit.png", "bilevel.png", "grey_rgb.png", "palette.bmp", "grey.tiff", "palette.gif"]
            .map(|name| fixture(&format!("mask/{name}")))
            .to_vec(),
        "image_labels" => vec![b"file,label\na,x\n\"b\",\"y, z\"\r\n".to_vec()],
        _ => {
            let entry = ENTRIES.into_iter().find(|entry| entry.0 == name).unwrap();
            // A file of another kind is refused, an empty place is filled.
            assert!(enter(entry, folder, b"diary").is_err());
            fs::remove_file(folder.join(entry.1)).unwrap();
            (entry.2)(&folder.join(entry.1)).unwrap();
            vec![fs::read(folder.join(entry.1)).unwrap()]
        }
    }
}

struct Lots(u64);

impl Lots {
    fn below(&mut self, limit: usize) -> usize {
        // Xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit.max(1) as u64) as usize
    }
}

/// Changes a file in one to four places; most damage is near the start, where headers are.
fn mutate(file: &[u8], lots: &mut Lots) -> Vec<u8> {
    let mut bytes = file.to_vec();
    for _ in 0..=lots.below(4) {
        let near = if lots.below(2) == 0 { bytes.len().min(128) } else { bytes.len() };
        let at = lots.below(near);
        match lots.below(7) {
            _ if bytes.is_empty() => {}
            0 => bytes[at] ^= 1 << lots.below(8),
            1 => bytes[at] = [0, 0xFF, 0x7F, 0x80, b'\n', b'"', b'9'][lots.below(7)],
            2 => bytes.truncate(at),
            3 => bytes.insert(at, lots.below(256) as u8),
            4 => drop(bytes.remove(at)),
            5 => {
                let end = (at + 1 + lots.below(16)).min(bytes.len());
                bytes[at..end].fill(0xFF);
            }
            _ => {
                let end = (at + 1 + lots.below(64)).min(bytes.len());
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
    bytes
}

#[test]
fn good_files_are_read_and_damaged_ones_are_at_most_refused() {
    for entry in ENTRIES {
        let folder = tempfile::tempdir().unwrap();
        let seeds = seeds(entry.0, folder.path());
        for seed in &seeds {
            enter(entry, folder.path(), seed).unwrap_or_else(|error| panic!("a good {} is refused: {error}", entry.0));
        }
        if let Some(corpus) = std::env::var_os("PLIMSOLL_SEEDS") {
            let corpus = Path::new(&corpus).join(entry.0);
            fs::create_dir_all(&corpus).unwrap();
            seeds.iter().enumerate().for_each(|(index, seed)| fs::write(corpus.join(format!("seed-{index}")), seed).unwrap());
        }
        let more = std::env::var("PLIMSOLL_MUTATE_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64 | 1);
        let mut lots = Lots(if more.is_some() { clock() } else { 0x9E37_79B9_7F4A_7C15 });
        let begun = Instant::now();
        let (mut refused, mut round) = (0, 0);
        while more.map_or(round < ROUNDS, |time| begun.elapsed() < time) {
            let bytes = mutate(&seeds[round as usize % seeds.len()], &mut lots);
            // What panics or hangs is left where it can be inspected.
            let outcome = std::panic::catch_unwind(|| enter(entry, folder.path(), &bytes));
            refused += u64::from(
                outcome
                    .unwrap_or_else(|_| {
                        let kept = std::env::temp_dir().join(format!("plimsoll-{}-{round}", entry.0));
                        fs::write(&kept, &bytes).unwrap();
                        panic!("round {round} of {} panicked; the file is {}", entry.0, kept.display())
                    })
                    .is_err(),
            );
            round += 1;
        }
        if more.is_some() {
            println!("{}: {refused} of {round} refused, none panicked", entry.0);
        }
        // Text is text whatever happens to it; all others notice some of it.
        assert!(refused > 0 || entry.0 == "text", "{}: {refused} of {round} refused", entry.0);
    }
}
