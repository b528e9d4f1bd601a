//! Configurations: the TOML text of a run, read with errors that name the key, the nearest one that exists, and what it
//! may be.

mod data;
mod descriptions;
mod imported;
mod inputs;
#[cfg(test)]
mod keras_preprocessing;
mod layers;
pub mod reference;
mod resumable;
mod row_ops;
mod schema;
mod short;
mod sources;
#[cfg(test)]
mod stage_tests;
mod stages;

pub(crate) use imported::usual_losses;
pub(crate) use inputs::RawInputs;
pub(crate) use resumable::check_resumable;
pub use schema::schema;
pub(crate) use sources::InputKind;
pub use sources::path_sources;

use crate::distill::Distill;
use crate::error::{Error, Result};
use crate::output_loss::OutputLosses;
use crate::pipeline::Pipeline;
use crate::preprocessing::Preprocessing;
use crate::reader::Reader;
use crate::spec::{DistillKeys, RunSpec};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The default run without a configuration: a small convolutional network on the embedded digits.
pub const DIGITS: &str = include_str!("digits.toml");

/// A run's configuration: a table of tables, changed by flags, then built.
///
/// ```
/// use plimsoll::config::Config;
/// let mut config = Config::digits();
/// config.set("train.epochs=3")?;
/// let error = config.set("train.bacth=3").and_then(|()| config.build().map(drop)).unwrap_err();
/// assert_eq!(error.to_string(), "unknown key `train.bacth`; did you mean `train.batch`?");
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
    table: Table,
    /// Where relative paths begin.
    folder: PathBuf,
    title: String,
    /// What the model was fitted with, to use it on other data.
    fitted: Option<Preprocessing>,
}

impl Config {
    /// Uses the columns, statistics and classes of a trained model instead of those of the data.
    pub fn set_preprocessing(&mut self, fitted: Preprocessing) {
        self.fitted = Some(fitted);
    }

    /// The embedded configuration.
    pub fn digits() -> Config {
        Config {
            table: parse(DIGITS).expect("the embedded configuration is tested"),
            folder: PathBuf::new(),
            title: "digits".to_string(),
            fitted: None,
        }
    }

    /// From a file. Paths in it are relative to its folder.
    pub fn read(path: &Path) -> Result<Config> {
        if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("tflite")) && path.is_file() {
            let file = path.display();
            return Err(Error::Config(format!("{file} is a TFLite file, which is for predictions: `plimsoll predict {file} …`")));
        }
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io { action: "read", path: path.to_path_buf(), source })?;
        let table = parse(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Error::Config(format!("{}, line {line}: {}", path.display(), error.message()))
        })?;
        let title = path.file_stem().map_or("run".to_string(), |stem| stem.to_string_lossy().into_owned());
        Ok(Config { table, folder: path.parent().map(Path::to_path_buf).unwrap_or_default(), title, fitted: None })
    }

    /// A network of the zoo on synthetic rows, to plan or try it without data. It trains with SGD and momentum, unless
    /// `train.optimizer` overrides it.
    pub fn zoo(name: &str) -> Result<Config> {
        let name = crate::zoo::find(name)?.name;
        let text = format!(
            "[model]\nzoo = \"{name}\"\n[data]\nsource = \"synthetic\"\n[train]\nbatch = 32\noptimizer = {{ type = \"sgd\", momentum = 0.9 }}\n"
        );
        Ok(Config { title: name.to_string(), ..Config::from_text(&text)? })
    }

    /// From text, with paths relative to the current folder.
    pub fn from_text(text: &str) -> Result<Config> {
        let table = parse(text).map_err(|error| Error::Config(error.message().to_string()))?;
        Ok(Config { table, folder: PathBuf::new(), title: "run".to_string(), fitted: None })
    }

    /// The data at a path, read with a source of [these](path_sources): images are decoded and resized to 224 × 224,
    /// texts are windows of 64 characters.
    ///
    /// ```
    /// use plimsoll::config::Config;
    /// let error = Config::source("npy", "no/such.npy".as_ref())?.pipeline().err().unwrap();
    /// assert_eq!(error.to_string(), "cannot open no/such.npy: No such file or directory (os error 2)");
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn source(kind: &str, path: &Path) -> Result<Config> {
        let mut data = sources::from_path(kind, path)?;
        data.insert("batch".to_string(), Value::Integer(64));
        let table = Table::from_iter([("data".to_string(), Value::Table(data))]);
        Ok(Config { table, folder: PathBuf::new(), title: kind.to_string(), fitted: None })
    }

    /// Sets one key from `section.key=value`. The value is TOML, or a plain word.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        let Some((key, value)) = assignment.split_once('=') else {
            return Err(Error::Config(format!("`{assignment}` is not KEY=VALUE, such as train.batch=64")));
        };
        let value = value.trim();
        let parsed = parse(&format!("value = {value}")).ok().and_then(|mut table| table.remove("value"));
        self.set_value(key.trim(), parsed.unwrap_or_else(|| Value::String(value.to_string())))
    }

    /// Sets one key, such as `train.batch`.
    pub fn set_value(&mut self, key: &str, value: impl Into<Value>) -> Result<()> {
        let mut names: Vec<&str> = key.split('.').collect();
        let last = names.pop().filter(|name| !name.is_empty()).ok_or_else(|| Error::Config(format!("`{key}` is not a key")))?;
        let mut table = &mut self.table;
        for name in names {
            let next = table.entry(name.to_string()).or_insert_with(|| Value::Table(Table::new()));
            table = next.as_table_mut().ok_or_else(|| Error::Config(format!("`{key}` cannot be set: `{name}` is not a table")))?;
        }
        table.insert(last.to_string(), value.into());
        Ok(())
    }

    /// Leaves the teacher out: a trained model is used without it.
    pub(crate) fn remove_teacher(&mut self) {
        self.table.remove("distill");
    }

    /// Makes paths that are set from now on relative to the current folder, as on the command line. Those of a run
    /// folder are absolute.
    pub(crate) fn name_paths_from_current_folder(&mut self) {
        self.folder = PathBuf::new();
    }

    /// Evaluates on `data.validation`, where a flag names such rows, instead of the rows that the run held out.
    pub(crate) fn prefer_validation_data(&mut self) {
        let Some(data) = self.table.get_mut("data").and_then(Value::as_table_mut) else { return };
        let named = data.get("validation").and_then(Value::as_table);
        if named.is_some_and(|table| table.keys().any(|key| key != "stages")) {
            data.remove("holdout");
            data.remove("fold");
        }
    }

    /// Keeps rows in source order, so that predictions can be matched to rows by position.
    pub(crate) fn set_source_order(&mut self) -> Result<()> {
        let data = self.table.get_mut("data");
        if data.as_ref().and_then(|data| data.get("source")).and_then(Value::as_str) == Some("synthetic") {
            // Generated rows have one order, and no keys for another.
            return Ok(());
        }
        let stages = data.and_then(|data| data.get_mut("stages")).and_then(Value::as_array_mut);
        match stages {
            Some(list) => stages::in_source_order(list),
            None => {
                self.set_value("data.shuffle", false)?;
                self.set_value("data.deterministic", true)?;
            }
        }
        Ok(())
    }

    /// The whole configuration as TOML.
    pub fn to_toml(&self) -> String {
        self.table.to_string()
    }

    /// The same configuration with absolute paths, for the run's folder.
    fn anchored(&self) -> Config {
        let mut config = self.clone();
        // The folder of a file in the current folder is empty.
        let folder = std::path::absolute(Path::new(".").join(&self.folder)).unwrap_or_else(|_| self.folder.clone());
        let tables = [&["data"][..], &["data", "cache"], &["data", "validation"], &["data", "test"]];
        for names in tables {
            let table = names.iter().try_fold(&mut config.table, |table, name| table.get_mut(*name)?.as_table_mut());
            table.into_iter().for_each(|table| anchor_all(table, &folder));
        }
        if let Some(file) = config.table.get_mut("model").and_then(|model| model.get_mut("file")) {
            anchor(file, &folder);
        }
        if let Some(teacher) = config.table.get_mut("distill").and_then(|distill| distill.get_mut("teacher")) {
            anchor(teacher, &folder);
        }
        let weights = config.table.get_mut("train").and_then(|train| train.get_mut("weights"));
        let weights = weights.and_then(|weights| if weights.is_table() { weights.get_mut("path") } else { Some(weights) });
        if let Some(Value::String(path)) = weights {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
        config
    }

    /// The description of the run, or the error in the configuration.
    pub fn build(&self) -> Result<RunSpec> {
        let root = Reader::root(&self.table);
        let mut spec = RunSpec { name: self.title.clone(), config: self.anchored().to_toml(), ..RunSpec::default() };
        let keys = spec.read(&root, &self.folder)?;
        let synthetic = data::synthetic_rows(&root)?;
        let given = match synthetic {
            None => Some(data::open(&root, &self.folder, keys.batch, spec.seed, self.fitted.as_ref(), spec.budget.host)?),
            Some(_) => None,
        };
        let layers::Described { model, network, imported } = layers::model(&root, &self.folder)?;
        if let Some(file) = &imported {
            let optimizer_given = root.section("train")?.is_some_and(|train| train.value("optimizer").is_some());
            file.complete(&mut spec, keys.loss_given, optimizer_given);
        }
        let (data, validation) = match (given, synthetic) {
            (Some(parts), _) => {
                (spec.held_out, spec.test) = (parts.how, parts.test);
                (parts.training, parts.validation)
            }
            (None, rows) if imported.is_some() => {
                let file = imported.as_ref().expect("just seen");
                (file.synthetic(&model, &spec.losses, rows.unwrap_or(1))?.batch(keys.batch.unwrap_or(32)), None)
            }
            (None, rows) => {
                let Some(network) = network else {
                    return Err(Error::Config(
                        "`data.source` is \"synthetic\", which makes up rows for a network of the zoo; name one as `model.zoo`".to_string(),
                    ));
                };
                if !keys.loss_given {
                    spec.losses = OutputLosses::Only(network.loss.clone().into());
                }
                (network.synthetic(rows.unwrap_or(1))?.batch(keys.batch.unwrap_or(32)), None)
            }
        };
        if synthetic.is_none() && self.input_kind()? == sources::InputKind::Table {
            data::refuse_unread_inputs(&root, &data, &model)?;
            if !keys.loss_given {
                data::refuse_numbers_as_classes(&data, &spec.losses)?;
            }
        }
        root.finish()?;
        if let (Some(micro_batch), Some(batch)) = (spec.micro_batch, data.batch_size())
            && micro_batch > batch
        {
            return Err(Error::Config(format!(
                "a micro-batch of {micro_batch} rows is larger than the batch of {batch}; use a smaller micro-batch, or a larger batch"
            )));
        }
        let schedule = &spec.optimization.schedule;
        if schedule.is_open_ended() && data.size_if_readable().is_none() {
            let (name, rows) = (schedule.name(), data.describe());
            return Err(Error::Config(format!(
                "the {name} schedule is as long as the run, and how many rows {rows} has is known only when they have come; give it \
                 `train.schedule.steps`, or say how many rows there are with {{ op = \"cardinality\", rows = … }}"
            )));
        }
        // A schedule without a length of its own is as long as the run.
        let rows = data.size_if_readable().unwrap_or(0);
        let steps = data.batch_size().map_or(0, |batch| rows.div_ceil(batch.max(1) as u64).saturating_mul(spec.fit.epochs));
        spec.optimization.schedule = spec.optimization.schedule.fitted(steps);
        spec.distill = keys.distill.map(teacher).transpose()?;
        let model = match keys.quantize {
            Some(quantize) => model.quantize(quantize)?,
            None => model,
        };
        (spec.model, spec.data, spec.fit.validation) = (model, data, validation);
        Ok(spec)
    }
}

impl Config {
    /// The vocabulary and context length of a run that trains on text.
    pub(crate) fn text(&self) -> Result<(plimsoll_data::Vocabulary, usize)> {
        let root = Reader::root(&self.table);
        data::text(&root, &self.folder)
    }

    /// Only its data and its budget: the model may be missing.
    pub fn pipeline(&self) -> Result<Pipeline> {
        let root = Reader::root(&self.table);
        let mut spec = RunSpec::default();
        let keys = spec.read(&root, &self.folder)?;
        let data = data::open(&root, &self.folder, keys.batch, spec.seed, self.fitted.as_ref(), spec.budget.host)?.training;
        root.value("model");
        root.finish()?;
        Ok(Pipeline::new(data, spec.budget.host))
    }
}

/// The teacher of a run: the model and the weights of another run.
fn teacher(keys: DistillKeys) -> Result<Distill> {
    let DistillKeys { teacher: folder, temperature, alpha } = keys;
    let (config, weights) = (folder.join("config.toml"), folder.join("weights.safetensors"));
    let refused = |what: &str| Err(Error::Config(format!("`distill.teacher`: {} {what}", folder.display())));
    if !config.is_file() {
        return refused("has no config.toml; name the folder of a trained run");
    }
    if !weights.is_file() {
        return refused("has no weights.safetensors yet; train that run to its end");
    }
    let distill = Distill::new(Config::read(&config)?.model_spec()?.model, &weights)?.temperature(temperature).alpha(alpha);
    distill.check()?;
    Ok(distill)
}

/// Makes the paths of a source, its parts and its caches absolute.
fn anchor_all(table: &mut Table, folder: &Path) {
    for (key, value) in table.iter_mut() {
        if key == "file" || sources::is_path(key) {
            match value.as_table_mut().map(|table| (table.contains_key("path"), table)) {
                // A file with the names of its columns.
                Some((true, table)) => table.get_mut("path").into_iter().for_each(|path| anchor(path, folder)),
                Some((false, files)) => files.iter_mut().for_each(|(_, file)| anchor(file, folder)),
                None => anchor(value, folder),
            }
            // A list of files; other lists are names, such as those of classes.
            let files = value.as_array_mut().filter(|_| key == "path");
            files.into_iter().flatten().for_each(|file| anchor(file, folder));
        } else if let ("columns", Some(columns)) = (key.as_str(), value.as_table_mut()) {
            columns.iter_mut().filter_map(|(_, column)| column.get_mut("tokenizer")).for_each(|path| anchor(path, folder));
        } else if let ("parts", Value::Array(parts)) = (key.as_str(), &mut *value) {
            parts.iter_mut().filter_map(Value::as_table_mut).for_each(|part| anchor_all(part, folder));
        } else if let ("stages", Value::Array(stages)) = (key.as_str(), value) {
            let caches = stages.iter_mut().filter_map(|stage| stage.get_mut("in")?.as_table_mut());
            caches.for_each(|cache| anchor_all(cache, folder));
        }
    }
}

/// Makes a path absolute.
fn anchor(value: &mut Value, folder: &Path) {
    if let Value::String(path) = value {
        *path = folder.join(&*path).to_string_lossy().into_owned();
    }
}

fn parse(text: &str) -> Result<Table, toml::de::Error> {
    text.parse::<Table>()
}
