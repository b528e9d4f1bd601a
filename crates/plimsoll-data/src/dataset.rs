//! The builder people use: a source and what is done to its rows, in the order it is written.

mod sources;

use crate::cache::{Cache, Note};
use crate::fault::Notes;
use crate::mix::Mix;
use crate::ops::Op;
use crate::order::{self, Order, Reorder, Shuffle};
use crate::recipe;
use crate::source::{Source, Vocabulary};
use crate::stream::Spec;
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::fmt;
use std::sync::Arc;

/// A source and the stages its rows pass. Building one reads nothing but headers; a clone shares the source.
///
/// # Streams
/// Rows of a source have numbers, so that any order of them is arithmetic and any number of threads can make them. What user code keeps,
/// makes or puts together ([`filter`](Dataset::filter), [`from_generator`](Dataset::from_generator), [`zip`](Dataset::zip) …) is a stream:
/// its rows come one after the other, always in the same order. Several threads may still make what is before such a stage, and map what comes
/// out of it.
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
    /// Where rows come one after the other; the source then only has their schema.
    pub(crate) stream: Option<Arc<Spec>>,
    pub(crate) stages: Vec<Stage>,
    /// What is wrong with a stage that had to know its columns.
    pub(crate) broken: Option<DataError>,
}

/// One stage as it was written; whether it makes sense there is checked when all are known.
#[derive(Clone)]
pub(crate) enum Stage {
    Reorder(Reorder),
    Map {
        column: String,
        ops: Vec<Arc<dyn Op>>,
    },
    Batch(usize),
    /// Every batch has this many rows, or as many as a batch has.
    DropRemainder(Option<usize>),
    /// What cannot be made is marked and noted, not told.
    Tolerate(Arc<Notes>),
    Cardinality(u64),
    Prefetch(Prefetch),
    Parallelism(Parallelism),
    MaxItem(Bytes),
    /// Where rows are kept, and why they are not, if so.
    Cache(Cache, Arc<Note>),
    /// Of user code before it.
    Version(String),
    /// Of the rows of a batch of this many, or of as many as a batch has.
    Mix(Mix, Option<usize>),
    /// What rows of differing length are padded with.
    Pad(f32),
    /// If not, rows of a batch stay together, and so do those of batches that were of so many rows before.
    Deterministic(bool, Option<usize>),
}

/// How many threads make rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// One for each core where pictures are decoded or an operation [takes long](crate::ops::Op::takes_long), as user code does; of those, as
    /// many work as the consumer needs. A single one where rows only have to be copied.
    Auto,
    /// This many.
    Threads(usize),
}

/// How far ahead of the consumer batches are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// As far as it pays, within the plan's limit.
    Auto,
    /// This many batches.
    Batches(usize),
}

impl Dataset {
    /// Puts the rows that reach this stage into a new random order each epoch. Exact, and takes no memory; only of a
    /// [stream](Dataset#streams) it is as good as a buffer of 16 MiB allows (see [`shuffle_buffer`](Dataset::shuffle_buffer)).
    pub fn shuffle(self, shuffle: Shuffle) -> Dataset {
        if self.stream.is_some() {
            return self.shuffle_buffer(shuffle, Bytes::mib(16));
        }
        self.stage(Stage::Reorder(Reorder::Shuffle(shuffle)))
    }

    /// Leaves out the first `rows` rows.
    pub fn skip(self, rows: u64) -> Dataset {
        if self.stream.is_some() {
            return self.before_files(|input| Spec::Skip { input, rows });
        }
        self.stage(Stage::Reorder(Reorder::Skip(rows)))
    }

    /// Keeps the first `rows` rows.
    pub fn take(self, rows: u64) -> Dataset {
        if self.stream.is_some() {
            return self.before_files(|input| Spec::Take { input, rows });
        }
        self.stage(Stage::Reorder(Reorder::Take(rows)))
    }

    /// Keeps one row of each `count`, beginning with row `index`: the part of one of `count` machines.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let shards: Vec<u64> = (0..3).map(|index| Ok(Dataset::range(0, 10, 1)?.shard(3, index).len())).collect::<Result<_, plimsoll_data::DataError>>()?;
    /// assert_eq!(shards, [4, 3, 3]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn shard(self, count: u64, index: u64) -> Dataset {
        if index >= count {
            let problem = format!("shard({count}, {index}) is none of {count}; number them from 0");
            return Dataset { broken: Some(DataError::Stage(problem)), ..self };
        }
        if self.stream.is_some() {
            return self.before_files(|input| Spec::Shard { input, count, index, begun: None });
        }
        self.stage(Stage::Reorder(Reorder::Shard { count, index }))
    }

    /// All rows `times` times in one epoch. Rows shuffled before are in another order each time.
    pub fn repeat(self, times: u64) -> Dataset {
        if self.stream.is_some() {
            return self.before_files(|input| Spec::Repeat { input, times });
        }
        self.stage(Stage::Reorder(Reorder::Repeat(times)))
    }

    /// Applies the [operations](crate::ops) to a column, one after the other.
    pub fn map(self, column: &str, ops: impl IntoIterator<Item = Arc<dyn Op>>) -> Dataset {
        if self.stream.is_some() {
            return self.map_stream(column, ops.into_iter().collect());
        }
        self.stage(Stage::Map { column: column.to_string(), ops: ops.into_iter().collect() })
    }

    /// Hands out `rows` rows at a time; the last batch of an epoch has what is left.
    pub fn batch(self, rows: usize) -> Dataset {
        self.stage(Stage::Batch(rows))
    }

    /// Leaves out the last batch of an epoch if it is not whole.
    pub fn drop_remainder(self) -> Dataset {
        self.stage(Stage::DropRemainder(None))
    }

    /// The same rows in the same order, handed out `rows` at a time whatever was said before. What was said of whole batches goes on being
    /// true of the batches there were: those are dropped if they are not whole, mixed, or overtaken.
    ///
    /// ```
    /// use plimsoll_core::Ledger;
    /// use plimsoll_data::{Dataset, DataError, Feed, Mix, Options, Split, ops::{one_hot, scale}};
    /// let digits = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]).batch(32).mix(Mix::up(0.2));
    /// let first = |data: &Dataset, bytes: usize| {
    ///     let mut feed = Feed::start(data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    ///     Ok::<_, DataError>(feed.next()?.unwrap().column(0)[..bytes].to_vec())
    /// };
    /// let eight_rows = 8 * 64 * 4;
    /// assert_eq!(first(&digits, eight_rows)?, first(&digits.clone().rebatch(8), eight_rows)?);
    /// # Ok::<(), DataError>(())
    /// ```
    pub fn rebatch(mut self, rows: usize) -> Dataset {
        let before = self.batch_size();
        if before == Some(0) {
            self.broken.get_or_insert_with(recipe::empty_batch);
        }
        for stage in &mut self.stages {
            match stage {
                Stage::DropRemainder(batch @ None) | Stage::Mix(_, batch @ None) => *batch = before,
                Stage::Deterministic(_, unbroken) => *unbroken = Some(common(unbroken.unwrap_or(1), before.unwrap_or(1))),
                _ => {}
            }
        }
        self.stages.retain(|stage| !matches!(stage, Stage::Batch(_)));
        self.batch(rows)
    }

    /// The same without what concerns its batches alone: each row comes, and in its place.
    pub(crate) fn row_by_row(mut self) -> Dataset {
        self.stages.retain(|stage| !matches!(stage, Stage::DropRemainder(_) | Stage::Deterministic(..)));
        self
    }

    /// How far ahead batches are made; [`Prefetch::Auto`] unless said.
    pub fn prefetch(self, prefetch: Prefetch) -> Dataset {
        self.stage(Stage::Prefetch(prefetch))
    }

    /// How many threads make rows; [`Parallelism::Auto`] unless said. What comes out is the same. It is about rows as far as the next stage
    /// that gives a [stream](Dataset#streams), and behind one about the maps up to the next: threads take turns to take rows out of a stream,
    /// and map them side by side.
    pub fn parallelism(self, parallelism: Parallelism) -> Dataset {
        self.stage(Stage::Parallelism(parallelism))
    }

    /// The most memory that reading and decoding a single file may take on each thread. Unless said, 128 MiB, or less where a limit asks
    /// for it. A file that needs more is an error that names it.
    pub fn max_item(self, bytes: Bytes) -> Dataset {
        if self.stream.is_some() {
            return self.max_item_of_stream(bytes);
        }
        self.stage(Stage::MaxItem(bytes))
    }

    /// Mixes the rows of each batch in pairs: see [`Mix`]. It takes no memory.
    pub fn mix(self, mix: Mix) -> Dataset {
        self.stage(Stage::Mix(mix, None))
    }

    /// Whether batches come in the order of their rows, as they do unless said. If not, a batch with a row that takes long is overtaken by
    /// those after it within an epoch; each has the same rows as before. A position inside such an epoch cannot be resumed from.
    pub fn deterministic(self, deterministic: bool) -> Dataset {
        self.stage(Stage::Deterministic(deterministic, None))
    }

    /// Whether batches come in the order of their rows, see [`deterministic`](Dataset::deterministic).
    pub fn is_deterministic(&self) -> bool {
        let said = self.stages.iter().rev().find_map(|stage| match stage {
            Stage::Deterministic(deterministic, _) => Some(*deterministic),
            _ => None,
        });
        said.unwrap_or(true)
    }

    /// What the labels 0, 1, 2 … stand for, if the source knows.
    pub fn class_names(&self) -> Vec<String> {
        self.source.class_names()
    }

    /// What lies among the files of the source and is none of its rows, in words, if there is any: such as files in a folder of pictures
    /// that are not called like one.
    pub fn passed_over(&self) -> Option<String> {
        self.source.passed_over()
    }

    /// The characters that numbers stand for, if the source is a text.
    pub fn vocabulary(&self) -> Option<&Vocabulary> {
        self.source.vocabulary()
    }

    pub(crate) fn stage(mut self, stage: Stage) -> Dataset {
        self.stages.push(stage);
        self
    }

    /// How rows are reordered, seeds included: what has to be the same for a saved position to mean the same.
    pub fn order(&self) -> Result<String, DataError> {
        let recipe = self.recipe()?;
        Ok(self.stream.as_ref().map_or_else(|| recipe.order(), |spec| spec.order()))
    }

    /// Rows in one epoch; of a [stream](Dataset#streams) that does not know, the most it can have, which may be `u64::MAX`.
    pub fn len(&self) -> u64 {
        self.rows_after_stages(
            self.size_before_stages(false).unwrap_or_else(|| self.stream.as_ref().map_or(u64::MAX, |spec| spec.at_most())),
        )
    }

    /// Rows in one epoch, where that is known beforehand.
    pub fn size(&self) -> Option<u64> {
        self.size_before_stages(false).map(|rows| self.rows_after_stages(rows))
    }

    /// The same if every row can be read: with those that [`ignore_errors`](Dataset::ignore_errors) may leave out.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let data = Dataset::range(0, 10, 1)?.ignore_errors(3);
    /// assert_eq!((data.size(), data.size_if_readable()), (None, Some(10)));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn size_if_readable(&self) -> Option<u64> {
        self.size_before_stages(true).map(|rows| self.rows_after_stages(rows))
    }

    fn size_before_stages(&self, readable: bool) -> Option<u64> {
        let said = self.stages.iter().rev().find_map(|stage| match stage {
            Stage::Cardinality(rows) => Some(*rows),
            _ => None,
        });
        match &self.stream {
            Some(spec) => said.or_else(|| spec.size(readable)),
            None => Some(self.source.len()),
        }
    }

    fn rows_after_stages(&self, rows: u64) -> u64 {
        let reorders = self.stages.iter().filter_map(|stage| match stage {
            Stage::Reorder(reorder) => Some(*reorder),
            _ => None,
        });
        let rows = order::length(rows, reorders);
        self.whole_batches().map_or(rows, |batch| rows - rows % batch.max(1) as u64)
    }

    /// Whether every batch is whole, because of [`drop_remainder`](Dataset::drop_remainder).
    pub fn drops_remainder(&self) -> bool {
        self.whole_batches().is_some()
    }

    /// The batch size that no batch may fall short of.
    pub(crate) fn whole_batches(&self) -> Option<usize> {
        self.stages.iter().find_map(|stage| match stage {
            Stage::DropRemainder(Some(batch)) => Some(*batch),
            Stage::DropRemainder(None) => self.batch_size(),
            _ => None,
        })
    }

    /// Whether an epoch has no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Rows in a batch, if it was said.
    pub fn batch_size(&self) -> Option<usize> {
        self.stages.iter().find_map(|stage| match stage {
            Stage::Batch(rows) => Some(*rows),
            _ => None,
        })
    }

    /// Batches in one epoch, the ragged last one included; single rows if no batch size was said.
    pub fn batches(&self) -> u64 {
        self.len().div_ceil(self.batch_size().unwrap_or(1).max(1) as u64)
    }

    /// The columns of a batch, or what is wrong with the stages.
    pub fn output_schema(&self) -> Result<Schema, DataError> {
        Ok(self.recipe()?.schema)
    }

    /// Where the row at a place of an epoch, both counted from 0, comes from: its number in the source, and what the source is. None where
    /// rows have no numbers.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Shuffle, Split};
    /// let data = Dataset::digits(Split::Test).skip(100).take(1).shuffle(Shuffle::seed(7)).batch(32);
    /// assert_eq!(data.origin(3, 0), Some((100, "digits (test)".to_string())));
    /// ```
    pub fn origin(&self, epoch: u64, place: u64) -> Option<(u64, String)> {
        let recipe = self.recipe().ok()?;
        if recipe.stream.is_some() || recipe.tolerate.is_some() || place >= recipe.rows {
            return None;
        }
        let mut order = Order::new(recipe.source.len(), &recipe.reorders, recipe.begun);
        order.set_epoch(epoch);
        Some((order.row(place), self.source.describe()))
    }

    /// The source and the stages in one line.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Shuffle, Split, ops::scale};
    /// let data = Dataset::digits(Split::Test).shuffle(Shuffle::seed(7)).take(100).map("x", [scale(0.0625)]).batch(32);
    /// assert_eq!(data.describe(), "digits (test) → shuffle(seed 7) → take(100) → map(x: scale(0.0625)) → batch(32)");
    /// ```
    pub fn describe(&self) -> String {
        let mut text = self.source.describe();
        // What belongs to the stage that follows says nothing by itself.
        for stage in self.stages.iter().filter(|stage| !matches!(stage, Stage::Tolerate(_))) {
            text += &format!(" → {stage}");
        }
        text
    }
}

/// The fewest rows that are whole batches of either size. What is too many for a number is too many for a plan.
pub(crate) fn common(one: usize, other: usize) -> usize {
    let (one, other) = (one.max(1), other.max(1));
    let (mut divisor, mut rest) = (one, other);
    while rest > 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (one / divisor).saturating_mul(other)
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

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stage::Reorder(reorder) => write!(f, "{reorder}"),
            Stage::Map { column, ops } => {
                let ops: Vec<String> = ops.iter().map(|op| op.describe()).collect();
                write!(f, "map({column}: {})", ops.join(", "))
            }
            Stage::Batch(rows) => write!(f, "batch({rows})"),
            Stage::DropRemainder(_) => write!(f, "drop_remainder"),
            Stage::Tolerate(_) => write!(f, "tolerate"),
            Stage::Cardinality(rows) => write!(f, "assert_cardinality({rows})"),
            Stage::Parallelism(Parallelism::Auto) => write!(f, "parallelism(auto)"),
            Stage::Parallelism(Parallelism::Threads(n)) => write!(f, "parallelism({n})"),
            Stage::MaxItem(bytes) => write!(f, "max_item({bytes})"),
            Stage::Cache(cache, _) => write!(f, "{cache}"),
            Stage::Version(version) => write!(f, "version({version})"),
            Stage::Mix(mix, _) => write!(f, "{mix}"),
            Stage::Pad(value) => write!(f, "pad({value})"),
            Stage::Deterministic(deterministic, _) => write!(f, "deterministic({deterministic})"),
            Stage::Prefetch(Prefetch::Auto) => write!(f, "prefetch(auto)"),
            Stage::Prefetch(Prefetch::Batches(n)) => write!(f, "prefetch({n})"),
        }
    }
}
