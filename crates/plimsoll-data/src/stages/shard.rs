//! `shard`: every nth row, for training on several machines.

use super::kind::{Key, KeyKind, StageKind, Validation};
use crate::DataError;
use crate::dataset::{BlockIterator, Consumed, Dataset, IndexStep, Input, Opening, RowStage, Stage};
use crate::fault::{Fault, Loss};
use std::sync::Arc;

struct ShardStage {
    count: u64,
    index: u64,
    consumed: Consumed,
}

pub(super) const KIND: StageKind = StageKind {
    name: "shard",
    summary: "one of every `count` rows, beginning with row `index`",
    keys: &[
        Key::required("count", KeyKind::Count(1), "how many parts there are"),
        Key::required("index", KeyKind::Count(0), "which part this is, counted from 0"),
    ],
    counts_rows: true,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| Ok(data.shard(args.rows("count"), args.rows("index"))),
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Keeps every `count`th row, starting at row `index`: the shard of one of `count` machines.
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
            return self.with_error(DataError::Stage(problem));
        }
        self.then(ShardStage { count, index, consumed: None })
    }

    /// The same pipeline over every `count`th row only, whatever its maps and batches: a sample spread over the whole
    /// epoch. `None` for a [stream](Dataset#streams), whose rows cannot be read by index.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, Split};
    /// let data = Dataset::digits(Split::Test).batch(32);
    /// assert_eq!(data.every_nth(4).map(|sample| sample.len()), Some(data.len().div_ceil(4)));
    /// ```
    pub fn every_nth(&self, count: u64) -> Option<Dataset> {
        if self.node.is_some() || count == 0 {
            return None;
        }
        let mut sample = self.clone();
        // After the last stage that selects rows; those behind it make one row of each.
        let at = sample.stages.iter().rposition(|stage| stage.index_step().is_some()).map_or(0, |last| last + 1);
        sample.stages.insert(at, Arc::new(ShardStage { count, index: 0, consumed: None }));
        Some(sample)
    }
}

impl Stage for ShardStage {
    fn describe(&self) -> String {
        format!("shard({}, {})", self.count, self.index)
    }

    fn index_step(&self) -> Option<IndexStep> {
        Some(IndexStep::Shard { count: self.count, index: self.index })
    }

    fn shard(&self) -> Option<(u64, u64)> {
        Some((self.count, self.index))
    }

    fn after(&self, consumed: Consumed) -> Option<Arc<dyn Stage>> {
        Some(Arc::new(ShardStage { consumed, ..*self }))
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(EveryNth { first: self.index, step: self.count, consumed: self.consumed, skip: 0 })
    }
}

/// Every nth row, starting at some row. A row with an error counts, and its error is reported only if the row is
/// selected.
pub(super) struct EveryNth {
    pub first: u64,
    pub step: u64,
    pub consumed: Consumed,
    /// Rows to skip before the next.
    pub skip: u64,
}

impl RowStage for EveryNth {
    fn begin(&mut self, epoch: u64) {
        let consumed = self.consumed.filter(|(consumed, _)| *consumed == epoch).map_or(0, |(_, rows)| rows);
        self.skip = self.first.saturating_add(consumed);
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        while self.skip > 0 {
            match input.next() {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => self.skip -= 1,
                Err(fault) => {
                    self.skip -= 1;
                    if fault.loss != Loss::Row {
                        return Err(fault);
                    }
                }
            }
        }
        self.skip = self.step - 1;
        input.copy(out)
    }
}
