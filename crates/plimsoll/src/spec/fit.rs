//! How long a run trains, what it measures meanwhile, and what it reads and writes; with the keys of `[train]` and
//! `[checkpoint]` that say so.

use crate::callbacks::EarlyStopping;
use crate::checkpoint::Checkpoints;
use crate::error::Result;
use crate::reader::Reader;
use plimsoll_core::Bytes;
use plimsoll_data::Dataset;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml::Value;

/// Heap of writing TensorBoard's events: a few images, their compression, and one event.
const EVENTS: Bytes = Bytes::kib(768);

/// Epochs, validation, checkpoints and callbacks of a run.
#[derive(Clone, Debug)]
pub struct FitSpec {
    /// Passes over the training data.
    pub epochs: u64,
    /// Data on which loss and metrics are measured after every epoch.
    pub validation: Option<Dataset>,
    /// Where and when checkpoints are written.
    pub checkpoints: Option<Checkpoints>,
    /// Whether the run continues from the newest checkpoint.
    pub resume: bool,
    /// Weights to start from, instead of random ones.
    pub initial_weights: Option<InitialWeights>,
    /// Whether the run ends with the weights of its best epoch.
    pub restore_best: bool,
    /// Stops the run when a score no longer improves.
    pub early_stopping: Option<EarlyStopping>,
    /// A file for one line of scores per epoch.
    pub csv_log: Option<PathBuf>,
    /// Whether the report of a run folder shows rows of the first batch and of the validation data.
    pub log_samples: bool,
    /// A folder for TensorBoard's event files.
    pub tensorboard: Option<PathBuf>,
}

impl Default for FitSpec {
    fn default() -> FitSpec {
        FitSpec {
            epochs: 1,
            validation: None,
            checkpoints: None,
            resume: false,
            initial_weights: None,
            restore_best: false,
            early_stopping: None,
            csv_log: None,
            log_samples: true,
            tensorboard: None,
        }
    }
}

impl FitSpec {
    /// Reads its keys of `[train]`. Paths are relative to `folder`.
    pub(crate) fn read(&mut self, train: &Reader<'_>, folder: &Path) -> Result<()> {
        self.epochs = train.count("epochs", 1)?.unwrap_or(self.epochs);
        self.early_stopping = early_stopping(train)?;
        self.csv_log = train.flag("csv_log")?.unwrap_or(false).then(|| "log.csv".into());
        self.initial_weights = initial_weights(train, folder)?;
        Ok(())
    }

    /// Heap of what is written for other tools.
    pub(crate) fn log_footprint(&self) -> Bytes {
        if self.tensorboard.is_some() { EVENTS } else { Bytes::ZERO }
    }

    /// Reads `[log]`: what is written for people and other tools, beside the log itself.
    pub(crate) fn read_log(&mut self, root: &Reader<'_>) -> Result<()> {
        let Some(table) = root.section("log")? else { return Ok(()) };
        self.tensorboard = table.flag_or("tensorboard", false)?.then(|| "tensorboard".into());
        self.log_samples = table.flag_or("samples", true)?;
        table.finish()
    }

    /// Reads `[checkpoint]`: when checkpoints are written and how many are retained. Their folder is inside the run
    /// folder.
    pub(crate) fn read_checkpoint(&mut self, root: &Reader<'_>) -> Result<()> {
        let mut checkpoints = Checkpoints::new("checkpoints");
        let mut enabled = true;
        if let Some(table) = root.section("checkpoint")? {
            enabled = table.flag("enabled")?.unwrap_or(enabled);
            if let Some(keep) = table.count("keep", 1)? {
                checkpoints = checkpoints.keep(keep as usize);
            }
            if let Some(seconds) = table.count("every_seconds", 1)? {
                checkpoints = checkpoints.every(Duration::from_secs(seconds));
            }
            if let Some(steps) = table.count("every_steps", 1)? {
                checkpoints = checkpoints.every_steps(steps);
            }
            if let Some(score) = table.text("best")? {
                checkpoints = checkpoints.best(score);
            }
            self.restore_best = table.flag("restore_best")?.unwrap_or(false);
            if self.restore_best && checkpoints.best_score().is_none() {
                return Err(table.missing("best", "the score to restore the best epoch of, such as \"val_loss\""));
            }
            table.finish()?;
        }
        self.checkpoints = enabled.then_some(checkpoints);
        Ok(())
    }

    /// The same with the files the run writes in a folder, unless their paths are absolute.
    pub(crate) fn in_folder(&self, folder: &Path) -> FitSpec {
        FitSpec {
            checkpoints: self.checkpoints.as_ref().map(|checkpoints| checkpoints.in_folder(folder)),
            csv_log: self.csv_log.as_ref().map(|path| folder.join(path)),
            tensorboard: self.tensorboard.as_ref().map(|path| folder.join(path)),
            ..self.clone()
        }
    }
}

/// Weights to start from: a safetensors file, such as one that an earlier run wrote.
///
/// ```
/// use plimsoll::{Fit, InitialWeights};
/// // All but a head with another number of classes.
/// let fit = Fit::epochs(3).initial_weights(InitialWeights::new("runs/large/weights.safetensors").partial(true));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialWeights {
    pub(crate) path: PathBuf,
    pub(crate) partial: bool,
    /// Whether the state of the optimizer is loaded too.
    pub(crate) with_optimizer: bool,
    /// Heap of reading the file, where it is a model of another program.
    pub(crate) heap: Bytes,
}

impl InitialWeights {
    /// From this file, which must have all weights of the model, by name and shape.
    pub fn new(path: impl Into<PathBuf>) -> InitialWeights {
        InitialWeights { path: path.into(), partial: false, with_optimizer: false, heap: Bytes::ZERO }
    }

    /// Loads the weights that the file has with the same name and shape, and reports the others, which start random.
    pub fn partial(self, partial: bool) -> InitialWeights {
        InitialWeights { partial, ..self }
    }

    /// Loads the state of the optimizer too, if wanted; reading the file takes this much heap.
    pub(crate) fn of_model(self, with_optimizer: bool, heap: Bytes) -> InitialWeights {
        InitialWeights { with_optimizer, heap, ..self }
    }
}

/// Weights to start from: a file, or a table with more keys.
fn initial_weights(train: &Reader<'_>, folder: &Path) -> Result<Option<InitialWeights>> {
    match train.value("weights") {
        None => Ok(None),
        Some(Value::String(path)) => Ok(Some(InitialWeights::new(folder.join(path)))),
        Some(Value::Table(_)) => {
            let Some(table) = train.section("weights")? else { unreachable!("it is a table") };
            let Some(path) = table.text("path")? else { return Err(table.missing("path", "a safetensors file")) };
            let partial = table.flag("partial")?.unwrap_or(false);
            table.finish()?;
            Ok(Some(InitialWeights::new(folder.join(path)).partial(partial)))
        }
        Some(other) => Err(train.wrong("weights", other, "a safetensors file, or { path = \"FILE\", partial = true }")),
    }
}

/// A table with the monitored score.
fn early_stopping(train: &Reader<'_>) -> Result<Option<EarlyStopping>> {
    let Some(table) = train.section("early_stopping")? else { return Ok(None) };
    let Some(score) = table.text("score")? else { return Err(table.missing("score", "a score, such as \"val_loss\"")) };
    let mut stopping = EarlyStopping::new(score).patience(table.count("patience", 0)?.unwrap_or(0));
    if let Some(least) = table.number("min_delta")? {
        stopping = stopping.min_delta(least);
    }
    table.finish()?;
    Ok(Some(stopping))
}
