//! A fork-join pool for kernels: a caller and a few workers claim task indices from one counter.
//!
//! Kernels call [`Pool::run`] many times per training step, so a call allocates nothing and costs well under a microsecond
//! when the workers are awake. Idle workers spin for a few microseconds and then park, because the cores they
//! would burn belong to the input pipeline.
//!
//! ```
//! use plimsoll_cpu::runtime::threads::Pool;
//! use std::sync::atomic::{AtomicUsize, Ordering};
//!
//! let pool = Pool::new(2);
//! let sum = AtomicUsize::new(0);
//! pool.run(10, &|task, _worker| {
//!     sum.fetch_add(task, Ordering::Relaxed);
//! });
//! assert_eq!(sum.into_inner(), 45);
//! ```

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::hint::spin_loop;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle, Thread};

/// Bytes of stack each worker thread is given; the planner counts them.
pub const STACK: usize = 512 << 10;

/// Spins before parking: about five microseconds on current x86 cores, where a `pause` takes 40 to 140 cycles.
const SPINS: u32 = 200;

type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

/// A fixed set of threads that run the tasks of one call at a time.
///
/// Which worker runs which task is left to chance, so a kernel whose result must not depend on the number of threads
/// partitions its work by shape alone.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of a parallel run: the job slot has room for one.
    callers: Mutex<()>,
}

/// What the caller and the workers both see.
struct Shared {
    /// `generation << 32 | workers inside << 1 | open`. A worker may read the job only between entering (a successful
    /// compare-exchange while open) and leaving; the caller writes the job only while closed and empty.
    gate: AtomicU64,
    job: UnsafeCell<Job>,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
}

struct Job {
    task: *const Task<'static>,
    tasks: usize,
    caller: Option<Thread>,
}

// SAFETY: `job` is the only field that is not already `Sync`, and the protocol written at `gate` orders every access to it: the caller
// writes it before opening the gate (release) and after the last worker left (acquire).
unsafe impl Sync for Shared {}
// SAFETY: the raw task pointer is dereferenced only inside a run, whose caller keeps the closure alive and whose closure is `Sync`.
unsafe impl Send for Shared {}

const OPEN: u64 = 1;
const INSIDE: u64 = 2;
const COUNT: u64 = (1 << 32) - 2;
const GENERATION: u64 = 1 << 32;

thread_local! {
    /// The pool (by address) and the worker index whose task this thread is inside, if any.
    static INSIDE_TASK: Cell<Option<(usize, usize)>> = const { Cell::new(None) };
}

impl Pool {
    /// A pool of `threads` threads, the caller of [`Pool::run`] included; one thread (or zero) spawns none.
    ///
    /// # Panics
    /// When the operating system refuses to start a thread.
    pub fn new(threads: usize) -> Pool {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: UnsafeCell::new(Job { task: &|_, _| {}, tasks: 0, caller: None }),
            next: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
        });
        let (begun, all_begun) = mpsc::channel::<()>();
        let workers = (1..threads)
            .map(|worker| {
                let (shared, begun) = (Arc::clone(&shared), begun.clone());
                thread::Builder::new()
                    .name(format!("kernel-{worker}"))
                    .stack_size(STACK)
                    .spawn(move || {
                        drop(begun);
                        work(&shared, worker)
                    })
                    .expect("the operating system refused to start a kernel thread")
            })
            .collect();
        // A thread takes some memory of its own when it begins. No run waits for one that is late, so that is waited for here.
        drop(begun);
        let _ = all_begun.recv();
        Pool { shared, workers, callers: Mutex::new(()) }
    }

    /// How many threads run tasks, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `task(index, worker)` once for each index below `tasks` and returns when all have returned.
    ///
    /// `worker` is below [`Pool::threads`] and no two tasks that run at the same moment share it, so it can select a slice of a workspace.
    /// The caller is worker 0. A run from inside a task of the same pool is executed serially by the worker that asked for it.
    ///
    /// # Panics
    /// With the payload of the first task that panicked; tasks not yet started are then skipped. The pool stays usable.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let identity = Arc::as_ptr(&self.shared) as usize;
        let nested = INSIDE_TASK.get().filter(|&(pool, _)| pool == identity);
        if tasks <= 1 || self.workers.is_empty() || nested.is_some() {
            let worker = nested.map_or(0, |(_, worker)| worker);
            (0..tasks).for_each(|index| task(index, worker));
            return;
        }

        let _one_caller = lock(&self.callers);
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes; the pointer is not used after the gate below has been closed and left by all.
        let task: *const Task<'static> = unsafe { std::mem::transmute(task as *const Task<'_>) };
        // SAFETY: `callers` is held and the previous run left the gate closed and empty, so nobody reads the job now.
        unsafe { *shared.job.get() = Job { task, tasks, caller: Some(thread::current()) } };
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
        if let Some(payload) = payload {
            resume_unwind(payload);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its tasks, so joining it cannot fail.
            let _ = worker.join();
        }
    }
}

/// Runs unclaimed tasks until none is left.
fn claim(shared: &Shared, task: *const Task<'static>, tasks: usize, worker: usize) {
    let before = INSIDE_TASK.replace(Some((shared as *const Shared as usize, worker)));
    loop {
        let index = shared.next.fetch_add(1, Ordering::Relaxed);
        if index >= tasks {
            break;
        }
        // SAFETY: the caller of `run` keeps the closure alive until every thread inside the gate has left.
        let call = AssertUnwindSafe(|| unsafe { (*task)(index, worker) });
        if let Err(payload) = catch_unwind(call) {
            shared.next.store(tasks, Ordering::Relaxed);
            lock(&shared.panic).get_or_insert(payload);
        }
    }
    INSIDE_TASK.set(before);
}

/// The life of a worker: join each open run once, otherwise spin a little, otherwise park.
fn work(shared: &Shared, worker: usize) {
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
        let Job { task, tasks, caller } = unsafe { &*shared.job.get() };
        claim(shared, *task, *tasks, worker);
        // Cloned before leaving: afterwards the slot belongs to the caller again.
        let caller = caller.clone();
        let left = shared.gate.fetch_sub(INSIDE, Ordering::AcqRel) - INSIDE;
        if left & (COUNT | OPEN) == 0
            && let Some(caller) = caller
        {
            caller.unpark();
        }
    }
}

/// A poisoned lock is taken all the same: the data it guards is replaced as a whole.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(pool: &Pool, tasks: usize) -> Vec<usize> {
        let seen: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
        pool.run(tasks, &|index, worker| {
            assert!(worker < pool.threads());
            seen[index].fetch_add(1, Ordering::Relaxed);
        });
        seen.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn every_task_runs_once() {
        for threads in [0, 1, 2, 3, 5] {
            let pool = Pool::new(threads);
            assert_eq!(pool.threads(), threads.max(1));
            for tasks in [0, 1, 2, 7, 1000] {
                for _ in 0..50 {
                    assert_eq!(counts(&pool, tasks), vec![1; tasks]);
                }
            }
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_survives() {
        let pool = Pool::new(3);
        for culprit in [0, 5, 19] {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|index, _| assert_ne!(index, culprit, "task {culprit}"));
            }));
            let message = *caught.unwrap_err().downcast::<String>().unwrap();
            assert!(message.contains(&format!("task {culprit}")), "{message}");
            assert_eq!(counts(&pool, 20), vec![1; 20]);
        }
    }

    #[test]
    fn a_nested_run_is_serial_on_the_worker_that_asked() {
        let pool = Pool::new(3);
        let inner = AtomicUsize::new(0);
        pool.run(8, &|_, outer| {
            pool.run(4, &|_, worker| {
                assert_eq!(worker, outer);
                inner.fetch_add(1, Ordering::Relaxed);
            });
        });
        assert_eq!(inner.into_inner(), 32);
    }

    #[test]
    fn callers_on_several_threads_take_turns() {
        let pool = Pool::new(2);
        thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| (0..100).for_each(|_| assert_eq!(counts(&pool, 9), vec![1; 9])));
            }
        });
    }
}
