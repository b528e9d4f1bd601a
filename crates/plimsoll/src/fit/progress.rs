//! The progress of a fit between two steps: restored from a checkpoint, saved in the next.

use super::{Event, Fit};
use crate::callbacks::Best;
use crate::checkpoint::{self, Checkpoints, Position, Record};
use crate::config;
use crate::devices;
use crate::error::{Error, Result};
use crate::history::{Epoch, History};
use crate::numerics::Numerics;
use crate::plan::RunPlan;
use crate::preprocessing::Preprocessing;
use crate::session::{Session, Tally};
use crate::spec::RunSpec;
use crate::system::hash_of;
use plimsoll_data::Dataset;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Checks that the data is still standardized as in the checkpoint, and has the same columns and classes.
fn check_preprocessing(record: &Record, data: &Dataset) -> Result<()> {
    let saved = record.memories.get("preprocessing").and_then(Value::as_str).and_then(|saved| serde_json::from_str(saved).ok());
    match saved.is_none_or(|saved: Preprocessing| saved == Preprocessing::of(data)) {
        true => Ok(()),
        false => Err(Error::Config(
            "the data changed since the checkpoint: its columns, classes or statistics are others; restore it, or start a new run"
                .to_string(),
        )),
    }
}

/// Everything about the progress of a fit that is not a tensor.
pub(super) struct Progress {
    /// Rows of this epoch that were trained on.
    pub rows: u64,
    /// Sums over those rows.
    pub tally: Tally,
    /// Per-class counts over those rows.
    pub counts: Vec<f64>,
    /// Epochs done before this fit, if it is resumed.
    pub epochs: Vec<Epoch>,
    /// Errors of newer checkpoints; none if the run is not resumed.
    pub resumed: Option<Vec<String>>,
    /// Whether a callback ended the run.
    pub stopped: bool,
    /// The end of an epoch whose validation is not done yet.
    pub validation_pending: Option<TrainedEpoch>,
    /// What may differ from a run without interruption.
    pub warnings: Vec<String>,
    pub best: Option<Best>,
    epoch_rows: u64,
    order: String,
    batch: usize,
    digest: String,
    model: String,
    ranks: usize,
    reproducible: bool,
    numerics: Numerics,
    /// The model of the GPU, if it is one.
    device: String,
}

/// What the steps of an epoch leave for its report, apart from the sums.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct TrainedEpoch {
    /// Of the last step.
    pub learning_rate: f64,
    /// Rows that could not be read and were skipped.
    pub left_out: u64,
}

impl Progress {
    /// From the beginning, or from the newest checkpoint if the fit resumes and there is one.
    pub fn start(spec: &RunSpec, fit: &mut Fit<'_>, session: &mut Session, data: &Dataset, plan: &RunPlan) -> Result<Progress> {
        let on_gpu = !session.executor.device().capabilities().shares_host_memory;
        let convolutions = if on_gpu { Some(format!("{:?}", devices::convolutions()?).to_lowercase()) } else { None };
        let mut progress = Progress {
            rows: 0,
            tally: Tally::default(),
            counts: vec![],
            epochs: vec![],
            resumed: None,
            stopped: false,
            validation_pending: None,
            warnings: vec![],
            best: fit.spec.checkpoints.as_ref().and_then(Checkpoints::best_score).map(Best::new),
            epoch_rows: data.len(),
            order: data.order()?,
            batch: plan.batch,
            digest: plan.digest(),
            model: plan.model.clone(),
            ranks: plan.ranks,
            reproducible: plan.reproducible,
            numerics: Numerics { convolutions, ..plan.numerics() },
            device: if on_gpu { plan.device.1.clone() } else { "cpu".to_string() },
        };
        let found = match fit.spec.checkpoints.as_ref().filter(|_| fit.spec.resume) {
            Some(checkpoints) => {
                let (seed, ranks) = (session.seed(), session.ranks.clone());
                let check = |record: &Record| progress.check(record, spec, seed);
                checkpoint::load_newest(checkpoints.folder(), &mut session.executor, ranks.as_ref(), check)?
            }
            None => None,
        };
        let Some((record, complaints)) = found else {
            fit.callbacks.iter_mut().try_for_each(|callback| callback.restore(&Value::Null))?;
            return Ok(progress);
        };
        check_preprocessing(&record, data)?;
        (session.step, session.epochs) = (record.step, record.epoch);
        progress.rows = record.data.rows;
        progress.tally.restore(&record.sums);
        let counts = record.memories.get("class_counts").and_then(Value::as_str).unwrap_or_default();
        progress.counts = counts.split_ascii_whitespace().filter_map(|count| count.parse().ok()).collect();
        let schedule = record.memories.get("schedule").cloned().and_then(|state| serde_json::from_value(state).ok());
        session.learning_rate.state = schedule.unwrap_or_default();
        progress.epochs = record.epochs.iter().filter_map(Epoch::from_json).collect();
        let pending = record.memories.get("validation_pending").cloned();
        progress.validation_pending = pending.and_then(|pending| serde_json::from_value(pending).ok());
        if record.device != progress.device {
            let (before, now) = (&record.device, &progress.device);
            progress
                .warnings
                .push(format!("the checkpoint was written on {before} and continues on {now}: results may differ in their last bits"));
        }
        progress.stopped = record.memories.get("stopped").is_some_and(|stopped| *stopped == Value::Bool(true));
        if let Some(best) = &mut progress.best {
            best.value = record.memories.get("best").and_then(Value::as_f64);
        }
        for callback in &mut fit.callbacks {
            let memory = record.memories.get(callback.name()).cloned().unwrap_or_default();
            callback.restore(&memory)?;
        }
        progress.resumed = Some(complaints);
        Ok(progress)
    }

    /// Checks that a checkpoint's remaining steps are this run's.
    fn check(&self, record: &Record, spec: &RunSpec, seed: u64) -> Result<()> {
        config::check_resumable(&record.config, &spec.config, &record.numerics)?;
        if let (Some(before), Some(now)) = (&record.numerics.convolutions, &self.numerics.convolutions)
            && before != now
        {
            let what = format!("the checkpoint's convolutions are computed by `{before}`, but this run's by `{now}`");
            return Err(Error::Config(format!("{what}; resume with PLIMSOLL_CONVOLUTIONS={before}")));
        }
        let (before, now) = (&record.numerics, &self.numerics_as_in(record));
        if before != now {
            let what = format!("the checkpoint was trained with {before}, but this plan has {now}");
            return Err(Error::Config(format!("{what}; plan with the `Fit` that resumes: `trainer.plan(&fit)`")));
        }
        let compare = |what: &str, saved: String, now: String| {
            if saved == now {
                return Ok(());
            }
            Err(Error::Config(format!("the checkpoint belongs to a run with {what} {saved}, but this one has {now}; resume with the same")))
        };
        compare("the seed", record.seed.to_string(), seed.to_string())?;
        compare("a batch of", record.data.batch.to_string(), self.batch.to_string())?;
        let rows = |rows: u64| if rows == u64::MAX { "as many rows as come".to_string() } else { format!("{rows} rows") };
        compare("an epoch of", rows(record.data.epoch_rows), rows(self.epoch_rows))?;
        compare("the row order", record.data.order.clone(), self.order.clone())
    }

    /// The planner's choices, with what is chosen when programs are loaded as in a checkpoint.
    fn numerics_as_in(&self, record: &Record) -> Numerics {
        let Numerics { convolutions, algorithms, micro_batch, .. } = record.numerics.clone();
        // Another number of ranks has other micro-batches, unless they are fixed.
        let micro_batch = if self.reproducible || record.ranks == self.ranks as u64 { self.numerics.micro_batch } else { micro_batch };
        Numerics { convolutions, algorithms, micro_batch, ..self.numerics.clone() }
    }

    /// What all ranks must have alike, by name.
    pub fn outline(&self, spec: &RunSpec, session: &Session) -> [(&'static str, u64); 5] {
        let text = |text: String| hash_of(text.as_bytes());
        [
            ("configuration", hash_of(spec.config.as_bytes())),
            ("plan", text(format!("{} {} {} {:?} {}", self.digest, self.batch, self.ranks, self.numerics, self.model))),
            ("seed", session.seed()),
            ("data set", text(format!("{} {}", self.epoch_rows, self.order))),
            ("checkpoint", text(format!("{} {} {}", session.step, session.epochs, self.rows))),
        ]
    }

    pub fn report(&self, fit: &mut Fit<'_>, session: &Session) {
        if let Some(complaints) = &self.resumed {
            fit.report(&Event::Resumed { epoch: session.epochs, step: session.step, complaints });
        }
    }

    /// The state of the run between two steps.
    pub fn record(&self, spec: &RunSpec, fit: &Fit<'_>, session: &Session, history: &History) -> Record {
        let mut memories: Map<String, Value> =
            fit.callbacks.iter().map(|callback| (callback.name().to_string(), callback.memory())).collect();
        memories.insert("stopped".to_string(), self.stopped.into());
        memories.insert("schedule".to_string(), serde_json::json!(session.learning_rate.state));
        if self.rows > 0 {
            // One text: as a list of values, the counts of very many classes would take several times as much.
            let mut counts = String::new();
            session.counts().iter().for_each(|count| counts.push_str(&format!("{count} ")));
            memories.insert("class_counts".to_string(), counts.into());
        }
        // One text: as a tree of values, very many columns would take ten times as much.
        if let Some((key, text)) = Preprocessing::of(&spec.data).metadata() {
            memories.insert(key.to_string(), text.into());
        }
        if let Some(pending) = &self.validation_pending {
            memories.insert("validation_pending".to_string(), serde_json::json!(pending));
        }
        if let Some(best) = &self.best {
            memories.insert("best".to_string(), best.value.into());
        }
        let data = Position { rows: self.rows, epoch_rows: self.epoch_rows, batch: self.batch, order: self.order.clone() };
        Record {
            model: self.model.clone(),
            step: session.step,
            epoch: session.epochs,
            seed: session.seed(),
            ranks: self.ranks as u64,
            data,
            sums: self.tally.save(),
            epochs: history.epochs.iter().map(Epoch::to_json).collect(),
            memories,
            config: spec.config.clone(),
            plan: self.digest.clone(),
            // Those of all programs that were loaded so far.
            numerics: Numerics {
                algorithms: session.executor.device().diagnostics().and_then(|device| device.algorithms()),
                ..self.numerics.clone()
            },
            device: self.device.clone(),
            ..Record::empty()
        }
    }
}
