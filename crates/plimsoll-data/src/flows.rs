//! The stages that turn rows with numbers into rows that come one after the other.

use crate::dataset::{Dataset, Stage};
use crate::order::Shuffle;
use crate::source::{Elements, Generator, SequentialSource, Tensor};
use crate::stream::{Flow, Ignored, Predicate, Spec};
use crate::{Cache, Column, Condition, DataError, Extent, Feed, Options, Row, Schema, Source};
use plimsoll_core::{Bytes, DType, Ledger};
use std::sync::Arc;

impl Dataset {
    /// Rows that iterators give: `make(epoch)` is asked for one each epoch, and each row is one tensor for each column of `schema`.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// use plimsoll_data::{Column, Dataset, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::new("x", DType::F32, [2]), Column::new("y", DType::I32, [])])?;
    /// let data = Dataset::from_generator(schema, |_epoch| {
    ///     (0..100).map(|n| Ok(vec![Tensor::f32([2], [n as f32, 0.5])?, Tensor::i32([], [n])?]))
    /// });
    /// assert_eq!((data.size(), data.batch(32).count_rows()?), (None, 100));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn from_generator<F, I>(schema: Schema, make: F) -> Dataset
    where
        F: Fn(u64) -> I + Send + Sync + 'static,
        I: Iterator<Item = Result<Vec<Tensor>, DataError>> + Send + 'static,
    {
        Dataset::from_generator_holding(schema, Bytes::ZERO, make)
    }

    /// The same for iterators that hold some memory themselves, which the plan then counts.
    pub fn from_generator_holding<F, I>(schema: Schema, held: Bytes, make: F) -> Dataset
    where
        F: Fn(u64) -> I + Send + Sync + 'static,
        I: Iterator<Item = Result<Vec<Tensor>, DataError>> + Send + 'static,
    {
        Dataset::from_sequential(Generator::source(schema, held, Arc::new(move |epoch| -> Elements { Box::new(make(epoch)) })))
    }

    /// The rows of a source that come one after the other.
    pub(crate) fn from_sequential(source: SequentialSource) -> Dataset {
        let rows = source.rows;
        let data = Dataset::flow(Spec::Source(source));
        rows.map_or(data.clone(), |rows| data.assert_cardinality(rows))
    }

    /// Keeps the rows that `keep` says yes to. Of pictures that are not yet of one size it sees the other columns, and only those it keeps are
    /// decoded.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split};
    /// let sevens = Dataset::digits(Split::Train).filter(|row| row.int("y") == 7).batch(32);
    /// assert!((130..160).contains(&sevens.count_rows()?));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn filter(self, keep: impl Fn(&Row<'_>) -> bool + Send + Sync + 'static) -> Dataset {
        self.before_files(|input| Spec::Filter { input, keep: Predicate::new(keep) })
    }

    /// Keeps the rows before the first that `keep` says no to.
    pub fn take_while(self, keep: impl Fn(&Row<'_>) -> bool + Send + Sync + 'static) -> Dataset {
        self.before_files(|input| Spec::TakeWhile { input, keep: Predicate::new(keep) })
    }

    /// Keeps the rows for which a condition holds.
    pub fn filter_where(self, condition: Condition) -> Dataset {
        self.asked(condition, |input, keep| Spec::Filter { input, keep })
    }

    /// Keeps the rows before the first for which a condition does not hold.
    pub fn take_while_where(self, condition: Condition) -> Dataset {
        self.asked(condition, |input, keep| Spec::TakeWhile { input, keep })
    }

    fn asked(self, condition: Condition, spec: impl FnOnce(Dataset, Predicate) -> Spec) -> Dataset {
        // What was wrong before is told first, by whoever looks at the stages.
        match self.output_schema().map(|schema| condition.check(&schema)) {
            Ok(Err(error)) => Dataset { broken: Some(error), ..self },
            _ => self.before_files(|input| spec(input, Predicate::from(condition))),
        }
    }

    /// A new order each epoch as far as a buffer of this size reaches: each row is drawn by lot from it and replaced by the next.
    pub fn shuffle_buffer(self, shuffle: Shuffle, bytes: Bytes) -> Dataset {
        self.before_files(|input| Spec::Shuffle { input, seed: shuffle.seed_number(), bytes })
    }

    /// Leaves out rows that cannot be read or mapped, or that user code fails on, up to `cap` of them in an epoch; then it is an error after
    /// all. What was left out is counted and named: [`Dataset::ignored`]. The rest of a file that cannot be read on counts once, and the next
    /// file, or group of rows, follows.
    ///
    /// ```
    /// use plimsoll_core::DType;
    /// use plimsoll_data::{Column, DataError, Dataset, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::new("x", DType::I32, [])])?;
    /// let rows = Dataset::from_generator(schema, |_epoch| (0..10).map(|n| match n {
    ///     3 => Err(DataError::Stage("a comma is missing".into())),
    ///     n => Ok(vec![Tensor::i32([], [n])?]),
    /// }));
    /// let data = rows.ignore_errors(5);
    /// assert_eq!(data.clone().batch(4).count_rows()?, 9);
    /// assert_eq!(data.ignored(), (1, vec!["row 3 of the generator: a comma is missing".to_string()]));
    /// # Ok::<(), DataError>(())
    /// ```
    pub fn ignore_errors(self, cap: u64) -> Dataset {
        Dataset::flow(Spec::IgnoreErrors { input: self, ignored: Arc::new(Ignored::new(cap)) })
    }

    /// What [`ignore_errors`](Dataset::ignore_errors) left out so far of the epoch that is being read, and what was wrong with the first hundred.
    pub fn ignored(&self) -> (u64, Vec<String>) {
        self.left_out(None)
    }

    /// What [`ignore_errors`](Dataset::ignore_errors) left out of an epoch, counted from 0. Once a later one has begun, which may be long before
    /// its first batch is asked for, only the first row is still named, and after some hundred epochs nothing is known any more.
    pub fn ignored_in(&self, epoch: u64) -> (u64, Vec<String>) {
        self.left_out(Some(epoch))
    }

    fn left_out(&self, epoch: Option<u64>) -> (u64, Vec<String>) {
        let Some(spec) = &self.stream else { return (0, Vec::new()) };
        if let Spec::IgnoreErrors { ignored, .. } = &**spec {
            return ignored.left_out(epoch);
        }
        // Each time that rows are repeated is an epoch to what is before.
        let epochs: Vec<Option<u64>> = match (&**spec, epoch) {
            (Spec::Repeat { times, .. }, Some(epoch)) => {
                (0..*times).take(256).map(|time| Some(epoch.wrapping_mul(*times).wrapping_add(time))).collect()
            }
            // Whatever is kept, every epoch behind it is the first.
            (Spec::Cache { .. }, Some(_)) => vec![Some(0)],
            _ => vec![epoch],
        };
        let inputs = spec.inputs().iter().flat_map(|input| epochs.iter().map(|epoch| input.left_out(*epoch)));
        inputs.fold((0, Vec::new()), |(count, mut all), (more, names)| {
            all.extend(names);
            (count + more, all)
        })
    }

    /// Puts the number of each row in the epoch before it, as the i32 column `name`.
    pub fn enumerate(self, name: impl Into<String>) -> Dataset {
        Dataset::flow(Spec::Enumerate { input: self, column: name.into() })
    }

    /// The rows of several data sets side by side, as long as all have one. Columns need different names.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split, Tensor};
    /// let weights = Dataset::from_tensor_slices([("weight", Tensor::f32([3], [0.5, 1.0, 2.0])?)])?;
    /// let data = Dataset::zip([Dataset::digits(Split::Test), weights]);
    /// assert_eq!(data.output_schema()?.to_string(), "x: u8[8, 8, 1], y: i32[], weight: f32[]");
    /// assert_eq!(data.len(), 3);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn zip(inputs: impl IntoIterator<Item = Dataset>) -> Dataset {
        let inputs: Vec<Dataset> = inputs.into_iter().collect();
        match plain_sources(&inputs) {
            Some(sources) => crate::source::zipped(sources).map_or_else(Dataset::refused, Dataset::from_source),
            None => Dataset::flow(Spec::Zip { inputs }),
        }
    }

    /// The rows of one data set after those of another.
    pub fn concatenate(inputs: impl IntoIterator<Item = Dataset>) -> Dataset {
        let inputs: Vec<Dataset> = inputs.into_iter().collect();
        match plain_sources(&inputs).and_then(crate::source::concatenated) {
            Some(source) => Dataset::from_source(source),
            None => Dataset::flow(Spec::Concatenate { inputs }),
        }
    }

    /// Each row from a data set that is drawn by lot, in proportion to these weights, until all are used up.
    pub fn sample_from(inputs: impl IntoIterator<Item = (Dataset, f64)>, seed: u64) -> Dataset {
        let (inputs, weights): (Vec<Dataset>, Vec<f64>) = inputs.into_iter().unzip();
        Dataset::flow(Spec::Sample { inputs, weights, seed })
    }

    /// `block` rows of each of `cycle` data sets in turn; when one is used up, the next takes its place.
    pub fn interleave(inputs: impl IntoIterator<Item = Dataset>, cycle: usize, block: usize) -> Dataset {
        Dataset::flow(Spec::Interleave { inputs: inputs.into_iter().collect(), cycle, block, parallel: false })
    }

    /// The same rows in the same order, with a thread that reads ahead for each of the `cycle` data sets in turn. What the threads hold
    /// is planned; where the limit has no room for them, rows are made when they are wanted.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let parts = [Dataset::range(0, 3, 1)?, Dataset::range(10, 12, 1)?, Dataset::range(20, 22, 1)?];
    /// let data = Dataset::interleave_parallel(parts, 2, 1).batch(8);
    /// assert_eq!(data.count_rows()?, 7);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn interleave_parallel(inputs: impl IntoIterator<Item = Dataset>, cycle: usize, block: usize) -> Dataset {
        Dataset::flow(Spec::Interleave { inputs: inputs.into_iter().collect(), cycle, block, parallel: true })
    }

    /// For each row, all rows of the data set that `expand` makes of it; they are of `schema`, and each such data set takes at most `limit`.
    pub fn flat_map<F>(self, schema: Schema, limit: Bytes, expand: F) -> Dataset
    where
        F: Fn(&Row<'_>) -> Result<Dataset, DataError> + Send + Sync + 'static,
    {
        Dataset::flow(Spec::FlatMap { input: self, schema, limit, expand: Arc::new(expand) })
    }

    /// `size` rows that are `stride` apart as one, beginning every `shift` rows; columns get a first dimension of `size`. Rows left over at
    /// the end of an epoch are no window.
    pub fn window(self, size: usize, shift: usize, stride: usize) -> Dataset {
        Dataset::flow(Spec::Window { input: self, size, shift, stride })
    }

    /// Takes rows apart along their first dimension, which all columns must share; after [`batch`](Dataset::batch) or a
    /// [`padded_batch`](Dataset::padded_batch) to the longest row, takes that back.
    pub fn unbatch(mut self) -> Dataset {
        if self.batch_size().is_some() {
            self.stages.retain(|stage| !matches!(stage, Stage::Batch(_) | Stage::DropRemainder(_) | Stage::Pad(_)));
            return self;
        }
        Dataset::flow(Spec::Unbatch { input: self })
    }

    /// Gathers rows by the whole number in `column`, or by how long its rows are if they [differ in length](Column::up_to): `batch` rows that
    /// follow each other are always on the same side of every boundary, but for the last of an epoch. Batch them by as many.
    ///
    /// ```
    /// use plimsoll_core::{DType, Ledger};
    /// use plimsoll_data::{Column, Dataset, Feed, Options, PadTo, Schema, Tensor};
    /// let schema = Schema::new(vec![Column::up_to("x", DType::I32, [100])])?;
    /// let words = Dataset::from_generator(schema, |_epoch| [1, 90, 2, 80].map(|long| Ok(vec![Tensor::i32([long], vec![7; long])?])).into_iter());
    /// let data = words.bucket_by_length("x", [50], 2).padded_batch(2, PadTo::Longest, 0.0);
    /// let mut feed = Feed::start(&data, &data.plan(None)?, &Ledger::new("host", None), Options::default())?;
    /// assert_eq!(feed.next()?.unwrap().shape(0), [2, 2]);
    /// assert_eq!(feed.next()?.unwrap().shape(0), [2, 90]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn bucket_by_length(self, column: impl Into<String>, boundaries: impl Into<Vec<i64>>, batch: usize) -> Dataset {
        let buckets = crate::stream::Buckets { column: column.into(), boundaries: boundaries.into(), batch };
        Dataset::flow(Spec::Buckets { input: self, buckets })
    }

    /// Says how many rows an epoch of a stream has. An epoch with more or fewer is an error, also if other stages follow; where rows have
    /// numbers, another number is one at once.
    pub fn assert_cardinality(self, rows: u64) -> Dataset {
        self.stage(Stage::Cardinality(rows))
    }

    /// Reads the first epoch to count its rows.
    pub fn count_rows(&self) -> Result<u64, DataError> {
        let plan = self.plan(None)?;
        let mut feed = Feed::start(self, &plan, &Ledger::new("count", None), Options { epochs: Some(1), ..Options::default() })?;
        let mut rows = 0;
        while let Some(batch) = feed.next()? {
            rows += batch.rows as u64;
        }
        Ok(rows)
    }

    pub(crate) fn flow(mut spec: Spec) -> Dataset {
        // A stream has no use for rows in memory; where the choice is free, none are kept.
        for input in spec.inputs_mut() {
            input.stages.retain(|stage| !matches!(stage, Stage::Cache(Cache::Auto, _)));
        }
        // The first thing wrong is the one to tell.
        let broken = spec.inputs().iter().find_map(|input| input.broken.clone());
        let (schema, broken) = match (broken, spec.schema()) {
            (None, Ok(schema)) => (schema, None),
            (Some(error), _) | (None, Err(error)) => return Dataset::refused(error),
        };
        let spec = Arc::new(spec);
        let source = Arc::new(Flow { spec: Arc::clone(&spec), schema });
        Dataset { source, stream: Some(spec), stages: Vec::new(), broken }
    }

    /// A data set that only says what is wrong with it.
    fn refused(error: DataError) -> Dataset {
        let schema = Schema::new(vec![Column::new("x", DType::U8, [])]).expect("one column");
        let nothing = Dataset::from_fn(schema, 0, |_, _| Ok(()));
        Dataset { broken: Some(error), ..nothing }
    }
}

/// The sources of data sets without stages, where there are several and rows can be joined by number.
fn plain_sources(inputs: &[Dataset]) -> Option<Vec<Arc<dyn Source>>> {
    let is_plain = |input: &Dataset| {
        let joinable = input.source.schema().columns().iter().all(|column| matches!(column.extent, Extent::Fixed | Extent::Files));
        input.stages.is_empty() && input.stream.is_none() && input.broken.is_none() && joinable
    };
    let enough = inputs.len() > 1 && inputs.iter().all(is_plain);
    enough.then(|| inputs.iter().map(|input| Arc::clone(&input.source)).collect())
}
