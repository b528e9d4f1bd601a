//! What is known of a GPU without having it: enough to make plans for it on any machine.

use super::cost::GpuPace;
use crate::algorithms::ALIGNMENT;
use plimsoll_core::Bytes;
use plimsoll_core::budget::DeviceRuntime;
use plimsoll_core::plan::{Capabilities, CopyRate, Overhead};

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

/// For GPUs nobody has measured: sixteen lanes of PCIe 3.
const ANY_HOST_GB_PER_S: u32 = 12;

/// What the planner has to know about a GPU that calls itself `model`.
pub(crate) fn capabilities(model: &str) -> Capabilities {
    Capabilities {
        shares_host_memory: false,
        alignment: ALIGNMENT,
        reads_channel_views: true,
        rates: GpuPace::SINGLE,
        copy_rate: copy_rate(model),
        runtime: Some(&DeviceRuntime { name: "CUDA context", parts: "CUDA's driver, libraries and compiler" }),
    }
}

/// How fast a GPU that calls itself `model` reaches the host's memory.
fn copy_rate(model: &str) -> CopyRate {
    let known = PROFILES.iter().find(|profile| profile.model == model);
    let bytes_per_s = 1e9 * f64::from(known.map_or(ANY_HOST_GB_PER_S, |profile| profile.host_gb_per_s));
    // Copied by engines of their own, beside what computes.
    CopyRate { bytes_per_s, both_ways: true, compute_s_per_byte: 0.0 }
}
