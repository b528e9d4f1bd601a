//! NVIDIA GPUs, as far as this build has them. With the feature `cuda` these are the functions and types of
//! `plimsoll_cuda`; without it, types of the same names that find no GPU, so that code need not know the difference.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
use cuda as built;

#[cfg(not(feature = "cuda"))]
mod without;
#[cfg(not(feature = "cuda"))]
use without as built;

pub use built::{Convolutions, Found, Gpu, Probe, missing_libraries, probe};
pub(crate) use built::{built_in_seconds, open, open_of_rank, plan_only};
