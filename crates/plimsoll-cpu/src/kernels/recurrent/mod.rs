//! Recurrent layers: a block of rows runs through all steps on one thread, so that threads do not synchronize between
//! steps.
//!
//! The recurrent kernel is packed once per run (`panel`). A step is one product of the block's states with it,
//! accumulated onto the projected input in place, followed by the gates while the result is in cache (`gates`). Rows
//! are independent and their sums do not depend on the block, so results are bit-identical for any number of threads.

mod backward;
mod forward;
mod gates;
mod panel;
mod tensor_ptr;

pub use backward::{BackwardArgs, backward, backward_with, backward_workspace};
pub use forward::{ForwardArgs, forward, forward_with, forward_workspace};
pub use tensor_ptr::TensorPtr;

use crate::kernels::gemm::{self, LINE};
use crate::runtime::threads::ThreadPool;
use plimsoll_core::ops::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The extents of a recurrent layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    /// The recurrence.
    pub cell: Cell,
    /// Sequences.
    pub batch: usize,
    /// Steps of each.
    pub steps: usize,
    /// Length of the hidden state.
    pub units: usize,
    /// From the last step to the first.
    pub reverse: bool,
}

/// Maximum rows of a block.
const MOST_ROWS: usize = 16;

/// Floats of a packed kernel above which a block has twice as many rows, to read it half as often: it no longer fits in
/// L2.
const LARGE: usize = 1 << 18;

impl RecurrentShape {
    /// Features of a projected input.
    fn wide(&self) -> usize {
        self.cell.gates() * self.units
    }

    /// Rows of a block: as many as a tile of the product, by shape alone.
    fn rows(&self) -> usize {
        if self.units * self.wide() > LARGE { MOST_ROWS } else { MOST_ROWS / 2 }
    }

    fn blocks(&self) -> usize {
        self.batch.div_ceil(self.rows())
    }

    fn block(&self, index: usize) -> Range<usize> {
        index * self.rows()..self.batch.min((index + 1) * self.rows())
    }

    /// Number of concurrent blocks: more workspaces would never be used.
    fn slots(&self, threads: usize) -> usize {
        threads.max(1).min(self.blocks())
    }

    /// The step that is processed `at`-th.
    fn step(&self, at: usize) -> usize {
        if self.reverse { self.steps - 1 - at } else { at }
    }

    /// The offset of a row's step in a tensor of `features` per step.
    fn at(&self, row: usize, step: usize, features: usize) -> usize {
        (row * self.steps + step) * features
    }

    /// Row stride of workspace tensors in floats, padded to avoid set conflicts for powers of two.
    fn stride(&self) -> usize {
        padded(self.units)
    }

    /// Whether waking threads is worthwhile.
    fn parallel(&self) -> bool {
        const SERIAL: usize = 1 << 19;
        (self.batch * self.steps).saturating_mul(self.units * self.wide()) >= SERIAL
    }
}

fn padded(features: usize) -> usize {
    features.next_multiple_of(LINE) + LINE
}

/// Row pointers of a workspace tensor.
fn rows_of<const N: usize>(start: *mut f32, stride: usize) -> [*mut f32; N] {
    std::array::from_fn(|row| start.wrapping_add(row * stride))
}

/// Runs every block once, each with the index of a workspace that is exclusive to it.
fn for_each_block(pool: &ThreadPool, shape: &RecurrentShape, run: &(dyn Fn(usize, usize) + Sync)) {
    let next = AtomicUsize::new(0);
    let task = |slot: usize, _: usize| {
        loop {
            let block = next.fetch_add(1, Ordering::Relaxed);
            if block >= shape.blocks() {
                return;
            }
            run(block, slot);
        }
    };
    gemm::run(pool, shape.parallel(), shape.slots(pool.threads()), &task);
}
