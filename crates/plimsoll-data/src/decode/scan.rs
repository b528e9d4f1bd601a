//! Reads the headers of images before a pipeline is planned: the decode pool then has the size of the largest images.

use super::DecodeRecipe;
use super::kernel::needed_bytes;
use crate::cache::Fingerprint;
use crate::image;
use crate::source::{ImageScan, Source, identify_named};
use crate::{DataError, Permutation};
use plimsoll_core::Bytes;
use std::fs::{self, File};
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How many headers of images are read before planning, and where the result is kept.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// Headers read at most. Below the number of images, they are a random sample.
    pub files: u64,
    /// The time after which no further header is read; to look for a stored result, files are examined for as long at
    /// most. A scan that ran out of time continues from its stored result.
    pub time: Duration,
    /// A folder to keep the results of scans of many files in. A result is valid for files of the same names, sizes and
    /// modification times.
    pub cache: Option<PathBuf>,
}

impl Default for ScanOptions {
    /// All headers that can be read in three seconds, and nothing is kept.
    fn default() -> ScanOptions {
        ScanOptions { files: u64::MAX, time: Duration::from_secs(3), cache: None }
    }
}

/// Scans of fewer files are not stored: reading a header takes hardly longer than examining the file.
const STORED_FROM: u64 = 1000;

/// Files between two looks at the clock.
const LOOK: u64 = 64;

/// The seed of the order in which headers are read.
const ORDER: u64 = 0x6865_6164_6572;

/// Reads the headers of the images in `rows`, in random order, so that a part of them is a fair sample. Files that are
/// no images, and those that take more than `cap`, are bad rows and need no memory.
pub(crate) fn scan(
    source: &dyn Source,
    column: usize,
    rows: Range<u64>,
    recipe: &DecodeRecipe,
    cap: Bytes,
    options: &ScanOptions,
) -> ImageScan {
    let images = rows.end - rows.start;
    let file = options.cache.as_ref().filter(|_| images >= STORED_FROM).and_then(|folder| {
        let fingerprint = fingerprint(source, column, rows.clone(), options.time)?;
        let mut first = PathBuf::new();
        source.file(rows.start, column, &mut first);
        let place = format!("{} {}", source.describe(), first.display());
        Some(StoredScan::new(folder, &place, &scan_name(recipe, cap, &rows), fingerprint))
    });
    let mut scan = file.as_ref().and_then(StoredScan::load).filter(|scan| scan.images == images).unwrap_or(ImageScan::of(images));
    let start = Instant::now();
    let (before, order, mut path) = (scan.scanned, Permutation::new(images, ORDER, 0), PathBuf::new());
    while scan.scanned < images && scan.scanned < options.files {
        if scan.scanned.is_multiple_of(LOOK) && start.elapsed() > options.time {
            break;
        }
        let row = rows.start + order.at(scan.scanned);
        if let Some(bytes) = item_bytes(source, row, column, recipe, &mut path).filter(|bytes| *bytes <= cap) {
            scan.add(bytes);
        }
        scan.scanned += 1;
    }
    if let Some(file) = file.filter(|_| scan.scanned > before) {
        // Without it, headers are read again.
        let _ = file.save(&scan);
    }
    scan
}

/// What a scan depends on besides the files.
pub(crate) fn scan_name(recipe: &DecodeRecipe, cap: Bytes, rows: &Range<u64>) -> String {
    format!("{:?} {:?} ≤ {} {rows:?}", recipe.decode, recipe.end, cap.0)
}

/// Bytes for reading and decoding the image of a row, if it is one.
fn item_bytes(source: &dyn Source, row: u64, column: usize, recipe: &DecodeRecipe, path: &mut PathBuf) -> Option<Bytes> {
    source.file(row, column, path);
    let probed = || {
        let part = source.file_part(row, column)?;
        let file = File::open(&*path).map_err(|error| DataError::io("open", path, error))?;
        let length = || file.metadata().map(|metadata| metadata.len());
        let part = part.map_or_else(|| length().map(|length| 0..length), Ok);
        image::probe(&file, path, part.map_err(|error| DataError::io("examine", path, error))?)
    };
    u64::try_from(needed_bytes(&probed().ok()?, recipe)).ok().map(Bytes)
}

/// Bytes for reading and decoding an encoded image, if it is one.
pub(crate) fn encoded_bytes(path: &Path, encoded: &[u8], recipe: &DecodeRecipe) -> Option<Bytes> {
    let probe = image::probe(&encoded, path, 0..encoded.len() as u64).ok()?;
    u64::try_from(needed_bytes(&probe, recipe)).ok().map(Bytes)
}

/// The fingerprint of the files, by their names, sizes and modification times; none if that takes longer than this.
fn fingerprint(source: &dyn Source, column: usize, rows: Range<u64>, time: Duration) -> Option<[u8; 16]> {
    let start = Instant::now();
    let (mut hash, mut path, mut before) = (Fingerprint::new(), PathBuf::new(), PathBuf::new());
    for row in rows {
        if row.is_multiple_of(LOOK) && start.elapsed() > time {
            return None;
        }
        source.file(row, column, &mut path);
        // Many rows may be parts of one file.
        if path != before {
            // A file that cannot be examined is a bad row.
            identify_named(&path, &mut hash).unwrap_or_else(|_| hash.write(path.as_os_str().as_encoded_bytes()));
            std::mem::swap(&mut path, &mut before);
        }
    }
    Some(hash.bytes())
}

/// A scan in a file: one per folder and way to decode, replaced when the folder changes.
pub(crate) struct StoredScan {
    path: PathBuf,
    /// The first line of the file.
    head: String,
}

impl StoredScan {
    /// The scan of the images at a place, for this [way to decode them](scan_name).
    pub fn new(folder: &Path, place: &str, name: &str, fingerprint: [u8; 16]) -> StoredScan {
        let mut hash = Fingerprint::new();
        [place, name].iter().for_each(|part| hash.write(part.as_bytes()));
        let hex = |bytes: [u8; 16]| u128::from_be_bytes(bytes);
        let head = format!("plimsoll image scan 1 {:032x}", hex(fingerprint));
        StoredScan { path: folder.join(format!("{:032x}", hex(hash.bytes()))), head }
    }

    /// The scan, if the file is intact and of the same images.
    pub fn load(&self) -> Option<ImageScan> {
        let text = fs::read_to_string(&self.path).ok()?;
        let (body, check) = text.trim_end().rsplit_once('\n')?;
        let (head, numbers) = body.split_once('\n')?;
        if head != self.head || check != checksum(body) {
            return None;
        }
        let mut numbers = numbers.split(' ').map(|number| number.parse::<u64>().ok());
        let (images, scanned) = (numbers.next()??, numbers.next()??);
        let largest = numbers.map(|number| number.map(Bytes)).collect::<Option<Vec<_>>>()?;
        Some(ImageScan::with_largest(images, scanned, largest))
    }

    /// Replaces the file as a whole.
    pub fn save(&self, scan: &ImageScan) -> std::io::Result<()> {
        let numbers = [scan.images, scan.scanned].into_iter().chain(scan.sizes().iter().map(|bytes| bytes.0));
        let body = format!("{}\n{}", self.head, numbers.map(|number| number.to_string()).collect::<Vec<_>>().join(" "));
        let temporary = self.path.with_extension(format!("{}.tmp", std::process::id()));
        fs::create_dir_all(self.path.parent().unwrap_or(Path::new(".")))?;
        let written = fs::write(&temporary, format!("{body}\n{}\n", checksum(&body))).and_then(|()| fs::rename(&temporary, &self.path));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }
}

fn checksum(text: &str) -> String {
    format!("{:08x}", crc32c::crc32c(text.as_bytes()))
}
