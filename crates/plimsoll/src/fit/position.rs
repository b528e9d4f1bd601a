//! Where a fit begins, and where it is within an epoch.

use super::Fit;
use super::progress::Progress;
use crate::error::Result;
use crate::plan::RunPlan;
use crate::session::{Session, Tally};
use crate::spec::RunSpec;
use plimsoll_core::Reservation;
use plimsoll_core::budget::Owner;
use plimsoll_data::Dataset;

/// Where a fit begins: at its first step, or where a checkpoint was written.
pub(super) struct Begun {
    /// The rows that are fed: of several ranks, those of this one.
    pub data: Dataset,
    pub progress: Progress,
    /// Of checkpoints, of the file of the model and of the history.
    pub memory: [Reservation; 3],
}

impl Begun {
    /// Restores a checkpoint, if there is one to continue from.
    pub fn read(spec: &RunSpec, plan: &RunPlan, session: &mut Session, fit: &mut Fit<'_>) -> Result<Begun> {
        let owners = [Owner::Checkpoint, Owner::ModelFile, Owner::History];
        let [checkpoint, model_file, history] = owners.map(|owner| session.ledger.reserve(owner.clone(), plan.owned_by(&owner)));
        let memory = [checkpoint?, model_file?, history?];
        let (data, whole) = match &session.ranks {
            None => {
                let data = spec.data.clone().rebatch(plan.feed_rows);
                (data.clone(), data)
            }
            Some(ranks) => {
                let own = spec.rows_of_rank(&spec.data, ranks.rank(), true)?;
                let rows = own.batch_size().unwrap_or(plan.feed_rows);
                (own.rebatch(rows), spec.data.clone())
            }
        };
        Ok(Begun { progress: Progress::start(spec, fit, session, &whole, plan)?, data, memory })
    }
}

/// Where the steps of an epoch are.
pub(super) struct EpochPosition {
    /// Rows of the epoch up to the last complete step.
    pub rows: u64,
    /// Sums of all rows, and of those up to the last complete step.
    pub tally: Tally,
    pub at_step: Tally,
    /// Whether some micro-batches of the next step are done.
    pub within_step: bool,
    /// Whether that was the last step of the epoch.
    pub ended: bool,
    /// Whether a step ran since a checkpoint was last considered.
    pub fresh: bool,
}

impl EpochPosition {
    /// Rows of the epoch that are done, by all ranks if there are several.
    pub fn done(&self, over_ranks: bool) -> u64 {
        if over_ranks { self.rows } else { self.tally.rows }
    }
}
