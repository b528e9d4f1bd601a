//! Data movement. One thread per element of the result computes its source index; bytes are copied unchanged.

use super::index::{coordinates, strides};
use super::{Argument, Kernel, THREADS, block_count, index_type};
use std::fmt::Write;

/// The type of an element of this many bytes.
fn word(size: usize) -> &'static str {
    match size {
        1 => "unsigned char",
        2 => "unsigned short",
        4 => "unsigned",
        _ => "unsigned long long",
    }
}

/// One thread per element of `dims`, with coordinates `c0`, `c1`, …; `body` moves it.
fn per_element(name: &'static str, what: String, size: usize, sources: usize, dims: &[usize], extent: usize, body: &str) -> Kernel {
    let (n, index) = (dims.iter().product::<usize>(), index_type(extent));
    let mut parameters: Vec<(String, Argument)> =
        (0..sources).map(|i| (format!("const {}* in{i}", word(size)), Argument::Input(i))).collect();
    parameters.push((format!("{}* out", word(size)), Argument::Output(0)));
    let mut text = String::new();
    let _ = writeln!(text, "const {index} e = ({index})blockIdx.x * {THREADS} + threadIdx.x;\nif (e >= {n}) return;");
    coordinates(&mut text, index, "c", "e", dims, |_| true);
    Kernel { name, what, parameters, body: text + body, grid: [block_count(n, THREADS), 1, 1], threads: THREADS as u32 }
}

/// The offset of the coordinates in a tensor, with `along` as the coordinate along `axis`.
fn place(dims: &[usize], axis: usize, along: &str) -> String {
    let terms: Vec<String> = strides(dims)
        .iter()
        .enumerate()
        .map(|(i, stride)| if i == axis { format!("({along}) * {stride}") } else { format!("c{i} * {stride}") })
        .collect();
    terms.join(" + ")
}

/// Output axis `i` is input axis `order[i]`.
pub(crate) fn transpose(size: usize, input: &[usize], order: &[usize]) -> Kernel {
    let dims: Vec<usize> = order.iter().map(|axis| input[*axis]).collect();
    let strides = strides(input);
    let terms: Vec<String> = order.iter().enumerate().map(|(to, from)| format!("c{to} * {}", strides[*from])).collect();
    let from = if terms.is_empty() { "0".to_string() } else { terms.join(" + ") };
    let n = input.iter().product();
    per_element("transpose", format!("transpose {input:?} as {order:?}"), size, 1, &dims, n, &format!("out[e] = in0[{from}];\n"))
}

/// `length` elements from `start` on along an axis; `dims` are the result's.
pub(crate) fn slice(size: usize, input: &[usize], dims: &[usize], axis: usize, start: usize) -> Kernel {
    let from = place(input, axis, &format!("c{axis} + {start}"));
    let n = input.iter().product();
    per_element("slice", format!("slice {input:?} to {dims:?} along {axis}"), size, 1, dims, n, &format!("out[e] = in0[{from}];\n"))
}

/// Writes a slice from `start` on along an axis of a tensor of `dims`, without touching the rest.
pub(crate) fn slice_write(size: usize, part: &[usize], dims: &[usize], axis: usize, start: usize) -> Kernel {
    let to = place(dims, axis, &format!("c{axis} + {start}"));
    let n = dims.iter().product();
    per_element("slice_write", format!("write {part:?} into {dims:?} along {axis}"), size, 1, part, n, &format!("out[{to}] = in0[e];\n"))
}

/// Zeros before and after along an axis; `dims` are the result's.
pub(crate) fn pad(size: usize, input: &[usize], dims: &[usize], axis: usize, before: usize) -> Kernel {
    let from = place(input, axis, &format!("c{axis} - {before}"));
    let (first, end) = (before, before + input[axis]);
    let body = format!("out[e] = c{axis} >= {first} && c{axis} < {end} ? in0[{from}] : 0;\n");
    let n = dims.iter().product();
    per_element("pad", format!("pad {input:?} to {dims:?} along {axis}"), size, 1, dims, n, &body)
}

/// Concatenates all inputs along an axis; `dims` are the result's.
pub(crate) fn concat(size: usize, inputs: &[Vec<usize>], dims: &[usize], axis: usize) -> Kernel {
    let (mut body, mut start) = (String::new(), 0);
    for (i, input) in inputs.iter().enumerate() {
        let end = start + input[axis];
        let from = place(input, axis, &format!("c{axis} - {start}"));
        let _ = writeln!(body, "if (c{axis} >= {start} && c{axis} < {end}) out[e] = in{i}[{from}];");
        start = end;
    }
    let n = dims.iter().product();
    per_element("concat", format!("concat to {dims:?} along {axis}"), size, inputs.len(), dims, n, &body)
}
