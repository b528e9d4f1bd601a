//! A run from a configuration: planned, trained, and left in a folder.

use crate::devices::Choice;
use crate::error::{Error, Result};
use crate::loss::{Loss, Objective};
use crate::metrics::{Metric, Scores};
use crate::nn::Model;
use crate::optim::{Adam, Average, Clip, Optimizer};
use crate::precision::Precision;
use crate::schedule::Schedule;
use crate::trainer::{Event, Fit, History, RunPlan, Trainer};
use plimsoll_core::Budget;
use plimsoll_data::Dataset;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to train, as a configuration says it.
pub(crate) struct Settings {
    pub batch: Option<usize>,
    pub micro_batch: Option<usize>,
    pub epochs: u64,
    pub seed: u64,
    pub threads: Option<usize>,
    pub loss: Objective,
    pub metrics: Option<Vec<Metric>>,
    pub optimizer: Arc<dyn Optimizer>,
    pub clip: Option<Clip>,
    pub schedule: Schedule,
    pub average: Option<Average>,
    pub precision: Precision,
    pub device: Choice,
    pub device_profile: Option<String>,
    pub budget: Budget,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch: None,
            micro_batch: None,
            epochs: 1,
            seed: 0,
            threads: None,
            loss: Loss::SoftmaxCrossEntropy.into(),
            metrics: None,
            optimizer: Arc::new(Adam::default()),
            clip: None,
            schedule: Schedule::default(),
            average: None,
            precision: Precision::default(),
            device: Choice::default(),
            device_profile: None,
            budget: Budget::default(),
        }
    }
}

/// A run that a configuration describes.
pub struct Run {
    trainer: Trainer,
    /// Whether it keeps an average of its weights.
    averages: bool,
    validation: Option<Dataset>,
    epochs: u64,
    config: String,
    title: String,
}

impl Run {
    pub(crate) fn new(settings: Settings, model: Model, data: Dataset, validation: Option<Dataset>, config: String, title: String) -> Run {
        let steps = data.batch_size().map_or(0, |batch| data.len().div_ceil(batch.max(1) as u64) * settings.epochs);
        let averages = settings.average.is_some();
        let mut trainer = Trainer::new(model, &data)
            .loss(settings.loss)
            .shared_optimizer(settings.optimizer)
            .schedule(settings.schedule.fitted(steps))
            .precision(settings.precision)
            .budget(settings.budget)
            .seed(settings.seed)
            .device(settings.device);
        if let Some(profile) = &settings.device_profile {
            trainer = trainer.device_profile(profile);
        }
        if let Some(rows) = settings.micro_batch {
            trainer = trainer.micro_batch(rows);
        }
        if let Some(threads) = settings.threads {
            trainer = trainer.threads(threads);
        }
        if let Some(metrics) = settings.metrics {
            trainer = trainer.metrics(metrics);
        }
        if let Some(clip) = settings.clip {
            trainer = trainer.clip(clip);
        }
        if let Some(average) = settings.average {
            trainer = trainer.average(average);
        }
        Run { trainer, averages, validation, epochs: settings.epochs, config, title }
    }

    /// What its folder is called if it is not told: the configuration's name.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// What it will need, exactly, or why it cannot be.
    pub fn plan(&mut self) -> Result<RunPlan> {
        self.trainer.plan_with(self.validation.as_ref())
    }

    /// Trains, tells what happens, and leaves configuration, plan, log, weights and report in the folder.
    pub fn train(&mut self, folder: &RunFolder, mut observer: impl FnMut(&Event<'_>)) -> Result<History> {
        folder.write("config.toml", self.config.as_bytes())?;
        let mut log = folder.create_file("log.jsonl")?;
        let mut failed = None;
        let mut fit = Fit::epochs(self.epochs).on_event(|event| {
            let written = match event {
                Event::Planned { plan, .. } => folder
                    .remove("report.json")
                    .and(folder.remove("weights.safetensors"))
                    .and_then(|()| folder.write("plan.json", pretty(&plan.to_json()).as_bytes())),
                Event::EpochEnd(epoch) => writeln!(log, "{}", epoch.to_json()).map_err(|source| Error::Io {
                    action: "write",
                    path: folder.file("log.jsonl"),
                    source,
                }),
                Event::Progress { .. } => Ok(()),
            };
            failed = failed.take().or(written.err());
            observer(event);
        });
        if let Some(validation) = &self.validation {
            fit = fit.validate(validation);
        }
        let history = self.trainer.fit(fit)?;
        // What was learnt is saved first: a log that could not be written must not cost the training.
        self.trainer.save_weights(&folder.file("weights.safetensors"))?;
        if self.averages {
            self.trainer.averaged(|trainer| trainer.save_weights(&folder.file("weights-average.safetensors")))?;
        }
        if let Some(error) = failed {
            return Err(error);
        }
        folder.write("report.json", pretty(&history.to_json()).as_bytes())?;
        Ok(history)
    }
}

/// Where a run leaves its files.
pub struct RunFolder {
    path: PathBuf,
}

impl RunFolder {
    /// The given folder, made if it is not there; tried out before anything is computed.
    pub fn open(path: &Path) -> Result<RunFolder> {
        let error = |source| Error::Io { action: "write to the run folder", path: path.to_path_buf(), source };
        fs::create_dir_all(path).map_err(error)?;
        let probe = path.join(".writable");
        File::create(&probe).and_then(|_| fs::remove_file(&probe)).map_err(error)?;
        Ok(RunFolder { path: path.to_path_buf() })
    }

    /// The next free `runs/TITLE-N`.
    pub fn next(title: &str) -> Result<RunFolder> {
        let free = (1..).map(|n| PathBuf::from(format!("runs/{title}-{n}"))).find(|path| !path.exists());
        RunFolder::open(&free.expect("numbers do not run out"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn create_file(&self, name: &str) -> Result<File> {
        File::create(self.file(name)).map_err(|source| Error::Io { action: "write", path: self.file(name), source })
    }

    /// Writes a file whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let temporary = self.file(&format!("{name}.tmp"));
        let written = fs::write(&temporary, bytes).and_then(|()| fs::rename(&temporary, self.file(name)));
        written.map_err(|source| Error::Io { action: "write", path: self.file(name), source })
    }

    /// Removes a file of an earlier run, so that it is not taken for this one's.
    fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::Io { action: "remove", path: self.file(name), source })
            }
            _ => Ok(()),
        }
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

impl crate::Epoch {
    /// The epoch as one JSON object.
    pub fn to_json(&self) -> Value {
        let mut object = json!({
            "epoch": self.epoch,
            "loss": self.training.loss,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
        });
        let mut put = |prefix: &str, scores: &Scores| {
            for (name, value) in scores.iter() {
                object[format!("{prefix}{name}")] = json!(value);
            }
            for (name, values) in &scores.per_class {
                object[format!("{prefix}{name}_per_class")] = json!(values);
            }
        };
        put("", &self.training);
        if let Some(scores) = &self.validation {
            put("val_", scores);
        }
        object
    }
}

impl History {
    /// The run's record as one JSON object.
    pub fn to_json(&self) -> Value {
        json!({
            "epochs": self.epochs.iter().map(crate::Epoch::to_json).collect::<Vec<_>>(),
            "steps": self.steps,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
            "planned_bytes": self.planned.0,
            "measured_peak_rss_bytes": self.measured.0,
            "host_budget_bytes": self.line.0,
            "planned_device_bytes": self.planned_on_device.map(|bytes| bytes.0),
            "device_in_use_bytes": self.in_use_on_device.map(|bytes| bytes.0),
        })
    }
}
