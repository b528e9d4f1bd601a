//! The progress of a fit between two steps: restored from a checkpoint, saved in the next.

use super::{Event, Fit};
use crate::callbacks::Best;
use crate::checkpoint::{self, Checkpoints, Position, Record};
use crate::error::{Error, Result};
use crate::history::{Epoch, History};
use crate::plan::RunPlan;
use crate::preprocessing::Preprocessing;
use crate::session::{Session, Tally};
use crate::spec::RunSpec;
use plimsoll_data::Dataset;
use serde_json::{Map, Value};

/// Checks that the data is still standardized as in the checkpoint, and has the same columns and classes.
fn check_preprocessing(record: &Record, data: &Dataset) -> Result<()> {
    let saved = record.memories.get("preprocessing").and_then(|saved| serde_json::from_value(saved.clone()).ok());
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
    pub best: Option<Best>,
    epoch_rows: u64,
    order: String,
    batch: usize,
    digest: String,
    model: String,
}

impl Progress {
    /// From the beginning, or from the newest checkpoint if the fit resumes and there is one.
    pub fn start(fit: &mut Fit<'_>, session: &mut Session, data: &Dataset, plan: &RunPlan) -> Result<Progress> {
        let mut progress = Progress {
            rows: 0,
            tally: Tally::default(),
            counts: vec![],
            epochs: vec![],
            resumed: None,
            stopped: false,
            best: fit.spec.checkpoints.as_ref().and_then(Checkpoints::best_score).map(Best::new),
            epoch_rows: data.len(),
            order: data.order()?,
            batch: plan.batch,
            digest: plan.digest(),
            model: plan.model.clone(),
        };
        let found = match fit.spec.checkpoints.as_ref().filter(|_| fit.spec.resume) {
            Some(checkpoints) => checkpoint::load_newest(checkpoints.folder(), &mut session.executor)?,
            None => None,
        };
        let Some((record, complaints)) = found else {
            fit.callbacks.iter_mut().try_for_each(|callback| callback.restore(&Value::Null))?;
            return Ok(progress);
        };
        progress.check(&record, session.seed())?;
        check_preprocessing(&record, data)?;
        (session.step, session.epochs) = (record.step, record.epoch);
        progress.rows = record.data.rows;
        progress.tally.restore(&record.sums);
        let bits = record.memories.get("class_counts").and_then(Value::as_array);
        progress.counts = bits.into_iter().flatten().filter_map(Value::as_f64).collect();
        let schedule = record.memories.get("schedule").cloned().and_then(|state| serde_json::from_value(state).ok());
        session.learning_rate.state = schedule.unwrap_or_default();
        progress.epochs = record.epochs.iter().filter_map(Epoch::from_json).collect();
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
    fn check(&self, record: &Record, seed: u64) -> Result<()> {
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
            memories.insert("class_counts".to_string(), session.counts().into());
        }
        let preprocessing = Preprocessing::of(&spec.data);
        if !preprocessing.is_empty() {
            memories.insert("preprocessing".to_string(), serde_json::json!(preprocessing));
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
            data,
            sums: self.tally.save(),
            epochs: history.epochs.iter().map(Epoch::to_json).collect(),
            memories,
            config: spec.config.clone(),
            plan: self.digest.clone(),
            ..Record::empty()
        }
    }
}
