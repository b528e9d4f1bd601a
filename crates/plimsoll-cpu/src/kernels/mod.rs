//! The kernels, one module per family of ops. Each states its workspace before it runs and does not allocate while it
//! runs.
//!
//! `gemm` and `pointwise` depend on no other kernel; reductions evaluate pointwise expressions; attention, convolutions
//! and recurrent layers are built on matrix products.

pub mod attention;
pub mod conv;
pub mod gather;
pub mod gemm;
pub mod movement;
pub mod pairwise;
pub mod pointwise;
pub mod pooling;
pub mod recurrent;
pub mod reduce;
