//! Ways into every parser, each from the bytes of a file to the end of an epoch. The mutation test and the fuzz targets
//! share them.
//!
//! An entry may answer anything but a panic, and may not hold more than was planned.

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{CropArea, Decode, Method, decode, fill, random_resized_crop, resize};
use plimsoll_data::source::{ArrowSpec, CsvSpec, Feature, LabelFile, ParquetSpec};
use plimsoll_data::{Cache, DataError, Dataset, Feed, Options, Parallelism};
use std::fs;
use std::path::Path;

/// A name, what a good file is called, and the way in.
pub type Entry = (&'static str, &'static str, fn(&Path) -> Result<(), DataError>);

pub const ENTRIES: [Entry; 19] = [
    ("npy", "a.npy", npy),
    ("npz", "a.npz", npz),
    ("csv", "a.csv", csv),
    ("parquet", "a.parquet", parquet),
    ("arrow", "a.arrow", arrow),
    ("text", "a.txt", text),
    ("image", "pictures/class/a.jpg", image),
    ("tfrecord", "a.tfrecord", tfrecord),
    ("tfrecord_gzip", "a.tfrecord.gz", tfrecord),
    ("tfrecord_images", "p.tfrecord", tfrecord_images),
    ("tfrecord_images_gzip", "p.tfrecord.gz", tfrecord_images_gzip),
    ("webdataset", "a.tar", webdataset),
    ("webdataset_gzip", "a.tar.gz", webdataset_gzip),
    ("bmp_tiff", "pictures/class/a.tiff", image),
    ("mask", "masks/a.png", mask),
    ("image_labels", "labels/labels.csv", image_labels),
    ("image_cache", "cache.plc", image_cache),
    ("row_cache", "rows.plc", row_cache),
    ("epoch_cache", "kept.plc", epoch_cache),
];

/// Writes `bytes` where the entry looks for them and goes in.
pub fn enter(entry: Entry, folder: &Path, bytes: &[u8]) -> Result<(), DataError> {
    let path = folder.join(entry.1);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, bytes).unwrap();
    let outcome = (entry.2)(&path);
    if let Err(DataError::Panic { message }) = &outcome {
        panic!("{} panicked: {message}", entry.0);
    }
    outcome
}

/// All rows of one epoch in 24 MiB.
fn drain(data: Dataset) -> Result<(), DataError> {
    let limit = Some(Bytes::mib(24));
    let data = data.parallelism(Parallelism::Threads(1)).batch(8);
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let mut feed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(1), ..Options::default() })?;
    // A header may promise more rows than anyone would wait for.
    for _ in 0..1000 {
        if feed.next()?.is_none() {
            break;
        }
    }
    assert!(ledger.peak() <= plan.total());
    Ok(())
}

/// The same of rows that come one after the other, also with those left out that cannot be read.
fn drain_stream(data: Dataset) -> Result<(), DataError> {
    drain(data.clone().ignore_errors(10_000))?;
    drain(data)
}

fn npy(path: &Path) -> Result<(), DataError> {
    drain(Dataset::npy(&[("x", path)])?)
}

fn npz(path: &Path) -> Result<(), DataError> {
    drain_stream(Dataset::npz(path, &[("x", "images"), ("y", "labels")])?)
}

fn csv(path: &Path) -> Result<(), DataError> {
    drain(Dataset::csv(path, &CsvSpec::new().targets(["y"]))?)
}

fn parquet(path: &Path) -> Result<(), DataError> {
    drain_stream(Dataset::parquet(path, &ParquetSpec::new().targets(["few"]))?)
}

fn arrow(path: &Path) -> Result<(), DataError> {
    drain_stream(Dataset::arrow(path, &ArrowSpec::new())?)
}

fn text(path: &Path) -> Result<(), DataError> {
    drain(Dataset::text(path, 7)?)
}

fn image(path: &Path) -> Result<(), DataError> {
    let folder = path.parent().unwrap().parent().unwrap();
    drain(Dataset::image_folder(folder)?.map("x", [Decode::new().upright().op(), resize(9, 7, Method::Area)]))?;
    let part = random_resized_crop(5, 6, CropArea { method: Method::BicubicAntialias, ..CropArea::default() });
    drain(Dataset::image_folder(folder)?.map("x", [Decode::new().grey().op(), part]))
}

fn tfrecord(path: &Path) -> Result<(), DataError> {
    drain_stream(Dataset::tfrecord(path, &[("x", Feature::f32("pixels", [3])), ("y", Feature::i32("label", []))])?)
}

/// Images inside records, and values of which there may be fewer.
fn tfrecord_images(path: &Path) -> Result<(), DataError> {
    let features = [("x", Feature::image("image/encoded")), ("y", Feature::i32("image/class/label", [4]).up_to())];
    drain(Dataset::tfrecord(path, &features)?.map("x", [decode(), resize(4, 4, Method::Bilinear)]).map("y", [fill(-1.0)]))
}

/// The same from packed files.
fn tfrecord_images_gzip(path: &Path) -> Result<(), DataError> {
    let features = [("x", Feature::image("image/encoded")), ("y", Feature::i32("image/class/label", [4]).up_to())];
    drain_stream(Dataset::tfrecord(path, &features)?.map("x", [decode(), resize(4, 4, Method::Bilinear)]).map("y", [fill(-1.0)]))
}

fn webdataset_gzip(path: &Path) -> Result<(), DataError> {
    drain_stream(Dataset::webdataset(path)?.map("x", [decode(), resize(8, 8, Method::Bilinear)]))
}

/// The mask beside an image of the size of the good ones.
fn mask(path: &Path) -> Result<(), DataError> {
    let images = path.with_file_name("images");
    fs::create_dir_all(&images).unwrap();
    let image = images.join("a.bmp");
    if !image.exists() {
        fs::write(&image, include_bytes!("../fixtures/image/rgb.bmp")).unwrap();
    }
    let masks = path.parent().unwrap();
    drain(Dataset::image_masks(&images, masks, &[])?.map_image_and_mask([decode(), resize(8, 8, Method::Bilinear)]))
}

fn image_labels(path: &Path) -> Result<(), DataError> {
    let folder = path.parent().unwrap();
    for name in ["a.bmp", "b.bmp"].iter().filter(|name| !folder.join(name).exists()) {
        fs::write(folder.join(name), include_bytes!("../fixtures/image/rgb.bmp")).unwrap();
    }
    let labels = LabelFile { path: path.to_path_buf(), ..LabelFile::default() };
    drain(Dataset::labelled_images(folder, &labels)?.map("x", [decode(), resize(8, 8, Method::Bilinear)]))
}

fn webdataset(path: &Path) -> Result<(), DataError> {
    drain(Dataset::webdataset(path)?.map("x", [decode(), resize(4, 4, Method::Bilinear)]))
}

/// The bytes are a cache of a good image beside it, which stays as it is.
fn image_cache(path: &Path) -> Result<(), DataError> {
    let folder = path.parent().unwrap().join("cached");
    if !folder.exists() {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, 3, 3);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::Eight);
        encoder.write_header().unwrap().write_image_data(&[9; 9]).unwrap();
        fs::create_dir_all(folder.join("class")).unwrap();
        fs::write(folder.join("class/a.png"), file).unwrap();
    }
    drain(Dataset::image_folder(folder)?.map("x", [decode(), resize(2, 2, Method::Nearest)]).cache(Cache::File(path.into())))
}

/// The bytes are a cache of a good table beside it, row by row.
fn row_cache(path: &Path) -> Result<(), DataError> {
    drain(table(path)?.cache(Cache::File(path.into())))
}

/// The same of its rows as a stream, an epoch as a whole.
fn epoch_cache(path: &Path) -> Result<(), DataError> {
    drain(table(path)?.enumerate("n").cache(Cache::File(path.into())))
}

fn table(path: &Path) -> Result<Dataset, DataError> {
    let table = path.parent().unwrap().join("table.csv");
    if !table.exists() {
        fs::write(&table, "a,b,y\n1,2.5,0\n-3e4,4,1\n5,6,2\n").unwrap();
    }
    Dataset::csv(table, &CsvSpec::new().targets(["y"]))
}
