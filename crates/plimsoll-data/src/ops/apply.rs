//! User code as an operation.

use super::kernel::each_block;
use super::{Kernel, Op, refuse};
use crate::error::panic_message;
use crate::schema::Extent;
use crate::{Column, DataError};
use plimsoll_core::{Bytes, DType};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Maps each row with a user function. It receives the row index, the values as f32 (regardless of the column's
/// dtype), and the output row, which is f32 of the given shape. Any thread may call it; the row order is preserved.
/// An error or a panic is reported with the row, or the row is dropped by
/// [`ignore_errors`](crate::Dataset::ignore_errors).
///
/// ```
/// use plimsoll_data::{Dataset, ops::apply};
/// let squares = apply("square", [], |_, x, out| {
///     out[0] = x[0] * x[0];
///     if out[0] < 50.0 { Ok(()) } else { Err(format!("{} is too large", x[0])) }
/// });
/// let data = Dataset::range(0, 8, 1)?.map("x", [squares]);
/// assert_eq!(data.output_schema()?.to_string(), "x: f32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
pub fn apply<F>(name: impl Into<String>, shape: impl Into<Vec<usize>>, function: F) -> Arc<dyn Op>
where
    F: Fn(u64, &[f32], &mut [f32]) -> Result<(), String> + Send + Sync + 'static,
{
    Arc::new(Apply { name: name.into(), shape: shape.into(), function: Arc::new(function) })
}

type RowFunction = dyn Fn(u64, &[f32], &mut [f32]) -> Result<(), String> + Send + Sync;

struct Apply {
    name: String,
    shape: Vec<usize>,
    function: Arc<RowFunction>,
}

impl Op for Apply {
    fn describe(&self) -> String {
        format!("apply({})", self.name)
    }

    fn output(&self, input: &Column) -> Result<Column, DataError> {
        if input.extent != Extent::Fixed {
            return Err(refuse(self, input, "its rows differ in size; bring them to one size before"));
        }
        if !matches!(input.dtype, DType::F32 | DType::I32 | DType::U8) {
            return Err(refuse(self, input, format!("its elements are {}; it takes f32, i32 and u8", input.dtype)));
        }
        Ok(Column::new(&input.name, DType::F32, self.shape.clone()))
    }

    fn is_code(&self) -> bool {
        true
    }

    fn kernel_bytes(&self, input: &Column) -> Bytes {
        Bytes(((input.elements() + self.shape.iter().product::<usize>()) * size_of::<f32>()) as u64)
    }

    fn kernel(&self, input: &Column) -> Box<dyn Kernel> {
        let (op, column, function, dtype) = (self.describe(), input.name.clone(), Arc::clone(&self.function), input.dtype);
        let (mut x, mut y) = (vec![0.0; input.elements()], vec![0.0; self.shape.iter().product()]);
        each_block(move |_, rows, input, output| {
            let (from, to) = (x.len() * dtype.size(), y.len() * size_of::<f32>());
            for index in 0..output.len() / to.max(1) {
                let row = rows.row(index);
                read(dtype, &input[index * from..][..from], &mut x);
                y.fill(0.0);
                let called = catch_unwind(AssertUnwindSafe(|| function(row, &x, &mut y)));
                let called = called.unwrap_or_else(|panic| Err(format!("it panicked: {}", panic_message(panic))));
                called.map_err(|problem| DataError::Function { op: op.clone(), column: column.clone(), row, problem, at: None })?;
                let written = output[index * to..][..to].as_chunks_mut().0;
                written.iter_mut().zip(&y).for_each(|(out, value)| *out = value.to_ne_bytes());
            }
            Ok(())
        })
    }
}

/// Converts the values of a row to f32.
fn read(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    match dtype {
        DType::U8 => bytes.iter().zip(out).for_each(|(byte, out)| *out = f32::from(*byte)),
        DType::I32 => bytes.as_chunks().0.iter().zip(out).for_each(|(four, out)| *out = i32::from_ne_bytes(*four) as f32),
        _ => bytes.as_chunks().0.iter().zip(out).for_each(|(four, out)| *out = f32::from_ne_bytes(*four)),
    }
}
