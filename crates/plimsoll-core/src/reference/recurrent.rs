//! Recurrent layers with scalar loops.

use super::tensor::Tensor;
use crate::ir::ops::{Activation, Cell, Recurrent, RecurrentGrad};

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// The steps in processing order, each with its predecessor.
fn steps(count: usize, reverse: bool) -> Vec<(usize, Option<usize>)> {
    let order: Vec<usize> = if reverse { (0..count).rev().collect() } else { (0..count).collect() };
    order.iter().enumerate().map(|(i, step)| (*step, i.checked_sub(1).map(|before| order[before]))).collect()
}

fn row(state: Option<&Tensor>, b: usize, units: usize) -> Vec<f64> {
    (0..units).map(|k| state.map_or(0.0, |state| state.at(&[b, k]))).collect()
}

/// `h·U` for one row.
fn recur(h: &[f64], kernel: &Tensor) -> Vec<f64> {
    (0..kernel.dims[1]).map(|j| h.iter().enumerate().map(|(k, h)| h * kernel.at(&[k, j])).sum()).collect()
}

pub(super) fn walk(op: &Recurrent, operands: &[&Tensor]) -> Vec<Vec<f64>> {
    let operands = op.operands(operands).expect("checked when the node was added");
    let (x, n) = (operands.x, op.units);
    let (batch, count, wide) = (x.dims[0], x.dims[1], x.dims[2]);
    let mut hidden = Tensor::zeros(&[batch, count, n]);
    let mut gates = Tensor::zeros(&[batch, count, wide]);
    let mut last = Tensor::zeros(&[batch, n]);
    for b in 0..batch {
        let mut h = row(operands.hidden, b, n);
        let mut c = row(operands.state, b, n);
        for (t, _) in steps(count, op.reverse) {
            let kept = operands.mask.is_none_or(|mask| mask.at(&[b, t]) != 0.0);
            let product = recur(&h, operands.kernel);
            let before = h.clone();
            for k in 0..n {
                let at = |gate: usize| gate * n + k;
                let x = |gate: usize| x.at(&[b, t, at(gate)]);
                let u = |gate: usize| product[at(gate)] + operands.bias.map_or(0.0, |bias| bias.at(&[at(gate)]));
                let activated = match op.cell {
                    Cell::Lstm => {
                        let [i, f, g, o] = [sigmoid(x(0) + u(0)), sigmoid(x(1) + u(1)), (x(2) + u(2)).tanh(), sigmoid(x(3) + u(3))];
                        if kept {
                            c[k] = f * c[k] + i * g;
                            h[k] = o * c[k].tanh();
                        }
                        vec![i, f, g, o]
                    }
                    Cell::Gru => {
                        let (z, r) = (sigmoid(x(0) + u(0)), sigmoid(x(1) + u(1)));
                        let g = (x(2) + r * u(2)).tanh();
                        if kept {
                            h[k] = z * before[k] + (1.0 - z) * g;
                        }
                        vec![z, r, g]
                    }
                    Cell::Simple(activation) => {
                        let y = x(0) + u(0);
                        if kept {
                            h[k] = if activation == Activation::Tanh {
                                y.tanh()
                            } else if y < 0.0 {
                                0.0
                            } else {
                                y
                            };
                        }
                        vec![0.0]
                    }
                };
                *hidden.at_mut(&[b, t, k]) = h[k];
                activated.iter().enumerate().for_each(|(gate, y)| *gates.at_mut(&[b, t, at(gate)]) = *y);
            }
        }
        (0..n).for_each(|k| *last.at_mut(&[b, k]) = c[k]);
    }
    match op.cell {
        Cell::Lstm => vec![hidden.elements, gates.elements, last.elements],
        Cell::Gru => vec![hidden.elements, gates.elements],
        Cell::Simple(_) => vec![hidden.elements],
    }
}

pub(super) fn walk_back(op: &RecurrentGrad, operands: &[&Tensor]) -> Vec<Vec<f64>> {
    let operands = op.operands(operands).expect("checked when the node was added");
    let (kernel, n, wide) = (operands.kernel, op.units, op.cell.gates() * op.units);
    let (batch, count) = (operands.d_hidden.dims[0], operands.d_hidden.dims[1]);
    let mut d_x = Tensor::zeros(&[batch, count, wide]);
    let mut d_recurrent = Tensor::zeros(&[batch, count, wide]);
    let mut d_states = [Tensor::zeros(&[batch, n]), Tensor::zeros(&[batch, n])];
    let order = steps(count, op.reverse);
    for b in 0..batch {
        let kept = |t: usize| operands.mask.is_none_or(|mask| mask.at(&[b, t]) != 0.0);
        let gate = |t: usize, gate: usize, k: usize| operands.gates.expect("cells with gates keep them").at(&[b, t, gate * n + k]);
        let start = row(operands.before, b, n);
        // The cell states of an LSTM, before the first step and after each.
        let mut cells = vec![start.clone()];
        if op.cell == Cell::Lstm {
            for (t, _) in &order {
                let c = cells.last().expect("it starts with one");
                let next = |k: usize| if kept(*t) { gate(*t, 1, k) * c[k] + gate(*t, 0, k) * gate(*t, 2, k) } else { c[k] };
                cells.push((0..n).map(next).collect());
            }
        }
        let mut dh = vec![0.0; n];
        let mut dc = row(operands.d_state, b, n);
        for (at, (t, before)) in order.iter().enumerate().rev() {
            (0..n).for_each(|k| dh[k] += operands.d_hidden.at(&[b, *t, k]));
            if !kept(*t) {
                continue;
            }
            let h_before: Vec<f64> = match (operands.hidden, before) {
                (Some(hidden), Some(before)) => (0..n).map(|k| hidden.at(&[b, *before, k])).collect(),
                _ => start.clone(),
            };
            let product = recur(&h_before, kernel);
            let mut next = vec![0.0; n];
            for k in 0..n {
                let (own, recurrent): (Vec<f64>, Vec<f64>) = match op.cell {
                    Cell::Lstm => {
                        let [i, f, g, o] = [0, 1, 2, 3].map(|which| gate(*t, which, k));
                        let y = cells[at + 1][k].tanh();
                        let total = dc[k] + dh[k] * o * (1.0 - y * y);
                        dc[k] = total * f;
                        let change = [
                            total * g * i * (1.0 - i),
                            total * cells[at][k] * f * (1.0 - f),
                            total * i * (1.0 - g * g),
                            dh[k] * y * o * (1.0 - o),
                        ];
                        (change.to_vec(), change.to_vec())
                    }
                    Cell::Gru => {
                        let [z, r, g] = [0, 1, 2].map(|which| gate(*t, which, k));
                        let inner = product[2 * n + k] + operands.bias.map_or(0.0, |bias| bias.at(&[2 * n + k]));
                        next[k] = dh[k] * z;
                        let candidate = dh[k] * (1.0 - z) * (1.0 - g * g);
                        let update = dh[k] * (h_before[k] - g) * z * (1.0 - z);
                        let reset = candidate * inner * r * (1.0 - r);
                        (vec![update, reset, candidate], vec![update, reset, candidate * r])
                    }
                    Cell::Simple(activation) => {
                        let y = operands.hidden.expect("a simple cell keeps its states").at(&[b, *t, k]);
                        let slope = if activation == Activation::Tanh { 1.0 - y * y } else { f64::from(y > 0.0) };
                        (vec![dh[k] * slope], vec![dh[k] * slope])
                    }
                };
                own.iter().enumerate().for_each(|(which, y)| *d_x.at_mut(&[b, *t, which * n + k]) = *y);
                recurrent.iter().enumerate().for_each(|(which, y)| *d_recurrent.at_mut(&[b, *t, which * n + k]) = *y);
            }
            for (k, next) in next.iter_mut().enumerate() {
                *next += (0..wide).map(|j| d_recurrent.at(&[b, *t, j]) * kernel.at(&[k, j])).sum::<f64>();
            }
            dh = next;
        }
        for (state, change) in d_states.iter_mut().zip([&dh, &dc]) {
            (0..n).for_each(|k| *state.at_mut(&[b, k]) = change[k]);
        }
    }
    let [d_hidden, d_cell] = d_states.map(|state| state.elements);
    let mut results = vec![d_x.elements];
    if op.cell == Cell::Gru {
        results.push(d_recurrent.elements);
    }
    if op.initial {
        results.push(d_hidden);
        if op.cell == Cell::Lstm {
            results.push(d_cell);
        }
    }
    results
}
