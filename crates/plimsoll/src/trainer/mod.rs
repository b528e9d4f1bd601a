//! The convenient front: builder methods that fill in a [`RunSpec`], then plan it, train, evaluate and predict.

mod average;
mod builder;
mod custom;
mod predict;
#[cfg(test)]
mod tests;

use crate::checkpoint;
use crate::cost::{self, CostTable};
use crate::devices::{self, Algorithms, OpenDevice};
use crate::error::{Error, Result};
use crate::fit::{self, Event, Fit, Validation};
use crate::history::{History, WeightSparsity};
use crate::image_scan::scan_images;
use crate::infeasible::Infeasible;
use crate::metrics::Scores;
use crate::numerics::Numerics;
use crate::plan::{DataSummary, LargestBatch, Machine, RunPlan, Sweep, fitting_ranks};
use crate::preprocessing::Preprocessing;
use crate::ranks::{Ranks, Shard};
use crate::schedule::ScheduleState;
use crate::session::Session;
use crate::spec::{Count, FitSpec, RunSpec};
use crate::start_times::StartTimes;
use crate::stop::StopHandle;
use crate::{import, system, tensors};
use plimsoll_core::budget::give_back_program_pages;
use plimsoll_core::device::Device;
use plimsoll_core::plan::{Certificate, CheckedPlan};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph};
use plimsoll_data::Dataset;
use std::cell::{Cell, OnceCell};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use custom::{Batches, CustomLoop, HostBatch, Numbers};
pub use predict::{Predicted, Prediction};

/// Trains a model on data within a memory budget.
///
/// ```
/// use plimsoll::prelude::*;
///
/// let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let held_out = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let mut trainer = Trainer::new(zoo::mlp(10), &data)
///     .loss(Loss::SoftmaxCrossEntropy)
///     .optimizer(Adam::default())
///     .budget(Budget::host("96MiB")?);
/// let fit = Fit::epochs(2).validate(&held_out);
/// let plan = trainer.plan(&fit)?; // exact, or an error that states the minimum
/// println!("{plan}");
/// let history = trainer.run(plan, fit)?; // the plan that was printed is the plan that runs
/// assert!(history.last().unwrap().validation.as_ref().unwrap().accuracy.unwrap() > 0.8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Trainer {
    spec: RunSpec,
    /// Opened on first use.
    device: OnceCell<OpenDevice>,
    /// Seconds that opening it took.
    device_s: Cell<f64>,
    /// The ranks that train together, if there are several.
    ranks: Option<Ranks>,
    /// What the schedule starts from.
    schedule_state: ScheduleState,
    /// The memory of a plan, once it is allocated.
    session: Option<Session>,
}

impl From<RunSpec> for Trainer {
    fn from(spec: RunSpec) -> Trainer {
        Trainer {
            spec,
            device: OnceCell::new(),
            device_s: Cell::default(),
            ranks: None,
            schedule_state: ScheduleState::default(),
            session: None,
        }
    }
}

impl Trainer {
    /// The description of the run.
    pub fn spec(&self) -> &RunSpec {
        &self.spec
    }

    /// The training data.
    pub fn data(&self) -> &Dataset {
        &self.spec.data
    }

    /// The fit that the description itself states: its epochs, validation, checkpoints and callbacks.
    pub fn described_fit(&self) -> Fit<'static> {
        self.spec.fit.clone().into()
    }

    /// The plan of a fit, which covers everything that will run: training, validation, checkpoints and restored state.
    /// Nothing is allocated or written.
    ///
    /// # Errors
    ///
    /// If the run does not fit its budgets, with the minimum that does ([`Error::Infeasible`]); or if its parts are
    /// incompatible.
    pub fn plan(&self, fit: &Fit<'_>) -> Result<RunPlan> {
        let spec = self.spec_of(fit);
        let plan = self.plan_of(&spec)?;
        if self.session.is_none() {
            self.agreed(spec.check_schedule(plan.batch))?;
        }
        Ok(plan)
    }

    /// Trains as planned. Further calls continue from where the previous one stopped. If less memory is free than the
    /// plan takes, or the process takes more than the plan [assumes](crate::Assumptions), the run is replanned, with an
    /// [`Event::Replanned`].
    ///
    /// # Errors
    ///
    /// If the plan is not one of this fit; or if something fails during the run.
    pub fn run(&mut self, plan: RunPlan, fit: Fit<'_>) -> Result<History> {
        if self.spec.inference_only {
            return Err(Error::Config("this trainer is for predictions only; it cannot train".to_string()));
        }
        if self.spec.ranks > 1 && self.ranks.is_none() {
            return Err(Error::Config(format!(
                "this trainer plans for {} ranks, but is a single process; start that many",
                self.spec.ranks
            )));
        }
        let mut fit = fit.with_described_callbacks(self.ranks.as_ref().is_none_or(Ranks::is_first));
        let spec = self.spec_of(&fit);
        self.agreed(plan.check_covers(&spec))?;
        let plan = self.open(plan, &spec, true, &mut |event| fit.report(event))?;
        fit::train(&spec, &plan, self.session_mut(), &mut fit)
    }

    /// Plans, then trains: [`plan`](Trainer::plan) and [`run`](Trainer::run) in one.
    ///
    /// # Errors
    /// As those.
    pub fn fit(&mut self, fit: Fit<'_>) -> Result<History> {
        let plan = self.plan_of(&RunSpec { count: Count::Everything, ..self.spec_of(&fit) })?;
        self.run(plan, fit)
    }

    /// Loss and metrics over a dataset, without training.
    ///
    /// # Errors
    /// If the rows do not fit the model, or cannot be read.
    pub fn evaluate(&mut self, data: &Dataset) -> Result<Scores> {
        if self.spec.inference_only {
            return Err(Error::Config("this trainer is for predictions only; it cannot evaluate".to_string()));
        }
        scan_images(data)?;
        let session = self.opened()?;
        let pipeline = data.clone().rebatch(session.plan.feed_rows).plan(session.ledger.available())?;
        let scores = Validation::start(Role::Evaluate, data, &pipeline, session, 1)?.evaluate(session, &StopHandle::new())?;
        Ok(scores.expect("nobody stops it"))
    }

    /// The largest batch that runs without micro-batches, found by planning; none if not even one row fits.
    ///
    /// # Errors
    ///
    /// If the parts of the run are incompatible.
    pub fn largest_batch(&self) -> Result<Option<LargestBatch>> {
        let start = Instant::now();
        let largest = self.spec.largest_batch(&self.machine()?, &DataSummary::read(&self.spec)?)?;
        Ok(largest.map(|largest| LargestBatch { plan: RunPlan { plan_ms: milliseconds(start), ..largest.plan }, ..largest }))
    }

    /// The predicted step time for decreasing budgets, down to the minimum. `progress` is called before each budget
    /// with the number of budgets done and of all.
    ///
    /// # Errors
    ///
    /// If the run does not fit, or its parts are incompatible.
    pub fn sweep(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<Sweep> {
        self.spec.sweep(&self.machine()?, &DataSummary::read(&self.spec)?, progress)
    }

    /// The plan of the minimum budget of the run as it is described, whatever its budgets are. One that a refusal found
    /// is not searched again.
    pub(crate) fn smallest_plan(&self, known: Option<&(Numerics, CheckedPlan)>) -> Result<RunPlan> {
        self.spec.smallest(&self.machine()?, &DataSummary::read(&self.spec)?, known)
    }

    /// The host and device memory of micro-batches without recomputation, splitting or offload, and the predicted
    /// seconds per batch.
    pub(crate) fn plain(&self, micro_batch: usize) -> Result<(Bytes, Bytes, f64)> {
        self.spec.plain(&self.machine()?, &DataSummary::read(&self.spec)?, micro_batch)
    }

    /// Proves that a certificate is an exact plan of this run's graphs on its device.
    ///
    /// # Errors
    ///
    /// With the first mismatch, if the certificate belongs to another run or was edited.
    pub fn prove(&self, certificate: &Certificate) -> Result<()> {
        self.spec.prove(&self.machine()?, &DataSummary::read(&self.spec)?, certificate)
    }

    /// Times the nodes of this run's own step that are missing in `costs`, and adds them. Returns the number of timed
    /// nodes.
    ///
    /// # Errors
    /// If the device fails.
    pub fn profile_own_step(&self, costs: &mut CostTable, limit: Duration) -> Result<usize> {
        let device = self.device_in_use()?;
        self.with_step(|graph, rows| cost::profile_own_step(costs, &*device, graph, rows, limit))?
    }

    /// Times this run's own step, and every node of it with the device's own clock.
    ///
    /// # Errors
    /// If the device fails.
    pub fn step_profile(&self) -> Result<cost::StepProfile> {
        let device = self.device_in_use()?;
        self.with_step(|graph, rows| cost::profile(&*device, graph, rows))?
    }

    /// The generated source of every kernel of this run's own step; needs no GPU if the device is a profile of one.
    ///
    /// # Errors
    /// If the parts of the run are incompatible.
    pub fn kernel_sources(&self) -> Result<Vec<String>> {
        let device = self.device_in_use()?;
        self.with_step(|graph, rows| cost::kernel_sources(&*device, graph, rows))?
    }

    /// The device it computes on, opened on first use.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn device_in_use(&self) -> Result<Arc<dyn Device>> {
        self.open_device().map(|opened| Arc::clone(&opened.device))
    }

    /// Computes on a device that is open already.
    pub(crate) fn on_device(self, opened: OpenDevice) -> Trainer {
        Trainer { device: OnceCell::from(opened), ..self }
    }

    /// Passes the training graph of a whole batch, and its rows, to `look`.
    pub(crate) fn with_step<T>(&self, look: impl FnOnce(&Graph, usize) -> T) -> Result<T> {
        self.spec.with_step(&self.machine()?, &DataSummary::read(&self.spec)?, look)
    }

    /// The state of the schedule, which a resumed run needs.
    pub fn schedule_state(&self) -> ScheduleState {
        self.session.as_ref().map_or(self.schedule_state, |session| session.learning_rate.state)
    }

    /// Restores the state of the schedule.
    pub fn set_schedule_state(&mut self, state: ScheduleState) {
        self.schedule_state = state;
        if let Some(session) = &mut self.session {
            session.learning_rate.state = state;
        }
    }

    /// Writes the weights as safetensors, atomically.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn save_weights(&mut self, path: &Path) -> Result<()> {
        let preprocessing = Preprocessing::of(&self.spec.data);
        tensors::save_weights(&self.opened()?.executor, path, preprocessing.metadata())
    }

    /// Reads weights that [`save_weights`](Trainer::save_weights) wrote for the same model.
    ///
    /// # Errors
    /// If the file cannot be read, or has the weights of another model.
    pub fn load_weights(&mut self, path: &Path) -> Result<()> {
        import::load_weights(&mut self.opened()?.executor, path)
    }

    /// How many numbers of the pruned weights are zero.
    ///
    /// # Errors
    /// If the device fails.
    pub fn sparsity(&mut self) -> Result<Vec<WeightSparsity>> {
        self.opened()?.sparsity()
    }

    /// The description of a fit: the trainer's, with the fit's part. A run that is resumed keeps the choices of its
    /// checkpoint that result bits depend on.
    fn spec_of(&self, fit: &Fit<'_>) -> RunSpec {
        let resumed = fit.spec.checkpoints.as_ref().filter(|_| fit.spec.resume && self.session.is_none());
        let record = resumed.and_then(|checkpoints| checkpoint::newest_record(checkpoints.folder()));
        // Another number of ranks has other micro-batches, unless they are fixed.
        let kept = record.filter(|record| self.spec.parallel.reproducible || record.ranks == self.spec.ranks as u64);
        let numerics = kept.map(|record| record.numerics).or(self.spec.numerics.clone());
        RunSpec { fit: fit.spec.clone(), numerics, ..self.spec.clone() }
    }

    fn open_device(&self) -> Result<&OpenDevice> {
        if self.device.get().is_none() {
            // Before libraries are loaded, whose size is not the program's own.
            system::process_footprint();
            let start = Instant::now();
            let RunSpec { device, threads, device_profile, algorithms, .. } = &self.spec;
            let opened = match &self.ranks {
                Some(ranks) => devices::open_of_rank(*device, *threads, *algorithms, ranks)?,
                None => devices::open(*device, *threads, device_profile.as_deref(), *algorithms)?,
            };
            let _ = self.device.set(opened);
            self.device_s.set(start.elapsed().as_secs_f64());
        }
        Ok(self.device.get().expect("set above"))
    }

    /// The machine as it is now; as all ranks see it, if there are several.
    fn machine(&self) -> Result<Machine> {
        let machine = Machine::read(self.open_device()?, self.spec.costs.as_ref());
        match &self.ranks {
            Some(ranks) => machine.shared_by(ranks),
            None => Ok(machine.of_ranks(self.spec.ranks)),
        }
    }

    /// The same with what the process takes by now.
    fn machine_at_start(&self) -> Result<Machine> {
        let mapped = self.ranks.as_ref().map_or(Bytes::ZERO, Ranks::mapped);
        let machine = Machine::read(self.open_device()?, self.spec.costs.as_ref()).at_start(mapped);
        match &self.ranks {
            Some(ranks) => machine.shared_by(ranks),
            None => Ok(machine),
        }
    }

    /// The result of every rank, or the error of the first that failed.
    fn agreed<T>(&self, result: Result<T>) -> Result<T> {
        match &self.ranks {
            Some(ranks) => ranks.agree(result),
            None => result,
        }
    }

    /// The ranks that train together, if there are several.
    pub fn ranks_in_use(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    /// The plan of a description: a new one, or one that continues in the memory of the session.
    fn plan_of(&self, spec: &RunSpec) -> Result<RunPlan> {
        self.agreed(self.open_device().map(drop))?;
        let start = Instant::now();
        // What is resident at once is the code of one phase: of the configuration, of the data, of planning.
        give_back_program_pages();
        let (machine, data) = (self.machine()?, self.agreed(DataSummary::read(spec))?);
        give_back_program_pages();
        let plan = match &self.session {
            None => planned_while_preparing(spec, &machine, &data).map_err(|error| match (error, &spec.numerics) {
                (Error::Infeasible(infeasible), None) if self.ranks.is_none() && spec.ranks > 1 => {
                    let fits_on = fitting_ranks(spec, &machine, &infeasible);
                    Error::Infeasible(Box::new(Infeasible { fits_on, ..*infeasible }))
                }
                (Error::Infeasible(infeasible), Some(kept)) => {
                    Error::Infeasible(Box::new(Infeasible { resumed_with: Some(kept.clone()), ..*infeasible }))
                }
                (error, _) => error,
            }),
            Some(session) => session.plan.continued(spec, &data),
        };
        self.agreed(timed(plan, start))
    }

    /// Allocates the memory of a plan, unless that is done, for a run that `trains` or one that does not; replans if
    /// less is free than it takes. Returns the plan that runs.
    fn open(&mut self, plan: RunPlan, spec: &RunSpec, trains: bool, report: &mut dyn FnMut(&Event<'_>)) -> Result<RunPlan> {
        if let Some(session) = &self.session {
            return session.plan.check_same_memory(&plan).map(|()| plan);
        }
        let machine = self.machine_at_start()?;
        let plan = match plan.shortage(spec, &machine) {
            None => plan,
            Some((budget, reason)) => {
                let start = Instant::now();
                let smaller = self.agreed(timed(plan.replanned(spec, budget, &machine, &DataSummary::read(spec)?), start))?;
                report(&Event::Replanned { before: &plan, reason: &reason });
                // The graphs of the old plan must not be live beside those of the new one.
                drop(plan);
                smaller
            }
        };
        // A resumed run keeps its algorithms, whatever was measured since.
        let recorded = spec.numerics.as_ref().and_then(|numerics| numerics.algorithms.as_ref());
        if let (Some(recorded), Some(device)) = (recorded, machine.device.diagnostics()) {
            device.keep_algorithms(recorded);
        }
        let start = Instant::now();
        let first = first_program(&plan, spec, self.ranks.as_ref().map_or(0, Ranks::rank)).filter(|_| trains);
        let opened = Session::open(machine.device, &plan, spec, spec.data.output_schema()?, first);
        let mut session = self.agreed(opened)?;
        if let Some(ranks) = &self.ranks {
            session.join(ranks);
        }
        session.start = StartTimes {
            device_s: self.device_s.get(),
            plan_s: plan.plan_ms / 1e3,
            memory_s: start.elapsed().as_secs_f64(),
            ..StartTimes::default()
        };
        session.learning_rate.state = self.schedule_state;
        self.session = Some(session);
        Ok(plan)
    }

    /// The session; plans and allocates it first if necessary.
    fn opened(&mut self) -> Result<&mut Session> {
        if self.session.is_none() {
            let spec = RunSpec { fit: FitSpec::default(), count: Count::Everything, ..self.spec.clone() };
            let plan = self.plan_of(&spec)?;
            self.open(plan, &spec, false, &mut |_| {})?;
        }
        Ok(self.session_mut())
    }

    fn session_mut(&mut self) -> &mut Session {
        self.session.as_mut().expect("opened before")
    }
}

/// The program that a run with this plan begins with, and its rows, if it can be loaded at the same time as initial
/// values are computed: algorithms are not measured on a GPU that copies.
fn first_program(plan: &RunPlan, spec: &RunSpec, rank: usize) -> Option<(Role, usize)> {
    let full = spec.data.size_if_readable().is_some_and(|rows| rows >= plan.batch as u64);
    let own = plan.rows_of_rank(rank);
    // Ranks that exchange the gradients of every micro-batch have equally many.
    let most = if plan.shard == Shard::Gradients { own.most(own.batch()) } else { own.rows() } as usize;
    let own = own.rows() as usize;
    let role = if plan.micro_batch >= most { Role::Step } else { Role::First };
    (full && spec.algorithms == Algorithms::Rules).then_some((role, plan.micro_batch.min(own)))
}

/// The plan of a run. A device with memory of its own prepares for it at the same time.
fn planned_while_preparing(spec: &RunSpec, machine: &Machine, data: &DataSummary) -> Result<RunPlan> {
    if machine.device.capabilities().shares_host_memory {
        return spec.plan(machine, data);
    }
    std::thread::scope(|scope| {
        // What is wrong with the run is found by planning it. Where no thread can be started, nothing is prepared.
        let _ = std::thread::Builder::new().spawn_scoped(scope, || drop(spec.prepare(machine, data)));
        spec.plan(machine, data)
    })
}

/// A plan or an error with the time it took; planning itself reads no clock.
fn timed(plan: Result<RunPlan>, start: Instant) -> Result<RunPlan> {
    match plan {
        Ok(plan) => Ok(RunPlan { plan_ms: milliseconds(start), ..plan }),
        Err(Error::Infeasible(mut infeasible)) => {
            infeasible.plan_ms = milliseconds(start);
            Err(Error::Infeasible(infeasible))
        }
        Err(error) => Err(error),
    }
}

fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}
