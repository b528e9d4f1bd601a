//! A GPU in use: its shared state, its memory, staging of batches, and offload copies.

pub(crate) mod arguments;
pub(crate) mod exchange;
mod granules;
pub(crate) mod memory;
pub(crate) mod offload;
pub(crate) mod staging;
pub(crate) mod start_times;
pub(crate) mod state;
