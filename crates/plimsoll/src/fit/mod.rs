//! Training: epochs of steps, validation after each, and what is reported meanwhile.

mod event;
mod track;
mod validation;

use crate::callbacks::{Callback, Each, Flow};
use crate::checkpoint::{self, Checkpoints, Writer};
use crate::error::{Error, Result};
use crate::graphs::Learning;
use crate::history::{Epoch, History};
use crate::metrics::Scores;
use crate::plan::{DeviceLine, RunPlan, epoch_rows};
use crate::session::{Rows, Session, Tally, feed, place_in_batch};
use crate::trainer::Trainer;
use crate::{offload_file, system, tensors};
use plimsoll_core::Bytes;
use plimsoll_core::step::Role;
use plimsoll_data::{Dataset, Feed, Options, Schema};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use track::Track;

pub use event::Event;
pub(crate) use validation::HeldOut;

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
    pub(crate) callbacks: Vec<Box<dyn Callback + 'a>>,
    pub(crate) checkpoints: Option<Checkpoints>,
    pub(crate) resume: bool,
    first: Option<FirstWeights>,
    restore_best: bool,
    pub(crate) config: String,
}

/// Weights to begin with: a safetensors file, such as one an earlier run left.
///
/// ```
/// use plimsoll::{FirstWeights, Fit};
/// // All but a head with another number of classes.
/// let fit = Fit::epochs(3).first_weights(FirstWeights::new("runs/large/weights.safetensors").partial(true));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstWeights {
    path: PathBuf,
    partial: bool,
}

impl FirstWeights {
    /// From this file, which must have all weights of the model, by name and shape.
    pub fn new(path: impl Into<PathBuf>) -> FirstWeights {
        FirstWeights { path: path.into(), partial: false }
    }

    /// Takes the weights the file has with the same name and shape, and tells of the others, which begin as they would without it.
    pub fn partial(self, partial: bool) -> FirstWeights {
        FirstWeights { partial, ..self }
    }
}

/// Who is told what happens.
type Observer<'a> = Box<dyn FnMut(&Event<'_>) + 'a>;

impl<'a> Fit<'a> {
    /// This many passes over the data.
    pub fn epochs(epochs: u64) -> Fit<'a> {
        Fit {
            epochs,
            validation: None,
            observer: None,
            callbacks: vec![],
            checkpoints: None,
            resume: false,
            first: None,
            restore_best: false,
            config: String::new(),
        }
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

    /// Lets something follow the run, such as [`EarlyStopping`](crate::EarlyStopping).
    pub fn callback(mut self, callback: impl Callback + 'a) -> Fit<'a> {
        self.callbacks.push(Box::new(callback));
        self
    }

    /// Asks after every epoch whether to go on.
    pub fn on_epoch(self, decide: impl FnMut(&Epoch) -> Flow + 'a) -> Fit<'a> {
        self.callback(Each(decide))
    }

    /// Writes checkpoints.
    pub fn checkpoints(mut self, checkpoints: Checkpoints) -> Fit<'a> {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Goes on from the newest checkpoint, if there is one, bit for bit as if the run had never stopped. The epochs are then those of the
    /// whole run, those before the checkpoint included.
    pub fn resume(mut self, resume: bool) -> Fit<'a> {
        self.resume = resume;
        self
    }

    /// Begins with these weights instead of random ones. A run that goes on from a checkpoint has its own.
    pub fn first_weights(mut self, first: FirstWeights) -> Fit<'a> {
        self.first = Some(first);
        self
    }

    /// Ends with the weights of the best epoch instead of the last; needs checkpoints with a [best score](Checkpoints::best).
    pub fn restore_best(mut self, restore: bool) -> Fit<'a> {
        self.restore_best = restore;
        self
    }

    /// A text that checkpoints carry along.
    pub(crate) fn config(mut self, config: &str) -> Fit<'a> {
        self.config = config.to_string();
        self
    }

    pub(crate) fn tell(&mut self, event: &Event<'_>) {
        if let Some(observer) = &mut self.observer {
            observer(event);
        }
    }
}

impl Trainer {
    /// Plans the run, then trains. Called again, it goes on from where it stopped.
    pub fn fit(&mut self, mut fit: Fit<'_>) -> Result<History> {
        if self.only_predicts {
            return Err(Error::Config("this trainer was made for predictions only; it cannot learn".to_string()));
        }
        let validation = fit.validation.take();
        self.checkpointed = fit.checkpoints.is_some();
        let plan = self.plan_to_run(validation.as_ref())?;
        self.open(&plan)?;
        let data = self.data.clone().rebatch(plan.feed_rows);
        let Some(session) = &mut self.session else { unreachable!("opened above") };
        let mut writer = fit.checkpoints.clone().map(Writer::new).transpose()?;
        let mut track = Track::begin(&mut fit, session, &data, &plan)?;
        let first = fit.first.take().filter(|_| track.resumed.is_none());
        let random = match &first {
            None => vec![],
            Some(first) if first.partial => tensors::load_matching_weights(&mut session.executor, &first.path)?,
            Some(first) => tensors::load_weights(&mut session.executor, &first.path).map(|()| vec![])?,
        };
        let last = if fit.resume { fit.epochs } else { session.epochs + fit.epochs };
        fit.tell(&Event::Planned { plan: &plan, epochs: last });
        track.tell(&mut fit, session);
        if let (Some(first), Some(name)) = (&first, random.first()) {
            let (path, more) =
                (first.path.display(), if random.len() == 1 { String::new() } else { format!(" and {} more", random.len() - 1) });
            fit.tell(&Event::Warning(&format!("{path} has no `{name}`{more} of the model's shape: random as without it")));
        }

        let left = if track.stopped { 0 } else { last.saturating_sub(session.epochs) };
        let done = track.rows / plan.feed_rows as u64;
        let options = Options { first_epoch: session.epochs, first_batch: done, epochs: Some(left), ..Options::default() };
        let mut feed = feed::start(&data, &plan.pipeline, &session.ledger, options, session.executor.device())?;
        let mut held_out = match (&validation, &plan.validation) {
            (Some(data), Some(pipeline)) => Some(HeldOut::start(Role::Evaluate, data, pipeline, session, left)?),
            _ => None,
        };
        let schema = data.output_schema()?;
        let mut history = History {
            epochs: Vec::with_capacity(left.min(KEPT as u64) as usize),
            steps: session.step,
            examples_per_s: 0.0,
            seconds: 0.0,
            planned: plan.total(),
            line: plan.line,
            planned_on_device: plan.device_memory.as_ref().map(DeviceLine::total),
            in_use_on_device: None,
            measured: Bytes::ZERO,
            predicted_step_s: plan.predicted_s,
            measured_step_s: None,
        };
        // Where nobody knows how many steps there will be, the schedule stays at its end once that is reached.
        if let Some(rows) = data.size_if_readable() {
            session.learning.schedule.check(session.step.max(last.saturating_mul(rows.div_ceil(plan.batch as u64))))?;
        }
        let mut past_schedule = false;
        history.epochs.append(&mut track.epochs);
        let (start, mut learning, mut learnt_rows) = (Instant::now(), Duration::ZERO, 0);
        for _ in 0..left {
            let epoch_start = Instant::now();
            let before = track.tally.rows;
            let tally = train_epoch(session, &mut feed, &schema, &plan, &self.data, &mut fit, &mut track, &mut writer, &history)
                .map_err(|error| error.located(&data))?;
            if let Some(length) = session.learning.schedule.length().filter(|length| session.step > *length && !past_schedule) {
                past_schedule = true;
                let (name, epoch) = (session.learning.schedule.name(), session.epochs + 1);
                let what =
                    format!("the {name} schedule ended after {length} steps, in epoch {epoch}; the learning rate stays where it ended");
                fit.tell(&Event::Warning(&what));
            }
            let training = session.scores(&tally);
            let learnt = epoch_start.elapsed();
            learning += learnt;
            learnt_rows += tally.rows - before;
            let validation = held_out.as_mut().map(|held_out| held_out.evaluate(session)).transpose()?;
            let (left_out, names) = data.ignored_in(session.epochs);
            session.epochs += 1;
            if let Some(first) = names.first() {
                let rows = if left_out == 1 { "row was" } else { "rows were" };
                fit.tell(&Event::Warning(&format!("{left_out} {rows} left out of epoch {}; the first: {first}", session.epochs)));
            }
            track.rows = 0;
            track.tally = Tally::default();
            let epoch = Epoch {
                epoch: session.epochs,
                training,
                validation,
                learning_rate: session.rate,
                seconds: epoch_start.elapsed().as_secs_f64(),
                examples_per_s: (tally.rows - before) as f64 / learnt.as_secs_f64().max(1e-9),
                left_out,
            };
            session.learning.observe(&epoch)?;
            history.steps = session.step;
            fit.tell(&Event::EpochEnd(&epoch));
            for callback in &mut fit.callbacks {
                track.stopped |= callback.epoch_end(&epoch)? == Flow::Stop;
            }
            let best = track.best.as_mut().map(|best| best.improves(&epoch, 0.0)).transpose()?.unwrap_or(false);
            if history.epochs.len() == KEPT {
                history.epochs.remove(0);
            }
            history.epochs.push(epoch);
            let ends = track.stopped || session.epochs == last;
            if let Some(writer) = writer.as_mut().filter(|writer| best || ends || !writer.busy()) {
                let record = track.record(&fit, session, &history);
                if let Err(error) = writer.write(&session.executor, record, best) {
                    fit.tell(&Event::Warning(&format!("{error}; training goes on without this checkpoint")));
                }
            }
            if track.stopped {
                break;
            }
        }
        if let Some(Err(error)) = writer.as_mut().map(Writer::finish) {
            fit.tell(&Event::Warning(&format!("{error}; the last checkpoint is missing")));
        }
        if let (true, Some(checkpoints)) = (fit.restore_best, &fit.checkpoints)
            && !checkpoint::load_best(checkpoints, &mut session.executor)?
        {
            fit.tell(&Event::Warning("there is no best checkpoint to restore; name a score, such as `best = \"val_loss\"`"));
        }
        history.seconds = start.elapsed().as_secs_f64();
        history.examples_per_s = learnt_rows as f64 / learning.as_secs_f64().max(1e-9);
        history.measured = system::peak_resident();
        history.measured_step_s = session.clock.measured();
        history.in_use_on_device = self.device.as_ref().and_then(|opened| opened.device.memory_info()).map(|memory| memory.in_use);
        Ok(history)
    }

    /// Loss and metrics over some rows, without learning.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Scores> {
        if self.only_predicts {
            return Err(Error::Config("this trainer was made for predictions only; it cannot measure".to_string()));
        }
        self.open_planned()?;
        let Some(session) = &mut self.session else { unreachable!("opened above") };
        let pipeline = data.clone().rebatch(session.feed_rows).plan(session.ledger.available())?;
        let mut held_out = HeldOut::start(Role::Evaluate, data, &pipeline, session, 1)?;
        held_out.evaluate(session)
    }

    /// Takes the plan's memory and sets the first weights, unless that is done already.
    pub(crate) fn open(&mut self, plan: &RunPlan) -> Result<()> {
        if self.session.is_none() {
            let (Some(variants), Some(opened)) = (&mut self.variants, &self.device) else { unreachable!("planned before") };
            variants.settle_on(plan.variant);
            let learning = Learning { state: self.learning.state, ..variants.learning(plan.variant) };
            let programs = variants.programs(plan.variant)?;
            let device = Arc::clone(&opened.device);
            let folder = self.offload_folder.clone().unwrap_or_else(offload_file::default_folder);
            let schema = self.data.output_schema()?;
            self.session = Some(Session::new(device, plan, programs, learning, self.seed, schema, &folder)?);
            // From now on the pieces are of the size the memory was laid out for.
            self.micro_batch = Some(plan.micro_batch);
            self.settled = Some(plan.variant);
        }
        Ok(())
    }

    pub(crate) fn open_planned(&mut self) -> Result<()> {
        if self.session.is_none() {
            let plan = self.plan_to_run(None)?;
            self.open(&plan)?;
        }
        Ok(())
    }
}

/// One pass over the training data, or what is left of it.
#[allow(clippy::too_many_arguments, reason = "the parts of one run, borrowed separately")]
fn train_epoch(
    session: &mut Session,
    feed: &mut Feed,
    schema: &Schema,
    plan: &RunPlan,
    data: &Dataset,
    fit: &mut Fit<'_>,
    track: &mut Track,
    writer: &mut Option<Writer>,
    history: &History,
) -> Result<Tally> {
    let (batch, length) = (plan.batch as u64, epoch_rows(data));
    let (steps, in_order) = (data.size().map(|rows| rows.div_ceil(batch)), data.is_deterministic());
    let start = Instant::now();
    let mut told = start;
    session.begin()?;
    session.clock.paused();
    session.take_up_counts(&std::mem::take(&mut track.counts));
    let mut tally = track.tally;
    let before = tally.rows;
    while let Some(block) = feed.next()? {
        let mut at = 0;
        while at < block.rows {
            let (role, piece) = place_in_batch(session.micro_batch, Rows::Fed(&block), at, block.first_row, block.rows, batch, length);
            let began = session.clock.begin();
            session.run(role, &piece, schema, &mut tally)?;
            session.clock.ran(role, began, session.lags);
            let (place, rows) = (block.first_row + at as u64, piece.rows);
            let ends = matches!(role, Role::Step | Role::Last);
            // A batch that is not whole is the last, and the end of the epoch is written down by itself. Where batches overtake each other,
            // a place in an epoch does not say which are left.
            let goes_on = in_order && piece.batch_rows == batch && length.is_none_or(|length| place + (rows as u64) < length);
            session.step += u64::from(ends);
            at += rows;
            if let Some(writer) = writer.as_mut().filter(|writer| ends && goes_on && writer.due(session.step)) {
                // What the device has not told yet belongs to the sums too.
                session.settle(schema, &mut tally)?;
                (track.rows, track.tally) = (place + rows as u64, tally);
                let record = track.record(fit, session, history);
                if let Err(error) = writer.write(&session.executor, record, false) {
                    fit.tell(&Event::Warning(&format!("{error}; training goes on without this checkpoint")));
                }
            }
        }
        if fit.observer.is_some() && told.elapsed() >= PROGRESS {
            told = Instant::now();
            let seconds = start.elapsed().as_secs_f64();
            fit.tell(&Event::Progress {
                epoch: session.epochs + 1,
                step: tally.rows / batch,
                steps,
                scores: session.running_scores(&tally),
                learning_rate: session.rate,
                examples_per_s: (tally.rows - before) as f64 / seconds,
                resident: system::resident(),
            });
        }
    }
    session.settle(schema, &mut tally)?;
    if tally.rows == 0 {
        let (rows, epoch) = (data.describe(), session.epochs + 1);
        return Err(Error::Config(format!("there is nothing to learn from: {rows} has no rows in epoch {epoch}")));
    }
    Ok(tally)
}
