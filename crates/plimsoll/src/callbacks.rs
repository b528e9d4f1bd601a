//! Callbacks after every epoch: early stopping, a CSV log, closures.

use crate::error::{Error, Result};
use crate::history::Epoch;
use crate::metrics::lower_is_better;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::PathBuf;

/// Whether training continues after an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrainingControl {
    /// Continue with the next epoch.
    Continue,
    /// Stop, as if this were the last epoch.
    Stop,
}

/// Called after every epoch. Its state is saved in checkpoints, so that a resumed run continues as if it had never
/// stopped.
pub trait Callback {
    /// The name its state is saved under; unique in a run.
    fn name(&self) -> &str;

    /// After an epoch and its validation.
    fn epoch_end(&mut self, epoch: &Epoch) -> Result<TrainingControl>;

    /// Its state.
    fn memory(&self) -> Value {
        Value::Null
    }

    /// Restores the state of a resumed run. Called with `Null` when a run starts.
    fn restore(&mut self, memory: &Value) -> Result<()> {
        let _ = memory;
        Ok(())
    }
}

/// Tracks the best value of one score.
#[derive(Clone, Debug)]
pub(crate) struct Best {
    pub score: String,
    pub value: Option<f64>,
}

impl Best {
    pub fn new(score: &str) -> Best {
        Best { score: score.to_string(), value: None }
    }

    /// Whether an epoch is better than all before, by more than `min_delta`.
    pub fn improves(&mut self, epoch: &Epoch, min_delta: f64) -> Result<bool> {
        let Some(value) = epoch.score(&self.score) else {
            let known = epoch.score_names().join(", ");
            return Err(Error::Config(format!("there is no score `{}` to monitor; this run has {known}", self.score)));
        };
        let better =
            self.value.is_none_or(|best| if lower_is_better(&self.score) { value < best - min_delta } else { value > best + min_delta });
        if better {
            self.value = Some(value);
        }
        Ok(better)
    }
}

/// Stops training when a score has not improved for some epochs.
///
/// ```
/// use plimsoll::{EarlyStopping, Fit};
/// let fit = Fit::epochs(100).callback(EarlyStopping::new("val_loss").patience(5).min_delta(1e-3));
/// ```
#[derive(Clone, Debug)]
pub struct EarlyStopping {
    best: Best,
    patience: u64,
    min_delta: f64,
    waited: u64,
}

impl EarlyStopping {
    /// Monitors a score such as `val_loss` or `val_accuracy` and stops after the first epoch that does not improve it.
    pub fn new(score: &str) -> EarlyStopping {
        EarlyStopping { best: Best::new(score), patience: 0, min_delta: 0.0, waited: 0 }
    }

    /// Tolerates this many epochs without improvement.
    pub fn patience(self, epochs: u64) -> EarlyStopping {
        EarlyStopping { patience: epochs, ..self }
    }

    /// Counts only improvements larger than this.
    pub fn min_delta(self, min_delta: f64) -> EarlyStopping {
        EarlyStopping { min_delta, ..self }
    }
}

impl Callback for EarlyStopping {
    fn name(&self) -> &str {
        "early_stopping"
    }

    fn epoch_end(&mut self, epoch: &Epoch) -> Result<TrainingControl> {
        self.waited = if self.best.improves(epoch, self.min_delta)? { 0 } else { self.waited + 1 };
        Ok(if self.waited > self.patience { TrainingControl::Stop } else { TrainingControl::Continue })
    }

    fn memory(&self) -> Value {
        json!({ "best": self.best.value, "waited": self.waited })
    }

    fn restore(&mut self, memory: &Value) -> Result<()> {
        self.best.value = memory["best"].as_f64();
        self.waited = memory["waited"].as_u64().unwrap_or(0);
        Ok(())
    }
}

/// Writes one line of comma-separated scores per epoch.
#[derive(Debug)]
pub struct CsvLog {
    path: PathBuf,
    file: Option<File>,
    length: u64,
}

impl CsvLog {
    /// Into this file.
    pub fn new(path: impl Into<PathBuf>) -> CsvLog {
        CsvLog { path: path.into(), file: None, length: 0 }
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error::Io { action: "write", path: self.path.clone(), source }
    }
}

impl Callback for CsvLog {
    fn name(&self) -> &str {
        "csv_log"
    }

    fn epoch_end(&mut self, epoch: &Epoch) -> Result<TrainingControl> {
        let (names, mut line) = (epoch.score_names(), String::new());
        if self.length == 0 {
            line = format!("epoch,seconds,learning_rate,{}\n", names.join(","));
        }
        let values: Vec<String> = names.iter().map(|name| epoch.score(name).map_or(String::new(), |value| value.to_string())).collect();
        line += &format!("{},{:.3},{},{}\n", epoch.epoch, epoch.seconds, epoch.learning_rate, values.join(","));
        let written = self.file.as_mut().map_or(Ok(()), |file| file.write_all(line.as_bytes()));
        written.map_err(|source| self.error(source))?;
        self.length += line.len() as u64;
        Ok(TrainingControl::Continue)
    }

    fn memory(&self) -> Value {
        json!({ "length": self.length })
    }

    /// Removes the lines of epochs that will be repeated.
    fn restore(&mut self, memory: &Value) -> Result<()> {
        self.length = memory["length"].as_u64().unwrap_or(0);
        let open = || {
            let mut file = File::options().create(true).truncate(false).write(true).open(&self.path)?;
            let length = self.length.min(file.metadata()?.len());
            file.set_len(length)?;
            file.seek(SeekFrom::Start(length))?;
            Ok((file, length))
        };
        let (file, length) = open().map_err(|source| self.error(source))?;
        (self.file, self.length) = (Some(file), length);
        Ok(())
    }
}

/// A closure as a callback.
pub(crate) struct EpochCallback<F>(pub F);

impl<F: FnMut(&Epoch) -> TrainingControl> Callback for EpochCallback<F> {
    fn name(&self) -> &str {
        "closure"
    }

    fn epoch_end(&mut self, epoch: &Epoch) -> Result<TrainingControl> {
        Ok((self.0)(epoch))
    }
}
