//! `rows_of_rank`: consecutive rows of every batch, for data-parallel training.

use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, IndexStep, Input, Opening, RowStage, Settings, Stage};
use crate::fault::{Fault, Loss};
use crate::rank_rows::RankRows;

struct RankStage {
    rows: RankRows,
    /// Rows of an epoch before the stage, if that is known.
    epoch: Option<u64>,
    /// Whether files may be decoded after the stage: random operations are indexed by the position of a row before it.
    defers: bool,
    name: String,
}

impl Dataset {
    /// The rows that one of several ranks has of every batch: batches are those of the whole data set, divided by
    /// [`RankRows`]. The position in the epoch of all ranks is the same number of batches.
    ///
    /// With `repeats`, a rank without rows of the last batch has one of another rank, so that it has a batch too. That
    /// needs the number of rows of an epoch in advance.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let data = |rank| Ok::<_, plimsoll_data::DataError>(Dataset::range(0, 70, 1)?.batch(32).rows_of_rank(4, rank, true)?);
    /// assert_eq!((data(0)?.batch_size(), data(0)?.len(), data(3)?.len()), (Some(8), 18, 17));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If the data has no batch size, its batches are mixed or come in any order, or the number of rows is not known.
    pub fn rows_of_rank(&self, ranks: u64, rank: u64, repeats: bool) -> Result<Dataset, DataError> {
        self.divided(
            |batch| RankRows::new(batch, ranks, rank),
            &format!("{ranks} ranks"),
            format!("rows_of_rank({ranks}, {rank})"),
            repeats,
        )
    }

    /// The same for parts of any sizes, which name the batch they are of.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, RankRows};
    /// let data = Dataset::range(0, 70, 1)?.rows_of_share(RankRows::fixed(32, 8..24), true)?;
    /// assert_eq!((data.batch_size(), data.len()), (Some(16), 33));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// As [`rows_of_rank`](Dataset::rows_of_rank).
    pub fn rows_of_share(&self, rows: RankRows, repeats: bool) -> Result<Dataset, DataError> {
        let own = rows.of_batch(rows.batch());
        let name = format!("rows_of_share({}, {}..{})", rows.batch(), own.start, own.end);
        self.clone().rebatch(rows.batch() as usize).divided(|_| rows, "ranks", name, repeats)
    }

    fn divided(&self, rows: impl FnOnce(u64) -> RankRows, over: &str, name: String, repeats: bool) -> Result<Dataset, DataError> {
        let settings = self.settings();
        let refuse = |what: &str| Err(DataError::Stage(format!("{} cannot be divided over {over}: {what}", self.describe())));
        let Some(batch) = settings.batch else { return refuse("it has no batch size; add .batch(n)") };
        if settings.mix.is_some() {
            return refuse("rows of a whole batch are mixed in pairs; leave mixup or cutmix out, or train on one process");
        }
        if !settings.is_ordered() {
            return refuse("its batches come in any order; leave deterministic(false) out");
        }
        let size = self.size();
        if repeats && size.is_none() {
            return refuse("the number of rows of its epochs is not known; state it with assert_cardinality, or train on one process");
        }
        let rows = rows(batch as u64);
        let rows = if repeats { rows.repeating() } else { rows };
        let stage = RankStage { rows, epoch: size, defers: !self.has_random_op(), name };
        // Batches are made after the rows are divided.
        let mut data = self.clone();
        data.stages.retain(|stage| !makes_batches(&**stage));
        let whole = settings.whole_batches().and(size);
        let divided = match &data.node {
            Some(_) => {
                // Threads and prefetching are those of the pipeline that is fed from.
                let feeding = data.stages.extract_if(.., |stage| concerns_threads(&**stage)).collect::<Vec<_>>();
                let data = whole.map_or(data.clone(), |rows| data.take(rows)).then(stage);
                feeding.into_iter().fold(data, Dataset::push)
            }
            None => {
                // After the last stage that selects rows; those behind it make one row of each.
                let at = data.stages.iter().rposition(|stage| stage.index_step().is_some()).map_or(0, |last| last + 1);
                let later = data.stages.split_off(at);
                let data = whole.map_or(data.clone(), |rows| data.take(rows)).then(stage);
                // The number of rows was checked when it was stated.
                let stays = later.into_iter().filter(|stage| effect(&**stage).cardinality.is_none());
                stays.fold(data, Dataset::push)
            }
        };
        Ok(divided.batch(rows.rows().max(1) as usize))
    }

    fn has_random_op(&self) -> bool {
        let upstream = self.node.iter().flat_map(|node| node.stages());
        self.stages.iter().map(|stage| &**stage).chain(upstream).any(|stage| stage.random_op().is_some())
    }
}

/// What a stage sets, by itself.
fn effect(stage: &dyn Stage) -> Settings {
    let mut settings = Settings::default();
    // A setting that is wrong is reported where the data set is used.
    let _ = stage.set(&mut settings);
    settings
}

/// Whether a stage is about which rows share a batch.
fn makes_batches(stage: &dyn Stage) -> bool {
    let settings = effect(stage);
    settings.batch.is_some() || settings.drop_remainder.is_some() || settings.deterministic.is_some()
}

fn concerns_threads(stage: &dyn Stage) -> bool {
    let (settings, usual) = (effect(stage), Settings::default());
    settings.prefetch != usual.prefetch || settings.parallelism != usual.parallelism
}

impl Stage for RankStage {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn index_step(&self) -> Option<IndexStep> {
        Some(IndexStep::Rank(self.rows))
    }

    fn defers_decoding(&self) -> bool {
        self.defers
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(OfRank { rows: self.rows, epoch: self.epoch, place: 0 })
    }
}

/// The rows of one rank. A row with an error counts, and its error is reported only if the row is the rank's.
struct OfRank {
    rows: RankRows,
    epoch: Option<u64>,
    /// The position of the next row in the epoch.
    place: u64,
}

impl OfRank {
    fn is_own(&self) -> bool {
        let batch = self.rows.batch();
        let within = self.place % batch;
        // Where the length of an epoch is unknown, its last batch is divided like the others.
        let rows = self.epoch.map_or(batch, |epoch| batch.min(epoch.saturating_sub(self.place - within)));
        self.rows.of_batch(rows).contains(&within)
    }
}

impl RowStage for OfRank {
    fn begin(&mut self, _epoch: u64) {
        self.place = 0;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.is_own() {
            self.place += 1;
            match input.next() {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => {}
                Err(fault) if fault.loss != Loss::Row => return Err(fault),
                Err(_) => {}
            }
        }
        self.place += 1;
        input.copy(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mix, Shuffle, Split};

    #[test]
    fn what_cannot_be_divided_is_refused_with_the_reason() {
        let refused = |data: Dataset| data.rows_of_rank(4, 1, true).map(|data| data.len()).unwrap_err().to_string();
        let digits = || Dataset::digits(Split::Test);
        insta::assert_snapshot!(refused(digits()), @"digits (test) cannot be divided over 4 ranks: it has no batch size; add .batch(n)");
        let ends = |data: Dataset, with: &str| {
            let error = refused(data);
            assert!(error.ends_with(&format!("cannot be divided over 4 ranks: {with}")), "{error}");
        };
        ends(
            digits().batch(8).mix(Mix::up(0.2)),
            "rows of a whole batch are mixed in pairs; leave mixup or cutmix out, or train on one process",
        );
        let any_order = digits().shuffle(Shuffle::seed(1)).batch(8).deterministic(false);
        ends(any_order, "its batches come in any order; leave deterministic(false) out");
        let unknown = "the number of rows of its epochs is not known; state it with assert_cardinality, or train on one process";
        ends(digits().filter(|_| true).batch(8), unknown);
    }
}
