//! Devices by name, and how they are opened.

use crate::error::{Error, Result};
use crate::gpu::{self, Convolutions};
use crate::ranks::Ranks;
use crate::system;
use plimsoll_core::plan::Overhead;
use plimsoll_core::{Bytes, Device};
use plimsoll_cpu::CpuDevice;
use std::path::PathBuf;
use std::sync::Arc;

/// Which device to compute on, by name.
///
/// ```
/// use plimsoll::DeviceSpec;
/// assert_eq!("cuda:1".parse::<DeviceSpec>()?, DeviceSpec::Cuda(1));
/// assert_eq!("cuda".parse::<DeviceSpec>()?, DeviceSpec::CudaOfRank);
/// assert_eq!("tpu".parse::<DeviceSpec>().unwrap_err().to_string(), "there is no device `tpu`; there are `cpu` and `cuda:0`, `cuda:1`, …");
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceSpec {
    /// The CPU.
    #[default]
    Cpu,
    /// A GPU, by its number.
    Cuda(usize),
    /// A GPU of its own for each of several ranks: that with the number of the rank on its machine. The first one for a
    /// process that is alone.
    CudaOfRank,
}

impl std::str::FromStr for DeviceSpec {
    type Err = Error;

    fn from_str(name: &str) -> Result<DeviceSpec> {
        let number = name.strip_prefix("cuda").map(|rest| rest.strip_prefix(':').unwrap_or(rest));
        match (name, number.and_then(|number| number.parse().ok())) {
            ("cpu", _) => Ok(DeviceSpec::Cpu),
            ("cuda", _) => Ok(DeviceSpec::CudaOfRank),
            (_, Some(ordinal)) => Ok(DeviceSpec::Cuda(ordinal)),
            _ => Err(Error::Config(format!("there is no device `{name}`; there are `cpu` and `cuda:0`, `cuda:1`, …"))),
        }
    }
}

/// How the algorithms of matrix products and convolutions are selected on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithms {
    /// The first of cuBLASLt's and cuDNN's own ranking, without measuring: the same for every run on a GPU.
    #[default]
    Rules,
    /// The fastest of several, measured once per shape and GPU, and stored with the compiled kernels. Checkpoints
    /// record them, so that a resumed run has the same results.
    Measured,
}

impl Algorithms {
    /// Names in configurations.
    pub(crate) const NAMES: [(&'static str, Algorithms); 2] = [("rules", Algorithms::Rules), ("measured", Algorithms::Measured)];
}

/// An open device, its threads on the host, and their stacks.
pub(crate) struct OpenDevice {
    pub device: Arc<dyn Device>,
    /// None for a GPU.
    pub threads: Option<usize>,
    pub thread_stacks: Bytes,
    /// What exchanging numbers with the devices of other ranks takes, beside the group itself.
    pub communication: Overhead,
    /// The most ranks that share a device's memory.
    pub sharing: usize,
}

impl OpenDevice {
    /// A device that computes alone.
    pub fn alone(device: Arc<dyn Device>, threads: Option<usize>, thread_stacks: Bytes) -> OpenDevice {
        OpenDevice { device, threads, thread_stacks, communication: Overhead::default(), sharing: 1 }
    }
}

impl DeviceSpec {
    /// The number of the GPU, for this rank among those of its machine; none for the CPU.
    fn ordinal(self, local_rank: usize) -> Option<usize> {
        match self {
            DeviceSpec::Cpu => None,
            DeviceSpec::Cuda(ordinal) => Some(ordinal),
            DeviceSpec::CudaOfRank => Some(local_rank),
        }
    }
}

/// Opens the device of one of several ranks. Those of a machine share its processors.
pub(crate) fn open_of_rank(spec: DeviceSpec, threads: Option<usize>, algorithms: Algorithms, ranks: &Ranks) -> Result<OpenDevice> {
    if let Some(ordinal) = spec.ordinal(ranks.local_rank()) {
        let (machine, measured) = (system::machine_id(), algorithms == Algorithms::Measured);
        let opened = gpu::open_of_rank(ordinal, kernel_folder(), convolutions()?, measured, (ranks.group(), machine))?;
        let (communication, sharing) = (opened.communication, opened.sharing);
        return Ok(OpenDevice { communication, sharing, ..OpenDevice::alone(opened.device, None, Bytes::ZERO) });
    }
    // All ranks plan for the same number of threads.
    let own = system::cores().min((system::processors() / ranks.here()).max(1));
    let threads = ranks.least([threads.unwrap_or(own) as u64])?[0] as usize;
    let cpu = CpuDevice::new(threads)?.with_group(Arc::clone(ranks.group()));
    let (threads, stacks) = (cpu.threads(), cpu.stacks());
    Ok(OpenDevice::alone(Arc::new(cpu), Some(threads), stacks))
}

/// Opens a device. With a profile no GPU is needed, and only plans can be made.
pub(crate) fn open(spec: DeviceSpec, threads: Option<usize>, profile: Option<&str>, algorithms: Algorithms) -> Result<OpenDevice> {
    let measured = algorithms == Algorithms::Measured;
    match (spec.ordinal(0), profile) {
        (None, None) => {
            let cpu = CpuDevice::new(threads.unwrap_or_else(system::cores))?;
            let (threads, stacks) = (cpu.threads(), cpu.stacks());
            Ok(OpenDevice::alone(Arc::new(cpu), Some(threads), stacks))
        }
        (None, Some(name)) => Err(Error::Config(format!("the profile `{name}` is a GPU's; say `--device cuda:0` too"))),
        (Some(ordinal), Some(name)) => Ok(OpenDevice::alone(gpu::plan_only(name, ordinal, measured)?, None, Bytes::ZERO)),
        (Some(ordinal), None) => Ok(OpenDevice::alone(gpu::open(ordinal, kernel_folder(), convolutions()?, measured)?, None, Bytes::ZERO)),
    }
}

/// Opens a device to compute on: `cpu`, `cuda:N`, or `cuda`, which is the first GPU of a process that is alone.
pub fn open_device(spec: DeviceSpec) -> Result<Arc<dyn Device>> {
    open(spec, None, None, Algorithms::Rules).map(|opened| opened.device)
}

/// Opens the same GPU once for each way that convolutions can go, with what that is called: by libraries wherever they
/// can, and in generated kernels. The CPU has one way only.
pub fn open_each_way(spec: DeviceSpec) -> Result<Vec<(&'static str, Arc<dyn Device>)>> {
    match spec.ordinal(0) {
        None => Ok(vec![("", open_device(spec)?)]),
        Some(ordinal) => {
            let ways = [("libraries", Convolutions::Libraries), ("generated", Convolutions::Generated)];
            ways.into_iter().map(|(name, way)| Ok((name, gpu::open(ordinal, kernel_folder(), way, false)?))).collect()
        }
    }
}

/// The variable that says what computes convolutions on a GPU.
const CONVOLUTIONS: &str = "PLIMSOLL_CONVOLUTIONS";

/// What computes convolutions on a GPU.
///
/// # Errors
/// When `PLIMSOLL_CONVOLUTIONS` says something that is not known.
pub fn convolutions() -> Result<Convolutions> {
    let Some(set) = std::env::var_os(CONVOLUTIONS).filter(|value| !value.is_empty()) else { return Ok(Convolutions::Auto) };
    set.to_string_lossy().parse().map_err(|error| Error::Config(format!("{CONVOLUTIONS}: {error}")))
}

/// Where compiled kernels are kept.
fn kernel_folder() -> Option<PathBuf> {
    cache_folder().map(|cache| cache.join("kernels"))
}

/// The part of the user's cache folder that is this program's, by the rules of XDG.
pub(crate) fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")))?;
    Some(cache.join("plimsoll"))
}
