//! The ways a run may be written: as it was asked for, and with numbers of fewer bits where that is allowed.

use super::learning::Learning;
use super::programs::{Programs, programs};
use crate::allow::{Allow, Permission};
use crate::nn::Model;
use crate::output_loss::OutputLosses;
use crate::precision::Precision;
use plimsoll_core::GraphError;
use plimsoll_core::passes::Columns;
use plimsoll_data::Schema;
use std::cell::OnceCell;

/// What is kept in fewer bits than was asked for. The default is nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variant {
    /// Activations in 16.
    pub activations: bool,
    /// What the optimiser knows about parameters in 8.
    pub state: bool,
}

impl Variant {
    /// All of them, what was asked for first.
    const ALL: [Variant; 4] = [
        Variant { activations: false, state: false },
        Variant { activations: true, state: false },
        Variant { activations: false, state: true },
        Variant { activations: true, state: true },
    ];

    /// What has to be allowed for it.
    pub fn permissions(self) -> impl Iterator<Item = Permission> {
        let activations = self.activations.then_some(Permission::MixedPrecision);
        activations.into_iter().chain(self.state.then_some(Permission::State8bit))
    }
}

/// A run's graphs in all variants, each written when it is first looked at.
pub(crate) struct Variants {
    model: Model,
    schema: Schema,
    targets: OutputLosses,
    learning: Learning,
    columns: Columns,
    only_predicts: bool,
    written: [OnceCell<Programs>; 4],
}

impl Variants {
    /// Writes the run as it was asked for.
    pub fn new(
        model: &Model,
        schema: Schema,
        targets: OutputLosses,
        learning: &Learning,
        columns: Columns,
        only_predicts: bool,
    ) -> Result<Variants, GraphError> {
        let (model, learning) = (model.clone(), learning.clone());
        let variants = Variants { model, schema, targets, learning, columns, only_predicts, written: Default::default() };
        variants.programs(Variant::default())?;
        Ok(variants)
    }

    /// The graphs as they were asked for.
    pub fn asked(&self) -> &Programs {
        self.written[0].get().expect("written first")
    }

    /// The variants these permissions open, what was asked for first.
    pub fn allowed(&self, allow: Allow) -> impl Iterator<Item = Variant> {
        Variant::ALL
            .into_iter()
            .filter(move |variant| variant.permissions().all(|permission| allow.has(permission)) && self.differs(*variant))
    }

    /// Whether a variant is another way at all: what has 16 bits already, or no state, cannot have fewer.
    fn differs(&self, variant: Variant) -> bool {
        let narrows = self.learning.precision == Precision::F32 && !self.only_predicts;
        let shrinks = !self.only_predicts && self.learning.optimizer.eight_bit_state().is_some();
        (!variant.activations || narrows) && (!variant.state || shrinks)
    }

    /// How a variant learns.
    pub fn learning(&self, variant: Variant) -> Learning {
        let mut learning = self.learning.clone();
        if variant.activations {
            learning.precision = Precision::MixedBf16;
        }
        if let Some(small) = learning.optimizer.eight_bit_state().filter(|_| variant.state) {
            learning.optimizer = small;
        }
        learning
    }

    /// The graphs of a variant.
    pub fn programs(&self, variant: Variant) -> Result<&Programs, GraphError> {
        let place = &self.written[usize::from(variant.activations) + 2 * usize::from(variant.state)];
        if place.get().is_none() {
            let mut written = programs(&self.model, &self.schema, &self.targets, &self.learning(variant), self.columns)?;
            if self.only_predicts {
                written.only_predict();
            }
            let _ = place.set(written);
        }
        Ok(place.get().expect("set above"))
    }

    /// Drops all graphs but those of the variant that runs and those that were asked for.
    pub fn settle_on(&mut self, variant: Variant) {
        for other in Variant::ALL.into_iter().skip(1).filter(|other| *other != variant) {
            self.written[usize::from(other.activations) + 2 * usize::from(other.state)].take();
        }
    }
}
