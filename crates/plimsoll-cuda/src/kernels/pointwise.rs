//! Elementwise expressions: a thread computes vectors of adjacent elements, several of them for large tensors.

use super::expression::FusedExpr;
use super::vector::{self, VectorCode, vector_code};
use super::{Argument, Kernel, THREADS, block_count, indented, index_type, type_name};
use plimsoll_core::DType;
use std::fmt::Write;

/// Minimum elements for several vectors per thread.
const LARGE: usize = 1 << 22;
/// Vectors per thread for large tensors.
const EACH: usize = 4;

/// The layout of a slice of a concat output, in elements: rows of `length` from `start` on, `pitch` apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PitchedRows {
    pub start: usize,
    pub length: usize,
    pub pitch: usize,
}

/// The expression over every element of its shape. An output may alias an input: a thread reads all its operands before
/// it writes.
pub(crate) fn pointwise(site: &FusedExpr<'_>, outputs: &[DType]) -> Kernel {
    let width = vector::width(site, outputs);
    written("pointwise", site, outputs, width, "i")
}

/// The expression over every element of its shape, with its only result written into a slice of a concat output.
pub(crate) fn fused_slice_write(site: &FusedExpr<'_>, output: DType, PitchedRows { start, length, pitch }: PitchedRows) -> Kernel {
    let width = vector::width(site, &[output]);
    let width = if [start, length, pitch].iter().all(|n| n.is_multiple_of(width)) { width } else { 1 };
    let at = format!("((unsigned long long)(i / {length}) * {pitch} + {start} + i % {length})");
    written("pointwise_slice_write", site, &[output], width, &at)
}

/// Elements that a block of a group computes.
const GROUP_BLOCK: usize = 4 * THREADS;

/// The expression over several sets of tensors, of these sizes, in one launch. The operands of the site are those of
/// one set: each has its size, or is a single number. Inputs and outputs of all sets follow each other.
pub(crate) fn pointwise_group(site: &FusedExpr<'_>, outputs: &[DType], sizes: &[usize]) -> Kernel {
    let read: Vec<usize> = (0..site.operands.len()).filter(|i| site.is_read(*i)).collect();
    let input_type = |i: usize| format!("const {}*", type_name(site.operands[i].dtype));
    let (mut parameters, mut body) = (Vec::new(), String::new());
    for set in 0..sizes.len() {
        let inputs = read.iter().map(|i| (format!("{} in{i}_{set}", input_type(*i)), Argument::Input(set * site.operands.len() + i)));
        parameters.extend(inputs);
        let results = outputs.iter().enumerate();
        parameters
            .extend(results.map(|(i, dtype)| (format!("{}* out{i}_{set}", type_name(*dtype)), Argument::Output(set * outputs.len() + i))));
    }
    read.iter().for_each(|i| body += &format!("{} in{i};\n", input_type(*i)));
    outputs.iter().enumerate().for_each(|(i, dtype)| body += &format!("{}* out{i};\n", type_name(*dtype)));
    body += "unsigned n, first;\n";
    let blocks: Vec<u32> = sizes.iter().map(|size| block_count(*size, GROUP_BLOCK)).collect();
    let ends: Vec<u32> = blocks.iter().scan(0, |end, blocks| Some(*end + blocks).inspect(|next| *end = *next)).collect();
    let choose = |set: usize| {
        let inputs = read.iter().map(|i| format!("in{i} = in{i}_{set}; "));
        let results = (0..outputs.len()).map(|i| format!("out{i} = out{i}_{set}; "));
        let names: String = inputs.chain(results).collect();
        format!("{names}n = {}; first = {};", sizes[set], ends[set] - blocks[set])
    };
    bisect(&mut body, 0, 0..sizes.len(), &|set| ends[set], &choose);
    let _ = writeln!(body, "#pragma unroll\nfor (int u = 0; u < {}; u++) {{", GROUP_BLOCK / THREADS);
    let _ = writeln!(body, "    const unsigned i = (blockIdx.x - first) * {GROUP_BLOCK} + u * {THREADS} + threadIdx.x;");
    let _ = writeln!(body, "    if (i < n) {{");
    let mut element = String::new();
    site.write(&mut element, "unsigned", "i");
    for i in 0..outputs.len() {
        let _ = writeln!(element, "store(out{i} + i, {});", site.root(i));
    }
    indented(&mut body, 2, &element);
    body += "    }\n}\n";
    Kernel {
        name: "pointwise_group",
        what: format!("pointwise, {} sets of tensors: {}", sizes.len(), site.expr),
        parameters,
        body,
        grid: [ends.last().copied().unwrap_or(0), 1, 1],
        threads: THREADS as u32,
    }
}

/// Writes a binary search for the set of a block.
fn bisect(body: &mut String, depth: usize, sets: std::ops::Range<usize>, end: &dyn Fn(usize) -> u32, choose: &dyn Fn(usize) -> String) {
    let indent = "    ".repeat(depth);
    if sets.len() == 1 {
        let _ = writeln!(body, "{indent}{}", choose(sets.start));
        return;
    }
    let middle = sets.start + sets.len() / 2;
    let _ = writeln!(body, "{indent}if (blockIdx.x < {}) {{", end(middle - 1));
    bisect(body, depth + 1, sets.start..middle, end, choose);
    let _ = writeln!(body, "{indent}}} else {{");
    bisect(body, depth + 1, middle..sets.end, end, choose);
    let _ = writeln!(body, "{indent}}}");
}

/// The expression over every vector of `width` elements from `i` on, with each result stored at offset `at` of its
/// tensor.
fn written(name: &'static str, site: &FusedExpr<'_>, outputs: &[DType], width: usize, at: &str) -> Kernel {
    let n: usize = site.dims.iter().product();
    let kind = index_type(n);
    let mut parameters = site.parameters(0);
    parameters.extend(outputs.iter().enumerate().map(|(i, dtype)| (vector::output_type(*dtype, i), Argument::Output(i))));
    let mut body = String::new();
    let each = if width == 1 {
        let _ = writeln!(body, "const {kind} i = ({kind})blockIdx.x * {THREADS} + threadIdx.x;\nif (i >= {n}) return;");
        site.write(&mut body, kind, "i");
        for i in 0..outputs.len() {
            let _ = writeln!(body, "store(out{i} + {at}, {});", site.root(i));
        }
        1
    } else {
        let VectorCode { hoisted, loads, mut element, period } = vector_code(site, kind, width, "first", &|_| true);
        // The vectors of a thread are a multiple of every period apart, so that they share what repeats.
        let each = if n >= LARGE && n.is_multiple_of(EACH * period * width) { EACH } else { 1 };
        let _ = writeln!(body, "const {kind} first = (({kind})blockIdx.x * {THREADS} + threadIdx.x) * {width};");
        let _ = writeln!(body, "if (first >= {}) return;", n / each);
        body += &hoisted;
        if each > 1 {
            let _ = writeln!(body, "#pragma unroll\nfor (int part = 0; part < {each}; part++) {{");
            let _ = writeln!(body, "    const {kind} i = first + part * ({kind}){};", n / each);
        } else {
            let _ = writeln!(body, "{{\n    const {kind} i = first;");
        }
        indented(&mut body, 1, &loads);
        for i in 0..outputs.len() {
            let _ = writeln!(body, "    float r{i}[{width}];");
            let _ = writeln!(element, "r{i}[u] = {};", site.root(i));
        }
        vector::over_elements(&mut body, 1, width, &element);
        for i in 0..outputs.len() {
            let _ = writeln!(body, "    store_vector(out{i} + {at}, r{i});");
        }
        body += "}\n";
        each
    };
    Kernel {
        name,
        what: format!("pointwise {:?}: {}", site.dims, site.expr),
        parameters,
        body,
        grid: [block_count(n, THREADS * each * width), 1, 1],
        threads: THREADS as u32,
    }
}
