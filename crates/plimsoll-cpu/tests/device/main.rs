//! The device as the rest of the system uses it: plans of whole graphs, run through the executor.

mod allocators;
mod concat;
mod data_parallel;
mod executable;
mod guard;
mod images;
mod model;
mod op_table;
mod planned;
mod precision;
mod training;
