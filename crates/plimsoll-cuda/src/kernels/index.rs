//! Generates index arithmetic: coordinates of an element, and the offset of a broadcast operand.

use std::fmt::Write;

/// The strides of a row-major tensor.
pub(super) fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis];
    }
    strides
}

/// Writes the coordinates of element `index` along the wanted axes, as `c0`, `c1`, … after `prefix`.
pub(super) fn coordinates(text: &mut String, kind: &str, prefix: &str, index: &str, dims: &[usize], wanted: impl Fn(usize) -> bool) {
    let strides = strides(dims);
    // Outside of the outermost axis that is longer than 1 the remainder is zero.
    let outermost = dims.iter().position(|dim| *dim > 1).unwrap_or(0);
    for axis in (0..dims.len()).filter(|axis| wanted(*axis)) {
        let divided = if strides[axis] == 1 { index.to_string() } else { format!("{index} / {}", strides[axis]) };
        let value = match axis {
            _ if dims[axis] == 1 => "0".to_string(),
            _ if axis <= outermost => divided,
            _ => format!("{divided} % {}", dims[axis]),
        };
        let _ = writeln!(text, "const {kind} {prefix}{axis} = {value};");
    }
}

/// The offset in an operand that is broadcast to `dims`: `index` if the shapes agree, otherwise a sum over coordinates.
pub(super) fn broadcast_index(operand: &[usize], dims: &[usize], index: &str, prefix: &str) -> String {
    if operand.iter().product::<usize>() == 1 {
        return "0".to_string();
    }
    if operand.iter().product::<usize>() == dims.iter().product::<usize>() {
        return index.to_string();
    }
    let terms: Vec<String> = strided_axes(operand, dims)
        .map(|(axis, stride)| if stride == 1 { format!("{prefix}{axis}") } else { format!("{prefix}{axis} * {stride}") })
        .collect();
    terms.join(" + ")
}

/// The axes of `dims` along which a broadcast operand varies, with its strides.
pub(super) fn strided_axes(operand: &[usize], dims: &[usize]) -> impl Iterator<Item = (usize, usize)> {
    let (missing, strides) = (dims.len() - operand.len(), strides(operand));
    let axes: Vec<(usize, usize)> =
        operand.iter().enumerate().filter(|(_, dim)| **dim > 1).map(|(i, _)| (i + missing, strides[i])).collect();
    axes.into_iter()
}

/// The axes whose coordinates a broadcast operand needs.
pub(super) fn needed_axes(operand: &[usize], dims: &[usize]) -> Vec<usize> {
    let whole = operand.iter().product::<usize>() == dims.iter().product::<usize>();
    if whole { vec![] } else { strided_axes(operand, dims).map(|(axis, _)| axis).collect() }
}
