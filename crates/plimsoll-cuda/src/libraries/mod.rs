//! CUDA's libraries, loaded at run time: values that own the libraries' handles, and what was found on this machine.

pub(crate) mod cublaslt;
pub(crate) mod cudnn;
pub(crate) mod driver;
pub(crate) mod kernel_cache;
pub(crate) mod nvrtc;
pub(crate) mod probe;
