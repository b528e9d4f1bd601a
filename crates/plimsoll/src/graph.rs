//! Graphs, as far as custom layers need them: what [`Layer::lower`](crate::nn::Layer::lower) adds its nodes to.
//!
//! A layer reads shapes from the graph, declares its weights with
//! [`Lowering::parameter`](crate::nn::Lowering::parameter), and adds ops. Gradients, fusion and memory follow from the
//! ops: a custom layer is planned, recomputed and split like a built-in one.
//!
//! ```
//! use plimsoll::graph::{GraphError, Init, ValueId};
//! use plimsoll::nn::{Layer, Lowering};
//!
//! /// Multiplies every feature by a trained factor, and squares the result.
//! #[derive(Debug)]
//! struct SquaredScale;
//!
//! impl Layer for SquaredScale {
//!     fn kind(&self) -> &'static str {
//!         "squared_scale"
//!     }
//!
//!     fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
//!         let [x] = *inputs else { return Err(lowering.graph.error("expects one input")) };
//!         let features = lowering.graph.shape(x).last().and_then(|dim| dim.as_fixed());
//!         let features = features.ok_or_else(|| lowering.graph.error("expects features"))?;
//!         let factors = lowering.parameter("factors", [features], Init::Constant(1.0))?;
//!         let scaled = lowering.graph.times(x, factors)?;
//!         lowering.graph.map(scaled, |e, x| e.mul(x, x))
//!     }
//! }
//! let model = plimsoll::nn::Sequential::new().add(SquaredScale).add(plimsoll::nn::Dense::new(10));
//! ```

pub use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
pub use plimsoll_core::graph::{Graph, GraphError, Init, NodeId, StateId, StateKind, ValueId};
pub use plimsoll_core::op::Op;
pub use plimsoll_core::ops::{self, Reduction};
pub use plimsoll_core::{DType, Dim, Shape, TensorType};
