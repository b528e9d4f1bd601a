//! A program loaded for a number of rows: kernels and library calls with their addresses, captured as one CUDA graph
//! per slot and replayed.

mod address;
mod assembly;
mod collective;
mod enqueue;
mod executable;
mod groups;
mod lower;
mod lower_attention;
mod lower_convolution;
mod lower_matmul;
mod non_finite;
mod pairs;
mod shards;
mod sources;
mod timing;
mod tuning;

pub(crate) use executable::CudaExecutable;
pub(crate) use lower::{fuses_slice_write, workspace};
pub(crate) use lower_attention::attention_modules;
pub(crate) use lower_convolution::{first_cudnn_request, wants_cudnn};
pub(crate) use sources::kernel_sources;

use crate::kernels::PitchedRows;
use crate::libraries::cublaslt::Matmul;
use crate::libraries::cudnn::Convolution;
use crate::libraries::driver::{CudaGraph, Module};
use crate::libraries::kernel_cache::Compiled;
use crate::runtime::memory::{CudaMemory, DeviceBuffer};
use crate::runtime::offload::OffloadCopies;
use crate::runtime::staging::{RunId, StagingRing};
use crate::runtime::state::{DeviceState, lock};
use address::{Address, Addresses, ProgramMemory, resolve};
use assembly::{Assembly, algorithm_of};
use collective::{AllReduceCall, check_ranks};
use cudarc::driver::{result, sys};
use lower::{Lowering, guarding_loss, report};
use non_finite::{any_non_finite, own};
use plimsoll_core::budget::give_back_freed_memory;
use plimsoll_core::device::{DeviceError, Loaded, Memory, StepInputs, StepMemory};
use plimsoll_core::graph::Node;
use plimsoll_core::plan::offload::{Overlap, renewed_in_place};
use plimsoll_core::plan::{Place, Plan, Program};
use plimsoll_core::{Bytes, DType, NodeId, Op, ValueId};
use shards::ShardsCall;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tuning::Tuner;
pub(crate) use tuning::rejection;

/// A loaded program. It keeps its memories alive.
pub(crate) struct CudaProgram {
    shared: Arc<DeviceState>,
    staging_ring: Arc<Mutex<StagingRing>>,
    instructions: Vec<Instruction>,
    /// The offload copies that run concurrently.
    copies: Option<OffloadCopies>,
    /// One CUDA graph per slot, captured before the second run: a program that runs once is not captured.
    graphs: Vec<CudaGraph>,
    columns: Vec<Column>,
    offsets: Vec<usize>,
    header: usize,
    scalars: usize,
    /// Address of the loss, which must be finite before states are updated.
    loss: Option<Address>,
    /// This program's last two runs, the last one first.
    runs: [Option<RunId>; 2],
    /// Number of runs.
    count: u64,
    /// The slot of the run with a non-finite loss.
    broken: Option<usize>,
    /// Dropped last, because the fields above refer to it.
    _modules: Vec<Module>,
    _memories: [Arc<DeviceBuffer>; 2],
}

struct Instruction {
    /// The node; none for the report.
    node: Option<NodeId>,
    /// The op and its scope, for errors.
    name: String,
    /// If it runs several nodes in one launch, all of them with the bytes that they move.
    shares: Vec<(NodeId, f64)>,
    steps: Vec<StreamOp>,
    outputs: Vec<Output>,
    writes_state: bool,
    /// Whether other ranks take part in it.
    collective: bool,
    /// Whether it keeps the GPU's arithmetic busy, whose clock falls under a long load.
    arithmetic: bool,
}

enum StreamOp {
    Launch {
        function: sys::CUfunction,
        grid: [u32; 3],
        threads: u32,
        arguments: Vec<Address>,
    },
    Matmul {
        product: Box<Matmul>,
        a: Address,
        b: Address,
        c: Address,
        /// The row that is added, where its address differs between runs.
        bias: Option<Address>,
        /// The matrix that the product is added to.
        onto: Option<Address>,
        workspace: Address,
    },
    /// A sum over ranks.
    AllReduce(Box<AllReduceCall>),
    /// A collective of shards, or the copy of one.
    Shards(Box<ShardsCall>),
    /// Image, filter, result, scratch.
    Convolution {
        convolution: Rc<Convolution>,
        addresses: [Address; 4],
    },
}

// SAFETY: functions belong to the module that the program keeps; they may be launched from any thread. Shared
// convolutions are shared within one program, whose operations are sent to another thread all together.
unsafe impl Send for StreamOp {}

struct Output {
    dtype: DType,
    address: Address,
    bytes: usize,
    /// The part of the output that belongs to this node, for a slice write.
    runs: Option<PitchedRows>,
}

/// The expected layout of a column.
struct Column {
    name: String,
    node: Option<NodeId>,
    dtype: DType,
    bytes: usize,
}

impl Instruction {
    /// Whether a search for a non-finite tensor ends here: states must stay as they are, and other ranks do not repeat
    /// the step.
    fn ends_search(&self) -> bool {
        self.writes_state || self.collective
    }
}

/// The op of a node and its scope.
fn name_of(node: &Node) -> String {
    let op = node.op.rules().name();
    if node.scope.is_empty() { op.to_string() } else { format!("{op} of `{}`", node.scope) }
}

/// Whether an op is bound by arithmetic: products, dense convolutions and attention.
fn is_arithmetic(op: &Op) -> bool {
    match op {
        Op::MatMul(_) | Op::Attention(_) | Op::AttentionGrad(_) => true,
        Op::Conv2d(op) => op.groups == 1,
        Op::Conv2dGradInput(op) => op.groups == 1,
        Op::Conv2dGradFilter(op) => op.groups == 1,
        _ => false,
    }
}

/// Whether a library may compute an op.
fn asks_library(op: &Op) -> bool {
    matches!(op, Op::MatMul(_) | Op::Conv2d(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradFilter(_))
}

impl CudaProgram {
    /// Loads `program` for exactly `rows` rows.
    ///
    /// # Errors
    ///
    /// If no kernel supports an op's configuration, a kernel does not compile, or the memory belongs to another device
    /// or is too small.
    pub fn load(
        shared: &Arc<DeviceState>,
        plan: &Plan,
        program: &Program,
        rows: usize,
        memory: &StepMemory<'_>,
    ) -> Result<CudaProgram, DeviceError> {
        let (times, start) = (&shared.start_times, Instant::now());
        let unsupported = |what: String| DeviceError::Unsupported { device: shared.context.name(), what };
        let slab = |memory: &dyn Memory| match memory.as_any().downcast_ref::<CudaMemory>() {
            Some(memory) => Ok(Arc::clone(&memory.0)),
            None => Err(unsupported("the memory was made by another device".to_string())),
        };
        let (resident, arena) = (slab(memory.resident)?, slab(memory.arena)?);
        let staging = plan.staging.ok_or_else(|| unsupported("the plan has no staging memory for the batch".to_string()))?;
        if staging.offset.0 + staging.size().0 > resident.size {
            return Err(unsupported("the batch is planned outside of its memory".to_string()));
        }
        shared.bind()?;
        let graph = &program.graph;
        if guarding_loss(graph).is_some()
            && let Some(name) = renewed_in_place(plan, program).err()
        {
            let what = format!("`{name}` is in the backing store, but its new value is not made where it was loaded");
            return Err(unsupported(what));
        }
        let lowering = Lowering {
            plan,
            program,
            rows,
            loss: guarding_loss(graph),
            library: shared.products.is_some(),
            cudnn: wants_cudnn(program, rows, shared.convolutions) && shared.cudnn().is_some(),
            convolutions: shared.convolutions,
            tensor_cores: shared.tensor_cores(),
            rank: shared.exchange.as_ref().map_or(0, |exchange| exchange.rank()),
        };
        let staging_ring = resident.staging_ring(&staging)?;
        let offsets: Vec<usize> = staging.columns(graph, plan.rows).iter().map(|offset| offset.get()).collect();
        let header = staging.header(graph, plan.rows).get();
        let addresses = Addresses {
            lowering: &lowering,
            memory: ProgramMemory::Bound {
                resident: (resident.start, resident.size),
                arena: (arena.start, arena.size),
                columns: &offsets,
                header,
                scalars: staging.scalars(graph, plan.rows).get(),
                non_finite_flag: lock(&staging_ring).non_finite_flag,
            },
        };
        let tuner = Tuner::new(shared, (arena.start, arena.size));
        let mut assembly = Assembly::new(shared, &addresses, Some(&staging_ring), tuner);
        let asked = program.order.iter().filter(|id| asks_library(&graph.node(**id).op)).count();
        let mut answered = 0;
        let mut pending = Vec::new();
        let (mut loss_known, mut alarmed) = (false, false);
        let (pairs, groups) = (pairs::pairs(&lowering), groups::groups(&lowering));
        for (step, id) in program.order.iter().enumerate() {
            let node = graph.node(*id);
            let name = name_of(node);
            let named = |what: String| unsupported(format!("{name}: {what}"));
            check_ranks(&node.op, shared).map_err(named)?;
            let alarms = node.op.is_collective() && loss_known && !alarmed;
            alarmed |= alarms;
            let pair = pairs.iter().find(|pair| pair.at() == step);
            let works = match (pair, groups.get(&step)) {
                (Some(pair), _) => {
                    let [first, second] = [pair.first, pair.second].map(|step| graph.node(program.order[step]));
                    vec![pairs::lower(&lowering, first, second)]
                }
                (None, Some(steps)) => vec![groups::lower(&lowering, steps, loss_known)],
                // It runs with another sum or update.
                _ if pairs.iter().any(|pair| pair.skipped() == step) || groups.values().any(|steps| steps.contains(&step)) => vec![],
                _ => lowering.lower(node, loss_known, alarms).map_err(named)?,
            };
            let (offset, size) = program.workspaces[step];
            let needed = workspace(graph, node, rows, shared.convolutions);
            if needed > size || offset.0 + needed.0 > arena.size {
                return Err(named(format!("needs {needed} of workspace, but the plan gives it {size}")));
            }
            if asks_library(&node.op) {
                shared.report_progress(answered, asked);
                answered += 1;
            }
            let mut steps = Vec::new();
            assembly.scope = &node.scope;
            for work in works {
                steps.extend(assembly.resolve(work, &node.inputs, &node.outputs, offset, needed).map_err(named)?);
            }
            if matches!(node.op, Op::Conv2d(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradFilter(_)) {
                shared.took(algorithm_of(&steps));
            }
            // The rest of the concat output was checked when it was written.
            let looked_at = match pairs.iter().find(|pair| pair.second == step || pair.first == step) {
                _ if matches!(node.op, Op::SliceWrite(_)) => vec![],
                // Results of sums that run later than planned are there then.
                Some(pair) if !pair.early && pair.first == step => vec![],
                Some(pair) if !pair.early => graph.node(program.order[pair.first]).outputs.iter().chain(&node.outputs).copied().collect(),
                _ => node.outputs.clone(),
            };
            let together: Vec<usize> = match (pair, groups.get(&step)) {
                (Some(pair), _) => vec![pair.first, pair.second],
                (None, Some(steps)) => steps.clone().collect(),
                (None, None) => vec![],
            };
            let share = |step: usize| (program.order[step], graph.moved(graph.node(program.order[step]), rows) as f64);
            let shares = together.into_iter().map(share).collect();
            pending.push((Some(*id), name, steps, looked_at, lowering.runs(node), shares));
            loss_known |= lowering.loss.is_some_and(|loss| node.outputs.contains(&root(program, loss)));
        }
        assembly.scope = "";
        let last = assembly.resolve(report(program, lowering.loss), &[], &[], Bytes::ZERO, Bytes::ZERO).map_err(unsupported)?;
        pending.push((None, "report".to_string(), last, vec![], None, vec![]));
        assembly.tuner.store();
        times.add("lower", start);

        let failed = |error| shared.context.failed("loading the kernels", error);
        let refused = |log| unsupported(format!("a kernel does not compile: {log}"));
        let compiled = times.time("wait_for_kernels", || assembly.compile()).map_err(refused)?;
        give_back_freed_memory();
        // SAFETY: the images come from NVRTC, or from the cache, which verifies a checksum.
        let module = |compiled: &Compiled| unsafe { Module::new(&shared.context, &compiled.code) };
        let modules = times.time("load_kernels", || compiled.iter().map(module).collect::<Result<Vec<_>, _>>()).map_err(failed)?;
        let mut instructions = Vec::with_capacity(pending.len());
        for (node, name, steps, values, runs, shares) in pending {
            let steps = steps.into_iter().map(|step| step.link(&modules, &compiled)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
            let output = |value: &ValueId| -> Result<Output, String> {
                let ty = graph.ty(*value);
                Ok(Output { dtype: ty.dtype, address: addresses.value(*value)?, bytes: ty.bytes(rows).get(), runs })
            };
            let place = |value: &ValueId| program.places[value.0 as usize];
            let here = |value: &&ValueId| !matches!(place(value), Some(Place::Backing(_)));
            let outputs = values.iter().filter(here).map(output).collect::<Result<Vec<_>, _>>().map_err(unsupported)?;
            let stored = |value: &ValueId| graph.updates().iter().any(|(_, stored)| stored == value);
            let collective = node.is_some_and(|node| graph.node(node).op.is_collective());
            let arithmetic = node.is_some_and(|node| is_arithmetic(&graph.node(node).op));
            let writes_state = values.iter().any(|value| matches!(place(value), Some(Place::Resident(_))) || stored(value));
            instructions.push(Instruction { node, name, shares, steps, outputs, writes_state, collective, arithmetic });
        }
        let on_device = |step: usize| {
            let node = graph.node(program.order[step]);
            let value = if matches!(node.op, Op::Store(_)) { node.inputs[0] } else { node.outputs[0] };
            match addresses.value(value)? {
                Address::Fixed(address) => Ok(address),
                _ => Err(format!("{value} is a column or a number of the host, which is not stored")),
            }
        };
        let copies = OffloadCopies::new(shared, &Overlap::of(program, rows, 0), memory.backing, on_device)?;
        let column = |(i, input): (usize, &plimsoll_core::graph::Input)| Column {
            name: input.name.clone(),
            node: graph.nodes().find(|(_, node)| matches!(node.op, Op::Input(id) if id.0 as usize == i)).map(|(id, _)| id),
            dtype: input.ty.dtype,
            bytes: input.ty.bytes(rows).get(),
        };
        let loss = lowering.loss.map(|loss| addresses.value(loss)).transpose().map_err(unsupported)?;
        Ok(CudaProgram {
            loss,
            columns: graph.inputs().iter().enumerate().map(column).collect(),
            scalars: graph.scalars().len(),
            shared: Arc::clone(shared),
            staging_ring,
            instructions,
            copies,
            graphs: Vec::new(),
            offsets,
            header,
            runs: [None; 2],
            count: 0,
            broken: None,
            _modules: modules,
            _memories: [resident, arena],
        })
    }

    fn check(&self, inputs: &StepInputs<'_>) -> Result<(), DeviceError> {
        let unsupported = |what: String| Err(DeviceError::Unsupported { device: self.shared.context.name(), what });
        if inputs.columns.len() != self.columns.len() {
            return unsupported(format!("the program reads {} columns, but got {}", self.columns.len(), inputs.columns.len()));
        }
        if inputs.scalars.len() != self.scalars {
            return unsupported(format!("the program reads {} scalars, but got {}", self.scalars, inputs.scalars.len()));
        }
        match self.columns.iter().zip(inputs.columns).find(|(column, given)| column.bytes != given.len()) {
            Some((column, given)) => {
                unsupported(format!("the column `{}` has {} bytes, but got {}", column.name, column.bytes, given.len()))
            }
            None => Ok(()),
        }
    }

    /// Copies the inputs of a run and enqueues its work.
    fn start(&self, staging_ring: &mut StagingRing, inputs: &StepInputs<'_>) -> Result<RunId, DeviceError> {
        let slot = staging_ring.begin(inputs, &self.offsets, self.header)?;
        let faulty = self.shared.fault.as_ref().is_some_and(|fault| fault.op_in(self.count).is_some());
        match self.graphs.get(slot).filter(|_| !faulty) {
            Some(graph) => {
                graph.launch(&self.shared.compute).map_err(|error| self.shared.context.failed("launching the step", error))?;
            }
            None if self.count == 1 => self.enqueue_marked(staging_ring, slot)?,
            None => self.enqueue(staging_ring, slot)?,
        }
        staging_ring.end(slot)
    }

    /// Whether its work is work of the stream alone, which a CUDA graph can hold.
    fn is_recorded(&self) -> bool {
        let waits = || self.shared.exchange.as_ref().is_some_and(|exchange| !exchange.is_recorded());
        let sums = self.instructions.iter().any(|instruction| instruction.collective);
        !self.shared.one_by_one && (!sums || !waits())
    }

    fn record(&mut self, staging_ring: &StagingRing) -> Result<(), DeviceError> {
        let failed = |error| self.shared.context.failed("recording the step", error);
        let record = |slot| CudaGraph::record(&self.shared.context, &self.shared.compute, failed, || self.enqueue(staging_ring, slot));
        self.graphs = self.shared.start_times.time("record", || (0..staging_ring.slots()).map(record).collect::<Result<Vec<_>, _>>())?;
        Ok(())
    }

    /// Whether a range of GPU memory has a non-finite real number. The GPU must be idle.
    fn is_non_finite(&self, dtype: DType, address: u64, bytes: usize, runs: Option<PitchedRows>) -> Result<bool, DeviceError> {
        let mut piece = [0u8; 4096];
        for start in (0..bytes).step_by(piece.len()) {
            let piece = &mut piece[..(bytes - start).min(4096)];
            // SAFETY: the bytes are an output of a planned node, or a column in its slot.
            unsafe { result::memcpy_dtoh_sync(piece, address + start as u64) }
                .map_err(|error| self.shared.context.failed("copying from the GPU", error))?;
            if own(runs, dtype, start, piece.len()).any(|own| any_non_finite(dtype, &piece[own])) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl Loaded for CudaProgram {
    fn run(&mut self, inputs: &StepInputs<'_>) -> Result<(), DeviceError> {
        self.check(inputs)?;
        self.shared.bind()?;
        let staging_ring = Arc::clone(&self.staging_ring);
        let mut staging_ring = lock(&staging_ring);
        if self.graphs.is_empty() && self.runs[0].is_some() && self.is_recorded() {
            self.record(&staging_ring)?;
        }
        self.count += 1;
        if let Some(lost) = self.shared.fault.as_ref().filter(|_| self.loss.is_some()).and_then(|fault| fault.lost_in(self.count)) {
            return Err(self.shared.context.failed("computing a step", lost));
        }
        let run = self.start(&mut staging_ring, inputs).map_err(|error| {
            // A copy from the caller's columns may be in flight, and the caller may overwrite them as soon as this
            // returns. An error of the device cannot be handled here.
            let _ = self.shared.synchronize();
            self.located(&staging_ring, error)
        })?;
        self.runs = [Some(run), self.runs[0]];
        Ok(())
    }

    fn outcome(&mut self, back: u64, numbers: &mut [f32]) -> Result<(), DeviceError> {
        self.shared.bind()?;
        let staging_ring = Arc::clone(&self.staging_ring);
        let mut staging_ring = lock(&staging_ring);
        let slot = self.runs.get(back as usize).copied().flatten().and_then(|run| staging_ring.slot_of(run)).ok_or_else(|| {
            DeviceError::Unsupported { device: self.shared.context.name(), what: "that run is too long ago to be asked for".to_string() }
        })?;
        let answer = staging_ring.results_of(slot, numbers);
        if matches!(answer, Err(DeviceError::NonFinite)) {
            self.broken = Some(slot);
            return answer;
        }
        answer.map_err(|error| self.located(&staging_ring, error))
    }

    fn find_non_finite(&mut self, inputs: Option<&StepInputs<'_>>) -> Result<Option<NodeId>, DeviceError> {
        self.shared.bind()?;
        let staging_ring = Arc::clone(&self.staging_ring);
        let mut staging_ring = lock(&staging_ring);
        let slot = match (inputs, self.broken) {
            (Some(inputs), _) => {
                self.check(inputs)?;
                let slot = staging_ring.begin(inputs, &self.offsets, self.header)?;
                staging_ring.end(slot)?;
                slot
            }
            (None, Some(slot)) => slot,
            (None, None) => return Ok(None),
        };
        self.shared.synchronize()?;
        for (column, offset) in self.columns.iter().zip(&self.offsets) {
            if self.is_non_finite(column.dtype, staging_ring.on_device(slot) + *offset as u64, column.bytes, None)? {
                return Ok(column.node);
            }
        }
        for (i, instruction) in self.instructions.iter().enumerate().take_while(|(_, instruction)| !instruction.ends_search()) {
            self.copies.as_ref().map_or(Ok(()), |copies| copies.copy_now(i))?;
            self.enqueue_instruction(instruction, &staging_ring, slot)?;
            self.shared.synchronize()?;
            for output in &instruction.outputs {
                if self.is_non_finite(output.dtype, resolve(output.address, &staging_ring, slot), output.bytes, output.runs)? {
                    return Ok(instruction.node);
                }
            }
        }
        Ok(None)
    }

    fn node_seconds(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<(NodeId, f64)>, DeviceError> {
        self.time_nodes(inputs)
    }
}

impl Drop for CudaProgram {
    fn drop(&mut self) {
        // Kernels and CUDA graphs must not be destroyed while they run. An error of the device cannot be handled here.
        let _ = self.shared.synchronize();
    }
}

/// The base of a value, resolving views.
fn root(program: &Program, mut value: ValueId) -> ValueId {
    while let Op::Reshape(_) | Op::ChannelView(_) = program.graph.producer(value).op {
        value = program.graph.producer(value).inputs[0];
    }
    value
}
