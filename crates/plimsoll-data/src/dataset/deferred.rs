//! Decodes files after the stages that select rows: these stages see row indices in place of files, so that only the
//! files of selected rows are read and decoded.

use super::Dataset;
use super::input::{BlockIterator, Input, RowStage};
use super::stage::{Opening, Stage, first_schema};
use crate::cache::Cache;
use crate::fault::Fault;
use crate::schema::Extent;
use crate::source::{DeferredDecode, REFERENCE_BYTES};
use crate::{Column, DataError, Schema};
use std::sync::Arc;

/// Opens the files of rows that end with a row index. Holds the columns of files with their positions.
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
        // The row index.
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

/// Passes the rows of an input through.
struct AllRows;

impl RowStage for AllRows {
    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        input.copy(out)
    }
}

/// A data set with row indices in place of files, its columns of files with their positions, and the stages about
/// files.
struct Deferred {
    rows: Dataset,
    files: Vec<(usize, Column)>,
    later: Vec<Arc<dyn Stage>>,
}

impl Dataset {
    /// Adds a stage that passes rows through unchanged, with row indices in place of files that are not decoded yet.
    /// Maps of files and decode settings before the stage are moved after it.
    pub(super) fn before_decoding(self, stage: impl Stage) -> Dataset {
        let Deferred { rows, files, later } = self.defer_decoding();
        let chosen = Dataset::from_stage(stage, vec![rows]);
        if files.is_empty() || chosen.error.is_some() {
            return chosen;
        }
        later.into_iter().fold(Dataset::from_stage(OpenFiles { files }, vec![chosen]), Dataset::push)
    }

    /// Replaces files by row indices; returns the data set unchanged if it has no files or they are decoded.
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

/// Whether a column holds images without a fixed size.
pub(crate) fn is_image(column: &Column) -> bool {
    matches!(column.extent, Extent::Files | Extent::Images)
}
