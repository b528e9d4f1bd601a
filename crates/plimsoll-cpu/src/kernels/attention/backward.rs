//! The gradients of attention: tiles are recomputed, and each forward product has two backward products.

use super::dropout::{DropoutMask, WeightTile, apply, draw};
use super::tiles::{Hidden, Left, Right, multiply};
use super::weights::{Products, row_products, softmax_from_logsumexp};
use super::{AttentionShape, HeadsPtr, KEYS, KeyMask, QUERIES, WorkspaceParts, lines};
use crate::kernels::gemm::{LINE, Out, aligned, run};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::convert;
use plimsoll_core::DType;
use std::f32::consts::{LN_2, LOG2_E};

/// The operands of [`backward`].
#[derive(Clone, Copy, Debug)]
pub struct Backward {
    /// As in the forward pass.
    pub q: HeadsPtr,
    /// As in the forward pass.
    pub k: HeadsPtr,
    /// As in the forward pass.
    pub v: HeadsPtr,
    /// As in the forward pass.
    pub mask: Option<KeyMask>,
    /// As in the forward pass.
    pub dropout_mask: Option<DropoutMask>,
    /// The forward result.
    pub o: HeadsPtr,
    /// The log-sum-exp.
    pub lse: *const f32,
    /// The gradient of the result.
    pub d_o: HeadsPtr,
    /// The gradient of the queries.
    pub d_q: HeadsPtr,
    /// The gradient of the keys.
    pub d_k: HeadsPtr,
    /// The gradient of the values.
    pub d_v: HeadsPtr,
}

// SAFETY: a descriptor of memory; `backward` requires its validity, and its tasks write disjoint parts.
unsafe impl Send for Backward {}
// SAFETY: as above.
unsafe impl Sync for Backward {}

/// The buffers in a worker's workspace, in floats. The query gradient is accumulated in place if it is single
/// precision.
fn pieces(shape: &AttentionShape, d_q: DType) -> [usize; 14] {
    let (tile, depth, rows) = (shape.tile(), shape.depth, shape.queries.min(QUERIES));
    let all = shape.group() * shape.queries;
    let turned = Right::transposed_len(tile, depth);
    let (block, sums) = (rows * depth, tile * depth);
    [
        block,
        block,
        sums,
        turned,
        turned,
        sums,
        sums,
        rows * tile,
        rows * tile,
        all,
        all,
        tile,
        if d_q == DType::F32 { 0 } else { all * depth },
        if shape.drops { rows * tile } else { 0 },
    ]
}

/// Floats of workspace for [`backward`] on a pool of `threads`, for a gradient of the queries in this type.
pub fn backward_workspace(shape: &AttentionShape, d_q: DType, threads: usize) -> usize {
    lines(&pieces(shape, d_q)) * threads.max(1) + LINE
}

/// The gradients of all heads of all sequences. Bit-identical for any number of threads.
///
/// # Safety
///
/// All tensors are valid over the extents of the shape, and outputs overlap nothing else.
///
/// # Panics
///
/// If the workspace is shorter than [`backward_workspace`].
pub unsafe fn backward(pool: &ThreadPool, shape: &AttentionShape, tensors: &Backward, workspace: &mut [f32]) {
    // SAFETY: same contract as this function.
    unsafe { backward_with(Isa::best(), pool, shape, tensors, workspace) }
}

/// Like [`backward`], with a given instruction set.
///
/// # Safety
/// Same as [`backward`].
///
/// # Panics
/// Same as [`backward`], or if the processor does not support `isa`.
pub unsafe fn backward_with(isa: Isa, pool: &ThreadPool, shape: &AttentionShape, tensors: &Backward, workspace: &mut [f32]) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    assert!(workspace.len() >= backward_workspace(shape, tensors.d_q.dtype, pool.threads()), "the workspace of {shape:?}");
    let own = lines(&pieces(shape, tensors.d_q.dtype));
    let scratch = aligned(workspace);
    run(pool, shape.is_worth_waking(), shape.batch * shape.kv_heads, &|task, worker| {
        // SAFETY: guaranteed by the caller; tasks write different heads, and workers have separate workspaces.
        unsafe { one_head(isa, shape, tensors, task / shape.kv_heads, task % shape.kv_heads, Out(scratch.add(worker * own))) };
    });
}

/// One key/value head and all query heads that share it.
///
/// # Safety
///
/// Same as [`backward`]; the workspace is exclusive to this task.
unsafe fn one_head(isa: Isa, shape: &AttentionShape, tensors: &Backward, b: usize, kv_head: usize, scratch: Out) {
    let AttentionShape { queries, keys, depth, causal, .. } = *shape;
    let group = shape.group();
    let mut parts = WorkspaceParts(scratch.0);
    let pieces = pieces(shape, tensors.d_q.dtype).map(|piece| parts.take(piece));
    let [q, d_o, rows, turned_keys, turned_values, d_k, d_v, weights, slopes, logarithms, deltas, mask, sums, factors] = pieces;
    let stride = shape.tile();
    let kv_number = kv_head * depth;
    // SAFETY: the buffers have the lengths of `pieces`, and the caller guarantees the operands.
    unsafe {
        let logarithms = std::slice::from_raw_parts_mut(logarithms, group * queries);
        let deltas = std::slice::from_raw_parts_mut(deltas, group * queries);
        let mask = std::slice::from_raw_parts_mut(mask, stride);
        for member in 0..group {
            let head = kv_head * group + member;
            let lse = std::slice::from_raw_parts(tensors.lse.add((b * shape.heads + head) * queries), queries);
            let own = member * queries..(member + 1) * queries;
            logarithms[own].iter_mut().zip(lse).for_each(|(to, lse)| *to = lse * LOG2_E);
            for i in (0..queries).step_by(QUERIES) {
                let count = QUERIES.min(queries - i);
                tensors.o.load(isa, (b * queries + i, head * depth), (count, depth), 1.0, q);
                tensors.d_o.load(isa, (b * queries + i, head * depth), (count, depth), 1.0, d_o);
                let block = |start: *mut f32| std::slice::from_raw_parts(start.cast_const(), count * depth);
                row_products(isa, block(q), block(d_o), depth, &mut deltas[member * queries + i..][..count]);
            }
        }
        for key in (0..keys).step_by(KEYS) {
            let columns = KEYS.min(keys - key);
            tensors.v.load(isa, (b * keys + key, kv_number), (columns, depth), 1.0, rows);
            let values = Right::transposed(isa, rows, columns, depth, turned_values);
            tensors.k.load(isa, (b * keys + key, kv_number), (columns, depth), 1.0, rows);
            let right = Right::transposed(isa, rows, columns, depth, turned_keys);
            std::slice::from_raw_parts_mut(rows, columns * depth).iter_mut().for_each(|x| *x *= shape.scale);
            let scaled_keys = Right::rows(isa, rows, depth);
            if let Some(hidden) = tensors.mask {
                hidden.load(isa, b * keys + key, &mut mask[..columns]);
                mask[columns..].fill(0.0);
            }
            let (d_k, d_v) = (std::slice::from_raw_parts_mut(d_k, columns * depth), std::slice::from_raw_parts_mut(d_v, columns * depth));
            d_k.fill(0.0);
            d_v.fill(0.0);
            // Queries before the block of keys see none of it (causal).
            let start = if causal { key / QUERIES * QUERIES } else { 0 };
            for (member, i) in (0..group).flat_map(|member| (start..queries).step_by(QUERIES).map(move |i| (member, i))) {
                let (head, count) = (kv_head * group + member, QUERIES.min(queries - i));
                let place = b * queries + i;
                tensors.q.load(isa, (place, head * depth), (count, depth), shape.scale * LOG2_E, q);
                tensors.d_o.load(isa, (place, head * depth), (count, depth), 1.0, d_o);
                let before = key as isize - i as isize;
                let cut = causal && key + columns > i + 1;
                let hide = |hidden: fn(isize) -> Hidden| if cut { hidden(before) } else { Hidden::Nothing };
                let left = |start: *mut f32| Left { start, row: depth, step: 1 };
                let turned = |start: *mut f32| Left { start, row: 1, step: stride };
                multiply(isa, count, depth, left(q), right, (weights, stride), false, hide(Hidden::Columns));
                multiply(isa, count, depth, left(d_o), values, (slopes, stride), false, hide(Hidden::Columns));
                let products = Products {
                    start: weights,
                    stride,
                    rows: count,
                    columns,
                    before: cut.then_some(before),
                    mask: tensors.mask.is_some().then_some(&*mask),
                };
                let own = member * queries + i..member * queries + i + count;
                let dropout_mask = tensors.dropout_mask.as_ref().map(|dropout_mask| {
                    let place = dropout_mask.place((shape.heads, queries, keys), (b, head, i, key));
                    (dropout_mask, WeightTile { start: weights, stride, rows: count, columns, first: place, next: keys as u64 })
                });
                if let Some((dropout_mask, tile)) = dropout_mask {
                    draw(isa, dropout_mask, WeightTile { start: factors, ..tile });
                    apply(isa, factors, WeightTile { start: slopes, ..tile });
                }
                softmax_from_logsumexp(isa, products, &logarithms[own.clone()], slopes, &deltas[own]);
                if let Some((_, tile)) = dropout_mask {
                    apply(isa, factors, tile);
                }
                let d_o = Right::rows(isa, d_o, depth);
                multiply(isa, columns, count, turned(weights), d_o, (d_v.as_mut_ptr(), depth), true, hide(Hidden::Starts));
                let q = Right::rows(isa, q, depth);
                multiply(isa, columns, count, turned(slopes), q, (d_k.as_mut_ptr(), depth), true, hide(Hidden::Starts));
                let to = match tensors.d_q.dtype {
                    DType::F32 => (tensors.d_q.at(place, head * depth).cast::<f32>(), tensors.d_q.row),
                    _ => (sums.add((member * queries + i) * depth), depth),
                };
                // Every query that sees any key sees the first block.
                let slopes = Left { start: slopes, row: stride, step: 1 };
                multiply(isa, count, columns, slopes, scaled_keys, to, key > 0, hide(Hidden::Ends));
            }
            for j in 0..columns {
                let (place, own) = (b * keys + key + j, j * depth..(j + 1) * depth);
                // Queries are scaled by log2(e), which the key gradient must not include.
                convert::store(isa, tensors.d_k.dtype, &d_k[own.clone()], LN_2, tensors.d_k.at(place, kv_number));
                convert::store(isa, tensors.d_v.dtype, &d_v[own], 1.0, tensors.d_v.at(place, kv_number));
            }
        }
        if tensors.d_q.dtype != DType::F32 {
            for (member, i) in (0..group).flat_map(|member| (0..queries).map(move |i| (member, i))) {
                let row = std::slice::from_raw_parts(sums.add((member * queries + i) * depth), depth);
                let to = tensors.d_q.at(b * queries + i, (kv_head * group + member) * depth);
                convert::store(isa, tensors.d_q.dtype, row, 1.0, to);
            }
        }
    }
}
