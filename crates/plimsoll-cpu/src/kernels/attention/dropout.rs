//! Attention dropout: random factors are generated per tile and never stored beyond it.

use crate::kernels::pointwise::random_numbers;
use crate::simd::{Isa, dispatch};
use plimsoll_core::ops::WeightDropout;
use plimsoll_core::random::StepRandom;

/// The dropout mask of an attention in a step.
#[derive(Clone, Copy, Debug)]
pub struct DropoutMask {
    /// Rate and random stream.
    pub dropout: WeightDropout,
    /// State of the random stream.
    pub random: StepRandom,
    /// Number of sequences in the batch before this micro-batch.
    pub before: u64,
}

/// A tile of weights: `rows` queries by `columns` keys with row stride `stride`, and the stream indices of its first
/// weight and of the next query's.
#[derive(Clone, Copy)]
pub(super) struct WeightTile {
    pub start: *mut f32,
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub first: u64,
    pub next: u64,
}

impl DropoutMask {
    /// The stream index of a weight, from its sequence, head, query and key, for an attention of these extents.
    pub(super) fn place(&self, (heads, queries, keys): (usize, usize, usize), (b, head, i, j): (usize, usize, usize, usize)) -> u64 {
        let row = ((self.before + b as u64) * heads as u64 + head as u64) * queries as u64 + i as u64;
        row * keys as u64 + j as u64
    }
}

/// Fills a tile with dropout factors.
///
/// # Safety
///
/// The processor supports `isa`, and the tile is valid and exclusive.
pub(super) unsafe fn draw(isa: Isa, dropout_mask: &DropoutMask, tile: WeightTile) {
    // SAFETY: guaranteed by the caller.
    unsafe { dispatch!(isa, unsafe draw_rows(dropout_mask: &DropoutMask = dropout_mask, tile: WeightTile = tile)) }
}

/// # Safety
/// Same as [`draw`].
#[inline(always)]
unsafe fn draw_rows<const FMA: bool>(dropout_mask: &DropoutMask, tile: WeightTile) {
    let (rate, kept) = (dropout_mask.dropout.rate(), dropout_mask.dropout.kept());
    for i in 0..tile.rows {
        // SAFETY: guaranteed by the caller.
        let row = unsafe {
            let row = tile.start.add(i * tile.stride);
            random_numbers(row, tile.columns, &dropout_mask.random, dropout_mask.dropout.stream, tile.first + i as u64 * tile.next);
            std::slice::from_raw_parts_mut(row, tile.columns)
        };
        row.iter_mut().for_each(|number| *number = if *number < rate { 0.0 } else { kept });
    }
}

/// Multiplies a tile elementwise by another one of the same layout.
///
/// # Safety
///
/// Same as [`draw`], for both tiles.
pub(super) unsafe fn apply(isa: Isa, factors: *const f32, tile: WeightTile) {
    // SAFETY: guaranteed by the caller.
    unsafe { dispatch!(isa, unsafe apply_rows(factors: *const f32 = factors, tile: WeightTile = tile)) }
}

/// # Safety
/// Same as [`apply`].
#[inline(always)]
unsafe fn apply_rows<const FMA: bool>(factors: *const f32, tile: WeightTile) {
    for i in 0..tile.rows {
        // SAFETY: guaranteed by the caller.
        let (row, factors) = unsafe {
            let at = i * tile.stride;
            (std::slice::from_raw_parts_mut(tile.start.add(at), tile.columns), std::slice::from_raw_parts(factors.add(at), tile.columns))
        };
        row.iter_mut().zip(factors).for_each(|(number, factor)| *number *= factor);
    }
}
