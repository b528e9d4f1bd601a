//! A data set's stages checked and put in the order they are carried out: rows chosen, read, mapped, batched.

use crate::dataset::{Dataset, Prefetch, Stage};
use crate::ops::Op;
use crate::order::Reorder;
use crate::source::Source;
use crate::{Column, DataError, Schema};
use std::sync::Arc;

/// Everything a plan and a feed need to know.
pub(crate) struct Recipe {
    pub source: Arc<dyn Source>,
    pub reorders: Vec<Reorder>,
    /// Rows in one epoch.
    pub rows: u64,
    /// For each column of the source, what is done to it.
    pub maps: Vec<Vec<MapStep>>,
    /// The columns of a batch.
    pub schema: Schema,
    pub batch: Option<usize>,
    pub prefetch: Prefetch,
}

/// One operation on one column.
pub(crate) struct MapStep {
    pub op: Arc<dyn Op>,
    pub input: Column,
    pub in_place: bool,
}

impl Recipe {
    pub fn is_shuffled(&self) -> bool {
        self.reorders.iter().any(|reorder| matches!(reorder, Reorder::Shuffle(_)))
    }

    /// The reorderings in words: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> String {
        let steps: Vec<String> = self.reorders.iter().map(Reorder::to_string).collect();
        if steps.is_empty() { "file order".into() } else { steps.join(" → ") }
    }

    pub fn batch(&self) -> Result<usize, DataError> {
        self.batch.ok_or_else(|| DataError::Stage("the data set has no batch size; add .batch(n)".into()))
    }
}

impl Dataset {
    pub(crate) fn recipe(&self) -> Result<Recipe, DataError> {
        let mut schema = self.source.schema().clone();
        let mut recipe = Recipe {
            source: Arc::clone(&self.source),
            reorders: Vec::new(),
            rows: self.len(),
            maps: schema.columns().iter().map(|_| Vec::new()).collect(),
            schema: schema.clone(),
            batch: None,
            prefetch: Prefetch::Auto,
        };
        if schema.columns().is_empty() {
            return Err(DataError::Stage(format!("{} has no columns; give it at least one", self.source.describe())));
        }
        for stage in &self.stages {
            match stage {
                Stage::Reorder(reorder) => {
                    if let Some(batch) = recipe.batch {
                        let problem = format!("{reorder} stands after batch({batch}) but counts rows; put it before the batch");
                        return Err(DataError::Stage(problem));
                    }
                    recipe.reorders.push(*reorder);
                }
                Stage::Map { column: name, ops } => {
                    let index = schema.index_of(name).ok_or_else(|| DataError::NoColumn {
                        name: name.clone(),
                        have: schema.columns().iter().map(|column| column.name.clone()).collect(),
                    })?;
                    for op in ops {
                        let input = schema.columns()[index].clone();
                        let output = op.output(&input)?;
                        schema = schema.with(index, output)?;
                        let in_place = op.in_place(&input);
                        recipe.maps[index].push(MapStep { op: Arc::clone(op), input, in_place });
                    }
                }
                Stage::Batch(0) => return Err(DataError::Stage("batch(0) holds nothing; ask for at least one row".into())),
                Stage::Batch(rows) => {
                    if let Some(batch) = recipe.batch {
                        let problem = format!("batch({rows}) stands after batch({batch}); a data set is batched once");
                        return Err(DataError::Stage(problem));
                    }
                    recipe.batch = Some(*rows);
                }
                Stage::Prefetch(prefetch) => recipe.prefetch = *prefetch,
            }
        }
        recipe.schema = schema;
        Ok(recipe)
    }
}
