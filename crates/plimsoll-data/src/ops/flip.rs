//! Random flips of images.

use super::kernel::each_row_in_place;
use super::{ItemStep, Kernel, Op, refuse};
use crate::rng::random_bits;
use crate::schema::Extent;
use crate::{Column, DataError};
use std::sync::Arc;

/// Flips half of the images horizontally, chosen by `seed`, the epoch and the row.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::flip_left_right};
/// let image = Column::new("x", DType::U8, [28, 28, 1]);
/// assert_eq!(flip_left_right(7).output(&image)?, image);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn flip_left_right(seed: u64) -> Arc<dyn Op> {
    Arc::new(Flip { left_right: true, seed })
}

/// Flips half of the images vertically, chosen by `seed`, the epoch and the row.
pub fn flip_up_down(seed: u64) -> Arc<dyn Op> {
    Arc::new(Flip { left_right: false, seed })
}

#[derive(Clone, Copy)]
struct Flip {
    left_right: bool,
    seed: u64,
}

impl Op for Flip {
    fn describe(&self) -> String {
        let axis = if self.left_right { "left_right" } else { "up_down" };
        format!("flip_{axis}(seed {})", self.seed)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if input.extent == Extent::Fixed && input.shape.len() != 3 {
            return Err(refuse(self, input, format!("its rows have shape {:?}, and images are [height, width, channels]", input.shape)));
        }
        Ok(input.clone())
    }

    fn in_place(&self, _input: &Column) -> bool {
        true
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (left_right, seed, pixel) = (self.left_right, self.seed, input.shape[2] * input.dtype.size());
        let line = input.shape[1] * pixel;
        each_row_in_place(input, move |epoch, row, image| match flips(seed, epoch, row) {
            true if left_right => image.chunks_exact_mut(line).for_each(|line| reverse(line, pixel)),
            true => reverse(image, line),
            false => {}
        })
    }

    fn item(&self) -> Option<ItemStep> {
        Some(ItemStep::Flip { left_right: self.left_right, seed: self.seed })
    }

    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(*self))
    }

    fn is_random(&self) -> bool {
        true
    }
}

/// Whether this row is flipped.
pub(crate) fn flips(seed: u64, epoch: u64, row: u64) -> bool {
    random_bits(seed, epoch, row) >> 63 == 1
}

/// Reverses the order of elements of `size` bytes.
pub(crate) fn reverse(bytes: &mut [u8], size: usize) {
    let (mut first, mut last) = (0, bytes.len() - size);
    while first < last {
        let (before, after) = bytes.split_at_mut(last);
        before[first..first + size].swap_with_slice(&mut after[..size]);
        first += size;
        last -= size;
    }
}
