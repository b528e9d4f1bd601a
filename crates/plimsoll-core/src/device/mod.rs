//! What a device implements: memory, backing stores, and programs that are ready to run.

use crate::base::budget::SlotMemory;
use crate::base::random::StepRandom;
use crate::ir::graph::NodeId;
use crate::plan::{CheckedPlan, Target};
use crate::transform::step::Role;
use crate::{Bytes, LedgerError};
use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

/// A device: a value behind one object-safe trait, so that nothing else is generic over it. What the planner needs to know about it is its [`Target`].
pub trait Device: Target {
    /// The device's own memory now; none if it shares the host's.
    fn memory_info(&self) -> Option<MemoryInfo> {
        None
    }

    /// Host memory from which the device copies batches without the host's help, such as pinned memory. None where any memory does as well.
    fn slot_memory(&self, size: Bytes) -> Result<Option<Box<dyn SlotMemory>>, DeviceError> {
        let _ = size;
        Ok(None)
    }

    /// Allocates zeroed memory on the device.
    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError>;

    /// Allocates a backing store; host memory unless the device overrides it.
    fn backing_store(&self, size: Bytes) -> Result<Arc<dyn BackingStore>, DeviceError> {
        Ok(Arc::new(MemoryStore::new(size)))
    }

    /// Resolves the plan's program of this role for exactly `rows` rows into something that runs in the given memory.
    fn load(&self, plan: &CheckedPlan, role: Role, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError>;

    /// Measurements of the device's libraries, which neither planning nor running needs.
    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        None
    }
}

/// What some devices can say about themselves beside running programs.
pub trait Diagnostics {
    /// Measures copies: bytes per second into the backing store, and out of it.
    fn measure_copies(&self) -> Result<(f64, f64), DeviceError>;

    /// How many convolutions of the programs loaded so far each library or kernel computes, by name.
    fn convolution_algorithms(&self) -> Vec<(String, usize)>;
}

/// The state of a device's own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Bytes that a run may take, the device's own software included.
    pub available: Bytes,
    /// Bytes in use by all processes.
    pub in_use: Bytes,
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
