//! Locks and flags of the ring: the system's, or those of loom, which tries every order of threads.

#[cfg(loom)]
pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
#[cfg(not(loom))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, atomic::AtomicBool};
