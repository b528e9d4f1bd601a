//! What a device is to the rest of the system: memory, workspaces, and programs turned into something that runs.

use crate::base::budget::SlotMemory;
use crate::base::random::StepRandom;
use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, Node, NodeId};
use crate::ir::op::Op;
use crate::ir::ops::SliceWrite;
use crate::plan::recompute::{CostModel, Rates};
use crate::plan::{Plan, Program};
use crate::{Bytes, LedgerError};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A device: a value behind one object-safe trait, so that nothing else is generic over it.
pub trait Device: Send + Sync {
    /// The name people choose it by, such as `cpu` or `cuda:0`.
    fn name(&self) -> String;

    /// What it is, in words.
    fn description(&self) -> String;

    /// Whether its memory is the host's, so that both lines are one.
    fn shares_host_memory(&self) -> bool;

    /// What every offset must be a multiple of; a power of two.
    fn alignment(&self) -> Bytes;

    /// What the device's own software takes besides what a plan places, if it is to run this one.
    fn overhead(&self, plan: &Plan) -> Overhead {
        let _ = plan;
        Overhead::default()
    }

    /// How many convolutions of the programs loaded so far went which way, by name, where there is more than one.
    fn taken(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    /// Bytes of its own memory that are free, its own software's included; none if it shares the host's.
    fn available(&self) -> Option<Bytes> {
        None
    }

    /// Bytes of its own memory that are in use now, by everybody; none if it shares the host's.
    fn in_use(&self) -> Option<Bytes> {
        None
    }

    /// Host memory that the device needs to run a plan: what batches are handed over in.
    fn host_staging(&self, plan: &Plan) -> Bytes {
        let _ = plan;
        Bytes::ZERO
    }

    /// Host memory that batches are best made in: columns that lie in it reach the device without the host's help. None where any memory does as well.
    fn slot_memory(&self, size: Bytes) -> Result<Option<Box<dyn SlotMemory>>, DeviceError> {
        let _ = size;
        Ok(None)
    }

    /// Host memory that the device needs for a plan's backing store.
    fn host_backing(&self, plan: &Plan) -> Bytes {
        plan.backing
    }

    /// How long nodes are thought to take where nobody has measured it.
    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(self.rates())
    }

    /// How fast tensors go to the backing store and come back.
    fn copy_rate(&self) -> CopyRate {
        CopyRate::default()
    }

    /// Measures [`copy_rate`](Device::copy_rate): bytes a second into the backing store, and out of it. Devices that leave that to others say nothing.
    fn measure_copies(&self) -> Result<Option<(f64, f64)>, DeviceError> {
        Ok(None)
    }

    /// The plain rates behind [`cost_model`](Device::cost_model): what measured times are compared with before they are carried over to other sizes.
    fn rates(&self) -> Rates {
        Rates::default()
    }

    /// Takes a backing store. Unless the device says otherwise it is a piece of the host's memory.
    fn backing(&self, size: Bytes) -> Result<Arc<dyn BackingStore>, DeviceError> {
        Ok(Arc::new(MemoryStore::new(size)))
    }

    /// The scratch a node's kernel needs for at most `rows` rows. Never less for more rows.
    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes;

    /// Whether a node that is given its rows (the first axis, a multiple of the batch) in pieces computes the same bits, for any batch of at most `rows`: each row as
    /// if all others were beside it, or, for what sums over the rows, each piece's sum onto that of the piece before ([`MatMul::onto`](crate::ir::ops::MatMul::onto)) as
    /// if it had not stopped between them.
    fn can_split_rows(&self, graph: &Graph, node: &Node, piece: RowSplit, rows: usize) -> bool {
        let _ = (graph, node, piece, rows);
        false
    }

    /// Whether expressions and reductions read [strips](crate::ir::ops::ChannelView) of tensors where they lie.
    fn reads_channel_views(&self) -> bool {
        false
    }

    /// Whether what `maker` makes can be written where it goes in a whole, in rows that lie as far apart as they do there ([`FusedSliceWrite`](crate::ir::ops::FusedSliceWrite)), with the
    /// bits it would have by itself.
    fn fuses_slice_write(&self, maker: &Op, part: &TensorType, place: &SliceWrite) -> bool {
        let _ = (maker, part, place);
        false
    }

    /// Takes memory from the device, zeroed.
    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError>;

    /// Resolves a program for exactly `rows` rows into something that runs in the given memory.
    fn load(&self, plan: &Plan, program: &Program, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError>;
}

/// How rows are cut into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSplit {
    /// Each has this many times the batch.
    Multiple(usize),
    /// Each has what belongs to this many rows of the batch. The last has what is left, which may be a single row; where the batch ends early, some have none.
    Rows(usize),
}

/// What a device's own software takes besides any plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// On the device.
    pub device: Bytes,
    /// On the host.
    pub host: Bytes,
}

impl std::ops::Add for Overhead {
    type Output = Overhead;

    fn add(self, other: Overhead) -> Overhead {
        Overhead { device: self.device + other.device, host: self.host + other.host }
    }
}

/// How fast tensors go to a backing store and come back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyRate {
    /// Bytes a second, one way.
    pub bytes_per_s: f64,
    /// Whether both ways go at once.
    pub both_ways: bool,
    /// Seconds by which every byte holds up what is computed meanwhile: what copying takes of the processors that compute.
    pub compute_s_per_byte: f64,
}

impl Default for CopyRate {
    /// A file on a disk, copied to and from by a processor.
    fn default() -> CopyRate {
        CopyRate { bytes_per_s: 1e9, both_ways: false, compute_s_per_byte: 6e-10 }
    }
}

/// Where tensors are that a device does not need for a while: pinned host memory, or a file.
pub trait BackingStore: Send + Sync {
    /// Its size.
    fn size(&self) -> Bytes;

    /// Copies bytes from it.
    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes into it.
    fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError>;

    /// For the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// A backing store in plain memory.
pub struct MemoryStore(Mutex<Vec<u8>>);

impl MemoryStore {
    /// One of this size, zeroed.
    pub fn new(size: Bytes) -> MemoryStore {
        MemoryStore(Mutex::new(vec![0; size.get()]))
    }
}

impl BackingStore for MemoryStore {
    fn size(&self) -> Bytes {
        Bytes(self.0.lock().unwrap_or_else(PoisonError::into_inner).len() as u64)
    }

    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError> {
        bytes.copy_from_slice(&self.0.lock().unwrap_or_else(PoisonError::into_inner)[offset.get()..][..bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)[offset.get()..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The memories a plan runs in.
pub struct StepMemory<'a> {
    /// Lives from step to step.
    pub resident: &'a dyn Memory,
    /// Lives within a step.
    pub arena: &'a dyn Memory,
    /// Where tensors are that are not needed for a while, if the plan puts any there.
    pub backing: Option<&'a Arc<dyn BackingStore>>,
}

/// A piece of a device's memory.
pub trait Memory: Send {
    /// Its size.
    fn size(&self) -> Bytes;

    /// Copies bytes from the host.
    fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Copies bytes to the host, after everything that was started has finished.
    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// For the device that made it.
    fn as_any(&self) -> &dyn Any;
}

/// What the host gives to one run of a program.
pub struct StepInputs<'a> {
    /// The batch's columns, each exactly as long as its type says for the loaded rows.
    pub columns: &'a [&'a [u8]],
    /// The scalars, in their order.
    pub scalars: &'a [f32],
    /// Where the random numbers stand.
    pub random: StepRandom,
}

/// A program resolved for a number of rows. Running it allocates nothing.
pub trait Loaded: Send {
    /// Runs it once. The columns may be overwritten when this returns.
    ///
    /// If the loss is not finite, nothing is changed, and that is [`DeviceError::NonFinite`]: here if the device has finished when this returns,
    /// else from [`outcome`](Loaded::outcome).
    fn run(&mut self, inputs: &StepInputs<'_>) -> Result<(), DeviceError>;

    /// Waits for a run and gives the program's [numbers](crate::plan::Program::numbers), as many as are asked for. `back` is 0 for this program's last run;
    /// a device with its own memory still knows the one before (1), so that the host can ask while the next is under way.
    fn outcome(&mut self, back: u64, numbers: &mut [f32]) -> Result<(), DeviceError>;

    /// Runs it until a node makes something that is not finite, and names that node. Changes no state before that node.
    /// Without inputs it looks at those of the run whose outcome was not finite, if the device still has them.
    fn find_non_finite(&mut self, inputs: Option<&StepInputs<'_>>) -> Result<Option<NodeId>, DeviceError>;

    /// Runs the nodes one after another, each as often as it takes to know how many seconds it needs, by the device's own clock. States mean nothing
    /// afterwards. A device whose work the host's clock can time says nothing.
    fn node_seconds(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<(NodeId, f64)>, DeviceError> {
        let _ = inputs;
        Ok(Vec::new())
    }
}

/// What can go wrong on a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The system did not give the memory.
    #[error("{device} could not give {size} of memory: {reason}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// How much was asked for.
        size: Bytes,
        /// What the system said.
        reason: String,
    },
    /// The line would be crossed.
    #[error(transparent)]
    OverBudget(#[from] LedgerError),
    /// The loss is not a finite number.
    #[error("the loss is not a finite number")]
    NonFinite,
    /// The device or its software failed.
    #[error("{device}: {what}")]
    Failed {
        /// The device.
        device: String,
        /// What it said, and what may help.
        what: String,
    },
    /// The device cannot do this.
    #[error("{device}: {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// What it cannot do.
        what: String,
    },
}
