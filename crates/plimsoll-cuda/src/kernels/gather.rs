//! Gather and scatter-add of table rows.
//!
//! Scatter-add needs no atomics: indices are sorted by counting, and a block adds the rows of one index in their order.
//! For small tables, each block owns some rows and columns of the table, scans all indices in order, and adds the rows
//! it owns.

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
    let each = if width.is_multiple_of(4) { 4 } else { 1 };
    let (n, index) = (count * width / each, index_type((count * width).max(rows * width)));
    let mut body = String::new();
    let _ = writeln!(
        body,
        "const {index} thread = ({index})blockIdx.x * {THREADS} + threadIdx.x, e = thread * {each};\nif (thread >= {n}) return;"
    );
    let _ = writeln!(body, "const int number = numbers[e / {width}];\nfloat row[{each}] = {{}};");
    let _ = writeln!(body, "if (number >= 0 && number < {rows}) load_vector(row, table + ({index})number * {width} + e % {width});");
    body += "store_vector(out + e, row);\n";
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

/// Maximum indices that are sorted by counting, in time proportional to their square.
const MOST_SORTED: usize = 1 << 16;
/// Minimum sums for which sorting pays.
const LARGE: usize = 1 << 16;

/// Whether the indices of a scatter-add are sorted first. Monotone in the count, up to the limit.
fn is_sorted(count: usize, rows: usize, width: usize) -> bool {
    count <= MOST_SORTED && rows * width >= LARGE
}

/// Workspace bytes of a scatter-add: the order of the indices. Monotone in the count.
pub(crate) fn scatter_add_workspace(count: usize, rows: usize, width: usize) -> u64 {
    if rows * width >= LARGE { 4 * count.min(MOST_SORTED) as u64 } else { 0 }
}

/// Adds row `i` of `[count, width]` to row `numbers[i]` of a zero-initialized table `[rows, width]`. The types are
/// those of indices and rows.
pub(crate) fn scatter_add(count: usize, rows: usize, width: usize, types: [DType; 2]) -> Vec<Kernel> {
    if is_sorted(count, rows, width) {
        sorted_scatter_add(count, rows, width, types)
    } else {
        vec![owned_scatter_add(count, rows, width, types)]
    }
}

/// Sorts the indices, clears the table, and adds the rows of each index in their order.
fn sorted_scatter_add(count: usize, rows: usize, width: usize, [numbers, given]: [DType; 2]) -> Vec<Kernel> {
    let index = index_type((count * width).max(rows * width));
    let indices = parameter(numbers, "numbers", Argument::Input(0));
    let table = ("float* out".to_string(), Argument::Output(0));
    let what = format!("{count} rows added to a table {rows}×{width}");
    // The position of an index is the number of smaller ones, and of equal ones before it.
    let sort = format!("constexpr int COUNT = {count}, ROWS = {rows};\n") + include_str!("scatter_sort.cu");
    let clear = format!("const {index} e = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (e < {}) out[e] = 0.0f;\n", rows * width);
    let columns = if width.is_multiple_of(4) { 4 } else { 1 };
    let mut add = format!("constexpr int COUNT = {count}, ROWS = {rows}, WIDTH = {width}, EACH = {columns};\nusing Index = {index};\n");
    add += include_str!("scatter_add_sorted.cu");
    let kernel = |name, parameters, body, grid| Kernel { name, what: what.clone(), parameters, body, grid, threads: THREADS as u32 };
    vec![
        kernel(
            "scatter_sort",
            vec![indices.clone(), ("int* order".to_string(), Argument::Workspace)],
            sort,
            [block_count(count, 64), 1, 1],
        ),
        kernel("scatter_clear", vec![table.clone()], clear, [block_count(rows * width, THREADS), 1, 1]),
        kernel(
            "scatter_add",
            vec![indices, ("const int* order".to_string(), Argument::Workspace), parameter(given, "given", Argument::Input(1)), table],
            add,
            [count as u32, block_count(width, THREADS * columns), 1],
        ),
    ]
}

/// Each block owns rows and columns of the table and scans all indices.
fn owned_scatter_add(count: usize, rows: usize, width: usize, [numbers, given]: [DType; 2]) -> Kernel {
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
