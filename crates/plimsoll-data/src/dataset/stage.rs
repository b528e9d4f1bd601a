//! The interface of a stage.

use super::budget::{Holding, StreamBudget};
use super::input::{BlockIterator, Input, OneInput, RowStage, per_row};
use super::order::{Consumed, IndexStep};
use super::recipe::Recipe;
use super::settings::Settings;
use super::{Dataset, Node};
use crate::cache::{Cache, CacheBypass};
use crate::decode::ScanOptions;
use crate::meter::StageTimer;
use crate::ops::Op;
use crate::source::{FileUse, ImageScan, RowIterator, TableFacts, merge_use};
use crate::{DataError, Schema};
use plimsoll_core::{Bytes, Ledger};
use std::any::Any;
use std::hash::Hasher;
use std::sync::Arc;

/// One stage with its arguments: its name, its effect on the number and the columns of rows, its memory, and how it
/// runs.
///
/// A stage runs in one of two ways: fused with reading rows of its input by index ([`index_step`](Stage::index_step),
/// or [`compile`](Stage::compile) if it is [inline](Stage::is_inline)), or pulling rows of its inputs in sequence
/// ([`open`](Stage::open)). A stage that supports both runs by index if its input is indexed.
pub(crate) trait Stage: Any + Send + Sync {
    /// Its name and arguments, such as `skip(3)`.
    fn describe(&self) -> String;

    /// Whether it was added by the library and is not shown to users.
    fn is_implicit(&self) -> bool {
        false
    }

    // Rows by index.

    /// Whether it is always fused with reading its input.
    fn is_inline(&self) -> bool {
        false
    }

    /// Its effect as arithmetic on row indices, if it has no other.
    fn index_step(&self) -> Option<IndexStep> {
        None
    }

    /// Changes the settings, if it is a setting.
    fn set(&self, _settings: &mut Settings) -> Result<(), DataError> {
        Ok(())
    }

    /// Compiles it into the recipe that reads rows of a data set.
    fn compile(&self, recipe: &mut Recipe, _data: &Dataset) -> Result<(), DataError> {
        match self.index_step() {
            Some(step) => recipe.add_index_step(step, self.describe()),
            None => self.set(&mut recipe.settings),
        }
    }

    /// The column it maps and the operations.
    fn mapped(&self) -> Option<(&str, &[Arc<dyn Op>])> {
        None
    }

    /// Whether it is about decoding files.
    fn concerns_decoding(&self) -> bool {
        false
    }

    /// Whether it affects the content of rows, given whether rows with errors may be dropped.
    fn changes_rows(&self, _ignores_errors: bool) -> bool {
        self.index_step().is_some() || self.mapped().is_some()
    }

    /// Whether it sets the version of user code before it.
    fn sets_version(&self) -> bool {
        false
    }

    /// Its cache, and why that was disabled.
    fn cache(&self) -> Option<(&Cache, &Arc<CacheBypass>)> {
        None
    }

    // Output.

    /// Rows of an epoch, if known in advance, computed from those of its inputs: by default, all of them.
    fn rows(&self, inputs: &[Dataset], of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        let rows = inputs.iter().map(of).try_fold(0, |all: u64, rows| Some(all.saturating_add(rows?)));
        let rows = rows.filter(|_| !inputs.is_empty())?;
        Some(self.index_step().map_or(rows, |step| step.rows(rows)))
    }

    /// Upper bound of the rows of an epoch, if the exact number is unknown.
    fn max_rows(&self, inputs: &[Dataset]) -> u64 {
        let rows = inputs.iter().map(Dataset::len).reduce(u64::saturating_add);
        rows.unwrap_or(u64::MAX)
    }

    /// The columns of its rows, or why it cannot follow its inputs.
    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        first_schema(inputs, &self.describe())
    }

    /// Bytes after the columns of each of its rows.
    fn reference_bytes(&self) -> usize {
        0
    }

    /// Whether it passes rows through unchanged, so that files can be decoded after it, for the selected rows only.
    fn defers_decoding(&self) -> bool {
        self.index_step().is_some()
    }

    /// Whether it ignores the values of rows, so that a map of its output can move to its inputs.
    fn ignores_values(&self) -> bool {
        self.index_step().is_some()
    }

    /// What is known about the files of a source.
    fn facts(&self) -> Option<&TableFacts> {
        None
    }

    /// Calls `visit` with the text of a column of its files for every row, in order; returns whether there is such a
    /// column.
    fn visit_column(&self, _name: &str, _visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        Ok(false)
    }

    /// What the files of its rows are read for.
    fn file_use(&self, inputs: &[Dataset]) -> FileUse {
        merge_use(inputs.iter().map(|input| input.source.file_use()))
    }

    /// Hashes what its rows depend on, except its description and its inputs. Returns user code without a version.
    fn identify(&self, _hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        Ok(None)
    }

    /// Whether it drops rows with errors.
    fn ignores_errors(&self) -> bool {
        false
    }

    /// The number of rows it dropped in an epoch (default: the latest), and the first errors.
    fn ignored(&self, _epoch: Option<u64>) -> (u64, Vec<String>) {
        (0, Vec::new())
    }

    /// The epochs of its input that make up one of its epochs.
    fn input_epochs(&self, epoch: u64) -> Vec<u64> {
        vec![epoch]
    }

    // Resuming with another number of shards.

    /// The number of shards and the index of this one.
    fn shard(&self) -> Option<(u64, u64)> {
        None
    }

    /// This shard after `consumed` rows of an epoch.
    fn after(&self, _consumed: Consumed) -> Option<Arc<dyn Stage>> {
        None
    }

    // Rows in sequence.

    /// Its own memory, for rows of this many bytes.
    fn holdings(&self, _inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(Vec::new())
    }

    /// Number of inputs that are read at a time.
    fn open_inputs(&self, inputs: usize) -> usize {
        inputs
    }

    /// Whether each of those is read ahead by threads of its own.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Opens it; its memory is already reserved.
    fn open(&self, _inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        unreachable!("{} runs in the pass that reads its input", self.describe())
    }

    // Images in records, which are decoded when the records are read.

    /// This stage with one more operation on a column of images.
    fn with_op(&self, _column: &str, _op: &Arc<dyn Op>) -> Option<Arc<dyn Stage>> {
        None
    }

    /// This stage with a maximum number of bytes for decoding an image.
    fn with_max_item(&self, _bytes: Bytes) -> Option<Arc<dyn Stage>> {
        None
    }

    /// What the headers of its images say, read now unless that was done before.
    fn scan_images(&self, _options: &ScanOptions) -> Result<Option<Arc<ImageScan>>, DataError> {
        Ok(None)
    }

    /// The first random operation, and its column.
    fn random_op(&self) -> Option<(String, String)> {
        let (column, ops) = self.mapped()?;
        ops.iter().find(|op| op.is_random()).map(|op| (op.describe(), column.to_string()))
    }

    /// `Some` if it decodes images, with the maximum bytes for that if set.
    fn decodes(&self) -> Option<Option<Bytes>> {
        None
    }
}

/// The columns of the first input.
pub(crate) fn first_schema(inputs: &[Dataset], stage: &str) -> Result<Schema, DataError> {
    match inputs.first() {
        Some(input) => input.output_schema(),
        None => Err(DataError::Stage(format!("{stage} of no data sets has no rows; give it at least one"))),
    }
}

/// Opens a data set as the input of a stage and computes its memory.
pub(crate) trait OpenInput: Send + Sync {
    fn open(&self, data: &Dataset, budget: StreamBudget, ledger: &Ledger, timer: Arc<crate::meter::InputTimer>)
    -> Result<Input, DataError>;

    fn holdings(&self, data: &Dataset, budget: StreamBudget) -> Result<Vec<Holding>, DataError>;
}

/// The arguments of [`Stage::open`].
pub(crate) struct Opening<'o> {
    pub node: &'o Node,
    /// The budget of the inputs.
    pub budget: StreamBudget,
    pub ledger: &'o Ledger,
    pub timer: &'o StageTimer,
    pub opener: &'static dyn OpenInput,
}

impl Opening<'_> {
    /// Opens one input.
    pub fn input(&self, index: usize) -> Result<Input, DataError> {
        self.opener.open(&self.node.inputs[index], self.budget, self.ledger, self.timer.input(index))
    }

    /// Opens all inputs.
    pub fn inputs(&self) -> Result<Vec<Input>, DataError> {
        (0..self.node.inputs.len()).map(|index| self.input(index)).collect()
    }

    /// Bytes of a row of the stage.
    pub fn row_bytes(&self) -> Result<usize, DataError> {
        Ok(self.node.schema()?.row_bytes().get() + self.node.stage.reference_bytes())
    }

    /// Runs a stage that computes its rows from a single input.
    pub fn map_rows<S: RowStage + 'static>(&self, stage: S) -> Result<Box<dyn BlockIterator>, DataError> {
        self.rows(OneInput { input: self.input(0)?, stage })
    }

    /// Adapts an iterator over single rows to one over blocks.
    pub fn rows<T: RowIterator + 'static>(&self, rows: T) -> Result<Box<dyn BlockIterator>, DataError> {
        Ok(per_row(self.row_bytes()?, rows))
    }
}
