//! A GPU that is only planned for.

use super::cost::GpuPace;
use super::overhead::{cudnn_overhead, host_staging, plan_overhead};
use super::profile::{Profile, copy_rate};
use crate::algorithms::ALIGNMENT;
use crate::algorithms::convolution::Convolutions;
use crate::program;
use plimsoll_core::device::{CopyRate, Device, DeviceError, Loaded, Memory, Overhead, StepMemory};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::SliceWrite;
use plimsoll_core::plan::recompute::{CostModel, Rates};
use plimsoll_core::plan::{Plan, Program};
use plimsoll_core::{Bytes, Op, TensorType};
use std::sync::Arc;

/// A GPU that is not here: plans can be made for it, and they are the same as on one that is.
pub struct PlanOnly {
    profile: Profile,
    ordinal: usize,
}

impl PlanOnly {
    /// As if `cuda:ordinal` were a GPU of this profile.
    pub fn new(profile: Profile, ordinal: usize) -> PlanOnly {
        PlanOnly { profile, ordinal }
    }

    fn absent(&self) -> DeviceError {
        let what = format!("only plans can be made from the profile `{}`; leave out `--device-profile` to compute", self.profile.name);
        DeviceError::Unsupported { device: self.name(), what }
    }
}

impl Device for PlanOnly {
    fn name(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    fn description(&self) -> String {
        format!("{}, from its profile", self.profile.model)
    }

    fn shares_host_memory(&self) -> bool {
        false
    }

    fn alignment(&self) -> Bytes {
        ALIGNMENT
    }

    fn overhead(&self, plan: &Plan) -> Overhead {
        self.profile.overhead + cudnn_overhead(plan, Convolutions::Auto, self.profile.cudnn) + plan_overhead(plan)
    }

    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(GpuPace)
    }

    fn rates(&self) -> Rates {
        GpuPace::SINGLE
    }

    fn available(&self) -> Option<Bytes> {
        Some(self.profile.total)
    }

    fn host_staging(&self, plan: &Plan) -> Bytes {
        host_staging(plan)
    }

    fn copy_rate(&self) -> CopyRate {
        copy_rate(self.profile.model)
    }

    fn reads_channel_views(&self) -> bool {
        true
    }

    fn fuses_slice_write(&self, maker: &Op, _: &TensorType, _: &SliceWrite) -> bool {
        program::fuses_slice_write(maker)
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        program::workspace(graph, node, rows, Convolutions::Auto)
    }

    fn allocate(&self, _: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Err(self.absent())
    }

    fn load(&self, _: &Plan, _: &Program, _: usize, _: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        Err(self.absent())
    }
}
