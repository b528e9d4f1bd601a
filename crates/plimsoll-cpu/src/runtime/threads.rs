//! A fork-join pool for kernels: a caller and a few workers claim task indices from one counter.
//!
//! Kernels call [`ThreadPool::run`] many times per training step, so a call allocates nothing and costs well under a
//! microsecond when the workers are awake. Idle workers spin for a few microseconds and then park, because the cores
//! they would burn belong to the input pipeline.
//!
//! ```
//! use plimsoll_cpu::runtime::threads::ThreadPool;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//!
//! let pool = ThreadPool::new(2)?;
//! let sum = AtomicUsize::new(0);
//! pool.run(10, &|task, _worker| {
//!     sum.fetch_add(task, Ordering::Relaxed);
//! });
//! assert_eq!(sum.into_inner(), 45);
//! # Ok::<(), plimsoll_core::DeviceError>(())
//! ```

use super::sync::{AtomicBool, AtomicU64, AtomicUsize, Ordering, Spawn, ThreadSpec, UnsafeCell, lock, spawn, spin_loop};
use super::sync::{JoinHandle, Mutex, Thread, thread, thread_local};
use plimsoll_core::DeviceError;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

/// Bytes of stack each worker thread is given; the planner counts them. Kernels take at most 70 KiB of it, more without
/// optimizations.
pub const STACK: usize = if cfg!(debug_assertions) { 256 << 10 } else { 128 << 10 };

/// Spins before parking: about five microseconds on current x86 cores, where a `pause` takes 40 to 140 cycles. A model
/// parks at once.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed set of threads that run the tasks of one call at a time.
///
/// Which worker runs which task is not deterministic, so a kernel whose result must not depend on the number of threads
/// partitions its work by shape alone.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a parallel run: there is one job slot.
    callers: Mutex<()>,
}

/// What the caller and the workers both see.
struct PoolState {
    /// `generation << 32 | workers inside << 1 | open`. A worker may read the job only between entering (a successful
    /// compare-exchange while open) and leaving; the caller writes the job only while closed and empty.
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

#[derive(Clone)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
    caller: Option<Thread>,
}

// SAFETY: `job` is the only field that is not already `Sync`, and the protocol written at `gate` orders every access to
// it: the caller writes it before opening the gate (release) and after the last worker left (acquire). The loom models
// check this.
unsafe impl Sync for PoolState {}
// SAFETY: the raw task pointer is dereferenced only inside a run, whose caller keeps the closure alive and whose
// closure is `Sync`.
unsafe impl Send for PoolState {}

const OPEN: u64 = 1;
const INSIDE: u64 = 2;
const COUNT: u64 = (1 << 32) - 2;
const GENERATION: u64 = 1 << 32;

/// The pool (by address) and the worker index whose task this thread is inside, if any.
type InsideTask = Cell<Option<(usize, usize)>>;

#[cfg(not(loom))]
thread_local! {
    static INSIDE_TASK: InsideTask = const { Cell::new(None) };
}
#[cfg(loom)]
thread_local! {
    static INSIDE_TASK: InsideTask = Cell::new(None);
}

impl ThreadPool {
    /// A pool of `threads` threads, the caller of [`ThreadPool::run`] included; one thread (or zero) spawns none.
    ///
    /// # Errors
    /// If the operating system refuses to start a thread; those already started are stopped.
    pub fn new(threads: usize) -> Result<ThreadPool, DeviceError> {
        ThreadPool::start(threads, &mut spawn)
    }

    fn start(threads: usize, spawn: Spawn<'_>) -> Result<ThreadPool, DeviceError> {
        let shared = Arc::new(PoolState {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(Job { task: &|_, _| {}, tasks: 0, caller: None }),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let started = StartBarrier::default();
        let mut pool = ThreadPool { shared, workers: Vec::with_capacity(threads.saturating_sub(1)), callers: Mutex::new(()) };
        for worker in 1..threads {
            let (shared, signal) = (Arc::clone(&pool.shared), started.signal());
            let body = move || {
                drop(signal);
                work(&shared, worker)
            };
            let spec = ThreadSpec { name: format!("kernel-{worker}"), stack: STACK, body: Box::new(body) };
            // Dropping the pool stops and joins the workers that could be started.
            pool.workers.push(spawn(spec).map_err(|error| DeviceError::Failed {
                device: "cpu".to_string(),
                what: format!(
                    "thread {worker} of {threads} could not be started: {error}; set a smaller `threads`, or raise the limit on processes (`ulimit -u`)"
                ),
            })?);
        }
        started.wait();
        Ok(pool)
    }

    /// How many threads run tasks, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index, worker)` once for each index below `tasks` and returns when all have returned.
    ///
    /// `worker` is below [`ThreadPool::threads`] and no two tasks that run at the same moment share it, so it can
    /// select a slice of a workspace. The caller is worker 0. A run from inside a task of the same pool is executed
    /// serially by the worker that called it.
    ///
    /// # Panics
    /// With the payload of the first task that panicked; tasks not yet started are then skipped. The pool stays usable.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let identity = Arc::as_ptr(&self.shared) as usize;
        let nested = INSIDE_TASK.with(Cell::get).filter(|&(pool, _)| pool == identity);
        if tasks <= 1 || self.workers.is_empty() || nested.is_some() {
            let worker = nested.map_or(0, |(_, worker)| worker);
            (0..tasks).for_each(|index| task(index, worker));
            return;
        }

        let one_caller = lock(&self.callers);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. The pointer is not used after this function returns or unwinds: `claim`
        // catches the panics of tasks, and below the gate is closed and every worker inside has left before anything
        // else can unwind.
        let task: *const Task<'static> = unsafe { std::mem::transmute(task as *const Task<'_>) };
        let job = Job { task, tasks, caller: Some(thread::current()) };
        // SAFETY: `callers` is held and the previous run left the gate closed and empty, so no worker reads the job
        // now.
        shared.job.with_mut(|slot| unsafe { *slot = job });
        shared.next.store(0, Ordering::Relaxed);
        shared.gate.fetch_add(GENERATION | OPEN, Ordering::Release);
        for worker in self.workers.iter().take(tasks - 1) {
            worker.thread().unpark();
        }

        claim(shared, task, tasks, 0);

        // Workers that have not woken by now are not waited for: the closed gate keeps them out.
        shared.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0;
        while shared.gate.load(Ordering::Acquire) & COUNT != 0 {
            spins += 1;
            if spins < SPINS { spin_loop() } else { thread::park() }
        }
        let payload = lock(&shared.panic).take();
        drop(one_caller);
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so joining it cannot fail.
            let _ = worker.join();
        }
    }
}

/// Waits until every thread of a new pool runs. A thread allocates a little when it starts; no run waits for a late
/// one, so that allocation must not fall into a step.
#[cfg(not(loom))]
struct StartBarrier(std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

#[cfg(not(loom))]
impl Default for StartBarrier {
    fn default() -> StartBarrier {
        let (sender, receiver) = std::sync::mpsc::channel();
        StartBarrier(sender, receiver)
    }
}

#[cfg(not(loom))]
impl StartBarrier {
    /// Held by a thread until it runs.
    fn signal(&self) -> std::sync::mpsc::Sender<()> {
        self.0.clone()
    }

    fn wait(self) {
        let StartBarrier(sender, receiver) = self;
        drop(sender);
        // Ends with an error once no thread holds a signal.
        let _ = receiver.recv();
    }
}

/// A model has no allocations to wait for.
#[cfg(loom)]
#[derive(Default)]
struct StartBarrier;

#[cfg(loom)]
impl StartBarrier {
    fn signal(&self) -> impl Send + use<> {
        std::sync::Arc::new(())
    }

    fn wait(self) {}
}

/// Runs unclaimed tasks until none is left. Does not unwind.
fn claim(shared: &PoolState, task: *const Task<'static>, tasks: usize, worker: usize) {
    let before = INSIDE_TASK.with(|inside| inside.replace(Some((shared as *const PoolState as usize, worker))));
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= tasks {
            break;
        }
        // SAFETY: the caller of `run` keeps the closure alive until every thread inside the gate has left.
        let call = AssertUnwindSafe(|| unsafe { (*task)(index, worker) });
        if let Err(payload) = catch_unwind(call) {
            shared.next.store(tasks, Ordering::Relaxed);
            let mut first = lock(&shared.panic);
            match *first {
                None => *first = Some(payload),
                // Not dropped: a payload whose destructor panics would unwind through a run that others are still
                // inside.
                Some(_) => std::mem::forget(payload),
            }
        }
    }
    INSIDE_TASK.with(|inside| inside.set(before));
}

/// A worker's main loop: join each open run once, otherwise spin a little, otherwise park.
fn work(shared: &PoolState, worker: usize) {
    let mut joined = 0;
    let mut spins = 0;
    while !shared.stop.load(Ordering::Acquire) {
        let gate = shared.gate.load(Ordering::Acquire);
        let generation = gate / GENERATION;
        if gate & OPEN == 0 || generation == joined {
            spins += 1;
            if spins < SPINS {
                spin_loop();
            } else {
                thread::park();
                spins = 0;
            }
            continue;
        }
        if shared.gate.compare_exchange(gate, gate + INSIDE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        joined = generation;
        spins = 0;
        // SAFETY: this thread is inside the gate, so the job was published before and is not rewritten until it leaves.
        let Job { task, tasks, caller } = shared.job.with(|job| unsafe { (*job).clone() });
        claim(shared, task, tasks, worker);
        let left = shared.gate.fetch_sub(INSIDE, Ordering::AcqRel) - INSIDE;
        if left & (COUNT | OPEN) == 0
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

#[cfg(all(test, loom))]
#[path = "threads_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "threads_tests.rs"]
mod tests;
