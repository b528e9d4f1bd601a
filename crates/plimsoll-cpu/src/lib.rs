//! (crate root)

pub mod gemm;
pub mod simd;
pub mod threads;
pub mod pointwise;
