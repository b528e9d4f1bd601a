//! Decoding files to images.

use super::{ItemStep, Kernel, Op, refuse};
use crate::image::Channels;
use crate::schema::Extent;
use crate::{Column, DataError};
use std::sync::Arc;

/// Options of [`decode`].
///
/// ```
/// use plimsoll_data::{Column, ops::Decode};
/// let op = Decode::new().grey().upright().op();
/// assert_eq!(op.output(&Column::files("x"))?.to_string(), "x: u8[?, ?, 1]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decode {
    pub(crate) channels: Channels,
    pub(crate) orient: bool,
}

/// Decodes JPEG (baseline, progressive, grey, CMYK), PNG, WebP, GIF, BMP and TIFF files, detected by content, to u8 RGB
/// images.
/// Alpha is dropped; for an animation, the first frame is decoded. Images have different sizes until they are resized
/// or cropped.
///
/// ```
/// use plimsoll_data::{Column, ops::decode};
/// assert_eq!(decode().output(&Column::files("x"))?.to_string(), "x: u8[?, ?, 3]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn decode() -> Arc<dyn Op> {
    Decode::new().op()
}

/// Decodes segmentation masks to u8 class indices of one channel: palette indices, or grey values as they are stored.
/// Masks are PNG, GIF, BMP or TIFF files; formats that change values, such as JPEG, are refused.
///
/// ```
/// use plimsoll_data::{Column, ops::decode_mask};
/// assert_eq!(decode_mask().output(&Column::files("y"))?.to_string(), "y: u8[?, ?, 1]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn decode_mask() -> Arc<dyn Op> {
    Arc::new(Decode { channels: Channels::Index, orient: false })
}

impl Decode {
    /// The options of [`decode`].
    #[allow(clippy::new_without_default, reason = "there is a function of the same meaning")]
    pub fn new() -> Decode {
        Decode { channels: Channels::Colour, orient: false }
    }

    /// Decodes to one channel, the luma.
    pub fn grey(self) -> Decode {
        Decode { channels: Channels::Grey, ..self }
    }

    /// Applies the EXIF orientation; by default it is ignored.
    pub fn upright(self) -> Decode {
        Decode { orient: true, ..self }
    }

    /// The operation.
    pub fn op(self) -> Arc<dyn Op> {
        Arc::new(self)
    }
}

impl Op for Decode {
    fn describe(&self) -> String {
        if self.channels == Channels::Index {
            return "decode_mask()".into();
        }
        let grey = if self.channels == Channels::Grey { ".grey()" } else { "" };
        let upright = if self.orient { ".upright()" } else { "" };
        format!("decode(){grey}{upright}")
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if input.extent != Extent::Files {
            return Err(refuse(self, input, "its rows are not files; leave it out"));
        }
        Ok(Column { classes: input.classes.clone(), ..Column::images(&input.name, self.channels.count()) })
    }

    fn kernel(&self, _input: &Column) -> Box<dyn Kernel> {
        unreachable!("files are decoded one by one")
    }

    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(Decode { channels: Channels::Index, ..*self }))
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::Decode(*self))
    }
}
