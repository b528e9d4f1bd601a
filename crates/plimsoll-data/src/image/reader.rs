//! Reads single images, without a pipeline.

use super::jpeg::Decoder;
use super::{Channels, decode, probe};
use crate::DataError;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Reads single images with the decoders of the pipeline: for a prediction, or to measure decoding alone.
///
/// ```no_run
/// use plimsoll_data::ImageReader;
/// let (mut reader, mut pixels) = (ImageReader::new(), Vec::new());
/// let (height, width) = reader.read("hat.jpg", &mut pixels)?;
/// assert_eq!(pixels.len(), height * width * 3);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub struct ImageReader {
    baseline: Decoder,
    file: Vec<u8>,
    lines: Vec<u8>,
}

impl ImageReader {
    /// Allocates memory as images need it and reuses it.
    #[allow(clippy::new_without_default, reason = "it reads as what it does")]
    pub fn new() -> ImageReader {
        ImageReader { baseline: Decoder::new(), file: Vec::new(), lines: Vec::new() }
    }

    /// Reads a file into `pixels` as RGB, without applying the EXIF orientation; returns height and width.
    pub fn read(&mut self, path: impl AsRef<Path>, pixels: &mut Vec<u8>) -> Result<(usize, usize), DataError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let length = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let probe = probe(&file, path, 0..length)?;
        self.file.resize(probe.file.get(), 0);
        self.lines.resize(probe.lines, 0);
        file.read_exact_at(&mut self.file, 0).map_err(|error| DataError::io("read", path, error))?;
        let area = probe.width * probe.height;
        // Some decoders produce more channels before conversion to three.
        pixels.resize(area * probe.channels.max(3), 0);
        decode(&probe, path, &self.file, Channels::Colour, &mut self.baseline, &mut self.lines, pixels)?;
        pixels.truncate(area * 3);
        Ok((probe.height, probe.width))
    }
}
