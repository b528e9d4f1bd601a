//! Detects CUDA on this machine. Never fails and never panics.

use super::{cudnn, driver};
use cudarc::{cublaslt, driver as cuda, nvrtc};
use plimsoll_core::Bytes;

/// A library and whether it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its common name.
    pub name: &'static str,
    /// Whether it was found.
    pub found: bool,
    /// The consequence of its absence.
    pub without: &'static str,
}

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Its ordinal, as in `cuda:0`.
    pub ordinal: usize,
    /// Its model name.
    pub name: String,
    /// Its memory.
    pub total: Bytes,
    /// Free memory, if it could be queried.
    pub free: Option<Bytes>,
}

/// CUDA on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The libraries, the driver first.
    pub libraries: Vec<Found>,
    /// The GPUs the driver sees.
    pub gpus: Vec<Gpu>,
}

impl Probe {
    /// Why no GPU can be used, if none can.
    pub fn obstacle(&self) -> Option<String> {
        obstacle(&self.libraries, self.gpus.len()).map(str::to_string)
    }
}

const DRIVER: &str = "CUDA driver";
const NVRTC: &str = "NVRTC";
const CUBLASLT: &str = "cuBLASLt";
const CUDNN: &str = "cuDNN";

/// Looks for the driver, the libraries and the GPUs.
///
/// ```
/// let probe = plimsoll_cuda::probe();
/// assert_eq!(probe.libraries[0].name, "CUDA driver");
/// assert!(probe.libraries[0].found || probe.gpus.is_empty());
/// ```
pub fn probe() -> Probe {
    let libraries = libraries();
    let gpus = (0..count(&libraries)).filter_map(gpu).collect();
    Probe { libraries, gpus }
}

/// Why no GPU can be used, if none can, with these libraries and this many GPUs.
pub(crate) fn obstacle(libraries: &[Found], gpus: usize) -> Option<&'static str> {
    if !has(libraries, DRIVER) {
        return Some("there is no CUDA driver on this machine (libcuda was not found); compute with `--device cpu`");
    }
    if !has(libraries, NVRTC) {
        return Some("the CUDA compiler NVRTC (libnvrtc) was not found; install it, or compute with `--device cpu`");
    }
    (gpus == 0).then_some("the CUDA driver sees no GPU on this machine; compute with `--device cpu`")
}

/// The libraries, the driver first.
pub(crate) fn libraries() -> Vec<Found> {
    // SAFETY: only opens the libraries by the names that are used later, and closes them.
    let (driver, compiler, products) =
        unsafe { (cuda::sys::is_culib_present(), nvrtc::sys::is_culib_present(), cublaslt::sys::is_culib_present()) };
    vec![
        Found { name: DRIVER, found: driver, without: "no GPU can be used" },
        Found { name: NVRTC, found: compiler, without: "no GPU can be used: kernels are compiled where they run" },
        Found { name: CUBLASLT, found: products, without: "matrix products run in plain generated kernels" },
        Found { name: CUDNN, found: cudnn::is_present(), without: "large convolutions run in generated kernels, without tensor cores" },
    ]
}

/// Number of GPUs that the driver reports.
pub(crate) fn count(libraries: &[Found]) -> usize {
    if !has(libraries, DRIVER) {
        return 0;
    }
    let count = cuda::result::init().and_then(|()| cuda::result::device::get_count());
    count.map_or(0, |count| count.max(0) as usize)
}

/// Whether cuDNN is available for convolutions.
pub(crate) fn has_cudnn(libraries: &[Found]) -> bool {
    has(libraries, CUDNN)
}

/// Whether cuBLASLt is available for matrix products.
pub(crate) fn has_cublaslt(libraries: &[Found]) -> bool {
    has(libraries, CUBLASLT)
}

fn has(libraries: &[Found], name: &str) -> bool {
    libraries.iter().any(|library| library.name == name && library.found)
}

fn gpu(ordinal: usize) -> Option<Gpu> {
    let device = cuda::result::device::get(ordinal as i32).ok()?;
    // SAFETY: the driver returned this device.
    let total = unsafe { cuda::result::device::total_mem(device) }.ok()?;
    let free = driver::Context::open(ordinal).and_then(|context| context.free()).ok();
    let name = cuda::result::device::get_name(device).ok()?;
    Some(Gpu { ordinal, name, total: Bytes(total as u64), free })
}
