//! What the core promises, as tests. One binary, one module per promise.

mod absences;
mod allocators;
mod arena;
mod autodiff;
mod checker;
mod concat;
mod data_parallel;
mod device;
mod errors;
mod functions;
mod offload;
mod op_table;
mod passes;
mod planner;
mod precision;
mod recompute;
mod recurrent;
mod reference;
mod shards;
mod step;
mod support;
mod updates;
