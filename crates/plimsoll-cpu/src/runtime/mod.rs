//! What programs run on: a thread pool, memory, and the thread that copies to and from the backing store.

pub(crate) mod copier;
pub(crate) mod memory;
mod pages;
mod sync;
pub mod threads;
