//! Rows of tensors in memory, which are shared and copied only into the batch.

use super::{Gather, Source, class_column};
use crate::block::BlockMut;
use crate::ragged::write_length;
use crate::{Column, DataError, Extent, Schema};
use plimsoll_core::{Bytes, DType};
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;

/// Numbers in memory and their shape. A clone shares the numbers.
///
/// ```
/// use plimsoll_data::Tensor;
/// let x = Tensor::f32([2, 3], vec![0.0, 1.0, 2.0, 3.0, 4.0, 5.0])?;
/// assert!(Tensor::i32([2], [1, 2, 3]).is_err());
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Tensor {
    shape: Vec<usize>,
    numbers: Numbers,
}

#[derive(Clone, Debug)]
enum Numbers {
    F32(Arc<[f32]>),
    I32(Arc<[i32]>),
    U8(Arc<[u8]>),
}

impl Tensor {
    /// An f32 tensor, in row-major order.
    pub fn f32(shape: impl Into<Vec<usize>>, numbers: impl Into<Arc<[f32]>>) -> Result<Tensor, DataError> {
        Tensor::new(shape.into(), Numbers::F32(numbers.into()))
    }

    /// An i32 tensor, in row-major order.
    pub fn i32(shape: impl Into<Vec<usize>>, numbers: impl Into<Arc<[i32]>>) -> Result<Tensor, DataError> {
        Tensor::new(shape.into(), Numbers::I32(numbers.into()))
    }

    /// A u8 tensor, such as pixels, in row-major order.
    pub fn u8(shape: impl Into<Vec<usize>>, numbers: impl Into<Arc<[u8]>>) -> Result<Tensor, DataError> {
        Tensor::new(shape.into(), Numbers::U8(numbers.into()))
    }

    fn new(shape: Vec<usize>, numbers: Numbers) -> Result<Tensor, DataError> {
        let (have, wanted) = (numbers.len(), shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)));
        if wanted != Some(have) {
            let problem = format!("a tensor of shape {shape:?} cannot hold {have} numbers; give it the shape the numbers have");
            return Err(DataError::Stage(problem));
        }
        Ok(Tensor { shape, numbers })
    }

    /// Writes it as one row of a column, if the shape matches.
    pub(crate) fn write_row(&self, column: &Column, out: &mut [u8]) -> Result<(), DataError> {
        let ragged = column.extent == Extent::UpTo;
        let fits = match (&self.shape[..], &column.shape[..]) {
            ([long, each @ ..], [most, all @ ..]) if ragged => long <= most && each == all,
            (given, declared) => given == declared && !ragged,
        };
        let dtype = self.numbers.dtype();
        if !fits || dtype != column.dtype {
            let remedy = if ragged { "; declare the longest row there is" } else { "" };
            let problem = format!("is declared as {column}, and {dtype}{:?} was given for it{remedy}", self.shape);
            return Err(DataError::Schema { column: column.name.clone(), problem });
        }
        let (elements, rest) = out.split_at_mut(self.numbers.len() * dtype.size());
        self.numbers.copy(0, elements);
        // Clear the padding, so that the output is deterministic.
        rest.fill(0);
        if ragged {
            write_length(out, self.shape[0] as u32);
        }
        Ok(())
    }
}

impl Numbers {
    fn len(&self) -> usize {
        match self {
            Numbers::F32(numbers) => numbers.len(),
            Numbers::I32(numbers) => numbers.len(),
            Numbers::U8(numbers) => numbers.len(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Numbers::F32(_) => DType::F32,
            Numbers::I32(_) => DType::I32,
            Numbers::U8(_) => DType::U8,
        }
    }

    /// Copies the elements from index `first` on to fill `out`.
    fn copy(&self, first: usize, out: &mut [u8]) {
        match self {
            Numbers::F32(numbers) => {
                let numbers = &numbers[first..][..out.len() / 4];
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, number)| *out = number.to_ne_bytes());
            }
            Numbers::I32(numbers) => {
                let numbers = &numbers[first..][..out.len() / 4];
                out.as_chunks_mut().0.iter_mut().zip(numbers).for_each(|(out, number)| *out = number.to_ne_bytes());
            }
            Numbers::U8(numbers) => out.copy_from_slice(&numbers[first..][..out.len()]),
        }
    }
}

/// The source of tensors whose first dimension is the row.
pub struct Tensors {
    schema: Schema,
    rows: u64,
    tensors: Vec<Tensor>,
}

impl Tensors {
    /// Named columns, all with the same number of rows.
    pub fn new<S: Into<String>>(columns: impl IntoIterator<Item = (S, Tensor)>) -> Result<Tensors, DataError> {
        let (names, tensors): (Vec<String>, Vec<Tensor>) = columns.into_iter().map(|(name, tensor)| (name.into(), tensor)).unzip();
        let rows_of = |tensor: &Tensor| tensor.shape.first().copied().unwrap_or(0);
        let rows = tensors.first().map_or(0, rows_of);
        for (name, tensor) in names.iter().zip(&tensors) {
            if tensor.shape.is_empty() {
                let problem = "is a single number and has no rows; give it a first dimension".into();
                return Err(DataError::Schema { column: name.clone(), problem });
            }
            if rows_of(tensor) != rows {
                let problem = format!("has {} rows where column `{}` has {rows}; give all columns as many", rows_of(tensor), names[0]);
                return Err(DataError::Schema { column: name.clone(), problem });
            }
        }
        let columns = names.into_iter().zip(&tensors).map(|(name, tensor)| Column::new(name, tensor.numbers.dtype(), &tensor.shape[1..]));
        Ok(Tensors { schema: Schema::new(columns.collect())?, rows: rows as u64, tensors })
    }
}

impl Source for Tensors {
    fn takes_little_stack(&self) -> bool {
        true
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn read(&self, first_row: u64, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (index, tensor) in self.tensors.iter().enumerate() {
            tensor.numbers.copy(first_row as usize * self.schema.columns()[index].elements(), out.column(index));
        }
        Ok(())
    }

    fn gather(&self, rows: Gather<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (index, tensor) in self.tensors.iter().enumerate() {
            let column = &self.schema.columns()[index];
            for (&row, out) in rows.rows.iter().zip(out.column(index).chunks_exact_mut(column.row_bytes().get())) {
                tensor.numbers.copy(row as usize * column.elements(), out);
            }
        }
        Ok(())
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        match class_column(&self.schema).map(|index| &self.tensors[index].numbers) {
            Some(Numbers::I32(labels)) => labels.iter().for_each(|label| visit(i64::from(*label))),
            Some(Numbers::U8(labels)) => labels.iter().for_each(|label| visit(i64::from(*label))),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// They exist regardless of the feed, but a budget for the whole process must count them.
    fn held_bytes(&self) -> Bytes {
        self.tensors.iter().map(|tensor| Bytes((tensor.numbers.len() * tensor.numbers.dtype().size()) as u64)).sum()
    }

    fn held_name(&self) -> &'static str {
        "tensors"
    }

    /// They have no name or modification time, so all values are hashed.
    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        let mut piece = [0; 1024];
        for tensor in &self.tensors {
            let (numbers, size) = (tensor.numbers.len(), tensor.numbers.dtype().size());
            let each = piece.len() / size;
            for first in (0..numbers).step_by(each) {
                let piece = &mut piece[..(numbers - first).min(each) * size];
                tensor.numbers.copy(first, piece);
                hash.write(piece);
            }
        }
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("{} rows of tensors", self.rows)
    }
}
