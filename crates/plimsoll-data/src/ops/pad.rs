//! Padding and center-cropping images to one size.

use super::kernel::each_row;
use super::{ItemStep, Kernel, Op, image_size, refuse};
use crate::{Column, DataError};
use plimsoll_core::DType;
use std::sync::Arc;

/// Centers each image in `height` × `width` pixels and pads with `value`. A larger image is an error.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::pad};
/// let image = Column::new("x", DType::U8, [28, 28, 1]);
/// assert_eq!(pad(32, 32, 0.0).output(&image)?, Column::new("x", DType::U8, [32, 32, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn pad(height: usize, width: usize, value: f32) -> Arc<dyn Op> {
    Arc::new(Fit { height, width, value, cuts: false })
}

/// Like [`pad`], but crops the center of larger images, like `tf.image.resize_with_crop_or_pad`.
pub fn crop_or_pad(height: usize, width: usize, value: f32) -> Arc<dyn Op> {
    Arc::new(Fit { height, width, value, cuts: true })
}

/// The frame.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// Height in pixels.
    pub height: usize,
    /// Width in pixels.
    pub width: usize,
    /// The padding value.
    pub value: f32,
    /// Whether larger images are cropped.
    pub cuts: bool,
}

impl Fit {
    /// For one axis: the first source pixel, the first destination pixel, and the number of pixels.
    fn axis(from: usize, to: usize) -> (usize, usize, usize) {
        (from.saturating_sub(to) / 2, to.saturating_sub(from) / 2, from.min(to))
    }

    /// Writes an image into the frame `out`; `line` returns the bytes of a line, and `pixel` is the size of a pixel.
    pub(crate) fn run<'i>(
        &self,
        size: (usize, usize),
        pixel: usize,
        filler: &[u8],
        mut line: impl FnMut(usize) -> &'i [u8],
        out: &mut [u8],
    ) {
        for out in out.chunks_exact_mut(filler.len()) {
            out.copy_from_slice(filler);
        }
        let ((y_from, y_to, height), (x_from, x_to, width)) = (Fit::axis(size.0, self.height), Fit::axis(size.1, self.width));
        for y in 0..height {
            let out = &mut out[((y_to + y) * self.width + x_to) * pixel..][..width * pixel];
            out.copy_from_slice(&line(y_from + y)[x_from * pixel..][..width * pixel]);
        }
    }
}

impl Op for Fit {
    fn describe(&self) -> String {
        let Fit { height, width, value, cuts } = *self;
        let name = if cuts { "crop_or_pad" } else { "pad" };
        format!("{name}({height}, {width}, {value})")
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let Fit { height, width, value, cuts } = *self;
        if height == 0 || width == 0 {
            return Err(refuse(self, input, "nothing would be left; ask for at least one pixel"));
        }
        if input.dtype == DType::U8 && (value.fract() != 0.0 || !(0.0..=255.0).contains(&value)) {
            return Err(refuse(self, input, format!("its pixels are integers from 0 to 255, and {value} is none")));
        }
        let (size, channels) = image_size(self, input)?;
        if let Some((have_height, have_width)) = size.filter(|size| !cuts && (size.0 > height || size.1 > width)) {
            let problem = format!("its images are {have_height} × {have_width}, larger than the frame; use crop_or_pad or resize before");
            return Err(refuse(self, input, problem));
        }
        Ok(Column { classes: input.classes.clone(), ..Column::new(&input.name, input.dtype, [height, width, channels]) })
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let element = match input.dtype {
            DType::U8 => vec![self.value as u8],
            _ => self.value.to_ne_bytes().to_vec(),
        };
        let (fit, from, pixel) = (*self, (input.shape[0], input.shape[1]), input.shape[2] * input.dtype.size());
        let line = from.1 * pixel;
        each_row(self, input, move |_, _, image, out| fit.run(from, pixel, &element, |y| &image[y * line..][..line], out))
    }

    /// Padding is of the first class.
    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(Fit { value: 0.0, ..*self }))
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::Fit(*self))
    }
}
