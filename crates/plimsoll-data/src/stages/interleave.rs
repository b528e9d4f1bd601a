//! `interleave`: takes rows from several data sets in turn.

use super::concatenate::common_schema;
use crate::dataset::{BlockIterator, Dataset, Input, MAX_THREADS, OpenInput, Opening, Stage, StreamBudget};
use crate::fault::Fault;
use crate::meter::InputTimer;
use crate::source::RowIterator;
use crate::{DataError, Schema};
use plimsoll_core::Ledger;
use std::sync::Arc;

struct Interleave {
    cycle: usize,
    block: usize,
    /// Whether each of the `cycle` data sets is read ahead by its own thread.
    parallel: bool,
}

impl Dataset {
    /// Takes `block` rows from each of `cycle` data sets in turn; an exhausted one is replaced by the next.
    pub fn interleave(inputs: impl IntoIterator<Item = Dataset>, cycle: usize, block: usize) -> Dataset {
        Dataset::from_stage(Interleave { cycle, block, parallel: false }, inputs.into_iter().collect())
    }

    /// Like [`interleave`](Dataset::interleave), with the same row order, but each of the `cycle` open data sets is
    /// read ahead by its own thread. The plan counts the memory of the threads; if the limit is too small for them,
    /// rows are read on demand.
    ///
    /// ```
    /// use plimsoll_data::Dataset;
    /// let parts = [Dataset::range(0, 3, 1)?, Dataset::range(10, 12, 1)?, Dataset::range(20, 22, 1)?];
    /// let data = Dataset::interleave_parallel(parts, 2, 1).batch(8);
    /// assert_eq!(data.count_rows()?, 7);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn interleave_parallel(inputs: impl IntoIterator<Item = Dataset>, cycle: usize, block: usize) -> Dataset {
        Dataset::from_stage(Interleave { cycle, block, parallel: true }, inputs.into_iter().collect())
    }
}

impl Stage for Interleave {
    fn describe(&self) -> String {
        let name = if self.parallel { "interleave_parallel" } else { "interleave" };
        format!("{name}({}, {})", self.cycle, self.block)
    }

    fn schema(&self, inputs: &[Dataset]) -> Result<Schema, DataError> {
        let (cycle, block) = (self.cycle, self.block);
        if cycle == 0 || block == 0 {
            return Err(DataError::Stage(format!("interleave({cycle}, {block}) takes nothing; give numbers of at least 1")));
        }
        let threads = if self.parallel { self.open_inputs(inputs.len()) } else { 0 };
        if threads > MAX_THREADS {
            let problem = format!("{} begins {threads} threads; ask for a cycle of at most {MAX_THREADS}", self.describe());
            return Err(DataError::Stage(problem));
        }
        common_schema(inputs, &self.describe())
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn open_inputs(&self, inputs: usize) -> usize {
        self.cycle.min(inputs)
    }

    fn reads_ahead(&self) -> bool {
        self.parallel
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        let open = |index| TurnInput::new(inputs, index);
        let all = (0..inputs.node.inputs.len()).map(open).collect::<Result<Vec<_>, _>>()?;
        inputs.rows(Interleaving::new(all, self.cycle, self.block))
    }
}

/// One of several inputs of which only some are open at a time.
struct TurnInput {
    input: Option<Input>,
    /// How to reopen it, if it is closed when it is not being read.
    reopen: Option<Reopen>,
}

struct Reopen {
    data: Dataset,
    budget: StreamBudget,
    ledger: Ledger,
    timer: Arc<InputTimer>,
    opener: &'static dyn OpenInput,
}

impl TurnInput {
    fn new(inputs: &Opening<'_>, index: usize) -> Result<TurnInput, DataError> {
        let data = &inputs.node.inputs[index];
        // Open it even if it is closed immediately, so that errors are reported at the start.
        let input = inputs.input(index)?;
        let Opening { budget, ledger, timer, opener, .. } = *inputs;
        let reopen = || Reopen { data: data.clone(), budget, ledger: ledger.clone(), timer: timer.input(index), opener };
        Ok(match inputs.node.closes(data) {
            true => TurnInput { input: None, reopen: Some(reopen()) },
            false => TurnInput { input: Some(input), reopen: None },
        })
    }

    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        if let Some(Reopen { data, budget, ledger, timer, opener }) = &self.reopen {
            self.input = Some(opener.open(data, *budget, ledger, Arc::clone(timer))?);
        }
        self.input.as_mut().map_or(Ok(()), |input| input.begin(epoch))
    }

    fn copy(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        self.input.as_mut().map_or(Ok(false), |input| input.copy(out))
    }

    fn close(&mut self) {
        self.input.iter_mut().for_each(Input::close);
        if self.reopen.is_some() {
            self.input = None;
        }
    }
}

/// The running stage.
struct Interleaving {
    inputs: Vec<TurnInput>,
    cycle: usize,
    block: usize,
    epoch: u64,
    /// The input at each position of the cycle.
    open: Vec<usize>,
    begun: usize,
    turn: usize,
    in_block: usize,
}

impl Interleaving {
    fn new(inputs: Vec<TurnInput>, cycle: usize, block: usize) -> Interleaving {
        Interleaving { open: Vec::with_capacity(inputs.len()), inputs, cycle, block, epoch: 0, begun: 0, turn: 0, in_block: 0 }
    }

    fn open_next(&mut self) -> Result<Option<usize>, Fault> {
        if self.begun == self.inputs.len() {
            return Ok(None);
        }
        self.inputs[self.begun].begin(self.epoch)?;
        self.begun += 1;
        Ok(Some(self.begun - 1))
    }
}

impl RowIterator for Interleaving {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.epoch, self.begun, self.turn, self.in_block) = (epoch, 0, 0, 0);
        // Close the inputs of an epoch that was abandoned.
        self.open.drain(..).for_each(|open| self.inputs[open].close());
        while self.open.len() < self.cycle.min(self.inputs.len()) {
            let next = self.open_next()?.expect("there are as many");
            self.open.push(next);
        }
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        while !self.open.is_empty() {
            if self.in_block == self.block {
                (self.turn, self.in_block) = ((self.turn + 1) % self.open.len(), 0);
            }
            let come = self.inputs[self.open[self.turn]].copy(out);
            if !matches!(come, Ok(false)) {
                self.in_block += 1;
                return come;
            }
            self.in_block = 0;
            // Close it before opening the next: the plan counts only `cycle` open inputs.
            self.inputs[self.open[self.turn]].close();
            match self.open_next()? {
                Some(next) => self.open[self.turn] = next,
                None => {
                    self.open.remove(self.turn);
                    if self.turn == self.open.len() {
                        self.turn = 0;
                    }
                }
            }
        }
        Ok(false)
    }

    fn close(&mut self) {
        self.inputs.iter_mut().for_each(TurnInput::close);
    }
}
