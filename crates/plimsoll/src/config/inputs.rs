//! New data for a trained model: the stored preprocessing of a configuration, applied to inputs without labels.

use super::Config;
use super::short::ShortKeys;
use super::sources::{InputKind, SourceKind, rows_ahead};
use super::stages::{self, Defaults};
use crate::devices::DeviceSpec;
use crate::error::{Error, Result};
use crate::output_columns::ModelColumns;
use crate::output_loss::OutputLosses;
use crate::preprocessing::Preprocessing;
use crate::reader::Reader;
use crate::spec::RunSpec;
use plimsoll_core::Budget;
use plimsoll_data::ops::{ItemStep, Op};
use plimsoll_data::source::ImageFiles;
use plimsoll_data::{Dataset, Extent, Parallelism, Prefetch};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::{Table, Value};

/// Inputs as they come, before any preprocessing.
pub(crate) enum RawInputs {
    /// Files of images.
    Images(Vec<PathBuf>),
    /// A file with one array, whose first dimension is the row.
    Array(PathBuf),
    /// The files of a table, at least one.
    Table(Vec<PathBuf>),
    /// Rows with the columns of the data that the model was trained on.
    Rows(Dataset),
}

/// Rows with labels.
pub(crate) struct LabelledData {
    pub rows: Dataset,
    /// Which rows of a configuration.
    pub which: &'static str,
    pub budget: Budget,
}

/// The keys of a table that choose rows or labels, which new data does not have.
const ROWS_AND_LABELS: [&str; 8] = ["target", "outputs", "sample_weight", "rows", "split", "row_groups", "holdout", "fold"];

impl Config {
    /// The model and the settings of a run, without its data.
    pub(crate) fn model_spec(&self) -> Result<RunSpec> {
        let root = Reader::root(&self.table);
        let mut spec = RunSpec { name: self.title.clone(), inference_only: true, ..RunSpec::default() };
        let keys = spec.read(&root, &self.folder)?;
        let super::layers::Described { model, network, imported } = super::layers::model(&root, &self.folder)?;
        if let Some(file) = imported.filter(|_| !keys.loss_given) {
            file.complete(&mut spec, false, true);
        }
        let synthetic = super::data::synthetic_rows(&root)?.is_some();
        if let Some(network) = network.filter(|_| synthetic && !keys.loss_given) {
            spec.losses = OutputLosses::Only(network.loss.clone().into());
        }
        spec.model = match keys.quantize {
            Some(quantize) => model.quantize(quantize)?,
            None => model,
        };
        Ok(spec)
    }

    /// The budget, for something that runs on the CPU only.
    pub(crate) fn cpu_budget(&self, what: &str) -> Result<Budget> {
        let mut spec = RunSpec::default();
        spec.read(&Reader::root(&self.table), &self.folder)?;
        if spec.device != DeviceSpec::Cpu {
            return Err(Error::Config(format!("{what} are run on the CPU; leave out --device")));
        }
        Ok(spec.budget)
    }

    /// Rows to score a model on: the test rows, the validation rows, or all rows, in the order of their source.
    pub(crate) fn labelled_data(&self) -> Result<LabelledData> {
        let root = Reader::root(&self.table);
        let mut spec = RunSpec::default();
        let keys = spec.read(&root, &self.folder)?;
        let opened = super::data::open(&root, &self.folder, keys.batch, spec.seed, self.fitted.as_ref(), spec.budget.host)?;
        let (rows, which) = match (opened.test, opened.validation) {
            (Some(rows), _) => (rows, "test"),
            (None, Some(rows)) => (rows, "validation"),
            (None, None) => (opened.training, "all"),
        };
        Ok(LabelledData { rows, which, budget: spec.budget })
    }

    /// The preprocessing of `[data]` as text, without paths and rows, to be stored with a model.
    pub(crate) fn preparation(&self) -> Option<String> {
        let mut data = self.table.get("data")?.as_table()?.clone();
        ["test", "holdout", "fold", "cache"].iter().for_each(|key| _ = data.remove(*key));
        without_paths(&mut data);
        Some(Table::from_iter([("data".to_string(), Value::Table(data))]).to_string())
    }

    /// What the inputs of the model are.
    pub(crate) fn input_kind(&self) -> Result<InputKind> {
        let root = Reader::root(&self.table);
        let data = root.section("data")?.ok_or_else(|| root.missing("data", "what the model was trained on"))?;
        Ok(innermost(&data)?.map_or(InputKind::Arrays, |(kind, table)| kind.input_kind(&table)))
    }

    /// The columns that the outputs of the model predict.
    pub(crate) fn model_columns(&self, fitted: &Preprocessing, losses: &OutputLosses) -> Result<ModelColumns> {
        let root = Reader::root(&self.table);
        let found = root.section("data")?.map(|data| innermost(&data)).transpose()?.flatten();
        let ahead = found.map(|(_, table)| rows_ahead(&table)).transpose()?.unwrap_or_default();
        Ok(ModelColumns::new(fitted, &ahead, losses))
    }

    /// Inputs with the preprocessing of the training data, batched.
    pub(crate) fn prepared(&self, raw: RawInputs) -> Result<Dataset> {
        let root = Reader::root(&self.table);
        let data = root.section("data")?.ok_or_else(|| root.missing("data", "what the model was trained on"))?;
        let train = root.section("train")?;
        let batch = train.as_ref().map(|train| train.count("batch", 1)).transpose()?.flatten().map(|rows| rows as usize);
        let seed = train.map(|train| train.count("seed", 0)).transpose()?.flatten().unwrap_or(0);
        let batch_of_data = data.count("batch", 1)?.map(|rows| rows as usize);
        let defaults = Defaults { folder: &self.folder, seed, batch_of_run: batch, batch_of_data, batch: 32 };
        let found = innermost(&data)?;
        let mut rows = match (raw, &found) {
            (RawInputs::Images(files), _) => ImageFiles::list(files)?.into(),
            (RawInputs::Array(path), _) => Dataset::npy(&[("x", path)])?,
            (RawInputs::Rows(rows), _) => rows,
            (RawInputs::Table(files), Some((kind, table))) => self.open_table(kind, table, &files)?,
            (RawInputs::Table(_), None) => return Err(Error::Config("this model was not trained on a table".to_string())),
        };
        // Parts of a composed source may have operations of their own, which come first.
        if let Some((_, part)) = found.as_ref().filter(|(_, part)| part.path() != data.path()) {
            rows = operations(part, defaults, rows)?;
        }
        rows = match data.section("validation")?.filter(|table| table.value("stages").is_some()) {
            Some(own) => operations(&own, defaults, rows)?,
            None => operations(&data, defaults, rows)?,
        };
        let rows = if rows.batch_size().is_some() { rows } else { rows.batch(defaults.rows()) };
        Ok(rows.parallelism(Parallelism::Auto).prefetch(Prefetch::Auto))
    }

    /// The columns that the model was trained on, of other files, of any format of tables, and without labels.
    fn open_table(&self, trained_on: &'static SourceKind, table: &Reader<'_>, files: &[PathBuf]) -> Result<Dataset> {
        let mut keys: Table = table.entries().map(|(key, value, _)| (key.to_string(), value.clone())).collect();
        let kind = trained_on.of_table_file(&files[0])?;
        if kind.name != trained_on.name {
            keys.insert("source".into(), Value::String(kind.name.into()));
            ["delimiter", "decimal", "header", "names"].iter().for_each(|key| _ = keys.remove(*key));
        }
        ROWS_AND_LABELS.iter().for_each(|key| _ = keys.remove(*key));
        // The features are known, and new data need not have the columns that were dropped or are labels.
        if let Some(fitted) = self.fitted.as_ref().filter(|fitted| !fitted.features.is_empty()) {
            keys.remove("drop");
            for key in ["types", "columns"] {
                if let Some(Value::Table(options)) = keys.get_mut(key) {
                    options.retain(|name, _| fitted.features.iter().any(|feature| feature == name));
                }
            }
        }
        let path = |file: &PathBuf| Value::String(file.to_string_lossy().into_owned());
        keys.insert("path".into(), if let [only] = files { path(only) } else { Value::Array(files.iter().map(path).collect()) });
        let whole = Table::from_iter([("data".to_string(), Value::Table(keys))]);
        let root = Reader::root(&whole);
        let data = root.section("data")?.expect("just made");
        Ok(kind.open(&data, Path::new(""), false, self.fitted.as_ref(), None)?.training)
    }
}

/// Removes the paths of sources and caches.
fn without_paths(table: &mut Table) {
    let names = |value: &Value| value.is_str() || value.as_array().is_some_and(|list| list.iter().all(Value::is_str));
    table.retain(|key, value| !(super::sources::is_path(key) && names(value)));
    for value in table.iter_mut().map(|(_, value)| value) {
        match value {
            Value::Table(inner) => without_paths(inner),
            Value::Array(list) => list.iter_mut().filter_map(Value::as_table_mut).for_each(without_paths),
            _ => {}
        }
    }
}

/// The source of a table, or of its first part; `None` for synthetic rows.
fn innermost<'a>(data: &Reader<'a>) -> Result<Option<(&'static SourceKind, Reader<'a>)>> {
    if data.value("source").and_then(Value::as_str) == Some("synthetic") {
        return Ok(None);
    }
    let mut table = data.same();
    loop {
        let kind = SourceKind::required(&table)?;
        match table.sections("parts")?.and_then(|parts| parts.into_iter().next()) {
            Some(part) => table = part,
            None => return Ok(Some((kind, table))),
        }
    }
}

/// Applies the operations of a table that keep every row.
fn operations(table: &Reader<'_>, defaults: Defaults<'_>, rows: Dataset) -> Result<Dataset> {
    let Some(list) = stages::read(table, defaults)? else {
        let short = ShortKeys::read(table, defaults)?;
        return short.maps().iter().try_fold(rows, |rows, (column, op)| mapped(rows, column, op));
    };
    list.iter().try_fold(rows, |rows, stage| match stage.mapping() {
        Some((column, ops)) => ops.iter().try_fold(rows, |rows, op| mapped(rows, &column, op)),
        None if stage.pads() => stages::apply(std::slice::from_ref(stage), rows, None),
        None => Ok(rows),
    })
}

/// Maps a column, if the rows have it: inputs have no labels. Arrays need not be decoded, and nothing is random.
fn mapped(rows: Dataset, column: &str, op: &Arc<dyn Op>) -> Result<Dataset> {
    let schema = rows.output_schema()?;
    let Some(found) = schema.columns().iter().find(|found| found.name == column) else { return Ok(rows) };
    if found.extent == Extent::Fixed && matches!(op.item(), Some(ItemStep::Decode(_))) {
        return Ok(rows);
    }
    let op = if op.is_random() { op.without_randomness() } else { Some(Arc::clone(op)) };
    let rows = op.map_or(rows.clone(), |op| rows.map(column, [op]));
    rows.output_schema()?;
    Ok(rows)
}
