//! Graphs, plans and budgets: everything about a training step that can be known before it runs.
//!
//! The modules stand in the order in which a model passes through them: a [`Graph`] is built, differentiated
//! ([`autodiff`]), improved ([`passes`]) and planned ([`plan`]); an [`Executor`] then runs the [`Plan`] on a [`Device`].
//! Nothing here reads files, starts threads or knows a device.

pub mod autodiff;
pub mod budget;
mod build;
pub mod device;
pub mod dtype;
mod executor;
pub mod expr;
mod factor;
pub mod graph;
pub mod loss_scale;
pub mod op;
pub mod ops;
pub mod passes;
pub mod plan;
mod print;
pub mod random;
pub mod reference;
pub mod selftest;
pub mod shape;
pub mod step;
mod verify;

pub use budget::{Budget, Bytes, Ledger, LedgerError, Reservation};
pub use device::{Device, DeviceError};
pub use dtype::DType;
pub use executor::{Executor, Ticket};
pub use graph::{Graph, GraphError, NodeId, ValueId};
pub use op::Op;
pub use plan::Plan;
pub use shape::{Dim, Shape, TensorType};
pub use verify::verify;
