//! The CPU as a device: kernels, a thread pool, and programs resolved into flat lists of instructions.
//!
//! [`CpuDevice`] is what the rest of the system sees. Behind it, every op has a kernel in its own module, each of which says how much
//! workspace it needs before it runs; nothing is allocated while a program runs, and results do not depend on the number of threads.

#[macro_use]
mod multiversion;

pub mod attention;
pub mod conv;
mod copier;
mod device;
pub mod gather;
pub mod gemm;
mod memory;
pub mod movement;
pub mod pointwise;
pub mod pooling;
mod program;
pub mod recurrent;
pub mod reduce;
pub mod simd;
pub mod stored;
pub mod threads;
mod widen;

pub use device::CpuDevice;
