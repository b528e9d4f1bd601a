//! What the pipeline asks of a stage.

use super::budget::{Holding, StreamBudget};
use super::input::{BlockIterator, Input, OneInput, RowStage, per_row};
use super::order::{Consumed, IndexStep};
use super::recipe::Recipe;
use super::settings::Settings;
use super::{Dataset, Node};
use crate::cache::{Cache, CacheBypass};
use crate::meter::StageTimer;
use crate::ops::Op;
use crate::source::RowIterator;
use crate::{DataError, Schema};
use plimsoll_core::{Bytes, Ledger};
use std::any::Any;
use std::hash::Hasher;
use std::sync::Arc;

/// One stage with its arguments: what it is called, what it does to the number and the columns of rows, what it holds, and how it runs.
///
/// A stage runs in one of two ways. In the pass that reads rows of its input by number ([`index_step`](Stage::index_step), or
/// [`compile`](Stage::compile) where it is [inline](Stage::is_inline)), or pulling rows of its inputs one after the other
/// ([`open`](Stage::open)). A stage that can do both runs by number wherever the rows of its input have numbers.
pub(crate) trait Stage: Any + Send + Sync {
    /// Its name and arguments, such as `skip(3)`.
    fn describe(&self) -> String;

    /// Whether it is no stage that a user wrote, and so is not shown.
    fn is_implicit(&self) -> bool {
        false
    }

    // Rows by number.

    /// Whether it always runs in the pass that reads its input.
    fn is_inline(&self) -> bool {
        false
    }

    /// Its rows as arithmetic on row numbers, if that is all it does.
    fn index_step(&self) -> Option<IndexStep> {
        None
    }

    /// Changes the settings, where it is one of them.
    fn set(&self, _settings: &mut Settings) -> Result<(), DataError> {
        Ok(())
    }

    /// Adds what it does to rows to the pass that reads those of a data set.
    fn compile(&self, recipe: &mut Recipe, _data: &Dataset) -> Result<(), DataError> {
        match self.index_step() {
            Some(step) => recipe.add_index_step(step, self.describe()),
            None => self.set(&mut recipe.settings),
        }
    }

    /// The column it maps and with what.
    fn mapped(&self) -> Option<(&str, &[Arc<dyn Op>])> {
        None
    }

    /// Whether it is about how files are decoded.
    fn concerns_decoding(&self) -> bool {
        false
    }

    /// Whether what it says is part of what a row is, where rows with errors may be left out or not.
    fn changes_rows(&self, _ignores_errors: bool) -> bool {
        self.index_step().is_some() || self.mapped().is_some()
    }

    /// Whether it says which version of user code makes the rows up to here.
    fn sets_version(&self) -> bool {
        false
    }

    /// Where it caches rows, and why it does not.
    fn cache(&self) -> Option<(&Cache, &Arc<CacheBypass>)> {
        None
    }

    // What comes out.

    /// Rows of an epoch, where that is known beforehand, by the rows of its inputs.
    fn rows(&self, inputs: &[Dataset], of: &dyn Fn(&Dataset) -> Option<u64>) -> Option<u64> {
        let rows = of(inputs.first()?)?;
        Some(self.index_step().map_or(rows, |step| step.rows(rows)))
    }

    /// The most rows an epoch can have, where it is not known how many.
    fn max_rows(&self, inputs: &[Dataset]) -> u64 {
        inputs.first().map_or(u64::MAX, Dataset::len)
    }

    /// The columns of its rows, or why it cannot follow its inputs.
    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        first_schema(inputs, &self.describe())
    }

    /// Bytes behind the columns of each of its rows.
    fn reference_bytes(&self) -> usize {
        0
    }

    /// Whether it hands on rows as they are, so that files need to be opened only for the rows that it hands on.
    fn defers_decoding(&self) -> bool {
        false
    }

    /// Whether it hands on rows without looking at them, so that a map of its output is a map of its inputs.
    fn ignores_values(&self) -> bool {
        false
    }

    /// Feeds `hash` with what its rows depend on, apart from its description and its inputs. Returns user code whose version is not known.
    fn identify(&self, _hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        Ok(None)
    }

    /// Whether it leaves out rows with errors.
    fn ignores_errors(&self) -> bool {
        false
    }

    /// How many it left out of an epoch, or of the latest, and what was wrong with the first.
    fn ignored(&self, _epoch: Option<u64>) -> (u64, Vec<String>) {
        (0, Vec::new())
    }

    /// The epochs of its input that one of its epochs consists of.
    fn input_epochs(&self, epoch: u64) -> Vec<u64> {
        vec![epoch]
    }

    // Resuming with another number of shards.

    /// How many shards there are and which this is.
    fn shard(&self) -> Option<(u64, u64)> {
        None
    }

    /// The same shard where others have consumed some rows of an epoch.
    fn after(&self, _consumed: Consumed) -> Option<Arc<dyn Stage>> {
        None
    }

    // Rows one after the other.

    /// What it holds itself, for rows of this many bytes.
    fn holdings(&self, _inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(Vec::new())
    }

    /// How many of its inputs are read at a time.
    fn open_inputs(&self, inputs: usize) -> usize {
        inputs
    }

    /// Whether each of those has threads of its own that read ahead.
    fn reads_ahead(&self) -> bool {
        false
    }

    /// Its rows; what it holds has been reserved.
    fn open(&self, _inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        unreachable!("{} runs in the pass that reads its input", self.describe())
    }

    // Images in records, which are decoded where they are read.

    /// The same with one more operation on a column of images.
    fn with_op(&self, _column: &str, _op: &Arc<dyn Op>) -> Option<Arc<dyn Stage>> {
        None
    }

    /// The same with the most that decoding an image may take.
    fn with_max_item(&self, _bytes: Bytes) -> Option<Arc<dyn Stage>> {
        None
    }

    /// The first random operation on them, and its column.
    fn random_op(&self) -> Option<(String, String)> {
        None
    }

    /// The most that decoding an image may take, if it was said, where it decodes images.
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

/// What opens a data set as the input of a stage, and says what that holds.
pub(crate) trait OpenInput: Send + Sync {
    fn open(&self, data: &Dataset, budget: StreamBudget, ledger: &Ledger, timer: Arc<crate::meter::InputTimer>)
    -> Result<Input, DataError>;

    fn holdings(&self, data: &Dataset, budget: StreamBudget) -> Result<Vec<Holding>, DataError>;
}

/// What a stage is opened with.
pub(crate) struct Opening<'o> {
    pub node: &'o Node,
    /// What the inputs may hold.
    pub budget: StreamBudget,
    pub ledger: &'o Ledger,
    pub timer: &'o StageTimer,
    pub opener: &'static dyn OpenInput,
}

impl Opening<'_> {
    /// The rows of an input.
    pub fn input(&self, index: usize) -> Result<Input, DataError> {
        self.opener.open(&self.node.inputs[index], self.budget, self.ledger, self.timer.input(index))
    }

    /// The rows of all inputs.
    pub fn inputs(&self) -> Result<Vec<Input>, DataError> {
        (0..self.node.inputs.len()).map(|index| self.input(index)).collect()
    }

    /// Bytes of a row of the stage.
    pub fn row_bytes(&self) -> Result<usize, DataError> {
        Ok(self.node.schema()?.row_bytes().get() + self.node.stage.reference_bytes())
    }

    /// The rows that a stage makes of those of its only input.
    pub fn map_rows<S: RowStage + 'static>(&self, stage: S) -> Result<Box<dyn BlockIterator>, DataError> {
        self.rows(OneInput { input: self.input(0)?, stage })
    }

    /// Rows that come one at a time, in blocks.
    pub fn rows<T: RowIterator + 'static>(&self, rows: T) -> Result<Box<dyn BlockIterator>, DataError> {
        Ok(per_row(self.row_bytes()?, rows))
    }
}
