//! The kernels, a module per family of ops. Each states how much workspace it needs before it runs and allocates nothing while it does.
//!
//! `gemm` and `pointwise` depend on no other kernel; reductions evaluate pointwise expressions; attention, convolutions and recurrent layers are built on
//! matrix products.

pub mod attention;
pub mod conv;
pub mod gather;
pub mod gemm;
pub mod movement;
pub mod pointwise;
pub mod pooling;
pub mod recurrent;
pub mod reduce;
