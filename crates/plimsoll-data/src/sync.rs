//! Locks and atomics of the ring: those of the standard library, or of loom for model checking.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
