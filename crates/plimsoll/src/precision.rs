//! Precision: the data type in which a step stores activations and gradients, and in which it multiplies.

use plimsoll_core::loss_scale::LossScaling;
use plimsoll_core::passes::{Columns, mixed_with};
use plimsoll_core::{DType, Graph, GraphError};
use serde::{Deserialize, Serialize};

/// The data type of activations and their gradients. Parameters and optimizer state stay in 32 bits, and so does all
/// arithmetic, except products in TF32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    /// 32 bits for everything.
    #[default]
    F32,
    /// 32 bits for everything, but matrix products and convolutions may round their operands to TF32 (10 bits of
    /// mantissa): on the tensor cores of a GPU. The CPU computes in f32.
    Tf32,
    /// f16, with dynamic loss scaling.
    MixedF16,
    /// bf16, which needs no loss scaling.
    MixedBf16,
}

impl Precision {
    /// All of them by the names configurations use.
    pub const NAMES: [(&'static str, Precision); 4] =
        [("f32", Precision::F32), ("tf32", Precision::Tf32), ("mixed_f16", Precision::MixedF16), ("mixed_bf16", Precision::MixedBf16)];

    /// Its name in configurations and reports.
    pub fn name(self) -> &'static str {
        Precision::NAMES.iter().find(|(_, precision)| *precision == self).map_or("", |(name, _)| name)
    }

    /// The loss scaling it needs, if any.
    pub(crate) fn scaling(self) -> Option<LossScaling> {
        (self == Precision::MixedF16).then(LossScaling::default)
    }

    fn storage(self) -> Option<DType> {
        match self {
            Precision::F32 | Precision::Tf32 => None,
            Precision::MixedF16 => Some(DType::F16),
            Precision::MixedBf16 => Some(DType::BF16),
        }
    }

    /// A forward graph in this precision. Values get new numbers; outputs keep their names.
    pub(crate) fn apply(self, graph: Graph, columns: Columns) -> Result<Graph, GraphError> {
        match self.storage() {
            None => Ok(graph.with_tf32(self == Precision::Tf32)),
            Some(dtype) => mixed_with(&graph, dtype, columns),
        }
    }
}
