//! Images: parsing headers, decoding into preallocated memory, and resampling.

mod decode;
pub(crate) mod filter;
pub(crate) mod jpeg;
mod method;
mod orientation;
mod probe;
mod read_at;
mod reader;
pub(crate) mod resample;
mod windows;

pub(crate) use decode::{Channels, decode};
pub use method::Method;
pub(crate) use orientation::{Orientation, transpose};
pub(crate) use probe::{Probe, begins_like_one, probe};
pub(crate) use read_at::ReadAt;
pub use reader::ImageReader;
