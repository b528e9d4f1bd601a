//! Images: read, decoded and brought to one size in memory that all threads share, straight to where the row goes.

mod kernel;
mod pool;

pub(crate) use kernel::{DecodeKernel, DecodeRecipe, ItemCap, StartedImage};
pub(crate) use pool::DecodePool;

use plimsoll_core::Bytes;

/// What a file and its pixels may take unless it is stated: a photograph of some forty million pixels.
pub(crate) const AUTO_ITEM: Bytes = Bytes::mib(128);

/// The minimum that is reserved for a file unless it is stated: an image of about a million pixels.
pub(crate) const MIN_ITEM: Bytes = Bytes::mib(4);

/// What a file may take where memory is no question: what was stated, or what is usual.
pub(crate) fn stated_item_bytes(stated: Option<Bytes>) -> Bytes {
    stated.unwrap_or(AUTO_ITEM)
}
