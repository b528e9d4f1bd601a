//! One fit: open, epochs, finish.

use super::position::{Begun, EpochPosition};
use super::progress::{Progress, TrainedEpoch};
use super::tensorboard::TensorBoard;
use super::{Event, FirstBatch, Fit, Validation};
use crate::callbacks::TrainingControl;
use crate::checkpoint::{self, Record, Unwritten, Writer};
use crate::eager::LeakWatch;
use crate::error::{Error, Result};
use crate::history::{Epoch, History, MAX_EPOCHS};
use crate::metrics::Scores;
use crate::pipeline::Explain;
use crate::plan::{DeviceBudget, RunPlan, epoch_rows};
use crate::ranks::{Ranks, Shard, agree};
use crate::session::{HostRows, RankPieces, Session, Tally, feed, place_in_batch, place_in_rank};
use crate::spec::RunSpec;
use crate::{import, system};
use plimsoll_core::budget::give_back_program_pages;
use plimsoll_core::graph::StateKind;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Reservation};
use plimsoll_data::{Dataset, Feed, NextBatch, Options, RankRows, Schema};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// The shortest time between two progress events.
const PROGRESS: Duration = Duration::from_millis(100);

/// Trains in an open session, as planned.
pub(crate) fn train(spec: &RunSpec, plan: &RunPlan, session: &mut Session, fit: &mut Fit<'_>) -> Result<History> {
    let ranks = session.ranks.clone();
    let begun = agree(ranks.as_ref(), Begun::read(spec, plan, session, fit))?;
    if let Some(ranks) = &ranks {
        ranks.check_equal(&begun.progress.outline(spec, session))?;
    }
    let mut training = agree(ranks.as_ref(), Training::open(spec, plan, session, fit, begun))?;
    while training.epochs_left > 0 && !training.progress.stopped && training.interrupted.is_none() {
        training.epoch()?;
    }
    training.finish()
}

/// A fit under way.
pub(super) struct Training<'r, 'f> {
    spec: &'r RunSpec,
    plan: &'r RunPlan,
    pub(super) session: &'r mut Session,
    pub(super) fit: &'r mut Fit<'f>,
    /// The rows that are fed: of several ranks, those of this one.
    data: Dataset,
    pub(super) schema: Schema,
    feed: Feed,
    /// The ranks that train together, and which rows of a batch are this one's; none on one process.
    pub(super) ranks: Option<(Ranks, RankRows)>,
    validation: Option<Validation>,
    pub(super) writer: Option<Writer>,
    tensorboard: Option<TensorBoard>,
    pub(super) progress: Progress,
    /// Scores of the epoch so far, for progress events; their names are allocated once.
    running: Scores,
    history: History,
    epochs_left: u64,
    /// Rows of an epoch where they decide which rows share a batch, and its steps where they are known.
    epoch_rows: Option<u64>,
    epoch_steps: Option<u64>,
    /// Whether a position in an epoch says which rows are left.
    pub(super) in_order: bool,
    past_schedule: bool,
    /// What eager tensors grew between epochs, because a callback keeps them.
    leaks: LeakWatch,
    /// Whether a micro-batch has run.
    started: bool,
    start: Instant,
    /// Time and rows of training alone, without validation.
    trained: (Duration, u64),
    /// How much of that time the input pipeline was waited for.
    waited: Duration,
    /// Whether the run was stopped from outside, and then whether a checkpoint has all of its steps.
    interrupted: Option<bool>,
    /// The algorithms of the checkpoint that the run is resumed from, until it is known whether they are available.
    recorded_algorithms: Option<BTreeMap<String, String>>,
    /// Of checkpoints, of the file of the model and of the history.
    _memory: [Reservation; 3],
}

impl<'r, 'f> Training<'r, 'f> {
    /// Loads initial weights, and starts the pipelines.
    fn open(
        spec: &'r RunSpec,
        plan: &'r RunPlan,
        session: &'r mut Session,
        fit: &'r mut Fit<'f>,
        begun: Begun,
    ) -> Result<Training<'r, 'f>> {
        let Begun { data, mut progress, memory } = begun;
        let ranks = session.ranks.clone().map(|ranks| {
            let own = plan.rows_of_rank(ranks.rank());
            (ranks, own)
        });
        // Rank 0 writes for all.
        let writes = ranks.as_ref().is_none_or(|(ranks, _)| ranks.is_first());
        let divided = ranks.as_ref().map(|(ranks, _)| ranks.clone()).filter(|_| spec.sharding().is_some());
        let checkpoints = fit.spec.checkpoints.clone().filter(|_| writes || divided.is_some());
        let writer = checkpoints.map(|settings| Writer::new(settings, session.step, divided)).transpose()?;
        let random = load_initial_weights(fit, session, &progress)?;
        let last = if fit.spec.resume { fit.spec.epochs } else { session.epochs + fit.spec.epochs };
        fit.report(&Event::Planned { plan, epochs: last });
        progress.report(fit, session);
        for warning in random.iter().chain(&progress.warnings) {
            fit.report(&Event::Warning(warning));
        }
        let epochs_left = if progress.stopped { 0 } else { last.saturating_sub(session.epochs) };
        // Where only validation is left of an epoch, the steps continue with the next.
        let trained = u64::from(progress.validation_pending.is_some() && epochs_left > 0);
        let fed_rows = if ranks.is_some() { plan.batch } else { plan.feed_rows };
        let first_batch = if trained == 0 { progress.rows / fed_rows as u64 } else { 0 };
        let (first_epoch, epochs) = (session.epochs + trained, Some(epochs_left - trained));
        let options = Options { first_epoch, first_batch, epochs, ..Options::default() };
        // Rank 0 has the most rows: the others stay within what was planned for it.
        let pipeline = if writes { plan.pipeline.clone() } else { data.plan(Some(plan.pipeline.total()))? };
        let feed = feed::start(&data, &pipeline, &session.ledger, options, session.executor.device())?;
        let validation = match (&fit.spec.validation, &plan.validation, &ranks) {
            (Some(data), Some(pipeline), Some((ranks, _))) => Some(Validation::of_rank(spec, data, pipeline, session, epochs_left, ranks)?),
            (Some(data), Some(pipeline), None) => Some(Validation::start(Role::Evaluate, data, pipeline, session, epochs_left)?),
            _ => None,
        };
        // Where the number of steps is not known, the learning rate stays where the schedule ends.
        if let Some(rows) = data.size_if_readable() {
            let steps = session.step.max(last.saturating_mul(rows.div_ceil(plan.batch as u64)));
            plan.optimization.schedule.check(steps)?;
        }
        let folder = fit.spec.tensorboard.as_deref().filter(|_| writes);
        let tensorboard = folder.map(|folder| TensorBoard::open(folder, spec, plan, session.step)).transpose()?;
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
            pipeline: None,
            waiting_s: 0.0,
            computing_s: 0.0,
            start: session.start.clone(),
            sparsity: Vec::new(),
            stopped: false,
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
            ranks,
            validation,
            writer,
            tensorboard,
            progress,
            running: plan.interface.model_metrics.no_scores(),
            history,
            epochs_left,
            epoch_rows: epoch_rows(&spec.data),
            epoch_steps: spec.data.size().map(|rows| rows.div_ceil(plan.batch as u64)),
            in_order: spec.data.is_deterministic(),
            past_schedule: false,
            leaks: LeakWatch::default(),
            started: false,
            start: Instant::now(),
            trained: (Duration::ZERO, 0),
            waited: Duration::ZERO,
            interrupted: None,
            recorded_algorithms: spec.numerics.as_ref().and_then(|numerics| numerics.algorithms.clone()),
            _memory: memory,
        })
    }

    /// One epoch: its steps, a checkpoint, validation, callbacks. The checkpoint comes before validation, so that a row
    /// that validation fails at costs no training.
    fn epoch(&mut self) -> Result<()> {
        let start = Instant::now();
        let before = self.progress.tally.rows;
        let (tally, trained) = match self.progress.validation_pending.take() {
            Some(trained) => {
                self.session.begin()?;
                self.session.take_up_counts(&std::mem::take(&mut self.progress.counts));
                (self.progress.tally, trained)
            }
            None => {
                let Some(tally) = self.steps().map_err(|error| error.located(&self.data))? else { return Ok(()) };
                self.warn_past_schedule();
                self.warn_rejected_algorithms();
                (tally, TrainedEpoch { learning_rate: self.session.rate, left_out: self.warn_left_out() })
            }
        };
        let training = self.session.scores(&tally);
        let (seconds, rows) = (start.elapsed(), tally.rows - before);
        self.trained = (self.trained.0 + seconds, self.trained.1 + rows);
        (self.progress.rows, self.progress.tally) = (tally.rows, tally);
        let Some(validation) = self.validate(trained)? else { return Ok(()) };
        self.session.epochs += 1;
        self.epochs_left -= 1;
        (self.progress.rows, self.progress.tally) = (0, Tally::default());
        self.end_epoch(Epoch {
            epoch: self.session.epochs,
            training,
            validation,
            learning_rate: trained.learning_rate,
            seconds: start.elapsed().as_secs_f64(),
            examples_per_s: rows as f64 / seconds.as_secs_f64().max(1e-9),
            left_out: trained.left_out,
        })
    }

    /// Warns once if the libraries of this machine lack algorithms that the checkpoint recorded.
    fn warn_rejected_algorithms(&mut self) {
        let Some(recorded) = self.recorded_algorithms.take() else { return };
        let device = self.session.executor.device();
        if let Some(warning) = device.diagnostics().and_then(|device| device.rejected_algorithms(&recorded)) {
            self.fit.report(&Event::Warning(&warning));
        }
    }

    /// The scores over the validation data, if there is any; nothing at all if the run was stopped.
    fn validate(&mut self, trained: TrainedEpoch) -> Result<Option<Option<Scores>>> {
        let Some(mut validation) = self.validation.take() else { return Ok(Some(None)) };
        // Counts of this epoch are in the record, and go with the next.
        self.progress.validation_pending = Some(trained);
        let record = self.writer.is_some().then(|| self.progress.record(self.spec, self.fit, self.session, &self.history));
        let free = self.writer.as_ref().map_or(Ok(false), Writer::is_free)?;
        let held = match record {
            Some(record) if free => {
                self.write(record, false);
                None
            }
            held => held,
        };
        match validation.evaluate(self.session, &self.fit.stop) {
            Ok(Some(scores)) => {
                self.progress.validation_pending = None;
                if let (rows, Some(first)) = validation.left_out(self.session.epochs) {
                    self.warn_rows(rows, &format!("validation after epoch {}", self.session.epochs + 1), &first);
                }
                self.validation = Some(validation);
                Ok(Some(Some(scores)))
            }
            Ok(None) => {
                validation.abandon();
                let complete = held.is_none_or(|record| self.write(record, false));
                self.interrupted = Some(complete && self.writer.is_some());
                Ok(None)
            }
            Err(error) => {
                // Other ranks do not know of it.
                if let Some(record) = held.filter(|_| self.writer.as_ref().is_some_and(|writer| !writer.is_divided())) {
                    self.write(record, false);
                }
                Err(error)
            }
        }
    }

    /// Reports the rows that were left out of an epoch; gives their number.
    fn warn_left_out(&mut self) -> u64 {
        let (left_out, names) = self.data.ignored_in(self.session.epochs);
        if let Some(first) = names.first() {
            self.warn_rows(left_out, &format!("epoch {}", self.session.epochs + 1), first);
        }
        left_out
    }

    fn warn_rows(&mut self, left_out: u64, of: &str, first: &str) {
        let rows = if left_out == 1 { "row was" } else { "rows were" };
        self.fit.report(&Event::Warning(&format!("{left_out} {rows} left out of {of}; the first: {first}")));
    }

    /// Reports an epoch, asks the callbacks, and writes its checkpoint.
    fn end_epoch(&mut self, epoch: Epoch) -> Result<()> {
        self.session.learning_rate.observe(&epoch, &self.plan.optimization)?;
        self.history.steps = self.session.step;
        self.fit.report(&Event::EpochEnd(&epoch));
        self.tensorboard.as_mut().map_or(Ok(()), |events| events.epoch(&epoch, self.session))?;
        for callback in &mut self.fit.callbacks {
            self.progress.stopped |= callback.epoch_end(&epoch)? == TrainingControl::Stop;
        }
        if let Some((ranks, _)) = &self.ranks {
            self.progress.stopped = ranks.most([u64::from(self.progress.stopped)])? == [1];
        }
        self.warn_leaks();
        let best = self.progress.best.as_mut().map(|best| best.improves(&epoch, 0.0)).transpose()?.unwrap_or(false);
        self.history.push(epoch);
        let ends = self.progress.stopped || self.epochs_left == 0;
        let free = self.writer.as_ref().map_or(Ok(false), Writer::is_free)?;
        if self.writer.is_some() && (best || ends || free) {
            self.save(best);
        }
        Ok(())
    }

    /// The steps of one epoch, or of the rest of it; none if the run was stopped before its end.
    fn steps(&mut self) -> Result<Option<Tally>> {
        self.session.begin()?;
        self.session.clock.paused();
        let (mut tally, mut counts) = (self.progress.tally, std::mem::take(&mut self.progress.counts));
        if self.ranks.as_ref().is_some_and(|(ranks, _)| !ranks.is_first()) {
            // A checkpoint has the sums of all ranks, which rank 0 continues from; in order, all of them have the sums
            // of all.
            if self.session.ordered.is_none() {
                tally = Tally::default();
            }
            counts = Vec::new();
        }
        self.session.take_up_counts(&counts);
        let mut place = EpochPosition { rows: self.progress.rows, tally, at_step: tally, within_step: false, ended: false, fresh: false };
        match self.run_steps(&mut place) {
            Ok(true) => {}
            Ok(false) => {
                self.interrupted = Some(self.save_at(&mut place)?);
                return Ok(None);
            }
            Err(error) => {
                // The steps before a bad row are not lost. After any other error, the state cannot be trusted.
                // Of several ranks, the others do not know of it.
                let rows = matches!(error, Error::Data(_) | Error::Label { .. } | Error::Token { .. });
                if rows && place.rows > 0 && self.ranks.is_none() {
                    let _ = self.save_at(&mut place);
                }
                return Err(error);
            }
        }
        self.session.settle(&self.schema, &mut place.tally)?;
        self.sum_over_ranks(&mut place.tally)?;
        if place.tally.rows == 0 {
            let (rows, epoch) = (self.spec.data.describe(), self.session.epochs + 1);
            return Err(Error::Config(format!("there is nothing to train on: {rows} has no rows in epoch {epoch}")));
        }
        Ok(Some(place.tally))
    }

    /// Runs steps to the end of the epoch; false if the run was stopped before.
    fn run_steps(&mut self, place: &mut EpochPosition) -> Result<bool> {
        let (batch, length) = (self.plan.batch as u64, self.epoch_rows);
        let start = Instant::now();
        let mut reported = start;
        let before = place.done(self.ranks.is_some());
        loop {
            if self.ranks.is_some() {
                if !place.ended && self.stops_on_any_rank(place)? {
                    return Ok(false);
                }
            } else if self.fit.stop.is_stopped() && !place.within_step && !place.ended {
                // A step that has begun is finished, if its rows come.
                return Ok(false);
            }
            let asked = Instant::now();
            // Ranks stop between steps only, all of them.
            let block = match place.ended || self.ranks.is_some() {
                true => self.feed.next()?.map_or(NextBatch::EpochEnd, NextBatch::Batch),
                false => self.feed.next_or_stop(self.fit.stop.flag())?,
            };
            self.waited += asked.elapsed();
            let block = match block {
                NextBatch::Batch(block) => block,
                NextBatch::EpochEnd => return Ok(true),
                NextBatch::Stopped => return Ok(false),
            };
            if self.session.step == 0 && place.tally.rows == 0 {
                let first = FirstBatch { batch: &block, data: &self.data, schema: &self.schema };
                self.fit.report(&Event::FirstBatch(first));
                self.tensorboard.as_mut().map_or(Ok(()), |events| events.first_batch(&first))?;
            }
            if !self.started {
                // The code that opened the run, restored it and started its pipelines.
                give_back_program_pages();
            }
            let mut at = 0;
            // A rank has all of its rows of a batch, and perhaps one micro-batch less than others.
            while at < block.rows || (self.ranks.is_some() && place.within_step) {
                let session = &mut *self.session;
                let micro_batch = self.plan.micro_batch;
                let (role, piece) = match &self.ranks {
                    None => place_in_batch(micro_batch, HostRows::Fed(&block), at, block.first_row, block.rows, batch, length),
                    Some((_, own)) => {
                        let together = self.plan.shard == Shard::Gradients;
                        let pieces = RankPieces { micro_batch, own, length: length.unwrap_or(u64::MAX), together };
                        place_in_rank(pieces, HostRows::Fed(&block), at, block.rows)
                    }
                };
                let began = session.clock.begin();
                session.run(role, &piece, &self.schema, &mut place.tally)?;
                session.clock.ran(role, began, session.lags, piece.batch_rows == batch);
                let rows = match &self.ranks {
                    None => block.first_row + (at + piece.rows) as u64,
                    Some((_, own)) => block.first_row / own.rows() * batch + piece.batch_rows,
                };
                let ends = matches!(role, Role::Step | Role::Last);
                session.step += u64::from(ends);
                at += piece.rows;
                if !std::mem::replace(&mut self.started, true) {
                    // Waited for, so that an error of the first program appears before the next is loaded.
                    if session.lags {
                        session.settle(&self.schema, &mut place.tally)?;
                    }
                    session.start.end(began, session.executor.device());
                    self.history.start = session.start.clone();
                }
                place.within_step = !ends;
                if !ends {
                    continue;
                }
                // A partial batch is the last one, and the end of an epoch has a checkpoint of its own.
                place.ended = piece.batch_rows != batch || length.is_some_and(|length| rows >= length);
                (place.rows, place.at_step, place.fresh) = (rows, place.tally, true);
                // Where the order is not deterministic, a position in an epoch does not say which rows are left.
                let due = self.ranks.is_none()
                    && self.in_order
                    && !place.ended
                    && self.writer.as_ref().is_some_and(|writer| writer.due(self.session.step));
                if due {
                    // Results that the device has not returned yet belong to the sums too.
                    self.session.settle(&self.schema, &mut place.tally)?;
                    (self.progress.rows, self.progress.tally, place.at_step) = (rows, place.tally, place.tally);
                    let record = self.progress.record(self.spec, self.fit, self.session, &self.history);
                    write_checkpoint(&mut self.writer, self.session, self.fit, record, false);
                }
            }
            if self.fit.observer.is_some() && reported.elapsed() >= PROGRESS {
                reported = Instant::now();
                let seconds = start.elapsed().as_secs_f64();
                self.session.update_running(&mut self.running, &place.tally);
                self.fit.report(&Event::Progress {
                    epoch: self.session.epochs + 1,
                    step: place.done(self.ranks.is_some()) / batch,
                    steps: self.epoch_steps,
                    scores: &self.running,
                    learning_rate: self.session.rate,
                    examples_per_s: (place.done(self.ranks.is_some()) - before) as f64 / seconds,
                    resident: system::resident(),
                });
            }
        }
    }

    /// Writes a checkpoint of a place within an epoch, if it can be resumed from; gives whether it has all steps.
    fn save_at(&mut self, place: &mut EpochPosition) -> Result<bool> {
        if place.within_step {
            // The step is repeated. That is exact unless its first micro-batches left something behind.
            let statistics = self.plan.memory.states.iter().any(|state| state.kind == StateKind::Statistic);
            if statistics || self.session.lags || !self.session.counts().is_empty() {
                return Ok(false);
            }
        } else {
            self.session.settle(&self.schema, &mut place.tally)?;
            self.sum_over_ranks(&mut place.tally)?;
            place.at_step = place.tally;
        }
        if place.ended || !(self.in_order || place.rows == 0) {
            return Ok(false);
        }
        (self.progress.rows, self.progress.tally) = (place.rows, place.at_step);
        Ok(self.save(false))
    }

    /// Writes a checkpoint of the run as it is now; whether that began well.
    pub(super) fn save(&mut self, best: bool) -> bool {
        if self.writer.is_none() {
            return false;
        }
        let record = self.progress.record(self.spec, self.fit, self.session, &self.history);
        self.write(record, best)
    }

    fn write(&mut self, record: Record, best: bool) -> bool {
        write_checkpoint(&mut self.writer, self.session, self.fit, record, best)
    }

    /// Warns once of every line whose eager tensors grew since the epoch before.
    fn warn_leaks(&mut self) {
        for growth in self.leaks.grown() {
            let epoch = self.session.epochs;
            let what = format!(
                "eager tensors grew in epoch {epoch}: {growth}; a callback that keeps tensors leaks them: drop them, or keep their \
                 numbers (`to_vec`)"
            );
            self.fit.report(&Event::Warning(&what));
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
        let written = self.writer.as_mut().map_or(Ok(()), Writer::finish);
        if let Err(error) = &written {
            self.fit.report(&Event::Warning(&format!("{error}; the last checkpoint is missing")));
        }
        // The others read what rank 0 has written.
        self.ranks.as_ref().map_or(Ok(()), |(ranks, _)| ranks.wait())?;
        if let Some(complete) = self.interrupted {
            let checkpoint = self.writer.as_ref().and_then(Writer::newest);
            let (epoch, step) = (self.session.epochs, self.session.step);
            let complete = complete && written.is_ok();
            self.fit.report(&Event::Stopped { epoch, step, checkpoint: checkpoint.as_deref(), complete });
        } else if let (true, Some(checkpoints)) = (self.fit.spec.restore_best, &self.fit.spec.checkpoints)
            && let ranks = self.ranks.as_ref().map(|(ranks, _)| ranks)
            && !agree(ranks, checkpoint::load_best(checkpoints, &mut self.session.executor, ranks))?
        {
            self.fit.report(&Event::Warning("there is no best checkpoint to restore; name a score, such as `best = \"val_loss\"`"));
        }
        let (seconds, rows) = self.trained;
        self.history.steps = self.session.step;
        self.history.stopped = self.interrupted.is_some();
        self.history.seconds = self.start.elapsed().as_secs_f64();
        self.history.examples_per_s = rows as f64 / seconds.as_secs_f64().max(1e-9);
        self.history.pipeline = Some(Explain::new(&self.plan.pipeline_stages, self.plan.pipeline.slots(), &self.feed.activity()));
        self.history.waiting_s = self.waited.as_secs_f64();
        self.history.computing_s = seconds.saturating_sub(self.waited).as_secs_f64();
        self.history.sparsity = self.session.sparsity()?;
        self.history.measured = system::peak_resident();
        if let Some((ranks, _)) = &self.ranks {
            // Of the rank with the largest.
            self.history.measured = Bytes(ranks.most([self.history.measured.0])?[0]);
        }
        self.history.measured_step_s = self.session.clock.measured();
        self.history.in_use_on_device = self.session.executor.device().memory_info().map(|memory| memory.in_use);
        if self.interrupted.is_some() {
            // A thread of a pipeline may be blocked in a read that does not return.
            self.feed.abandon();
            self.validation.into_iter().for_each(Validation::abandon);
        }
        Ok(self.history)
    }
}

/// Writes a checkpoint once the previous one is on disk; whether that began well. A checkpoint that fails does not end
/// the run.
fn write_checkpoint(writer: &mut Option<Writer>, session: &mut Session, fit: &mut Fit<'_>, record: Record, best: bool) -> bool {
    let Some(writer) = writer else { return false };
    let mut warn = |error: Error| fit.report(&Event::Warning(&format!("{error}; training continues without this checkpoint")));
    if let Err(error) = writer.finish() {
        warn(error);
    }
    let unwritten = match writer.unwritten(&record, best) {
        Ok(Unwritten::Nothing) => return true,
        Ok(unwritten) => unwritten,
        Err(error) => {
            warn(error);
            return false;
        }
    };
    // What follows is not the time of a step.
    session.clock.paused();
    // The code that writes one is not resident beside the code of all steps before.
    give_back_program_pages();
    writer.write(&session.executor, record, unwritten, best).map_err(warn).is_ok()
}

/// Loads the weights a run starts from, unless it was resumed. Gives a warning about those that stay random.
fn load_initial_weights(fit: &Fit<'_>, session: &mut Session, progress: &Progress) -> Result<Option<String>> {
    let Some(initial) = fit.spec.initial_weights.as_ref().filter(|_| progress.resumed.is_none()) else { return Ok(None) };
    if initial.with_optimizer {
        return import::load_weights_and_optimizer(&mut session.executor, &initial.path).map(|()| None);
    }
    if !initial.partial {
        return import::load_weights(&mut session.executor, &initial.path).map(|()| None);
    }
    let random = import::load_matching_weights(&mut session.executor, &initial.path)?;
    let Some(name) = random.first() else { return Ok(None) };
    let more = if random.len() == 1 { String::new() } else { format!(" and {} more", random.len() - 1) };
    Ok(Some(format!("{} has no `{name}`{more} of the model's shape: random as without it", initial.path.display())))
}
