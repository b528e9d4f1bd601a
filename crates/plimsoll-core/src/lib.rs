//! Graphs, plans and budgets: everything about a training step that can be known before it runs.
//!
//! The modules form layers. Each one depends only on those above it in this table, which is also the order in which a
//! model passes through them:
//!
//! | layer | folder | contents |
//! |---|---|---|
//! | values | `base/` | [`dtype`], [`shape`], [`expr`], [`random`] and [`normal`] numbers, [`pairwise`] sums, [`shard`]s, [`budget`] |
//! | graph | `ir/` | [`op`] and [`ops`] with their rules, [`graph`], [`verify`], the text form |
//! | transformations | `transform/` | [`autodiff`], [`function`], [`passes`], [`step`] variants, [`data_parallel`], [`fixed_order`], [`loss_scale`], [`pruning`], [`sharding`] |
//! | planning | `plan/` | schedule, liveness, recomputation, offload, arena, certificate, checker |
//! | devices | `device/` | what a device implements: memory and loaded programs |
//! | allocators | `allocator/` | [`allocator`]: blocks within a byte limit, for memory that is not planned |
//! | execution | `executor.rs` | [`Executor`]: runs a plan on a [`Device`] |
//! | oracle | `reference/` | every op in float64 |
//! | op table | `selftest/` | cases that compare a device with the oracle |
//!
//! Nothing here reads files, starts threads or knows a device.

pub mod allocator;
mod base;
pub mod device;
mod executor;
mod ir;
pub mod plan;
pub mod reference;
pub mod selftest;
mod transform;

pub use base::budget::{Budget, Bytes, Ledger, LedgerError, Reservation};
pub use base::dtype::DType;
pub use base::shape::{Dim, Shape, TensorType};
pub use base::{budget, dtype, expr, normal, pairwise, random, shape, shard};
pub use device::{Device, DeviceError};
pub use executor::{ChunkMap, Executor, LoadedProgram, ProgramLoader, Ticket};
pub use ir::graph::{Graph, GraphError, NodeId, ValueId};
pub use ir::op::Op;
pub use ir::verify::verify;
pub use ir::{graph, op, ops};
pub use plan::Plan;
pub use transform::{autodiff, data_parallel, fixed_order, function, loss_scale, passes, pruning, sharding, step};
