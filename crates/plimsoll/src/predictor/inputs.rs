//! What a model can be given: files, folders, arrays and datasets.

use crate::config::{InputKind, RawInputs};
use crate::error::{Error, Result};
use plimsoll_data::source::{begins_like_an_image, files, is_image_file};
use plimsoll_data::{Dataset, Tensor};
use std::fs;
use std::path::{Path, PathBuf};

/// Inputs of a model as they come, without labels. The preprocessing that was stored with the model is applied to them.
#[derive(Clone, Debug)]
pub enum Inputs {
    /// Files and folders of images, patterns such as `photos/*.jpg`, one `.npy` array, or one table.
    Files(Vec<PathBuf>),
    /// Rows along the first dimension, as column `x`.
    Tensor(Tensor),
    /// Rows with the columns that the model reads.
    Dataset(Dataset),
}

/// Anything that [`Predictor::predict`](crate::Predictor::predict) takes.
pub trait ToInputs {
    /// It as inputs.
    fn to_inputs(&self) -> Inputs;
}

impl ToInputs for Inputs {
    fn to_inputs(&self) -> Inputs {
        self.clone()
    }
}

impl ToInputs for Tensor {
    fn to_inputs(&self) -> Inputs {
        Inputs::Tensor(self.clone())
    }
}

impl ToInputs for Dataset {
    fn to_inputs(&self) -> Inputs {
        Inputs::Dataset(self.clone())
    }
}

impl<P: AsRef<Path>> ToInputs for [P] {
    fn to_inputs(&self) -> Inputs {
        Inputs::Files(self.iter().map(|path| path.as_ref().to_path_buf()).collect())
    }
}

impl<P: AsRef<Path>> ToInputs for Vec<P> {
    fn to_inputs(&self) -> Inputs {
        self[..].to_inputs()
    }
}

impl ToInputs for Path {
    fn to_inputs(&self) -> Inputs {
        Inputs::Files(vec![self.to_path_buf()])
    }
}

impl ToInputs for PathBuf {
    fn to_inputs(&self) -> Inputs {
        self.as_path().to_inputs()
    }
}

impl ToInputs for str {
    fn to_inputs(&self) -> Inputs {
        Path::new(self).to_inputs()
    }
}

/// What a file is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// An image.
    Image,
    /// A NumPy array.
    Array,
    /// Text, such as a table or a list of names.
    Text,
    /// Something else.
    Other,
}

/// What a file with these first bytes is.
///
/// ```
/// use plimsoll::{FileKind, kind_of};
/// assert_eq!((kind_of(b"\x93NUMPY"), kind_of(b"a,b\n")), (FileKind::Array, FileKind::Text));
/// ```
pub fn kind_of(head: &[u8]) -> FileKind {
    match head {
        _ if head.starts_with(b"\x93NUMPY") => FileKind::Array,
        _ if begins_like_an_image(head) => FileKind::Image,
        _ if head.iter().all(|byte| *byte >= 0x20 || byte.is_ascii_whitespace()) => FileKind::Text,
        _ => FileKind::Other,
    }
}

impl Inputs {
    /// As a model of this kind reads them.
    pub(crate) fn resolve(self, kind: InputKind) -> Result<RawInputs> {
        let paths = match self {
            Inputs::Tensor(tensor) => return Ok(RawInputs::Rows(Dataset::from_tensor_slices([("x", tensor)])?)),
            Inputs::Dataset(rows) => return Ok(RawInputs::Rows(rows)),
            Inputs::Files(paths) => paths,
        };
        match (kind, &paths[..]) {
            (_, []) => Err(Error::Config("there is nothing to predict: name a file or a folder".to_string())),
            (InputKind::Text, _) => Err(Error::Config(
                "this model continues texts; use `plimsoll generate`, or a tensor of token numbers from Rust".to_string(),
            )),
            (InputKind::Images | InputKind::Arrays, [path]) if has_extension(path, "npy") => Ok(RawInputs::Array(path.clone())),
            (InputKind::Arrays, _) => Err(Error::Config(format!(
                "this model was trained on arrays; give it one .npy file whose first dimension is the row, not {}",
                listed(&paths)
            ))),
            (InputKind::Table, _) => tables(&paths).map(RawInputs::Table),
            (InputKind::Images, _) => images(&paths).map(RawInputs::Images),
        }
    }
}

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(extension))
}

fn listed(paths: &[PathBuf]) -> String {
    let names: Vec<String> = paths.iter().take(3).map(|path| path.display().to_string()).collect();
    let more = if paths.len() > 3 { format!(" and {} more", paths.len() - 3) } else { String::new() };
    names.join(", ") + &more
}

/// The tables of files and patterns.
fn tables(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        if path.is_file() {
            found.push(path.clone());
        } else if path.is_dir() {
            let name = path.display();
            return Err(Error::Config(format!("{name} is a folder, and this model was trained on a table; give it files")));
        } else if path.as_os_str().as_encoded_bytes().iter().any(|byte| b"*?[{".contains(byte)) {
            found.extend(files(path)?);
        } else {
            return Err(Error::Config(format!("cannot open {}: there is no such file", path.display())));
        }
    }
    Ok(found)
}

/// The images of files, folders and patterns. Those of a folder and its subfolders are sorted by name.
fn images(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in paths {
        let before = found.len();
        if path.is_dir() {
            collect(path, &mut found)?;
            found[before..].sort_unstable();
            if found.len() == before {
                return Err(Error::Config(format!("{} has no images in it; name another folder, or files", path.display())));
            }
        } else {
            found.extend(files(path)?);
        }
    }
    Ok(found)
}

/// Adds the images of a folder and its subfolders; hidden ones are left out.
fn collect(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    let error = |source| Error::Io { action: "list", path: folder.to_path_buf(), source };
    for entry in fs::read_dir(folder).map_err(error)? {
        let entry = entry.map_err(error)?;
        let path = entry.path();
        let hidden = entry.file_name().as_encoded_bytes().first() == Some(&b'.');
        // What the listing says needs no look at each file.
        let is_folder = match entry.file_type() {
            Ok(kind) if !kind.is_symlink() => kind.is_dir(),
            _ => path.is_dir(),
        };
        match hidden {
            true => {}
            false if is_folder => collect(&path, found)?,
            false if is_image_file(&path) => found.push(path),
            false => {}
        }
    }
    Ok(())
}
