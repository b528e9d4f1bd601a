//! CUDA's libraries, loaded at run time: RAII wrappers of their handles, and the probe of this machine.

pub(crate) mod cublaslt;
pub(crate) mod cudnn;
pub(crate) mod driver;
pub(crate) mod faults;
pub(crate) mod injected;
pub(crate) mod kernel_cache;
pub(crate) mod nccl;
pub(crate) mod nvrtc;
pub(crate) mod probe;
