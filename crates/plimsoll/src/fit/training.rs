//! One fit: open, epochs, finish.

use super::progress::Progress;
use super::{Event, Fit, Validation};
use crate::callbacks::TrainingControl;
use crate::checkpoint::{self, Writer};
use crate::error::{Error, Result};
use crate::history::{Epoch, History};
use crate::plan::{DeviceBudget, RunPlan, epoch_rows};
use crate::session::{Rows, Session, Tally, feed, place_in_batch};
use crate::spec::RunSpec;
use crate::{system, tensors};
use plimsoll_core::budget::Owner;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Reservation};
use plimsoll_data::{Dataset, Feed, Options, Schema};
use std::time::{Duration, Instant};

/// Epochs that a history holds: the memory of a run must not grow with its length. The log of a run folder has them all.
const MAX_EPOCHS: usize = 1000;

/// The shortest time between two progress events.
const PROGRESS: Duration = Duration::from_millis(100);

/// Trains in an open session, as planned.
pub(crate) fn train(spec: &RunSpec, plan: &RunPlan, session: &mut Session, fit: &mut Fit<'_>) -> Result<History> {
    let mut training = Training::open(spec, plan, session, fit)?;
    while training.epochs_left > 0 && !training.progress.stopped {
        training.epoch()?;
    }
    training.finish()
}

/// A fit under way.
struct Training<'r, 'f> {
    spec: &'r RunSpec,
    plan: &'r RunPlan,
    session: &'r mut Session,
    fit: &'r mut Fit<'f>,
    data: Dataset,
    schema: Schema,
    feed: Feed,
    validation: Option<Validation>,
    writer: Option<Writer>,
    progress: Progress,
    history: History,
    epochs_left: u64,
    /// Rows of an epoch where they decide which rows share a batch, and its steps where they are known.
    epoch_rows: Option<u64>,
    epoch_steps: Option<u64>,
    /// Whether a position in an epoch says which rows are left.
    in_order: bool,
    past_schedule: bool,
    start: Instant,
    /// Time and rows of training alone, without validation.
    trained: (Duration, u64),
    _checkpoint_memory: Reservation,
}

impl<'r, 'f> Training<'r, 'f> {
    /// Restores a checkpoint or loads initial weights, and starts the pipelines.
    fn open(spec: &'r RunSpec, plan: &'r RunPlan, session: &'r mut Session, fit: &'r mut Fit<'f>) -> Result<Training<'r, 'f>> {
        let memory = session.ledger.reserve(Owner::Checkpoint, plan.checkpoint_memory())?;
        let data = spec.data.clone().rebatch(plan.feed_rows);
        let writer = fit.spec.checkpoints.clone().map(Writer::new).transpose()?;
        let mut progress = Progress::start(fit, session, &data, plan)?;
        let random = load_initial_weights(fit, session, &progress)?;
        let last = if fit.spec.resume { fit.spec.epochs } else { session.epochs + fit.spec.epochs };
        fit.report(&Event::Planned { plan, epochs: last });
        progress.report(fit, session);
        if let Some(warning) = random {
            fit.report(&Event::Warning(&warning));
        }
        let epochs_left = if progress.stopped { 0 } else { last.saturating_sub(session.epochs) };
        let first_batch = progress.rows / plan.feed_rows as u64;
        let options = Options { first_epoch: session.epochs, first_batch, epochs: Some(epochs_left), ..Options::default() };
        let feed = feed::start(&data, &plan.pipeline, &session.ledger, options, session.executor.device())?;
        let validation = match (&fit.spec.validation, &plan.validation) {
            (Some(data), Some(pipeline)) => Some(Validation::start(Role::Evaluate, data, pipeline, session, epochs_left)?),
            _ => None,
        };
        // Where the number of steps is not known, the learning rate stays where the schedule ends.
        if let Some(rows) = data.size_if_readable() {
            let steps = session.step.max(last.saturating_mul(rows.div_ceil(plan.batch as u64)));
            plan.optimization.schedule.check(steps)?;
        }
        let mut history = History {
            epochs: Vec::with_capacity(epochs_left.min(MAX_EPOCHS as u64) as usize),
            steps: session.step,
            examples_per_s: 0.0,
            seconds: 0.0,
            planned: plan.total(),
            host_budget: plan.host_budget,
            planned_on_device: plan.device_memory.as_ref().map(DeviceBudget::total),
            in_use_on_device: None,
            measured: Bytes::ZERO,
            predicted_step_s: plan.predicted_s,
            measured_step_s: None,
        };
        history.epochs.append(&mut progress.epochs);
        Ok(Training {
            spec,
            plan,
            session,
            fit,
            schema: data.output_schema()?,
            data,
            feed,
            validation,
            writer,
            progress,
            history,
            epochs_left,
            epoch_rows: epoch_rows(&spec.data),
            epoch_steps: spec.data.size().map(|rows| rows.div_ceil(plan.batch as u64)),
            in_order: spec.data.is_deterministic(),
            past_schedule: false,
            start: Instant::now(),
            trained: (Duration::ZERO, 0),
            _checkpoint_memory: memory,
        })
    }

    /// One epoch: its steps, validation, callbacks and checkpoint.
    fn epoch(&mut self) -> Result<()> {
        let start = Instant::now();
        let before = self.progress.tally.rows;
        let tally = self.steps().map_err(|error| error.located(&self.data))?;
        self.warn_past_schedule();
        let training = self.session.scores(&tally);
        let (seconds, rows) = (start.elapsed(), tally.rows - before);
        self.trained = (self.trained.0 + seconds, self.trained.1 + rows);
        let validation = self.validation.as_mut().map(|validation| validation.evaluate(self.session)).transpose()?;
        let (left_out, names) = self.data.ignored_in(self.session.epochs);
        self.session.epochs += 1;
        self.epochs_left -= 1;
        if let Some(first) = names.first() {
            let rows = if left_out == 1 { "row was" } else { "rows were" };
            self.fit.report(&Event::Warning(&format!("{left_out} {rows} left out of epoch {}; the first: {first}", self.session.epochs)));
        }
        (self.progress.rows, self.progress.tally) = (0, Tally::default());
        self.end_epoch(Epoch {
            epoch: self.session.epochs,
            training,
            validation,
            learning_rate: self.session.rate,
            seconds: start.elapsed().as_secs_f64(),
            examples_per_s: rows as f64 / seconds.as_secs_f64().max(1e-9),
            left_out,
        })
    }

    /// Reports an epoch, asks the callbacks, and writes its checkpoint.
    fn end_epoch(&mut self, epoch: Epoch) -> Result<()> {
        self.session.learning_rate.observe(&epoch, &self.plan.optimization)?;
        self.history.steps = self.session.step;
        self.fit.report(&Event::EpochEnd(&epoch));
        for callback in &mut self.fit.callbacks {
            self.progress.stopped |= callback.epoch_end(&epoch)? == TrainingControl::Stop;
        }
        let best = self.progress.best.as_mut().map(|best| best.improves(&epoch, 0.0)).transpose()?.unwrap_or(false);
        if self.history.epochs.len() == MAX_EPOCHS {
            self.history.epochs.remove(0);
        }
        self.history.epochs.push(epoch);
        let ends = self.progress.stopped || self.epochs_left == 0;
        if self.writer.as_ref().is_some_and(|writer| best || ends || !writer.busy()) {
            self.write_checkpoint(best);
        }
        Ok(())
    }

    /// The steps of one epoch, or of the rest of it.
    fn steps(&mut self) -> Result<Tally> {
        let (batch, length) = (self.plan.batch as u64, self.epoch_rows);
        let start = Instant::now();
        let mut reported = start;
        self.session.begin()?;
        self.session.clock.paused();
        self.session.take_up_counts(&std::mem::take(&mut self.progress.counts));
        let mut tally = self.progress.tally;
        let before = tally.rows;
        while let Some(block) = self.feed.next()? {
            let mut at = 0;
            while at < block.rows {
                let session = &mut *self.session;
                let (role, piece) =
                    place_in_batch(self.plan.micro_batch, Rows::Fed(&block), at, block.first_row, block.rows, batch, length);
                let began = session.clock.begin();
                session.run(role, &piece, &self.schema, &mut tally)?;
                session.clock.ran(role, began, session.lags);
                let (place, rows) = (block.first_row + at as u64, piece.rows);
                let ends = matches!(role, Role::Step | Role::Last);
                // A partial batch is the last one, and the end of an epoch has a checkpoint of its own. Where the order is not
                // deterministic, a position in an epoch does not say which rows are left.
                let goes_on = self.in_order && piece.batch_rows == batch && length.is_none_or(|length| place + (rows as u64) < length);
                session.step += u64::from(ends);
                at += rows;
                if let Some(writer) = self.writer.as_mut().filter(|writer| ends && goes_on && writer.due(session.step)) {
                    // Results that the device has not returned yet belong to the sums too.
                    session.settle(&self.schema, &mut tally)?;
                    (self.progress.rows, self.progress.tally) = (place + rows as u64, tally);
                    let record = self.progress.record(self.spec, self.fit, session, &self.history);
                    if let Err(error) = writer.write(&session.executor, record, false) {
                        self.fit.report(&Event::Warning(&format!("{error}; training continues without this checkpoint")));
                    }
                }
            }
            if self.fit.observer.is_some() && reported.elapsed() >= PROGRESS {
                reported = Instant::now();
                let seconds = start.elapsed().as_secs_f64();
                self.fit.report(&Event::Progress {
                    epoch: self.session.epochs + 1,
                    step: tally.rows / batch,
                    steps: self.epoch_steps,
                    scores: self.session.running_scores(&tally),
                    learning_rate: self.session.rate,
                    examples_per_s: (tally.rows - before) as f64 / seconds,
                    resident: system::resident(),
                });
            }
        }
        self.session.settle(&self.schema, &mut tally)?;
        if tally.rows == 0 {
            let (rows, epoch) = (self.spec.data.describe(), self.session.epochs + 1);
            return Err(Error::Config(format!("there is nothing to train on: {rows} has no rows in epoch {epoch}")));
        }
        Ok(tally)
    }

    fn write_checkpoint(&mut self, best: bool) {
        let Some(writer) = &mut self.writer else { return };
        let record = self.progress.record(self.spec, self.fit, self.session, &self.history);
        if let Err(error) = writer.write(&self.session.executor, record, best) {
            self.fit.report(&Event::Warning(&format!("{error}; training continues without this checkpoint")));
        }
    }

    /// Warns once if the run is longer than its schedule.
    fn warn_past_schedule(&mut self) {
        let schedule = &self.plan.optimization.schedule;
        if let Some(length) = schedule.length().filter(|length| self.session.step > *length && !self.past_schedule) {
            self.past_schedule = true;
            let (name, epoch) = (schedule.name(), self.session.epochs + 1);
            let what = format!("the {name} schedule ended after {length} steps, in epoch {epoch}; the learning rate stays where it ended");
            self.fit.report(&Event::Warning(&what));
        }
    }

    /// Waits for the last checkpoint, restores the best weights if that was asked for, and measures the run.
    fn finish(mut self) -> Result<History> {
        if let Some(Err(error)) = self.writer.as_mut().map(Writer::finish) {
            self.fit.report(&Event::Warning(&format!("{error}; the last checkpoint is missing")));
        }
        if let (true, Some(checkpoints)) = (self.fit.spec.restore_best, &self.fit.spec.checkpoints)
            && !checkpoint::load_best(checkpoints, &mut self.session.executor)?
        {
            self.fit.report(&Event::Warning("there is no best checkpoint to restore; name a score, such as `best = \"val_loss\"`"));
        }
        let (seconds, rows) = self.trained;
        self.history.seconds = self.start.elapsed().as_secs_f64();
        self.history.examples_per_s = rows as f64 / seconds.as_secs_f64().max(1e-9);
        self.history.measured = system::peak_resident();
        self.history.measured_step_s = self.session.clock.measured();
        self.history.in_use_on_device = self.session.executor.device().memory_info().map(|memory| memory.in_use);
        Ok(self.history)
    }
}

/// Loads the weights a run starts from, unless it was resumed. Gives a warning about those that stay random.
fn load_initial_weights(fit: &Fit<'_>, session: &mut Session, progress: &Progress) -> Result<Option<String>> {
    let Some(initial) = fit.spec.initial_weights.as_ref().filter(|_| progress.resumed.is_none()) else { return Ok(None) };
    if !initial.partial {
        return tensors::load_weights(&mut session.executor, &initial.path).map(|()| None);
    }
    let random = tensors::load_matching_weights(&mut session.executor, &initial.path)?;
    let Some(name) = random.first() else { return Ok(None) };
    let more = if random.len() == 1 { String::new() } else { format!(" and {} more", random.len() - 1) };
    Ok(Some(format!("{} has no `{name}`{more} of the model's shape: random as without it", initial.path.display())))
}
