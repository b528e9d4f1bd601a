//! A run from a configuration: planned, trained, and left in a folder.

use crate::allow::Allow;
use crate::callbacks::{CsvLog, EarlyStopping};
use crate::checkpoint::Checkpoints;
use crate::cost::CostTable;
use crate::devices::Choice;
use crate::error::{Error, Result};
use crate::fit::{Event, FirstWeights, Fit};
use crate::history::History;
use crate::loss::Loss;
use crate::metrics::{Metric, Scores};
use crate::nn::Model;
use crate::optim::{Adam, Clip, Ema, Optimizer};
use crate::output_loss::OutputLosses;
use crate::plan::{Count, LargestBatch, RunPlan, Sweep};
use crate::precision::Precision;
use crate::schedule::Schedule;
use crate::trainer::Trainer;
use plimsoll_core::Budget;
use plimsoll_core::device::Device;
use plimsoll_data::Dataset;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How to train, as a configuration says it.
pub(crate) struct Settings {
    pub batch: Option<usize>,
    pub micro_batch: Option<usize>,
    pub epochs: u64,
    pub seed: u64,
    pub threads: Option<usize>,
    pub targets: OutputLosses,
    /// Whether the configuration names the loss.
    pub loss_given: bool,
    pub metrics: Option<Vec<Metric>>,
    pub optimizer: Arc<dyn Optimizer>,
    pub clip: Option<Clip>,
    pub schedule: Schedule,
    pub average: Option<Ema>,
    pub precision: Precision,
    pub device: Choice,
    pub device_profile: Option<String>,
    pub budget: Budget,
    pub allow: Allow,
    pub checkpoint: CheckpointSettings,
    pub first: Option<FirstWeights>,
    pub early_stopping: Option<EarlyStopping>,
    pub csv_log: bool,
}

/// The `[checkpoint]` table.
#[derive(Clone, Debug)]
pub(crate) struct CheckpointSettings {
    pub enabled: bool,
    pub keep: usize,
    pub seconds: u64,
    pub steps: Option<u64>,
    pub best: Option<String>,
    pub restore_best: bool,
}

impl Default for CheckpointSettings {
    fn default() -> CheckpointSettings {
        CheckpointSettings { enabled: true, keep: 2, seconds: 600, steps: None, best: None, restore_best: false }
    }
}

impl CheckpointSettings {
    fn in_folder(&self, folder: &Path) -> Checkpoints {
        let mut checkpoints = Checkpoints::new(folder).keep(self.keep).every(Duration::from_secs(self.seconds));
        if let Some(steps) = self.steps {
            checkpoints = checkpoints.every_steps(steps);
        }
        if let Some(score) = &self.best {
            checkpoints = checkpoints.best(score);
        }
        checkpoints
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            batch: None,
            micro_batch: None,
            epochs: 1,
            seed: 0,
            threads: None,
            targets: OutputLosses::Only(Loss::SoftmaxCrossEntropy.into()),
            loss_given: false,
            metrics: None,
            optimizer: Arc::new(Adam::default()),
            clip: None,
            schedule: Schedule::default(),
            average: None,
            precision: Precision::default(),
            device: Choice::default(),
            device_profile: None,
            budget: Budget::default(),
            allow: Allow::default(),
            checkpoint: CheckpointSettings::default(),
            first: None,
            early_stopping: None,
            csv_log: false,
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
    checkpoint: CheckpointSettings,
    first: Option<FirstWeights>,
    early_stopping: Option<EarlyStopping>,
    csv_log: bool,
    config: String,
    title: String,
}

impl Run {
    pub(crate) fn new(settings: Settings, model: Model, data: Dataset, validation: Option<Dataset>, config: String, title: String) -> Run {
        let rows = data.size_if_readable().unwrap_or(0);
        let steps = data.batch_size().map_or(0, |batch| rows.div_ceil(batch.max(1) as u64).saturating_mul(settings.epochs));
        let averages = settings.average.is_some();
        let mut trainer = Trainer::new(model, &data)
            .targets(settings.targets)
            .shared_optimizer(settings.optimizer)
            .schedule(settings.schedule.fitted(steps))
            .precision(settings.precision)
            .budget(settings.budget)
            .allow(settings.allow)
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
        if settings.checkpoint.enabled {
            trainer = trainer.with_checkpoints();
        }
        Run {
            trainer,
            averages,
            validation,
            epochs: settings.epochs,
            checkpoint: settings.checkpoint,
            first: settings.first,
            early_stopping: settings.early_stopping,
            csv_log: settings.csv_log,
            config,
            title,
        }
    }

    /// Its trainer, without the folder.
    pub fn into_trainer(self) -> Trainer {
        self.trainer
    }

    /// The rows it holds out, if any.
    pub fn validation(&self) -> Option<&Dataset> {
        self.validation.as_ref()
    }

    /// What its folder is called if it is not told: the configuration's name.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The device it computes on.
    pub fn open_device(&mut self) -> Result<Arc<dyn Device>> {
        self.trainer.open_device()
    }

    /// Under which key the costs of its device are kept.
    pub fn cost_key(&mut self) -> Result<String> {
        Ok(crate::cost::key(&*self.open_device()?))
    }

    /// Predicts times by what was measured of the device; see [`Trainer::costs`].
    pub fn cost_table(&mut self, costs: Arc<CostTable>) {
        self.trainer.set_cost_table(costs);
    }

    /// Times the nodes of its own step; see [`Trainer::profile_own_step`].
    pub fn profile_own_step(&mut self, costs: &mut CostTable, limit: Duration) -> Result<usize> {
        self.trainer.profile_own_step(costs, limit)
    }

    /// The lines, as far as they were given.
    pub fn lines(&self) -> Budget {
        self.trainer.lines()
    }

    /// Threads that compute, if that was said.
    pub fn threads(&self) -> Option<usize> {
        self.trainer.chosen_threads()
    }

    /// Counts only this towards the line when planning.
    pub fn count(&mut self, count: Count) {
        self.trainer.set_count(count);
    }

    /// The largest batch that runs in one piece under the line; none if not even one row fits.
    pub fn largest_batch(&mut self) -> Result<Option<LargestBatch>> {
        self.trainer.largest_batch()
    }

    /// The predicted time of a step under lower and lower lines.
    pub fn sweep(&mut self) -> Result<Sweep> {
        self.trainer.sweep()
    }

    /// Its configuration as TOML, with paths that hold wherever it is read.
    pub fn configuration(&self) -> &str {
        &self.config
    }

    /// What it will need, exactly, or why it cannot be.
    pub fn plan(&mut self) -> Result<RunPlan> {
        let plan = self.trainer.plan_with(self.validation.as_ref())?;
        self.trainer.check_schedule(self.epochs, plan.batch)?;
        Ok(plan)
    }

    /// Trains, tells what happens, and leaves configuration, plan, log, checkpoints, weights and report in the folder. With `resume`, it
    /// goes on from the newest checkpoint in the folder, if there is one.
    pub fn train(&mut self, folder: &RunFolder, resume: bool, mut observer: impl FnMut(&Event<'_>)) -> Result<History> {
        let mut log = Log { folder, file: None };
        let mut failed = None;
        let mut fit = Fit::epochs(self.epochs).config(&self.config).resume(resume).on_event(|event| {
            let written = match event {
                Event::Planned { plan, .. } => folder
                    .remove("report.json")
                    .and(folder.remove("weights.safetensors"))
                    .and(folder.remove("weights-average.safetensors"))
                    .and_then(|()| folder.write("config.toml", self.config.as_bytes()))
                    .and_then(|()| folder.write("plan.json", pretty(&plan.to_json()).as_bytes()))
                    .and_then(|()| if resume { Ok(()) } else { log.begin() }),
                Event::Resumed { epoch, .. } => log.go_on(*epoch),
                Event::EpochEnd(epoch) => log.add(epoch),
                Event::Progress { .. } | Event::Warning(_) => Ok(()),
            };
            failed = failed.take().or(written.err());
            observer(event);
        });
        if let Some(validation) = &self.validation {
            fit = fit.validate(validation);
        }
        if let Some(first) = &self.first {
            fit = fit.first_weights(first.clone());
        }
        if let Some(stopping) = &self.early_stopping {
            fit = fit.callback(stopping.clone());
        }
        if self.csv_log {
            fit = fit.callback(CsvLog::new(folder.file("log.csv")));
        }
        if self.checkpoint.enabled {
            let checkpoints = self.checkpoint.in_folder(&folder.file("checkpoints"));
            if !resume {
                // What an earlier run left here is not this run's.
                checkpoints.clear();
            }
            fit = fit.checkpoints(checkpoints).restore_best(self.checkpoint.restore_best);
        }
        self.trainer.set_offload_folder(folder.file("."));
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

/// The file with one JSON object per epoch.
struct Log<'a> {
    folder: &'a RunFolder,
    file: Option<File>,
}

impl<'a> Log<'a> {
    const NAME: &'static str = "log.jsonl";

    /// Empties it.
    fn begin(&mut self) -> Result<()> {
        self.file = Some(File::create(self.folder.file(Log::NAME)).map_err(|source| self.error(source))?);
        Ok(())
    }

    /// Keeps the lines of epochs that are done; those of a later, interrupted epoch come again.
    fn go_on(&mut self, epochs: u64) -> Result<()> {
        let path = self.folder.file(Log::NAME);
        let done = |line: &&str| {
            let object: Option<Value> = serde_json::from_str(line).ok();
            object.is_some_and(|object| object["epoch"].as_u64().is_some_and(|epoch| epoch <= epochs))
        };
        let earlier = fs::read_to_string(&path).unwrap_or_default();
        let kept: String = earlier.lines().filter(done).map(|line| format!("{line}\n")).collect();
        self.folder.write(Log::NAME, kept.as_bytes())?;
        self.file = Some(File::options().append(true).open(&path).map_err(|source| self.error(source))?);
        Ok(())
    }

    fn add(&mut self, epoch: &crate::Epoch) -> Result<()> {
        if self.file.is_none() {
            self.begin()?;
        }
        let written = self.file.as_mut().map_or(Ok(()), |file| writeln!(file, "{}", epoch.to_json()));
        written.map_err(|source| self.error(source))
    }

    fn error(&self, source: std::io::Error) -> Error {
        Error::Io { action: "write", path: self.folder.file(Log::NAME), source }
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

    /// The newest `runs/TITLE-N`, to go on with.
    pub fn latest(title: &str) -> Result<RunFolder> {
        let path = |n: u64| PathBuf::from(format!("runs/{title}-{n}"));
        match (1..).take_while(|n| path(*n).exists()).last() {
            Some(n) => RunFolder::open(&path(n)),
            None => {
                Err(Error::Config(format!("there is no run to resume: {} does not exist; name its folder with --out", path(1).display())))
            }
        }
    }

    /// The configuration of the run that is in a folder.
    pub fn config_in(path: &Path) -> Option<PathBuf> {
        Some(path.join("config.toml")).filter(|path| path.exists())
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
            "learning_rate": self.learning_rate,
            "seconds": self.seconds,
            "examples_per_s": self.examples_per_s,
        });
        if self.left_out > 0 {
            object["left_out"] = json!(self.left_out);
        }
        put_scores(&mut object, "", &self.training);
        if !self.training.more.is_empty() {
            // So that the others can be told from the rest of the object.
            object["metrics"] = self.training.more.iter().map(|(name, _)| name.as_str()).collect();
        }
        if let Some(scores) = &self.validation {
            put_scores(&mut object, "val_", scores);
        }
        object
    }
}

/// Adds all scores to an object, with a prefix before their names.
fn put_scores(object: &mut Value, prefix: &str, scores: &Scores) {
    for (name, value) in scores.iter() {
        object[format!("{prefix}{name}")] = json!(value);
    }
    for (name, values) in &scores.per_class {
        object[format!("{prefix}{name}_per_class")] = json!(values);
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
            "predicted_step_s": self.predicted_step_s,
            "measured_step_s": self.measured_step_s.map(|(median, _)| median),
            "fastest_step_s": self.measured_step_s.map(|(_, fastest)| fastest),
            "measured_over_predicted": self.measured_step_s.map(|(median, _)| median / self.predicted_step_s),
        })
    }
}
