//! The columns of the rows of each stage, or why it cannot have any.

use super::{Spec, reshape};
use crate::recipe::MOST_THREADS;
use crate::source::SequentialSource;
use crate::{Column, DataError, Extent, Schema};
use plimsoll_core::DType;

impl Spec {
    /// The columns of its rows.
    pub fn schema(&self) -> Result<Schema, DataError> {
        let first = || match self.inputs().first() {
            Some(input) => input.output_schema(),
            None => Err(DataError::Stage(format!("{} of no data sets has no rows; give it at least one", self.name()))),
        };
        match self {
            Spec::Source(SequentialSource { schema, .. }) | Spec::FlatMap { schema, .. } => Ok(schema.clone()),
            Spec::Pictures(pictures) => pictures.schema(),
            Spec::Enumerate { column, .. } => {
                let mut columns = vec![Column::new(column, DType::I32, [])];
                columns.extend_from_slice(first()?.columns());
                Schema::new(columns)
            }
            Spec::Zip { inputs } => {
                let mut columns = first()?.columns().to_vec();
                for input in &inputs[1..] {
                    columns.extend_from_slice(input.output_schema()?.columns());
                }
                Schema::new(columns)
            }
            Spec::Interleave { cycle, block, .. } if *cycle == 0 || *block == 0 => {
                Err(DataError::Stage(format!("interleave({cycle}, {block}) takes nothing; give numbers of at least 1")))
            }
            Spec::Sample { inputs, weights, .. }
                if weights.len() != inputs.len() || !weights.iter().all(|weight| weight.is_finite() && *weight > 0.0) =>
            {
                let problem = format!("sample_from has {} data sets and the weights {weights:?}; give each one above 0", inputs.len());
                Err(DataError::Stage(problem))
            }
            Spec::Concatenate { inputs } | Spec::Sample { inputs, .. } | Spec::Interleave { inputs, .. } => {
                let schema = first()?;
                if let Some(threads) = self.in_turns().filter(|threads| *threads > MOST_THREADS) {
                    let problem = format!("{} begins {threads} threads; ask for a cycle of at most {MOST_THREADS}", self.name());
                    return Err(DataError::Stage(problem));
                }
                for input in &inputs[1..] {
                    let other = input.output_schema()?;
                    if let Some(problem) = other_classes(&schema, &other) {
                        return Err(DataError::Stage(format!("{} {problem}", self.name())));
                    }
                    if !alike(&schema, &other) {
                        let problem =
                            format!("{} puts rows of one kind together, not {schema} and {other}; map them to be alike", self.name());
                        return Err(DataError::Stage(problem));
                    }
                }
                Ok(schema)
            }
            Spec::Window { size, shift, stride, .. } => {
                let first = reshape::of_one_length(first()?, "window puts rows together")?;
                if *size == 0 || *shift == 0 || *stride == 0 {
                    return Err(DataError::Stage(format!("{} holds nothing; give numbers of at least 1", self.name())));
                }
                if (*size as u128 * *stride as u128).saturating_mul(u128::from(first.row_bytes().0)) > 1 << 48 {
                    return Err(DataError::Stage(format!("{} reaches over more rows than can be held; ask for fewer", self.name())));
                }
                let widen = |column: &Column| {
                    let mut column = column.clone();
                    column.shape.insert(0, *size);
                    column
                };
                Schema::new(first.columns().iter().map(widen).collect())
            }
            Spec::Unbatch { .. } => reshape::unbatched(&reshape::of_one_length(first()?, "unbatch takes rows apart")?),
            Spec::Buckets { buckets, .. } => {
                let schema = self.of_blocks(first()?)?;
                buckets.check(&schema)?;
                Ok(schema)
            }
            Spec::Cache { input, cache, .. } => {
                let schema = self.of_blocks(first()?)?;
                cache.check(input)?;
                Ok(schema)
            }
            Spec::Files { files, .. } => {
                let mut columns = first()?.columns().to_vec();
                // The number that is referred by.
                columns.pop();
                files.iter().for_each(|(at, column)| columns.insert(*at, column.clone()));
                Schema::new(columns)
            }
            Spec::Filter { .. } | Spec::TakeWhile { .. } | Spec::IgnoreErrors { .. } => self.of_blocks(first()?),
            _ => first(),
        }
    }

    /// The same columns, if a stage that looks at rows can: pictures of differing size are held nowhere.
    fn of_blocks(&self, schema: Schema) -> Result<Schema, DataError> {
        let differs = |column: &&Column| matches!(column.extent, Extent::Files | Extent::Images);
        match schema.columns().iter().find(differs) {
            None => Ok(schema),
            Some(column) => {
                let problem = format!("has rows that differ in size, which {} cannot hold; put decode and resize before it", self.name());
                Err(DataError::Schema { column: column.name.clone(), problem })
            }
        }
    }
}

/// Whether rows of one can stand where rows of the other do.
pub(super) fn alike(a: &Schema, b: &Schema) -> bool {
    let plain = |column: &Column| (column.name.clone(), column.dtype, column.shape.clone(), column.extent);
    a.columns().iter().map(plain).eq(b.columns().iter().map(plain))
}

/// What to say where the same number is one class in some rows and another in others.
fn other_classes(a: &Schema, b: &Schema) -> Option<String> {
    let pairs = a.columns().iter().zip(b.columns()).filter(|(a, b)| a.name == b.name);
    let mut both = pairs.filter_map(|(a, b)| Some((&a.name, a.classes.as_ref()?, b.classes.as_ref()?)));
    let (column, a, b) = both.find(|(_, a, b)| a != b)?;
    let (a, b) = (a.join(", "), b.join(", "));
    Some(format!(
        "would mix up classes: column `{column}` numbers {a} in one part and {b} in another; name the folder to take them from (classes)"
    ))
}
