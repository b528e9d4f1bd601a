//! The CPU as a device: kernels, a thread pool, and programs resolved into flat lists of instructions.
//!
//! [`CpuDevice`] is what the rest of the system sees. Nothing is allocated while a program runs, and results do not
//! depend on the number of threads.
//!
//! The modules are layers; each depends only on those above it in this list:
//!
//! 1. [`simd`]: instruction sets, vector registers, element types and conversions between them;
//! 2. [`runtime`]: the thread pool, device memory, and the thread that copies to and from the backing store;
//! 3. [`kernels`]: one module per family of ops;
//! 4. `program`: from a planned program to instructions with resolved addresses, and their execution;
//! 5. `device`: the [`Device`](plimsoll_core::Device) itself.

mod device;
pub mod kernels;
mod program;
pub mod runtime;
pub mod simd;

pub use device::CpuDevice;
