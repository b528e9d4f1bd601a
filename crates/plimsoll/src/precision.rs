//! Precision: in how many bits a step keeps what it computes.

use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::passes::{Columns, mixed_with};
use plimsoll_core::{DType, Graph, GraphError};

/// In how many bits activations and their gradients are kept. Parameters and what optimisers know about them stay in 32, and so does
/// all arithmetic.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits for everything.
    #[default]
    F32,
    /// 16 bits, IEEE half precision, with dynamic loss scaling.
    MixedF16,
    /// 16 bits, the upper half of single precision, which needs no scaling.
    MixedBf16,
}

impl Precision {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Precision); 3] =
        [("f32", Precision::F32), ("mixed_f16", Precision::MixedF16), ("mixed_bf16", Precision::MixedBf16)];

    /// Its name in configurations and reports.
    pub fn name(self) -> &'static str {
        Precision::NAMES.iter().find(|(_, precision)| *precision == self).map_or("", |(name, _)| name)
    }

    /// How the loss is scaled, if it has to be.
    pub(crate) fn scaling(self) -> Option<LossScaling> {
        (self == Precision::MixedF16).then(LossScaling::default)
    }

    fn storage(self) -> Option<DType> {
        match self {
            Precision::F32 => None,
            Precision::MixedF16 => Some(DType::F16),
            Precision::MixedBf16 => Some(DType::BF16),
        }
    }

    /// A forward graph in this precision. Values get new numbers; outputs keep their names.
    pub(crate) fn apply(self, graph: Graph, columns: Columns) -> Result<Graph, GraphError> {
        match self.storage() {
            None => Ok(graph),
            Some(dtype) => mixed_with(&graph, dtype, columns),
        }
    }
}
