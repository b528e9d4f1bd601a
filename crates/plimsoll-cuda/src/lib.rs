//! NVIDIA GPUs: plans run as CUDA graphs of generated kernels and matrix products, in one planned piece of memory.
//!
//! Everything CUDA is loaded at run time, so the crate builds and starts where there is none: [`probe`] says what was found. Kernels are written as
//! text from the same expressions the CPU executes and compiled where they run; plans need no GPU at all ([`Profile`]).

mod cache;
mod compile;
mod convolutions;
mod cudnn;
mod device;
mod driver;
mod kernels;
mod lanes;
mod memory;
mod overhead;
mod probe;
mod products;
mod profile;
mod program;
mod staging;

pub use cache::KernelCache;
pub use convolutions::Convolutions;
pub use device::CudaDevice;
pub use probe::{Found, Gpu, Probe, probe};
pub use profile::{PlanOnly, Profile};
