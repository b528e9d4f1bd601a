//! A data pipeline by itself: what it needs, how fast it is, and what comes out of it.

mod bench;
mod explain;
mod fill;
mod inspect;

use crate::error::{Error, Result};
use crate::infeasible::PipelineInfeasible;
use crate::system;
use plimsoll_core::budget::Owner;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{DataError, Dataset, Feed, Options, PipelinePlan};

pub use bench::{Bench, BenchEpoch};
pub use explain::{Explain, ExplainedStage};
pub use fill::Filled;
pub use inspect::Sample;

/// The data of a configuration, and the line it is to stay under.
///
/// ```
/// use plimsoll::config::Config;
/// let pipeline = Config::digits().pipeline()?;
/// let bench = pipeline.bench(2)?;
/// assert_eq!(bench.epochs.len(), 2);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct Pipeline {
    data: Dataset,
    line: Option<Bytes>,
}

/// A pipeline's part of the line, and everybody else's.
struct Planned {
    plan: PipelinePlan,
    process: Bytes,
    line: Bytes,
}

impl Pipeline {
    /// The pipeline of a data set under a line; without one, the line is what the system has.
    pub fn new(data: Dataset, line: Option<Bytes>) -> Pipeline {
        Pipeline { data, line }
    }

    /// Its data.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    fn plan(&self, data: &Dataset) -> Result<Planned> {
        let line = self.line.unwrap_or_else(system::available_memory);
        let process = system::process_footprint();
        match data.plan(Some(line.saturating_sub(process))) {
            Ok(plan) => Ok(Planned { plan, process, line }),
            Err(DataError::OverLimit { minimum, stages, .. }) => {
                let mut owners = vec![(Owner::Process, process)];
                owners.extend(stages.into_iter().map(|(stage, size)| (Owner::Stage(stage), size)));
                Err(Error::PipelineInfeasible(Box::new(PipelineInfeasible { budget: line, minimum: process + minimum, owners })))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Planned {
    fn total(&self) -> Bytes {
        self.process + self.plan.total()
    }

    fn start(&self, data: &Dataset, epochs: u64) -> Result<Feed> {
        let ledger = Ledger::new("host", Some(self.line));
        // The process is what it is; the books are for what is added to it.
        let _process = ledger.reserve(Owner::Process, self.process)?;
        Ok(Feed::start(data, &self.plan, &ledger, Options { epochs: Some(epochs), ..Options::default() })?)
    }
}
