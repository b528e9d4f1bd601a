//! Eager tensors: ops run at once, through the kernels of planned programs, within a byte limit.
//!
//! Explore with [`Tensor`], take gradients with a [`Tape`] or [`grad`], and [`compile`] what works into a planned step.
//! `docs/eager.md` is the guide.
//!
//! An op is a graph of one or a few nodes that is planned, checked and loaded once per op, types and device.
//! Gradients are the vector-Jacobian products of these graphs, by the rules with which models are differentiated; a
//! compiled function is the graph of its ops.
//!
//! The modules are layers; each depends only on those above it in this list:
//!
//! 1. `error`, `hash`, `short`, `element`;
//! 2. `composite`, `call`: ops as pieces of graphs; `programs`: compiled ops and gradients;
//! 3. `heap`, `context`: memory and where ops run; `tensor`; `leaks`: what grows between the epochs of a `Trainer`;
//! 4. `placement`, `trace`, `record`: device scopes and logs, and what traces and tapes see of an op; `dispatch`: the
//!    one way in;
//! 5. `create`, `arithmetic`, `masks`, `movement`, `reduce`, `layers`, `display`: methods of tensors;
//! 6. `tape`, `gradient`, `compile`, `custom`: layers, losses, metrics and optimizers of a `Trainer`.

mod arithmetic;
mod call;
mod compile;
mod composite;
mod context;
mod create;
mod custom;
mod dispatch;
mod display;
mod element;
mod error;
mod gradient;
mod hash;
mod heap;
mod layers;
mod leaks;
mod masks;
mod movement;
mod placement;
mod programs;
mod record;
mod reduce;
mod short;
mod tape;
mod tensor;
mod trace;

pub use crate::nn::Padding;
pub use compile::{Compiled, compile, compile_with_state};
pub use context::Context;
pub use custom::{CustomLayer, CustomOptimizer, LayerCall, UpdateCall};
pub use element::Element;
pub use error::{Error, Result};
pub use gradient::{custom_gradient, grad, stop_gradient, value_and_grad};
pub(crate) use leaks::LeakWatch;
pub use placement::{Placement, device, log_placement};
pub use plimsoll_core::DType;
pub use plimsoll_core::allocator::{Growth, Limit, MemoryStats, Snapshot};
pub use tape::Tape;
pub use tensor::Tensor;
