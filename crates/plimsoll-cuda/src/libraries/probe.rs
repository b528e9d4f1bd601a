//! Detects CUDA on this machine. Never fails and never panics.

use super::faults::{advice, version_mismatch};
use super::injected::InjectedFault;
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
    /// The error of a driver that does not start.
    pub driver_error: Option<String>,
}

impl Probe {
    /// Why no GPU can be used, if none can.
    pub fn obstacle(&self) -> Option<String> {
        match &self.driver_error {
            Some(error) => obstacle(&self.libraries, Err(error)),
            None => obstacle(&self.libraries, Ok(self.gpus.len())),
        }
    }
}

const DRIVER: &str = "CUDA driver";
const NVRTC: &str = "NVRTC";
const CUBLASLT: &str = "cuBLASLt";
const CUDNN: &str = "cuDNN";
pub(crate) const NCCL: &str = "NCCL";

/// Looks for the driver, the libraries and the GPUs.
///
/// ```
/// let probe = plimsoll_cuda::probe();
/// assert_eq!(probe.libraries[0].name, "CUDA driver");
/// assert!(probe.libraries[0].found || probe.gpus.is_empty());
/// ```
pub fn probe() -> Probe {
    let libraries = libraries();
    let (count, driver_error) = match count() {
        Ok(count) => (count, None),
        Err(error) => (0, Some(error)),
    };
    Probe { gpus: (0..count).filter_map(gpu).collect(), libraries, driver_error }
}

/// Why no GPU can be used, if none can, with these libraries and this many GPUs, or the driver's error.
pub(crate) fn obstacle(libraries: &[Found], gpus: Result<usize, &str>) -> Option<String> {
    if !has(libraries, DRIVER) {
        return Some("there is no CUDA driver on this machine (libcuda was not found); compute with `--device cpu`".to_string());
    }
    if !has(libraries, NVRTC) {
        return Some("the CUDA compiler NVRTC (libnvrtc) was not found; install it, or compute with `--device cpu`".to_string());
    }
    match gpus {
        Err(error) => Some(format!("the CUDA driver does not start: {error}; compute with `--device cpu`")),
        Ok(0) => Some("the CUDA driver sees no GPU on this machine; compute with `--device cpu`".to_string()),
        Ok(_) => version_mismatch(driver_version(), compiler_version()),
    }
}

/// The version of CUDA that the driver supports, such as 13000; 0 if it does not say.
fn driver_version() -> i32 {
    if let Some(InjectedFault::Driver { version }) = InjectedFault::requested() {
        return version;
    }
    // SAFETY: only tries to open the library.
    if !unsafe { cuda::sys::is_culib_present() } {
        return 0;
    }
    let mut version = 0;
    // SAFETY: the pointer is valid for writes; the driver is present.
    match unsafe { cuda::sys::cuDriverGetVersion(&mut version) }.result() {
        Ok(()) => version,
        Err(_) => 0,
    }
}

/// The version of NVRTC, such as 13000; 0 if it does not say.
fn compiler_version() -> i32 {
    // SAFETY: only tries to open the library.
    if !unsafe { nvrtc::sys::is_culib_present() } {
        return 0;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: both pointers are valid for writes; the library is present.
    match unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) }.result() {
        Ok(()) => 1000 * major + 10 * minor,
        Err(_) => 0,
    }
}

/// The variable that lists libraries that are not to be used, by their names in lower case: `cudnn,cublaslt`.
const WITHOUT: &str = "PLIMSOLL_CUDA_WITHOUT";

/// Whether a list of libraries that are not to be used has this one.
fn is_hidden(list: &str, name: &str) -> bool {
    let short = name.rsplit(' ').next().unwrap_or(name);
    list.split(',').any(|hidden| hidden.trim().eq_ignore_ascii_case(short))
}

/// Whether a library is not to be used, though it may be there.
pub(crate) fn is_unwanted(name: &str) -> bool {
    is_hidden(&std::env::var(WITHOUT).unwrap_or_default(), name)
}

/// Libraries that are missing and what that costs, for GPUs that work without them.
pub fn missing_libraries() -> Vec<String> {
    let missing = libraries().into_iter().filter(|library| !library.found);
    missing.map(|library| format!("{} was not found: {}", library.name, library.without)).collect()
}

/// The libraries, the driver first.
pub(crate) fn libraries() -> Vec<Found> {
    // SAFETY: only opens the libraries by the names that are used later, and closes them.
    let (driver, compiler, products) =
        unsafe { (cuda::sys::is_culib_present(), nvrtc::sys::is_culib_present(), cublaslt::sys::is_culib_present()) };
    let hidden = std::env::var(WITHOUT).unwrap_or_default();
    let mut all = vec![
        Found { name: DRIVER, found: driver, without: "no GPU can be used" },
        Found { name: NVRTC, found: compiler, without: "no GPU can be used: kernels are compiled where they run" },
        Found { name: CUBLASLT, found: products, without: "matrix products run in plain generated kernels" },
        Found { name: CUDNN, found: cudnn::is_present(), without: "large convolutions run in generated kernels, without tensor cores" },
    ];
    all.iter_mut().for_each(|library| library.found &= !is_hidden(&hidden, library.name));
    all
}

/// Number of GPUs that the driver reports, or its error.
pub(crate) fn count() -> Result<usize, String> {
    // SAFETY: only tries to open the library.
    if !unsafe { cuda::sys::is_culib_present() } || is_hidden(&std::env::var(WITHOUT).unwrap_or_default(), DRIVER) {
        return Ok(0);
    }
    match cuda::result::init().and_then(|()| cuda::result::device::get_count()) {
        Ok(count) => Ok(count.max(0) as usize),
        // A driver without a GPU starts with this error.
        Err(error) if error.0 == cuda::sys::CUresult::CUDA_ERROR_NO_DEVICE => Ok(0),
        Err(error) => {
            let text = error.error_string().map_or_else(|_| format!("{error:?}"), |text| text.to_string_lossy().into_owned());
            Err(format!("{text}{}", advice(error.0)))
        }
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn found(names: &[&str]) -> Vec<Found> {
        [DRIVER, NVRTC, CUBLASLT, CUDNN].map(|name| Found { name, found: names.contains(&name), without: "" }).to_vec()
    }

    #[test]
    fn obstacles_say_what_is_missing_and_what_to_do() {
        let text = |names: &[&str], gpus| obstacle(&found(names), gpus).unwrap();
        assert!(text(&[], Ok(0)).starts_with("there is no CUDA driver on this machine"));
        assert!(text(&[DRIVER], Ok(1)).starts_with("the CUDA compiler NVRTC (libnvrtc) was not found"));
        assert!(text(&[DRIVER, NVRTC], Ok(0)).starts_with("the CUDA driver sees no GPU"));
        assert_eq!(
            text(&[DRIVER, NVRTC], Err("system has unsupported display driver / cuda driver combination")),
            "the CUDA driver does not start: system has unsupported display driver / cuda driver combination; compute with `--device cpu`"
        );
    }

    #[test]
    fn libraries_are_hidden_by_their_short_names() {
        for (list, name, hidden) in [
            ("", CUDNN, false),
            ("cudnn", CUDNN, true),
            ("cublaslt, cudnn", CUDNN, true),
            ("driver", DRIVER, true),
            ("nvrtc", CUDNN, false),
            ("nccl", NCCL, true),
        ] {
            assert_eq!(is_hidden(list, name), hidden, "{list}: {name}");
        }
    }
}
