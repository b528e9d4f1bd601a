//! What allocators synchronize with; loom's under its models.

#[cfg(loom)]
pub(super) use loom::sync::atomic::AtomicU32;
#[cfg(loom)]
pub(super) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(super) use std::sync::atomic::AtomicU32;
#[cfg(not(loom))]
pub(super) use std::sync::{Mutex, MutexGuard};
