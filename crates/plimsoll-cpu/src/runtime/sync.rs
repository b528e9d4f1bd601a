//! Threads, locks and atomics of the thread pool and the copier: the standard library's, or those of loom, which
//! explores every interleaving.

#[cfg(loom)]
pub(super) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle, Thread},
    thread_local,
};
#[cfg(not(loom))]
pub(super) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    sync::{Condvar, Mutex, MutexGuard},
    thread::{self, JoinHandle, Thread},
    thread_local,
};

use std::io;
use std::sync::PoisonError;

/// [`std::cell::UnsafeCell`] with the interface that loom checks.
#[cfg(not(loom))]
#[derive(Debug)]
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// What a thread is started with.
pub(super) struct ThreadSpec {
    pub name: String,
    pub stack: usize,
    pub body: Box<dyn FnOnce() + Send>,
}

/// Starts a thread. Tests pass a function that fails.
pub(super) type Spawn<'a> = &'a mut dyn FnMut(ThreadSpec) -> io::Result<JoinHandle<()>>;

/// Starts a thread of the operating system.
pub(super) fn spawn(spec: ThreadSpec) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(spec.name).stack_size(spec.stack).spawn(spec.body)
}

/// Takes a poisoned lock all the same: the code that holds one of these locks leaves the data consistent before it can
/// panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
