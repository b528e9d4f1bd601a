//! The planner's choices that result bits depend on.

use crate::precision::Precision;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// The planner's choices that result bits depend on. A checkpoint stores them, and a resumed run is planned with the
/// same, so that it ends with the weights of a run without interruption. All other strategies (recomputation,
/// splitting, offload) change no bit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numerics {
    /// Rows of a micro-batch.
    pub micro_batch: usize,
    /// The data type of activations.
    pub precision: Precision,
    /// Whether optimizer state is stored in 8 bits because that was allowed.
    pub eight_bit_state: bool,
    /// What computes convolutions on a GPU (`PLIMSOLL_CONVOLUTIONS`); none on the CPU.
    pub convolutions: Option<String>,
    /// The measured algorithms of libraries on a GPU, by request; none if they follow from rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub algorithms: Option<BTreeMap<String, String>>,
}

impl fmt::Display for Numerics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "micro-batches of {} in {}", self.micro_batch, self.precision.name())?;
        f.write_str(if self.eight_bit_state { " with optimizer state in 8 bits" } else { "" })
    }
}
