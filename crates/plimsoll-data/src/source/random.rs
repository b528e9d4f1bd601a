//! Synthetic rows: each value is a function of the seed and its position, so nothing is stored.

use super::Source;
use crate::block::{BlockMut, Rows};
use crate::rng::mix64;
use crate::{Column, DataError, Schema};
use plimsoll_core::DType;
use std::hash::Hasher;
use std::ops::Range;

/// The schema of synthetic rows.
///
/// ```
/// use plimsoll_data::{Dataset, RandomSpec};
/// let spec = RandomSpec::new(1_000_000).seed(7).floats("x", [28, 28, 1]).labels("y", 10);
/// let data = Dataset::random(spec)?;
/// assert_eq!(data.output_schema()?.to_string(), "x: f32[28, 28, 1], y: i32[]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RandomSpec {
    rows: u64,
    seed: u64,
    columns: Vec<(Column, RandomValues)>,
}

#[derive(Clone, Copy, Debug)]
enum RandomValues {
    UnitFloats,
    AnyByte,
    Labels { classes: u32 },
}

impl RandomSpec {
    /// `rows` rows, without columns at first.
    pub fn new(rows: u64) -> RandomSpec {
        RandomSpec { rows, seed: 0, columns: Vec::new() }
    }

    /// Sets the seed; 0 by default.
    pub fn seed(mut self, seed: u64) -> RandomSpec {
        self.seed = seed;
        self
    }

    /// Adds a column of f32, uniform in [0, 1).
    pub fn floats(self, name: &str, shape: impl Into<Vec<usize>>) -> RandomSpec {
        self.column(Column::new(name, DType::F32, shape), RandomValues::UnitFloats)
    }

    /// Adds a column of u8, uniform over all values.
    pub fn bytes(self, name: &str, shape: impl Into<Vec<usize>>) -> RandomSpec {
        self.column(Column::new(name, DType::U8, shape), RandomValues::AnyByte)
    }

    /// Adds a scalar i32 column, uniform in `0..classes`.
    pub fn labels(self, name: &str, classes: u32) -> RandomSpec {
        self.column(Column::new(name, DType::I32, []), RandomValues::Labels { classes })
    }

    /// Adds a column of i32 of this shape, uniform in `0..classes`: a class for every pixel, or tokens.
    pub fn classes(self, name: &str, shape: impl Into<Vec<usize>>, classes: u32) -> RandomSpec {
        self.column(Column::new(name, DType::I32, shape), RandomValues::Labels { classes })
    }

    fn column(mut self, column: Column, values: RandomValues) -> RandomSpec {
        self.columns.push((column, values));
        self
    }
}

/// The source of a [`RandomSpec`].
pub struct Random {
    rows: u64,
    seed: u64,
    schema: Schema,
    values: Vec<RandomValues>,
}

impl Random {
    /// Checks the specification.
    pub fn new(spec: RandomSpec) -> Result<Random, DataError> {
        let (columns, values): (Vec<Column>, Vec<RandomValues>) = spec.columns.into_iter().unzip();
        for (column, values) in columns.iter().zip(&values) {
            if let RandomValues::Labels { classes } = *values
                && !(1..=i32::MAX as u32).contains(&classes)
            {
                let problem = format!("has labels of {classes} classes; ask for 1 to {}", i32::MAX);
                return Err(DataError::Schema { column: column.name.clone(), problem });
            }
        }
        Ok(Random { rows: spec.rows, seed: spec.seed, schema: Schema::new(columns)?, values })
    }
}

/// Writes one row: element `i` is a 32-bit hash of `i` with the row's key.
fn fill<const N: usize>(key: u64, row: &mut [u8], value: impl Fn(u32) -> [u8; N]) {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has AVX2.
        return unsafe { fill_avx2(key, row, value) };
    }
    fill_elements(key, row, value);
}

/// The same in vectors of eight: images for a fast GPU must not take longer than its step.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn fill_avx2<const N: usize>(key: u64, row: &mut [u8], value: impl Fn(u32) -> [u8; N]) {
    fill_elements(key, row, value);
}

/// 32-bit arithmetic lets the loop vectorize.
#[inline(always)]
fn fill_elements<const N: usize>(key: u64, row: &mut [u8], value: impl Fn(u32) -> [u8; N]) {
    let (low, high) = (key as u32, (key >> 32) as u32);
    for (index, out) in row.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let mut word = (index as u32).wrapping_mul(0x9E37_79B9) ^ low;
        word = (word ^ (word >> 16)).wrapping_mul(0x7FEB_352D).wrapping_add(high);
        word = (word ^ (word >> 15)).wrapping_mul(0x846C_A68B);
        *out = value(word ^ (word >> 16));
    }
}

impl Source for Random {
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
        for (index, values) in self.values.iter().enumerate() {
            let row_bytes = self.schema.columns()[index].row_bytes().get();
            for (row, place) in rows.iter(out.rows()).zip(out.column(index).chunks_exact_mut(row_bytes)) {
                let key = mix64(self.seed ^ mix64(row ^ mix64(index as u64 + 1)));
                match *values {
                    RandomValues::UnitFloats => fill(key, place, |word| ((word >> 8) as f32 * (1.0 / (1 << 24) as f32)).to_ne_bytes()),
                    RandomValues::AnyByte => fill(key, place, |word| [(word >> 24) as u8]),
                    RandomValues::Labels { classes } => {
                        fill(key, place, |word| (((u64::from(word) * u64::from(classes)) >> 32) as i32).to_ne_bytes())
                    }
                }
            }
        }
        Ok(())
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        hash.write(format!("random {} {} {:?}", self.seed, self.schema, self.values).as_bytes());
        Ok(true)
    }

    fn describe(&self) -> String {
        format!("{} random rows (seed {})", self.rows, self.seed)
    }
}
