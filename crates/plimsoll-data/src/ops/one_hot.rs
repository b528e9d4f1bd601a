//! One-hot encoding.

use super::{Kernel, Op, refuse};
use crate::block::Rows;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// Encodes each integer `k` as a one-hot f32 vector of `classes` elements, as a new last dimension.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::one_hot};
/// let label = Column::new("y", DType::I32, []);
/// assert_eq!(one_hot(10).output(&label)?, Column::new("y", DType::F32, [10]));
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn one_hot(classes: usize) -> Arc<dyn Op> {
    Arc::new(OneHot { classes })
}

struct OneHot {
    classes: usize,
}

impl Op for OneHot {
    fn describe(&self) -> String {
        format!("one_hot({})", self.classes)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if !matches!(input.dtype, DType::U8 | DType::I32) {
            let problem = format!("its elements are {}, and labels are integers (u8 or i32)", input.dtype);
            return Err(refuse(self, input, problem));
        }
        if !(1..=i32::MAX as usize).contains(&self.classes) {
            return Err(refuse(self, input, "ask for at least one class"));
        }
        let mut shape = input.shape.clone();
        shape.push(self.classes);
        Ok(Column::new(&input.name, DType::F32, shape))
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel_bytes(&self, _input: &Column) -> Bytes {
        Bytes::ZERO
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        Box::new(OneHotKernel { column: input.name.clone(), dtype: input.dtype, per_row: input.elements(), classes: self.classes })
    }
}

struct OneHotKernel {
    column: String,
    dtype: DType,
    per_row: usize,
    classes: usize,
}

impl Kernel for OneHotKernel {
    fn run(&mut self, rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        output.fill(0);
        let labels = input.chunks_exact(self.dtype.size());
        for (index, (label, one_hot)) in labels.zip(output.chunks_exact_mut(self.classes * 4)).enumerate() {
            let value = match *label {
                [byte] => i64::from(byte),
                [a, b, c, d] => i64::from(i32::from_ne_bytes([a, b, c, d])),
                _ => unreachable!("labels are u8 or i32"),
            };
            let Some(class) = usize::try_from(value).ok().filter(|&class| class < self.classes) else {
                let row = rows.row(index / self.per_row);
                return Err(DataError::Label { column: self.column.clone(), row, value, classes: self.classes, at: None });
            };
            one_hot[class * 4..][..4].copy_from_slice(&1f32.to_ne_bytes());
        }
        Ok(())
    }
}
