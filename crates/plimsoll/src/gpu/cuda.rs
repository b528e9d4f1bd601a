//! The CUDA device.

use crate::error::{Error, Result};
use plimsoll_comm::Group;
use plimsoll_core::Device;
use plimsoll_core::plan::Overhead;
use plimsoll_cuda::{CudaDevice, KernelCache, PlanOnly, Profile};
use std::path::PathBuf;
use std::sync::Arc;

pub(crate) use plimsoll_cuda::built_in_seconds;
pub use plimsoll_cuda::{Convolutions, Found, Gpu, Probe, missing_libraries, probe};

/// Opens a GPU. Compiled kernels are stored in a folder; algorithms of libraries are measured or follow from rules.
pub(crate) fn open(ordinal: usize, kernels: Option<PathBuf>, convolutions: Convolutions, measured: bool) -> Result<Arc<dyn Device>> {
    let device = CudaDevice::open(ordinal, kernels.map(KernelCache::new))?.with_convolutions(convolutions);
    Ok(Arc::new(if measured { device.with_measured_algorithms() } else { device }))
}

/// A GPU of one of several ranks.
pub(crate) struct RankOnGpu {
    pub device: Arc<dyn Device>,
    /// What exchanging numbers with other ranks takes.
    pub communication: Overhead,
    /// The most ranks that share a GPU.
    pub sharing: usize,
}

/// Opens the GPU of one of several ranks, all of which call this at the same time. Those of a machine have its number
/// in common.
pub(crate) fn open_of_rank(
    ordinal: usize,
    kernels: Option<PathBuf>,
    convolutions: Convolutions,
    measured: bool,
    (group, machine): (&Arc<dyn Group>, u64),
) -> Result<RankOnGpu> {
    let opened = CudaDevice::open_of_rank(ordinal, kernels.map(KernelCache::new), group, machine)?;
    let device = opened.device.with_convolutions(convolutions);
    let device = Arc::new(if measured { device.with_measured_algorithms() } else { device });
    Ok(RankOnGpu { device, communication: opened.communication, sharing: opened.sharing })
}

/// A GPU that plans can be made for, from what its profile states.
pub(crate) fn plan_only(profile: &str, ordinal: usize, measured: bool) -> Result<Arc<dyn Device>> {
    let unknown = || Error::Config(format!("there is no profile `{profile}`; there are: {}", Profile::names().join(", ")));
    let device = PlanOnly::new(Profile::named(profile).ok_or_else(unknown)?, ordinal);
    Ok(Arc::new(if measured { device.with_measured_algorithms() } else { device }))
}
