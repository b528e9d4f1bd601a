//! Resizing images as `tf.image.resize` does without antialiasing: half-pixel centres, TensorFlow's order of float operations.

use super::{Kernel, Op, refuse};
use crate::block::Rows;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::fmt;
use std::sync::Arc;

/// How a pixel between pixels is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The pixel whose centre is nearest.
    Nearest,
    /// The four pixels around it, weighted by distance.
    Bilinear,
}

/// Resizes `[H, W, C]` images of u8 or f32 to `height` × `width` f32.
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

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Method::Nearest => "nearest",
            Method::Bilinear => "bilinear",
        })
    }
}

impl Op for Resize {
    fn describe(&self) -> String {
        format!("resize({}, {}, {})", self.height, self.width, self.method)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        let &[height, width, channels] = input.shape.as_slice() else {
            return Err(refuse(self, input, format!("its rows have shape {:?}, and images are [height, width, channels]", input.shape)));
        };
        if !matches!(input.dtype, DType::U8 | DType::F32) {
            return Err(refuse(self, input, format!("its elements are {}, and pixels are u8 or f32", input.dtype)));
        }
        // Above this a pixel's position is no longer exact in f32, and the tables would not hold it.
        const LARGEST: usize = 1 << 24;
        if [self.height, self.width].iter().any(|side| !(1..=LARGEST).contains(side)) || height.max(width) > LARGEST {
            return Err(refuse(self, input, format!("sides go from 1 to {LARGEST} pixels")));
        }
        Ok(Column::new(&input.name, DType::F32, [self.height, self.width, channels]))
    }

    fn kernel_bytes(&self, input: &Column) -> Bytes {
        let taps = (self.height + self.width) * size_of::<Tap>();
        let lines = match self.method {
            Method::Nearest => 0,
            Method::Bilinear => 2 * self.width * input.shape[2] * size_of::<f32>(),
        };
        Bytes((taps + lines) as u64)
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (from_height, from_width, channels) = (input.shape[0], input.shape[1], input.shape[2]);
        let line = match self.method {
            Method::Nearest => 0,
            Method::Bilinear => self.width * channels,
        };
        Box::new(ResizeKernel {
            dtype: input.dtype,
            method: self.method,
            channels,
            from_row: from_width * channels,
            from_image: from_height * from_width * channels,
            rows: taps(self.method, from_height, self.height, from_width * channels),
            columns: taps(self.method, from_width, self.width, channels),
            lines: [vec![0.0; line], vec![0.0; line]],
        })
    }
}

/// Where one output pixel comes from along one axis.
#[derive(Clone, Copy)]
struct Tap {
    /// The pixels before and after, as offsets of elements.
    lower: usize,
    upper: usize,
    /// How far from `lower` to `upper`.
    weight: f32,
}

/// TensorFlow's `HalfPixelScaler` and `HalfPixelScalerForNN`, operation by operation; `stride` elements lie between
/// neighbours of the axis.
fn taps(method: Method, from: usize, to: usize, stride: usize) -> Vec<Tap> {
    let scale = from as f32 / to as f32;
    // A cast to unsigned takes what is below the first pixel to 0.
    let pixel = |at: f32| (at as usize).min(from - 1) * stride;
    (0..to)
        .map(|place| match method {
            Method::Nearest => {
                let at = pixel(((place as f32 + 0.5) * scale).floor());
                Tap { lower: at, upper: at, weight: 0.0 }
            }
            Method::Bilinear => {
                let at = (place as f32 + 0.5) * scale - 0.5;
                let floor = at.floor();
                Tap { lower: pixel(floor), upper: pixel(at.ceil()), weight: at - floor }
            }
        })
        .collect()
}

struct ResizeKernel {
    dtype: DType,
    method: Method,
    channels: usize,
    /// Elements in one line of the input, and in one image.
    from_row: usize,
    from_image: usize,
    rows: Vec<Tap>,
    columns: Vec<Tap>,
    /// Two input lines, interpolated to the output's width.
    lines: [Vec<f32>; 2],
}

impl Kernel for ResizeKernel {
    fn run(&mut self, _rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        match self.dtype {
            DType::U8 => self.images(input.as_chunks::<1>().0, output, |[byte]| f32::from(byte)),
            _ => self.images(input.as_chunks::<4>().0, output, f32::from_ne_bytes),
        }
        Ok(())
    }
}

impl ResizeKernel {
    fn images<const N: usize>(&mut self, input: &[[u8; N]], output: &mut [u8], value: impl Fn([u8; N]) -> f32 + Copy) {
        let to_image = self.rows.len() * self.columns.len() * self.channels;
        let images = input.chunks_exact(self.from_image).zip(output.as_chunks_mut::<4>().0.chunks_exact_mut(to_image));
        for (image, out) in images {
            match self.method {
                Method::Nearest => self.nearest(image, out, value),
                Method::Bilinear => self.bilinear(image, out, value),
            }
        }
    }

    fn nearest<const N: usize>(&self, image: &[[u8; N]], out: &mut [[u8; 4]], value: impl Fn([u8; N]) -> f32) {
        let channels = self.channels;
        for (row, out) in self.rows.iter().zip(out.chunks_exact_mut(self.columns.len() * channels)) {
            let line = &image[row.lower..][..self.from_row];
            for (column, out) in self.columns.iter().zip(out.chunks_exact_mut(channels)) {
                for (pixel, out) in line[column.lower..][..channels].iter().zip(out) {
                    *out = value(*pixel).to_ne_bytes();
                }
            }
        }
    }

    /// TensorFlow interpolates along the line above, along the line below, then between the two. So does this, but an
    /// input line that serves several output lines is interpolated once.
    fn bilinear<const N: usize>(&mut self, image: &[[u8; N]], out: &mut [[u8; 4]], value: impl Fn([u8; N]) -> f32 + Copy) {
        let mut held = [usize::MAX; 2];
        for (row, out) in self.rows.iter().zip(out.chunks_exact_mut(self.columns.len() * self.channels)) {
            if held[0] != row.lower && held[1] == row.lower {
                self.lines.swap(0, 1);
                held.swap(0, 1);
            }
            for (slot, wanted) in [row.lower, row.upper].into_iter().enumerate() {
                if held[slot] != wanted {
                    let line = &image[wanted..][..self.from_row];
                    widen(&self.columns, self.channels, line, &mut self.lines[slot], value);
                    held[slot] = wanted;
                }
            }
            for ((&top, &bottom), out) in self.lines[0].iter().zip(&self.lines[1]).zip(out) {
                *out = between(top, bottom, row.weight).to_ne_bytes();
            }
        }
    }
}

/// Interpolates along a line. The usual numbers of channels are known to the compiler, which then needs no inner loop.
fn widen<const N: usize>(columns: &[Tap], channels: usize, line: &[[u8; N]], out: &mut [f32], value: impl Fn([u8; N]) -> f32 + Copy) {
    match channels {
        1 => widen_by::<N, 1>(columns, line, out, value),
        3 => widen_by::<N, 3>(columns, line, out, value),
        4 => widen_by::<N, 4>(columns, line, out, value),
        _ => {
            for (column, out) in columns.iter().zip(out.chunks_exact_mut(channels)) {
                let (left, right) = (&line[column.lower..][..channels], &line[column.upper..][..channels]);
                for ((left, right), out) in left.iter().zip(right).zip(out) {
                    *out = between(value(*left), value(*right), column.weight);
                }
            }
        }
    }
}

fn widen_by<const N: usize, const C: usize>(columns: &[Tap], line: &[[u8; N]], out: &mut [f32], value: impl Fn([u8; N]) -> f32 + Copy) {
    for (column, out) in columns.iter().zip(out.as_chunks_mut::<C>().0) {
        let (left, right) = (&line[column.lower..][..C], &line[column.upper..][..C]);
        *out = std::array::from_fn(|channel| between(value(left[channel]), value(right[channel]), column.weight));
    }
}

fn between(lower: f32, upper: f32, weight: f32) -> f32 {
    lower + (upper - lower) * weight
}
