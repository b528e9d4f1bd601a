//! The arithmetic of one row of one step, vectorized over units.

use crate::kernels::pointwise::{sigmoid, tanh};
use crate::simd::{Isa, dispatch};
use plimsoll_core::ops::Activation;

/// A row of an LSTM: computes gates from sums, then the states.
pub(super) fn lstm(isa: Isa, row: &mut [f32], c: &mut [f32], h: &mut [f32], kept: bool) {
    dispatch!(isa, lstm_row(row: &mut [f32] = row, c: &mut [f32] = c, h: &mut [f32] = h, kept: bool = kept));
}

#[inline(always)]
fn lstm_row<const FMA: bool>(row: &mut [f32], c: &mut [f32], h: &mut [f32], kept: bool) {
    let n = c.len();
    let h = &mut h[..n];
    let [i, f, g, o] = split(row, n);
    for k in 0..n {
        (i[k], f[k]) = (sigmoid::<FMA>(i[k]), sigmoid::<FMA>(f[k]));
        (g[k], o[k]) = (tanh::<FMA>(g[k]), sigmoid::<FMA>(o[k]));
    }
    if kept {
        for k in 0..n {
            c[k] = f[k] * c[k] + i[k] * g[k];
            h[k] = o[k] * tanh::<FMA>(c[k]);
        }
    }
}

/// A row of a GRU, whose candidate's product `q` is separate.
pub(super) fn gru(isa: Isa, row: &mut [f32], q: &[f32], bias: &[f32], h: &mut [f32], kept: bool) {
    dispatch!(isa, gru_row(row: &mut [f32] = row, q: &[f32] = q, bias: &[f32] = bias, h: &mut [f32] = h, kept: bool = kept));
}

#[inline(always)]
fn gru_row<const FMA: bool>(row: &mut [f32], q: &[f32], bias: &[f32], h: &mut [f32], kept: bool) {
    let n = h.len();
    let q = &q[..n];
    let [z, r, g] = split(row, n);
    let (bz, br, bg) = (&bias[..n], &bias[n..2 * n], &bias[2 * n..3 * n]);
    for k in 0..n {
        z[k] = sigmoid::<FMA>(z[k] + bz[k]);
        r[k] = sigmoid::<FMA>(r[k] + br[k]);
        g[k] = tanh::<FMA>(g[k] + r[k] * (q[k] + bg[k]));
    }
    if kept {
        for k in 0..n {
            h[k] = z[k] * h[k] + (1.0 - z[k]) * g[k];
        }
    }
}

/// A row of a simple cell: computes the state from sums.
pub(super) fn simple(isa: Isa, activation: Activation, row: &mut [f32]) {
    match activation {
        Activation::Tanh => dispatch!(isa, tanh_row(row: &mut [f32] = row)),
        Activation::Relu => row.iter_mut().for_each(|y| *y = if *y < 0.0 { 0.0 } else { *y }),
    }
}

#[inline(always)]
fn tanh_row<const FMA: bool>(row: &mut [f32]) {
    row.iter_mut().for_each(|y| *y = tanh::<FMA>(*y));
}

/// The cell states after a step of an LSTM, recomputed from its gates.
pub(super) fn lstm_cells(isa: Isa, row: &[f32], before: &[f32], after: &mut [f32]) {
    dispatch!(isa, cells_row(row: &[f32] = row, before: &[f32] = before, after: &mut [f32] = after));
}

#[inline(always)]
fn cells_row<const FMA: bool>(row: &[f32], before: &[f32], after: &mut [f32]) {
    let n = after.len();
    let (i, f, g, before) = (&row[..n], &row[n..2 * n], &row[2 * n..3 * n], &before[..n]);
    for k in 0..n {
        after[k] = f[k] * before[k] + i[k] * g[k];
    }
}

/// Operands of an LSTM's backward row besides the row of gates, which is overwritten by the gradients of its sums.
pub(super) struct LstmBack<'a> {
    pub before: &'a [f32],
    pub after: &'a [f32],
    pub dh: &'a mut [f32],
    pub dc: &'a mut [f32],
}

/// The backward pass of one row and step of an LSTM. `dh` is consumed: the previous state's gradient comes through the
/// kernel.
pub(super) fn lstm_back(isa: Isa, row: &mut [f32], states: LstmBack<'_>) {
    dispatch!(isa, lstm_back_row(row: &mut [f32] = row, states: LstmBack<'_> = states));
}

#[inline(always)]
fn lstm_back_row<const FMA: bool>(row: &mut [f32], states: LstmBack<'_>) {
    let n = states.dh.len();
    let LstmBack { before, after, dh, dc } = states;
    let (before, after, dc) = (&before[..n], &after[..n], &mut dc[..n]);
    let [i, f, g, o] = split(row, n);
    for k in 0..n {
        let y = tanh::<FMA>(after[k]);
        let total = dc[k] + dh[k] * o[k] * (1.0 - y * y);
        let input = total * g[k] * i[k] * (1.0 - i[k]);
        let candidate = total * i[k] * (1.0 - g[k] * g[k]);
        o[k] = dh[k] * y * o[k] * (1.0 - o[k]);
        dc[k] = total * f[k];
        f[k] = total * before[k] * f[k] * (1.0 - f[k]);
        (i[k], g[k], dh[k]) = (input, candidate, 0.0);
    }
}

/// Operands of a GRU's backward row besides the row of gates.
pub(super) struct GruBack<'a> {
    /// The state before the step.
    pub h: &'a [f32],
    /// The candidate's product, without its bias.
    pub q: &'a [f32],
    pub bias: &'a [f32],
    pub dh: &'a mut [f32],
    /// Gradient of the products; that of the projected input overwrites the row.
    pub inner: &'a mut [f32],
}

/// The backward pass of one row and step of a GRU. The remainder in `dh` goes directly to the previous state.
pub(super) fn gru_back(isa: Isa, row: &mut [f32], states: GruBack<'_>) {
    dispatch!(isa, gru_back_row(row: &mut [f32] = row, states: GruBack<'_> = states));
}

#[inline(always)]
fn gru_back_row<const FMA: bool>(row: &mut [f32], states: GruBack<'_>) {
    let n = states.dh.len();
    let GruBack { h, q, bias, dh, inner } = states;
    let (h, q, bias) = (&h[..n], &q[..n], &bias[2 * n..3 * n]);
    let [z, r, g] = split(row, n);
    let [dz, dr, dg] = split(inner, n);
    for k in 0..n {
        let candidate = dh[k] * (1.0 - z[k]) * (1.0 - g[k] * g[k]);
        let update = dh[k] * (h[k] - g[k]) * z[k] * (1.0 - z[k]);
        let reset = candidate * (q[k] + bias[k]) * r[k] * (1.0 - r[k]);
        dh[k] *= z[k];
        (dz[k], dr[k], dg[k]) = (update, reset, candidate * r[k]);
        (z[k], r[k], g[k]) = (update, reset, candidate);
    }
}

/// The backward pass of one row and step of a simple cell: the row has states, then the gradients of their sums.
pub(super) fn simple_back(isa: Isa, activation: Activation, row: &mut [f32], dh: &mut [f32]) {
    dispatch!(isa, simple_back_row(activation: Activation = activation, row: &mut [f32] = row, dh: &mut [f32] = dh));
}

#[inline(always)]
fn simple_back_row<const FMA: bool>(activation: Activation, row: &mut [f32], dh: &mut [f32]) {
    match activation {
        Activation::Tanh => row.iter_mut().zip(&*dh).for_each(|(y, dh)| *y = dh * (1.0 - *y * *y)),
        Activation::Relu => row.iter_mut().zip(&*dh).for_each(|(y, dh)| *y = if *y > 0.0 { *dh } else { 0.0 }),
    }
    dh.fill(0.0);
}

/// `to += from`.
pub(super) fn add(isa: Isa, to: &mut [f32], from: &[f32]) {
    dispatch!(isa, add_row(to: &mut [f32] = to, from: &[f32] = from));
}

#[inline(always)]
fn add_row<const FMA: bool>(to: &mut [f32], from: &[f32]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// The gates of a row, `n` floats each.
#[inline(always)]
fn split<const G: usize>(row: &mut [f32], n: usize) -> [&mut [f32]; G] {
    let mut rest = row;
    std::array::from_fn(|_| {
        let (gate, after) = std::mem::take(&mut rest).split_at_mut(n);
        rest = after;
        gate
    })
}
