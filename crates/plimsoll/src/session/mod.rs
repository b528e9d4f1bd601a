//! A session: the executor of a plan with its ledger, and how one micro-batch runs.

mod clock;
pub(crate) mod feed;
mod initial_values;
mod learning_rate;
mod loading;
mod not_finite;
mod ordered_scores;
mod over_ranks;
mod prepared;
mod tally;

use crate::error::{BadRow, Error, Result};
use crate::graphs::ValueKind;
use crate::history::WeightSparsity;
use crate::metrics::Scores;
use crate::nn::TEACHER;
use crate::offload_file::{self, OffloadFile};
use crate::page_cache;
use crate::plan::RunPlan;
use crate::prune::MaskUpdates;
use crate::ranks::Ranks;
use crate::spec::RunSpec;
use crate::start_times::StartTimes;
use crate::tensors;
use clock::Clock;
use learning_rate::LearningRate;
use loading::Loading;
use not_finite::{first_non_finite, in_words, number};
use ordered_scores::OrderedScores;
pub(crate) use over_ranks::{RankPieces, place_in_rank};
use plimsoll_core::budget::{Owner, give_back_freed_memory, give_back_program_pages};
use plimsoll_core::device::{BackingStore, Device, DeviceError, NodeSpan, StepInputs};
use plimsoll_core::graph::StateId;
use plimsoll_core::loss_scale::SKIPPED;
use plimsoll_core::plan::NUMBERS;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Executor, Ledger, Reservation, Ticket};
use plimsoll_data::{Batch, Schema};
use prepared::{Prepared, ResultIndices, Scalar, prepare};
use std::sync::Arc;
pub(crate) use tally::Tally;

/// Predictions after which per-class counts are copied to the host: f32 counts exactly up to twice as many.
const COUNTABLE: u64 = 1 << 23;

pub(crate) struct Session {
    /// The first program, while it is loading. Before the executor, whose memory it uses.
    loading: Loading,
    pub executor: Executor,
    pub ledger: Ledger,
    /// The plan it runs.
    pub plan: RunPlan,
    /// Optimizer steps done.
    pub step: u64,
    /// Epochs done.
    pub epochs: u64,
    roles: Vec<Prepared>,
    /// Per class: correct predictions, predictions and labels; and the states in which the device counts them, with
    /// their numbers of classes.
    counts: Vec<f64>,
    count_states: Vec<(StateId, usize)>,
    /// Predictions counted on the device only.
    uncollected: u64,
    seed: u64,
    /// The training data's columns.
    schema: Schema,
    /// The learning rate as the run continues.
    pub learning_rate: LearningRate,
    /// The state that counts skipped steps, with loss scaling.
    skipped: Option<StateId>,
    /// The masks of pruned weights.
    pruning: MaskUpdates,
    /// The scalars of the current step.
    rates: Vec<f32>,
    /// The learning rate of the current step.
    pub rate: f64,
    /// On a device with its own memory, results are read while the next micro-batch runs.
    pub lags: bool,
    pending: Option<UnreadRun>,
    /// How long steps take.
    pub clock: Clock,
    /// Where the time until the first step went.
    pub start: StartTimes,
    /// The ranks that train together, if there are several.
    pub ranks: Option<Ranks>,
    /// The scores of a batch under way, if the run is reproducible.
    pub ordered: Option<OrderedScores>,
    /// Reservations of the process itself, so that the ledger covers all of it.
    _process: Vec<Reservation>,
}

/// A run whose results have not been read yet.
struct UnreadRun {
    ticket: Ticket,
    role: Role,
    rows: usize,
    batch_rows: u64,
    repeats: bool,
    /// The number of the micro-batch within its batch.
    number: u32,
    at: ResultIndices,
    /// The step and the epoch it belongs to, counted from 1.
    step: u64,
    epoch: u64,
}

/// Rows in host memory.
#[derive(Clone, Copy)]
pub(crate) enum HostRows<'a> {
    /// From a pipeline.
    Fed(&'a Batch<'a>),
    /// From the caller: the bytes of each column, and the position of the first row.
    Given(&'a [Vec<u8>], u64),
}

impl<'a> HostRows<'a> {
    pub fn column(&self, index: usize) -> &'a [u8] {
        match self {
            HostRows::Fed(batch) => batch.column(index),
            HostRows::Given(columns, _) => &columns[index],
        }
    }

    /// The position of the first row in the epoch, or in what the caller gave.
    fn first_row(&self) -> u64 {
        match self {
            HostRows::Fed(batch) => batch.first_row,
            HostRows::Given(_, first) => *first,
        }
    }
}

/// The rows of a batch that one program runs on.
pub(crate) struct Piece<'a> {
    pub batch: HostRows<'a>,
    /// The first row within the block.
    pub at: usize,
    pub rows: usize,
    /// The position of the first row within the batch.
    pub first_row: u64,
    /// Rows of the batch, of all ranks.
    pub batch_rows: u64,
    /// Whether its rows are those of another rank: they take part in nothing, but other ranks wait for this one's step.
    pub repeats: bool,
    /// The number of the micro-batch within the batch.
    pub number: u32,
}

impl Session {
    /// Allocates the memory of a plan and initializes the weights; `first` is the program that will run first, if that
    /// is known, with its rows.
    pub fn open(device: Arc<dyn Device>, plan: &RunPlan, spec: &RunSpec, schema: Schema, first: Option<(Role, usize)>) -> Result<Session> {
        page_cache::plan(plan.total());
        // Return the memory of planning to the system before the run allocates.
        give_back_freed_memory();
        give_back_program_pages();
        let ledger = Ledger::new("host", Some(plan.host_budget));
        // Pipelines and the executor make their own reservations.
        let own = |owner: &&(Owner, _)| {
            let process = matches!(owner.0, Owner::Process | Owner::ThreadStacks | Owner::PageTables | Owner::Graphs | Owner::MaskUpdates);
            process || matches!(owner.0, Owner::DeviceRuntime(_) | Owner::PinnedStaging | Owner::Offload | Owner::Communication)
        };
        let process =
            plan.owners.iter().filter(own).map(|(owner, size)| ledger.reserve(owner.clone(), *size)).collect::<Result<Vec<_>, _>>()?;
        let lags = !device.capabilities().shares_host_memory;
        let mut executor = match &plan.device_memory {
            None => {
                let file = match plan.memory.backing {
                    Bytes::ZERO => None,
                    size => {
                        let folder = spec.offload_folder.clone().unwrap_or_else(offload_file::default_folder);
                        Some(Arc::new(OffloadFile::create(&folder, size)?) as Arc<dyn BackingStore>)
                    }
                };
                Executor::with_backing(device, plan.memory.clone(), &ledger, file)?
            }
            Some(on_device) => {
                let others = device.footprint(&plan.memory).runtime.device + plan.assumptions.communication_on_device;
                let device_ledger = Ledger::new(device.name(), Some(on_device.budget - others));
                Executor::new(device, plan.memory.clone(), &device_ledger)?
            }
        };
        if !lags {
            executor.limit_loaded(plan.programs_per_role);
        }
        let loading = first.map_or_else(Loading::default, |(role, rows)| Loading::start(&executor, role, rows));
        // The code that loaded the programs.
        give_back_program_pages();
        match &plan.device_memory {
            None => executor.initialize(spec.seed)?,
            Some(_) => initial_values::initialize(&mut executor, spec.seed)?,
        }
        if let Some(distill) = &spec.distill {
            tensors::load_teacher(&mut executor, distill.weights(), TEACHER)?;
        }
        let roles = plan
            .memory
            .programs
            .iter()
            .map(|program| prepare(&executor, program.role, &program.graph, &plan.interface, &plan.optimization));
        let roles = roles.collect();
        let rates = vec![0.0; plan.optimization.scalar_names().len()];
        let state = |name: &str| plan.memory.states.iter().position(|state| state.name == name).map(|i| StateId(i as u32));
        let count_states: Vec<(StateId, usize)> =
            plan.interface.model_metrics.states().filter_map(|(name, classes)| Some((state(&name)?, classes))).collect();
        Ok(Session {
            loading,
            ledger,
            plan: plan.clone(),
            step: 0,
            epochs: 0,
            roles,
            counts: vec![0.0; count_states.iter().map(|(_, classes)| classes).sum()],
            count_states,
            uncollected: 0,
            seed: spec.seed,
            schema,
            learning_rate: LearningRate::default(),
            skipped: state(SKIPPED),
            pruning: MaskUpdates::new(&plan.interface.pruned, &executor),
            rates,
            executor,
            rate: 0.0,
            lags,
            pending: None,
            clock: Clock::new(),
            start: StartTimes::default(),
            ordered: plan.fixed_micro_batches().map(|fixed| OrderedScores::new(fixed, 1, 0)),
            ranks: None,
            _process: process,
        })
    }

    /// Checks that a program can read data of this schema: the columns it reads have the same positions and types as in
    /// training.
    pub fn check_schema(&self, role: Role, schema: &Schema) -> Result<()> {
        let prepared = self.roles.iter().find(|prepared| prepared.role == role).expect("every role is planned");
        for index in &prepared.columns {
            let wanted = &self.schema.columns()[*index];
            match schema.columns().get(*index) {
                Some(column) if column == wanted => {}
                Some(column) => {
                    return Err(Error::Config(format!(
                        "the model was trained on the column {wanted}, but this data has {column} in its place"
                    )));
                }
                None => {
                    return Err(Error::Config(format!("the model was trained on the column {wanted}, but this data has only {schema}")));
                }
            }
        }
        Ok(())
    }

    /// The columns that a program reads.
    pub fn columns_of(&self, role: Role) -> &[usize] {
        &self.roles.iter().find(|prepared| prepared.role == role).expect("every role is planned").columns
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// An empty tally. Unread results of a failed run are discarded.
    pub fn begin(&mut self) -> Result<Tally> {
        self.pending = None;
        self.ordered.iter_mut().for_each(OrderedScores::clear);
        self.collect_counts()?;
        self.counts.fill(0.0);
        Ok(Tally::default())
    }

    /// Per-class counts since [`Session::begin`], for runs whose results were read.
    pub fn counts(&self) -> &[f64] {
        &self.counts
    }

    /// Adds the counts of a restored epoch.
    pub fn take_up_counts(&mut self, counts: &[f64]) {
        self.counts.iter_mut().zip(counts).for_each(|(count, before)| *count += before);
    }

    /// Loss and metrics so far.
    pub fn update_running(&self, scores: &mut Scores, tally: &Tally) {
        self.plan.interface.model_metrics.update_running(scores, tally.mean_loss(), &tally.sums, tally.rows);
    }

    /// Loss and all metrics of the runs since [`Session::begin`] whose results were read.
    pub fn scores(&self, tally: &Tally) -> Scores {
        self.plan.interface.model_metrics.scores(tally.mean_loss(), &tally.sums, tally.rows, &self.counts)
    }

    /// Steps that changed the parameters.
    pub fn applied(&self) -> Result<u64> {
        let Some(state) = self.skipped else { return Ok(self.step) };
        let mut bytes = [0; 4];
        self.executor.read_state(state, &mut bytes)?;
        Ok(self.step.saturating_sub(f32::from_ne_bytes(bytes) as u64))
    }

    /// How many numbers of the pruned weights are zero.
    pub fn sparsity(&mut self) -> Result<Vec<WeightSparsity>> {
        Ok(self.pruning.sparsity(&self.executor)?)
    }

    /// Copies the device's per-class counts to the host and resets them. No run may be in flight.
    fn collect_counts(&mut self) -> Result<()> {
        self.uncollected = 0;
        let mut bytes = [0u8; 4096];
        let mut first = 0;
        for (state, classes) in &self.count_states {
            let counts = &mut self.counts[first..first + classes];
            first += classes;
            for (part, counts) in counts.chunks_mut(1024).enumerate() {
                let (from, bytes) = (Bytes(part as u64 * 4096), &mut bytes[..counts.len() * 4]);
                self.executor.read_state_part(*state, from, bytes)?;
                counts.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(count, b)| *count += f64::from(number(b)));
                bytes.fill(0);
                self.executor.write_state_part(*state, from, bytes)?;
            }
        }
        Ok(())
    }

    /// Sets the scalars of a micro-batch.
    fn set_scalars(&mut self, role: Role, piece: &Piece<'_>, schema: &Schema, tally: &mut Tally) -> Result<()> {
        if matches!(role, Role::Step | Role::First) {
            if self.skipped.is_some() {
                // Whether the previous step was skipped determines the number of this step.
                self.settle(schema, tally)?;
            }
            let step = self.applied()? + 1;
            self.pruning.update(&mut self.executor, step - 1)?;
            self.rate = self.learning_rate.at(step, &self.plan.optimization);
            self.plan.optimization.scalars(step, self.rate, &mut self.rates);
        }
        let prepared = self.roles.iter_mut().find(|prepared| prepared.role == role).expect("every role is planned");
        for (number, scalar) in prepared.numbers.iter_mut().zip(&prepared.scalars) {
            *number = match scalar {
                Scalar::RowShare if piece.repeats => 0.0,
                Scalar::RowShare => 1.0 / piece.batch_rows as f32,
                Scalar::MicroBatchReciprocal if self.plan.synchronized => 1.0 / piece.batch_rows as f32,
                Scalar::MicroBatchReciprocal => 1.0 / piece.rows as f32,
                Scalar::CountedRows => f32::from(!piece.repeats),
                // Where all gradients are sums of complete ones, once by the first micro-batch of the batch.
                Scalar::PenaltyShare if self.ordered.is_some() && !matches!(role, Role::Evaluate | Role::Predict) => {
                    f32::from(piece.number == 0 && !piece.repeats)
                }
                Scalar::PenaltyShare => match role {
                    Role::First | Role::Middle => 0.0,
                    // Once, by rank 0.
                    Role::Step | Role::Last => f32::from(self.ranks.as_ref().is_none_or(Ranks::is_first)),
                    Role::Evaluate | Role::Predict => piece.rows as f32 / piece.batch_rows as f32,
                },
                Scalar::FirstMicroBatch => f32::from(matches!(role, Role::Step | Role::First)),
                Scalar::LastMicroBatch => f32::from(matches!(role, Role::Step | Role::Last)),
                Scalar::HeldSums => self.ordered.as_ref().map_or(0.0, |ordered| ordered.place(piece.number).before as f32),
                Scalar::MergedSums => self.ordered.as_ref().map_or(0.0, |ordered| match role {
                    Role::Last => ordered.place(piece.number).before as f32,
                    _ => ordered.place(piece.number).merged as f32,
                }),
                Scalar::MicroBatches => self.ordered.as_ref().map_or(1.0, |ordered| ordered.fixed.of_batch(piece.batch_rows) as f32),
                Scalar::Rate(i) => self.rates[*i],
            };
        }
        Ok(())
    }

    /// Runs one micro-batch and returns when each node ran. On a device that measures nodes one by one, the session
    /// cannot go on after that.
    pub fn trace(&mut self, role: Role, piece: &Piece<'_>, schema: &Schema) -> Result<Vec<NodeSpan>> {
        self.loading.finish(&mut self.executor)?;
        self.set_scalars(role, piece, schema, &mut Tally::default())?;
        let prepared = self.roles.iter().find(|prepared| prepared.role == role).expect("every role is planned");
        let columns = prepared.columns_of(piece, schema);
        let random = StepRandom { seed: self.seed, step: self.step as u32, first_row: piece.first_row };
        let inputs = StepInputs { columns: &columns[..prepared.columns.len()], scalars: &prepared.numbers, random };
        Ok(self.executor.trace(role, piece.rows, &inputs)?)
    }

    /// Runs one micro-batch. Its loss and metrics are added to the tally, at the latest by [`Session::settle`].
    pub fn run(&mut self, role: Role, piece: &Piece<'_>, schema: &Schema, tally: &mut Tally) -> Result<()> {
        if !piece.repeats || self.counts.is_empty() {
            return self.run_counted(role, piece, schema, tally);
        }
        // Another rank counts its predictions.
        self.settle(schema, tally)?;
        let counts = self.counts.clone();
        self.run_counted(role, piece, schema, tally)?;
        self.settle(schema, tally)?;
        self.set_counts(&counts);
        Ok(())
    }

    fn run_counted(&mut self, role: Role, piece: &Piece<'_>, schema: &Schema, tally: &mut Tally) -> Result<()> {
        self.check_classes(role, piece)?;
        self.loading.finish(&mut self.executor)?;
        self.set_scalars(role, piece, schema, tally)?;
        let prepared = self.roles.iter().find(|prepared| prepared.role == role).expect("every role is planned");
        let columns = prepared.columns_of(piece, schema);
        let random = StepRandom { seed: self.seed, step: self.step as u32, first_row: piece.first_row };
        let inputs = StepInputs { columns: &columns[..prepared.columns.len()], scalars: &prepared.numbers, random };
        let at = prepared.at;
        let ticket = match self.executor.run(role, piece.rows, &inputs) {
            Err(DeviceError::NonFinite) => {
                let (tensor, row) = first_non_finite(&mut self.executor, role, piece.rows, Some(&inputs), schema, &prepared.columns);
                let place = |row: usize| piece.batch.first_row() + (piece.at + row) as u64;
                let row = row.map(|row| BadRow { place: place(row), epoch: self.epochs + 1, origin: None });
                let mut numbers = [f32::NAN; NUMBERS];
                // The run failed, but its results can be read.
                let _ = self.executor.last_numbers(role, piece.rows, &mut numbers);
                let loss = in_words(at.loss.map_or(f32::NAN, |i| numbers[i]));
                return Err(Error::NonFinite { loss, step: self.step + 1, epoch: self.epochs + 1, tensor, row });
            }
            result => result?,
        };
        let (step, epoch) = (self.step + 1, self.epochs + 1);
        let run = UnreadRun {
            ticket,
            role,
            rows: piece.rows,
            batch_rows: piece.batch_rows,
            repeats: piece.repeats,
            number: piece.number,
            at,
            step,
            epoch,
        };
        let known = if self.lags { self.pending.replace(run) } else { Some(run) };
        known.map_or(Ok(()), |run| self.look_at(&run, schema, tally))?;
        self.uncollected += piece.rows as u64 * self.plan.interface.model_metrics.predictions();
        if self.uncollected >= COUNTABLE && !self.count_states.is_empty() {
            self.settle(schema, tally)?;
        }
        Ok(())
    }

    /// Waits for the last run, if its results have not been read yet.
    pub fn settle(&mut self, schema: &Schema, tally: &mut Tally) -> Result<()> {
        self.pending.take().map_or(Ok(()), |run| self.look_at(&run, schema, tally))?;
        if self.uncollected > 0 { self.collect_counts() } else { Ok(()) }
    }

    fn look_at(&mut self, run: &UnreadRun, schema: &Schema, tally: &mut Tally) -> Result<()> {
        let mut numbers = [0.0; NUMBERS];
        match self.executor.outcome(run.ticket, &mut numbers) {
            Err(DeviceError::NonFinite) => {
                self.pending = None;
                let columns = self.roles.iter().find(|prepared| prepared.role == run.role).map_or(&[][..], |prepared| &prepared.columns);
                let (tensor, _) = first_non_finite(&mut self.executor, run.role, run.rows, None, schema, columns);
                let loss = in_words(run.at.loss.map_or(f32::NAN, |i| numbers[i]));
                return Err(Error::NonFinite { loss, step: run.step, epoch: run.epoch, tensor, row: None });
            }
            result => result?,
        }
        let mut own = Tally::default();
        if !run.repeats {
            own.loss = run.at.loss.map_or(0.0, |i| f64::from(numbers[i]) * run.batch_rows as f64);
            own.weight = run.at.weight.map_or(run.rows as f64, |i| f64::from(numbers[i]) * run.batch_rows as f64);
            own.sums = run.at.sums.map(|i| i.map_or(0.0, |i| f64::from(numbers[i])));
            own.rows = run.rows as u64;
        }
        match &mut self.ordered {
            None => *tally = tally.plus(&own),
            Some(ordered) => {
                ordered.add(run.number, own);
                if matches!(run.role, Role::Step | Role::Last) {
                    self.end_batch(tally)?;
                }
            }
        }
        Ok(())
    }

    /// Whether memory for predictions is planned.
    pub fn predicts(&self) -> bool {
        self.plan.memory.program(Role::Predict).is_some()
    }

    /// That memory for predictions is planned.
    pub fn check_predicts(&self) -> Result<()> {
        if self.predicts() {
            return Ok(());
        }
        let what = "the predictions of a batch of this model would take more memory than its training, so that none is planned for them: save \
                    the weights and predict with a smaller batch, by `plimsoll predict`, `plimsoll generate` or `Model::load`";
        Err(Error::Config(what.to_string()))
    }

    /// Runs the predicting program over one row.
    pub fn predict_row(&mut self, row: &[u8]) -> Result<()> {
        self.check_predicts()?;
        self.loading.finish(&mut self.executor)?;
        let prepared = self.roles.iter().find(|prepared| prepared.role == Role::Predict).expect("every role is planned");
        let column = match prepared.columns[..] {
            [column] => &self.schema.columns()[column],
            _ => return Err(Error::Config("single rows are predicted by models with one input".to_string())),
        };
        if row.len() != column.row_bytes().get() {
            return Err(Error::Config(format!(
                "a row of the column {column} has {}, but {} bytes were given",
                column.row_bytes(),
                row.len()
            )));
        }
        let random = StepRandom { seed: self.seed, step: 0, first_row: 0 };
        let inputs = StepInputs { columns: &[row], scalars: &prepared.numbers, random };
        let ticket = self.executor.run(Role::Predict, 1, &inputs)?;
        Ok(self.executor.outcome(ticket, &mut [])?)
    }

    /// Reads one output of the last run.
    pub fn read_predictions(&self, output: &str, numbers: &mut [f32]) -> Result<()> {
        let place = self.executor.output(Role::Predict, output).expect("the predicting program has all results");
        // Through a fixed buffer: a second copy is not planned.
        let mut bytes = [0u8; 4096];
        for (i, numbers) in numbers.chunks_mut(bytes.len() / 4).enumerate() {
            let bytes = &mut bytes[..numbers.len() * 4];
            self.executor.read(place.offset_by(i as u64 * 4096), bytes)?;
            numbers.iter_mut().zip(bytes.chunks_exact(4)).for_each(|(number, b)| *number = f32::from_ne_bytes([b[0], b[1], b[2], b[3]]));
        }
        Ok(())
    }

    /// Checks that labels are classes and that tokens are rows of their embedding.
    fn check_classes(&self, role: Role, piece: &Piece<'_>) -> Result<()> {
        let checked = |kind: ValueKind| kind == ValueKind::Tokens || role != Role::Predict;
        for range in self.plan.interface.ranges.iter().filter(|range| checked(range.kind)) {
            let column = &self.schema.columns()[range.column];
            let (row_bytes, size) = (column.row_bytes().get(), column.dtype.size());
            let numbers = &piece.batch.column(range.column)[piece.at * row_bytes..(piece.at + piece.rows) * row_bytes];
            for (i, bytes) in numbers.chunks_exact(size).enumerate() {
                let value = match *bytes {
                    [byte] => i32::from(byte),
                    [a, b, c, d] => i32::from_ne_bytes([a, b, c, d]),
                    _ => unreachable!("class numbers are bytes or 32-bit integers"),
                };
                if (value < 0 || value as usize >= range.count) && range.kind != ValueKind::Labels(Some(value)) {
                    let place = piece.batch.first_row() + (piece.at + i / column.elements().max(1)) as u64;
                    let row = BadRow { place, epoch: self.epochs + 1, origin: None };
                    return Err(match range.kind {
                        ValueKind::Labels(_) => Error::Label { row, value, classes: range.count },
                        ValueKind::Tokens => Error::Token { row, column: column.name.clone(), value, known: range.count },
                    });
                }
            }
        }
        Ok(())
    }
}

/// The next piece of a block and its role: its first row is the block's row `at`, the block's first row the epoch's row
/// `first`. The epoch has `length` rows, see [`epoch_rows`].
pub(crate) fn place_in_batch<'a>(
    micro_batch: usize,
    batch: HostRows<'a>,
    at: usize,
    first: u64,
    block_rows: usize,
    whole: u64,
    length: Option<u64>,
) -> (Role, Piece<'a>) {
    let place = first + at as u64;
    let first_row = place % whole;
    // If the length of an epoch is unknown, a block is a batch.
    let batch_rows = length.map_or(block_rows as u64, |length| whole.min(length - (place - first_row)));
    let rows = micro_batch.min((batch_rows - first_row) as usize).min(block_rows - at);
    let number = (first_row / micro_batch as u64) as u32;
    let role = match (first_row == 0, first_row + rows as u64 == batch_rows) {
        (true, true) => Role::Step,
        (true, false) => Role::First,
        (false, false) => Role::Middle,
        (false, true) => Role::Last,
    };
    (role, Piece { batch, at, rows, first_row, batch_rows, repeats: false, number })
}
