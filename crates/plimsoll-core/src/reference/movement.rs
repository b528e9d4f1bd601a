//! Ops that move elements without changing them.

use super::tensor::{Tensor, coordinates};
use crate::ir::ops::{BatchSlice, Pad, Slice};

pub(super) fn transpose(order: &[usize], x: &Tensor) -> Vec<f64> {
    let dims: Vec<usize> = order.iter().map(|axis| x.dims[*axis]).collect();
    coordinates(&dims)
        .map(|to| {
            let mut from = vec![0; order.len()];
            order.iter().zip(&to).for_each(|(axis, i)| from[*axis] = *i);
            x.at(&from)
        })
        .collect()
}

/// A slice whose numbers count `unit` elements each.
pub(super) fn slice(op: &Slice, unit: usize, x: &Tensor) -> Vec<f64> {
    let kept = unit * op.start..unit * (op.start + op.length);
    coordinates(&x.dims).filter(|at| kept.contains(&at[op.axis])).map(|at| x.at(&at)).collect()
}

/// A batch slice; each row is `unit` elements of the first axis.
pub(super) fn batch_slice(op: &BatchSlice, unit: usize, x: &Tensor) -> Vec<f64> {
    coordinates(&x.dims).filter(|at| (op.from..op.to).contains(&(at[0] / unit))).map(|at| x.at(&at)).collect()
}

pub(super) fn concat(axis: usize, parts: &[&Tensor]) -> Vec<f64> {
    let mut dims = parts[0].dims.clone();
    dims[axis] = parts.iter().map(|part| part.dims[axis]).sum();
    let mut joined = Tensor::zeros(&dims);
    let mut start = 0;
    for part in parts {
        for mut at in coordinates(&part.dims) {
            let element = part.at(&at);
            at[axis] += start;
            *joined.at_mut(&at) = element;
        }
        start += part.dims[axis];
    }
    joined.elements
}

/// A slice written into the concat output so far; unwritten elements are NaN.
pub(super) fn put(axis: usize, start: usize, dims: &[usize], operands: &[&Tensor]) -> Vec<f64> {
    let mut whole = match operands {
        [_, base] => (*base).clone(),
        _ => Tensor::from_fn(dims, |_| f64::NAN),
    };
    for mut at in coordinates(&operands[0].dims) {
        let element = operands[0].at(&at);
        at[axis] += start;
        *whole.at_mut(&at) = element;
    }
    whole.elements
}

pub(super) fn pad(op: &Pad, x: &Tensor) -> Vec<f64> {
    let mut dims = x.dims.clone();
    dims[op.axis] += op.before + op.after;
    let mut padded = Tensor::zeros(&dims);
    for mut at in coordinates(&x.dims) {
        let element = x.at(&at);
        at[op.axis] += op.before;
        *padded.at_mut(&at) = element;
    }
    padded.elements
}

/// The row for an index, if it is in range.
fn row_of(number: f64, rows: usize) -> Option<usize> {
    (number >= 0.0 && number < rows as f64).then_some(number as usize)
}

pub(super) fn gather(table: &Tensor, indices: &Tensor) -> Vec<f64> {
    let width: usize = table.dims[1..].iter().product();
    let row = |number: &f64| match row_of(*number, table.dims[0]) {
        Some(row) => table.elements[row * width..(row + 1) * width].to_vec(),
        None => vec![0.0; width],
    };
    indices.elements.iter().flat_map(row).collect()
}

pub(super) fn scatter_add(dims: &[usize], indices: &Tensor, rows: &Tensor) -> Vec<f64> {
    let mut table = Tensor::zeros(dims);
    let width: usize = dims[1..].iter().product();
    for (i, number) in indices.elements.iter().enumerate() {
        if let Some(row) = row_of(*number, dims[0]) {
            for c in 0..width {
                table.elements[row * width + c] += rows.elements[i * width + c];
            }
        }
    }
    table.elements
}
