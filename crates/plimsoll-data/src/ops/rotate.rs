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
    Arc::new(Rotate { degrees: (degrees, degrees), fill, seed: None, nearest: false })
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
    Arc::new(Rotate { degrees: (-degrees, degrees), fill, seed: Some(seed), nearest: false })
}

#[derive(Clone, Copy)]
struct Rotate {
    degrees: (f32, f32),
    fill: f32,
    seed: Option<u64>,
    /// Whether the nearest pixel is taken, as for masks.
    nearest: bool,
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
        let (Rotate { degrees: (least, most), fill, seed, nearest }, shape, dtype) = (*self, shape_of(input), input.dtype);
        each_row(self, input, move |epoch, row, image, out| {
            let lot = seed.map_or(0.0, |seed| uniform(seed, Salt::Rotate, epoch, row));
            let degrees = f64::from(least) + lot * f64::from(most - least);
            match dtype {
                _ if nearest => moved(shape, dtype.size(), degrees, image, out),
                // Add 0.5, because a cast truncates.
                DType::U8 => turned(shape, degrees, fill, image, out, |byte| f32::from(*byte), |value| (value + 0.5) as u8),
                _ => {
                    let (image, out) = (image.as_chunks::<4>().0, out.as_chunks_mut::<4>().0);
                    turned(shape, degrees, fill, image, out, |bytes| f32::from_ne_bytes(*bytes), f32::to_ne_bytes);
                }
            }
        })
    }

    /// Corners are of the first class.
    fn for_mask(&self) -> Option<Arc<dyn Op>> {
        Some(Arc::new(Rotate { fill: 0.0, nearest: true, ..*self }))
    }

    fn is_random(&self) -> bool {
        self.seed.is_some()
    }
}

/// Where pixels of a rotated image come from.
struct Turn {
    sin: f32,
    cos: f32,
    across: f32,
    down: f32,
}

impl Turn {
    fn new(height: usize, width: usize, degrees: f64) -> Turn {
        let (sin, cos) = degrees.to_radians().sin_cos();
        let (bottom, right) = (height as f64 - 1.0, width as f64 - 1.0);
        let across = ((right - (cos * right - sin * bottom)) / 2.0) as f32;
        let down = ((bottom - (sin * right + cos * bottom)) / 2.0) as f32;
        Turn { sin: sin as f32, cos: cos as f32, across, down }
    }

    /// The row and column of the original.
    fn of(&self, y: usize, x: usize) -> (f32, f32) {
        let (y, x) = (y as f32, x as f32);
        (self.sin * x + self.cos * y + self.down, self.cos * x - self.sin * y + self.across)
    }
}

fn turned<E>(shape: [usize; 3], degrees: f64, fill: f32, image: &[E], out: &mut [E], load: impl Fn(&E) -> f32, store: impl Fn(f32) -> E) {
    let [height, width, channels] = shape;
    let from = Turn::new(height, width, degrees);
    let pixel = |y: f32, x: f32| {
        let inside = y >= 0.0 && x >= 0.0 && y < height as f32 && x < width as f32;
        inside.then(|| (y as usize * width + x as usize) * channels)
    };
    for (y, line) in out.chunks_exact_mut(width * channels).enumerate() {
        for (x, out) in line.chunks_exact_mut(channels).enumerate() {
            let (from_y, from_x) = from.of(y, x);
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

/// Rotates a mask: each pixel is the nearest one of the image, or zero outside of it.
fn moved(shape: [usize; 3], element: usize, degrees: f64, image: &[u8], out: &mut [u8]) {
    let [height, width, channels] = shape;
    let (from, pixel) = (Turn::new(height, width, degrees), channels * element);
    for (at, out) in out.chunks_exact_mut(pixel).enumerate() {
        let (y, x) = from.of(at / width, at % width);
        let (y, x) = (y.round(), x.round());
        match y >= 0.0 && x >= 0.0 && y < height as f32 && x < width as f32 {
            true => out.copy_from_slice(&image[(y as usize * width + x as usize) * pixel..][..pixel]),
            false => out.fill(0),
        }
    }
}
