//! Tiled matrix products: every block loads a tile of both operands into shared memory and multiplies from there.
//!
//! An operand is a code snippet that reads one of its elements, so matrix products and implicit-GEMM convolutions use
//! the same kernel.

use super::{Argument, Kernel, THREADS, block_count, indented, index_type, parameter};
use plimsoll_core::DType;
use std::fmt::Write;

/// A product: `rows × columns` results with `depth` products each, for each of `groups` independent groups (`g`).
pub(super) struct TiledMatmul {
    pub name: &'static str,
    pub what: String,
    pub rows: usize,
    pub columns: usize,
    pub depth: usize,
    pub groups: usize,
    /// Split-K factor; each chunk has its own results.
    pub chunks: usize,
    /// Sets `float value` to the left element in row `m` at depth `k`.
    pub left: String,
    /// Whether adjacent `k` (otherwise adjacent `m`) are contiguous in memory.
    pub left_along_depth: bool,
    /// Sets `float value` to the right element in column `n` at depth `k`.
    pub right: String,
    /// Like `left_along_depth`.
    pub right_along_depth: bool,
    /// Consumes `float value`, the result in row `m` and column `n` (of chunk `chunk`).
    pub store: String,
    pub parameters: Vec<(String, Argument)>,
    /// The largest index plus one.
    pub extent: usize,
}

/// Minimum results for large tiles.
const LARGE: usize = 1 << 21;

/// The extents of a tile, and the results per thread in each direction.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    rows: usize,
    columns: usize,
    each: usize,
}

impl Tile {
    pub fn new(rows: usize, columns: usize) -> Tile {
        // Large tiles read less memory, but need enough tiles to saturate a GPU.
        let most = if rows * columns >= LARGE { 128 } else { 64 };
        let extent = |n: usize| n.next_power_of_two().clamp(16, most);
        let (rows, columns) = (extent(rows), extent(columns));
        // Small tiles with few results per thread keep enough threads busy.
        let each = match rows * columns {
            16384.. => 8,
            2048.. => 4,
            _ => 2,
        };
        Tile { rows, columns, each }
    }

    /// Number of tiles that cover the results.
    pub fn count(self, rows: usize, columns: usize) -> usize {
        rows.div_ceil(self.rows) * columns.div_ceil(self.columns)
    }

    fn threads(self) -> usize {
        self.rows * self.columns / (self.each * self.each)
    }
}

impl TiledMatmul {
    pub fn kernel(self) -> Kernel {
        let TiledMatmul { rows, columns, depth, groups, chunks, .. } = self;
        let tile = Tile::new(rows, columns);
        let Tile { rows: tile_rows, columns: tile_columns, each } = tile;
        let (threads, deep) = (tile.threads(), depth.clamp(1, 16));
        let index = index_type(self.extent);
        let chunk = depth.div_ceil(chunks);
        let mut body = String::new();
        let _ = writeln!(body, "__shared__ float left[{deep}][{}], right[{deep}][{}];", tile_rows + 1, tile_columns + 1);
        let _ = writeln!(body, "const {index} m0 = ({index})blockIdx.x * {tile_rows}, n0 = blockIdx.y * {tile_columns};");
        if groups > 1 || chunks > 1 {
            let _ = writeln!(body, "const {index} g = blockIdx.z % {groups}, chunk = blockIdx.z / {groups};");
            let _ = writeln!(body, "const {index} start = chunk * {chunk}, end = min(({index}){depth}, start + {chunk});");
        } else {
            let _ = writeln!(body, "const {index} g = 0, start = 0, end = {depth};");
        }
        let _ = writeln!(body, "const int row = threadIdx.x / {0}, column = threadIdx.x % {0};", tile_columns / each);
        let _ = writeln!(body, "float sums[{each}][{each}] = {{}};");
        let _ = writeln!(body, "for ({index} k0 = start; k0 < end; k0 += {deep}) {{");
        load(&mut body, "left", ("m", tile_rows, rows), deep, self.left_along_depth, threads, index, &self.left);
        load(&mut body, "right", ("n", tile_columns, columns), deep, self.right_along_depth, threads, index, &self.right);
        body += "    __syncthreads();\n    #pragma unroll\n";
        let _ = writeln!(body, "    for (int k = 0; k < {deep}; k++) {{\n        float a[{each}], b[{each}];");
        // Strides of whole thread rows avoid bank conflicts.
        let (down, across) = (tile_rows / each, tile_columns / each);
        let _ = writeln!(body, "        for (int i = 0; i < {each}; i++) a[i] = left[k][row + i * {down}];");
        let _ = writeln!(body, "        for (int j = 0; j < {each}; j++) b[j] = right[k][column + j * {across}];");
        let _ = writeln!(body, "        for (int i = 0; i < {each}; i++) for (int j = 0; j < {each}; j++) sums[i][j] += a[i] * b[j];");
        body += "    }\n    __syncthreads();\n}\n#pragma unroll\n";
        let _ = writeln!(body, "for (int i = 0; i < {each}; i++) for (int j = 0; j < {each}; j++) {{");
        let _ = writeln!(body, "    const {index} m = m0 + row + i * {down}, n = n0 + column + j * {across};");
        let _ = writeln!(body, "    if (m >= {rows} || n >= {columns}) continue;\n    const float value = sums[i][j];");
        indented(&mut body, 1, &self.store);
        body += "}\n";
        Kernel {
            name: self.name,
            what: self.what,
            parameters: self.parameters,
            body,
            grid: [block_count(rows, tile_rows), block_count(columns, tile_columns), (groups * chunks) as u32],
            threads: threads as u32,
        }
    }
}

/// Loads a tile of one operand into shared memory; out-of-range elements are zero.
#[allow(clippy::too_many_arguments, reason = "one caller, which names each")]
fn load(
    body: &mut String,
    into: &str,
    (name, tile, extent): (&str, usize, usize),
    deep: usize,
    along_depth: bool,
    threads: usize,
    index: &str,
    element: &str,
) {
    let (outer, inner) =
        if along_depth { (format!("e / {deep}"), format!("e % {deep}")) } else { (format!("e % {tile}"), format!("e / {tile}")) };
    let _ = writeln!(body, "    for (int e = threadIdx.x; e < {}; e += {threads}) {{", tile * deep);
    let _ = writeln!(body, "        const {index} {name} = {name}0 + {outer}, k = k0 + {inner};");
    let _ = writeln!(body, "        float value = 0.0f;\n        if ({name} < {extent} && k < end) {{");
    indented(body, 3, element);
    let _ = writeln!(body, "        }}\n        {into}[{inner}][{outer}] = value;\n    }}");
}

/// A row-major matrix product for machines without cuBLASLt and for types it does not support; either operand may be
/// transposed. `types` are those of the operands and the result. With `onto`, the third input is added.
pub(crate) fn matmul((m, n, k): (usize, usize, usize), transpose_a: bool, transpose_b: bool, types: [DType; 3], onto: bool) -> Kernel {
    let at = |name: &str, row: &str, column: &str, width: usize| format!("value = load({name}[{row} * {width} + {column}]);\n");
    TiledMatmul {
        name: "matmul",
        what: format!("matrix product {m}×{k} · {k}×{n}"),
        rows: m,
        columns: n,
        depth: k,
        groups: 1,
        chunks: 1,
        left: if transpose_a { at("a", "k", "m", m) } else { at("a", "m", "k", k) },
        left_along_depth: !transpose_a,
        right: if transpose_b { at("b", "n", "k", k) } else { at("b", "k", "n", n) },
        right_along_depth: transpose_b,
        store: format!("store(c + m * {n} + n, value{});\n", if onto { format!(" + load(d[m * {n} + n])") } else { String::new() }),
        parameters: [
            parameter(types[0], "a", Argument::Input(0)),
            parameter(types[1], "b", Argument::Input(1)),
            parameter(types[2], "c", Argument::Output(0)),
        ]
        .into_iter()
        .chain(onto.then(|| parameter(types[2], "d", Argument::Input(2))))
        .collect(),
        extent: (m * k).max(k * n).max(m * n),
    }
    .kernel()
}

/// Casts a single-precision matrix to a 16-bit type at the start of the workspace: the library requires equal operand
/// types. Zeros follow up to `padded` elements.
pub(crate) fn cast(operand: usize, elements: usize, padded: usize, dtype: DType) -> Kernel {
    padded_cast(operand, elements, padded, dtype, Argument::Workspace)
}

/// Casts single-precision numbers to a 16-bit type.
pub(crate) fn cast_to(operand: usize, elements: usize, dtype: DType, to: Argument) -> Kernel {
    padded_cast(operand, elements, elements, dtype, to)
}

fn padded_cast(operand: usize, elements: usize, padded: usize, dtype: DType, to: Argument) -> Kernel {
    let index = index_type(padded);
    let each = if elements.is_multiple_of(8) && padded.is_multiple_of(8) { 8 } else { 1 };
    let mut body = String::new();
    let _ = writeln!(body, "const {index} i = (({index})blockIdx.x * {THREADS} + threadIdx.x) * {each};\nif (i >= {padded}) return;");
    let _ = writeln!(body, "float x[{each}] = {{}};\nif (i < {elements}) load_vector(x, from + i);\nstore_vector(to + i, x);");
    Kernel {
        name: "cast",
        what: format!("{elements} weights as {dtype}"),
        parameters: vec![parameter(DType::F32, "from", Argument::Input(operand)), parameter(dtype, "to", to)],
        body,
        grid: [block_count(padded, THREADS * each), 1, 1],
        threads: THREADS as u32,
    }
}
