//! Elementwise operations: cast, scale, normalize. All arithmetic is in f32.

use super::{Kernel, Op, refuse};
use crate::block::Rows;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// Casts to f32.
pub fn cast_f32() -> Arc<dyn Op> {
    Arc::new(Pointwise::Cast)
}

/// Casts to f32 and multiplies by `by`.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::scale};
/// let pixels = Column::new("x", DType::U8, [8, 8, 1]);
/// assert_eq!(scale(1.0 / 16.0).output(&pixels)?, Column::new("x", DType::F32, [8, 8, 1]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn scale(by: f32) -> Arc<dyn Op> {
    Arc::new(Pointwise::Scale { by })
}

/// Casts to f32, subtracts `mean` and divides by `std`: one pair for all elements, or one per entry of the last
/// dimension (the channels of an image).
pub fn normalize(mean: impl Into<Vec<f32>>, std: impl Into<Vec<f32>>) -> Arc<dyn Op> {
    Arc::new(Pointwise::Normalize { mean: mean.into(), std: std.into() })
}

enum Pointwise {
    Cast,
    Scale { by: f32 },
    Normalize { mean: Vec<f32>, std: Vec<f32> },
}

/// Means and deviations are repeated up to at least this length, so that the loop over channels vectorizes.
const TILE: usize = 64;

impl Pointwise {
    fn tile(&self) -> usize {
        match self {
            Pointwise::Normalize { mean, .. } if mean.len() > 1 => mean.len() * TILE.div_ceil(mean.len()),
            _ => 0,
        }
    }
}

impl Op for Pointwise {
    fn describe(&self) -> String {
        match self {
            Pointwise::Cast => "cast_f32()".into(),
            Pointwise::Scale { by } => format!("scale({by})"),
            Pointwise::Normalize { mean, std } => format!("normalize({mean:?}, {std:?})"),
        }
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if !matches!(input.dtype, DType::U8 | DType::I32 | DType::F32) {
            return Err(refuse(self, input, format!("its elements are {}, and u8, i32 or f32 is needed", input.dtype)));
        }
        match self {
            Pointwise::Cast => {}
            Pointwise::Scale { by } if by.is_finite() => {}
            Pointwise::Scale { .. } => return Err(refuse(self, input, "the factor must be a finite number")),
            Pointwise::Normalize { mean, std } => {
                let channels = input.shape.last().copied().unwrap_or(1);
                if mean.len() != std.len() || (mean.len() != 1 && mean.len() != channels) {
                    let problem = format!("give one mean and one deviation, or {channels} of each for its last dimension");
                    return Err(refuse(self, input, problem));
                }
                if !mean.iter().all(|mean| mean.is_finite()) || !std.iter().all(|std| std.is_normal()) {
                    return Err(refuse(self, input, "means must be finite and deviations finite and not zero"));
                }
            }
        }
        Ok(Column { dtype: DType::F32, ..input.clone() })
    }

    fn in_place(&self, input: &Column) -> bool {
        input.dtype == DType::F32
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel_bytes(&self, _input: &Column) -> Bytes {
        Bytes((self.tile() * size_of::<[f32; 2]>()) as u64)
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let tile = match self {
            Pointwise::Normalize { mean, std } => {
                mean.iter().copied().zip(std.iter().copied()).map(|(mean, std)| [mean, std]).cycle().take(self.tile()).collect()
            }
            _ => Vec::new(),
        };
        let constant = match self {
            Pointwise::Normalize { mean, std } => [mean[0], std[0]],
            Pointwise::Scale { by } => [*by, 0.0],
            Pointwise::Cast => [0.0; 2],
        };
        let arithmetic = match self {
            Pointwise::Cast => Arithmetic::Keep,
            Pointwise::Scale { .. } => Arithmetic::Multiply,
            Pointwise::Normalize { .. } if tile.is_empty() => Arithmetic::Standardise,
            Pointwise::Normalize { .. } => Arithmetic::StandardiseTiled,
        };
        Box::new(PointwiseKernel { dtype: input.dtype, arithmetic, constant, tile })
    }

    fn factor(&self) -> Option<f32> {
        match self {
            Pointwise::Scale { by } => Some(*by),
            _ => None,
        }
    }
}

struct PointwiseKernel {
    dtype: DType,
    arithmetic: Arithmetic,
    constant: [f32; 2],
    tile: Vec<[f32; 2]>,
}

#[derive(Clone, Copy)]
enum Arithmetic {
    Keep,
    Multiply,
    Standardise,
    StandardiseTiled,
}

impl PointwiseKernel {
    fn map<const N: usize>(&self, input: &[u8], output: &mut [u8], value: impl Fn([u8; N]) -> f32) {
        let (input, output) = (input.as_chunks::<N>().0, output.as_chunks_mut::<4>().0);
        let [first, second] = self.constant;
        match self.arithmetic {
            Arithmetic::Keep => each(input, output, value),
            Arithmetic::Multiply => each(input, output, |bytes| value(bytes) * first),
            Arithmetic::Standardise => each(input, output, |bytes| (value(bytes) - first) / second),
            Arithmetic::StandardiseTiled => {
                for (input, output) in input.chunks(self.tile.len()).zip(output.chunks_mut(self.tile.len())) {
                    for ((input, output), [mean, std]) in input.iter().zip(output).zip(&self.tile) {
                        *output = ((value(*input) - mean) / std).to_ne_bytes();
                    }
                }
            }
        }
    }
}

fn each<const N: usize>(input: &[[u8; N]], output: &mut [[u8; 4]], to: impl Fn([u8; N]) -> f32) {
    for (input, output) in input.iter().zip(output) {
        *output = to(*input).to_ne_bytes();
    }
}

impl Kernel for PointwiseKernel {
    fn run(&mut self, _rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        match self.dtype {
            DType::U8 => self.map(input, output, |[byte]| f32::from(byte)),
            DType::I32 => self.map(input, output, |bytes| i32::from_ne_bytes(bytes) as f32),
            _ => self.map(input, output, f32::from_ne_bytes),
        }
        Ok(())
    }

    fn run_in_place(&mut self, _rows: Rows<'_>, data: &mut [u8]) -> Result<(), DataError> {
        let rows = data.as_chunks_mut::<4>().0;
        let [first, second] = self.constant;
        match self.arithmetic {
            Arithmetic::Keep => {}
            Arithmetic::Multiply => each_in_place(rows, |value| value * first),
            Arithmetic::Standardise => each_in_place(rows, |value| (value - first) / second),
            Arithmetic::StandardiseTiled => {
                for rows in rows.chunks_mut(self.tile.len()) {
                    for (element, [mean, std]) in rows.iter_mut().zip(&self.tile) {
                        *element = ((f32::from_ne_bytes(*element) - mean) / std).to_ne_bytes();
                    }
                }
            }
        }
        Ok(())
    }
}

fn each_in_place(rows: &mut [[u8; 4]], to: impl Fn(f32) -> f32) {
    for element in rows {
        *element = to(f32::from_ne_bytes(*element)).to_ne_bytes();
    }
}
