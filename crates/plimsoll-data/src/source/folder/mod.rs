//! Folders of images, one class per folder.

mod labelled;
mod names;
mod pairs;

pub use labelled::{LabelFile, LabelKind, LabelledImages};
pub use pairs::ImageMasks;

use super::{ImageScans, Source, identify_named};
use crate::block::{BlockMut, Rows};
use crate::image::{EXTENSIONS, is_image_name};
use crate::{Column, DataError, Schema};
use names::Names;
use plimsoll_core::{Bytes, DType};
use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirEntry};
use std::hash::Hasher;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The images in the subfolders of a folder: `x` is the file, `y` the index of its subfolder as i32. Folders and
/// files are sorted by name. Files without the extension of an image, and hidden files, are skipped.
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<Class>,
    names: Names,
    schema: Schema,
    /// The number of files without an image extension, and the first of them.
    others: (u64, Option<PathBuf>),
    scans: ImageScans,
}

struct Class {
    /// The name of its folder.
    folder: OsString,
    /// One past its last row.
    end: u64,
}

impl Class {
    fn name(&self) -> Cow<'_, str> {
        self.folder.to_string_lossy()
    }
}

impl ImageFolder {
    /// Lists the folder. Files are opened only when their rows are read.
    pub fn open(root: &Path) -> Result<ImageFolder, DataError> {
        ImageFolder::open_with(root, None)
    }

    /// Like [`open`](Self::open), with the classes of another folder, in their order. Classes may be missing here,
    /// but no others may exist.
    pub fn open_with(root: &Path, classes: Option<&[String]>) -> Result<ImageFolder, DataError> {
        let refuse = |problem: String| DataError::Folder { path: root.to_path_buf(), problem };
        let mut folders = Vec::new();
        for entry in entries(root)? {
            let entry = entry?;
            if !hidden(&entry.file_name()) && is_dir(&entry) {
                folders.push(entry.file_name());
            }
        }
        if folders.is_empty() {
            return Err(refuse(
                "it has no folders in it; make one for each class and put its images there, or name a table of labels as `labels`".into(),
            ));
        }
        folders.sort_unstable();
        if let Some(known) = classes {
            let names: HashSet<&str> = known.iter().map(String::as_str).collect();
            if let Some(strange) = folders.iter().map(|folder| folder.to_string_lossy()).find(|name| !names.contains(&**name)) {
                let problem = format!("its class `{strange}` is not one of the training classes ({}); rename or remove it", listed(known));
                return Err(refuse(problem));
            }
            folders = known.iter().map(OsString::from).collect();
        }
        let (mut found, mut names, mut others) = (Vec::with_capacity(folders.len()), Names::default(), (0, None));
        for name in folders {
            let (first, folder) = (names.len(), root.join(&name));
            // With given classes, some folders may be missing.
            let listed = if classes.is_some() && !folder.exists() { None } else { Some(entries(&folder)?) };
            for entry in listed.into_iter().flatten() {
                let entry = entry?;
                let file = entry.file_name();
                match is_image(&file) {
                    _ if hidden(&file) || is_dir(&entry) => {}
                    true => names.push(&file).map_err(|_| refuse("its names take more than 4 GiB; split it".into()))?,
                    false => {
                        others.0 += 1;
                        others.1.get_or_insert_with(|| entry.path());
                    }
                }
            }
            if names.len() == first && folder.exists() {
                let problem = format!("its class {} holds no {EXTENSIONS} files; put some there or remove it", folder.display());
                return Err(refuse(problem));
            }
            names.sort_from(first);
            found.push(Class { folder: name, end: names.len() as u64 });
        }
        names.settle();
        if names.len() == 0 {
            return Err(refuse(format!("its folders hold no {EXTENSIONS} files")));
        }
        let known: Vec<String> = found.iter().map(|class: &Class| class.name().into_owned()).collect();
        let schema = Schema::new(vec![Column::files("x"), Column::new("y", DType::I32, []).with_classes(known)])?;
        Ok(ImageFolder { root: root.to_path_buf(), classes: found, names, schema, others, scans: ImageScans::default() })
    }

    /// The names of the classes, by label.
    pub fn classes(&self) -> impl ExactSizeIterator<Item = Cow<'_, str>> {
        self.classes.iter().map(Class::name)
    }

    fn class(&self, row: u64) -> usize {
        self.classes.partition_point(|class| class.end <= row)
    }
}

/// Class names in a line of limited length.
fn listed(names: &[String]) -> String {
    const LISTED: usize = 64;
    let first = names.iter().take(LISTED).map(String::as_str).collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn entries(folder: &Path) -> Result<impl Iterator<Item = Result<DirEntry, DataError>>, DataError> {
    let list = |error| DataError::io("list", folder, error);
    Ok(fs::read_dir(folder).map_err(list)?.map(move |entry| entry.map_err(list)))
}

fn hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().first() == Some(&b'.')
}

fn is_image(name: &OsStr) -> bool {
    is_image_name(Path::new(name).extension().unwrap_or_default().as_encoded_bytes())
}

/// Follows links. Usually the directory entry has the type, which saves a call.
fn is_dir(entry: &DirEntry) -> bool {
    match entry.file_type() {
        Ok(kind) if kind.is_symlink() => fs::metadata(entry.path()).is_ok_and(|metadata| metadata.is_dir()),
        Ok(kind) => kind.is_dir(),
        Err(_) => false,
    }
}

impl Source for ImageFolder {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.names.len() as u64
    }

    fn held_bytes(&self) -> Bytes {
        // Class names are held here and in the schema, each in an allocation of its own.
        let allocated = |name: &OsString| (name.len() + 16).next_multiple_of(16) + size_of::<Class>();
        let classes: usize = self.classes.iter().map(|class| 2 * allocated(&class.folder)).sum();
        Bytes((self.names.held() + classes) as u64)
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (row, label) in rows.iter(out.rows()).zip(out.column(1).as_chunks_mut::<4>().0) {
            *label = (self.class(row) as i32).to_ne_bytes();
        }
        Ok(())
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        Some((self, &self.scans))
    }

    fn file(&self, row: u64, _column: usize, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.root);
        path.push(&self.classes[self.class(row)].folder);
        path.push(self.names.get(row as usize));
    }

    /// Names, sizes and modification times of the files, but not their contents, which would have to be read.
    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        let mut path = PathBuf::new();
        for row in rows {
            self.file(row, 0, &mut path);
            identify_named(&path, hash)?;
        }
        // Labels are indices into this list.
        self.classes().for_each(|class| hash.write(class.as_bytes()));
        Ok(true)
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        (0..self.len()).for_each(|row| visit(self.class(row) as i64));
        Ok(true)
    }

    fn row_name(&self, row: u64) -> String {
        let mut path = PathBuf::new();
        self.file(row, 0, &mut path);
        path.display().to_string()
    }

    fn class_names(&self) -> Vec<String> {
        self.classes().map(Cow::into_owned).collect()
    }

    fn skipped_files(&self) -> Option<String> {
        let (count, first) = (self.others.0, self.others.1.as_ref()?);
        let files = if count == 1 { "1 file".to_string() } else { format!("{count} files") };
        Some(format!("{files} not called {EXTENSIONS}, such as {}", first.display()))
    }

    fn describe(&self) -> String {
        format!("image_folder {}", self.root.display())
    }
}
