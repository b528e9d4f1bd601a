//! Element types.

use serde::{Deserialize, Serialize};

/// The type of one element of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// IEEE single precision: what arithmetic is done in.
    F32,
    /// IEEE double precision: only met at the edges (files); never inside a step.
    F64,
    /// IEEE half precision.
    F16,
    /// Upper half of a single-precision number.
    BF16,
    /// Signed 32-bit integer: labels, tokens, indices.
    I32,
    /// Signed 64-bit integer: only met at the edges (files).
    I64,
    /// Unsigned byte: pixels, pooling positions, masks.
    U8,
}

impl DType {
    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            DType::F64 | DType::I64 => 8,
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::U8 => 1,
        }
    }

    /// Whether the type holds real numbers, and so may carry a gradient.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F64 | DType::F16 | DType::BF16)
    }

    /// The name used in print-outs and files.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F64 => "f64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::U8 => "u8",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}
