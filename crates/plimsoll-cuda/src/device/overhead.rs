//! CUDA's own memory (context, streams, libraries), measured while a GPU is opened.
//!
//! The driver reports free memory only to a process that has a context on the GPU, so the usage before is read from
//! NVML, which is part of the driver. Later allocations are covered by reserves: compiled kernels and CUDA graphs on
//! the GPU, the compiler on the host.

use crate::algorithms::convolution::Convolutions;
use crate::libraries::nvrtc::{KERNELS_PER_MODULE, THREADS};
use crate::program;
use crate::runtime::staging::pinned;
use cudarc::driver::sys;
use libloading::{Library, Symbol};
use plimsoll_core::Bytes;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::Overhead;
use plimsoll_core::plan::{Plan, Program};
use std::collections::{BTreeMap, HashSet};
use std::ffi::{CString, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// Reserve on the GPU for kernels, CUDA graphs and library code that is loaded on first use.
pub(crate) const DEVICE_RESERVE: Bytes = Bytes::mib(16);
/// Reserve on the host for the compiler and the driver's program data. A cold start, which compiles everything, took up
/// to 320 MiB.
pub(crate) const HOST_RESERVE: Bytes = Bytes::mib(336);

/// Measured when this process first opened a GPU: on reopening, most of it is already allocated.
static FOUND: Mutex<BTreeMap<usize, Overhead>> = Mutex::new(BTreeMap::new());

/// Memory usage before a GPU was opened.
pub(crate) struct MemoryBaseline {
    ordinal: usize,
    bus: Option<CString>,
    device: Option<Bytes>,
    host: Option<Bytes>,
}

impl MemoryBaseline {
    /// Measures a GPU that is about to be opened; the driver is initialized.
    pub fn measure(ordinal: usize) -> MemoryBaseline {
        let bus = bus_name(ordinal).filter(|_| !is_open(ordinal));
        MemoryBaseline { ordinal, device: bus.as_ref().and_then(in_use), bus, host: resident() }
    }

    /// The measured overhead plus the reserves; none if it cannot be measured.
    pub fn overhead(&self) -> Option<Overhead> {
        let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        let measure = || {
            let device = in_use(self.bus.as_ref()?)?.0.checked_sub(self.device?.0)?;
            let host = resident()?.saturating_sub(self.host?);
            let whole = |bytes: Bytes| bytes.align_up(1 << 20);
            Some(Overhead { device: whole(Bytes(device) + DEVICE_RESERVE), host: whole(host + HOST_RESERVE) })
        };
        if let Some(measured) = measure() {
            found.insert(self.ordinal, measured);
        }
        found.get(&self.ordinal).copied()
    }
}

/// Whether this process already has a context on it.
fn is_open(ordinal: usize) -> bool {
    let (mut device, mut flags, mut active) = (0, 0, 0);
    // SAFETY: the pointers are valid for writes, and the driver is initialized.
    let asked = unsafe {
        sys::cuDeviceGet(&mut device, ordinal as i32)
            .result()
            .and_then(|()| sys::cuDevicePrimaryCtxGetState(device, &mut flags, &mut active).result())
    };
    asked.is_ok() && active != 0
}

/// Its PCI bus id, by which NVML identifies it.
pub(super) fn bus_name(ordinal: usize) -> Option<CString> {
    let (mut device, mut name) = (0, [0 as c_char; 32]);
    // SAFETY: the pointers are a valid integer and a buffer of the stated length.
    unsafe {
        sys::cuDeviceGet(&mut device, ordinal as i32).result().ok()?;
        sys::cuDeviceGetPCIBusId(name.as_mut_ptr(), name.len() as i32, device).result().ok()?;
    }
    let bytes = name.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect::<Vec<u8>>();
    CString::new(bytes).ok()
}

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

/// Memory in use on a GPU by all processes, from NVML.
fn in_use(bus: &CString) -> Option<Bytes> {
    type Plain = unsafe extern "C" fn() -> i32;
    type Find = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> i32;
    type Ask = unsafe extern "C" fn(*mut c_void, *mut Memory) -> i32;
    let done = |code: i32| (code == 0).then_some(());
    // SAFETY: the library belongs to the driver; the functions have these types in every version, and no handle is used
    // after the shutdown.
    unsafe {
        let library = Library::new("libnvidia-ml.so.1").ok()?;
        let start: Symbol<'_, Plain> = library.get(b"nvmlInit_v2\0").ok()?;
        let end: Symbol<'_, Plain> = library.get(b"nvmlShutdown\0").ok()?;
        let find: Symbol<'_, Find> = library.get(b"nvmlDeviceGetHandleByPciBusId_v2\0").ok()?;
        let ask: Symbol<'_, Ask> = library.get(b"nvmlDeviceGetMemoryInfo\0").ok()?;
        done(start())?;
        let (mut device, mut memory) = (std::ptr::null_mut(), Memory::default());
        let asked = done(find(bus.as_ptr(), &mut device)).and_then(|()| done(ask(device, &mut memory)));
        end();
        asked.map(|()| Bytes(memory.used))
    }
}

/// Resident memory of this process, if the system reports it.
pub(super) fn resident() -> Option<Bytes> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with("VmRSS:"))?;
    line.split_whitespace().nth(1)?.parse().ok().map(Bytes::kib)
}

/// Overhead of measuring algorithms: kernels of candidates that are not selected stay loaded, which took 4 MiB on an
/// H200.
pub(crate) const TUNING: Overhead = Overhead { device: Bytes::mib(32), host: Bytes::mib(128) };

/// Overhead of cuDNN for a plan: zero if no program uses it.
pub(crate) fn cudnn_overhead(plan: &Plan, convolutions: Convolutions, cudnn: Overhead) -> Overhead {
    let wanted = plan.programs.iter().any(|program| program::wants_cudnn(program, plan.rows, convolutions));
    if wanted { cudnn } else { Overhead::default() }
}

/// Overhead that depends on the size of a plan. On the GPU: mappings of pinned host memory (20 MiB for 2.9 GiB on an
/// H200), code and CUDA graphs. On the host: compiling many kernels.
pub(crate) fn plan_overhead(plan: &Plan) -> Overhead {
    let steps: usize = plan.programs.iter().map(|program| program.order.len()).sum();
    let pinning = if plan.backing == Bytes::ZERO { Bytes::ZERO } else { Bytes(plan.backing.0 / 96) };
    Overhead { device: (pinning + Bytes(steps.saturating_sub(SMALL) as u64 * PER_STEP.0)).align_up(1 << 20), host: compile_memory(plan) }
}

/// GPU memory per step of a program: 3,800 steps took 27 MiB, of which the reserve covers 16.
const PER_STEP: Bytes = Bytes::kib(6);

/// Number of steps that the reserve covers.
const SMALL: usize = 1024;

/// Compiler memory per additional thread, with margin: sixteen took 330 MiB, four with large attention kernels 80.
const PER_THREAD: Bytes = Bytes::mib(28);

/// Host memory per compiled module that the compiler and the driver retain.
const PER_MODULE: Bytes = Bytes::kib(256);

/// Host memory for compiling and loading the kernels of a plan, beyond that of a small one.
pub(crate) fn compile_memory(plan: &Plan) -> Bytes {
    let texts = |program: &Program| distinct_kernels(&program.graph).div_ceil(KERNELS_PER_MODULE) as u64;
    let most = plan.programs.iter().map(texts).max().unwrap_or(0).min(THREADS as u64);
    let all: u64 = plan.programs.iter().map(texts).sum();
    Bytes(most.saturating_sub(1) * PER_THREAD.0 + all.saturating_sub(1) * PER_MODULE.0)
}

/// Approximate number of kernels of a graph: nodes with equal ops and sizes share a kernel.
fn distinct_kernels(graph: &Graph) -> usize {
    let work = graph.nodes().filter(|(_, node)| !node.op.is_leaf() && !node.op.rules().is_view());
    let kernel = |node: &Node| {
        let mut hasher = DefaultHasher::new();
        node.op.hash(&mut hasher);
        node.inputs.iter().chain(&node.outputs).for_each(|value| graph.ty(*value).hash(&mut hasher));
        hasher.finish()
    };
    work.map(|(_, node)| kernel(node)).collect::<HashSet<u64>>().len()
}

/// Pinned host memory that a plan needs.
pub(crate) fn host_staging(plan: &Plan) -> Bytes {
    plan.staging.as_ref().map_or(Bytes::ZERO, pinned)
}
