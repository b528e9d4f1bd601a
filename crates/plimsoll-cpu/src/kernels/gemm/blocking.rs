//! Splits a product into tasks and blocks by its shape alone, so that results do not depend on the number of threads.

use super::micro_kernel::{MAX_COLUMNS, MAX_ROWS};
use super::panel::DEPTH;

/// Rows of A packed at once: with [`DEPTH`] an eighth of a mebibyte, which leaves most of L2 to B and C.
pub(super) const ROWS: usize = 128;
/// Minimum rows of a block, if the product has as many: fewer would not amortize reading B.
pub(super) const LEAST_ROWS: usize = 32;
/// Maximum columns of a block of C; a narrower C is not split by columns.
pub(super) const COLUMNS: usize = 1024;

/// Products with fewer multiply-adds run on the caller's thread: waking another costs more.
const SERIAL: usize = 1 << 19;
/// Target number of tasks, enough to balance large machines.
const TASKS: usize = 16;
/// Minimum k per chunk: shorter chunks would spend their time summing partial results.
const CHUNK: usize = 512;
/// Maximum floats of partial sums (2 MiB).
const PARTIALS: usize = 1 << 19;
/// A product with at most this many outputs is split along k first: its operands are then read once, sequentially.
const NARROW: usize = PARTIALS / TASKS;

/// The blocking of one product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    pub rows: usize,
    pub row_blocks: usize,
    pub columns: usize,
    pub column_blocks: usize,
    pub depth: usize,
    pub chunks: usize,
    pub parallel: bool,
}

impl Blocking {
    /// For non-zero `m`, `n` and `k`.
    pub fn new(m: usize, n: usize, k: usize) -> Blocking {
        let parallel = m.saturating_mul(n).saturating_mul(k) >= SERIAL;
        let column_blocks = n.div_ceil(COLUMNS);
        let columns = n.div_ceil(column_blocks).next_multiple_of(MAX_COLUMNS).min(n);
        let column_blocks = n.div_ceil(columns);
        let whole = Blocking { rows: m, row_blocks: 1, columns, column_blocks, depth: k, chunks: 1, parallel };
        if !parallel {
            return whole;
        }
        let most_chunks = TASKS.min(k / CHUNK).min(PARTIALS / m.saturating_mul(n).max(1)).max(1);
        if m * n <= NARROW && most_chunks >= TASKS / 2 {
            return whole.chunked(k, most_chunks);
        }
        // Blocks with few columns and small k are tall: they are memory-bound and benefit from long sequential reads.
        let least = (SERIAL / n.saturating_mul(k)).next_multiple_of(MAX_COLUMNS).max(LEAST_ROWS);
        let rows = m.div_ceil(TASKS).next_multiple_of(MAX_ROWS).clamp(least, ROWS.max(least)).min(m);
        let row_blocks = m.div_ceil(rows);
        let blocks = row_blocks * column_blocks;
        let chunks = if blocks < TASKS / 4 { most_chunks.min(TASKS / blocks) } else { 1 };
        Blocking { rows, row_blocks, ..whole }.chunked(k, chunks)
    }

    fn chunked(self, k: usize, chunks: usize) -> Blocking {
        let depth = k.div_ceil(chunks).next_multiple_of(DEPTH.min(k));
        Blocking { depth, chunks: k.div_ceil(depth), ..self }
    }

    pub fn blocks(&self) -> usize {
        self.row_blocks * self.column_blocks
    }
}

/// Whether a product of `n` columns over `k` sums every element in the same order for any number of rows, at least
/// `least`: with this many rows there are enough blocks, and k is never split.
pub(crate) fn rows_are_independent(least: usize, n: usize, k: usize) -> bool {
    const MANY: usize = ROWS * (TASKS / 4);
    let long_runs = n.saturating_mul(k) < SERIAL / ROWS || MANY.saturating_mul(n) <= NARROW;
    least > 1 && n > 1 && (k < 2 * CHUNK || (!long_runs && (least..MANY).all(|m| Blocking::new(m, n, k).chunks == 1)))
}

/// Whether a product of a transposed A over at most `k` can be accumulated over pieces of this many k, bit-identically:
/// sums are flushed every [`DEPTH`] k, and there is no split-K.
pub(crate) fn sums_resume(m: usize, n: usize, k: usize, piece: usize) -> bool {
    let in_one_chunk = m.saturating_mul(n) > PARTIALS || m.saturating_mul(n).saturating_mul(k) < SERIAL;
    m > 1 && n > super::tall_skinny::COLUMNS && piece.is_multiple_of(DEPTH) && in_one_chunk
}

/// Floats of partial sums for any product of at most `m` rows: an upper bound that is monotone in `m` and `k`.
pub(super) fn partials(m: usize, n: usize, k: usize) -> usize {
    let chunks = TASKS.min(k / CHUNK).max(1);
    (chunks - 1).saturating_mul(m.saturating_mul(n)).min(if chunks > 1 { PARTIALS } else { 0 })
}

/// Like [`partials`], with space for the first chunk's sums too.
pub(super) fn all_partials(m: usize, n: usize, k: usize) -> usize {
    let first = if k / CHUNK > 1 { m.saturating_mul(n).min(PARTIALS) } else { 0 };
    partials(m, n, k) + first
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_cut_covers_the_product_within_its_bounds(m in 1usize..3000, n in 1usize..3000, k in 1usize..200_000) {
            let plan = Blocking::new(m, n, k);
            prop_assert!(plan.rows * plan.row_blocks >= m && plan.rows * (plan.row_blocks - 1) < m);
            prop_assert!(plan.columns * plan.column_blocks >= n && plan.columns * (plan.column_blocks - 1) < n);
            prop_assert!(plan.depth * plan.chunks >= k && plan.depth * (plan.chunks - 1) < k);
            prop_assert!((plan.chunks - 1) * m * n <= partials(m, n, k));
            prop_assert!(n > COLUMNS || plan.column_blocks == 1);
        }

        #[test]
        fn rows_that_are_said_to_be_alone_are(least in 2usize..600, more in 0usize..5000, n in 2usize..3000, k in 1usize..60_000) {
            prop_assert!(!rows_are_independent(least, n, k) || Blocking::new(least + more, n, k).chunks == 1);
        }

        #[test]
        fn sums_that_are_said_to_go_on_are_in_one_chunk(m in 2usize..9000, n in 17usize..900, pieces in 1usize..40, piece in 1usize..4) {
            let (piece, k) = (piece * DEPTH, pieces * piece * DEPTH);
            if sums_resume(m, n, k, piece) {
                prop_assert!((1..=pieces).all(|pieces| Blocking::new(m, n, pieces * piece).chunks == 1));
            }
        }

        #[test]
        fn partial_sums_never_shrink(m in 1usize..3000, n in 1usize..3000, k in 1usize..200_000) {
            prop_assert!(partials(m, n, k) <= partials(m + 1, n, k));
            prop_assert!(partials(m, n, k) <= partials(m, n, k + 1));
        }
    }
}
