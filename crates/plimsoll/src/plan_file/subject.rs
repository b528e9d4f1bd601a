//! What a plan file is about: the run of its configuration, with its data, its device and its graphs.

use super::{Stated, unreadable, untrue};
use crate::allow::Permission;
use crate::config::Config;
use crate::devices::{self, DeviceSpec, OpenDevice};
use crate::error::{Error, Result};
use crate::graphs::{PlanSpace, PlannedRun, ProgramInterface, Programs, Variant, Variants, nodes};
use crate::plan::{DataSummary, Loads, check_ranks, check_reproducible, check_shards, is_as_specified};
use crate::precision::Precision;
use crate::ranks::MAX_RANKS;
use crate::spec::{Count, MAX_THREADS, RunSpec};
use plimsoll_core::Graph;
use plimsoll_core::plan::{self, Certificate, Plan};
use plimsoll_core::step::Role;
use serde_json::{Map, Value};
use std::sync::Arc;

/// No batch is larger.
const MAX_BATCH: usize = 1 << 24;

/// The run that a plan file describes.
pub(super) struct Subject {
    pub spec: RunSpec,
    pub data: DataSummary,
    pub opened: OpenDevice,
    /// Rows of a batch that a rank has.
    pub batch: usize,
    /// Rows of a micro-batch, if they are given.
    pub micro_batch: Option<usize>,
    /// What is stored in fewer bits than specified.
    pub variant: Variant,
}

/// A proven certificate.
pub(super) struct Proven {
    /// The plan that it describes.
    pub plan: Plan,
    /// The heap of the graphs and loaded programs of the run.
    pub graphs: u64,
    /// The heap of planning it with a search for strategies.
    pub planning: u64,
    /// For a plan of the run as it is specified: the heap of planning it without a search, and what it may hold beside
    /// the process for that.
    pub planning_as_specified: Option<(u64, u64)>,
    /// Whether batch normalization sees other statistics in a micro-batch, and whether it has those of the rows of all
    /// ranks.
    pub batch_statistics: bool,
    pub synchronized: bool,
    /// Whether micro-batches add up gradients in another order than whole batches.
    pub sums_reordered: bool,
    /// How the programs are read.
    pub interface: Arc<ProgramInterface>,
    pub precision: Precision,
}

impl Subject {
    /// Reads the configuration and opens the data and the device.
    pub fn read(configuration: &str, plan: &Map<String, Value>, assumptions: &Stated, max_batch: Option<usize>) -> Result<Subject> {
        let mut spec = Config::from_text(configuration)?.build()?;
        if spec.config != configuration {
            return Err(unreadable("its `configuration` was edited".to_string()));
        }
        let text = |key: &str| plan.get(key).and_then(Value::as_str).unwrap_or_default();
        spec.count = Count::named(text("count")).ok_or_else(|| unreadable("its plan states no `count`".to_string()))?;
        match (spec.device, assumptions.threads) {
            (DeviceSpec::Cpu, Some(threads))
                if (1..=MAX_THREADS).contains(&threads) && spec.threads.is_none_or(|given| given == threads) =>
            {
                spec.threads = Some(threads);
            }
            (DeviceSpec::Cuda(_) | DeviceSpec::CudaOfRank, None) => {}
            (_, stated) => return Err(untrue(format!("its assumptions state {stated:?} threads, which this run has not"))),
        }
        spec.ranks = assumptions.ranks;
        if !(1..=MAX_RANKS).contains(&spec.ranks) {
            return Err(untrue(format!("it states {} ranks", spec.ranks)));
        }
        let opened = devices::open(spec.device, spec.threads, spec.device_profile.as_deref(), spec.algorithms)?;
        if spec.parallel.reproducible {
            // Of a resumed run, the micro-batches are those that it began with.
            let stated = plan.get("micro_batch").and_then(Value::as_u64).and_then(|rows| usize::try_from(rows).ok());
            spec.micro_batch = spec.micro_batch.or(stated.filter(|rows| (1..=MAX_BATCH).contains(rows)));
        }
        let data = DataSummary::read(&spec)?;
        data.training.check_fixed_shapes()?;
        let own = spec.rank_batch(data.training.batch_rows()?);
        let (batch, micro_batch) = match max_batch {
            None => (own, spec.micro_batch.map(|rows| rows.clamp(1, own))),
            Some(rows) if rows == own || !(1..=MAX_BATCH).contains(&rows) => {
                return Err(untrue(format!("it states {rows} rows as the largest batch, and its configuration has {own}")));
            }
            Some(rows) => (rows, Some(rows)),
        };
        let variant = Variant {
            activations: text("precision") != spec.optimization.precision.name(),
            state: plan.get("optimizer_state_bits").and_then(Value::as_u64) == Some(8),
        };
        Ok(Subject { spec, data, opened, batch, micro_batch, variant })
    }

    /// Proves the certificate against the graphs of the run.
    pub fn prove(&self, certificate: &Certificate) -> Result<Proven> {
        let capabilities = self.opened.device.capabilities();
        check_shards(&self.spec, &capabilities)?;
        let variants = Variants::new(&self.spec, &self.data.training.schema, self.batch, &capabilities)?;
        let allowed: Vec<Variant> = variants.allowed(self.spec.allow).collect();
        if !allowed.contains(&self.variant) {
            return Err(untrue("it states a precision that its configuration has not and does not allow"));
        }
        let programs = variants.programs(self.variant)?;
        if self.spec.parallel.reproducible {
            check_reproducible(&capabilities, &programs)?;
        }
        if self.spec.ranks > 1 {
            check_ranks(&self.spec, &capabilities, &programs, self.batch)?;
        }
        self.may_have(certificate.rows, &programs)?;
        // An error about the file, not about the planner.
        let plan = plan::prove(certificate, self.graphs(&programs, certificate.rows)?, &*self.opened.device)
            .map_err(|error| Error::Config(error.to_string()))?;
        let micro_batches =
            self.micro_batch.map_or(self.may_accumulate(&programs) && self.batch > 1, |rows| rows.clamp(1, self.batch) < self.batch);
        let several_variants = self.spec.numerics.is_none() && allowed.len() > 1;
        let offload = self.spec.allow.has(Permission::Offload);
        let compared = PlanSpace { batch: self.batch, micro_batches, offload, several_variants, data: self.data.held };
        let planned = PlannedRun {
            nodes: nodes(plan.programs.iter().map(|program| &program.graph)),
            accumulates: certificate.rows < self.batch,
            as_specified: None,
        };
        let loads = Loads {
            data: &self.data,
            inference_only: self.spec.inference_only,
            ranks: self.spec.ranks,
            batch: self.batch,
            micro_batch: certificate.rows,
        };
        let whole = capabilities.shares_host_memory && certificate.rows == self.batch && self.variant == Variant::default();
        let as_specified = || (programs.planning_heap_as_specified(compared).0, programs.search_heap(compared).0);
        Ok(Proven {
            planning_as_specified: (whole && is_as_specified(&plan)).then(as_specified),
            graphs: Programs::heap(&plan, |role| loads.of(role)).0,
            planning: programs.planning_heap(&planned, compared)?.0,
            plan,
            interface: Arc::clone(&programs.interface),
            batch_statistics: programs.batch_statistics,
            synchronized: programs.synchronized,
            sums_reordered: certificate.rows < self.batch && !programs.batch_statistics && !programs.accumulates_exactly()?,
            precision: programs.optimization.precision,
        })
    }

    fn graphs<'a>(&self, programs: &'a Programs, rows: usize) -> Result<&'a [(Role, Graph)]> {
        if rows == self.batch { Ok(&programs.whole) } else { Ok(programs.accumulating()?) }
    }

    /// Whether the planner may use micro-batches.
    fn may_accumulate(&self, programs: &Programs) -> bool {
        let allow = self.spec.allow;
        allow.has(Permission::Microbatch)
            && !programs.synchronized
            && (!programs.batch_statistics || allow.has(Permission::MicrobatchBatchnorm))
            && programs.worth_dividing(self.batch)
    }

    /// Checks that the run may have micro-batches of this many rows.
    fn may_have(&self, rows: usize, programs: &Programs) -> Result<()> {
        let cut = self.may_accumulate(programs);
        let right = match self.micro_batch {
            Some(given) => rows == given,
            None => rows == self.batch || (cut && rows > 0 && self.batch.is_multiple_of(rows)),
        };
        if right {
            return Ok(());
        }
        Err(untrue(format!("it has micro-batches of {rows} rows, which a batch of {} may not have here", self.batch)))
    }
}
