//! Splits a product into tasks and blocks of C.

use super::LINE;
use super::micro_kernel::{MAX_COLUMNS, MAX_ROWS};

/// Rows of A packed at once: with [`DEPTH`] an eighth of a mebibyte, which leaves most of L2 to B and C.
pub(super) const ROWS: usize = 128;
/// Minimum rows of a block, if the product has as many: fewer would not amortize reading B.
const LEAST_ROWS: usize = 32;
/// Maximum columns of a block of C; a narrower C is split by columns only if it has few rows.
pub(super) const COLUMNS: usize = 1024;

/// Products with fewer multiply-adds run on the caller's thread: waking another costs more.
const SERIAL: usize = 1 << 19;
/// Target number of tasks, enough to balance large machines.
const TASKS: usize = 16;
/// Minimum columns of a block if a product with few rows is split by columns: fewer would not amortize reading A.
const LEAST_COLUMNS: usize = 2 * MAX_COLUMNS;

/// Maximum elements of C, and minimum k, of a product whose time is spent reading its operands: few blocks read them in
/// long runs.
const NARROW: usize = 1 << 15;
const LONG: usize = 4096;

/// The blocking of one product. Blocks are parts of C; k is never split, so that every element is summed in the same
/// order in any product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocking {
    pub rows: usize,
    pub row_blocks: usize,
    pub columns: usize,
    pub column_blocks: usize,
    pub parallel: bool,
}

impl Blocking {
    /// For non-zero `m`, `n` and `k`, on so many threads.
    pub fn new(m: usize, n: usize, k: usize, threads: usize) -> Blocking {
        let work = m.saturating_mul(n).saturating_mul(k);
        let parallel = work >= SERIAL;
        let whole = Blocking { rows: m, row_blocks: 1, columns: n, column_blocks: 1, parallel }.by_columns(n, n.div_ceil(COLUMNS));
        if !parallel {
            return whole;
        }
        if m * n <= NARROW && k >= LONG {
            return whole.by_rows(m, m.div_ceil(threads.max(1)).next_multiple_of(LINE));
        }
        // Blocks with few columns and small k are tall: they are memory-bound and benefit from long sequential reads.
        let least = (SERIAL / n.saturating_mul(k)).next_multiple_of(MAX_COLUMNS).max(LEAST_ROWS);
        let by_rows = whole.by_rows(m, m.div_ceil(TASKS).next_multiple_of(MAX_ROWS).clamp(least, ROWS.max(least)));
        if by_rows.blocks() >= TASKS / 4 {
            return by_rows;
        }
        // Few rows: split the columns instead, of which each is packed once; or else into blocks of few rows.
        let tasks = TASKS.min(work / SERIAL);
        let by_columns = whole.by_columns(n, tasks.min(n / LEAST_COLUMNS).max(whole.column_blocks));
        if by_columns.blocks() > by_rows.blocks() {
            return by_columns;
        }
        whole.by_rows(m, by_rows.rows.min(m.div_ceil(tasks).next_multiple_of(LINE)))
    }

    fn by_rows(self, m: usize, rows: usize) -> Blocking {
        let rows = rows.min(m);
        Blocking { rows, row_blocks: m.div_ceil(rows), ..self }
    }

    fn by_columns(self, n: usize, blocks: usize) -> Blocking {
        let columns = n.div_ceil(blocks).next_multiple_of(MAX_COLUMNS).min(n);
        Blocking { columns, column_blocks: n.div_ceil(columns), ..self }
    }

    pub fn blocks(&self) -> usize {
        self.row_blocks * self.column_blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn blocks_cover_the_product(m in 1usize..3000, n in 1usize..3000, k in 1usize..200_000) {
            let plan = Blocking::new(m, n, k, 3);
            prop_assert!(plan.rows * plan.row_blocks >= m && plan.rows * (plan.row_blocks - 1) < m);
            prop_assert!(plan.columns * plan.column_blocks >= n && plan.columns * (plan.column_blocks - 1) < n);
            prop_assert!(plan.columns <= COLUMNS + MAX_COLUMNS);
        }
    }

    #[test]
    fn large_products_have_several_blocks() {
        for (m, n, k) in [(32, 1000, 4096), (64, 512, 1024), (64, 64, 8192), (784, 10, 8192), (128, 1024, 1024), (20, 100, 100_000)] {
            let plan = Blocking::new(m, n, k, 2);
            assert!(plan.blocks() >= 2 && plan.blocks() <= 2 * TASKS, "{m}×{n}×{k}: {plan:?}");
        }
    }
}
