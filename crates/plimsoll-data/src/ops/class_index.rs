//! Pixel values of masks to class indices.

use super::kernel::each_block_in_place;
use super::{Kernel, Op, refuse};
use crate::schema::Extent;
use crate::{Column, DataError};
use plimsoll_core::DType;
use std::sync::Arc;

/// Replaces each u8 value by its position in a list, such as the pixels 0 and 255 of a mask by the classes 0 and 1. Any
/// other value is an error of its row.
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, ops::class_index};
/// let mask = Column::new("y", DType::U8, [64, 64, 1]);
/// assert_eq!(class_index([0, 255]).output(&mask)?, mask);
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn class_index(values: impl Into<Vec<u8>>) -> Arc<dyn Op> {
    Arc::new(ClassIndex { values: values.into() })
}

struct ClassIndex {
    values: Vec<u8>,
}

impl Op for ClassIndex {
    fn describe(&self) -> String {
        format!("class_index({:?})", self.values)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if input.dtype != DType::U8 || input.extent != Extent::Fixed {
            return Err(refuse(self, input, format!("its elements are {}, and pixels of masks are u8 of one size", input.dtype)));
        }
        let repeated = (1..self.values.len()).find(|&at| self.values[..at].contains(&self.values[at]));
        match (self.values.is_empty(), repeated) {
            (true, _) => Err(refuse(self, input, "it lists no values; name the value of each class")),
            (_, Some(at)) => Err(refuse(self, input, format!("it lists {} twice; each class has its own value", self.values[at]))),
            _ => Ok(input.clone()),
        }
    }

    fn in_place(&self, _input: &Column) -> bool {
        true
    }

    fn takes_long(&self) -> bool {
        false
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let mut classes = [None; 256];
        self.values.iter().enumerate().for_each(|(class, value)| classes[usize::from(*value)] = Some(class as u8));
        let (op, column, listed, row_bytes) = (self.describe(), input.name.clone(), format!("{:?}", self.values), input.row_bytes().get());
        each_block_in_place(move |_, rows, data| {
            for (index, value) in data.iter_mut().enumerate() {
                *value = classes[usize::from(*value)].ok_or_else(|| DataError::Op {
                    op: op.clone(),
                    column: column.clone(),
                    problem: format!("row {} has the pixel value {value}, which is none of {listed}", rows.row(index / row_bytes)),
                })?;
            }
            Ok(())
        })
    }
}
