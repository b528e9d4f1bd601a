//! Custom training loops: the planned run, one step at a time.

use super::Trainer;
use super::predict::{Predicted, Results};
use crate::error::{Error, Result};
use crate::metrics::Scores;
use crate::plan::{RunPlan, epoch_rows};
use crate::session::{HostRows, Session, feed, place_in_batch};
use plimsoll_core::budget::Owner;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Reservation};
use plimsoll_data::{Column, Feed, Options, Schema};
use std::path::Path;

/// A planned run for a custom training loop: [`Trainer::custom_loop`].
///
/// Steps are those of [`Trainer::fit`]: batches are split into the planned micro-batches, and the result is that of the
/// whole batch. Rows come as slices ([`HostBatch`]) or from the training data ([`CustomLoop::batches`]). Both budgets
/// hold: slices are copied one micro-batch at a time into reserved memory. Other memory of the program is its own.
///
/// ```
/// use plimsoll::HostBatch;
/// use plimsoll::prelude::*;
///
/// // Only the columns and the size of a batch matter if rows are handed over as slices.
/// let rows = Dataset::random(RandomSpec::new(1).floats("x", [2]).floats("y", [1]))?.repeat(8).batch(8);
/// let trainer = Trainer::new(Sequential::new().add(Dense::new(1)), &rows).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1));
/// let mut run = trainer.custom_loop()?;
/// println!("{}", run.plan());
///
/// let x: Vec<f32> = (0..16).map(|i| i as f32 / 16.0).collect();
/// let y: Vec<f32> = x.chunks(2).map(|row| row[0] - row[1]).collect();
/// let batch = HostBatch::new(8).column("x", &x[..]).column("y", &y[..]);
/// let first = run.step(&batch)?.loss;
/// run.set_learning_rate(0.05)?;
/// (0..50).try_for_each(|_| run.step(&batch).map(drop))?;
/// assert!(run.evaluate(&batch)?.loss < 0.5 * first);
/// assert_eq!(run.forward(&batch)?[0].values.len(), 8);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct CustomLoop {
    trainer: Trainer,
    plan: RunPlan,
    schema: Schema,
    /// The buffers in which micro-batches of slices are assembled.
    given: Option<Given>,
    results: Option<Results>,
}

/// The batches of the training data, prefetched within the budget.
pub struct Batches {
    feed: Feed,
}

/// Rows in host memory, a slice per column.
///
/// ```
/// use plimsoll::HostBatch;
/// let (x, y) = ([0.5f32, 1.5, 2.5, 3.5], [0i32, 1]);
/// let batch = HostBatch::new(2).column("x", &x[..]).column("y", &y[..]);
/// ```
#[derive(Clone, Debug)]
pub struct HostBatch<'a> {
    rows: usize,
    columns: Vec<(&'a str, Numbers<'a>)>,
}

/// Numbers of a column, row after row.
#[derive(Clone, Copy, Debug)]
pub enum Numbers<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Integers, such as classes.
    I32(&'a [i32]),
    /// Bytes, such as pixels.
    U8(&'a [u8]),
}

impl<'a> HostBatch<'a> {
    /// This many rows, no columns yet.
    pub fn new(rows: usize) -> HostBatch<'a> {
        HostBatch { rows, columns: Vec::new() }
    }

    /// With this column: the numbers of all rows, one after the other.
    pub fn column(mut self, name: &'a str, numbers: impl Into<Numbers<'a>>) -> HostBatch<'a> {
        self.columns.push((name, numbers.into()));
        self
    }
}

impl<'a> From<&'a [f32]> for Numbers<'a> {
    fn from(numbers: &'a [f32]) -> Numbers<'a> {
        Numbers::F32(numbers)
    }
}

impl<'a> From<&'a [i32]> for Numbers<'a> {
    fn from(numbers: &'a [i32]) -> Numbers<'a> {
        Numbers::I32(numbers)
    }
}

impl<'a> From<&'a [u8]> for Numbers<'a> {
    fn from(numbers: &'a [u8]) -> Numbers<'a> {
        Numbers::U8(numbers)
    }
}

impl Numbers<'_> {
    fn count(&self) -> usize {
        match self {
            Numbers::F32(numbers) => numbers.len(),
            Numbers::I32(numbers) => numbers.len(),
            Numbers::U8(numbers) => numbers.len(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Numbers::F32(_) => DType::F32,
            Numbers::I32(_) => DType::I32,
            Numbers::U8(_) => DType::U8,
        }
    }

    /// Writes the numbers from `first` on that fill `out`.
    fn copy(&self, first: usize, out: &mut [u8]) {
        match self {
            Numbers::F32(numbers) => {
                let numbers = &numbers[first..];
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, number)| *out = number.to_ne_bytes());
            }
            Numbers::I32(numbers) => {
                let numbers = &numbers[first..];
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, number)| *out = number.to_ne_bytes());
            }
            Numbers::U8(numbers) => out.copy_from_slice(&numbers[first..][..out.len()]),
        }
    }
}

/// Buffers for one micro-batch, column by column.
struct Given {
    columns: Vec<Vec<u8>>,
    _reservation: Reservation,
}

impl Given {
    fn new(session: &Session, schema: &Schema) -> Result<Given> {
        let used = session.columns_of(Role::Step);
        let size = |i: usize| if used.contains(&i) { session.plan.micro_batch * schema.columns()[i].row_bytes().get() } else { 0 };
        let sizes: Vec<usize> = (0..schema.columns().len()).map(size).collect();
        let reservation = session.ledger.reserve(Owner::Rows, Bytes(sizes.iter().sum::<usize>() as u64))?;
        Ok(Given { columns: sizes.into_iter().map(|size| vec![0; size]).collect(), _reservation: reservation })
    }
}

impl Trainer {
    /// Plans the run and allocates its memory.
    pub fn custom_loop(mut self) -> Result<CustomLoop> {
        if self.spec.inference_only {
            return Err(Error::Config("this trainer is for predictions only; it cannot train".to_string()));
        }
        if self.spec.ranks > 1 {
            let what = "loops of your own run on one process; train with `fit` on several ranks";
            return Err(Error::Config(what.to_string()));
        }
        if self.spec.parallel.reproducible {
            let what = "loops of your own have batches of any size, which `parallel.reproducible` cannot divide; leave it out";
            return Err(Error::Config(what.to_string()));
        }
        let plan = self.opened()?.plan.clone();
        let schema = self.spec.data.output_schema()?;
        Ok(CustomLoop { trainer: self, plan, schema, given: None, results: None })
    }
}

impl CustomLoop {
    /// The plan of the run.
    pub fn plan(&self) -> &RunPlan {
        &self.plan
    }

    /// Trains on one batch: its loss and metrics, before the update.
    pub fn step(&mut self, batch: &HostBatch<'_>) -> Result<Scores> {
        self.check_schedule()?;
        let scores = self.run(Role::Step, batch, |_, _| Ok(()))?;
        self.session().step += 1;
        Ok(scores)
    }

    /// Loss and metrics of a batch, without training.
    pub fn evaluate(&mut self, batch: &HostBatch<'_>) -> Result<Scores> {
        self.run(Role::Evaluate, batch, |_, _| Ok(()))
    }

    /// The outputs of the model for a batch; label columns may be missing.
    pub fn forward(&mut self, batch: &HostBatch<'_>) -> Result<&[Predicted]> {
        self.trainer.session_mut().check_predicts()?;
        let mut results = match self.results.take() {
            Some(results) => results,
            None => Results::new(self.trainer.session_mut(), self.plan.batch)?,
        };
        results.clear();
        let done = self.run(Role::Predict, batch, |session, rows| results.take(session, rows));
        let results = self.results.insert(results);
        done.map(|_| results.outputs())
    }

    /// The training data's batches over some epochs, for [`CustomLoop::step_from`].
    pub fn batches(&mut self, epochs: u64) -> Result<Batches> {
        let data = self.trainer.spec.data.clone().rebatch(self.plan.feed_rows);
        let pipeline = self.plan.pipeline.clone();
        let session = self.session();
        let options = Options { first_epoch: session.epochs, epochs: Some(epochs), ..Options::default() };
        Ok(Batches { feed: feed::start(&data, &pipeline, &session.ledger, options, session.executor.device())? })
    }

    /// Trains on the next batch of the training data; `None` at the end of an epoch.
    pub fn step_from(&mut self, batches: &mut Batches) -> Result<Option<Scores>> {
        self.check_schedule()?;
        let (batch, length) = (self.plan.batch as u64, epoch_rows(&self.trainer.spec.data));
        let Some(session) = &mut self.trainer.session else { unreachable!("opened before") };
        let mut tally = session.begin()?;
        loop {
            let Some(block) = batches.feed.next()? else {
                session.epochs += 1;
                return Ok(None);
            };
            let mut at = 0;
            while at < block.rows {
                let (role, piece) =
                    place_in_batch(session.plan.micro_batch, HostRows::Fed(&block), at, block.first_row, block.rows, batch, length);
                let data = &self.trainer.spec.data;
                session.run(role, &piece, &self.schema, &mut tally).map_err(|error| error.located(data))?;
                at += piece.rows;
                if matches!(role, Role::Step | Role::Last) {
                    session.step += 1;
                    session.settle(&self.schema, &mut tally)?;
                    // No rows are left over: a block is a micro-batch, or a whole batch.
                    return Ok(Some(session.scores(&tally)));
                }
            }
        }
    }

    /// The learning rate of the next step.
    pub fn learning_rate(&mut self) -> Result<f64> {
        let session = self.session();
        Ok(session.learning_rate.at(session.applied()? + 1, &session.plan.optimization))
    }

    /// Sets the learning rate from now on, instead of the schedule.
    pub fn set_learning_rate(&mut self, rate: f64) -> Result<()> {
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(Error::Config(format!("the learning rate is {rate}, but should be a number of 0 or more")));
        }
        self.session().learning_rate.manual = Some(rate);
        Ok(())
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.trainer.session.as_ref().map_or(0, |session| session.step)
    }

    /// Writes the weights as safetensors, atomically.
    pub fn save_weights(&mut self, path: &Path) -> Result<()> {
        self.trainer.save_weights(path)
    }

    /// Reads weights that were saved from the same model.
    pub fn load_weights(&mut self, path: &Path) -> Result<()> {
        self.trainer.load_weights(path)
    }

    /// Converts back into a trainer.
    pub fn into_trainer(self) -> Trainer {
        self.trainer
    }

    pub(crate) fn session(&mut self) -> &mut Session {
        self.trainer.session_mut()
    }

    fn check_schedule(&mut self) -> Result<()> {
        let session = self.session();
        if session.learning_rate.manual.is_some() { Ok(()) } else { session.plan.optimization.schedule.check(session.step + 1) }
    }

    /// Runs a batch, one micro-batch at a time.
    fn run(&mut self, wanted: Role, batch: &HostBatch<'_>, mut after: impl FnMut(&mut Session, usize) -> Result<()>) -> Result<Scores> {
        let Some(session) = &mut self.trainer.session else { unreachable!("opened before") };
        check(session, &self.schema, &self.plan, wanted, batch)?;
        let given = match &mut self.given {
            Some(given) => given,
            none => none.insert(Given::new(session, &self.schema)?),
        };
        let mut tally = session.begin()?;
        let mut at = 0;
        while at < batch.rows {
            let rows = session.plan.micro_batch.min(batch.rows - at);
            for (name, numbers) in &batch.columns {
                let column = self.schema.index_of(name).expect("checked above");
                let elements = self.schema.columns()[column].elements();
                let bytes = rows * self.schema.columns()[column].row_bytes().get();
                // Columns that no step reads have no buffer.
                if let Some(out) = given.columns[column].get_mut(..bytes) {
                    numbers.copy(at * elements, out);
                }
            }
            let whole = batch.rows as u64;
            let (role, piece) = place_in_batch(
                session.plan.micro_batch,
                HostRows::Given(&given.columns, at as u64),
                0,
                at as u64,
                rows,
                whole,
                Some(whole),
            );
            let role = if wanted == Role::Step { role } else { wanted };
            session.run(role, &piece, &self.schema, &mut tally)?;
            after(session, rows)?;
            at += rows;
        }
        session.settle(&self.schema, &mut tally)?;
        Ok(session.scores(&tally))
    }
}

/// That the batch matches the plan.
fn check(session: &Session, schema: &Schema, plan: &RunPlan, role: Role, batch: &HostBatch<'_>) -> Result<()> {
    let error = |what: String| Err(Error::Config(what));
    if batch.rows == 0 {
        return error("a batch of no rows cannot be computed; give at least one".to_string());
    }
    if batch.rows > plan.batch {
        let (rows, planned) = (batch.rows, plan.batch);
        return error(format!(
            "a batch of {rows} rows is more than the {planned} that are planned for; give fewer, or plan for more with `.batch({rows})`"
        ));
    }
    for (i, (name, numbers)) in batch.columns.iter().enumerate() {
        let Some(index) = schema.index_of(name) else {
            return error(format!("there is no column `{name}`; the run was planned for {schema}"));
        };
        let column: &Column = &schema.columns()[index];
        if batch.columns[..i].iter().any(|(before, _)| before == name) {
            return error(format!("the column `{name}` is given twice"));
        }
        if numbers.dtype() != column.dtype {
            return error(format!("the column {column} was given as {}; it has to be {}", numbers.dtype(), column.dtype));
        }
        let wanted = batch.rows * column.elements();
        if numbers.count() != wanted {
            let (rows, count) = (batch.rows, numbers.count());
            return error(format!("{rows} rows of the column {column} are {wanted} numbers, but {count} were given"));
        }
    }
    for index in session.columns_of(role) {
        let column = &schema.columns()[*index];
        if !batch.columns.iter().any(|(name, _)| *name == column.name) {
            return error(format!("the column {column} is missing from the batch"));
        }
    }
    Ok(())
}
