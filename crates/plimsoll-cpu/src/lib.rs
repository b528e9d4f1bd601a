//! (crate root)

pub mod conv;
pub mod gemm;
pub mod simd;
pub mod threads;
