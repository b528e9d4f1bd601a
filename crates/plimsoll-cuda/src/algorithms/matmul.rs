//! Which matrix products go through cuBLASLt, in which type, and with how much workspace.

use super::ALIGNMENT;
use plimsoll_core::DType;

/// The most scratch a product is given.
const MOST: usize = 4 << 20;
/// Parts that a long sum may be cut into, each with results of its own.
const PARTS: usize = 32;

/// Bytes of scratch for a product of `m × n` results. A rule of ours, not of the library, so that plans need none; never less for more rows.
pub(crate) fn workspace(m: usize, n: usize) -> u64 {
    (PARTS * 4 * m * n).min(MOST) as u64
}

/// The type of both operands that the library multiplies, if there is one for these operands and this result: sums are single precision, and what is not of
/// two bytes may be narrowed before.
pub(crate) fn common_type(a: DType, b: DType, result: DType) -> Option<DType> {
    let common = match (a, b) {
        (DType::F32, other) | (other, DType::F32) => other,
        (a, b) if a == b => a,
        _ => return None,
    };
    let stores = result == DType::F32 || result == common;
    (stores && (common == DType::F32 || common.is_half())).then_some(common)
}

/// Bytes of scratch for an operand of this type as another one, so that what follows is aligned.
pub(crate) fn cast_bytes(from: DType, to: DType, elements: usize) -> u64 {
    if from == to { 0 } else { ((elements * to.size()) as u64).next_multiple_of(ALIGNMENT.0) }
}
