//! Gather and scatter-add of table rows.
//!
//! Scatter-add needs no atomics: each block owns some rows and columns of the table, scans all indices in order, and
//! adds the rows it owns.

use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use std::fmt::Write;

/// Number of blocks that saturate a GPU. Beyond it, a block owns several rows, because each block scans all indices.
const BLOCKS: usize = 1024;
/// Maximum rows per block; each takes one kibibyte of sums.
const MOST_ROWS: usize = 32;

/// Gathers row `numbers[i]` of a table `[rows, width]` for each of `count` indices; zeros if out of range. The types
/// are those of table, indices and result.
pub(crate) fn gather(count: usize, rows: usize, width: usize, [table, numbers, result]: [DType; 3]) -> Kernel {
    let (n, index) = (count * width, index_type((count * width).max(rows * width)));
    let mut body = String::new();
    let _ = writeln!(body, "const {index} e = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (e >= {n}) return;");
    let _ = writeln!(body, "const int number = numbers[e / {width}];");
    let _ = writeln!(body, "const bool is_row = number >= 0 && number < {rows};");
    let _ = writeln!(body, "store(out + e, is_row ? load(table[({index})number * {width} + e % {width}]) : 0.0f);");
    Kernel {
        name: "gather",
        what: format!("{count} rows of a table {rows}×{width}"),
        parameters: vec![
            parameter(table, "table", Argument::Input(0)),
            parameter(numbers, "numbers", Argument::Input(1)),
            parameter(result, "out", Argument::Output(0)),
        ],
        body,
        grid: [block_count(n, THREADS), 1, 1],
        threads: THREADS as u32,
    }
}

/// Adds row `i` of `[count, width]` to row `numbers[i]` of a zero-initialized table `[rows, width]`. The types are
/// those of indices and rows.
pub(crate) fn scatter_add(count: usize, rows: usize, width: usize, [numbers, given]: [DType; 2]) -> Kernel {
    let columns = width.next_power_of_two().clamp(32, THREADS);
    let across = width.div_ceil(columns);
    let owned = (rows * across / BLOCKS).max(1).next_power_of_two().min(MOST_ROWS);
    let index = index_type((count * width).max(rows * width));
    let mut body = String::new();
    let _ = writeln!(body, "constexpr int COUNT = {count}, ROWS = {rows}, WIDTH = {width};");
    let _ = writeln!(body, "constexpr int OWNED = {owned}, COLUMNS = {columns}, LANES = {};", THREADS / columns);
    let _ = writeln!(body, "using Index = {index};");
    Kernel {
        name: "scatter_add",
        what: format!("{count} rows added to a table {rows}×{width}"),
        parameters: vec![
            parameter(numbers, "numbers", Argument::Input(0)),
            parameter(given, "given", Argument::Input(1)),
            ("float* out".to_string(), Argument::Output(0)),
        ],
        body: body + include_str!("scatter_add.cu"),
        grid: [block_count(rows, owned), across as u32, 1],
        threads: THREADS as u32,
    }
}
