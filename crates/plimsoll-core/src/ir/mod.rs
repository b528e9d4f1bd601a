//! The intermediate representation: ops with their rules, the graph, and its invariants.

pub(crate) mod adjoint;
mod build;
mod factor;
pub mod graph;
pub mod op;
pub mod ops;
mod print;
pub(crate) mod rules;
mod scope;
pub(crate) mod verify;
