//! Standardizes each image to mean 0 and standard deviation 1.

use super::{Kernel, Op, image_shape, refuse, shape_of};
use crate::block::Rows;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// Subtracts each image's mean and divides by its standard deviation (at least one over the square root of its number
/// of elements), like `tf.image.per_image_standardization`. The output is f32.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::standardize};
/// assert_eq!(standardize().output(&Column::new("x", DType::U8, [28, 28, 3]))?, Column::new("x", DType::F32, [28, 28, 3]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn standardize() -> Arc<dyn Op> {
    Arc::new(PerImageStandardize)
}

struct PerImageStandardize;

impl Op for PerImageStandardize {
    fn describe(&self) -> String {
        "standardize()".into()
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        image_shape(self, input)?;
        if !matches!(input.dtype, DType::U8 | DType::F32) {
            return Err(refuse(self, input, format!("its elements are {}, and pixels are u8 or f32", input.dtype)));
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
        Bytes::ZERO
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        Box::new(StandardizeKernel { elements: shape_of(input).iter().product() })
    }
}

struct StandardizeKernel {
    /// Elements of one image.
    elements: usize,
}

impl Kernel for StandardizeKernel {
    fn run(&mut self, _rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        let images = input.chunks_exact(self.elements).zip(output.as_chunks_mut::<4>().0.chunks_exact_mut(self.elements));
        for (image, out) in images {
            let (mean, by) = statistics(image.iter().map(|byte| f64::from(*byte)), self.elements);
            for (byte, out) in image.iter().zip(out) {
                *out = ((f32::from(*byte) - mean) / by).to_ne_bytes();
            }
        }
        Ok(())
    }

    fn run_in_place(&mut self, _rows: Rows<'_>, data: &mut [u8]) -> Result<(), DataError> {
        for image in data.as_chunks_mut::<4>().0.chunks_exact_mut(self.elements) {
            let (mean, by) = statistics(image.iter().map(|bytes| f64::from(f32::from_ne_bytes(*bytes))), self.elements);
            for element in image {
                *element = ((f32::from_ne_bytes(*element) - mean) / by).to_ne_bytes();
            }
        }
        Ok(())
    }
}

/// The mean and the divisor.
fn statistics(values: impl Iterator<Item = f64> + Clone, count: usize) -> (f32, f32) {
    let mean = values.clone().sum::<f64>() / count as f64;
    let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count as f64;
    (mean as f32, variance.sqrt().max(1.0 / (count as f64).sqrt()) as f32)
}
