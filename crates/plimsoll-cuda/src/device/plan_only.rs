//! A device for planning without a GPU.

use super::cost::GpuCostModel;
use super::overhead::{TUNING, cudnn_overhead, host_staging, plan_overhead};
use super::profile::{Profile, capabilities};
use crate::algorithms::convolution::Convolutions;
use crate::program;
use plimsoll_core::device::{Device, DeviceError, Diagnostics, Loaded, Memory, MemoryInfo, StepMemory};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::SliceWrite;
use plimsoll_core::plan::{Capabilities, CheckedPlan, CostModel, Footprint, Overhead, Plan, Target};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Op, TensorType};
use std::sync::Arc;

/// A device without hardware: plans for it are identical to those on the real GPU.
pub struct PlanOnly {
    profile: Profile,
    ordinal: usize,
    measures_algorithms: bool,
}

impl PlanOnly {
    /// A device named `cuda:ordinal` with this profile.
    pub fn new(profile: Profile, ordinal: usize) -> PlanOnly {
        PlanOnly { profile, ordinal, measures_algorithms: false }
    }

    /// Plans for runs that measure the algorithms of libraries.
    pub fn with_measured_algorithms(self) -> PlanOnly {
        PlanOnly { measures_algorithms: true, ..self }
    }

    fn absent(&self) -> DeviceError {
        let what = format!("only plans can be made from the profile `{}`; leave out `--device-profile` to compute", self.profile.name);
        DeviceError::Unsupported { device: self.name(), what }
    }
}

impl Target for PlanOnly {
    fn name(&self) -> String {
        format!("cuda:{}", self.ordinal)
    }

    fn description(&self) -> String {
        format!("{}, from its profile", self.profile.model)
    }

    fn capabilities(&self) -> Capabilities {
        capabilities(self.profile.model)
    }

    fn footprint(&self, plan: &Plan) -> Footprint {
        let tuning = if self.measures_algorithms { TUNING } else { Overhead::default() };
        let cudnn = cudnn_overhead(plan, Convolutions::Auto, self.profile.cudnn);
        let runtime = self.profile.overhead + cudnn + plan_overhead(plan) + tuning;
        Footprint { runtime, host_staging: host_staging(plan), host_backing: plan.backing }
    }

    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(GpuCostModel)
    }

    fn fuses_slice_write(&self, maker: &Op, _: &TensorType, _: &SliceWrite) -> bool {
        program::fuses_slice_write(maker)
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        program::workspace(graph, node, rows, Convolutions::Auto)
    }
}

impl Device for PlanOnly {
    fn memory_info(&self) -> Option<MemoryInfo> {
        Some(MemoryInfo { available: self.profile.total, in_use: Bytes::ZERO })
    }

    fn diagnostics(&self) -> Option<&dyn Diagnostics> {
        Some(self)
    }

    fn allocate(&self, _: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Err(self.absent())
    }

    fn load(&self, _: &CheckedPlan, _: Role, _: usize, _: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        Err(self.absent())
    }
}

impl Diagnostics for PlanOnly {
    fn measure_copies(&self) -> Result<(f64, f64), DeviceError> {
        Err(self.absent())
    }

    fn convolution_algorithms(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    fn kernel_sources(&self, plan: &CheckedPlan, role: Role, rows: usize) -> Result<Vec<String>, DeviceError> {
        program::kernel_sources(plan, plan.expect_program(role), rows, Convolutions::Auto)
            .map_err(|what| DeviceError::Unsupported { device: self.name(), what })
    }
}
