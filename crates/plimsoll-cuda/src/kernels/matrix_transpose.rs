//! Matrix transpose, optionally with a type conversion. Tiles go through shared memory, so that both reads and writes
//! are coalesced.

use super::{Argument, Kernel, THREADS, block_count, index_type, parameter};
use plimsoll_core::DType;
use std::fmt::Write;

/// Rows and columns of a tile.
const TILE: usize = 32;

/// Transposes a matrix of `rows × columns`; each side has a type and an argument.
pub(crate) fn transpose_matrix((rows, columns): (usize, usize), from: (DType, Argument), to: (DType, Argument)) -> Kernel {
    let (index, step) = (index_type(rows * columns), THREADS / TILE);
    let mut body = String::new();
    let _ = writeln!(body, "__shared__ float tile[{TILE}][{}];", TILE + 1);
    let _ = writeln!(body, "const {index} x = threadIdx.x % {TILE}, y = threadIdx.x / {TILE};");
    let _ = writeln!(body, "const {index} row = ({index})blockIdx.x * {TILE}, column = ({index})blockIdx.y * {TILE};");
    let _ = writeln!(body, "for (int i = 0; i < {TILE}; i += {step}) {{");
    let _ = writeln!(
        body,
        "    if (row + y + i < {rows} && column + x < {columns}) tile[y + i][x] = load(from[(row + y + i) * {columns} + column + x]);\n}}"
    );
    let _ = writeln!(body, "__syncthreads();\nfor (int i = 0; i < {TILE}; i += {step}) {{");
    let _ = writeln!(
        body,
        "    if (column + y + i < {columns} && row + x < {rows}) store(to + (column + y + i) * {rows} + row + x, tile[x][y + i]);\n}}"
    );
    Kernel {
        name: "transpose_matrix",
        what: format!("turn {rows}×{columns}, {} to {}", from.0, to.0),
        parameters: vec![(format!("const {}* from", super::type_name(from.0)), from.1), parameter(to.0, "to", to.1)],
        body,
        grid: [block_count(rows, TILE), block_count(columns, TILE), 1],
        threads: THREADS as u32,
    }
}
