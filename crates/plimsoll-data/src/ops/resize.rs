//! Resizing images like `tf.image.resize`.

use super::{ItemStep, Kernel, Op, refuse};
use crate::block::Rows;
use crate::image::Method;
use crate::image::resample::{From, Resampler};
use crate::schema::Extent;
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
    Arc::new(Resize { height, width, method })
}

struct Resize {
    height: usize,
    width: usize,
    method: Method,
}

impl Op for Resize {
    fn describe(&self) -> String {
        format!("resize({}, {}, {})", self.height, self.width, self.method)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let (height, width, channels) = match (input.extent, input.shape.as_slice()) {
            (Extent::Images, &[channels]) => (1, 1, channels),
            (Extent::Fixed, &[height, width, channels]) => (height, width, channels),
            _ => {
                return Err(refuse(
                    self,
                    input,
                    format!("its rows have shape {:?}, and images are [height, width, channels]", input.shape),
                ));
            }
        };
        if !matches!(input.dtype, DType::U8 | DType::F32) {
            return Err(refuse(self, input, format!("its elements are {}, and pixels are u8 or f32", input.dtype)));
        }
        // Above this, pixel positions are not exact in f32 and the tables would overflow.
        const LARGEST: usize = 1 << 24;
        if [self.height, self.width].iter().any(|side| !(1..=LARGEST).contains(side)) || height.max(width) > LARGEST {
            return Err(refuse(self, input, format!("sides go from 1 to {LARGEST} pixels")));
        }
        Ok(Column::new(&input.name, DType::F32, [self.height, self.width, channels]))
    }

    fn kernel_bytes(&self, input: &Column) -> Bytes {
        let to = (self.height, self.width);
        let words = Resampler::words(self.method, (input.shape[0], input.shape[1]), to, input.shape[2]);
        Resampler::bytes(self.method, self.height, self.width, input.shape[2]) + Bytes(4 * words as u64)
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (height, width, channels) = (input.shape[0], input.shape[1], input.shape[2]);
        let mut resampler = Resampler::new(self.method, self.height, self.width, channels);
        resampler.aim(From { height, width, line: width, mirrored: false, upside_down: false });
        Box::new(ResizeKernel {
            dtype: input.dtype,
            from_image: height * width * channels,
            to_image: self.height * self.width * channels,
            scratch: vec![[0; 4]; Resampler::words(self.method, (height, width), (self.height, self.width), channels) as usize],
            resampler,
        })
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::Resize { height: self.height, width: self.width, method: self.method })
    }
}

struct ResizeKernel {
    dtype: DType,
    /// Elements of one input image and one output image.
    from_image: usize,
    to_image: usize,
    resampler: Resampler,
    scratch: Vec<[u8; 4]>,
}

impl Kernel for ResizeKernel {
    fn run(&mut self, _rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        let output = output.as_chunks_mut::<4>().0.chunks_exact_mut(self.to_image);
        match self.dtype {
            DType::U8 => {
                for (image, out) in input.chunks_exact(self.from_image).zip(output) {
                    self.resampler.run(image, &mut self.scratch, out, f32::to_ne_bytes);
                }
            }
            _ => {
                for (image, out) in input.as_chunks::<4>().0.chunks_exact(self.from_image).zip(output) {
                    self.resampler.run(image, &mut self.scratch, out, f32::to_ne_bytes);
                }
            }
        }
        Ok(())
    }
}
