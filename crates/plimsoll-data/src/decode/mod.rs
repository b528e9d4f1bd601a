//! Decodes images in memory shared by all threads, straight into the destination of the row.

mod kernel;
mod pool;

pub(crate) use kernel::{DecodeKernel, DecodeRecipe, ItemCap, StartedImage};
pub(crate) use pool::DecodePool;

use plimsoll_core::Bytes;

/// Default maximum for a file and its pixels: a photo of about forty megapixels.
pub(crate) const AUTO_ITEM: Bytes = Bytes::mib(128);

/// Minimum that is reserved for a file by default: an image of about one megapixel.
pub(crate) const MIN_ITEM: Bytes = Bytes::mib(4);

/// The limit for one file without a budget: the user's setting or the default.
pub(crate) fn stated_item_bytes(stated: Option<Bytes>) -> Bytes {
    stated.unwrap_or(AUTO_ITEM)
}
