//! Rejects rows with NaN or infinities.

use super::kernel::each_block_in_place;
use super::{Kernel, Op, refuse};
use crate::{Column, DataError};
use plimsoll_core::DType;
use std::sync::Arc;

/// Passes values through. A row with a value that is not finite (NaN or infinite) is an error that names it, or is
/// dropped by [`ignore_errors`](crate::Dataset::ignore_errors).
///
/// ```
/// use plimsoll_core::DType;
/// use plimsoll_data::{Column, Rows, ops::finite};
/// let label = Column::new("y", DType::F32, []);
/// let error = finite().kernel(&label).run_in_place(Rows::From(7), &mut f32::NAN.to_ne_bytes()).unwrap_err();
/// assert_eq!(error.to_string(), "column `y` holds NaN in row 7; correct the row or leave it out");
/// ```
pub fn finite() -> Arc<dyn Op> {
    Arc::new(Finite)
}

struct Finite;

impl Op for Finite {
    fn describe(&self) -> String {
        "finite()".into()
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if input.dtype != DType::F32 {
            return Err(refuse(self, input, format!("its elements are {}, which are always finite; leave it out", input.dtype)));
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
        let (column, elements) = (input.name.clone(), input.elements().max(1));
        each_block_in_place(move |_, rows, data| {
            let values = data.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
            match values.enumerate().find(|(_, value)| !value.is_finite()) {
                Some((at, value)) => Err(DataError::NotFinite { column: column.clone(), row: rows.row(at / elements), value, at: None }),
                None => Ok(()),
            }
        })
    }
}
