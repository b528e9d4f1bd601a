//! Training: epochs of steps, validation after each, and what is reported meanwhile.

use super::session::{Piece, Session, Tally};
use super::{RunPlan, Trainer};
use crate::error::{Error, Result};
use crate::system;
use plimsoll_core::Bytes;
use plimsoll_core::step::Role;
use plimsoll_data::{Dataset, Feed, Options, PipelinePlan, Schema};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Epochs a history keeps: what a run holds must not grow with its length. The log of a run folder has them all.
const KEPT: usize = 1000;

/// How often progress is reported at most.
const PROGRESS: Duration = Duration::from_millis(100);

/// What to train for.
///
/// ```
/// use plimsoll::Fit;
/// let fit = Fit::epochs(10).on_event(|event| drop(event));
/// ```
pub struct Fit<'a> {
    epochs: u64,
    validation: Option<Dataset>,
    observer: Option<Observer<'a>>,
}

/// Who is told what happens.
type Observer<'a> = Box<dyn FnMut(&Event<'_>) + 'a>;

impl<'a> Fit<'a> {
    /// This many passes over the data.
    pub fn epochs(epochs: u64) -> Fit<'a> {
        Fit { epochs, validation: None, observer: None }
    }

    /// Measures loss and metrics on these rows after every epoch.
    pub fn validate(mut self, data: &Dataset) -> Fit<'a> {
        self.validation = Some(data.clone());
        self
    }

    /// Tells what happens as it happens.
    pub fn on_event(mut self, observer: impl FnMut(&Event<'_>) + 'a) -> Fit<'a> {
        self.observer = Some(Box::new(observer));
        self
    }

    fn tell(&mut self, event: &Event<'_>) {
        if let Some(observer) = &mut self.observer {
            observer(event);
        }
    }
}

/// What happens during a run.
#[derive(Debug)]
pub enum Event<'a> {
    /// The run is planned and about to begin.
    Planned {
        /// Its plan.
        plan: &'a RunPlan,
        /// The number of the last epoch it will do.
        epochs: u64,
    },
    /// Some steps of an epoch are done; at most ten times a second.
    Progress {
        /// The epoch, counted from 1.
        epoch: u64,
        /// Steps of it that are done.
        step: u64,
        /// Steps it has.
        steps: u64,
        /// Loss and metrics over those steps.
        scores: Scores,
        /// Rows per second since the epoch began.
        examples_per_s: f64,
        /// Resident memory of the process now.
        resident: Bytes,
    },
    /// An epoch is done.
    EpochEnd(&'a Epoch),
}

/// Loss and metrics over some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// The mean loss per row.
    pub loss: f64,
    /// The share of right answers, if it is counted.
    pub accuracy: Option<f64>,
}

/// One epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// Its number, counted from 1.
    pub epoch: u64,
    /// Over the rows that were learnt from, while they were.
    pub training: Scores,
    /// Over the held-out rows after the epoch.
    pub validation: Option<Scores>,
    /// Seconds it took, validation included.
    pub seconds: f64,
    /// Rows learnt from per second, validation left out.
    pub examples_per_s: f64,
}

/// A run's record.
#[derive(Clone, Debug, PartialEq)]
pub struct History {
    /// Its epochs; of a very long run, the last thousand.
    pub epochs: Vec<Epoch>,
    /// Optimiser steps done.
    pub steps: u64,
    /// Rows learnt from per second over the whole run, validation left out.
    pub examples_per_s: f64,
    /// Seconds the run took.
    pub seconds: f64,
    /// What the plan stated for the host.
    pub planned: Bytes,
    /// The line.
    pub line: Bytes,
    /// What the plan stated for the device, if it has a memory of its own.
    pub planned_on_device: Option<Bytes>,
    /// What was in use on the device at the end of the run, by everybody.
    pub in_use_on_device: Option<Bytes>,
    /// The most resident memory the process had, as the system counts it.
    pub measured: Bytes,
}

impl History {
    /// The last epoch.
    pub fn last(&self) -> Option<&Epoch> {
        self.epochs.last()
    }
}

impl Tally {
    pub(super) fn scores(&self, accuracy: bool) -> Scores {
        let rows = self.rows.max(1) as f64;
        Scores { loss: self.loss / rows, accuracy: accuracy.then_some(self.right / rows) }
    }
}

impl Trainer {
    /// Plans the run, then trains. Called again, it goes on from where it stopped.
    pub fn fit(&mut self, mut fit: Fit<'_>) -> Result<History> {
        let validation = fit.validation.take();
        let plan = self.plan_to_run(validation.as_ref())?;
        self.open(&plan)?;
        let done = self.session.as_ref().map_or(0, |session| session.epochs);
        fit.tell(&Event::Planned { plan: &plan, epochs: done + fit.epochs });
        let counts_accuracy = self.counts_accuracy();
        let Some(session) = &mut self.session else { unreachable!("opened above") };

        let data = self.data.clone().rebatch(plan.feed_rows);
        let options = Options { first_epoch: session.epochs, epochs: Some(fit.epochs), ..Options::default() };
        let mut feed = Feed::start(&data, &plan.pipeline, &session.ledger, options)?;
        let mut held_out = match (&validation, &plan.validation) {
            (Some(data), Some(pipeline)) => Some(HeldOut::start(Role::Evaluate, data, pipeline, session, fit.epochs)?),
            _ => None,
        };
        let schema = data.output_schema()?;
        let mut history = History {
            epochs: Vec::with_capacity(fit.epochs.min(KEPT as u64) as usize),
            steps: 0,
            examples_per_s: 0.0,
            seconds: 0.0,
            planned: plan.total(),
            line: plan.line,
            planned_on_device: plan.device_memory.as_ref().map(super::DeviceLine::total),
            in_use_on_device: None,
            measured: Bytes::ZERO,
        };
        let (start, mut learning) = (Instant::now(), Duration::ZERO);
        for _ in 0..fit.epochs {
            let epoch_start = Instant::now();
            let tally = train_epoch(session, &mut feed, &schema, &plan, data.len(), counts_accuracy, &mut fit)?;
            let learnt = epoch_start.elapsed();
            learning += learnt;
            let validation = held_out.as_mut().map(|held_out| held_out.evaluate(session)).transpose()?;
            session.epochs += 1;
            let epoch = Epoch {
                epoch: session.epochs,
                training: tally.scores(counts_accuracy),
                validation: validation.map(|tally| tally.scores(counts_accuracy)),
                seconds: epoch_start.elapsed().as_secs_f64(),
                examples_per_s: tally.rows as f64 / learnt.as_secs_f64().max(1e-9),
            };
            history.steps = session.step;
            fit.tell(&Event::EpochEnd(&epoch));
            if history.epochs.len() == KEPT {
                history.epochs.remove(0);
            }
            history.epochs.push(epoch);
        }
        history.seconds = start.elapsed().as_secs_f64();
        history.examples_per_s = data.len().saturating_mul(fit.epochs) as f64 / learning.as_secs_f64().max(1e-9);
        history.measured = system::peak_resident();
        history.in_use_on_device = self.device.as_ref().and_then(|opened| opened.device.in_use());
        Ok(history)
    }

    /// Loss and metrics over some rows, without learning.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Scores> {
        self.open_planned()?;
        let counts_accuracy = self.counts_accuracy();
        let Some(session) = &mut self.session else { unreachable!("opened above") };
        let pipeline = data.clone().rebatch(session.feed_rows).plan(session.ledger.available())?;
        let mut held_out = HeldOut::start(Role::Evaluate, data, &pipeline, session, 1)?;
        Ok(held_out.evaluate(session)?.scores(counts_accuracy))
    }

    /// Takes the plan's memory and sets the first weights, unless that is done already.
    fn open(&mut self, plan: &RunPlan) -> Result<()> {
        if self.session.is_none() {
            let (Some(programs), Some(opened)) = (&self.programs, &self.device) else { unreachable!("planned before") };
            let device = Arc::clone(&opened.device);
            self.session = Some(Session::new(device, plan, programs, Arc::clone(&self.optimizer), self.seed, self.data.output_schema()?)?);
            // From now on the pieces are of the size the memory was laid out for.
            self.micro_batch = Some(plan.micro_batch);
        }
        Ok(())
    }

    pub(super) fn open_planned(&mut self) -> Result<()> {
        if self.session.is_none() {
            let plan = self.plan_to_run(None)?;
            self.open(&plan)?;
        }
        Ok(())
    }

    fn counts_accuracy(&self) -> bool {
        let metrics = self.metrics.clone().unwrap_or_else(|| self.loss.default_metrics());
        metrics.contains(&crate::loss::Metric::Accuracy)
    }
}

/// One pass over the training data.
fn train_epoch(
    session: &mut Session,
    feed: &mut Feed,
    schema: &Schema,
    plan: &RunPlan,
    length: u64,
    accuracy: bool,
    fit: &mut Fit<'_>,
) -> Result<Tally> {
    let batch = plan.batch as u64;
    let steps = length.div_ceil(batch);
    let start = Instant::now();
    let mut told = start;
    let mut tally = session.begin();
    while let Some(block) = feed.next()? {
        let mut at = 0;
        while at < block.rows {
            let place = block.first_row + at as u64;
            let first_row = place % batch;
            let batch_rows = batch.min(length - (place - first_row));
            let rows = session.micro_batch.min((batch_rows - first_row) as usize).min(block.rows - at);
            let (begins, ends) = (first_row == 0, first_row + rows as u64 == batch_rows);
            let role = match (begins, ends) {
                (true, true) => Role::Step,
                (true, false) => Role::First,
                (false, false) => Role::Middle,
                (false, true) => Role::Last,
            };
            session.run(role, &Piece { batch: &block, at, rows, first_row, batch_rows }, schema, &mut tally)?;
            session.step += u64::from(ends);
            at += rows;
        }
        if fit.observer.is_some() && told.elapsed() >= PROGRESS {
            told = Instant::now();
            let seconds = start.elapsed().as_secs_f64();
            fit.tell(&Event::Progress {
                epoch: session.epochs + 1,
                step: tally.rows / batch,
                steps,
                scores: tally.scores(accuracy),
                examples_per_s: tally.rows as f64 / seconds,
                resident: system::resident(),
            });
        }
    }
    session.settle(schema, &mut tally)?;
    Ok(tally)
}

/// Rows that are measured and not learnt from.
pub(super) struct HeldOut {
    feed: Feed,
    schema: Schema,
    length: u64,
}

impl HeldOut {
    pub(super) fn start(role: Role, data: &Dataset, pipeline: &PipelinePlan, session: &Session, epochs: u64) -> Result<HeldOut> {
        let data = data.clone().rebatch(session.feed_rows);
        if data.is_empty() {
            return Err(Error::Config(format!("there is nothing to measure: {} has no rows", data.describe())));
        }
        if data.size().is_none() {
            let what = format!("how many rows {} has is known only when they have come; add assert_cardinality", data.describe());
            return Err(Error::Config(what));
        }
        session.check_schema(role, &data.output_schema()?)?;
        let options = Options { epochs: Some(epochs), ..Options::default() };
        let feed = Feed::start(&data, pipeline, &session.ledger, options)?;
        Ok(HeldOut { feed, schema: data.output_schema()?, length: data.len() })
    }

    fn evaluate(&mut self, session: &mut Session) -> Result<Tally> {
        let mut tally = session.begin();
        self.each_piece(session, Role::Evaluate, &mut tally, |_, _| Ok(()))?;
        if !tally.loss.is_finite() {
            let what = "the loss over the held-out rows is not a finite number; look at those rows, or try a smaller learning rate";
            return Err(Error::Config(what.to_string()));
        }
        Ok(tally)
    }

    /// Runs a program over every row, a piece at a time.
    pub(super) fn each_piece(
        &mut self,
        session: &mut Session,
        role: Role,
        tally: &mut Tally,
        mut after: impl FnMut(&mut Session, usize) -> Result<()>,
    ) -> Result<()> {
        while let Some(block) = self.feed.next()? {
            let mut at = 0;
            while at < block.rows {
                let rows = session.micro_batch.min(block.rows - at);
                let first_row = block.first_row + at as u64;
                session.run(role, &Piece { batch: &block, at, rows, first_row, batch_rows: self.length }, &self.schema, tally)?;
                after(session, rows)?;
                at += rows;
            }
        }
        session.settle(&self.schema, tally)?;
        Ok(())
    }
}
