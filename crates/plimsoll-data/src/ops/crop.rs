//! Cropping images.

use super::kernel::each_row;
use super::{ItemStep, Kernel, Op, image_size, refuse};
use crate::rng::random_bits;
use crate::{Column, DataError};
use std::sync::Arc;

/// Crops the central `height` × `width` pixels of each image, rounding like `tf.image.resize_with_crop_or_pad`.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::center_crop};
/// let image = Column::new("x", DType::U8, [28, 28, 1]);
/// assert_eq!(center_crop(24, 24).output(&image)?, Column::new("x", DType::U8, [24, 24, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn center_crop(height: usize, width: usize) -> Arc<dyn Op> {
    Arc::new(Crop { height, width, seed: None })
}

/// Crops `height` × `width` pixels at a random position, a function of `seed`, the epoch and the row.
pub fn random_crop(height: usize, width: usize, seed: u64) -> Arc<dyn Op> {
    Arc::new(Crop { height, width, seed: Some(seed) })
}

#[derive(Clone, Copy)]
struct Crop {
    height: usize,
    width: usize,
    seed: Option<u64>,
}

impl Op for Crop {
    fn describe(&self) -> String {
        match self.seed {
            None => format!("center_crop({}, {})", self.height, self.width),
            Some(seed) => format!("random_crop({}, {}, seed {seed})", self.height, self.width),
        }
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let (size, channels) = image_size(self, input)?;
        if let Some((height, width)) = size.filter(|(height, width)| self.height > *height || self.width > *width) {
            return Err(refuse(self, input, format!("its images are {height} × {width}; crop less or resize before")));
        }
        if self.height == 0 || self.width == 0 {
            return Err(refuse(self, input, "nothing would be left; ask for at least one pixel"));
        }
        Ok(Column { classes: input.classes.clone(), ..Column::new(&input.name, input.dtype, [self.height, self.width, channels]) })
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (from, to, seed) = ((input.shape[0], input.shape[1]), (self.height, self.width), self.seed);
        let pixel = input.shape[2] * input.dtype.size();
        each_row(self, input, move |epoch, row, image, out| {
            let (top, left) = corner(from, to, seed, epoch, row);
            for (line, out) in image.chunks_exact(from.1 * pixel).skip(top).zip(out.chunks_exact_mut(to.1 * pixel)) {
                out.copy_from_slice(&line[left * pixel..][..to.1 * pixel]);
            }
        })
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::Crop { height: self.height, width: self.width, seed: self.seed })
    }

    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(*self))
    }

    fn without_randomness(&self) -> Option<Arc<dyn Op>> {
        Some(center_crop(self.height, self.width))
    }

    fn is_random(&self) -> bool {
        self.seed.is_some()
    }
}

/// The top left corner of the crop: row and column.
pub(crate) fn corner(from: (usize, usize), to: (usize, usize), seed: Option<u64>, epoch: u64, row: u64) -> (usize, usize) {
    let room = (from.0 - to.0, from.1 - to.1);
    let Some(seed) = seed else { return (room.0 / 2, room.1 / 2) };
    let bits = random_bits(seed, epoch, row);
    // The upper half of a 64-bit product is uniform over the range to within 2⁻³².
    let pick = |bits: u64, room: usize| (((bits & 0xFFFF_FFFF) * (room as u64 + 1)) >> 32) as usize;
    (pick(bits >> 32, room.0), pick(bits, room.1))
}
