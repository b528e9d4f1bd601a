//! Selects which matrix products use cuBLASLt, in which type, and with how much workspace.

use super::ALIGNMENT;
use plimsoll_core::DType;

/// Maximum workspace of a product.
const MOST: usize = 4 << 20;
/// Maximum split-K factor; each split has its own results.
const PARTS: usize = 32;

/// Workspace bytes of a product with `m × n` results. The rule queries no library, so that planning needs none.
/// Monotone in the rows.
pub(crate) fn workspace(m: usize, n: usize) -> u64 {
    (PARTS * 4 * m * n).min(MOST) as u64
}

/// The common operand type that the library multiplies, if it supports these operands and this result. Accumulation is
/// in single precision, and single-precision operands may be narrowed.
pub(crate) fn common_type(a: DType, b: DType, result: DType) -> Option<DType> {
    let common = match (a, b) {
        (DType::F32, other) | (other, DType::F32) => other,
        (a, b) if a == b => a,
        _ => return None,
    };
    let stores = result == DType::F32 || result == common;
    (stores && (common == DType::F32 || common.is_half())).then_some(common)
}

/// Workspace bytes for an operand cast to another type, aligned.
pub(crate) fn cast_bytes(from: DType, to: DType, elements: usize) -> u64 {
    if from == to { 0 } else { ((elements * to.size()) as u64).next_multiple_of(ALIGNMENT.0) }
}
