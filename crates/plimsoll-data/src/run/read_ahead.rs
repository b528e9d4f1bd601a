//! Inputs of sequential stages that are read ahead by threads of their own.

use super::feed::{Feed, Options};
use super::path::join_columns;
use crate::dataset::{BlockIterator, Dataset, Recipe, StreamBudget};
use crate::fault::Fault;
use crate::meter::InputTimer;
use crate::plan::PipelinePlan;
use plimsoll_core::Ledger;
use std::sync::Arc;

/// Rows of a data set, prefetched by an inner feed.
pub(super) struct ReadAhead {
    data: Dataset,
    plan: PipelinePlan,
    ledger: Ledger,
    feed: Option<Feed>,
    /// Rows of the batch already returned, and its total rows.
    from: usize,
    to: usize,
    over: bool,
    row_bytes: usize,
    epochs: Epochs,
    /// The epoch requested last.
    asked: Option<u64>,
    /// Whether a stage of the input caches rows, which are lost when the feed is dropped.
    keeps: bool,
    timer: Arc<InputTimer>,
}

/// How a feed that reads ahead continues from one epoch to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Epochs {
    /// It produces rows of the next epoch before that is requested.
    Ahead,
    /// It waits for the request, because the start of an epoch may have side effects in user code.
    Asked,
    /// It is dropped after each epoch, and its memory is freed.
    Closed,
}

impl Epochs {
    pub fn of(recipe: &Recipe, budget: StreamBudget) -> Epochs {
        match recipe.node {
            _ if budget.parallel_inputs > 0 => Epochs::Closed,
            Some(_) => Epochs::Asked,
            None => Epochs::Ahead,
        }
    }
}

impl ReadAhead {
    pub fn new(data: Dataset, plan: PipelinePlan, ledger: &Ledger, row_bytes: usize, epochs: Epochs, timer: &Arc<InputTimer>) -> ReadAhead {
        let (ledger, timer) = (ledger.clone(), Arc::clone(timer));
        let keeps = epochs != Epochs::Closed && data.caches_rows();
        ReadAhead { data, plan, ledger, feed: None, from: 0, to: 0, over: true, row_bytes, epochs, asked: None, keeps, timer }
    }

    /// Drops the feed, which stops its threads and frees its memory.
    fn end(&mut self) {
        if self.feed.take().is_some() {
            self.timer.end(self.plan.workers());
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.end();
    }
}

impl BlockIterator for ReadAhead {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        // After a complete epoch the feed is at the start of the next one. Otherwise it is dropped, and then a new
        // one is started.
        match &mut self.feed {
            Some(feed) if feed.stands() == (epoch, 0) && self.epochs != Epochs::Closed => {
                // Skip this if the epoch was already requested and none of its rows were read.
                if self.epochs == Epochs::Asked && self.asked != Some(epoch) {
                    feed.another_epoch();
                }
            }
            _ => {
                self.end();
                let epochs = (self.epochs != Epochs::Ahead).then_some(1);
                let options = Options { first_epoch: epoch, epochs, ..Options::default() };
                self.feed = Some(Feed::start_inside(&self.data, &self.plan, &self.ledger, options, &self.timer.meter)?);
                self.timer.begin(self.plan.workers());
            }
        }
        (self.from, self.to, self.over, self.asked) = (0, 0, false, Some(epoch));
        Ok(())
    }

    fn close(&mut self) {
        // A feed that caches rows stays open for the next epoch; the plan accounts for that.
        if !self.keeps || !self.over {
            self.end();
        }
        self.over = true;
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let (mut done, wanted) = (0, out.len() / self.row_bytes);
        while done < wanted && !self.over {
            let feed = self.feed.as_mut().expect("an epoch was begun");
            if self.from == self.to {
                match feed.next() {
                    Ok(Some(batch)) => (self.from, self.to) = (0, batch.rows),
                    Ok(None) => {
                        self.over = true;
                        break;
                    }
                    // The feed repeats the error on the next call, after the rows before it.
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let batch = feed.last().expect("one was handed out");
            let rows = (wanted - done).min(self.to - self.from);
            let columns = (0..batch.columns()).map(|index| {
                let column = batch.column(index);
                let bytes = column.len() / batch.rows;
                (&column[self.from * bytes..], bytes)
            });
            join_columns(columns, rows, &mut out[done * self.row_bytes..]);
            (self.from, done) = (self.from + rows, done + rows);
        }
        Ok(done)
    }
}
