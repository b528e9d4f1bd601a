//! Products over the rows of a batch that are summed row by row: small weight gradients of 1 × 1 convolutions over
//! large images.
//!
//! Such an output has too few blocks for several threads, and reading its operands dominates. The k of a batch row are
//! split into chunks by their number alone; chunks are computed in parallel, in waves, and their sums are added in the
//! order of the rows. A sum may therefore stop and resume at any row of the batch.

use super::block_output::{BlockConsumer, multiply_blocks};
use super::macro_kernel::{Product, per_worker};
use super::{Epilogue, LINE, Matrix, Out, SUM, WriteMode, aligned, multiply, run, workspace_len};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use std::ops::Range;

/// Minimum k of a chunk: shorter ones would spend their time adding sums.
const LEAST: usize = 512;
/// Approximate k of a chunk of a longer row.
const CHUNK: usize = 2048;
/// Maximum elements of such an output: larger ones have enough blocks.
const NARROW: usize = 1 << 15;
/// Maximum chunks computed in parallel.
const WAVE: usize = 16;

/// Whether an output of `m` by `n` over rows of `unit` k each is summed row by row. It can then only resume at a row;
/// any other one can resume at any k.
fn is_summed_by_row(m: usize, n: usize, unit: usize) -> bool {
    unit >= LEAST && m.saturating_mul(n) <= NARROW
}

/// The chunks of k.
#[derive(Clone, Copy, Debug)]
struct RowChunks {
    unit: usize,
    /// Chunks per row, and k per chunk.
    parts: usize,
    each: usize,
    count: usize,
}

impl RowChunks {
    /// None if the product is not summed row by row.
    fn new(m: usize, n: usize, k: usize, unit: usize) -> Option<RowChunks> {
        let parts = (unit / CHUNK).max(1);
        let chunks = || RowChunks { unit, parts, each: unit.div_ceil(parts), count: k.div_ceil(unit) * parts };
        (is_summed_by_row(m, n, unit) && k > 0).then(chunks)
    }

    fn range(&self, chunk: usize, k: usize) -> Range<usize> {
        let (start, part) = (chunk / self.parts * self.unit, chunk % self.parts);
        let end = (start + self.unit).min(k);
        (start + part * self.each).min(end)..(start + (part + 1) * self.each).min(end)
    }
}

/// Floats of workspace for [`gemm_over_rows`] on a pool of `threads`; monotone in `k` and `threads`.
pub fn gemm_over_rows_workspace(m: usize, n: usize, k: usize, unit: usize, threads: usize) -> usize {
    match RowChunks::new(m, n, k, unit) {
        Some(chunks) => per_worker(m, chunks.each) * threads.max(1) + chunks.count.min(WAVE) * m * n + LINE,
        None => workspace_len(m, n, k, threads),
    }
}

/// Like [`gemm_with`](super::gemm_with), for a `k` of some rows of a batch with `unit` k each: stopping at a row and
/// resuming there with [`WriteMode::Add`] gives the same bits as all rows at once.
///
/// # Safety
/// Same as [`gemm_with`](super::gemm_with).
///
/// # Panics
/// Same as [`gemm_with`](super::gemm_with), or if `workspace` is shorter than [`gemm_over_rows_workspace`].
#[allow(clippy::too_many_arguments)]
pub unsafe fn gemm_over_rows(
    isa: Isa,
    pool: &ThreadPool,
    write: WriteMode,
    unit: usize,
    a: Matrix,
    b: Matrix,
    c: *mut f32,
    ldc: usize,
    workspace: &mut [f32],
    epilogue: Epilogue,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let Some(chunks) = RowChunks::new(m, n, k, unit).filter(|_| m * n > 0) else {
        // SAFETY: same contract as this function.
        return unsafe { multiply(isa, pool, write, a, b, c, ldc, workspace, epilogue, true) };
    };
    assert!(isa.supported(), "this processor has no {isa:?}");
    assert_eq!(k, b.rows, "a product of [{m}, {k}] and [{}, {n}]", b.rows);
    let needed = gemm_over_rows_workspace(m, n, k, unit, pool.threads());
    assert!(
        workspace.len() >= needed,
        "a product of [{m}, {k}] and [{k}, {n}] needs {needed} floats of workspace, not {}",
        workspace.len()
    );
    let (c, len, per_worker) = (Out(c), m * n, per_worker(m, chunks.each));
    let product = Product::new(isa, a, b, n, false);
    let scratch = aligned(workspace);
    // SAFETY: the workspace consists of the workers' parts, then the sums of a wave's chunks.
    let partials = Out(unsafe { scratch.add(per_worker * pool.threads()) });
    for first in (0..chunks.count).step_by(WAVE) {
        let wave = WAVE.min(chunks.count - first);
        pool.run(wave, &|index, worker| {
            // SAFETY: each chunk has its own sum, and the workspace is exclusive to this worker.
            unsafe {
                let to = partials.add(index * len);
                product.block(0..m, 0..n, chunks.range(first + index, k), to, n, false, scratch.add(worker * per_worker));
            }
        });
        let rows_each = (SUM / n).max(1);
        run(pool, len * wave > 4 * SUM, m.div_ceil(rows_each), &|task, _| {
            for i in task * rows_each..m.min((task + 1) * rows_each) {
                for chunk in 0..wave {
                    // SAFETY: row `i` is exclusive to this task, and all sums of the wave are complete.
                    unsafe {
                        let to = std::slice::from_raw_parts_mut(c.add(i * ldc), n);
                        let from = std::slice::from_raw_parts(partials.add(chunk * len + i * n), n);
                        if first + chunk == 0 && write == WriteMode::Set {
                            to.copy_from_slice(from);
                        } else {
                            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
                        }
                    }
                }
            }
        });
    }
    if let Some(finish) = epilogue {
        finish(0..m, 0..n, 0);
    }
}

/// Like [`gemm_blocks_with`](super::gemm_blocks_with), summed in the order of [`gemm_over_rows`] with rows of one k.
///
/// # Safety
/// Same as [`gemm_blocks_with`](super::gemm_blocks_with).
///
/// # Panics
/// Same as [`gemm_blocks_with`](super::gemm_blocks_with).
pub unsafe fn gemm_blocks_over_rows(isa: Isa, pool: &ThreadPool, a: Matrix, b: Matrix, workspace: &mut [f32], take: BlockConsumer<'_>) {
    // SAFETY: same contract as this function.
    unsafe { multiply_blocks(isa, pool, a, b, workspace, take, true) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A product over rows that stops at any row and resumes gives the bits of all rows at once.
    #[test]
    fn sums_resume_at_every_row() {
        let noise = |len: usize, seed: usize| -> Vec<f32> {
            (0..len).map(|i| ((i * 7919 + seed * 104_729) % 10_007) as f32 / 5000.0 - 1.0).collect()
        };
        for (m, n, unit) in [
            (5, 7, 700),
            (16, 24, 4200),
            (3, 1, 600),
            (1, 1, 5),
            (6, 1, 3),
            (40, 50, 9),
            (1, 30, 64),
            (600, 300, 3),
            (70, 4, 1),
            (64, 65, 1),
        ] {
            let rows = 7;
            let (a, b) = (noise(rows * unit * m, 1), noise(rows * unit * n, 2));
            let product = |threads: usize, cuts: &[usize]| {
                let pool = ThreadPool::new(threads).unwrap();
                let mut c = vec![f32::NAN; m * n];
                for part in cuts.windows(2) {
                    let k = (part[1] - part[0]) * unit;
                    let left = Matrix::new(a[part[0] * unit * m..].as_ptr(), k, m).transposed();
                    let right = Matrix::new(b[part[0] * unit * n..].as_ptr(), k, n);
                    let mut workspace = vec![f32::NAN; gemm_over_rows_workspace(m, n, k, unit, threads)];
                    let write = if part[0] == 0 { WriteMode::Set } else { WriteMode::Add };
                    // SAFETY: the slices have the lengths of the matrices.
                    unsafe {
                        gemm_over_rows(Isa::best(), &pool, write, unit, left, right, c.as_mut_ptr(), n, &mut workspace, None);
                    }
                }
                c.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            };
            let whole = product(2, &[0, rows]);
            for cuts in [&[0, 1, 2, 3, 4, 5, 6, 7][..], &[0, 2, 4, 6, 7], &[0, 3, 6, 7], &[0, 5, 7]] {
                assert!(whole == product(1, cuts) && whole == product(3, cuts), "{m}×{n} over {unit}: {cuts:?}");
            }
        }
    }
}
