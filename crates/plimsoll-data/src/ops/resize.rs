//! Resizing images like `tf.image.resize`.

use super::kernel::each_row;
use super::{CropRect, ItemStep, Kernel, Op, image_size, refuse, shape_of};
use crate::image::Method;
use crate::image::resample::{From, Resampler};
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// Resizes images of u8 or f32, of a fixed shape `[H, W, C]` or of variable size, to `height` × `width` f32.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::{Method, resize}};
/// let image = Column::new("x", DType::U8, [28, 28, 1]);
/// assert_eq!(resize(64, 64, Method::Bilinear).output(&image)?, Column::new("x", DType::F32, [64, 64, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn resize(height: usize, width: usize, method: Method) -> Arc<dyn Op> {
    Arc::new(Resize { height, width, method, mask: false })
}

/// Resizes masks of u8 class indices to the nearest pixels, as u8.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::resize_mask};
/// let mask = Column::new("y", DType::U8, [28, 28, 1]);
/// assert_eq!(resize_mask(64, 64).output(&mask)?, Column::new("y", DType::U8, [64, 64, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn resize_mask(height: usize, width: usize) -> Arc<dyn Op> {
    Arc::new(Resize { height, width, method: Method::Nearest, mask: true })
}

struct Resize {
    height: usize,
    width: usize,
    method: Method,
    /// Whether pixels are class indices.
    mask: bool,
}

impl Op for Resize {
    fn describe(&self) -> String {
        let name = if self.mask { "resize_mask" } else { "resize" };
        format!("{name}({}, {}, {})", self.height, self.width, self.method)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let (size, channels) = image_size(self, input)?;
        if !matches!(input.dtype, DType::U8 | DType::F32) {
            return Err(refuse(self, input, format!("its elements are {}, and pixels are u8 or f32", input.dtype)));
        }
        // Above this, pixel positions are not exact in f32 and the tables would overflow.
        const LARGEST: usize = 1 << 24;
        if [self.height, self.width].iter().any(|side| !(1..=LARGEST).contains(side))
            || size.is_some_and(|(height, width)| height.max(width) > LARGEST)
        {
            return Err(refuse(self, input, format!("sides go from 1 to {LARGEST} pixels")));
        }
        if self.mask && input.dtype != DType::U8 {
            return Err(refuse(self, input, format!("its elements are {}, and class indices are u8", input.dtype)));
        }
        let dtype = if self.mask { DType::U8 } else { DType::F32 };
        Ok(Column { classes: input.classes.clone(), ..Column::new(&input.name, dtype, [self.height, self.width, channels]) })
    }

    fn kernel_bytes(&self, input: &Column) -> Bytes {
        let to = (self.height, self.width);
        let words = Resampler::words(self.method, (input.shape[0], input.shape[1]), to, input.shape[2]);
        Resampler::bytes(self.method, self.height, self.width, input.shape[2]) + Bytes(4 * words as u64)
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let [height, width, _] = shape_of(input);
        resampled(self, input, self.method, move |_, _| CropRect { top: 0, left: 0, height, width })
    }

    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(resize_mask(self.height, self.width))
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::Resize { height: self.height, width: self.width, method: self.method })
    }
}

/// Resizes a part of each image, chosen by epoch and row, to the size of the output of `op`.
pub(super) fn resampled(
    op: &dyn Op,
    input: &Column,
    method: Method,
    part: impl Fn(u64, u64) -> CropRect + Send + 'static,
) -> Box<dyn Kernel> {
    let ([height, width, channels], dtype) = (shape_of(input), input.dtype);
    let output = op.output(input).expect("a kernel is made for a column that is accepted");
    let ([to_height, to_width, _], to) = (shape_of(&output), output.dtype);
    let mut resampler = Resampler::new(method, to_height, to_width, channels);
    let mut scratch = vec![[0; 4]; Resampler::words(method, (height, width), (to_height, to_width), channels) as usize];
    each_row(op, input, move |epoch, row, image, out| {
        let part = part(epoch, row);
        resampler.aim(From { height: part.height, width: part.width, line: width, mirrored: false, upside_down: false });
        let first = (part.top * width + part.left) * channels;
        if to == DType::U8 {
            // Add 0.5, because a cast truncates.
            return resampler.run(&image[first..], &mut scratch, out, |value| (value + 0.5) as u8);
        }
        let out = out.as_chunks_mut::<4>().0;
        match dtype {
            DType::U8 => resampler.run(&image[first..], &mut scratch, out, f32::to_ne_bytes),
            _ => resampler.run(&image.as_chunks::<4>().0[first..], &mut scratch, out, f32::to_ne_bytes),
        }
    })
}
