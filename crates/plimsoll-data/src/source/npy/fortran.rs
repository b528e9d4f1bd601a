//! Arrays in Fortran order: the elements of a row are spread over the file, one in each column of consecutive elements.

use super::convert::{DoesNotFit, convert_from};
use super::{NpyArray, WORTH_READING_OVER};
use crate::DataError;
use crate::block::Rows;
use plimsoll_core::{Bytes, DType};
use std::sync::Arc;

/// Elements that are read and converted at a time.
const PIECE: usize = 16 << 10;

impl NpyArray {
    /// Bytes for collecting rows: a piece of one column of the file, and the same after conversion.
    pub(super) fn collect_scratch(&self, rows: usize) -> Bytes {
        let piece = PIECE.min((self.rows as usize).max(rows)).max(1);
        Bytes((piece * (self.element.size() + self.element.delivered().size())) as u64)
    }

    /// Bytes of the rows in memory.
    pub(super) fn loaded_bytes(&self) -> Bytes {
        if self.fortran.is_some() { Bytes(self.rows * self.out_row_bytes() as u64) } else { Bytes::ZERO }
    }

    /// The same array with its rows in memory, if it is in Fortran order.
    pub(super) fn load(&self) -> Result<NpyArray, DataError> {
        let file = self.file.try_clone().map_err(|error| DataError::io("open", &self.path, error))?;
        let mut part = NpyArray {
            path: self.path.clone(),
            file,
            fortran: self.fortran.clone(),
            loaded: self.loaded.clone(),
            checked: self.checked.clone(),
            ..*self
        };
        if self.fortran.is_some() && self.loaded.is_none() {
            let mut rows: Arc<[u8]> = std::iter::repeat_n(0, self.loaded_bytes().get()).collect();
            let mut scratch = vec![0; self.collect_scratch(1).get()];
            let out = Arc::get_mut(&mut rows).expect("it is not shared yet");
            self.collect(Rows::From(0), self.rows as usize, &mut scratch, out)?;
            part.loaded = Some(rows);
        }
        Ok(part)
    }

    /// Writes rows to `out`, one column of the file after the other. Rows that are near each other are read together.
    pub(super) fn collect(&self, which: Rows<'_>, count: usize, scratch: &mut [u8], out: &mut [u8]) -> Result<(), DataError> {
        let (size, width, row_bytes) = (self.element.size(), self.element.delivered().size(), self.out_row_bytes());
        let piece = scratch.len() / (size + width);
        let (raw, converted) = scratch.split_at_mut(piece * size);
        let shape = self.fortran.as_deref().unwrap_or_default();
        let reach = (WORTH_READING_OVER / size) as u64;
        for column in 0..self.elements {
            let to = transposed(column, shape) * width;
            let mut index = 0;
            while index < count {
                // A run of ascending rows without large gaps.
                let first = which.row(index);
                let (mut last, mut end) = (first, index + 1);
                while end < count {
                    let row = which.row(end);
                    if row < last || row - last > reach || row - first >= piece as u64 {
                        break;
                    }
                    (last, end) = (row, end + 1);
                }
                let elements = (last - first + 1) as usize;
                let (raw, converted) = (&mut raw[..elements * size], &mut converted[..elements * width]);
                self.read_elements(column as u64 * self.rows + first, raw)?;
                convert_from(self.element, self.swapped, raw, converted).map_err(|DoesNotFit { index, value }| {
                    let (path, row) = (self.path.clone(), first + index as u64);
                    DataError::DoesNotFit { path, row, value, dtype: DType::I32 }
                })?;
                for place in index..end {
                    let from = (which.row(place) - first) as usize * width;
                    out[place * row_bytes + to..][..width].copy_from_slice(&converted[from..][..width]);
                }
                index = end;
            }
        }
        Ok(())
    }
}

/// The position in C order of the element at a position in Fortran order.
fn transposed(mut at: usize, shape: &[usize]) -> usize {
    let mut position = 0;
    let mut stride: usize = shape.iter().product();
    // The first dimension varies fastest in Fortran order, and slowest in C order.
    for &dim in shape {
        stride /= dim.max(1);
        position += at % dim * stride;
        at /= dim;
    }
    position
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_those_of_both_orders() {
        let shape = [2, 3, 4];
        for (a, b, c) in (0..24).map(|n| (n / 12, n / 4 % 3, n % 4)) {
            assert_eq!(transposed(a + 2 * (b + 3 * c), &shape), (a * 3 + b) * 4 + c);
        }
    }
}
