//! A program loaded for a number of rows: a flat list of instructions, and a loop over them that does not allocate.

mod collective;
mod destination;
mod executable;
mod instruction;
mod lower;
mod offload;
mod pairwise_sum;
mod row_split;
mod shards;

pub(crate) use destination::fuses_slice_write;
pub(crate) use executable::CpuExecutable;
pub(crate) use lower::workspace;
pub(crate) use row_split::can_split_rows;

use crate::kernels::pointwise::PitchedRows;
use crate::runtime::copier::Copier;
use crate::runtime::memory::{CpuMemory, HostBuffer};
use crate::runtime::threads::ThreadPool;
use crate::simd::element::any_non_finite;
use collective::AllReduceCall;
use destination::Destination;
use instruction::{Bindings, KernelCall};
use lower::{Lowering, ProgramMemory, fixed};
use offload::OffloadCopies;
use plimsoll_comm::Group;
use plimsoll_core::device::{DeviceError, Loaded, NodeSpan, StepInputs, StepMemory};
use plimsoll_core::graph::Node;
use plimsoll_core::plan::{Place, Program};
use plimsoll_core::{Bytes, DType, NodeId, Op, ValueId};
use shards::ShardsCall;
use std::sync::Arc;
use std::time::Instant;

/// The device name in errors.
const DEVICE: &str = "cpu";

/// A loaded program. It keeps its memories alive.
pub(crate) struct CpuProgram {
    pool: Arc<ThreadPool>,
    resident: Arc<HostBuffer>,
    arena: Arc<HostBuffer>,
    instructions: Vec<Instruction>,
    /// The offload copies that run concurrently with the instructions.
    copies: Option<OffloadCopies>,
    columns: Vec<Column>,
    scalars: usize,
    /// The scalar real outputs.
    numbers: Vec<Output>,
    guard: Option<Guard>,
}

struct Instruction {
    node: NodeId,
    work: Work,
    /// Its outputs.
    outputs: Vec<Output>,
    writes_state: bool,
}

/// What an instruction does.
enum Work {
    Kernel(KernelCall),
    /// A sum over all ranks, which call it at the same time.
    Collective(AllReduceCall),
    /// A collective of shards, or the copy of one.
    Shards(ShardsCall),
    /// An offload copy, which another thread executes.
    Copy,
}

struct Output {
    dtype: DType,
    address: *mut u8,
    count: usize,
    /// Its layout, if it is a slice of a concat output and not contiguous.
    runs: Option<PitchedRows>,
}

// SAFETY: the address is dereferenced only by `is_non_finite` and `outcome`, whose callers hold the locks of the
// memories it points into.
unsafe impl Send for Output {}

/// The expected layout of an input column.
struct Column {
    name: String,
    bytes: usize,
    alignment: usize,
}

/// Aborts the program after an instruction if the loss is not finite.
///
/// It follows the instruction that computes the loss, before any state update. If the plan has a state update before
/// that, it is at the end: the run is then aborted after the step, not before it.
struct Guard {
    after: usize,
    loss: Output,
}

impl CpuProgram {
    /// Loads `program` for exactly `rows` rows.
    ///
    /// # Errors
    ///
    /// If no kernel supports an op's configuration, or the memory belongs to another device or is too small.
    pub fn load(
        pool: &Arc<ThreadPool>,
        group: &Arc<dyn Group>,
        copier: Option<&Arc<Copier>>,
        program: &Program,
        rows: usize,
        memory: &StepMemory<'_>,
    ) -> Result<CpuProgram, DeviceError> {
        let block = |memory: &dyn plimsoll_core::device::Memory| match memory.as_any().downcast_ref::<CpuMemory>() {
            Some(memory) => Ok(Arc::clone(&memory.0)),
            None => Err(unsupported("the memory was made by another device")),
        };
        let (resident, arena) = (block(memory.resident)?, block(memory.arena)?);
        // The plan's checker knows them as different spaces, in which offsets never meet.
        if Arc::ptr_eq(&resident, &arena) {
            return Err(unsupported("states and the arena have the same memory; allocate one for each"));
        }
        let memories = ProgramMemory::Bound { resident: &resident, arena: &arena };
        let lowering = Lowering { program, rows, threads: pool.threads(), memory: memories };
        let mut instructions = Vec::with_capacity(program.order.len());
        for (step, id) in program.order.iter().enumerate() {
            let node = program.graph.node(*id);
            let named = |what: String| {
                let op = node.op.rules().name();
                unsupported(if node.scope.is_empty() { format!("{op}: {what}") } else { format!("{op} of `{}`: {what}", node.scope) })
            };
            let here = |value: &&ValueId| !matches!(program.places[value.0 as usize], Some(Place::Backing(_)));
            let outputs = match &node.op {
                // The rest of the concat output was checked when it was written.
                Op::SliceWrite(_) => vec![],
                Op::FusedSliceWrite(_) => vec![lowering.destination(node).and_then(|to| made(&to, rows)).map_err(named)?],
                _ => {
                    let outputs = node.outputs.iter().filter(here).map(|value| output(&lowering, *value));
                    outputs.collect::<Result<Vec<_>, _>>().map_err(named)?
                }
            };
            let work = work(&lowering, node, program.workspaces[step], group).map_err(named)?;
            let writes_state = node.outputs.iter().any(|value| match program.places[value.0 as usize] {
                Some(Place::Resident(_)) => true,
                Some(Place::Backing(_)) => program.graph.updates().iter().any(|(_, changed)| changed == value),
                _ => false,
            });
            instructions.push(Instruction { node: *id, work, outputs, writes_state });
        }
        let columns = program.graph.inputs().iter().map(|input| Column {
            name: input.name.clone(),
            bytes: input.ty.bytes(rows).0 as usize,
            alignment: input.ty.dtype.size(),
        });
        let guard = guard(&lowering, &instructions).map_err(unsupported)?;
        let hold = guard.as_ref().map_or(0, |guard| guard.after + 1);
        let copies = OffloadCopies::of(&lowering, hold, copier, memory.backing)?;
        let numbers = program.numbers().map(|(_, value)| output(&lowering, value)).collect::<Result<Vec<_>, _>>().map_err(unsupported)?;
        Ok(CpuProgram {
            pool: Arc::clone(pool),
            columns: columns.collect(),
            scalars: program.graph.scalars().len(),
            numbers,
            guard,
            copies,
            instructions,
            resident,
            arena,
        })
    }

    /// Checks that columns and scalars match the loaded program.
    fn check(&self, inputs: &StepInputs<'_>) -> Result<(), DeviceError> {
        if inputs.columns.len() != self.columns.len() {
            return Err(unsupported(format!("the program reads {} columns, but got {}", self.columns.len(), inputs.columns.len())));
        }
        if inputs.scalars.len() != self.scalars {
            return Err(unsupported(format!("the program reads {} scalars, but got {}", self.scalars, inputs.scalars.len())));
        }
        for (column, given) in self.columns.iter().zip(inputs.columns) {
            let Column { name, bytes, alignment } = column;
            if given.len() != *bytes {
                return Err(unsupported(format!("the column `{name}` has {bytes} bytes, but got {}", given.len())));
            }
            if !(given.as_ptr() as usize).is_multiple_of(*alignment) {
                return Err(unsupported(format!("the column `{name}` does not begin at a multiple of {alignment} bytes")));
            }
        }
        Ok(())
    }
}

impl CpuProgram {
    /// Runs all instructions and calls `ran` after each; that function is generic so that a run that nobody observes
    /// does not pay for it.
    fn execute(&mut self, inputs: &StepInputs<'_>, mut ran: impl FnMut(NodeId)) -> Result<(), DeviceError> {
        self.check(inputs)?;
        let _alone = (self.arena.lock(), self.resident.lock());
        let guard = self.guard.as_ref();
        // SAFETY: both locks are held. `copying` is dropped before them, and each instruction runs behind `before` of
        // its number.
        let copying = self.copies.as_ref().map(|copies| unsafe { copies.run() });
        for (i, instruction) in self.instructions.iter_mut().enumerate() {
            if let Some(copying) = &copying {
                copying.before(i)?;
            }
            match &mut instruction.work {
                // SAFETY: the inputs were just checked against the graph, and both locks are held. Every address was
                // checked against its memory at load time. Types, alignment, and that values alias only where allowed
                // follow from `CheckedPlan` and `check_load`, which hold whatever the plan's public fields are.
                Work::Kernel(call) => unsafe { call.run(&self.pool, &Bindings::of(inputs)) },
                // SAFETY: as above.
                Work::Collective(call) => unsafe { call.run(&Bindings::of(inputs)) }?,
                // SAFETY: as above.
                Work::Shards(call) => unsafe { call.run(&Bindings::of(inputs)) }?,
                Work::Copy => {
                    ran(instruction.node);
                    continue;
                }
            }
            ran(instruction.node);
            if let Some(guard) = guard
                && guard.after == i
                // SAFETY: both locks are held.
                && unsafe { guard.loss.is_non_finite() }
            {
                return Err(DeviceError::NonFinite);
            }
        }
        copying.map_or(Ok(()), |copying| copying.before(self.instructions.len()))
    }
}

impl Loaded for CpuProgram {
    fn run(&mut self, inputs: &StepInputs<'_>) -> Result<(), DeviceError> {
        self.execute(inputs, |_| {})
    }

    fn trace(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<NodeSpan>, DeviceError> {
        let mut spans = Vec::with_capacity(self.instructions.len());
        let begin = Instant::now();
        let mut start_s = 0.0;
        self.execute(inputs, |node| {
            let end_s = begin.elapsed().as_secs_f64();
            spans.push(NodeSpan { node, start_s, end_s });
            start_s = end_s;
        })?;
        Ok(spans)
    }

    fn outcome(&mut self, back: u64, numbers: &mut [f32]) -> Result<(), DeviceError> {
        if back > 0 {
            return Err(unsupported("only the last run is known"));
        }
        let _alone = (self.arena.lock(), self.resident.lock());
        for (number, output) in numbers.iter_mut().zip(&self.numbers) {
            // SAFETY: the address was checked against its memory, whose lock is held.
            *number = unsafe { output.address.cast::<f32>().read_unaligned() };
        }
        Ok(())
    }

    fn find_non_finite(&mut self, inputs: Option<&StepInputs<'_>>) -> Result<Option<NodeId>, DeviceError> {
        let inputs = inputs.ok_or_else(|| unsupported("the inputs of earlier runs are not kept"))?;
        self.check(inputs)?;
        let _alone = (self.arena.lock(), self.resident.lock());
        for (i, instruction) in self.instructions.iter_mut().enumerate().take_while(|(_, instruction)| !instruction.writes_state) {
            match &mut instruction.work {
                // SAFETY: as in `run`.
                Work::Kernel(call) => unsafe { call.run(&self.pool, &Bindings::of(inputs)) },
                // Other ranks do not repeat the step.
                Work::Collective(_) | Work::Shards(_) => return Ok(None),
                // SAFETY: as in `run`; nothing runs concurrently.
                Work::Copy => unsafe { self.copies.as_ref().map_or(Ok(()), |copies| copies.make(i)) }?,
            }
            // SAFETY: both locks are held.
            if instruction.outputs.iter().any(|output| unsafe { output.is_non_finite() }) {
                return Ok(Some(instruction.node));
            }
        }
        Ok(None)
    }
}

impl Output {
    /// Whether an element is not finite.
    ///
    /// # Safety
    /// The locks of the program's memories are held.
    unsafe fn is_non_finite(&self) -> bool {
        // SAFETY: the address was checked against its memory, and the caller holds that memory's lock.
        unsafe {
            let Some(PitchedRows { length, pitch }) = self.runs else { return any_non_finite(self.dtype, self.address, self.count) };
            let run = |i: usize| self.address.wrapping_add(i * pitch * self.dtype.size());
            (0..self.count / length.max(1)).any(|i| any_non_finite(self.dtype, run(i), length))
        }
    }
}

fn output(lowering: &Lowering<'_>, value: ValueId) -> Result<Output, String> {
    made(&lowering.own(value)?, lowering.rows)
}

fn made(to: &Destination, rows: usize) -> Result<Output, String> {
    Ok(Output { dtype: to.dtype(), address: fixed(to.address)?, count: to.count(rows), runs: to.runs })
}

/// What a node's instruction does; its workspace is at this offset of the arena and has this size.
fn work(lowering: &Lowering<'_>, node: &Node, workspace: (Bytes, Bytes), group: &Arc<dyn Group>) -> Result<Work, String> {
    Ok(match node.op {
        Op::Store(_) | Op::Load(_) => Work::Copy,
        Op::AllReduce(op) => Work::Collective(AllReduceCall::new(op, node, workspace, lowering, group)?),
        Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => Work::Shards(ShardsCall::new(node, workspace, lowering, group)?),
        _ => Work::Kernel(lowering.lower(node, workspace)?),
    })
}

/// The guard of a program that updates states and has a loss.
fn guard(lowering: &Lowering<'_>, instructions: &[Instruction]) -> Result<Option<Guard>, String> {
    let graph = &lowering.program.graph;
    let Some((_, loss)) = graph.outputs().iter().find(|(name, _)| name == "loss") else { return Ok(None) };
    if graph.updates().is_empty() || graph.ty(*loss).dtype != DType::F32 {
        return Ok(None);
    }
    let mut root = *loss;
    while let Op::Reshape(_) = graph.producer(root).op {
        root = graph.producer(root).inputs[0];
    }
    let made = instructions.iter().position(|instruction| graph.node(instruction.node).outputs.contains(&root));
    let Some(made) = made else { return Ok(None) };
    let too_late = instructions[..=made].iter().any(|instruction| instruction.writes_state);
    let after = if too_late { instructions.len() - 1 } else { made };
    Ok(Some(Guard { after, loss: output(lowering, *loss)? }))
}

fn unsupported(what: impl Into<String>) -> DeviceError {
    DeviceError::Unsupported { device: DEVICE.to_string(), what: what.into() }
}
