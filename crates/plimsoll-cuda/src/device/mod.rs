//! The public devices, and the GPU properties that plans depend on.

mod cost;
mod cuda;
mod overhead;
mod plan_only;
mod profile;
mod ranks;

pub use cost::built_in_seconds;
pub use cuda::CudaDevice;
pub use plan_only::PlanOnly;
pub use profile::Profile;
pub use ranks::RankOnGpu;
