//! Ranges of integers.

use super::Source;
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;
use std::hash::Hasher;
use std::ops::Range;

/// `start`, `start + step`, … below `stop` (above it, if the step is negative), as the i32 column `x`.
pub struct Counted {
    schema: Schema,
    start: i64,
    step: i64,
    rows: u64,
}

impl Counted {
    /// Checks that the range is finite and that all values fit in an i32.
    pub fn new(start: i32, stop: i32, step: i32) -> Result<Counted, DataError> {
        if step == 0 {
            return Err(DataError::Stage(format!("range({start}, {stop}, 0) never ends; step by at least 1")));
        }
        let (start, distance, step) = (i64::from(start), i64::from(stop) - i64::from(start), i64::from(step));
        let rows = if (distance > 0) == (step > 0) { distance.abs().div_euclid(step.abs()) + i64::from(distance % step != 0) } else { 0 };
        Ok(Counted { schema: Schema::new(vec![Column::new("x", DType::I32, [])])?, start, step, rows: rows as u64 })
    }
}

impl Source for Counted {
    fn takes_little_stack(&self) -> bool {
        true
    }

    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.rows
    }

    fn write_rows(&self, rows: Rows<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (row, out) in rows.iter(out.rows()).zip(out.column(0).as_chunks_mut().0) {
            *out = ((self.start + row as i64 * self.step) as i32).to_ne_bytes();
        }
        Ok(())
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        hash.write(self.describe().as_bytes());
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("{} numbers from {} by {}", self.rows, self.start, self.step)
    }
}
