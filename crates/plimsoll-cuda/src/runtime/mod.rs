//! A GPU in use: its shared state, its memory, how batches reach it and how tensors leave it for the host.

pub(crate) mod memory;
pub(crate) mod offload;
pub(crate) mod staging;
pub(crate) mod state;
