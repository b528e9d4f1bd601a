//! Sequential sources as data sets.

use crate::dataset::{BlockIterator, Dataset, Holding, Opening, Stage, StreamBudget};
use crate::source::{Elements, FITTING, FileUse, Generator, SequentialSource, TableFacts, Tensor};
use crate::{DataError, Schema};
use plimsoll_core::Bytes;
use std::hash::Hasher;
use std::sync::Arc;

struct ReadSource(SequentialSource);

impl Dataset {
    /// A data set of rows from iterators: `make(epoch)` returns one for each epoch, and a row is one tensor per
    /// column of `schema`.
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

    /// Like [`from_generator`](Dataset::from_generator), for iterators that own `held` bytes, which the plan then
    /// counts.
    pub fn from_generator_holding<F, I>(schema: Schema, held: Bytes, make: F) -> Dataset
    where
        F: Fn(u64) -> I + Send + Sync + 'static,
        I: Iterator<Item = Result<Vec<Tensor>, DataError>> + Send + 'static,
    {
        Dataset::from_sequential(Generator::source(schema, held, Arc::new(move |epoch| -> Elements { Box::new(make(epoch)) })))
    }

    /// A data set of a sequential source.
    pub(crate) fn from_sequential(source: SequentialSource) -> Dataset {
        let rows = source.rows;
        let data = Dataset::from_stage(ReadSource(source), Vec::new());
        rows.map_or(data.clone(), |rows| data.assert_cardinality(rows))
    }
}

impl Stage for ReadSource {
    fn describe(&self) -> String {
        self.0.name.clone()
    }

    fn file_use(&self, _inputs: &[Dataset]) -> FileUse {
        self.0.facts.file_use.clone()
    }

    fn visit_column(&self, name: &str, visit: &mut dyn FnMut(&[u8])) -> Result<bool, DataError> {
        self.0.columns.as_ref().map_or(Ok(false), |columns| columns(name, visit))
    }

    fn facts(&self) -> Option<&TableFacts> {
        Some(&self.0.facts)
    }

    fn schema(&self, _inputs: &[Dataset]) -> Result<Schema, DataError> {
        Ok(self.0.schema.clone())
    }

    fn identify(&self, hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        match &self.0.identity {
            Some(identity) => identity(hash).map(|()| None),
            None => Ok(Some(self.describe())),
        }
    }

    fn holdings(&self, _inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        let fitting = Some(Holding::here(FITTING, self.0.fitting)).filter(|fitting| fitting.bytes > Bytes::ZERO);
        Ok(std::iter::once(Holding::here(self.describe(), self.0.held)).chain(fitting).collect())
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.rows((self.0.open)())
    }
}
