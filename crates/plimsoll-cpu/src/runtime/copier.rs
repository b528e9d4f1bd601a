//! The thread that moves tensors to and from the backing store while kernels compute.
//!
//! A program hands over its list of copies once per run and then only two numbers: how many may have begun by now, and how many must have ended.
//! Copies are made one after another in the order of the list. Nothing is allocated.

use plimsoll_core::Bytes;
use plimsoll_core::device::{BackingStore, DeviceError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Bytes of stack the thread is given; the planner counts them.
pub(crate) const STACK: usize = 128 << 10;

/// One copy between memory and the backing store.
pub(crate) struct Job {
    pub backing: Arc<dyn BackingStore>,
    pub offset: Bytes,
    pub address: *mut u8,
    pub size: usize,
    /// Into the backing store; else back from it.
    pub out: bool,
}

// SAFETY: the address is followed only while a program runs, which holds the locks of the memories it points into.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// Makes the copy.
    ///
    /// # Safety
    /// The bytes at the address are there, and nobody else writes them, nor reads them if the copy comes back.
    pub unsafe fn make(&self) -> Result<(), DeviceError> {
        if self.size == 0 {
            return Ok(());
        }
        if self.out {
            // SAFETY: promised by the caller.
            self.backing.write(self.offset, unsafe { std::slice::from_raw_parts(self.address, self.size) })
        } else {
            // SAFETY: promised by the caller.
            self.backing.read(self.offset, unsafe { std::slice::from_raw_parts_mut(self.address, self.size) })
        }
    }
}

/// The thread.
pub(crate) struct Copier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    /// Held by the program that runs.
    users: Mutex<()>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// More copies may begin, or the thread shall end.
    work: Condvar,
    /// A copy has ended.
    progress: Condvar,
}

#[derive(Default)]
struct State {
    jobs: Jobs,
    begun: usize,
    ended: usize,
    failed: Option<DeviceError>,
    stop: bool,
}

#[derive(Clone, Copy)]
struct Jobs(*const Job);

impl Default for Jobs {
    fn default() -> Jobs {
        Jobs(std::ptr::null())
    }
}

// SAFETY: the list outlives the run that hands it over, and `Run` clears the pointer before it goes.
unsafe impl Send for Jobs {}

impl Copier {
    /// # Errors
    /// When the system refuses to start a thread.
    pub fn new() -> Result<Copier, DeviceError> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("offload".to_string()).stack_size(STACK).spawn(move || work(&theirs));
        let thread = thread.map_err(|error| DeviceError::Failed {
            device: "cpu".to_string(),
            what: format!("the thread that moves tensors to the backing store could not be started: {error}"),
        })?;
        Ok(Copier { shared, thread: Some(thread), users: Mutex::new(()) })
    }

    /// A run of a program with these copies.
    ///
    /// # Safety
    /// Until the run is dropped, the bytes that the begun and not yet ended copies touch are touched by nobody else.
    pub unsafe fn run<'a>(&'a self, jobs: &'a [Job]) -> Run<'a> {
        let alone = lock(&self.users);
        let mut state = lock(&self.shared.state);
        (state.jobs, state.begun, state.ended, state.failed) = (Jobs(jobs.as_ptr()), 0, 0, None);
        drop(state);
        Run { shared: &self.shared, count: jobs.len(), _alone: alone }
    }
}

/// The copies of one run.
pub(crate) struct Run<'a> {
    shared: &'a Shared,
    count: usize,
    _alone: MutexGuard<'a, ()>,
}

impl Run<'_> {
    /// The first `count` copies may begin.
    pub fn begin(&self, count: usize) {
        assert!(count <= self.count, "there are only {} copies", self.count);
        let mut state = lock(&self.shared.state);
        if count > state.begun {
            state.begun = count;
            drop(state);
            self.shared.work.notify_one();
        }
    }

    /// Waits until the first `count` copies have ended; they have been allowed to begin.
    ///
    /// # Errors
    /// When one of them, or any other so far, has failed.
    pub fn wait(&self, count: usize) -> Result<(), DeviceError> {
        let mut state = lock(&self.shared.state);
        while state.ended < count && state.failed.is_none() {
            state = self.shared.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.take().map_or(Ok(()), Err)
    }
}

impl Drop for Run<'_> {
    /// What has begun ends before the bytes belong to somebody else.
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        while state.ended < state.begun {
            state = self.shared.progress.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        (state.jobs, state.begun, state.ended, state.failed) = (Jobs::default(), 0, 0, None);
    }
}

impl Drop for Copier {
    fn drop(&mut self) {
        lock(&self.shared.state).stop = true;
        self.shared.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has nothing to say.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared) {
    let mut state = lock(&shared.state);
    loop {
        if state.stop {
            return;
        }
        if state.ended == state.begun {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        // Behind a failure nothing is copied any more: the run ends with it.
        if state.failed.is_none() {
            // SAFETY: `Run` keeps the list until all that has begun has ended, and counts no further than it is long.
            let job = unsafe { &*state.jobs.0.add(state.ended) };
            drop(state);
            // SAFETY: whoever started the run promised that nobody else touches these bytes.
            let made = unsafe { job.make() };
            state = lock(&shared.state);
            state.failed = made.err();
        }
        state.ended += 1;
        shared.progress.notify_one();
    }
}

/// A poisoned lock is taken all the same: what it guards is numbers.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::device::MemoryStore;

    #[test]
    fn copies_are_made_in_order_and_waited_for() {
        let backing: Arc<dyn BackingStore> = Arc::new(MemoryStore::new(Bytes(8)));
        let mut memory = [1u8, 2, 3, 4, 0, 0, 0, 0];
        let start = memory.as_mut_ptr();
        let job = |offset, at: usize, out| Job {
            backing: Arc::clone(&backing),
            offset: Bytes(offset),
            address: start.wrapping_add(at),
            size: 4,
            out,
        };
        let jobs = [job(4, 0, true), job(4, 4, false)];
        let copier = Copier::new().unwrap();
        for _ in 0..100 {
            // SAFETY: nobody looks at the bytes before the run has ended.
            let run = unsafe { copier.run(&jobs) };
            run.begin(1);
            run.wait(1).unwrap();
            run.begin(2);
            drop(run);
        }
        assert_eq!(memory, [1, 2, 3, 4, 1, 2, 3, 4]);
    }

    /// A store that has no room.
    struct Full;

    impl BackingStore for Full {
        fn size(&self) -> Bytes {
            Bytes(4)
        }

        fn read(&self, _: Bytes, _: &mut [u8]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn write(&self, _: Bytes, _: &[u8]) -> Result<(), DeviceError> {
            Err(DeviceError::Failed { device: "cpu".to_string(), what: "the disk is full".to_string() })
        }

        fn as_any(&self) -> &dyn std::any::Any {
            self
        }
    }

    #[test]
    fn a_failed_copy_reaches_whoever_waits() {
        let mut memory = [0u8; 4];
        let jobs: Vec<Job> =
            (0..3).map(|_| Job { backing: Arc::new(Full), offset: Bytes(0), address: memory.as_mut_ptr(), size: 4, out: true }).collect();
        let copier = Copier::new().unwrap();
        for _ in 0..10 {
            // SAFETY: nobody looks at the bytes before the run has ended.
            let run = unsafe { copier.run(&jobs) };
            run.begin(3);
            assert_eq!(run.wait(2).unwrap_err().to_string(), "cpu: the disk is full");
        }
    }
}
