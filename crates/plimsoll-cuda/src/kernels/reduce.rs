//! Reductions of an expression along axes. Each lane reduces part of the elements in order; a tree in shared memory
//! combines the lanes. Long reductions with few results are first split into chunks, which a second kernel combines in
//! the same way.

use super::expression::FusedExpr;
use super::index::strides;
use super::{Argument, Kernel, THREADS, block_count, indented, index_type};
use plimsoll_core::ops::Reduction;
use std::fmt::Write;

/// Elements per lane before a reduction is split into chunks.
const LANE: usize = 64;
/// Number of blocks that saturate a large device.
const BLOCKS: usize = 2048;
/// Adjacent results per block, if the innermost axis is not reduced.
const COLUMNS: usize = 32;

/// How a reduction is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cut {
    /// Number of results.
    kept: usize,
    /// Elements per result.
    reduced: usize,
    /// Lanes per result; a power of two.
    lanes: usize,
    /// Whether adjacent threads compute adjacent results; otherwise they read adjacent elements of one result.
    columns: bool,
    chunks: usize,
}

impl Cut {
    fn new(dims: &[usize], axes: &[usize]) -> Cut {
        let reduced: usize = axes.iter().map(|axis| dims[*axis]).product();
        let kept: usize = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).product();
        let innermost = (0..dims.len()).rev().find(|axis| dims[*axis] > 1);
        let columns = innermost.is_some_and(|axis| !axes.contains(&axis)) && kept >= 8;
        let lanes = match columns {
            true => THREADS / COLUMNS,
            // One thread reduces a short row; the whole block reduces a long one.
            false if reduced <= 16 => 1,
            false => (reduced / 4).next_power_of_two().clamp(8, THREADS),
        };
        let blocks = kept.div_ceil(THREADS / lanes).max(1);
        let chunks = reduced.div_ceil(lanes * LANE).min(BLOCKS / blocks).max(1);
        Cut { kept, reduced, lanes, columns, chunks }
    }

    fn per_block(&self) -> usize {
        THREADS / self.lanes
    }
}

/// Workspace bytes of a reduction of at most these extents; monotone in the rows.
pub(crate) fn reduce_workspace(dims: &[usize], axes: &[usize]) -> u64 {
    let cut = Cut::new(dims, axes);
    // More results may need fewer chunks, so the bound uses monotone quantities: elements, and the maximum number of
    // blocks.
    let lanes = THREADS / COLUMNS;
    if cut.reduced <= lanes * LANE {
        return 0;
    }
    let elements = cut.kept * cut.reduced;
    8 * (elements.div_ceil(lanes * LANE) + cut.kept).min(BLOCKS * THREADS) as u64
}

/// The kernels of a reduction: one, or two if it is split into chunks.
pub(crate) fn reduce(site: &FusedExpr<'_>, axes: &[usize], kind: Reduction) -> Vec<Kernel> {
    let cut = Cut::new(site.dims, axes);
    let store = |value: &str, position: &str| match kind {
        Reduction::ArgMax => format!("static_cast<int*>(out)[o] = {position};\n"),
        _ => format!("static_cast<float*>(out)[o] = {value};\n"),
    };
    let what = format!("reduce {:?} of {:?} along {axes:?}: {}", kind, site.dims, site.expr);
    let output = ("void* out".to_string(), Argument::Output(0));
    let mut parameters = site.parameters(0);
    let finished = kind_text(kind).finish;
    if cut.chunks == 1 {
        parameters.push(output);
        let body = body(&cut, kind, &elements(site, axes, &cut, kind), &store(finished, "position"));
        return vec![Kernel {
            name: "reduce",
            what,
            parameters,
            body,
            grid: [block_count(cut.kept, cut.per_block()), 1, 1],
            threads: THREADS as u32,
        }];
    }
    let partials = ("float2* partial".to_string(), Argument::Workspace);
    parameters.push(partials.clone());
    let keep = format!(
        "partial[({})chunk * {} + o] = make_float2(value, {});\n",
        index_type(cut.kept * cut.chunks),
        cut.kept,
        match kind {
            Reduction::ArgMax => "__int_as_float(position)",
            Reduction::LogSumExp => "sum",
            _ => "0.0f",
        }
    );
    let first = Kernel {
        name: "reduce_partial",
        what: format!("{what}, in {} chunks", cut.chunks),
        parameters,
        body: body(&cut, kind, &elements(site, axes, &cut, kind), &keep),
        grid: [block_count(cut.kept, cut.per_block()), cut.chunks as u32, 1],
        threads: THREADS as u32,
    };
    let columns = cut.kept >= 8;
    let lanes = if columns { THREADS / COLUMNS } else { THREADS };
    let joint = Cut { kept: cut.kept, reduced: cut.chunks, lanes, columns, chunks: 1 };
    let take =
        format!("const float2 part = partial[({})r * {} + o];\n", index_type(cut.kept * cut.chunks), cut.kept) + kind_text(kind).join_part;
    let second = Kernel {
        name: "reduce_combine",
        what: format!("{what}, joining the chunks"),
        parameters: vec![partials, output],
        body: body(&joint, kind, &take, &store(finished, "position")),
        grid: [block_count(joint.kept, joint.per_block()), 1, 1],
        threads: THREADS as u32,
    };
    vec![first, second]
}

/// The code that accumulates element `r` of result `o` into a lane.
fn elements(site: &FusedExpr<'_>, axes: &[usize], cut: &Cut, kind: Reduction) -> String {
    let index = index_type(cut.kept * cut.reduced);
    let mut text = format!("const {index} i = {};\n", place(site.dims, axes));
    site.write(&mut text, index, "i");
    let _ = writeln!(text, "const float x = {};", site.root(0));
    text + kind_text(kind).take
}

/// The index of element `r` of result `o` in the shape.
fn place(dims: &[usize], axes: &[usize]) -> String {
    let strides = strides(dims);
    let sum = |chosen: &[usize], index: &str| -> Vec<String> {
        let extents: Vec<usize> = chosen.iter().map(|axis| dims[*axis]).collect();
        let own = super::index::strides(&extents);
        let outermost = extents.iter().position(|dim| *dim > 1).unwrap_or(0);
        (0..chosen.len())
            .filter(|i| extents[*i] > 1)
            .map(|i| {
                let divided = if own[i] == 1 { index.to_string() } else { format!("{index} / {}", own[i]) };
                let coordinate = if i == outermost { divided } else { format!("{divided} % {}", extents[i]) };
                format!("({coordinate}) * {}", strides[chosen[i]])
            })
            .collect()
    };
    let kept: Vec<usize> = (0..dims.len()).filter(|axis| !axes.contains(axis)).collect();
    let terms = [sum(&kept, "o"), sum(axes, "r")].concat();
    if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
}

/// The code of a reduction operator: the initial value of a lane, how an element `x` with index `r` is accumulated, how
/// two lanes are combined (the other lane's values are `value2`, `sum2`, `position2`), how a chunk's `part` is
/// accumulated, and the final result.
struct KindText {
    start: &'static str,
    take: &'static str,
    join_part: &'static str,
    join: &'static str,
    finish: &'static str,
}

fn kind_text(kind: Reduction) -> KindText {
    match kind {
        Reduction::Sum => KindText {
            start: "float value = 0.0f;\n",
            take: "value += x;\n",
            join_part: "value += part.x;\n",
            join: "value += value2;\n",
            finish: "value",
        },
        Reduction::Max => KindText {
            start: "float value = number(0xff800000);\n",
            take: "value = larger(value, x);\n",
            join_part: "value = larger(value, part.x);\n",
            join: "value = larger(value, value2);\n",
            finish: "value",
        },
        // `value` is the maximum so far and `sum` the sum of exponentials relative to it.
        Reduction::LogSumExp => KindText {
            start: "float value = number(0xff800000), sum = 0.0f;\n",
            take: "log_sum(value, sum, x, 1.0f);\n",
            join_part: "log_sum(value, sum, part.x, part.y);\n",
            join: "log_sum(value, sum, value2, sum2);\n",
            finish: "(value - value == 0.0f ? value + logf(sum) : value)",
        },
        // The first of equal elements wins; NaN wins over all.
        Reduction::ArgMax => KindText {
            start: "float value = number(0xff800000);\nint position = 2147483647;\n",
            take: "first_largest(value, position, x, (int)r);\n",
            join_part: "first_largest(value, position, part.x, __float_as_int(part.y));\n",
            join: "first_largest(value, position, value2, position2);\n",
            finish: "value",
        },
    }
}

/// A whole kernel: lanes, then the tree, then `store` by the first lane.
fn body(cut: &Cut, kind: Reduction, take: &str, store: &str) -> String {
    let Cut { kept, reduced, lanes, columns, chunks } = *cut;
    let per_block = cut.per_block();
    let text = kind_text(kind);
    let (index, thread) = (index_type(kept * reduced), "threadIdx.x");
    let (local, lane) = match columns {
        true => (format!("{thread} % {per_block}"), format!("{thread} / {per_block}")),
        false => (format!("{thread} / {lanes}"), format!("{thread} % {lanes}")),
    };
    let mut body = format!("const {index} o = ({index})blockIdx.x * {per_block} + {local};\nconst {index} lane = {lane};\n");
    let (from, to) = if chunks == 1 {
        ("lane".to_string(), reduced.to_string())
    } else {
        let chunk = reduced.div_ceil(chunks);
        let _ = writeln!(body, "const {index} chunk = blockIdx.y, end = min(({index}){reduced}, (chunk + 1) * {chunk});");
        (format!("chunk * {chunk} + lane"), "end".to_string())
    };
    body += text.start;
    let _ = writeln!(body, "if (o < {kept}) for ({index} r = {from}; r < {to}; r += {lanes}) {{");
    indented(&mut body, 1, take);
    body += "}\n";
    if lanes > 1 {
        let second = match kind {
            Reduction::LogSumExp => Some(("float", "sum")),
            Reduction::ArgMax => Some(("int", "position")),
            Reduction::Sum | Reduction::Max => None,
        };
        let _ = writeln!(body, "__shared__ float values[{THREADS}];");
        if let Some((ty, name)) = second {
            let _ = writeln!(body, "__shared__ {ty} {name}s[{THREADS}];");
        }
        // Lane `l` of result `p` is at `p + l · step`, so that the two lanes to combine are always the same distance
        // apart.
        let step = if columns { per_block } else { 1 };
        let _ = writeln!(body, "for (int half = {}; half > 0; half /= 2) {{", lanes / 2);
        body += "    values[threadIdx.x] = value;\n";
        if let Some((_, name)) = second {
            let _ = writeln!(body, "    {name}s[threadIdx.x] = {name};");
        }
        body += "    __syncthreads();\n    if (lane < half) {\n";
        let _ = writeln!(body, "        const float value2 = values[threadIdx.x + half * {step}];");
        if let Some((ty, name)) = second {
            let _ = writeln!(body, "        const {ty} {name}2 = {name}s[threadIdx.x + half * {step}];");
        }
        let _ = writeln!(body, "        {}    }}\n    __syncthreads();\n}}", text.join);
    }
    let _ = writeln!(body, "if (o < {kept} && lane == 0) {{");
    indented(&mut body, 1, store);
    body + "}\n"
}
