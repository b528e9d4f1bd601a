//! Where eager ops run: a device, its memory within a limit, and its compiled programs.

use super::error::Result;
use super::heap::Heap;
use super::programs::{Program, ProgramCache};
use crate::{DeviceSpec, system};
use plimsoll_core::allocator::{Allocator, AllocatorError, Block, DeviceSegments, Limit, MemoryStats, OwnerId, Snapshot};
use plimsoll_core::device::{Device, RunBuffers};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{Bytes, TensorType};
use plimsoll_cpu::CpuDevice;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A device for eager code, with a byte limit for its tensors. Cheap to clone.
///
/// [`device`](super::device) selects one by name. A context of your own has its own limit and accounting:
///
/// ```
/// use plimsoll::Bytes;
/// use plimsoll::eager::{Context, Tensor};
/// let context = Context::cpu(1, Bytes::mib(1))?;
/// context.scope(|| {
///     let x = Tensor::zeros([1024])?;
///     assert_eq!(context.in_use(), Bytes::kib(4));
///     drop(x);
///     assert_eq!(context.in_use(), Bytes::ZERO);
///     Ok::<(), plimsoll::eager::Error>(())
/// })?;
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
#[derive(Clone)]
pub struct Context(Arc<Shared>);

struct Shared {
    name: String,
    device: Arc<dyn Device>,
    heap: Heap,
    /// The owner of workspace.
    workspace: OwnerId,
    programs: ProgramCache,
    /// The seed of random ops, and how many there were.
    seed: u64,
    draws: AtomicU32,
}

thread_local! {
    static CURRENT: RefCell<Vec<Context>> = const { RefCell::new(Vec::new()) };
}

/// All contexts of the process that may still be in use.
static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// The default context of each device.
static DEFAULTS: Mutex<BTreeMap<String, Context>> = Mutex::new(BTreeMap::new());

/// The part of the available memory that default contexts may use, in percent.
const DEFAULT_SHARE: u64 = 80;

impl Context {
    /// A context on a device whose tensors take at most `limit`.
    ///
    /// # Errors
    /// If the device cannot reserve memory.
    pub fn new(device: Arc<dyn Device>, limit: Limit) -> Result<Context> {
        let allocator = Heap::best_fit(&*device, limit);
        Context::with_allocator(device, allocator)
    }

    /// A context whose tensors are blocks of an allocator of your own. The function gets the memory of the device.
    ///
    /// ```
    /// use plimsoll::eager::{Context, Tensor};
    /// use plimsoll::{Bytes, CpuDevice};
    /// use plimsoll_core::allocator::{BestFit, BestFitOptions, Limit};
    /// use std::sync::Arc;
    /// let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(8)), slack: f64::INFINITY, ..BestFitOptions::default() };
    /// let context = Context::with_allocator(Arc::new(CpuDevice::new(1)?), |memory| Ok(Arc::new(BestFit::new(memory, options)?)))?;
    /// let kept = context.scope(|| Tensor::ones([1024]))?;
    /// assert_eq!(context.in_use(), Bytes::kib(4));
    /// # drop(kept);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// If the device cannot reserve memory, or the function fails.
    pub fn with_allocator(
        device: Arc<dyn Device>,
        allocator: impl FnOnce(DeviceSegments) -> Result<Arc<dyn Allocator>, AllocatorError>,
    ) -> Result<Context> {
        let name = device.name();
        let heap = Heap::new(Arc::clone(&device), allocator)?;
        let workspace = OwnerId::named("workspace");
        let programs = ProgramCache::default();
        let shared = Arc::new(Shared { name, device, heap, workspace, programs, seed: 0, draws: AtomicU32::new(0) });
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|context| context.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        Ok(Context(shared))
    }

    /// A context on the CPU with this many threads.
    ///
    /// # Errors
    /// If the operating system refuses to start a thread.
    pub fn cpu(threads: usize, limit: Bytes) -> Result<Context> {
        Context::new(Arc::new(CpuDevice::new(threads)?), Limit::Bytes(limit))
    }

    /// The default context of a device, such as `cpu` or `cuda:0`. Its limit is 80 % of the memory that was available
    /// when it was first used.
    ///
    /// # Errors
    /// If there is no such device.
    pub fn of(name: &str) -> Result<Context> {
        let spec: DeviceSpec = name.parse()?;
        let name = if spec == DeviceSpec::Cpu { "cpu".to_string() } else { name.to_string() };
        let mut known = DEFAULTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = known.get(&name) {
            return Ok(context.clone());
        }
        let device = crate::open_device(spec)?;
        let available = device.memory_info().map_or_else(system::available_memory, |memory| memory.available);
        let context = Context::new(device, Limit::Bytes(Bytes(available.0 / 100 * DEFAULT_SHARE)))?;
        known.insert(name, context.clone());
        Ok(context)
    }

    /// All contexts of the process.
    pub(super) fn all() -> Vec<Context> {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|context| context.upgrade().map(Context)).collect()
    }

    /// The context of this thread: that of the innermost scope, or the CPU.
    pub(super) fn current() -> Result<Context> {
        if let Some(context) = CURRENT.with_borrow(|stack| stack.last().cloned()) {
            return Ok(context);
        }
        Context::of("cpu")
    }

    /// Runs a closure whose new tensors are made in this context.
    pub fn scope<R>(&self, body: impl FnOnce() -> R) -> R {
        /// Leaves the scope also when the closure panics.
        struct Leave;
        impl Drop for Leave {
            fn drop(&mut self) {
                CURRENT.with_borrow_mut(Vec::pop);
            }
        }
        CURRENT.with_borrow_mut(|stack| stack.push(self.clone()));
        let _leave = Leave;
        body()
    }

    /// The name of its device.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of live tensors.
    pub fn in_use(&self) -> Bytes {
        self.0.heap.stats().in_use
    }

    /// Statistics of its memory: in use, peak, reserved, fragmentation, allocations by size.
    pub fn stats(&self) -> MemoryStats {
        self.0.heap.stats()
    }

    /// Statistics, owners, and live tensors with the lines that made them. Two snapshots tell
    /// [what grew](Snapshot::diff) in between.
    ///
    /// ```
    /// use plimsoll::Bytes;
    /// use plimsoll::eager::{Context, Tensor};
    /// let context = Context::cpu(1, Bytes::mib(1))?;
    /// let before = context.snapshot();
    /// let kept = context.scope(|| Tensor::ones([1024]))?;
    /// let grown = context.snapshot().diff(&before);
    /// assert_eq!((grown[0].owner.as_str(), grown[0].bytes), ("full", 4096));
    /// # drop(kept);
    /// # Ok::<(), plimsoll::eager::Error>(())
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        self.0.heap.snapshot()
    }

    /// Number of compiled ops.
    pub fn compiled_ops(&self) -> usize {
        self.0.programs.len()
    }

    /// Moves tensors together, so that free memory is in one piece. Returns the bytes that were moved.
    pub fn compact(&self) -> Bytes {
        self.0.heap.compact()
    }

    /// Gives memory that no tensor uses back to the system. Returns how much.
    ///
    /// # Errors
    /// If the device fails.
    pub fn give_back(&self) -> Result<Bytes> {
        self.0.heap.give_back()
    }

    /// The device.
    pub(super) fn device(&self) -> &dyn Device {
        &*self.0.device
    }

    pub(super) fn programs(&self) -> &ProgramCache {
        &self.0.programs
    }

    /// Differs from that of every other context that is in use.
    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    pub(super) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A block for a tensor.
    pub(super) fn allocate(&self, size: Bytes, owner: OwnerId, made: &'static Location<'static>) -> Result<Allocated> {
        let block = self.0.heap.allocate(size, owner, made)?;
        Ok(Allocated { context: self.clone(), block: Some(block) })
    }

    /// Random numbers that no earlier op of this context had.
    pub(super) fn draw(&self) -> StepRandom {
        StepRandom { seed: self.0.seed, step: self.0.draws.fetch_add(1, Relaxed), first_row: 0 }
    }

    /// Runs a program on these blocks: its arguments are read, its states written.
    pub(super) fn run(
        &self,
        program: &Program,
        arguments: &[&Allocated],
        states: &[&Allocated],
        scalars: &[f32],
        random: StepRandom,
        made: &'static Location<'static>,
    ) -> Result<()> {
        let arena = match program.arena() {
            Bytes::ZERO => None,
            size => Some(self.allocate(size, self.0.workspace, made)?),
        };
        // Without workspace, the region of the arena is not used; any will do.
        let Some(last) = arena.as_ref().or(states.first().copied()).or(arguments.first().copied()) else { return Ok(()) };
        let all = Chained { parts: [arguments, states, &[last]], next: (0, 0) };
        self.0.heap.with(all, |regions| {
            let (columns, written) = regions.split_at(arguments.len());
            let (states, arena) = written.split_at(states.len());
            program.run(&RunBuffers { columns, states, arena: arena[0], scalars, random })
        })??;
        Ok(())
    }
}

/// The blocks of some lists, one after the other.
struct Chained<'a, 'b> {
    parts: [&'a [&'b Allocated]; 3],
    /// The list and the index of the next one.
    next: (usize, usize),
}

impl<'b> Iterator for Chained<'_, 'b> {
    type Item = &'b Block;

    fn next(&mut self) -> Option<&'b Block> {
        while let Some(part) = self.parts.get(self.next.0) {
            if let Some(block) = part.get(self.next.1) {
                self.next.1 += 1;
                return Some(block.block());
            }
            self.next = (self.next.0 + 1, 0);
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.parts.iter().skip(self.next.0).map(|part| part.len()).sum::<usize>() - self.next.1;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Chained<'_, '_> {}

/// A block of a context's memory, freed on drop.
pub(super) struct Allocated {
    pub context: Context,
    /// None only while it is dropped.
    block: Option<Block>,
}

impl Allocated {
    fn block(&self) -> &Block {
        self.block.as_ref().expect("it is taken only on drop")
    }

    pub fn read(&self, bytes: &mut [u8]) -> Result<()> {
        Ok(self.context.0.heap.read(self.block(), bytes)?)
    }

    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        Ok(self.context.0.heap.write(self.block(), bytes)?)
    }
}

impl Drop for Allocated {
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            self.context.0.heap.free(block);
        }
    }
}

/// A block for each of some types.
pub(super) fn blocks(context: &Context, types: &[TensorType], owner: OwnerId, made: &'static Location<'static>) -> Result<Vec<Allocated>> {
    types.iter().map(|ty| context.allocate(ty.bytes(1), owner, made)).collect()
}
