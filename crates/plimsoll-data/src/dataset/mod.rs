//! The pipeline as the user wrote it: a source and its stages, and what is known about its rows before anything runs.
//!
//! | file | what |
//! |---|---|
//! | `stage` | the interface of a stage |
//! | `node` | a sequential stage and its inputs |
//! | `deferred` | decoding files after the stages that select rows |
//! | `order` | selecting and reordering rows by arithmetic on indices |
//! | `recipe` | the compiled stages that are fused with reading rows |
//! | `scan` | reading the headers of images before planning |
//! | `settings` | settings of batches and threads |
//! | `budget` | memory budgets of sequential stages |
//! | `input` | inputs of sequential stages |
//! | `cardinality` | checks of the number of rows in an epoch |
//! | `identity` | fingerprints of rows for cache files |

mod budget;
mod cardinality;
mod deferred;
mod identity;
mod input;
mod node;
mod order;
mod recipe;
mod scan;
mod settings;
mod stage;

pub(crate) use budget::{Holding, StreamBudget};
pub(crate) use cardinality::ExpectedRows;
pub(crate) use deferred::is_image;
pub(crate) use identity::fingerprint;
pub(crate) use input::{BlockIterator, Input, RowStage};
pub(crate) use node::Node;
pub(crate) use order::{Consumed, IndexStep, Order};
pub(crate) use recipe::{CachedRows, ColumnRecipe, MAX_THREADS, Recipe};
pub(crate) use settings::{Concern, Settings, empty_batch};
pub use settings::{Parallelism, Prefetch};
pub(crate) use stage::{OpenInput, Opening, Stage, first_schema};

use crate::cache::Cache;
use crate::holdout::sorted_classes;
use crate::source::{ColumnScale, FileUse, FittedColumn, Source, Vocabulary};
use crate::{Column, DataError, Schema};
use node::NodeSource;
use plimsoll_core::DType;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A source and its stages. Building a data set reads only headers; a clone shares the source.
///
/// # Streams
/// Rows of an indexed source have random access, so any order is arithmetic and any number of threads can read them.
/// The output of stages such as [`filter`](Dataset::filter), [`from_generator`](Dataset::from_generator) and
/// [`zip`](Dataset::zip) is a stream: its rows come in sequence, always in the same order. Several threads may still
/// read ahead of such a stage, and map its output in parallel.
///
/// ```
/// use plimsoll_data::{Dataset, Prefetch, Shuffle, Split, ops::{one_hot, scale}};
/// let data = Dataset::digits(Split::Train)
///     .shuffle(Shuffle::seed(7))
///     .map("x", [scale(1.0 / 16.0)])
///     .map("y", [one_hot(10)])
///     .batch(32)
///     .prefetch(Prefetch::Auto);
/// assert_eq!((data.len(), data.batches()), (1438, 45));
/// assert_eq!(data.output_schema()?.to_string(), "x: f32[8, 8, 1], y: f32[10]");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Dataset {
    pub(crate) source: Arc<dyn Source>,
    /// Set for a stream; `source` then only provides its schema.
    pub(crate) node: Option<Arc<Node>>,
    /// The stages that are fused with reading rows.
    pub(crate) stages: Vec<Arc<dyn Stage>>,
    /// The error of a stage that depends on the schema.
    pub(crate) error: Option<DataError>,
}

impl Dataset {
    /// A data set of any source.
    pub fn from_source(source: Arc<dyn Source>) -> Dataset {
        Dataset { source, node: None, stages: Vec::new(), error: None }
    }

    /// A stream: a stage that pulls rows from its inputs.
    pub(crate) fn from_stage(stage: impl Stage, inputs: Vec<Dataset>) -> Dataset {
        Dataset::from_node(Node { stage: Arc::new(stage), inputs })
    }

    pub(crate) fn from_node(mut node: Node) -> Dataset {
        // A stream cannot read cached rows by index, so an automatic cache is dropped.
        let is_free = |stage: &Arc<dyn Stage>| stage.cache().is_some_and(|(cache, _)| *cache == Cache::Auto);
        node.inputs.iter_mut().for_each(|input| input.stages.retain(|stage| !is_free(stage)));
        // The first error is reported.
        let error = node.inputs.iter().find_map(|input| input.error.clone());
        match error.map_or_else(|| node.schema(), Err) {
            Ok(schema) => {
                let node = Arc::new(node);
                let source = Arc::new(NodeSource { node: Arc::clone(&node), schema });
                Dataset { source, node: Some(node), stages: Vec::new(), error: None }
            }
            Err(error) => Dataset::invalid(error),
        }
    }

    /// A data set that only reports an error.
    pub(crate) fn invalid(error: DataError) -> Dataset {
        let schema = Schema::new(vec![Column::new("x", DType::U8, [])]).expect("one column");
        let nothing = crate::source::Function::new(schema, 0, |_, _| Ok(()));
        Dataset { error: Some(error), ..Dataset::from(nothing) }
    }

    /// Appends a stage: fused with reading rows where possible, otherwise as a stream.
    pub(crate) fn then(self, stage: impl Stage) -> Dataset {
        if stage.is_inline() || self.node.is_none() && stage.index_step().is_some() {
            return self.push(Arc::new(stage));
        }
        match stage.defers_decoding() {
            true => self.before_decoding(stage),
            false => Dataset::from_stage(stage, vec![self]),
        }
    }

    /// Appends a stage that is fused with reading rows.
    pub(crate) fn push(mut self, stage: Arc<dyn Stage>) -> Dataset {
        self.stages.push(stage);
        self
    }

    /// Sets an error, which is reported when the stages are checked.
    pub(crate) fn with_error(self, error: DataError) -> Dataset {
        Dataset { error: Some(self.error.unwrap_or(error)), ..self }
    }

    /// The last sequential stage, if it is of this type.
    pub(crate) fn last_node<S: Stage>(&self) -> Option<&S> {
        (&*self.node.as_ref()?.stage as &dyn Any).downcast_ref()
    }

    /// The settings made by all stages; invalid ones are ignored here.
    pub(crate) fn settings(&self) -> Settings {
        let mut settings = Settings::default();
        self.stages.iter().for_each(|stage| _ = stage.set(&mut settings));
        settings
    }

    fn index_steps(&self) -> Vec<IndexStep> {
        self.stages.iter().filter_map(|stage| stage.index_step()).collect()
    }

    /// Whether batches come in row order, see [`deterministic`](Dataset::deterministic).
    pub fn is_deterministic(&self) -> bool {
        self.settings().is_ordered()
    }

    /// The class names of labels 0, 1, 2 …, if the source has them.
    pub fn class_names(&self) -> Vec<String> {
        self.source.class_names()
    }

    /// Describes files of the source that were skipped, if any, such as files in an image folder without an image
    /// extension.
    pub fn skipped_files(&self) -> Option<String> {
        self.source.skipped_files()
    }

    /// Which columns of its files are read, and which are not.
    pub fn file_use(&self) -> FileUse {
        self.source.file_use()
    }

    /// The statistics that columns are standardized with: part of a model that is trained on them.
    pub fn scales(&self) -> Vec<ColumnScale> {
        self.source.scales()
    }

    /// The columns of a table as they were fitted: part of a model that is trained on them.
    pub fn fitted_columns(&self) -> Vec<FittedColumn> {
        self.source.fitted_columns()
    }

    /// Whether something of its columns was fitted to rows, such as a mean or a vocabulary.
    pub fn is_fitted(&self) -> bool {
        self.fitted_columns().iter().any(FittedColumn::is_fitted)
    }

    /// A row of an indexed source in words, for errors: its file and line, or its index and the source.
    pub fn row_name(&self, row: u64) -> Option<String> {
        self.node.is_none().then(|| self.source.row_name(row))
    }

    /// What is unusual about the selection of rows, in words.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Tensor};
    /// let sorted = Dataset::from_tensor_slices([("y", Tensor::i32([4], [0, 0, 1, 2])?)])?;
    /// assert_eq!(
    ///     sorted.take(3).warnings()?,
    ///     ["take(3) keeps 2 of 3 classes, because the rows are sorted by class; use holdout, shard, or shuffle before it"]
    /// );
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn warnings(&self) -> Result<Vec<String>, DataError> {
        // Only rows of the source before they are reordered are in its order.
        let Some(stage) = self.stages.iter().find(|stage| stage.index_step().is_some()).filter(|_| self.node.is_none()) else {
            return Ok(Vec::new());
        };
        let Some(IndexStep::Truncate(rows)) = stage.index_step() else { return Ok(Vec::new()) };
        let found = sorted_classes(rows, self.source.len(), &|visit| self.source.classes(visit))?;
        let warning = found.filter(|(first, all)| first < all).map(|(first, all)| {
            let what = format!("{} keeps {first} of {all} classes, because the rows are sorted by class", stage.describe());
            format!("{what}; use holdout, shard, or shuffle before it")
        });
        Ok(warning.into_iter().collect())
    }

    /// The vocabulary, if the source is a text.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.source.vocabulary()
    }

    /// The order of rows, including seeds. A saved position is valid only for the same order.
    pub fn order(&self) -> Result<String, DataError> {
        let recipe = self.recipe()?;
        Ok(self.node.as_ref().map_or_else(|| recipe.order(), |node| node.order()))
    }

    /// Rows in one epoch. For a [stream](Dataset#streams) of unknown length, an upper bound, which may be `u64::MAX`.
    pub fn len(&self) -> u64 {
        let rows = self.rows_before_stages(false);
        self.rows_after_stages(rows.unwrap_or_else(|| self.node.as_ref().map_or(u64::MAX, |node| node.max_rows())))
    }

    /// Rows in one epoch, if known in advance.
    pub fn size(&self) -> Option<u64> {
        self.rows_before_stages(false).map(|rows| self.rows_after_stages(rows))
    }

    /// Rows in one epoch if no row fails, that is, including those that [`ignore_errors`](Dataset::ignore_errors) may
    /// drop.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let data = Dataset::range(0, 10, 1)?.ignore_errors(3);
    /// assert_eq!((data.size(), data.size_if_readable()), (None, Some(10)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn size_if_readable(&self) -> Option<u64> {
        self.rows_before_stages(true).map(|rows| self.rows_after_stages(rows))
    }

    fn rows_before_stages(&self, readable: bool) -> Option<u64> {
        match &self.node {
            Some(node) => self.settings().cardinality.or_else(|| node.rows(readable)),
            None => Some(self.source.len()),
        }
    }

    fn rows_after_stages(&self, rows: u64) -> u64 {
        let rows = order::rows_after(rows, &self.index_steps());
        self.settings().whole_batches().map_or(rows, |batch| rows - rows % batch.max(1) as u64)
    }

    /// Whether every batch is full, because of [`drop_remainder`](Dataset::drop_remainder).
    pub fn drops_remainder(&self) -> bool {
        self.settings().whole_batches().is_some()
    }

    /// Whether an epoch has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows per batch, if set.
    pub fn batch_size(&self) -> Option<usize> {
        self.settings().batch
    }

    /// Batches in one epoch, including a partial last one; the number of rows if no batch size is set.
    pub fn batches(&self) -> u64 {
        self.len().div_ceil(self.batch_size().unwrap_or(1).max(1) as u64)
    }

    /// The columns of a batch, or the first error of a stage.
    pub fn output_schema(&self) -> Result<Schema, DataError> {
        Ok(self.recipe()?.schema)
    }

    /// The origin of the row at position `place` of an epoch, both counted from 0: its index in the source, and the
    /// source. `None` for streams.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Shuffle, Split};
    /// let data = Dataset::digits(Split::Test).skip(100).take(1).shuffle(Shuffle::seed(7)).batch(32);
    /// assert_eq!(data.origin(3, 0), Some((100, "digits (test)".to_string())));
    /// ```
    pub fn origin(&self, epoch: u64, place: u64) -> Option<(u64, String)> {
        let recipe = self.recipe().ok()?;
        if recipe.node.is_some() || recipe.settings.row_errors.is_some() || place >= recipe.rows {
            return None;
        }
        let mut order = Order::new(recipe.source.len(), &recipe.index_steps, recipe.consumed);
        order.set_epoch(epoch);
        Some((order.row(place), self.source.describe()))
    }

    /// Whether an epoch has this row of the source, as far as selections of indexed rows say.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let (training, held_out) = Dataset::range(0, 10, 1)?.holdout(0.3, 7)?;
    /// assert!((0..10).all(|row| training.has_source_row(row) != held_out.has_source_row(row)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn has_source_row(&self, row: u64) -> bool {
        let upstream = self.node.iter().flat_map(|node| node.stages()).filter_map(|stage| stage.index_step());
        let part = |step: IndexStep| if let IndexStep::Part(part) = step { part.place(row).is_some() } else { true };
        self.index_steps().into_iter().chain(upstream).all(part)
    }

    /// The source and the stages in one line.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Shuffle, Split, ops::scale};
    /// let data = Dataset::digits(Split::Test).shuffle(Shuffle::seed(7)).take(100).map("x", [scale(0.0625)]).batch(32);
    /// assert_eq!(data.describe(), "digits (test) → shuffle(seed 7) → take(100) → map(x: scale(0.0625)) → batch(32)");
    /// ```
    pub fn describe(&self) -> String {
        let stages = self.stages.iter().filter(|stage| !stage.is_implicit());
        stages.fold(self.source.describe(), |text, stage| text + " → " + &stage.describe())
    }

    /// The number of rows that [`ignore_errors`](Dataset::ignore_errors) dropped so far in the epoch being read, and
    /// the errors of the first hundred.
    pub fn ignored(&self) -> (u64, Vec<String>) {
        self.node.as_ref().map(|node| node.ignored(None)).unwrap_or_default()
    }

    /// The number of rows that [`ignore_errors`](Dataset::ignore_errors) dropped in an epoch, counted from 0, and
    /// their errors. Once a later epoch has begun (which prefetching may do early), only the first error is retained;
    /// after some hundred epochs nothing is.
    pub fn ignored_in(&self, epoch: u64) -> (u64, Vec<String>) {
        self.node.as_ref().map(|node| node.ignored(Some(epoch))).unwrap_or_default()
    }
}

impl<S: Source + 'static> From<S> for Dataset {
    fn from(source: S) -> Dataset {
        Dataset::from_source(Arc::new(source))
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Dataset({})", self.describe())
    }
}
