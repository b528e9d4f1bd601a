//! Files that are opened behind the stages that choose rows: such a stage is given row numbers in their place, so that only files of rows that
//! it hands on are read and decoded.

use super::Dataset;
use super::input::{BlockIterator, Input, RowStage};
use super::stage::{Opening, Stage, first_schema};
use crate::cache::Cache;
use crate::fault::Fault;
use crate::schema::Extent;
use crate::source::{DeferredDecode, REFERENCE_BYTES};
use crate::{Column, DataError, Schema};
use std::sync::Arc;

/// Rows that end with the number of a row with files, which are opened behind it: the columns of files, each with its position.
struct OpenFiles {
    files: Vec<(usize, Column)>,
}

impl Stage for OpenFiles {
    fn describe(&self) -> String {
        "files".into()
    }

    fn is_implicit(&self) -> bool {
        true
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let mut columns = first_schema(inputs, "files")?.columns().to_vec();
        // The row number.
        columns.pop();
        self.files.iter().for_each(|(at, column)| columns.insert(*at, column.clone()));
        Schema::new(columns)
    }

    fn reference_bytes(&self) -> usize {
        REFERENCE_BYTES
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(AllRows)
    }
}

/// The rows of an input as they are.
struct AllRows;

impl RowStage for AllRows {
    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        input.copy(out)
    }
}

/// Indexed rows in the place of files, the columns of files with their positions, and the stages that concern files.
struct Deferred {
    rows: Dataset,
    files: Vec<(usize, Column)>,
    later: Vec<Arc<dyn Stage>>,
}

impl Dataset {
    /// A stage that hands on rows as they are, with row numbers in the place of files that are not decoded yet. What was said of the files before
    /// the stage is done behind it.
    pub(super) fn before_decoding(self, stage: impl Stage) -> Dataset {
        let Deferred { rows, files, later } = self.defer_decoding();
        let chosen = Dataset::from_stage(stage, vec![rows]);
        if files.is_empty() || chosen.error.is_some() {
            return chosen;
        }
        later.into_iter().fold(Dataset::from_stage(OpenFiles { files }, vec![chosen]), Dataset::push)
    }

    /// The same data set alone, if it has no files or they are decoded.
    fn defer_decoding(self) -> Deferred {
        let caches = |stage: &Arc<dyn Stage>| stage.cache().is_some_and(|(cache, _)| *cache != Cache::Auto);
        let undecoded = self.output_schema().is_ok_and(|schema| schema.columns().iter().any(is_image));
        let deferred = match &self.node {
            _ if !undecoded || self.stages.iter().any(caches) => None,
            Some(node) => self.last_node::<OpenFiles>().map(|stage| (node.inputs[0].clone(), stage.files.clone())),
            None => DeferredDecode::of(&self.source).map(|(source, files)| (Dataset::from_source(Arc::new(source)), files)),
        };
        let Some((rows, files)) = deferred else { return Deferred { rows: self, files: Vec::new(), later: Vec::new() } };
        let of_file = |name: &str| files.iter().any(|(_, column)| column.name == *name);
        let is_later = |stage: &Arc<dyn Stage>| stage.mapped().map_or_else(|| stage.concerns_decoding(), |(column, _)| of_file(column));
        let (later, now): (Vec<_>, Vec<_>) = self.stages.into_iter().partition(is_later);
        Deferred { rows: now.into_iter().fold(rows, Dataset::push), files, later }
    }
}

/// Whether a column holds images that are not of one size yet.
pub(crate) fn is_image(column: &Column) -> bool {
    matches!(column.extent, Extent::Files | Extent::Images)
}
