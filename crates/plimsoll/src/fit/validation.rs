//! Evaluation of a dataset: loss and metrics, or predictions, without training.

use crate::error::{Error, Result};
use crate::metrics::Scores;
use crate::session::{Piece, Rows, Session, Tally, feed};
use plimsoll_core::step::Role;
use plimsoll_data::{Dataset, Feed, Options, PipelinePlan, Schema};

/// A dataset that is evaluated epoch by epoch.
pub(crate) struct Validation {
    data: Dataset,
    feed: Feed,
    schema: Schema,
    /// The rows that the loss is divided by: all of them, or those of a micro-batch where their number is not known.
    whole: u64,
}

impl Validation {
    pub(crate) fn start(role: Role, data: &Dataset, pipeline: &PipelinePlan, session: &Session, epochs: u64) -> Result<Validation> {
        let (data, fed) = (data.clone(), data.clone().rebatch(session.plan.feed_rows));
        if data.is_empty() {
            return Err(no_rows(&data));
        }
        session.check_schema(role, &data.output_schema()?)?;
        // Numbered like the epochs they follow, so that a resumed run adds up in the same order.
        let options = Options { first_epoch: session.epochs, epochs: Some(epochs), ..Options::default() };
        let feed = feed::start(&fed, pipeline, &session.ledger, options, session.executor.device())?;
        let whole = data.size().unwrap_or(session.plan.micro_batch as u64);
        Ok(Validation { feed, schema: data.output_schema()?, whole, data })
    }

    pub(crate) fn evaluate(&mut self, session: &mut Session) -> Result<Scores> {
        let mut tally = session.begin()?;
        self.each_piece(session, Role::Evaluate, &mut tally, |_, _| Ok(()))?;
        if !tally.loss.is_finite() {
            let what = "the validation loss is not finite; check the validation data, or try a smaller learning rate";
            return Err(Error::Config(what.to_string()));
        }
        Ok(session.scores(&tally))
    }

    /// Runs a program over every row, a piece at a time.
    pub(crate) fn each_piece(
        &mut self,
        session: &mut Session,
        role: Role,
        tally: &mut Tally,
        mut after: impl FnMut(&mut Session, usize) -> Result<()>,
    ) -> Result<()> {
        let mut came = false;
        while let Some(block) = self.feed.next()? {
            came = true;
            let mut at = 0;
            while at < block.rows {
                let rows = session.plan.micro_batch.min(block.rows - at);
                let first_row = block.first_row + at as u64;
                let batch = Rows::Fed(&block);
                let piece = Piece { batch, at, rows, first_row, batch_rows: self.whole };
                session.run(role, &piece, &self.schema, tally).map_err(|error| error.located(&self.data))?;
                after(session, rows)?;
                at += rows;
            }
        }
        session.settle(&self.schema, tally)?;
        if came { Ok(()) } else { Err(no_rows(&self.data)) }
    }
}

fn no_rows(data: &Dataset) -> Error {
    Error::Config(format!("there is nothing to evaluate: {} has no rows", data.describe()))
}
