//! What the core promises, as tests. One binary, one module per promise.

mod autodiff;
mod planner;
mod support;
mod updates;
