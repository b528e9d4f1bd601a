//! A folder of images whose labels are in a CSV file.

use super::names::Names;
use super::{entries, hidden, is_image, listed};
use crate::block::{BlockMut, Rows};
use crate::source::csv::each_record;
use crate::source::{FileUse, ImageScans, Source, identify_named};
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The CSV file with the labels of images.
#[derive(Clone, Debug, Default)]
pub struct LabelFile {
    /// Its path. The first line names the columns.
    pub path: PathBuf,
    /// The column of file names, with or without their extension; by default one named like `file`, or else the first.
    pub file: Option<String>,
    /// The column of labels; by default one named like `label`, or else the second.
    pub label: Option<String>,
    /// What labels are.
    pub kind: LabelKind,
}

/// What labels are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LabelKind {
    /// Names of classes: `y` is the index of the class as i32, in the order of sorted names.
    #[default]
    Class,
    /// Numbers: `y` is f32.
    Number,
}

/// Images of one folder with labels from a CSV file: `x` is the file, `y` its label. Rows are those of the CSV file, in
/// its order.
pub struct LabelledImages {
    root: PathBuf,
    file: PathBuf,
    names: Names,
    /// The bytes of each label.
    labels: Vec<[u8; 4]>,
    /// The column that they come from.
    label: String,
    classes: Vec<String>,
    schema: Schema,
    /// Images without a label.
    unlabelled: u64,
    scans: ImageScans,
}

const FILE_NAMES: [&str; 8] = ["file", "filename", "file_name", "image", "image_id", "img", "path", "id"];
const LABEL_NAMES: [&str; 6] = ["label", "class", "target", "category", "species", "y"];

impl LabelledImages {
    /// Reads the labels and lists the folder. With known classes, any other one is an error.
    pub fn open(root: &Path, labels: &LabelFile, classes: Option<&[String]>) -> Result<LabelledImages, DataError> {
        let refuse = |line: u64, problem: String| DataError::csv(&labels.path, line, problem);
        let files = FolderNames::list(root)?;
        let (mut columns, mut names, mut texts) = (None, Names::default(), Vec::<(u64, Box<str>)>::new());
        let mut label_name = String::new();
        each_record(&labels.path, |line, fields| {
            let text = |at: usize| fields.get(at).map(|field| String::from_utf8_lossy(field));
            let Some((file, label)) = columns else {
                let header: Vec<String> = (0..fields.len()).filter_map(|at| text(at).map(|name| name.into_owned())).collect();
                let file = column(&header, labels.file.as_deref(), &FILE_NAMES, 0).map_err(|problem| refuse(line, problem))?;
                let other = usize::from(file == 0);
                let label = column(&header, labels.label.as_deref(), &LABEL_NAMES, other).map_err(|problem| refuse(line, problem))?;
                label_name = header.get(label).cloned().unwrap_or_default();
                columns = Some((file, label));
                return Ok(());
            };
            let (Some(name), Some(label)) = (fields.get(file), text(label)) else {
                return Err(refuse(line, "it has fewer fields than the first line; correct the row".into()));
            };
            let found = files.find(OsStr::from_bytes(name)).ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                refuse(line, format!("there is no image {name} in {}; correct the row or add the file", root.display()))
            })?;
            names.push(&found).map_err(|_| refuse(line, "the names of its files are too long; shorten them".into()))?;
            texts.push((line, label.into()));
            Ok(())
        })?;
        names.settle();
        if texts.is_empty() {
            return Err(refuse(1, "there are no rows after the names of the columns".into()));
        }
        let (labels_of, classes) = match labels.kind {
            LabelKind::Number => {
                let number = |(line, text): &(u64, Box<str>)| match text.parse::<f32>() {
                    Ok(number) if number.is_finite() => Ok(number.to_ne_bytes()),
                    _ => {
                        Err(refuse(*line, format!("its label is {text:?}, which is no number; read labels as classes, or correct the row")))
                    }
                };
                (texts.iter().map(number).collect::<Result<_, _>>()?, Vec::new())
            }
            LabelKind::Class => {
                let classes = classes.map_or_else(|| sorted_classes(texts.iter().map(|(_, text)| &**text)), <[String]>::to_vec);
                let index: HashMap<&str, i32> = classes.iter().enumerate().map(|(index, name)| (name.as_str(), index as i32)).collect();
                let class = |(line, text): &(u64, Box<str>)| match index.get(&**text) {
                    Some(index) => Ok(index.to_ne_bytes()),
                    None => Err(refuse(*line, format!("its class {text:?} is not one of the training classes ({})", listed(&classes)))),
                };
                (texts.iter().map(class).collect::<Result<_, _>>()?, classes.clone())
            }
        };
        let y = match labels.kind {
            LabelKind::Class => Column::new("y", DType::I32, []).with_classes(classes.clone()),
            LabelKind::Number => Column::new("y", DType::F32, [1]),
        };
        let unlabelled = files.count.saturating_sub(names.len()) as u64;
        let (root, file) = (root.to_path_buf(), labels.path.clone());
        let schema = Schema::new(vec![Column::files("x"), y])?;
        Ok(LabelledImages {
            root,
            file,
            names,
            labels: labels_of,
            label: label_name,
            classes,
            schema,
            unlabelled,
            scans: ImageScans::default(),
        })
    }
}

/// The position of a column: by its name, by a usual name, or the default.
fn column(header: &[String], name: Option<&str>, usual: &[&str], default: usize) -> Result<usize, String> {
    let position = |name: &str| header.iter().position(|column| column.eq_ignore_ascii_case(name));
    let found = match name {
        Some(name) => header.iter().position(|column| column == name),
        None => usual.iter().find_map(|name| position(name)).or((default < header.len()).then_some(default)),
    };
    let wanted = || name.map_or("the labels".to_string(), |name| format!("`{name}`"));
    found.ok_or_else(|| format!("it has no column for {}; its columns are {}", wanted(), header.join(", ")))
}

/// Distinct labels, in numeric order if all are integers.
fn sorted_classes<'t>(texts: impl Iterator<Item = &'t str>) -> Vec<String> {
    let mut classes: Vec<&str> = texts.collect::<BTreeSet<_>>().into_iter().collect();
    if classes.iter().all(|class| class.parse::<i64>().is_ok()) {
        classes.sort_by_key(|class| class.parse::<i64>().unwrap_or(0));
    }
    classes.into_iter().map(str::to_string).collect()
}

/// The images of a folder, found by their names with or without extension.
struct FolderNames {
    root: PathBuf,
    by_stem: HashMap<OsString, OsString>,
    count: usize,
}

impl FolderNames {
    fn list(root: &Path) -> Result<FolderNames, DataError> {
        let mut by_stem = HashMap::new();
        let mut count = 0;
        for entry in entries(root)? {
            let name = entry?.file_name();
            if !hidden(&name) && is_image(&name) {
                let stem = Path::new(&name).file_stem().unwrap_or_default().to_os_string();
                by_stem.insert(stem, name);
                count += 1;
            }
        }
        Ok(FolderNames { root: root.to_path_buf(), by_stem, count })
    }

    /// The name of an image, relative to the folder.
    fn find(&self, name: &OsStr) -> Option<OsString> {
        let same = self.by_stem.get(Path::new(name).file_stem().unwrap_or_default()).filter(|found| found.as_os_str() == name);
        match same.or_else(|| self.by_stem.get(name)) {
            Some(found) => Some(found.clone()),
            None => (!name.is_empty() && self.root.join(name).is_file()).then(|| name.to_os_string()),
        }
    }
}

impl Source for LabelledImages {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.names.len() as u64
    }

    fn held_bytes(&self) -> Bytes {
        let classes: usize = self.classes.iter().map(|name| 2 * (name.len() + 48)).sum();
        Bytes((self.names.held() + size_of_val(&self.labels[..]) + classes) as u64)
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (row, label) in rows.iter(out.rows()).zip(out.column(1).as_chunks_mut::<4>().0) {
            *label = self.labels[row as usize];
        }
        Ok(())
    }

    fn image_scans(&self) -> Option<(&dyn Source, &ImageScans)> {
        Some((self, &self.scans))
    }

    fn file(&self, row: u64, _column: usize, path: &mut PathBuf) {
        path.as_mut_os_string().clear();
        path.push(&self.root);
        path.push(self.names.get(row as usize));
    }

    fn fingerprint(&self, rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        let mut path = PathBuf::new();
        for row in rows {
            self.file(row, 0, &mut path);
            identify_named(&path, hash)?;
        }
        identify_named(&self.file, hash)?;
        self.classes.iter().for_each(|class| hash.write(class.as_bytes()));
        Ok(true)
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        if self.classes.is_empty() {
            return Ok(false);
        }
        self.labels.iter().for_each(|label| visit(i64::from(i32::from_ne_bytes(*label))));
        Ok(true)
    }

    fn class_names(&self) -> Vec<String> {
        self.classes.clone()
    }

    fn file_use(&self) -> FileUse {
        FileUse { targets: vec![self.label.clone()], ..FileUse::default() }
    }

    fn row_name(&self, row: u64) -> String {
        let mut path = PathBuf::new();
        self.file(row, 0, &mut path);
        path.display().to_string()
    }

    fn visit_column(&self, name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        let mut column = None;
        each_record(&self.file, |line, fields| {
            match column {
                None => column = Some(fields.iter().position(|field| field == name.as_bytes())),
                Some(None) => {}
                Some(Some(at)) => match fields.get(at) {
                    Some(field) => visit(field),
                    None => return Err(DataError::csv(&self.file, line, "it has fewer fields than the first line; correct the row")),
                },
            }
            Ok(())
        })?;
        Ok(column.flatten().is_some())
    }

    fn skipped_files(&self) -> Option<String> {
        (self.unlabelled > 0).then(|| format!("{} images without a row in {}", self.unlabelled, self.file.display()))
    }

    fn describe(&self) -> String {
        format!("image_folder {} with labels of {}", self.root.display(), self.file.display())
    }
}
