//! The digits data set, embedded: 1,797 handwritten digits of 8×8 pixels.

use super::Source;
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Permutation, Schema};
use plimsoll_core::DType;
use std::hash::Hasher;
use std::ops::Range;

/// The split of a data set with a test set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// The training set.
    Train,
    /// The test set.
    Test,
}

/// Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak; UCI; CC BY 4.0): `x` is u8 `[8, 8, 1]` with
/// values from 0 to 16, `y` is the digit as an i32 scalar.
///
/// The rows are in one fixed random order, which is independent of classes. The last fifth (359 rows) is
/// [`Split::Test`], the rest (1,438 rows) is [`Split::Train`]. The order is part of the data set and never changes.
pub struct Digits {
    split: Split,
    schema: Schema,
    /// The row in the file for each row of this split.
    rows: Vec<u16>,
}

const FILE: &[u8] = include_bytes!("../../data/digits.bin");
const PIXELS: usize = 64;
const ROW: usize = PIXELS + 1;
const ROWS: u64 = (FILE.len() / ROW) as u64;
const TEST_ROWS: u64 = ROWS / 5;
const SPLIT_SEED: u64 = 7;

impl Digits {
    /// One split of the data.
    pub fn new(split: Split) -> Digits {
        let columns = vec![Column::new("x", DType::U8, [8, 8, 1]), Column::new("y", DType::I32, [])];
        let schema = Schema::new(columns).expect("two distinct columns");
        let places = match split {
            Split::Train => 0..ROWS - TEST_ROWS,
            Split::Test => ROWS - TEST_ROWS..ROWS,
        };
        let order = Permutation::new(ROWS, SPLIT_SEED, 0);
        Digits { split, schema, rows: places.map(|place| order.at(place) as u16).collect() }
    }
}

impl Source for Digits {
    fn takes_little_stack(&self) -> bool {
        true
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (place, row) in rows.iter(out.rows()).enumerate() {
            let at = usize::from(self.rows[row as usize]) * ROW;
            let (pixels, label) = FILE[at..at + ROW].split_at(PIXELS);
            out.column(0)[place * PIXELS..][..PIXELS].copy_from_slice(pixels);
            out.column(1)[place * 4..][..4].copy_from_slice(&i32::from(label[0]).to_ne_bytes());
        }
        Ok(())
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        // The data is embedded, and the fingerprint contains the version of the program.
        hash.write(self.describe().as_bytes());
        Ok(true)
    }

    fn classes(&self, visit: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        self.rows.iter().for_each(|row| visit(i64::from(FILE[usize::from(*row) * ROW + PIXELS])));
        Ok(true)
    }

    fn describe(&self) -> String {
        match self.split {
            Split::Train => "digits (train)".into(),
            Split::Test => "digits (test)".into(),
        }
    }
}
