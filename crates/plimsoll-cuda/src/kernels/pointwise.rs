//! Elementwise expressions, one thread per element (several for large tensors, for more loads in flight).

use super::expression::FusedExpr;
use super::{Argument, Kernel, THREADS, block_count, indented, index_type, type_name};
use plimsoll_core::DType;
use std::fmt::Write;

/// Minimum elements for several elements per thread.
const LARGE: usize = 1 << 20;
/// Elements per thread for large tensors.
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
    written("pointwise", site, outputs, "i")
}

/// The expression over every element of its shape, with its only result written into a slice of a concat output.
pub(crate) fn fused_slice_write(site: &FusedExpr<'_>, output: DType, PitchedRows { start, length, pitch }: PitchedRows) -> Kernel {
    let at = format!("((unsigned long long)(i / {length}) * {pitch} + {start} + i % {length})");
    written("pointwise_slice_write", site, &[output], &at)
}

/// The expression over every element `i`, with each result stored at offset `at` of its tensor.
fn written(name: &'static str, site: &FusedExpr<'_>, outputs: &[DType], at: &str) -> Kernel {
    let n: usize = site.dims.iter().product();
    let kind = index_type(n);
    let mut parameters = site.parameters(0);
    parameters.extend(outputs.iter().enumerate().map(|(i, dtype)| (format!("{}* out{i}", type_name(*dtype)), Argument::Output(i))));
    let mut element = String::new();
    site.write(&mut element, kind, "i");
    for i in 0..outputs.len() {
        let _ = writeln!(element, "store(out{i} + {at}, {});", site.root(i));
    }
    let each = if n >= LARGE { EACH } else { 1 };
    let mut body = String::new();
    if each == 1 {
        let _ = writeln!(body, "const {kind} i = ({kind})blockIdx.x * {THREADS} + threadIdx.x;\nif (i >= {n}) return;");
        body += &element;
    } else {
        let _ = writeln!(body, "#pragma unroll\nfor (int part = 0; part < {each}; part++) {{");
        let _ = writeln!(body, "    const {kind} i = ({kind})blockIdx.x * {} + part * {THREADS} + threadIdx.x;", THREADS * each);
        let _ = writeln!(body, "    if (i >= {n}) break;");
        indented(&mut body, 1, &element);
        body += "}\n";
    }
    Kernel {
        name,
        what: format!("pointwise {:?}: {}", site.dims, site.expr),
        parameters,
        body,
        grid: [block_count(n, THREADS * each), 1, 1],
        threads: THREADS as u32,
    }
}
