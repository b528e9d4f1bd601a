//! The CUDA device.

use crate::error::{Error, Result};
use plimsoll_core::Device;
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

/// A GPU that plans can be made for, from what its profile states.
pub(crate) fn plan_only(profile: &str, ordinal: usize, measured: bool) -> Result<Arc<dyn Device>> {
    let unknown = || Error::Config(format!("there is no profile `{profile}`; there are: {}", Profile::names().join(", ")));
    let device = PlanOnly::new(Profile::named(profile).ok_or_else(unknown)?, ordinal);
    Ok(Arc::new(if measured { device.with_measured_algorithms() } else { device }))
}
