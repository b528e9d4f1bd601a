//! The device that the rest of the system sees.

use crate::program::{self, CpuExecutable, CpuProgram};
use crate::runtime::copier::{self, Copier};
use crate::runtime::memory::{CpuMemory, HostBuffer};
use crate::runtime::threads::{STACK, ThreadPool};
use crate::simd::Isa;
use plimsoll_comm::{Alone, Group};
use plimsoll_core::device::{Device, DeviceError, Executable, Loaded, Memory, ReservedMemory, StepMemory, check_load};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::SliceWrite;
use plimsoll_core::plan::{Capabilities, CheckedPlan, Footprint, Plan, RowSplit, Target};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Op, TensorType};
use std::sync::{Arc, Mutex, PoisonError};

/// The CPU: kernels on a pool of threads, in host memory.
///
/// ```
/// use plimsoll_core::{Bytes, plan::Target};
/// use plimsoll_cpu::CpuDevice;
///
/// let device = CpuDevice::new(2)?;
/// assert_eq!((device.name().as_str(), device.threads()), ("cpu", 2));
/// assert_eq!(device.stacks(), Bytes::kib(256), "the caller brings its own stack");
/// assert!(device.description().ends_with("2 threads"));
/// # Ok::<(), plimsoll_core::DeviceError>(())
/// ```
pub struct CpuDevice {
    pool: Arc<ThreadPool>,
    /// The ranks that collectives sum over.
    group: Arc<dyn Group>,
    /// Started by the first program that keeps something elsewhere.
    copier: Mutex<Option<Arc<Copier>>>,
}

impl CpuDevice {
    /// A device that computes on `threads` threads, the caller's included.
    ///
    /// # Errors
    /// If the operating system refuses to start a thread.
    pub fn new(threads: usize) -> Result<CpuDevice, DeviceError> {
        Ok(CpuDevice { pool: Arc::new(ThreadPool::new(threads)?), group: Arc::new(Alone), copier: Mutex::new(None) })
    }

    /// The device of one rank of a group: programs with collectives sum over its ranks. Every rank runs the same
    /// programs in the same order.
    ///
    /// ```
    /// use plimsoll_comm::Alone;
    /// use plimsoll_cpu::CpuDevice;
    /// use std::sync::Arc;
    ///
    /// let device = CpuDevice::new(1)?.with_group(Arc::new(Alone));
    /// # Ok::<(), plimsoll_core::DeviceError>(())
    /// ```
    pub fn with_group(self, group: Arc<dyn Group>) -> CpuDevice {
        CpuDevice { group, ..self }
    }

    /// How many threads compute, the caller's included.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes of the stacks of the threads it has started.
    pub fn stacks(&self) -> Bytes {
        Bytes(((self.threads() - 1) * STACK) as u64)
    }
}

impl Target for CpuDevice {
    fn name(&self) -> String {
        "cpu".to_string()
    }

    fn description(&self) -> String {
        let instructions = match Isa::best() {
            Isa::Avx512 => "AVX-512",
            Isa::Avx2 => "AVX2",
            Isa::Portable => "baseline instructions",
        };
        let threads = self.threads();
        format!("{}, {instructions}, {threads} thread{}", model(), if threads == 1 { "" } else { "s" })
    }

    fn capabilities(&self) -> Capabilities {
        // A cache line, and the widest vector.
        Capabilities {
            reads_channel_views: true,
            resumes_sums: true,
            collectives: true,
            shards: true,
            fixed_order: true,
            ..Capabilities::host(Bytes(64))
        }
    }

    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes {
        program::workspace(graph, node, rows, self.threads())
    }

    fn can_split_rows(&self, graph: &Graph, node: &Node, split: RowSplit, _: usize) -> bool {
        program::can_split_rows(graph, node, split)
    }

    fn fuses_slice_write(&self, maker: &Op, part: &TensorType, place: &SliceWrite) -> bool {
        program::fuses_slice_write(maker, part, place)
    }

    /// The backing store is a file: only the thread that copies takes memory.
    fn footprint(&self, plan: &Plan) -> Footprint {
        let host_backing = if plan.backing > Bytes::ZERO { Bytes(copier::STACK as u64) } else { Bytes::ZERO };
        Footprint { host_backing, ..Footprint::default() }
    }
}

impl Device for CpuDevice {
    fn allocate(&self, size: Bytes) -> Result<Box<dyn Memory>, DeviceError> {
        Ok(Box::new(CpuMemory(Arc::new(HostBuffer::new(&self.name(), size)?))))
    }

    fn reserve(&self, size: Bytes) -> Result<Option<Box<dyn ReservedMemory>>, DeviceError> {
        let buffer = HostBuffer::reserve(&self.name(), size)?;
        Ok(buffer.map(|buffer| Box::new(CpuMemory(Arc::new(buffer))) as Box<dyn ReservedMemory>))
    }

    fn load(&self, plan: &CheckedPlan, role: Role, rows: usize, memory: &StepMemory<'_>) -> Result<Box<dyn Loaded>, DeviceError> {
        check_load(self, plan, rows)?;
        let mut copier = self.copier.lock().unwrap_or_else(PoisonError::into_inner);
        if copier.is_none() && memory.backing.is_some() {
            *copier = Some(Arc::new(Copier::new()?));
        }
        Ok(Box::new(CpuProgram::load(&self.pool, &self.group, copier.as_ref(), plan.expect_program(role), rows, memory)?))
    }

    fn executable(&self, plan: &CheckedPlan, role: Role) -> Result<Box<dyn Executable>, DeviceError> {
        check_load(self, plan, plan.rows)?;
        Ok(Box::new(CpuExecutable::new(&self.pool, &self.group, plan, role)?))
    }
}

/// What the processor calls itself.
#[cfg(target_arch = "x86_64")]
fn model() -> String {
    use std::arch::x86_64::{__cpuid, CpuidResult};
    const BRAND: [u32; 3] = [0x8000_0002, 0x8000_0003, 0x8000_0004];
    #[allow(unused_unsafe, reason = "newer compilers know that the instruction is always there")]
    // SAFETY: every x86-64 processor has `cpuid`.
    let leaf = |leaf: u32| unsafe { __cpuid(leaf) };
    if leaf(0x8000_0000).eax < BRAND[2] {
        return "x86-64".to_string();
    }
    let words = BRAND.map(leaf).map(|CpuidResult { eax, ebx, ecx, edx }| [eax, ebx, ecx, edx]);
    let bytes: Vec<u8> = words.iter().flatten().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_string()
}

/// What the processor calls itself.
#[cfg(not(target_arch = "x86_64"))]
fn model() -> String {
    std::env::consts::ARCH.to_string()
}
