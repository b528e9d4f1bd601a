//! What is known of a GPU without having it: enough to make plans for it on any machine.

use crate::compile::compiling;
use crate::convolutions::Convolutions;
use crate::program;
use crate::staging::pinned;
use plimsoll_core::device::{CopyRate, Device, DeviceError, Loaded, Memory, Overhead, StepMemory};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::Put;
use plimsoll_core::plan::recompute::{Pace, Rates};
use plimsoll_core::plan::{Plan, Program};
use plimsoll_core::{Bytes, Op, TensorType};
use std::sync::Arc;

/// What every offset is a multiple of: what the driver itself aligns to, and what matrix products like best.
pub(crate) const ALIGNMENT: Bytes = Bytes(256);

/// What plans need to know of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name it is chosen by.
    pub name: &'static str,
    /// What it calls itself.
    pub model: &'static str,
    /// Its memory.
    pub total: Bytes,
    /// What CUDA takes for itself on the GPU and on the host: context, libraries, compiled kernels.
    pub overhead: Overhead,
    /// What cuDNN takes besides, in runs that use it: its handle, and the kernels that it loads when they are first used.
    pub cudnn: Overhead,
    /// Gigabytes a second between its memory and pinned memory of the host, one way; both ways go at once.
    pub host_gb_per_s: u32,
}

/// For GPUs nobody has measured; ample.
pub(crate) const ANY: Overhead = Overhead { device: Bytes::mib(640), host: Bytes::mib(640) };
/// For cuDNN on GPUs nobody has measured.
const ANY_CUDNN: Overhead = Overhead { device: Bytes::mib(256), host: Bytes::mib(512) };

/// As `overhead.rs` measures it there (with CUDA 13.0), rounded up.
const PROFILES: [Profile; 1] = [Profile {
    name: "h200",
    model: "NVIDIA H200",
    total: Bytes::mib(143_156),
    overhead: Overhead { device: Bytes::mib(348), host: Bytes::mib(610) },
    // Steps of ResNet-50 took 16 MiB and up to 350 MiB more with it.
    cudnn: Overhead { device: Bytes::mib(48), host: Bytes::mib(384) },
    // What sixteen lanes of PCIe 5 leave of their 63.
    host_gb_per_s: 50,
}];

impl Profile {
    /// The profile of this name.
    ///
    /// ```
    /// use plimsoll_cuda::Profile;
    /// assert_eq!(Profile::named("h200").unwrap().model, "NVIDIA H200");
    /// assert!(Profile::named("abacus").is_none());
    /// ```
    pub fn named(name: &str) -> Option<Profile> {
        PROFILES.into_iter().find(|profile| profile.name == name)
    }

    /// The names there are.
    pub fn names() -> Vec<&'static str> {
        PROFILES.iter().map(|profile| profile.name).collect()
    }

    /// What CUDA takes for itself on a GPU that calls itself `model`.
    pub(crate) fn overhead_of(model: &str) -> Overhead {
        PROFILES.iter().find(|profile| profile.model == model).map_or(ANY, |profile| profile.overhead)
    }

    /// What cuDNN takes besides on a GPU that calls itself `model`.
    pub(crate) fn cudnn_of(model: &str) -> Overhead {
        PROFILES.iter().find(|profile| profile.model == model).map_or(ANY_CUDNN, |profile| profile.cudnn)
    }
}

/// What cuDNN takes for a plan: nothing if no program of it goes there.
pub(crate) fn cudnn_overhead(plan: &Plan, convolutions: Convolutions, cudnn: Overhead) -> Overhead {
    let wanted = plan.programs.iter().any(|program| program::wants_cudnn(program, plan.rows, convolutions));
    if wanted { cudnn } else { Overhead::default() }
}

/// What depends on the size of a plan: what the GPU takes to reach pinned memory of the host, which is 20 MiB for 2.9 GiB on an H200, and for the code and the
/// recordings of a program; and what the host takes to compile many kernels.
pub(crate) fn plan_overhead(plan: &Plan) -> Overhead {
    let steps: usize = plan.programs.iter().map(|program| program.order.len()).sum();
    let pinning = if plan.backing == Bytes::ZERO { Bytes::ZERO } else { Bytes(plan.backing.0 / 96) };
    Overhead { device: (pinning + Bytes(steps.saturating_sub(SMALL) as u64 * PER_STEP.0)).align_up(1 << 20), host: compiling(plan) }
}

/// What a step of a program takes on the GPU: 3,800 took 27 MiB, of which 16 are reserved anyhow.
const PER_STEP: Bytes = Bytes::kib(6);

/// As many steps as the reserve is for.
const SMALL: usize = 1024;

/// How long nodes take on a GPU, as steps of convolutional and language models on an H200 took it: products in two bytes run on tensor cores. What is recomputed and
/// what leaves depends on the ratios, which other GPUs share.
pub(crate) struct GpuPace;

impl GpuPace {
    pub const SINGLE: Rates = Rates { flops_per_s: 3.2e13, bytes_per_s: 2.6e12, step_s: 2.5e-6 };
    const HALVES: Rates = Rates { flops_per_s: 2.5e14, ..GpuPace::SINGLE };
}

impl Pace for GpuPace {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        let halves = node.inputs.iter().any(|value| graph.ty(*value).dtype.is_half());
        let rates = if halves { GpuPace::HALVES } else { GpuPace::SINGLE };
        rates.seconds(graph, node, rows)
    }
}

/// For GPUs nobody has measured: sixteen lanes of PCIe 3.
const ANY_HOST_GB_PER_S: u32 = 12;

/// How fast a GPU that calls itself `model` reaches the host's memory.
pub(crate) fn copy_rate(model: &str) -> CopyRate {
    let known = PROFILES.iter().find(|profile| profile.model == model);
    let bytes_per_s = 1e9 * f64::from(known.map_or(ANY_HOST_GB_PER_S, |profile| profile.host_gb_per_s));
    // Copied by engines of their own, beside what computes.
    CopyRate { bytes_per_s, both_ways: true, held_up: 0.0 }
}

/// Pinned host memory that a plan needs beside the device's.
pub(crate) fn host_staging(plan: &Plan) -> Bytes {
    plan.staging.as_ref().map_or(Bytes::ZERO, pinned)
}

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

    fn pace(&self) -> Arc<dyn Pace> {
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

    fn reads_strips(&self) -> bool {
        true
    }

    fn makes_inlays(&self, maker: &Op, _: &TensorType, _: &Put) -> bool {
        program::makes_inlays(maker)
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
