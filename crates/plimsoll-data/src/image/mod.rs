//! Images: parsing headers, decoding into preallocated memory, and resampling.

mod bmp;
mod decode;
pub(crate) mod filter;
mod header_reader;
pub(crate) mod jpeg;
mod mask;
mod method;
mod orientation;
mod probe;
mod read_at;
mod reader;
pub(crate) mod resample;
mod tiff;
mod windows;

pub(crate) use decode::{Channels, decode};
pub use method::Method;
pub(crate) use orientation::{Orientation, transpose};
pub(crate) use probe::{Probe, begins_like_one, probe};
pub(crate) use read_at::ReadAt;
pub use reader::ImageReader;

/// The extensions of images, in words.
pub(crate) const EXTENSIONS: &str = ".jpg, .jpeg, .png, .webp, .gif, .bmp, .tif or .tiff";

/// Whether an extension is that of an image.
pub(crate) fn is_image_name(extension: &[u8]) -> bool {
    ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"].iter().any(|known| extension.eq_ignore_ascii_case(known.as_bytes()))
}
