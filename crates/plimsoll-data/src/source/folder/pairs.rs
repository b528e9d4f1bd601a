//! A folder of images and a folder of their segmentation masks, paired by file name.

use super::names::Names;
use super::{entries, hidden, is_dir, is_image};
use crate::block::{BlockMut, Rows};
use crate::image::EXTENSIONS;
use crate::source::{ImageScans, Source, identify_named};
use crate::{Column, DataError, Schema};
use plimsoll_core::Bytes;
use std::ffi::OsStr;
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Images and masks: `x` is the file of an image, `y` that of its mask. A mask has the name of its image up to the
/// extension, with a suffix such as `_mask` if one is given. Rows are sorted by name.
pub struct ImageMasks {
    images: (PathBuf, Names),
    masks: (PathBuf, Names),
    classes: Vec<String>,
    schema: Schema,
    scans: ImageScans,
}

impl ImageMasks {
    /// Lists both folders. `classes` are the names of classes 0, 1, 2 …; the list may be empty.
    pub fn open(images: &Path, masks: &Path, suffix: &str, classes: &[String]) -> Result<ImageMasks, DataError> {
        let (found, mut of_masks) = (list(images)?, list(masks)?);
        // The same folder may hold both, distinguished by the suffix.
        let is_mask = |name: &OsStr| stem(name).ends_with(suffix.as_bytes());
        if !suffix.is_empty() {
            of_masks = of_masks.only(is_mask)?;
        }
        let found = if images == masks && !suffix.is_empty() { found.only(|name| !is_mask(name))? } else { found };
        let expected = |name: &OsStr| [stem(name), suffix.as_bytes()].concat();
        let refuse = |path: PathBuf, problem: String| Err(DataError::Unpaired { path, problem });
        let mut mask = 0;
        for image in 0..found.len() {
            let name = found.get(image);
            let wanted = expected(name);
            match (mask < of_masks.len()).then(|| stem(of_masks.get(mask)).cmp(&wanted[..])) {
                Some(std::cmp::Ordering::Equal) => mask += 1,
                Some(std::cmp::Ordering::Less) => {
                    let problem = format!("the mask has no image of its name in {}; add or remove one of them", images.display());
                    return refuse(masks.join(of_masks.get(mask)), problem);
                }
                _ => {
                    let wanted = String::from_utf8_lossy(&wanted).into_owned();
                    let problem = format!("the image has no mask {wanted} in {}; add it, or remove the image", masks.display());
                    return refuse(images.join(name), problem);
                }
            }
        }
        if mask < of_masks.len() {
            let problem = format!("the mask has no image of its name in {}; add or remove one of them", images.display());
            return refuse(masks.join(of_masks.get(mask)), problem);
        }
        if found.len() == 0 {
            return refuse(images.to_path_buf(), format!("it holds no {EXTENSIONS} files"));
        }
        let mut y = Column::files("y");
        if !classes.is_empty() {
            y = y.with_classes(classes.to_vec());
        }
        Ok(ImageMasks {
            images: (images.to_path_buf(), found),
            masks: (masks.to_path_buf(), of_masks),
            classes: classes.to_vec(),
            schema: Schema::new(vec![Column::files("x"), y])?,
            scans: ImageScans::default(),
        })
    }
}

/// A name without its extension.
fn stem(name: &OsStr) -> &[u8] {
    Path::new(name).file_stem().unwrap_or_default().as_encoded_bytes()
}

/// The images of a folder, sorted by name without extension.
fn list(folder: &Path) -> Result<Names, DataError> {
    let mut names = Names::default();
    for entry in entries(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if !hidden(&name) && is_image(&name) && !is_dir(&entry) {
            push(&mut names, folder, &name)?;
        }
    }
    names.sort_by_key(stem);
    names.settle();
    if let Some(at) = (1..names.len()).find(|&at| stem(names.get(at)) == stem(names.get(at - 1))) {
        let problem = format!("{} has the same name without its extension; rename or remove one", names.get(at - 1).display());
        return Err(DataError::Unpaired { path: folder.join(names.get(at)), problem });
    }
    Ok(names)
}

fn push(names: &mut Names, folder: &Path, name: &OsStr) -> Result<(), DataError> {
    let full = || DataError::Unpaired { path: folder.to_path_buf(), problem: "its names take more than 4 GiB; split it".into() };
    names.push(name).map_err(|_| full())
}

impl Names {
    /// Those that fulfil a condition, in the same order.
    fn only(&self, keep: impl Fn(&OsStr) -> bool) -> Result<Names, DataError> {
        let mut names = Names::default();
        for name in (0..self.len()).map(|index| self.get(index)).filter(|name| keep(name)) {
            push(&mut names, Path::new(""), name)?;
        }
        names.settle();
        Ok(names)
    }
}

impl Source for ImageMasks {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.images.1.len() as u64
    }

    fn held_bytes(&self) -> Bytes {
        let classes: usize = self.classes.iter().map(|name| 2 * (name.len() + 48)).sum();
        Bytes((self.images.1.held() + self.masks.1.held() + classes) as u64)
    }

    fn write_rows(&self, _rows: Rows<'_>, _scratch: &mut [u8], _out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        Ok(())
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        Some((self, &self.scans))
    }

    fn file(&self, row: u64, column: usize, path: &mut PathBuf) {
        let (folder, names) = if column == 0 { &self.images } else { &self.masks };
        path.as_mut_os_string().clear();
        path.push(folder);
        path.push(names.get(row as usize));
    }

    fn masked_column(&self, column: usize) -> Option<usize> {
        (column == 1).then_some(0)
    }

    /// Names, sizes and modification times of the files, but not their contents.
    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        let mut path = PathBuf::new();
        for (row, column) in rows.flat_map(|row| [(row, 0), (row, 1)]) {
            self.file(row, column, &mut path);
            identify_named(&path, hash)?;
        }
        Ok(true)
    }

    fn class_names(&self) -> Vec<String> {
        self.classes.clone()
    }

    fn row_name(&self, row: u64) -> String {
        let mut path = PathBuf::new();
        self.file(row, 0, &mut path);
        path.display().to_string()
    }

    fn describe(&self) -> String {
        format!("image_masks {} with {}", self.images.0.display(), self.masks.0.display())
    }
}
