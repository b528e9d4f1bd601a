//! Rotating images by multiples of 90°.

use super::kernel::each_row;
use super::{Kernel, Op, image_shape, refuse, shape_of};
use crate::rng::{Salt, salted_bits};
use crate::{Column, DataError};
use std::sync::Arc;

/// Rotates images counterclockwise by `quarters` × 90°, like `tf.image.rot90`.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::rot90};
/// let image = Column::new("x", DType::U8, [20, 30, 1]);
/// assert_eq!(rot90(1).output(&image)?, Column::new("x", DType::U8, [30, 20, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn rot90(quarters: u32) -> Arc<dyn Op> {
    Arc::new(Rot90::Quarters(quarters % 4))
}

/// Rotates square images by 0 to 3 quarter turns, chosen by `seed`, the epoch and the row.
pub fn random_rot90(seed: u64) -> Arc<dyn Op> {
    Arc::new(Rot90::Random { seed })
}

#[derive(Clone, Copy)]
enum Rot90 {
    Quarters(u32),
    Random { seed: u64 },
}

impl Op for Rot90 {
    fn describe(&self) -> String {
        match self {
            Rot90::Quarters(quarters) => format!("rot90({quarters})"),
            Rot90::Random { seed } => format!("random_rot90(seed {seed})"),
        }
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let [height, width, channels] = image_shape(self, input)?;
        match self {
            Rot90::Quarters(1 | 3) => Ok(Column { shape: vec![width, height, channels], ..input.clone() }),
            Rot90::Quarters(_) => Ok(input.clone()),
            Rot90::Random { .. } if height == width => Ok(input.clone()),
            Rot90::Random { .. } => Err(refuse(
                self,
                input,
                format!("its images are {height} × {width}, and only square ones stay alike; crop or resize before"),
            )),
        }
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let [height, width, channels] = shape_of(input);
        let (turn, pixel) = (*self, channels * input.dtype.size());
        each_row(self, input, move |epoch, row, image, out| {
            let quarters = match turn {
                Rot90::Quarters(quarters) => quarters,
                Rot90::Random { seed } => (salted_bits(seed, Salt::Rot90, epoch, row) >> 62) as u32,
            };
            let across = if quarters % 2 == 1 { height } else { width };
            for (y, line) in out.chunks_exact_mut(across * pixel).enumerate() {
                for (x, out) in line.chunks_exact_mut(pixel).enumerate() {
                    let (y, x) = match quarters {
                        0 => (y, x),
                        1 => (x, width - 1 - y),
                        2 => (height - 1 - y, width - 1 - x),
                        _ => (height - 1 - x, y),
                    };
                    out.copy_from_slice(&image[(y * width + x) * pixel..][..pixel]);
                }
            }
        })
    }

    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(*self))
    }

    fn is_random(&self) -> bool {
        matches!(self, Rot90::Random { .. })
    }
}
