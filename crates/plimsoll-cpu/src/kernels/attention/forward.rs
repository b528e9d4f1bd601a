//! The attention result and the log-sum-exp.

use super::dropout::{DropoutMask, WeightTile, apply, draw};
use super::tiles::{Hidden, Left, Right, multiply};
use super::weights::{Products, Running, online_softmax};
use super::{AttentionShape, HeadsPtr, KeyMask, QUERIES, WorkspaceParts, lines};
use crate::kernels::gemm::{LINE, Out, aligned, run};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::convert;
use std::f32::consts::{LN_2, LOG2_E};

/// Queries per task, which share the packed keys.
const CHUNK: usize = 256;

/// The operands of [`forward`].
#[derive(Clone, Copy, Debug)]
pub struct Forward {
    /// `queries` positions per sequence.
    pub q: HeadsPtr,
    /// `keys` positions per sequence.
    pub k: HeadsPtr,
    /// `keys` positions per sequence.
    pub v: HeadsPtr,
    /// The key mask.
    pub mask: Option<KeyMask>,
    /// The dropout mask.
    pub dropout_mask: Option<DropoutMask>,
    /// The result, `queries` positions per sequence. May alias `q`.
    pub o: HeadsPtr,
    /// The log-sum-exp, `[batch, heads, queries]`.
    pub lse: *mut f32,
}

// SAFETY: a descriptor of memory; `forward` requires its validity, and its tasks write disjoint parts.
unsafe impl Send for Forward {}
// SAFETY: as above.
unsafe impl Sync for Forward {}

/// The buffers in a worker's workspace, in floats.
fn pieces(shape: &AttentionShape) -> [usize; 9] {
    let (chunk, tile, depth) = (shape.queries.min(CHUNK), shape.tile(), shape.depth);
    let queries = shape.queries.min(QUERIES);
    let factors = if shape.drops { queries * tile } else { 0 };
    [chunk * depth, chunk * depth, chunk, chunk, tile * depth, Right::transposed_len(tile, depth), queries * tile, tile, factors]
}

/// Floats of workspace for [`forward`] on a pool of `threads`.
pub fn forward_workspace(shape: &AttentionShape, threads: usize) -> usize {
    lines(&pieces(shape)) * threads.max(1) + LINE
}

/// Attention of all heads of all sequences. Bit-identical for any number of threads.
///
/// # Safety
///
/// All tensors are valid over the extents of the shape; only `o` and `q` may alias, with the same layout.
///
/// # Panics
///
/// If the workspace is shorter than [`forward_workspace`].
pub unsafe fn forward(pool: &ThreadPool, shape: &AttentionShape, tensors: &Forward, workspace: &mut [f32]) {
    // SAFETY: same contract as this function.
    unsafe { forward_with(Isa::best(), pool, shape, tensors, workspace) }
}

/// Like [`forward`], with a given instruction set.
///
/// # Safety
/// Same as [`forward`].
///
/// # Panics
/// Same as [`forward`], or if the processor does not support `isa`.
pub unsafe fn forward_with(isa: Isa, pool: &ThreadPool, shape: &AttentionShape, tensors: &Forward, workspace: &mut [f32]) {
    assert!(isa.supported(), "this processor has no {isa:?}");
    assert!(workspace.len() >= forward_workspace(shape, pool.threads()), "the workspace of {shape:?}");
    let own = lines(&pieces(shape));
    let scratch = aligned(workspace);
    let chunks = shape.queries.div_ceil(CHUNK);
    run(pool, shape.is_worth_waking(), shape.batch * shape.heads * chunks, &|task, worker| {
        let (head, chunk) = (task / chunks, task % chunks);
        // SAFETY: guaranteed by the caller; tasks write different queries of different heads, and workers have separate
        // workspaces.
        unsafe { one_chunk(isa, shape, tensors, head / shape.heads, head % shape.heads, chunk * CHUNK, Out(scratch.add(worker * own))) };
    });
}

/// One task: a chunk of queries of one head, from `first` on.
///
/// # Safety
///
/// Same as [`forward`]; the workspace is exclusive to this task.
unsafe fn one_chunk(isa: Isa, shape: &AttentionShape, tensors: &Forward, b: usize, head: usize, first: usize, scratch: Out) {
    let AttentionShape { queries, keys, depth, causal, .. } = *shape;
    let count = CHUNK.min(queries - first);
    let mut parts = WorkspaceParts(scratch.0);
    let [q, o, largest, sums, rows, turned, tile, mask, factors] = pieces(shape).map(|piece| parts.take(piece));
    let stride = shape.tile();
    let (number, kv_number) = (head * depth, head / shape.group() * depth);
    // SAFETY: the buffers have the lengths of `pieces`, and the caller guarantees the operands.
    unsafe {
        tensors.q.load(isa, (b * queries + first, number), (count, depth), shape.scale * LOG2_E, q);
        let o = std::slice::from_raw_parts_mut(o, count * depth);
        let largest = std::slice::from_raw_parts_mut(largest, count);
        let sums = std::slice::from_raw_parts_mut(sums, count);
        o.fill(0.0);
        largest.fill(f32::NEG_INFINITY);
        sums.fill(0.0);
        let mask = std::slice::from_raw_parts_mut(mask, stride);
        let seen = if causal { keys.min(first + count) } else { keys };
        for key in (0..seen).step_by(super::KEYS) {
            let columns = super::KEYS.min(seen - key);
            tensors.k.load(isa, (b * keys + key, kv_number), (columns, depth), 1.0, rows);
            let right = Right::transposed(isa, rows, columns, depth, turned);
            tensors.v.load(isa, (b * keys + key, kv_number), (columns, depth), 1.0, rows);
            let values = Right::rows(isa, rows, depth);
            if let Some(hidden) = tensors.mask {
                hidden.load(isa, b * keys + key, &mut mask[..columns]);
                mask[columns..].fill(0.0);
            }
            // Queries before the block of keys see none of it (causal).
            let start = if causal { key.saturating_sub(first) / QUERIES * QUERIES } else { 0 };
            for i in (start..count).step_by(QUERIES) {
                let rows = QUERIES.min(count - i);
                let before = key as isize - (first + i) as isize;
                let cut = causal && key + columns > first + i + 1;
                let (across, along) =
                    if cut { (Hidden::Columns(before), Hidden::Ends(before)) } else { (Hidden::Nothing, Hidden::Nothing) };
                multiply(isa, rows, depth, Left { start: q.add(i * depth), row: depth, step: 1 }, right, (tile, stride), false, across);
                let products = Products {
                    start: tile,
                    stride,
                    rows,
                    columns,
                    before: cut.then_some(before),
                    mask: tensors.mask.is_some().then_some(&*mask),
                };
                let running = Running {
                    largest: &mut largest[i..i + rows],
                    sums: &mut sums[i..i + rows],
                    values: &mut o[i * depth..(i + rows) * depth],
                    depth,
                };
                online_softmax(isa, products, running);
                if let Some(dropout_mask) = &tensors.dropout_mask {
                    // The softmax sums include dropped weights.
                    let place = dropout_mask.place((shape.heads, queries, keys), (b, head, first + i, key));
                    let weights = WeightTile { start: tile, stride, rows, columns, first: place, next: keys as u64 };
                    draw(isa, dropout_mask, WeightTile { start: factors, ..weights });
                    apply(isa, factors, weights);
                }
                let to = o.as_mut_ptr().add(i * depth);
                multiply(isa, rows, columns, Left { start: tile, row: stride, step: 1 }, values, (to, depth), true, along);
            }
        }
        for i in 0..count {
            // A query without visible keys has a sum of zero.
            let (share, logarithm) = if sums[i] == 0.0 { (0.0, 0.0) } else { (1.0 / sums[i], largest[i] * LN_2 + sums[i].ln()) };
            convert::store(isa, tensors.o.dtype, &o[i * depth..(i + 1) * depth], share, tensors.o.at(b * queries + first + i, number));
            *tensors.lse.add((b * shape.heads + head) * queries + first + i) = logarithm;
        }
    }
}
