//! The variants of a run's graphs: as specified, and with activations or optimizer state in fewer bits where that is
//! allowed.

use super::programs::{Programs, programs};
use crate::allow::{Allow, Permission};
use crate::error::Result;
use crate::output_loss::OutputLosses;
use crate::precision::Precision;
use crate::spec::{Optimization, RunSpec};
use plimsoll_core::GraphError;
use plimsoll_core::passes::Columns;
use plimsoll_core::plan::Capabilities;
use plimsoll_data::Schema;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is stored in fewer bits than specified; nothing by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Activations in 16 bits.
    pub activations: bool,
    /// Optimizer state in 8 bits.
    pub state: bool,
}

impl Variant {
    /// All of them, the run as specified first.
    const ALL: [Variant; 4] = [
        Variant { activations: false, state: false },
        Variant { activations: true, state: false },
        Variant { activations: false, state: true },
        Variant { activations: true, state: true },
    ];

    /// The permissions it needs.
    pub fn permissions(self) -> impl Iterator<Item = Permission> {
        let activations = self.activations.then_some(Permission::MixedPrecision);
        activations.into_iter().chain(self.state.then_some(Permission::State8bit))
    }

    /// How parameters are updated in this variant.
    pub fn apply(self, optimization: &Optimization) -> Optimization {
        let mut optimization = optimization.clone();
        if self.activations {
            optimization.precision = Precision::MixedBf16;
        }
        if let Some(small) = optimization.optimizer.eight_bit_state().filter(|_| self.state) {
            optimization.optimizer = small;
        }
        optimization
    }
}

/// A run's graphs in all variants. Held are those as specified and those used last; others are built again, because
/// planning has to stay within the budget too.
pub(crate) struct Variants<'a> {
    spec: &'a RunSpec,
    schema: &'a Schema,
    losses: OutputLosses,
    columns: Columns,
    resumes: bool,
    /// The rows of a batch for which losses over large vocabularies are computed in blocks; none on the CPU.
    logit_blocks: Option<usize>,
    built: Mutex<Vec<(Variant, Arc<Programs>)>>,
}

impl<'a> Variants<'a> {
    /// Builds the graphs as specified, for batches of `rows`.
    pub fn new(spec: &'a RunSpec, schema: &'a Schema, rows: usize, device: &Capabilities) -> Result<Variants<'a>> {
        // Matrix products on the CPU read any types; GPU libraries require equal types.
        let columns = if device.shares_host_memory { Columns::AsTheyAre } else { Columns::Narrowed };
        let variants = Variants {
            spec,
            schema,
            losses: spec.losses_with_metrics()?,
            columns,
            resumes: device.resumes_sums,
            logit_blocks: (!device.shares_host_memory).then_some(rows),
            built: Default::default(),
        };
        variants.programs(Variant::default())?;
        Ok(variants)
    }

    /// The variants that these permissions allow, the run as specified first.
    pub fn allowed(&self, allow: Allow) -> impl Iterator<Item = Variant> {
        Variant::ALL
            .into_iter()
            .filter(move |variant| variant.permissions().all(|permission| allow.has(permission)) && self.differs(*variant))
    }

    /// Whether a variant differs from the specified run: 16-bit activations cannot get narrower, and not every
    /// optimizer has 8-bit state.
    fn differs(&self, variant: Variant) -> bool {
        let trains = !self.spec.inference_only;
        let narrows = trains && matches!(self.spec.optimization.precision, Precision::F32 | Precision::Tf32);
        // Blocks of 8-bit states do not end where the shards of ranks do.
        let shrinks = trains && self.spec.optimization.optimizer.eight_bit_state().is_some() && self.spec.sharding().is_none();
        (!variant.activations || narrows) && (!variant.state || shrinks)
    }

    fn held(&self) -> MutexGuard<'_, Vec<(Variant, Arc<Programs>)>> {
        self.built.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The graphs of a variant.
    pub fn programs(&self, variant: Variant) -> Result<Arc<Programs>, GraphError> {
        let held = self.held().iter().find(|(built, _)| *built == variant).map(|(_, programs)| Arc::clone(programs));
        if let Some(programs) = held {
            return Ok(programs);
        }
        self.held().truncate(1);
        let optimization = variant.apply(&self.spec.optimization);
        let mut programs = programs(self.spec, self.schema, &self.losses, optimization, self.columns, self.resumes)?;
        if let Some(rows) = self.logit_blocks {
            programs.compute_logits_in_blocks(rows)?;
        }
        let programs = Arc::new(programs);
        self.held().push((variant, Arc::clone(&programs)));
        Ok(programs)
    }
}
