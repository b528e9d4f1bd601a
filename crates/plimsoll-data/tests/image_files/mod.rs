//! Folders of small images, made by the tests that read them.
#![allow(dead_code)]

use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{Dataset, Feed, Options};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder that is removed with its contents.
pub struct Folder {
    directory: TempDir,
}

impl Folder {
    pub fn new() -> Folder {
        Folder { directory: tempfile::tempdir().unwrap() }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Writes a file into the folder of a class.
    pub fn write(&self, name: &str, contents: &[u8]) -> PathBuf {
        let path = self.path().join("data").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, contents).unwrap();
        path
    }

    pub fn data(&self) -> Dataset {
        Dataset::image_folder(self.path().join("data")).unwrap()
    }

    /// A text about files of this folder, the same wherever it lies.
    pub fn text(&self, text: impl ToString) -> String {
        text.to_string().replace(self.path().to_str().unwrap(), "FOLDER")
    }
}

/// Twelve images of two classes, each of its own size.
pub fn twelve() -> Folder {
    let folder = Folder::new();
    for number in 0..12 {
        let (width, height) = (20 + 3 * number, 50 - 2 * number);
        let class = if number < 5 { "cat" } else { "dog" };
        folder.write(&format!("{class}/{number:02}.png"), &png(&picture(width, height, number as u8), width, height, png::ColorType::Rgb));
    }
    folder
}

/// Pixels that tell places and images apart.
pub fn picture(width: usize, height: usize, number: u8) -> Vec<u8> {
    let pixel = |y: usize, x: usize| [(x * 5) as u8, (y * 4) as u8, number.wrapping_mul(20)];
    (0..height).flat_map(|y| (0..width).flat_map(move |x| pixel(y, x))).collect()
}

pub fn png(pixels: &[u8], width: usize, height: usize, color: png::ColorType) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
    bytes
}

/// All batches of some epochs: each column's bytes, one after the other.
pub fn epochs(data: &Dataset, limit: Option<Bytes>, epochs: u64) -> Result<Vec<Vec<u8>>, plimsoll_data::DataError> {
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(epochs), ..Options::default() })?;
    let mut columns = vec![Vec::new(); feed.schema().columns().len()];
    for _ in 0..epochs {
        while let Some(batch) = feed.next()? {
            for (index, column) in columns.iter_mut().enumerate() {
                column.extend_from_slice(batch.column(index));
            }
        }
    }
    // Feeds inside a stream reserve their part when they start; by now all have.
    assert_eq!(ledger.peak(), plan.total());
    Ok(columns)
}
