//! NVIDIA GPUs: plans run as CUDA graphs of generated kernels and library calls, in one planned allocation of device
//! memory.
//!
//! All CUDA libraries are loaded at run time, so the crate builds and starts without them: [`probe`] reports what was
//! found. Kernels are generated as source from the same expressions that the CPU executes, and compiled on the machine
//! that runs them; planning needs no GPU ([`Profile`]).
//!
//! The modules are layers; each depends only on those above it in this list:
//!
//! 1. `kernels`: the text of every kernel, generated from ops and shapes;
//! 2. `algorithms`: which implementation computes a matrix product or a convolution, and its workspace;
//! 3. `libraries`: the driver, NVRTC, cuBLASLt, cuDNN and NCCL as values that own their handles;
//! 4. `runtime`: a GPU in use, its memory, staging, offload copies, and exchange with other ranks;
//! 5. `program`: from a planned program to kernels and library calls with addresses, and their execution;
//! 6. `device`: the [`Device`](plimsoll_core::Device)s themselves, and the profiles that plans are made from.

mod algorithms;
mod device;
mod kernels;
mod libraries;
mod program;
mod runtime;

pub use algorithms::convolution::Convolutions;
pub use device::{CudaDevice, PlanOnly, Profile, RankOnGpu, built_in_seconds};
pub use libraries::kernel_cache::KernelCache;
pub use libraries::probe::{Found, Gpu, Probe, missing_libraries, probe};
