//! Evaluation of a dataset: loss and metrics, or predictions, without training.

use crate::error::{Error, Result};
use crate::metrics::Scores;
use crate::ranks::Ranks;
use crate::session::{HostRows, Piece, Session, Tally, feed};
use crate::spec::RunSpec;
use crate::stop::StopHandle;
use plimsoll_core::step::Role;
use plimsoll_data::{Dataset, Feed, NextBatch, Options, PipelinePlan, Schema};

/// A dataset that is evaluated epoch by epoch.
pub(crate) struct Validation {
    data: Dataset,
    feed: Feed,
    schema: Schema,
    /// The rows that the loss is divided by: all of them, or those of a micro-batch where their number is not known.
    whole: u64,
    /// The ranks that each evaluate their rows, if there are several.
    ranks: Option<Ranks>,
}

impl Validation {
    pub(crate) fn start(role: Role, data: &Dataset, pipeline: &PipelinePlan, session: &Session, epochs: u64) -> Result<Validation> {
        let fed = data.clone().rebatch(session.plan.feed_rows);
        Validation::feed(role, data, data.clone(), &fed, pipeline, (session, epochs), None)
    }

    /// The part of a rank: other ranks evaluate the others.
    pub(crate) fn of_rank(
        spec: &RunSpec,
        data: &Dataset,
        pipeline: &PipelinePlan,
        session: &Session,
        epochs: u64,
        ranks: &Ranks,
    ) -> Result<Validation> {
        let own = spec.rows_of_rank(data, ranks.rank(), false)?;
        // In order, a block is the rank's part of as many rows as a training batch has.
        let rows = own.batch_size().filter(|_| session.ordered.is_some()).unwrap_or(session.plan.feed_rows);
        let fed = own.clone().rebatch(rows);
        // Within what was planned for rank 0, which has the most rows.
        let pipeline = if ranks.is_first() { pipeline.clone() } else { fed.plan(Some(pipeline.total()))? };
        Validation::feed(Role::Evaluate, data, own, &fed, &pipeline, (session, epochs), Some(ranks.clone()))
    }

    /// Over `own` rows of the data, which are fed in the batches of `fed`.
    fn feed(
        role: Role,
        data: &Dataset,
        own: Dataset,
        fed: &Dataset,
        pipeline: &PipelinePlan,
        (session, epochs): (&Session, u64),
        ranks: Option<Ranks>,
    ) -> Result<Validation> {
        if data.is_empty() {
            return Err(no_rows(data));
        }
        session.check_schema(role, &data.output_schema()?)?;
        // Numbered like the epochs they follow, so that a resumed run adds up in the same order.
        let options = Options { first_epoch: session.epochs, epochs: Some(epochs), ..Options::default() };
        let feed = feed::start(fed, pipeline, &session.ledger, options, session.executor.device())?;
        let whole = data.size().unwrap_or(session.plan.micro_batch as u64);
        Ok(Validation { feed, schema: data.output_schema()?, whole, data: own, ranks })
    }

    /// The scores over all rows; none if it was stopped before.
    pub(crate) fn evaluate(&mut self, session: &mut Session, stop: &StopHandle) -> Result<Option<Scores>> {
        let mut tally = session.begin()?;
        let mut complete = self.each_piece(session, Role::Evaluate, &mut tally, stop, |_, _| Ok(()))?;
        if let Some(ranks) = &self.ranks {
            // Of ranks in order, all stop together.
            complete = ranks.most([u64::from(!complete)])? == [0];
            if session.ordered.is_none() {
                tally = tally.over(ranks)?;
            }
            session.sum_counts(ranks)?;
        }
        if !complete {
            return Ok(None);
        }
        if tally.rows == 0 {
            return Err(no_rows(&self.data));
        }
        if !tally.loss.is_finite() {
            let what = "the validation loss is not finite; check the validation data, or try a smaller learning rate";
            return Err(Error::Config(what.to_string()));
        }
        Ok(Some(session.scores(&tally)))
    }

    /// Rows that could not be read and were skipped in an epoch, counted from 0, and the first error.
    pub(crate) fn left_out(&self, epoch: u64) -> (u64, Option<String>) {
        let (rows, names) = self.data.ignored_in(epoch);
        (rows, names.into_iter().next())
    }

    /// Stops its pipeline without waiting for it.
    pub(crate) fn abandon(self) {
        self.feed.abandon();
    }

    /// Runs a program over every row, a piece at a time. Whether it came to the end, and was not stopped before.
    pub(crate) fn each_piece(
        &mut self,
        session: &mut Session,
        role: Role,
        tally: &mut Tally,
        stop: &StopHandle,
        after: impl FnMut(&mut Session, &Piece<'_>) -> Result<()>,
    ) -> Result<bool> {
        if self.ranks.is_some() || session.ranks.is_none() {
            return self.run_pieces(session, role, tally, stop, after);
        }
        // A rank by itself, which the others do not wait for.
        let ordered = session.leave_ranks();
        let result = self.run_pieces(session, role, tally, stop, after);
        session.ordered = ordered;
        result
    }

    fn run_pieces(
        &mut self,
        session: &mut Session,
        role: Role,
        tally: &mut Tally,
        stop: &StopHandle,
        mut after: impl FnMut(&mut Session, &Piece<'_>) -> Result<()>,
    ) -> Result<bool> {
        let (mut came, mut ended) = (false, false);
        let in_order = self.ranks.clone().filter(|_| session.ordered.is_some());
        loop {
            let block = match &in_order {
                None => match self.feed.next_or_stop(stop.flag())? {
                    NextBatch::Batch(_) | NextBatch::Stopped if stop.is_stopped() => return Ok(false),
                    NextBatch::Batch(block) => Some(block),
                    NextBatch::EpochEnd | NextBatch::Stopped => break,
                },
                // All ranks go on to the next batch, also those that have no rows of it.
                Some(ranks) => {
                    // Another call would begin the next epoch.
                    let block = if ended { None } else { self.feed.next()? };
                    ended |= block.is_none();
                    match ranks.most([u64::from(stop.is_stopped()), u64::from(block.is_some())])? {
                        [0, 0] => break,
                        [0, _] => block,
                        _ => return Ok(false),
                    }
                }
            };
            came = true;
            let mut at = 0;
            while let Some(block) = block.as_ref().filter(|block| at < block.rows) {
                let rows = session.plan.micro_batch.min(block.rows - at);
                let first_row = block.first_row + at as u64;
                let batch = HostRows::Fed(block);
                let number = match &session.ordered {
                    Some(ordered) if in_order.is_some() => ordered.first() + (at / session.plan.micro_batch) as u32,
                    Some(ordered) => (first_row % ordered.fixed.batch() as u64 / ordered.fixed.rows() as u64) as u32,
                    None => 0,
                };
                if number == 0 && in_order.is_none() {
                    session.end_batch(tally)?;
                }
                let piece = Piece { batch, at, rows, first_row, batch_rows: self.whole, repeats: false, number };
                session.run(role, &piece, &self.schema, tally).map_err(|error| error.located(&self.data))?;
                after(session, &piece)?;
                at += rows;
            }
            if in_order.is_some() {
                session.end_batch(tally)?;
            }
        }
        session.settle(&self.schema, tally)?;
        if in_order.is_none() {
            session.end_batch(tally)?;
        }
        if came || self.ranks.is_some() { Ok(true) } else { Err(no_rows(&self.data)) }
    }
}

fn no_rows(data: &Dataset) -> Error {
    Error::Config(format!("there is nothing to evaluate: {} has no rows", data.describe()))
}
