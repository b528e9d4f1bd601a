//! What the ranks of a fit agree on between two steps: when they stop and write checkpoints, and the sums of an epoch.

use super::position::EpochPosition;
use super::training::Training;
use crate::error::Result;
use crate::session::Tally;

impl Training<'_, '_> {
    /// Between two steps: writes a checkpoint if one is due, and says whether somebody asked any rank to stop.
    pub(super) fn stops_on_any_rank(&mut self, place: &mut EpochPosition) -> Result<bool> {
        let Some((ranks, _)) = self.ranks.clone() else { return Ok(false) };
        let step = self.session.step;
        let due = std::mem::take(&mut place.fresh) && self.in_order && self.writer.as_ref().is_some_and(|writer| writer.due(step));
        let [stop, due] = ranks.most([u64::from(self.fit.stop.is_stopped()), u64::from(due)])?;
        if due == 1 {
            self.session.settle(&self.schema, &mut place.tally)?;
            let (own, mut all) = (self.session.counts().to_vec(), place.tally);
            self.sum_over_ranks(&mut all)?;
            (self.progress.rows, self.progress.tally) = (place.rows, all);
            self.save(false);
            self.session.set_counts(&own);
        }
        Ok(stop == 1)
    }

    /// Adds up what the ranks have counted, and takes the statistics of rank 0.
    pub(super) fn sum_over_ranks(&mut self, tally: &mut Tally) -> Result<()> {
        let Some((ranks, _)) = &self.ranks else { return Ok(()) };
        // In order, they were added after every batch.
        if self.session.ordered.is_none() {
            *tally = tally.over(ranks)?;
        }
        self.session.sum_counts(ranks)?;
        self.session.share_statistics(ranks)
    }
}
