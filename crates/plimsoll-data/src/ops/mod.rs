//! What `map` does to a column, row by row, into memory that somebody else owns.

mod one_hot;
mod pointwise;
mod resize;

pub use one_hot::one_hot;
pub use pointwise::{cast_f32, normalize, scale};
pub use resize::{Method, resize};

use crate::block::Rows;
use crate::{Column, DataError};
use plimsoll_core::Bytes;

/// An operation on the rows of one column. What comes out and what it takes are known before anything runs.
pub trait Op: Send + Sync {
    /// As people write it, such as `scale(0.0625)`.
    fn describe(&self) -> String;

    /// The column that comes out, or why the operation cannot be applied.
    fn output(&self, input: &Column) -> Result<Column, DataError>;

    /// Whether rows of `input` may be mapped where they lie, their type and shape unchanged; that needs no buffer.
    fn in_place(&self, _input: &Column) -> bool {
        false
    }

    /// The memory a [`kernel`](Self::kernel) for `input` holds: tables and scratch. `input` is one that
    /// [`output`](Self::output) accepts.
    fn kernel_bytes(&self, input: &Column) -> Bytes;

    /// Tables and code for exactly this column; the same condition holds.
    fn kernel(&self, input: &Column) -> Box<dyn Kernel>;
}

/// An operation made ready for one column. Each thread has its own.
pub trait Kernel: Send {
    /// Maps whole rows from `input` to `output`; `rows` says which they are, for errors.
    fn run(&mut self, rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError>;

    /// Maps whole rows where they are. Called only where [`Op::in_place`] says so.
    fn run_in_place(&mut self, _rows: &mut [u8]) {
        unreachable!("this operation does not say it works in place")
    }
}

fn refuse(op: &dyn Op, input: &Column, problem: impl Into<String>) -> DataError {
    DataError::Op { op: op.describe(), column: input.name.clone(), problem: problem.into() }
}
