//! What the core promises, as tests. One binary, one module per promise.

mod autodiff;
mod checker;
mod op_table;
mod planner;
mod support;
mod updates;
