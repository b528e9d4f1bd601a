//! Configurations: the TOML text of a run, read with errors that name the key, the nearest one that exists, and what it may be.

mod data;
mod joined;
mod layers;
mod maps;
mod objective;
mod optimizers;
pub mod reference;
mod short;
mod sources;
#[cfg(test)]
mod stage_tests;
mod stages;
mod training;

use crate::error::{Error, Result};
use crate::output_loss::OutputLosses;
use crate::pipeline::Pipeline;
use crate::reader::Reader;
use crate::run::Run;
use plimsoll_data::source::{RecordFeature, RecordValues, TfRecord};
use std::path::{Path, PathBuf};
use toml::{Table, Value};

/// The run of someone who gives no configuration: a small convolutional net on the embedded digits.
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
}

impl Config {
    /// The embedded configuration.
    pub fn digits() -> Config {
        Config { table: parse(DIGITS).expect("the embedded configuration is tested"), folder: PathBuf::new(), title: "digits".to_string() }
    }

    /// From a file. Paths in it are relative to its folder.
    pub fn read(path: &Path) -> Result<Config> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::Io { action: "read", path: path.to_path_buf(), source })?;
        let table = parse(&text).map_err(|error| {
            let line = error.span().map_or(1, |span| 1 + text[..span.start].matches('\n').count());
            Error::Config(format!("{}, line {line}: {}", path.display(), error.message()))
        })?;
        let title = path.file_stem().map_or("run".to_string(), |stem| stem.to_string_lossy().into_owned());
        Ok(Config { table, folder: path.parent().map(Path::to_path_buf).unwrap_or_default(), title })
    }

    /// A network of the zoo on made-up rows, to plan it, or to try it, without data. It learns by gradient descent with momentum, unless
    /// `train.optimizer` says otherwise.
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
        Ok(Config { table, folder: PathBuf::new(), title: "run".to_string() })
    }

    /// The data of a plain source: pictures are decoded and brought to 224 × 224, texts are windows of 64 characters.
    ///
    /// ```
    /// use plimsoll::config::Config;
    /// let error = Config::source("npy", "no/such.npy".as_ref())?.pipeline().err().unwrap();
    /// assert_eq!(error.to_string(), "cannot open no/such.npy: No such file or directory (os error 2)");
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn source(kind: &str, path: &Path) -> Result<Config> {
        let mut config = Config { title: kind.to_string(), ..Config::from_text("[data]\nbatch = 64\n")? };
        config.set_value("data.source", kind)?;
        config.set_value(if kind == "npy" { "data.x" } else { "data.path" }, path.to_string_lossy().into_owned())?;
        match kind {
            "image_folder" | "webdataset" => {
                config.set("data.map=[{ op = \"decode\" }, { op = \"resize\", size = [224, 224] }]")?;
            }
            "image_files" => config.set("data.map=[{ op = \"decode\" }, { op = \"resize\", size = [224, 224] }]")?,
            "text" => config.set("data.context=64")?,
            "tfrecord" => config.set_features(path)?,
            _ => {}
        }
        Ok(config)
    }

    /// Chooses the features of records by what the first one has: a picture, or else the most numbers; and a single whole number as its
    /// label.
    fn set_features(&mut self, path: &Path) -> Result<()> {
        let found = TfRecord::features(path)?;
        let label = |feature: &&RecordFeature| feature.values == RecordValues::Ints && feature.count == 1;
        let named = |feature: &&RecordFeature| label(feature) && ["label", "class"].iter().any(|word| feature.name.contains(word));
        let label = found.iter().find(named).or_else(|| found.iter().find(label));
        // Pictures in packed files cannot be read.
        let packed = path.extension().is_some_and(|extension| extension == "gz" || extension == "gzip");
        let inputs = || found.iter().filter(|feature| Some(*feature) != label && !(packed && feature.is_picture));
        let Some(input) = inputs().find(|feature| feature.is_picture).or_else(|| inputs().max_by_key(|feature| feature.count)) else {
            return Err(Error::Config(format!("{}: its first record has no features to show", path.display())));
        };
        let described = |feature: &RecordFeature| {
            let dtype = match feature.values {
                RecordValues::Bytes if feature.is_picture => "image",
                RecordValues::Bytes => "u8",
                RecordValues::Floats => "f32",
                RecordValues::Ints => "i32",
            };
            let mut table =
                Table::from_iter([("name", feature.name.as_str()), ("dtype", dtype)].map(|(key, word)| (key.into(), word.into())));
            if Some(feature) != label && dtype != "image" {
                table.insert("shape".to_string(), Value::Array(vec![Value::Integer(feature.count as i64)]));
            }
            Value::Table(table)
        };
        self.set_value("data.input", described(input))?;
        if let Some(label) = label {
            self.set_value("data.label", described(label))?;
        }
        if input.is_picture {
            self.set("data.map=[{ op = \"decode\" }, { op = \"resize\", size = [224, 224] }]")?;
        }
        Ok(())
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

    /// Lets rows come in the order of their source, so that what is said of them can be told apart by their place.
    pub(crate) fn set_source_order(&mut self) -> Result<()> {
        let stages = self.table.get_mut("data").and_then(|data| data.get_mut("stages")).and_then(Value::as_array_mut);
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

    /// The same configuration with paths that hold wherever it is read from, for the run's folder.
    fn anchored(&self) -> Config {
        let mut config = self.clone();
        // The folder of a file in the current one has an empty name.
        let folder = std::path::absolute(Path::new(".").join(&self.folder)).unwrap_or_else(|_| self.folder.clone());
        let tables = [&["data"][..], &["data", "cache"], &["data", "validation"]];
        for names in tables {
            let table = names.iter().try_fold(&mut config.table, |table, name| table.get_mut(*name)?.as_table_mut());
            table.into_iter().for_each(|table| anchor_all(table, &folder));
        }
        let weights = config.table.get_mut("train").and_then(|train| train.get_mut("weights"));
        let weights = weights.and_then(|weights| if weights.is_table() { weights.get_mut("path") } else { Some(weights) });
        if let Some(Value::String(path)) = weights {
            *path = folder.join(&*path).to_string_lossy().into_owned();
        }
        config
    }

    /// The run it describes, or what is wrong with it.
    pub fn build(&self) -> Result<Run> {
        let root = Reader::root(&self.table);
        let mut settings = training::settings(&root, &self.folder)?;
        let synthetic = data::synthetic_rows(&root)?;
        let given = match synthetic {
            None => Some(data::datasets(&root, &self.folder, settings.batch, settings.seed)?),
            Some(_) => None,
        };
        let (model, network) = layers::model(&root)?;
        let (data, validation) = match (given, synthetic) {
            (Some(given), _) => given,
            (None, rows) => {
                let Some(network) = network else {
                    return Err(Error::Config(
                        "`data.source` is \"synthetic\", which makes up rows for a network of the zoo; name one as `model.zoo`".to_string(),
                    ));
                };
                if !settings.loss_given {
                    settings.targets = OutputLosses::Only(network.loss.into());
                }
                (network.synthetic(rows.unwrap_or(1))?.batch(settings.batch.unwrap_or(32)), None)
            }
        };
        root.finish()?;
        if settings.schedule.is_open_ended() && data.size_if_readable().is_none() {
            let (name, rows) = (settings.schedule.name(), data.describe());
            return Err(Error::Config(format!(
                "the {name} schedule is as long as the run, and how many rows {rows} has is known only when they have come; give it \
                 `train.schedule.steps`, or say how many rows there are with {{ op = \"cardinality\", rows = … }}"
            )));
        }
        Ok(Run::new(settings, model, data, validation, self.anchored().to_toml(), self.title.clone()))
    }
}

impl Config {
    /// The characters and the context of a run that learns from text.
    pub(crate) fn text(&self) -> Result<(plimsoll_data::Vocabulary, usize)> {
        let root = Reader::root(&self.table);
        data::text(&root, &self.folder)
    }

    /// Only its data, and the line: the model may be missing.
    pub fn pipeline(&self) -> Result<Pipeline> {
        let root = Reader::root(&self.table);
        let settings = training::settings(&root, &self.folder)?;
        let (data, _) = data::datasets(&root, &self.folder, settings.batch, settings.seed)?;
        root.value("model");
        root.finish()?;
        Ok(Pipeline::new(data, settings.budget.host))
    }
}

/// The paths of a source, of the parts it is made of, and of what its stages keep.
fn anchor_all(table: &mut Table, folder: &Path) {
    for (key, value) in table.iter_mut() {
        if data::PATHS.contains(&key.as_str()) {
            let several = value.as_table_mut().into_iter().flat_map(|files| files.iter_mut().map(|(_, file)| file));
            several.for_each(|file| anchor(file, folder));
            anchor(value, folder);
        } else if let ("parts", Value::Array(parts)) = (key.as_str(), &mut *value) {
            parts.iter_mut().filter_map(Value::as_table_mut).for_each(|part| anchor_all(part, folder));
        } else if let ("stages", Value::Array(stages)) = (key.as_str(), value) {
            let caches = stages.iter_mut().filter_map(|stage| stage.get_mut("in")?.as_table_mut());
            caches.for_each(|cache| anchor_all(cache, folder));
        }
    }
}

/// A path that holds wherever it is read from.
fn anchor(value: &mut Value, folder: &Path) {
    if let Value::String(path) = value {
        *path = folder.join(&*path).to_string_lossy().into_owned();
    }
}

fn parse(text: &str) -> Result<Table, toml::de::Error> {
    text.parse::<Table>()
}
