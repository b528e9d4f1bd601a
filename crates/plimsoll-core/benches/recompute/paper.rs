//! A device that can be planned for and nothing else.

use plimsoll_core::device::{Loaded, Memory, StepMemory};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::Program;
use plimsoll_core::{Bytes, Device, DeviceError, Plan};

/// Kernels without scratch, so that the figures are about values alone.
pub struct Paper;

impl Device for Paper {
    fn name(&self) -> String {
        "paper".to_string()
    }

    fn description(&self) -> String {
        "a device without kernels".to_string()
    }

    fn shares_host_memory(&self) -> bool {
        true
    }

    fn alignment(&self) -> Bytes {
        Bytes(64)
    }

    fn workspace(&self, _: &Graph, _: &Node, _: usize) -> Bytes {
        Bytes::ZERO
    }

    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Err(DeviceError::OutOfMemory { device: self.name(), size, reason: "it is made of paper".to_string() })
    }

    fn load(&self, _: &Plan, _: &Program, _: usize, _: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        Err(DeviceError::Unsupported { device: self.name(), what: "it is made of paper".to_string() })
    }
}
