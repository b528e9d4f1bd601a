//! The device interface: memory, backing stores, and loaded programs.

mod executable;

use crate::base::budget::SlotMemory;
use crate::base::random::StepRandom;
use crate::ir::graph::{Graph, NodeId};
use crate::plan::{CheckedPlan, Target};
use crate::transform::step::Role;
use crate::{Bytes, LedgerError};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use executable::{Executable, Region, RunBuffers};

/// A device: a value behind one object-safe trait, so that no other code is generic over it. [`Target`] is the
/// planner's part of it.
pub trait Device: Target {
    /// Current state of the device's own memory; none if it shares host memory.
    fn memory_info(&self) -> Option<MemoryInfo> {
        None
    }

    /// Host memory from which the device copies batches asynchronously, such as pinned memory. None if any memory is
    /// equally good.
    fn slot_memory(&self, size: Bytes) -> Result<Option<Box<dyn SlotMemory>>, DeviceError> {
        let _ = size;
        Ok(None)
    }

    /// Allocates zeroed memory on the device.
    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError>;

    /// Reserves addresses for memory that is committed in parts, so that an allocation can grow in place. None if the
    /// device cannot do that.
    fn reserve(&self, size: Bytes) -> Result<Option<Box<dyn ReservedMemory>>, DeviceError> {
        let _ = size;
        Ok(None)
    }

    /// Allocates a backing store; host memory unless the device overrides it.
    fn backing_store(&self, size: Bytes) -> Result<Arc<dyn BackingStore>, DeviceError> {
        Ok(Arc::new(MemoryStore::new(size)))
    }

    /// A hint, while a run is planned: it will probably load a program of this graph for `rows` rows. A device may
    /// begin to compile what does not depend on the plan.
    fn prepare(&self, graph: &Graph, rows: usize) {
        let _ = (graph, rows);
    }

    /// Loads the plan's program of this role for exactly `rows` rows, bound to the given memory.
    fn load(&self, plan: &CheckedPlan, role: Role, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError>;

    /// Loads the plan's program of this role for the planned rows, without memory: every run names its own.
    ///
    /// # Errors
    /// If the device does not support that.
    fn executable(&self, plan: &CheckedPlan, role: Role) -> Result<Box<dyn Executable>, DeviceError> {
        let _ = (plan, role);
        Err(DeviceError::Unsupported {
            device: self.name(),
            what: "does not run programs on memory that is given for every run".to_string(),
        })
    }

    /// Diagnostics, which neither planning nor running needs.
    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        None
    }
}

/// Checks what the kernels of a device rely on when a plan is loaded for `rows` rows: buffers do not overlap for at
/// most the planned rows, and are aligned as the device asks. Devices call it in [`Device::load`].
///
/// # Errors
/// If the plan holds for fewer rows, or was made for a smaller alignment.
pub fn check_load(device: &dyn Target, plan: &CheckedPlan, rows: usize) -> Result<(), DeviceError> {
    let unsupported = |what: String| Err(DeviceError::Unsupported { device: device.name(), what });
    if rows > plan.rows {
        return unsupported(format!("the plan holds for {} rows, not for {rows}; plan for more rows", plan.rows));
    }
    let alignment = device.capabilities().alignment;
    if !plan.alignment.0.is_multiple_of(alignment.0) {
        return unsupported(format!(
            "the plan aligns buffers to {}, but this device needs {alignment}; plan for this device",
            plan.alignment
        ));
    }
    Ok(())
}

/// Optional diagnostics of a device.
pub trait Diagnostics {
    /// Measures the bandwidth of copies to and from the backing store, in bytes per second.
    fn measure_copies(&self) -> Result<(f64, f64), DeviceError>;

    /// Number of convolutions in the loaded programs per library or kernel, by name.
    fn convolution_algorithms(&self) -> Vec<(String, usize)>;

    /// The library algorithms that were measured for the loaded programs, by request; none if they follow from rules.
    /// With the same ones, a program has the same results.
    fn algorithms(&self) -> Option<BTreeMap<String, String>> {
        None
    }

    /// Uses these algorithms, which another run recorded, instead of measuring. Called before programs are loaded.
    fn keep_algorithms(&self, recorded: &BTreeMap<String, String>) {
        let _ = recorded;
    }

    /// A warning if some recorded algorithms are not available in the libraries of this machine.
    fn rejected_algorithms(&self, recorded: &BTreeMap<String, String>) -> Option<String> {
        let _ = recorded;
        None
    }

    /// Calls `report` while algorithms are measured, with the number of library calls that are done and of all.
    fn on_selection(&self, report: Box<dyn FnMut(usize, usize) + Send>) {
        drop(report);
    }

    /// Seconds that opening the device and loading programs took so far, by what they were spent on. Some of it happens
    /// at the same time.
    fn start_seconds(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// The generated source of a program's kernels for `rows` rows, each with the scopes that it is named after.
    fn kernel_sources(&self, plan: &CheckedPlan, role: Role, rows: usize) -> Result<Vec<String>, DeviceError>;
}

/// The state of a device's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that a run may use, including the device runtime.
    pub available: Bytes,
    /// Bytes in use by all processes.
    pub in_use: Bytes,
}

/// Storage for offloaded tensors: pinned host memory, or a file.
pub trait BackingStore: Send + Sync {
    /// Its size.
    fn size(&self) -> Bytes;

    /// Copies bytes from it.
    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes into it.
    fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError>;

    /// For downcasts by the device that created it.
    fn as_any(&self) -> &dyn Any;
}

/// A backing store in plain memory.
pub struct MemoryStore(Mutex<Vec<u8>>);

impl MemoryStore {
    /// A zeroed store of this size.
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

/// The memory that a plan runs in.
pub struct StepMemory<'a> {
    /// Persists across steps.
    pub resident: &'a dyn Memory,
    /// Lives within a step.
    pub arena: &'a dyn Memory,
    /// Storage for offloaded tensors, if the plan has any.
    pub backing: Option<&'a Arc<dyn BackingStore>>,
}

/// An allocation on a device.
pub trait Memory: Send {
    /// Its size.
    fn size(&self) -> Bytes;

    /// Copies bytes from the host.
    fn write(&mut self, offset: Bytes, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Overwrites bytes with zeros.
    fn zero(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let zeros = [0; 4096];
        for start in (0..length.0).step_by(zeros.len()) {
            let length = (length.0 - start).min(zeros.len() as u64) as usize;
            self.write(offset + Bytes(start), &zeros[..length])?;
        }
        Ok(())
    }

    /// Copies bytes to the host after all submitted work has completed.
    fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Copies bytes within the allocation, after all submitted work has completed. The ranges may overlap.
    fn copy_within(&mut self, from: Bytes, to: Bytes, length: Bytes) -> Result<(), DeviceError> {
        let mut bytes = vec![0; length.0.min(1 << 20) as usize];
        let parts = length.0.div_ceil(1 << 20);
        for part in 0..parts {
            // The part that no later one reads first.
            let part = if to < from { part } else { parts - 1 - part };
            let start = Bytes(part << 20);
            let bytes = &mut bytes[..(length - start).0.min(1 << 20) as usize];
            self.read(from + start, bytes)?;
            self.write(to + start, bytes)?;
        }
        Ok(())
    }

    /// A second handle to the same allocation, to load a program while this one is written to; none if the device has
    /// no use for that.
    fn share(&self) -> Option<Box<dyn Memory>> {
        None
    }

    /// For downcasts by the device that created it.
    fn as_any(&self) -> &dyn Any;
}

/// Addresses of which parts have memory. Its [size](Memory::size) is that of the addresses; only committed parts may be
/// accessed.
pub trait ReservedMemory: Memory {
    /// Parts are multiples of this size, a power of two.
    fn granule(&self) -> Bytes;

    /// Puts zeroed memory behind these addresses. The address of no byte changes.
    fn commit(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError>;

    /// Gives the memory behind these addresses back to the system. Nothing may be using it.
    fn decommit(&mut self, offset: Bytes, length: Bytes) -> Result<(), DeviceError>;
}

/// The inputs of one run of a program.
pub struct StepInputs<'a> {
    /// The batch's columns, each with exactly the size of its type for the loaded rows.
    pub columns: &'a [&'a [u8]],
    /// The scalars, in their order.
    pub scalars: &'a [f32],
    /// State of the random streams.
    pub random: StepRandom,
}

/// A program loaded for a number of rows. Running it does not allocate.
pub trait Loaded: Send {
    /// Runs it once. The columns may be overwritten when this returns.
    ///
    /// If the loss is not finite, no state is changed and the result is [`DeviceError::NonFinite`]: here if the run is
    /// synchronous, otherwise from [`outcome`](Loaded::outcome).
    fn run(&mut self, inputs: &StepInputs<'_>) -> Result<(), DeviceError>;

    /// Waits for a run and fills `numbers` with the program's [scalar outputs](crate::plan::Program::numbers). `back`
    /// is 0 for this program's last run; a device with its own memory also retains the previous one (1), so that the
    /// host can read it while the next is running.
    fn outcome(&mut self, back: u64, numbers: &mut [f32]) -> Result<(), DeviceError>;

    /// Runs until a node has a non-finite output, and returns that node. Changes no state before that node. Without
    /// inputs it uses those of the run with the non-finite outcome, if the device still has them.
    fn find_non_finite(&mut self, inputs: Option<&StepInputs<'_>>) -> Result<Option<NodeId>, DeviceError>;

    /// Runs each node repeatedly and measures its seconds with the device's own clock. States are undefined afterwards.
    /// A device that the host's clock can time returns nothing.
    fn node_seconds(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<(NodeId, f64)>, DeviceError> {
        let _ = inputs;
        Ok(Vec::new())
    }

    /// Runs it once and returns when each node ran. A device that measures nodes [one by one](Loaded::node_seconds)
    /// returns them one after the other; its states are undefined afterwards.
    fn trace(&mut self, inputs: &StepInputs<'_>) -> Result<Vec<NodeSpan>, DeviceError> {
        let mut now = 0.0;
        let span = |(node, seconds)| {
            let start_s = now;
            now += seconds;
            NodeSpan { node, start_s, end_s: now }
        };
        Ok(self.node_seconds(inputs)?.into_iter().map(span).collect())
    }
}

/// When a node ran, in seconds since its program began.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NodeSpan {
    /// The node.
    pub node: NodeId,
    /// When it began.
    pub start_s: f64,
    /// When it ended.
    pub end_s: f64,
}

/// An error of a device.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The allocation failed.
    #[error("{device} could not give {size} of memory: {reason}")]
    OutOfMemory {
        /// The device.
        device: String,
        /// The requested size.
        size: Bytes,
        /// The system's error message.
        reason: String,
    },
    /// The budget would be exceeded.
    #[error(transparent)]
    OverBudget(#[from] LedgerError),
    /// The loss is not a finite number.
    #[error("the loss is not a finite number")]
    NonFinite,
    /// The device or its runtime failed.
    #[error("{device}: {what}")]
    Failed {
        /// The device.
        device: String,
        /// The error message, and a possible fix.
        what: String,
    },
    /// The device cannot do this.
    #[error("{device}: {what}")]
    Unsupported {
        /// The device.
        device: String,
        /// The unsupported feature.
        what: String,
    },
}
