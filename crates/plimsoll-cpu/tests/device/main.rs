//! The device as the rest of the system uses it: plans of whole graphs, run through the executor.

mod guard;
mod images;
mod joins;
mod model;
mod op_table;
mod planned;
mod precision;
mod training;
