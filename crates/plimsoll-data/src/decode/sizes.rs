//! How much memory a single image may take, and how much the images that are decoded at the same time take together.

use super::AUTO_ITEM;
use crate::source::ImageScan;
use plimsoll_core::Bytes;
use std::sync::Arc;

/// The sizes of images: what the user allows, and what their headers say.
#[derive(Clone, Debug, Default)]
pub(crate) struct ItemSizes {
    /// The user's limit for a single image.
    pub stated: Option<Bytes>,
    pub scan: Option<Arc<ImageScan>>,
}

impl ItemSizes {
    /// The limit for a single image regardless of the budget. An image above it is a bad row.
    pub fn cap(&self) -> Bytes {
        self.stated.unwrap_or(AUTO_ITEM)
    }

    /// The scan, if it has the sizes of all images.
    pub fn complete(&self) -> Option<&ImageScan> {
        self.scan.as_deref().filter(|scan| scan.is_complete())
    }

    /// What must be available for a single image: the largest, or what the user allows if not all sizes are known.
    pub fn required(&self) -> Bytes {
        let scanned = self.scan.as_ref().map_or(Bytes::ZERO, |scan| scan.largest());
        match self.complete() {
            Some(scan) => scan.largest(),
            None => scanned.max(self.stated.unwrap_or_default()),
        }
    }

    /// The decode pool of this many threads: for the largest images at the same time, counting all but one of them with
    /// at most `each` bytes. Sizes that are not known count as `each`.
    pub fn pool(&self, threads: usize, each: Bytes) -> Bytes {
        self.together(threads, self.stated.map_or(each, |stated| stated.min(each))).max(self.required())
    }

    /// The largest images at the same time, counting each of them with at most `each` bytes. Sizes that are not known
    /// count as `each`.
    pub fn together(&self, threads: usize, each: Bytes) -> Bytes {
        match self.complete() {
            Some(scan) => (0..threads).map(|rank| scan.size(rank).min(each)).sum(),
            None => each * threads as u64,
        }
    }
}
