//! The ops, one file each: shape rule, gradient rule, cost, and where they may write in place.

mod attention;
mod concat;
mod conv;
mod gather;
mod leaf;
mod matmul;
mod offload;
mod pad;
mod pointwise;
mod pooling;
mod recurrent;
mod recurrent_grad;
mod reduce;
mod reshape;
mod rows;
mod slice;
mod transpose;

pub use attention::{Attention, AttentionGrad, AttentionShape, Packing, WeightDropout};
pub use concat::Concat;
pub use conv::{Conv2d, Conv2dGradFilter, Conv2dGradInput, Window};
pub use gather::{Gather, ScatterAdd};
pub use matmul::MatMul;
pub use offload::{Load, Store};
pub use pad::Pad;
pub use pointwise::Pointwise;
pub use pooling::{AvgPool, AvgPoolGrad, MaxPool, MaxPoolGrad};
pub use recurrent::{Activation, Cell, Recurrent, RecurrentInputs};
pub use recurrent_grad::{RecurrentGrad, RecurrentGradInputs};
pub use reduce::{Reduce, Reduction};
pub use reshape::Reshape;
pub use rows::Rows;
pub use slice::Slice;
pub use transpose::Transpose;
