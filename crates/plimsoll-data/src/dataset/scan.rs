//! Reading the headers of images before planning.

use super::Dataset;
use crate::DataError;
use crate::decode::ScanOptions;
use crate::source::ImageScan;

impl Dataset {
    /// Reads the headers of the images that are decoded, here and upstream, so that [`plan`](Dataset::plan) reserves
    /// memory for the largest of them. `None` if no images are decoded, or their headers cannot be read without
    /// unpacking them. The result is kept with the source: later calls and plans read nothing.
    ///
    /// If not all headers are read, memory for larger images is reserved as far as the limit allows. An image that
    /// needs more is decoded alone, in the whole pool; one that does not fit there is a bad row.
    pub fn scan_images(&self, options: &ScanOptions) -> Result<Option<ImageScan>, DataError> {
        let mut found: Option<ImageScan> = None;
        let mut add = |scan: &ImageScan| found.get_or_insert_with(|| ImageScan::of(0)).merge(scan);
        if let Some(scan) = self.recipe()?.scanned(options).scan {
            add(&scan);
        }
        if let Some(node) = &self.node
            && let Some(scan) = node.stage.scan_images(options)?
        {
            add(&scan);
        }
        for input in self.node.iter().flat_map(|node| &node.inputs) {
            if let Some(scan) = input.scan_images(options)? {
                add(&scan);
            }
        }
        Ok(found)
    }
}
