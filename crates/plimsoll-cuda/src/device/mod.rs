//! The devices that the rest of the system sees, and what plans for a GPU need to know of it.

mod cost;
mod cuda;
mod overhead;
mod plan_only;
mod profile;

pub use cuda::CudaDevice;
pub use plan_only::PlanOnly;
pub use profile::Profile;
