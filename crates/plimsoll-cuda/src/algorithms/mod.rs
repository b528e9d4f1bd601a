//! Which implementation computes a node, and the workspace it is given.
//!
//! These are rules over shapes and types. They query no library, so that plans need none, and measure nothing, so that
//! every run makes the same choice. Which algorithm a library uses is its own first choice, or a [measured] one in the
//! same workspace.

pub(crate) mod convolution;
pub(crate) mod matmul;
pub(crate) mod measured;

use plimsoll_core::{Bytes, DType};

/// Alignment of every planned offset: the driver's own alignment, and preferred by matrix products.
pub(crate) const ALIGNMENT: Bytes = Bytes(256);

/// The type in which a library multiplies; sums are in single precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ComputeType {
    /// The type of the operands in memory.
    pub dtype: DType,
    /// Whether single-precision operands are rounded to TF32.
    pub tf32: bool,
}

impl ComputeType {
    /// Operands of type `dtype` in a graph that allows TF32, or not.
    pub fn new(dtype: DType, tf32: bool) -> ComputeType {
        ComputeType { dtype, tf32: tf32 && dtype == DType::F32 }
    }

    /// Whether tensor cores multiply: 16-bit operands, and single precision if it may be rounded.
    pub fn on_tensor_cores(self) -> bool {
        self.dtype.is_half() || self.tf32
    }

    /// Its name in recorded requests.
    pub fn text(self) -> String {
        if self.tf32 { "tf32".to_string() } else { self.dtype.to_string() }
    }

    /// Elements of 16 bytes, in which tensor cores read channels.
    pub fn vector(self) -> usize {
        16 / self.dtype.size()
    }
}
