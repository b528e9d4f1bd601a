//! Scans of the headers of images, with the user's cache folder.

use crate::devices;
use crate::error::Result;
use plimsoll_data::source::ImageScan;
use plimsoll_data::{Dataset, ScanOptions};

/// Reads the headers of the images of a dataset, unless that was done before. Results of large folders are kept in the
/// user's cache folder.
pub(crate) fn scan_images(data: &Dataset) -> Result<Option<ImageScan>> {
    let cache = devices::cache_folder().map(|cache| cache.join("images"));
    Ok(data.scan_images(&ScanOptions { cache, ..ScanOptions::default() })?)
}
