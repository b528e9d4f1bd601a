//! Selects which matrix products use cuBLASLt, in which type, and with how much workspace.

use super::ALIGNMENT;
use plimsoll_core::DType;

/// Maximum workspace of a product.
const MOST: usize = 16 << 20;
/// Maximum split-K factor; each split has its own results.
const PARTS: usize = 32;

/// Workspace bytes of a product with `m × n` results. The rule queries no library, so that planning needs none.
/// Monotone in the rows.
pub(crate) fn workspace(m: usize, n: usize) -> u64 {
    (PARTS * 4 * m * n).min(MOST) as u64
}

/// Minimum multiplications for which unaligned matrices are copied into padded rows.
const LARGE: usize = 1 << 32;
/// Workspace bytes for padded rows at a time.
const PADDED: usize = 96 << 20;
/// Padded blocks have a multiple of this many rows or columns, except the last.
const BLOCK: usize = 256;

/// A matrix of a product whose rows are not a multiple of 16 bytes: the products of tensor cores are several times
/// slower with it, so it is multiplied in blocks that have padded rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unaligned {
    /// The left operand, `m × k`: in blocks of rows.
    Left,
    /// The left operand, transposed, `k × m`: in blocks of columns, which are rows of the result.
    LeftTransposed,
    /// The result, `m × n`: in blocks of rows.
    Result,
}

/// Whether a product of operands of type `common` has an unaligned matrix that is worth padding.
pub(crate) fn unaligned(
    (m, n, k): (usize, usize, usize),
    (transpose_a, transpose_b): (bool, bool),
    common: DType,
    result: DType,
) -> Option<Unaligned> {
    let aligned = |width: usize| width.is_multiple_of(8);
    let large = m.saturating_mul(n).saturating_mul(k) >= LARGE;
    if !common.is_half() || !large {
        return None;
    }
    // Vectors must cover the unaligned matrix.
    let whole = |rows: usize, columns: usize| (rows * columns).is_multiple_of(8);
    match (transpose_a, aligned(if transpose_a { m } else { k }), aligned(if transpose_b { k } else { n }), aligned(n)) {
        (false, false, true, true) if whole(m, k) => Some(Unaligned::Left),
        (true, false, true, true) if whole(m, k) => Some(Unaligned::LeftTransposed),
        (false, true, true, false) if transpose_b && result == common && whole(m, n) => Some(Unaligned::Result),
        _ => None,
    }
}

/// The blocks of an unaligned matrix of `rows × columns`, each as its first index and length, along the rows or along
/// the columns.
pub(crate) fn padded_blocks((rows, columns): (usize, usize), along_rows: bool) -> Vec<(usize, usize)> {
    let (count, other) = if along_rows { (rows, columns.next_multiple_of(8)) } else { (columns, rows) };
    let most = (PADDED / 2 / other.max(1) / BLOCK * BLOCK).max(BLOCK);
    // Blocks of equal size.
    let length = count.div_ceil(count.div_ceil(most).max(1)).next_multiple_of(BLOCK);
    (0..count).step_by(length).map(|first| (first, length.min(count - first))).collect()
}

/// Workspace bytes for a block of an unaligned matrix of a product.
pub(crate) fn padded_bytes((m, n, k): (usize, usize, usize), unaligned: Unaligned) -> u64 {
    let (dims, along_rows) = match unaligned {
        Unaligned::Left => ((m, k), true),
        Unaligned::LeftTransposed => ((k, m), false),
        Unaligned::Result => ((m, n), true),
    };
    // Monotone in the rows of the batch, which change the number of blocks.
    let whole = (2 * dims.0 * dims.1.next_multiple_of(8)) as u64;
    let block = BLOCK * 2 * if along_rows { dims.1.next_multiple_of(8) } else { dims.0 };
    whole.next_multiple_of(ALIGNMENT.0).min(((PADDED.max(block)) as u64).next_multiple_of(ALIGNMENT.0)).max(
        padded_blocks(dims, along_rows)
            .iter()
            .map(|(_, length)| {
                let bytes = if along_rows { length * dims.1.next_multiple_of(8) } else { length.next_multiple_of(8) * dims.0 };
                ((2 * bytes) as u64).next_multiple_of(ALIGNMENT.0)
            })
            .max()
            .unwrap_or(0),
    )
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_unaligned_matrices_are_padded() {
        let bf16 = DType::BF16;
        let cases = [
            ("logits", (16_384, 50_257, 768), (false, true), bf16, Some(Unaligned::Result)),
            ("aligned logits", (16_384, 50_304, 768), (false, true), bf16, None),
            ("gradient of the hidden state", (16_384, 768, 50_257), (false, false), bf16, Some(Unaligned::Left)),
            ("gradient of the table", (50_257, 768, 16_384), (true, false), DType::F32, Some(Unaligned::LeftTransposed)),
            ("few rows", (16, 50_257, 768), (false, true), bf16, None),
        ];
        for (name, extents, transpose, result, want) in cases {
            assert_eq!(unaligned(extents, transpose, bf16, result), want, "{name}");
            assert_eq!(unaligned(extents, transpose, DType::F32, DType::F32), None, "{name} in single precision");
        }
    }

    #[test]
    fn blocks_cover_the_matrix_and_fit_the_workspace() {
        for rows in [128, 1024, 2048, 5000, 16_384] {
            for (dims, along_rows, unaligned, extents) in [
                ((rows, 50_257), true, Unaligned::Result, (rows, 50_257, 768)),
                ((rows, 50_257), true, Unaligned::Left, (rows, 768, 50_257)),
                ((rows, 50_257), false, Unaligned::LeftTransposed, (50_257, 768, rows)),
            ] {
                let blocks = padded_blocks(dims, along_rows);
                let mut end = 0;
                for (first, length) in &blocks {
                    assert_eq!((*first, first % BLOCK), (end, 0));
                    end += length;
                    let bytes = 2 * if along_rows { length * 50_264 } else { length.next_multiple_of(8) * rows };
                    assert!(bytes as u64 <= padded_bytes(extents, unaligned), "{dims:?} {blocks:?}");
                }
                assert_eq!(end, if along_rows { rows } else { 50_257 });
            }
        }
        for unaligned in [Unaligned::Left, Unaligned::Result] {
            let sizes = [1, 100, 1000, 1500, 4000, 16_384, 20_000].map(|rows| padded_bytes((rows, 50_257, 50_257), unaligned));
            assert!(sizes.is_sorted(), "{sizes:?}");
        }
        let sizes = [1, 100, 1000, 1500, 4000, 16_384, 20_000].map(|rows| padded_bytes((50_257, 768, rows), Unaligned::LeftTransposed));
        assert!(sizes.is_sorted(), "{sizes:?}");
    }
}
