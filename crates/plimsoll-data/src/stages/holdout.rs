//! `holdout`: splits rows into those to train on and those to validate on.

use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, Holding, IndexStep, Input, Opening, RowStage, Stage, StreamBudget};
use crate::fault::{Fault, Loss};
use crate::holdout::{HoldoutSplit, SplitPart};
use crate::split::{self, SplitSpec};
use plimsoll_core::Bytes;

/// One part of a split.
struct HoldoutPart {
    part: SplitPart,
    name: String,
}

/// The parts of a [split](Dataset::split).
pub struct Splits {
    /// The rows to train on.
    pub training: Dataset,
    /// The rows to validate on.
    pub validation: Option<Dataset>,
    /// The rows to test on.
    pub test: Option<Dataset>,
}

impl Dataset {
    /// Splits the rows into those to train on and a random share that is held out, such as 0.1, each in the order of
    /// the source. Rows are stratified by class where their classes can be read alone, and by position otherwise. The
    /// choice depends only on `seed` and the rows.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let (training, held_out) = Dataset::range(0, 1000, 1)?.holdout(0.25, 7)?;
    /// assert_eq!((training.len(), held_out.len()), (750, 250));
    /// assert_eq!(held_out.describe(), "1000 numbers from 0 by 1 → holdout(0.25, seed 7)");
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If the number of rows is unknown, if one part would be empty, or if labels cannot be read.
    pub fn holdout(self, share: f64, seed: u64) -> Result<(Dataset, Dataset), DataError> {
        let Some(rows) = self.size() else {
            let problem = format!("holdout({share}) is a share of the rows, and how many {} has is unknown", self.describe());
            return Err(DataError::Stage(problem + "; validate on other data"));
        };
        let held = (rows as f64 * share).round() as u64;
        if !(0.0..1.0).contains(&share) || held == 0 || held >= rows {
            return Err(DataError::Stage(format!("holdout({share}) of {rows} rows leaves one part empty; use another share")));
        }
        let plain = self.node.is_none() && self.stages.iter().all(|stage| stage.index_step().is_none());
        let split = match plain {
            true => HoldoutSplit::new(rows, held, seed, &|visit| self.source.classes(visit))?,
            false => HoldoutSplit::new(rows, held, seed, &|_| Ok(false))?,
        };
        let (training, held_out) = split.parts();
        let then = |part: SplitPart| {
            let which = if part.is_held_out() { "holdout" } else { "without holdout" };
            self.clone().then(HoldoutPart { part, name: format!("{which}({share}, seed {seed})") })
        };
        Ok((then(training), then(held_out)))
    }

    /// Splits the rows into training, validation and test rows, each in the order of the source.
    ///
    /// ```
    /// use plimsoll_data::{Dataset, SplitMethod, SplitSpec};
    /// let spec = SplitSpec { method: SplitMethod::Random, test: 0.2, fold: Some((3, 5)), ..SplitSpec::default() };
    /// let parts = Dataset::range(0, 1000, 1)?.split(&spec)?;
    /// assert_eq!((parts.training.len(), parts.validation.unwrap().len(), parts.test.unwrap().len()), (640, 160, 200));
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    ///
    /// # Errors
    /// If the number of rows is unknown, a part would be empty, there is no such column, or a file cannot be read.
    pub fn split(self, spec: &SplitSpec) -> Result<Splits, DataError> {
        let Some(rows) = self.size() else {
            let problem =
                format!("a split ({}) needs the number of rows, and how many {} has is unknown", spec.describe(), self.describe());
            return Err(DataError::Stage(problem + "; validate on other data"));
        };
        let whole = self.stages.iter().all(|stage| stage.index_step().is_none());
        let classes = |visit: &mut dyn FnMut(i64)| if whole && self.node.is_none() { self.source.classes(visit) } else { Ok(false) };
        let parts = split::split(rows, spec, &classes, &|column, visit| match &self.node {
            _ if !whole => Ok(false),
            Some(node) => node.stage.visit_column(column, visit),
            None => self.source.visit_column(column, visit),
        })?;
        let then = |which: &str, part: SplitPart| self.clone().then(HoldoutPart { part, name: format!("{which}({})", spec.describe()) });
        Ok(Splits {
            training: then("training", parts.training),
            validation: parts.validation.map(|part| then("validation", part)),
            test: parts.test.map(|part| then("test", part)),
        })
    }
}

impl Stage for HoldoutPart {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn index_step(&self) -> Option<IndexStep> {
        Some(IndexStep::Part(self.part.clone()))
    }

    fn max_rows(&self, _inputs: &[Dataset]) -> u64 {
        self.part.len()
    }

    fn defers_decoding(&self) -> bool {
        true
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn holdings(&self, _inputs: &[Dataset], _row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(Some(self.part.bytes())
            .filter(|bytes| *bytes > Bytes::ZERO)
            .map(|bytes| Holding::here(self.describe(), bytes))
            .into_iter()
            .collect())
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        inputs.map_rows(Choosing { part: self.part.clone(), row: 0 })
    }
}

/// The rows of one part of a stream. A row with an error counts, and its error is reported only if the part has it.
struct Choosing {
    part: SplitPart,
    row: u64,
}

impl RowStage for Choosing {
    fn begin(&mut self, _epoch: u64) {
        self.row = 0;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        loop {
            let row = self.row;
            self.row += 1;
            if self.part.place(row).is_some() {
                return input.copy(out);
            }
            match input.next() {
                Ok(None) => return Ok(false),
                Ok(Some(_)) => {}
                Err(fault) if fault.loss == Loss::Row => {}
                Err(fault) => return Err(fault),
            }
        }
    }
}
