//! One-hot encoding.

use super::kernel::each_block;
use super::{Kernel, Op, refuse};
use crate::{Column, DataError};
use plimsoll_core::DType;
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

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (column, dtype, per_row, classes) = (input.name.clone(), input.dtype, input.elements(), self.classes);
        each_block(move |_, rows, input, output| {
            output.fill(0);
            let labels = input.chunks_exact(dtype.size());
            for (index, (label, one_hot)) in labels.zip(output.chunks_exact_mut(classes * 4)).enumerate() {
                let value = match *label {
                    [byte] => i64::from(byte),
                    [a, b, c, d] => i64::from(i32::from_ne_bytes([a, b, c, d])),
                    _ => unreachable!("labels are u8 or i32"),
                };
                let Some(class) = usize::try_from(value).ok().filter(|&class| class < classes) else {
                    let row = rows.row(index / per_row);
                    return Err(DataError::Label { column: column.clone(), row, value, classes, at: None });
                };
                one_hot[class * 4..][..4].copy_from_slice(&1f32.to_ne_bytes());
            }
            Ok(())
        })
    }
}
