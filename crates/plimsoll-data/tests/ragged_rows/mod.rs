//! Rows of which a column may vary in length, by number or one after the other, and the same on a list.

use plimsoll_core::DType;
use plimsoll_data::source::RowMut;
use plimsoll_data::{Column, DataError, Dataset, Extent, Schema, Tensor};
use proptest::prelude::*;

/// The numbers of each column of a row.
pub type Cells = Vec<Vec<i32>>;

/// What comes where a row should: its numbers, or none if it failed.
pub type Places = Vec<Option<Cells>>;

/// What a source is like.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Whether rows have numbers.
    numbered: bool,
    dtype: DType,
    most: usize,
    pairs: bool,
    ragged: bool,
    rows: u8,
    bad: u8,
}

pub fn kinds() -> impl Strategy<Value = Kind> {
    let dtype = prop::sample::select(vec![DType::I32, DType::F32, DType::U8]);
    let shape = (1usize..7, any::<bool>(), prop::bool::weighted(0.8));
    (any::<bool>(), dtype, shape, 0u8..40, 0u8..3).prop_map(|(numbered, dtype, (most, pairs, ragged), rows, bad)| Kind {
        numbered,
        dtype,
        most,
        pairs,
        ragged,
        rows,
        bad,
    })
}

impl Kind {
    fn column(&self, name: &str) -> Column {
        let shape = if self.pairs { vec![self.most, 2] } else { vec![self.most] };
        if self.ragged { Column::up_to(name, self.dtype, shape) } else { Column::new(name, self.dtype, shape) }
    }

    /// Row `n` of an epoch, unless it is bad.
    fn cells(&self, n: i32, epoch: u64) -> Option<Cells> {
        if self.bad > 0 && n % (4 + i32::from(self.bad)) == 3 {
            return None;
        }
        let moved = if self.numbered { 0 } else { 100 * epoch as i32 };
        let length = if self.ragged { (n * 7 + n / 3 + moved / 100) as usize % (self.most + 1) } else { self.most };
        let each = if self.pairs { 2 } else { 1 };
        Some(vec![(0..(length * each) as i32).map(|at| (n * 5 + at) % 100 + 1).collect(), vec![n + moved]])
    }

    /// Rows of two columns, and what they are in an epoch.
    pub fn source(self, x: &str, y: &str) -> (Dataset, impl Fn(u64) -> Places + 'static) {
        let columns = vec![self.column(x), Column::new(y, DType::I32, [])];
        let schema = Schema::new(columns.clone()).unwrap();
        let rows = i32::from(self.rows);
        let bad = || DataError::Stage("bad".into());
        let data = match self.numbered {
            true => Dataset::from_fn(schema, rows as u64, move |n, row| {
                let cells = self.cells(n as i32, 0).ok_or_else(bad)?;
                columns.iter().enumerate().try_for_each(|(index, column)| write(row, index, column.dtype, &cells[index]))
            }),
            false => Dataset::from_generator(schema, move |epoch| {
                let columns = columns.clone();
                (0..rows).map(move |n| tensors(&columns, &self.cells(n, epoch).ok_or_else(bad)?))
            }),
        };
        (data, move |epoch| (0..rows).map(|n| self.cells(n, epoch)).collect())
    }
}

fn write(row: &mut RowMut<'_, '_, '_>, index: usize, dtype: DType, numbers: &[i32]) -> Result<(), DataError> {
    match dtype {
        DType::F32 => row.f32(index, &numbers.iter().map(|n| *n as f32).collect::<Vec<_>>()),
        DType::U8 => row.u8(index, &numbers.iter().map(|n| *n as u8).collect::<Vec<_>>()),
        _ => row.i32(index, numbers),
    }
}

pub fn tensors(columns: &[Column], cells: &Cells) -> Result<Vec<Tensor>, DataError> {
    let tensor = |(column, numbers): (&Column, &Vec<i32>)| {
        let mut shape = column.shape.clone();
        if let (Extent::UpTo, Some((length, each))) = (column.extent, shape.split_first_mut()) {
            *length = numbers.len() / each.iter().product::<usize>();
        }
        match column.dtype {
            DType::F32 => Tensor::f32(shape, numbers.iter().map(|n| *n as f32).collect::<Vec<_>>()),
            DType::U8 => Tensor::u8(shape, numbers.iter().map(|n| *n as u8).collect::<Vec<_>>()),
            _ => Tensor::i32(shape, numbers.clone()),
        }
    };
    columns.iter().zip(cells).map(tensor).collect()
}
