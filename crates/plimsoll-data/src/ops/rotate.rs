//! Rotating images by any angle.

use super::kernel::each_row;
use super::{Kernel, Op, pixel_shape, refuse, shape_of};
use crate::rng::{Salt, uniform};
use crate::{Column, DataError};
use plimsoll_core::DType;
use std::sync::Arc;

/// Rotates images counterclockwise about their center, like Keras' `RandomRotation` with bilinear interpolation;
/// pixels outside the image are `fill`.
pub fn rotate(degrees: f32, fill: f32) -> Arc<dyn Op> {
    Arc::new(Rotate { degrees: (degrees, degrees), fill, seed: None })
}

/// Rotates images by up to `degrees` in either direction, chosen by `seed`, the epoch and the row.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::random_rotate};
/// let image = Column::new("x", DType::U8, [28, 28, 1]);
/// assert_eq!(random_rotate(10.0, 0.0, 7).output(&image)?, image);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn random_rotate(degrees: f32, fill: f32, seed: u64) -> Arc<dyn Op> {
    Arc::new(Rotate { degrees: (-degrees, degrees), fill, seed: Some(seed) })
}

#[derive(Clone, Copy)]
struct Rotate {
    degrees: (f32, f32),
    fill: f32,
    seed: Option<u64>,
}

impl Op for Rotate {
    fn describe(&self) -> String {
        match self.seed {
            None => format!("rotate({}°, fill {})", self.degrees.1, self.fill),
            Some(seed) => format!("random_rotate({}°, fill {}, seed {seed})", self.degrees.1, self.fill),
        }
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        pixel_shape(self, input)?;
        if !self.degrees.1.is_finite() || !self.fill.is_finite() {
            return Err(refuse(self, input, "the angle and what fills the corners must be finite numbers"));
        }
        Ok(input.clone())
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (Rotate { degrees: (least, most), fill, seed }, shape, dtype) = (*self, shape_of(input), input.dtype);
        each_row(self, input, move |epoch, row, image, out| {
            let lot = seed.map_or(0.0, |seed| uniform(seed, Salt::Rotate, epoch, row));
            let degrees = f64::from(least) + lot * f64::from(most - least);
            match dtype {
                // Add 0.5, because a cast truncates.
                DType::U8 => turned(shape, degrees, fill, image, out, |byte| f32::from(*byte), |value| (value + 0.5) as u8),
                _ => {
                    let (image, out) = (image.as_chunks::<4>().0, out.as_chunks_mut::<4>().0);
                    turned(shape, degrees, fill, image, out, |bytes| f32::from_ne_bytes(*bytes), f32::to_ne_bytes);
                }
            }
        })
    }

    fn is_random(&self) -> bool {
        self.seed.is_some()
    }
}

fn turned<E>(shape: [usize; 3], degrees: f64, fill: f32, image: &[E], out: &mut [E], load: impl Fn(&E) -> f32, store: impl Fn(f32) -> E) {
    let [height, width, channels] = shape;
    let (sin, cos) = degrees.to_radians().sin_cos();
    let (bottom, right) = (height as f64 - 1.0, width as f64 - 1.0);
    let across = ((right - (cos * right - sin * bottom)) / 2.0) as f32;
    let down = ((bottom - (sin * right + cos * bottom)) / 2.0) as f32;
    let (sin, cos) = (sin as f32, cos as f32);
    let pixel = |y: f32, x: f32| {
        let inside = y >= 0.0 && x >= 0.0 && y < height as f32 && x < width as f32;
        inside.then(|| (y as usize * width + x as usize) * channels)
    };
    for (y, line) in out.chunks_exact_mut(width * channels).enumerate() {
        for (x, out) in line.chunks_exact_mut(channels).enumerate() {
            let from_x = cos * x as f32 - sin * y as f32 + across;
            let from_y = sin * x as f32 + cos * y as f32 + down;
            let (left, top) = (from_x.floor(), from_y.floor());
            let (right, bottom) = (from_x - left, from_y - top);
            let around = [pixel(top, left), pixel(top, left + 1.0), pixel(top + 1.0, left), pixel(top + 1.0, left + 1.0)];
            for (channel, out) in out.iter_mut().enumerate() {
                let [a, b, c, d] = around.map(|at| at.map_or(fill, |at| load(&image[at + channel])));
                let upper = (1.0 - right) * a + right * b;
                let lower = (1.0 - right) * c + right * d;
                *out = store((1.0 - bottom) * upper + bottom * lower);
            }
        }
    }
}
