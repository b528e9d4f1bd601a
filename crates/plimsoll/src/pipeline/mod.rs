//! A data pipeline by itself: what it needs, how fast it is, and what comes out of it.

mod bench;
mod explain;
mod fill;
mod inspect;

use crate::error::{Error, Result};
use crate::system;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{DataError, Dataset, Feed, Options, PipelinePlan};
use serde_json::{Map, Value, json};
use std::fmt;

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

/// A pipeline that does not fit under its line.
#[derive(Clone, Debug)]
pub struct OverLine {
    /// The line.
    pub line: Bytes,
    /// The smallest line that works.
    pub least: Bytes,
    /// What stands under the smallest line, by owner.
    pub owners: Vec<(String, Bytes)>,
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
                let mut owners = vec![("process".to_string(), process)];
                owners.extend(stages);
                Err(Error::OverLine(Box::new(OverLine { line, least: process + minimum, owners })))
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
        let _process = ledger.reserve("process", self.process)?;
        Ok(Feed::start(data, &self.plan, &ledger, Options { epochs: Some(epochs), ..Options::default() })?)
    }
}

impl std::error::Error for OverLine {}

impl fmt::Display for OverLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owners: Vec<String> = self.owners.iter().map(|(name, size)| format!("{name} {size}")).collect();
        write!(
            f,
            "this pipeline does not fit into {} of host memory; the smallest line that works is {} ({} bytes): {}",
            self.line,
            self.least,
            self.least.0,
            owners.join(", ")
        )
    }
}

impl OverLine {
    /// The refusal as one JSON object.
    pub fn to_json(&self) -> Value {
        let owners: Map<String, Value> = self.owners.iter().map(|(name, size)| (name.clone(), json!(size.0))).collect();
        json!({
            "feasible": false,
            "error": self.to_string(),
            "host_budget_bytes": self.line.0,
            "min_bytes": self.least.0,
            "by_owner": owners,
        })
    }
}
