//! The thread that copies tensors to and from the backing store while kernels compute.
//!
//! A program hands over its list of copies once per run and then only two numbers: how many may have started by now,
//! and how many must have finished. Copies are executed one after another in the order of the list. Nothing is
//! allocated.

use super::sync::{Condvar, JoinHandle, Mutex, MutexGuard, Spawn, ThreadSpec, lock, spawn};
use plimsoll_core::Bytes;
use plimsoll_core::device::{BackingStore, DeviceError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};

/// Bytes of stack the thread is given; the planner counts them.
pub(crate) const STACK: usize = 128 << 10;

/// One copy between memory and the backing store.
pub(crate) struct CopyJob {
    pub backing: Arc<dyn BackingStore>,
    pub offset: Bytes,
    pub address: *mut u8,
    pub size: usize,
    /// To the backing store; otherwise from it.
    pub out: bool,
}

// SAFETY: the address is dereferenced only by `execute`, whose caller vouches for it; the backing store is `Send` and
// `Sync` itself.
unsafe impl Send for CopyJob {}
// SAFETY: as above.
unsafe impl Sync for CopyJob {}

impl CopyJob {
    /// Executes the copy.
    ///
    /// # Safety
    /// `address` is valid for `size` bytes, which nothing else writes during the call, nor reads if the copy writes
    /// them. The bytes are initialized.
    pub unsafe fn execute(&self) -> Result<(), DeviceError> {
        if self.size == 0 {
            return Ok(());
        }
        if self.out {
            // SAFETY: guaranteed by the caller.
            self.backing.write(self.offset, unsafe { std::slice::from_raw_parts(self.address, self.size) })
        } else {
            // SAFETY: guaranteed by the caller.
            self.backing.read(self.offset, unsafe { std::slice::from_raw_parts_mut(self.address, self.size) })
        }
    }
}

/// The copying thread.
pub(crate) struct Copier {
    shared: Arc<CopierState>,
    thread: Option<JoinHandle<()>>,
    /// Held by the program that is running.
    users: Mutex<()>,
}

#[derive(Default)]
struct CopierState {
    state: Mutex<State>,
    /// More copies may start, or the thread is to stop.
    work: Condvar,
    /// A copy has finished.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    jobs: Jobs,
    started: usize,
    finished: usize,
    failed: Option<DeviceError>,
    stop: bool,
}

#[derive(Clone, Copy)]
struct Jobs(*const CopyJob);

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs(std::ptr::null())
    }
}

// SAFETY: a pointer to `CopyJob`s, which are `Sync`; `CopyRun` borrows the list and clears the pointer when it is
// dropped.
unsafe impl Send for Jobs {}

impl Copier {
    /// # Errors
    /// If the operating system refuses to start a thread.
    pub fn new() -> Result<Copier, DeviceError> {
        Copier::start(&mut spawn)
    }

    fn start(spawn: Spawn<'_>) -> Result<Copier, DeviceError> {
        let shared = Arc::new(CopierState::default());
        let theirs = Arc::clone(&shared);
        let thread = spawn(ThreadSpec { name: "offload".to_string(), stack: STACK, body: Box::new(move || work(&theirs)) });
        let thread = thread.map_err(|error| DeviceError::Failed {
            device: "cpu".to_string(),
            what: format!(
                "the thread that copies tensors to the backing store could not be started: {error}; set a smaller `threads`, or raise the limit on \
                 processes (`ulimit -u`)"
            ),
        })?;
        Ok(Copier { shared, thread: Some(thread), users: Mutex::new(()) })
    }

    /// A run of a program with these copies.
    ///
    /// # Safety
    /// From [`CopyRun::start`] of a copy until it has finished, or the run is dropped, [`CopyJob::execute`]'s
    /// conditions hold for it: its bytes are valid and accessed by nothing else.
    pub unsafe fn run<'a>(&'a self, jobs: &'a [CopyJob]) -> CopyRun<'a> {
        let alone = lock(&self.users);
        let mut state = lock(&self.shared.state);
        (state.jobs, state.started, state.finished, state.failed) = (Jobs(jobs.as_ptr()), 0, 0, None);
        drop(state);
        CopyRun { shared: &self.shared, count: jobs.len(), _alone: alone }
    }
}

/// The copies of one run.
pub(crate) struct CopyRun<'a> {
    shared: &'a CopierState,
    count: usize,
    _alone: MutexGuard<'a, ()>,
}

impl CopyRun<'_> {
    /// Allows the first `count` copies to start.
    pub fn start(&self, count: usize) {
        assert!(count <= self.count, "there are only {} copies", self.count);
        let mut state = lock(&self.shared.state);
        if count > state.started {
            state.started = count;
            drop(state);
            self.shared.work.notify_one();
        }
    }

    /// Waits until the first `count` copies have finished; they have been allowed to start.
    ///
    /// # Errors
    /// When one of them, or any other so far, has failed.
    pub fn wait(&self, count: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.shared.state);
        while state.finished < count && state.failed.is_none() {
            state = self.shared.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for CopyRun<'_> {
    /// Waits for the copies that were started: after the run their bytes may be accessed again.
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        while state.finished < state.started {
            state = self.shared.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.jobs, state.started, state.finished, state.failed) = (Jobs::default(), 0, 0, None);
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics of the backing store, so joining it cannot fail.
            let _ = thread.join();
        }
    }
}

/// The thread's main loop.
fn work(shared: &CopierState) {
    let mut state = lock(&shared.state);
    loop {
        if state.stop {
            return;
        }
        if state.finished == state.started {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        // After a failure nothing more is copied: the run returns the error.
        if state.failed.is_none() {
            // SAFETY: `CopyRun` borrows the list until every started copy has finished, and starts no more than the
            // list has.
            let job = unsafe { &*state.jobs.0.add(state.finished) };
            drop(state);
            // SAFETY: promised by the caller of `Copier::run`. A panic of the backing store leaves only its own state
            // and the bytes of this copy behind; the run ends with an error, so nothing reads either.
            let executed = catch_unwind(AssertUnwindSafe(|| unsafe { job.execute() }));
            state = lock(&shared.state);
            state.failed = executed.unwrap_or_else(|payload| Err(panicked(job, payload))).err();
        }
        state.finished += 1;
        shared.progress.notify_one();
    }
}

/// What a step reports when the backing store panics: without it the step would wait for the copy for ever.
fn panicked(job: &CopyJob, payload: Box<dyn Any + Send>) -> DeviceError {
    let message = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let access = if job.out { "writing" } else { "reading" };
    let what = format!(
        "the backing store panicked while {access} {} at byte {}: {}; fix its `BackingStore` implementation, or plan without offloading",
        Bytes(job.size as u64),
        job.offset.0,
        message.unwrap_or("no message")
    );
    // Not dropped: a payload whose destructor panics would end this thread, and the step would wait for it.
    std::mem::forget(payload);
    DeviceError::Failed { device: "cpu".to_string(), what }
}

#[cfg(all(test, loom))]
#[path = "copier_loom_tests.rs"]
mod loom_tests;

#[cfg(all(test, not(loom)))]
#[path = "copier_tests.rs"]
mod tests;
