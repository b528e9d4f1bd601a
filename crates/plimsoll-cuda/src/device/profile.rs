//! Profiles: the properties of a GPU that are needed to plan for it on any machine.

use super::cost::GpuCostModel;
use crate::algorithms::ALIGNMENT;
use plimsoll_core::Bytes;
use plimsoll_core::budget::DeviceRuntime;
use plimsoll_core::plan::{Capabilities, CopyRate, Overhead};

/// The properties of a GPU that plans depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The name used to select it.
    pub name: &'static str,
    /// The model name that the driver reports.
    pub model: &'static str,
    /// Its memory.
    pub total: Bytes,
    /// Overhead of CUDA on the GPU and on the host: context, libraries, compiled kernels.
    pub overhead: Overhead,
    /// Additional overhead of cuDNN, in runs that use it: its handle, and kernels that are loaded on first use.
    pub cudnn: Overhead,
    /// Bandwidth to pinned host memory in gigabytes per second and direction; both directions run concurrently.
    pub host_gb_per_s: u32,
}

/// Conservative overhead for GPUs without a profile.
pub(crate) const ANY: Overhead = Overhead { device: Bytes::mib(640), host: Bytes::mib(640) };
/// Conservative cuDNN overhead for GPUs without a profile.
const ANY_CUDNN: Overhead = Overhead { device: Bytes::mib(256), host: Bytes::mib(512) };

/// Measured by `overhead.rs` with CUDA 13.0, rounded up.
const PROFILES: [Profile; 1] = [Profile {
    name: "h200",
    model: "NVIDIA H200",
    total: Bytes::mib(143_156),
    overhead: Overhead { device: Bytes::mib(348), host: Bytes::mib(610) },
    // Steps of ResNet-50 took 16 MiB on the GPU and up to 350 MiB on the host in addition.
    cudnn: Overhead { device: Bytes::mib(48), host: Bytes::mib(384) },
    // Effective bandwidth of PCIe 5.0 x16, out of 63 GB/s.
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

    /// All profile names.
    pub fn names() -> Vec<&'static str> {
        PROFILES.iter().map(|profile| profile.name).collect()
    }

    /// Overhead of CUDA on a GPU of this model.
    pub(crate) fn overhead_of(model: &str) -> Overhead {
        PROFILES.iter().find(|profile| profile.model == model).map_or(ANY, |profile| profile.overhead)
    }

    /// Additional overhead of cuDNN on a GPU of this model.
    pub(crate) fn cudnn_of(model: &str) -> Overhead {
        PROFILES.iter().find(|profile| profile.model == model).map_or(ANY_CUDNN, |profile| profile.cudnn)
    }
}

/// For GPUs without a profile: PCIe 3.0 x16.
const ANY_HOST_GB_PER_S: u32 = 12;

/// The planner's view of a GPU of this model.
pub(crate) fn capabilities(model: &str) -> Capabilities {
    Capabilities {
        shares_host_memory: false,
        alignment: ALIGNMENT,
        reads_channel_views: true,
        resumes_sums: false,
        groups_updates: true,
        collectives: true,
        shards: true,
        fixed_order: false,
        rates: GpuCostModel::SINGLE,
        copy_rate: copy_rate(model),
        runtime: Some(&DeviceRuntime { name: "CUDA context", parts: "CUDA's driver, libraries and compiler" }),
    }
}

/// Bandwidth between a GPU of this model and host memory.
fn copy_rate(model: &str) -> CopyRate {
    let known = PROFILES.iter().find(|profile| profile.model == model);
    let bytes_per_s = 1e9 * f64::from(known.map_or(ANY_HOST_GB_PER_S, |profile| profile.host_gb_per_s));
    // Copy engines run concurrently with computation.
    CopyRate { bytes_per_s, both_ways: true, compute_s_per_byte: 0.0 }
}
