//! The sources that `data.source` may name. A source is one [`SourceKind`]: configurations, the command's `--source`
//! and the table in `docs/data.md` follow from it.

mod arrays;
mod columns;
mod composed;
mod images;
mod records;
mod synthetic;
mod tables;
mod text;

pub(super) use tables::rows_ahead;

use super::stages;
use crate::error::Result;
use crate::preprocessing::Preprocessing;
use crate::reader::{Reader, choose};
use plimsoll_core::Bytes;
use plimsoll_data::Dataset;
use plimsoll_data::source::Text;
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The description of a source kind.
pub(super) struct SourceKind {
    /// The name in configurations.
    pub name: &'static str,
    /// Its keys, as the documentation lists them.
    pub keys: &'static str,
    /// Its rows, as the documentation describes them.
    pub rows: &'static str,
    /// The keys whose text is a path, or a table of paths.
    pub paths: &'static [&'static str],
    /// Whether it reads floats from a file unchecked, so that labels may be NaN or infinite.
    pub unchecked_floats: bool,
    /// Whether `x` is an image and `y` its segmentation mask: operations that move pixels are applied to both.
    pub has_masks: bool,
    /// What a model that is trained on it is given to predict.
    pub inputs: InputKind,
    pub open: fn(&SourceArgs<'_>) -> Result<Opened>,
    /// The keys of `[data]` that read a path without a configuration, for `--source`; `None` where a path is not
    /// enough.
    pub from_path: Option<fn(&Path) -> Result<Table>>,
}

/// What a model is given to predict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputKind {
    /// Files of images.
    Images,
    /// Arrays of numbers.
    Arrays,
    /// Rows of a table.
    Table,
    /// Texts.
    Text,
}

/// The arguments for opening a source.
pub(super) struct SourceArgs<'a> {
    /// `[data]`, `[data.validation]` or an entry of `parts`.
    pub table: &'a Reader<'a>,
    /// Base of relative paths.
    pub folder: &'a Path,
    /// Whether a later stage skips bad rows, so that they are no error when a file is opened.
    pub lenient: bool,
    /// The columns, statistics and classes of a trained model.
    pub fitted: Option<&'a Preprocessing>,
    /// The host budget of the run, if it has one.
    pub host: Option<Bytes>,
}

/// The source kinds, in the order in which the documentation and error messages list them.
const SOURCES: [&SourceKind; 20] = [
    &arrays::NPY,
    &arrays::NPZ,
    &images::IMAGE_FOLDER,
    &images::IMAGE_MASKS,
    &images::IMAGE_FILES,
    &tables::CSV,
    &tables::JSON_LINES,
    &tables::PARQUET,
    &tables::ARROW,
    &text::TEXT,
    &images::WEBDATASET,
    &records::TFRECORD,
    &synthetic::SHAPES,
    &synthetic::RANDOM,
    &synthetic::RANGE,
    &composed::CONCATENATE,
    &composed::ZIP,
    &composed::SAMPLE_FROM,
    &composed::INTERLEAVE,
    &synthetic::DIGITS,
];

/// An opened source.
pub(super) struct Opened {
    /// The rows to train on.
    pub training: Dataset,
    /// Whether rows overlap, such as windows of a text, so that the last rows cannot simply be held out.
    pub overlapping: bool,
    /// The fraction to train on, if the rows after it are held out.
    pub split: Option<f64>,
    /// The text, if the source is one.
    pub text: Option<Text>,
    /// The rows that the source sets aside itself for a test.
    pub test: Option<Dataset>,
    validation: Option<ValidationRows>,
    /// The same rows with columns fitted to some of them, if anything is fitted.
    pub refit: Option<Refit>,
    /// For validation data that is opened like training data.
    fitted: Option<Preprocessing>,
}

/// The rows of `[data.validation]`, or without such a table those that the source holds out itself.
type ValidationRows = Box<dyn Fn(Option<&Reader<'_>>) -> Result<Option<Dataset>>>;

/// Fits the columns of a table to the rows for which a function holds; rows are counted from 0.
type Refit = Box<dyn Fn(&dyn Fn(u64) -> bool) -> Result<Dataset>>;

impl Opened {
    fn new(training: Dataset) -> Opened {
        Opened { training, overlapping: false, split: None, text: None, test: None, validation: None, refit: None, fitted: None }
    }

    fn with_refit(self, refit: impl Fn(&dyn Fn(u64) -> bool) -> Result<Dataset> + 'static) -> Opened {
        Opened { refit: Some(Box::new(refit)), ..self }
    }

    fn with_validation(self, validation: impl Fn(Option<&Reader<'_>>) -> Result<Option<Dataset>> + 'static) -> Opened {
        Opened { validation: Some(Box::new(validation)), ..self }
    }
}

impl SourceKind {
    /// The source that the key `source` of a table names.
    pub fn of(table: &Reader<'_>) -> Result<Option<&'static SourceKind>> {
        table.choice("source", &named())
    }

    /// Like [`SourceKind::of`], but an error if there is none.
    pub fn required(table: &Reader<'_>) -> Result<&'static SourceKind> {
        SourceKind::of(table)?.ok_or_else(|| table.missing("source", &format!("one of {}", SOURCES.map(|kind| kind.name).join(", "))))
    }

    /// What a model that was trained on such a table is given.
    pub fn input_kind(&self, table: &Reader<'_>) -> InputKind {
        let input = table.value("input").and_then(|input| input.get("dtype")).and_then(Value::as_str);
        if input == Some("image") { InputKind::Images } else { self.inputs }
    }

    /// Opens what a table describes; `lenient` if bad rows are skipped by a later stage.
    pub fn open(
        &self,
        table: &Reader<'_>,
        folder: &Path,
        lenient: bool,
        fitted: Option<&Preprocessing>,
        host: Option<Bytes>,
    ) -> Result<Opened> {
        let opened = (self.open)(&SourceArgs { table, folder, lenient: lenient || stages::leave_out_errors(table), fitted, host })?;
        // Validation data without statistics of its own has the columns of the training data.
        let fitted = fitted.cloned().unwrap_or_else(|| Preprocessing::of(&opened.training));
        Ok(Opened { fitted: Some(fitted), ..opened })
    }

    /// The validation rows, of this kind unless the table names another; properties that must match, such as classes,
    /// are inherited.
    pub fn validation(&self, opened: &Opened, table: Option<&Reader<'_>>, folder: &Path, lenient: bool) -> Result<Option<Dataset>> {
        let other = table.map(SourceKind::of).transpose()?.flatten().filter(|other| other.name != self.name);
        match (table, other, &opened.validation) {
            (Some(table), Some(other), _) => Ok(Some(other.open(table, folder, lenient, None, None)?.training)),
            (_, None, Some(validation)) => validation(table),
            (Some(table), None, None) => Ok(Some(self.open(table, folder, lenient, opened.fitted.as_ref(), None)?.training)),
            (None, ..) => Ok(None),
        }
    }
}

fn named() -> Vec<(&'static str, &'static SourceKind)> {
    SOURCES.iter().map(|kind| (kind.name, *kind)).collect()
}

/// The names of all sources.
pub(super) fn names() -> Vec<&'static str> {
    SOURCES.iter().map(|kind| kind.name).collect()
}

/// The keys of all sources, as the documentation names them.
pub(super) fn documented_keys() -> Vec<String> {
    SOURCES.iter().flat_map(|kind| keys_of(kind.keys)).map(str::to_string).collect()
}

/// The keys that a text names between backticks. "The others as for `csv`" names a source.
fn keys_of(text: &str) -> impl Iterator<Item = &str> {
    let parts: Vec<&str> = text.split('`').collect();
    let pairs = parts.chunks_exact(2).map(|pair| (pair[0], pair[1])).filter(|(before, _)| !before.ends_with("as for "));
    let keys: Vec<&str> = pairs.filter_map(|(_, span)| span.split([' ', '=']).next()).collect();
    keys.into_iter().filter(|key| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
}

/// Which sources have a key, in words.
pub(super) fn with_key(key: &str) -> String {
    let has = |text: &str| keys_of(text).any(|known| known == key);
    let names: Vec<String> = SOURCES.iter().filter(|kind| has(kind.keys)).map(|kind| format!("`{}`", kind.name)).collect();
    match names.is_empty() {
        true => "A key of parts of `concatenate`, `zip`, `sample_from` and `interleave`.".to_string(),
        false => format!("A key of {}; see [Sources](data.md#sources).", names.join(", ")),
    }
}

/// The names of sources that a path is enough for, as `--source` takes them.
pub fn path_sources() -> Vec<&'static str> {
    SOURCES.iter().filter(|kind| kind.from_path.is_some()).map(|kind| kind.name).collect()
}

/// The `[data]` table that reads a path with a source of this name.
pub(super) fn from_path(name: &str, path: &Path) -> Result<Table> {
    let readable: Vec<_> = SOURCES.iter().filter_map(|kind| Some((kind.name, (*kind, kind.from_path?)))).collect();
    let (kind, keys) = choose("data.source", name, &readable)?;
    let mut table = keys(path)?;
    table.insert("source".into(), kind.name.into());
    Ok(table)
}

/// The table of sources in the documentation.
pub(super) fn reference() -> String {
    let rows = SOURCES.map(|kind| format!("| `{}` | {} | {} |\n", kind.name, kind.keys, kind.rows));
    format!("| source | keys | rows |\n|---|---|---|\n{}", rows.concat())
}

/// Whether the text of a key is a path in some source.
pub(super) fn is_path(key: &str) -> bool {
    SOURCES.iter().any(|kind| kind.paths.contains(&key))
}

/// `path = PATH`, and nothing else.
fn only_path(path: &Path) -> Result<Table> {
    Ok(with_path("path", path))
}

fn with_path(key: &str, path: &Path) -> Table {
    Table::from_iter([(key.to_string(), Value::String(path.to_string_lossy().into_owned()))])
}

impl SourceArgs<'_> {
    /// A path that has to be there.
    fn path(&self, key: &'static str, what: &str) -> Result<PathBuf> {
        Ok(self.folder.join(self.table.text(key)?.ok_or_else(|| self.table.missing(key, what))?))
    }
}
