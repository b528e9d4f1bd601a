//! (crate root)

pub mod conv;
pub mod gemm;
pub mod pooling;
pub mod simd;
pub mod threads;
pub mod pointwise;
