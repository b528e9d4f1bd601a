//! What the headers of a source's images say about the memory for decoding them.

use plimsoll_core::Bytes;
use std::sync::{Arc, Mutex, MutexGuard};

/// The memory for decoding the largest images of a data set, from their headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageScan {
    /// Number of images; `u64::MAX` if they were not all counted, because they are compressed.
    pub images: u64,
    /// Number of images whose headers were read.
    pub scanned: u64,
    /// Bytes for reading and decoding each of the largest images, largest first. Images above the limit for a single
    /// one, and files that are no images, are not among them: they are bad rows.
    largest: Vec<Bytes>,
}

impl ImageScan {
    /// How many of the largest images are listed.
    const LISTED: usize = 64;

    /// An empty scan of this many images.
    pub(crate) fn of(images: u64) -> ImageScan {
        ImageScan { images, scanned: 0, largest: Vec::with_capacity(ImageScan::LISTED + 1) }
    }

    /// A scan with these results.
    pub(crate) fn with_largest(images: u64, scanned: u64, largest: Vec<Bytes>) -> ImageScan {
        ImageScan { images, scanned, largest }
    }

    /// Whether all headers were read.
    pub fn is_complete(&self) -> bool {
        self.scanned >= self.images
    }

    /// Bytes for reading and decoding the largest image that was scanned.
    pub fn largest(&self) -> Bytes {
        self.largest.first().copied().unwrap_or_default()
    }

    /// At most the bytes of the image at this rank, counted from 0 for the largest.
    pub(crate) fn size(&self, rank: usize) -> Bytes {
        match self.largest.len() {
            ImageScan::LISTED => self.largest[rank.min(ImageScan::LISTED - 1)],
            _ => self.largest.get(rank).copied().unwrap_or_default(),
        }
    }

    pub(crate) fn sizes(&self) -> &[Bytes] {
        &self.largest
    }

    /// Adds an image.
    pub(crate) fn add(&mut self, bytes: Bytes) {
        let at = self.largest.partition_point(|larger| *larger >= bytes);
        if at < ImageScan::LISTED {
            self.largest.insert(at, bytes);
            self.largest.truncate(ImageScan::LISTED);
        }
    }

    /// Adds the images of another data set.
    pub(crate) fn merge(&mut self, other: &ImageScan) {
        (self.images, self.scanned) = (self.images.saturating_add(other.images), self.scanned + other.scanned);
        other.largest.iter().for_each(|bytes| self.add(*bytes));
    }
}

/// The scans of a source's images that were made so far: for each way to decode them, one. Planning and running must
/// agree about the sizes, so a scan is never replaced.
#[derive(Default)]
pub struct ImageScans {
    known: Mutex<Vec<(String, Arc<ImageScan>)>>,
}

impl ImageScans {
    /// The scan of this name; made now if there is none.
    pub(crate) fn get_or_scan(&self, name: &str, scan: impl FnOnce() -> ImageScan) -> Arc<ImageScan> {
        let mut known = self.lock();
        if let Some((_, scan)) = known.iter().find(|(known, _)| known == name) {
            return Arc::clone(scan);
        }
        let scan = Arc::new(scan());
        known.push((name.to_string(), Arc::clone(&scan)));
        scan
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Arc<ImageScan>)>> {
        self.known.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_listed_in_order_and_others_take_at_most_the_last() {
        let mut scan = ImageScan::of(200);
        for number in 0..200u64 {
            scan.add(Bytes(number * 7919 % 200));
        }
        assert_eq!((scan.largest(), scan.size(1), scan.size(63)), (Bytes(199), Bytes(198), Bytes(136)));
        assert_eq!(scan.size(150), Bytes(136), "an upper bound");
        let mut few = ImageScan::of(2);
        few.add(Bytes(3));
        assert_eq!((few.size(0), few.size(1)), (Bytes(3), Bytes(0)));
        few.merge(&scan);
        assert_eq!((few.images, few.largest()), (202, Bytes(199)));
    }
}
