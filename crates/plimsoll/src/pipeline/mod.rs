//! An input pipeline without a model: its memory, its throughput and its first rows.

mod bench;
mod explain;
mod fill_cache;
mod inspect;
mod rows;

use crate::error::{Error, Result};
use crate::image_scan::scan_images;
use crate::infeasible::PipelineInfeasible;
use crate::system;
use plimsoll_core::budget::{Owner, give_back_program_pages};
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{DataError, Dataset, Feed, Options, PipelinePlan};

pub use bench::{Bench, BenchEpoch};
pub use explain::{Explain, ExplainedStage};
pub use fill_cache::FilledCache;
pub use inspect::Sample;

/// The data of a configuration, and the budget of the process that reads it.
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
    budget: Option<Bytes>,
    /// What reads it, and the memory of that in the same budget.
    reader: String,
    beside: Vec<(Owner, Bytes)>,
}

/// A pipeline's plan beside the rest of the process, under one budget.
struct Planned {
    plan: PipelinePlan,
    /// The process, and what reads the rows.
    process: Bytes,
    budget: Bytes,
}

impl Pipeline {
    /// The pipeline of a dataset under a budget; the default is the memory that is available.
    pub fn new(data: Dataset, budget: Option<Bytes>) -> Pipeline {
        Pipeline { data, budget, reader: "this pipeline".to_string(), beside: Vec::new() }
    }

    /// Reserves memory of the same budget for what reads the rows; `reader` names it in refusals.
    pub(crate) fn read_by(mut self, reader: &str, memory: Vec<(Owner, Bytes)>) -> Pipeline {
        (self.reader, self.beside) = (reader.to_string(), memory);
        self
    }

    /// Its data.
    pub fn data(&self) -> &Dataset {
        &self.data
    }

    fn plan(&self, data: &Dataset) -> Result<Planned> {
        let budget = self.budget.unwrap_or_else(system::available_memory);
        let process = system::process_footprint();
        let beside = self.beside.iter().fold(process, |sum, (_, size)| sum + *size);
        scan_images(data)?;
        let refused = |minimum: Bytes, stages: Vec<(String, Bytes)>| {
            let mut owners = vec![(Owner::Process, process)];
            owners.extend(self.beside.iter().cloned());
            owners.extend(stages.into_iter().map(|(stage, size)| (Owner::Stage(stage), size)));
            let infeasible = PipelineInfeasible { what: self.reader.clone(), budget, minimum: beside + minimum, owners };
            Error::PipelineInfeasible(Box::new(infeasible))
        };
        match data.plan(Some(budget.saturating_sub(beside))) {
            Ok(plan) if beside > budget => Err(refused(plan.total(), Vec::new())),
            Ok(plan) => Ok(Planned { plan, process: beside, budget }),
            Err(DataError::OverLimit { minimum, stages, .. }) => Err(refused(minimum, stages)),
            Err(error) => Err(error.into()),
        }
    }
}

impl Planned {
    fn total(&self) -> Bytes {
        self.process + self.plan.total()
    }

    fn start(&self, data: &Dataset, epochs: u64) -> Result<Feed> {
        let ledger = Ledger::new("host", Some(self.budget));
        // The process is resident already, or its memory is planned elsewhere; the ledger counts what the pipeline adds
        // to it.
        let _process = ledger.reserve(Owner::Process, self.process)?;
        let feed = Feed::start(data, &self.plan, &ledger, Options { epochs: Some(epochs), ..Options::default() })?;
        give_back_program_pages();
        Ok(feed)
    }
}
