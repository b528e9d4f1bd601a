//! Decodes images in memory shared by all threads, straight into the destination of the row.

mod kernel;
mod pool;
mod scan;
mod sizes;

pub use scan::ScanOptions;
pub(crate) use scan::{StoredScan, encoded_bytes, scan, scan_name};
pub(crate) use sizes::ItemSizes;

pub(crate) use kernel::{DecodeKernel, DecodeRecipe, ItemCap, StartedImage};
pub(crate) use pool::DecodePool;

use plimsoll_core::Bytes;

/// Default maximum for a file and its pixels: a photo of about forty megapixels.
pub(crate) const AUTO_ITEM: Bytes = Bytes::mib(128);

/// Minimum that is reserved for a file by default: an image of about one megapixel.
pub(crate) const MIN_ITEM: Bytes = Bytes::mib(4);
