//! Recurrent layers: a block of rows goes through all steps on one thread, so that threads never wait for each other between steps.
//!
//! The recurrent kernel is packed once per run (`panel`); a step is one product of the block's states with it, straight onto the projected input
//! where that stands, and the arithmetic of the gates while the result is hot (`gates`). Rows do not see each other and their sums do not
//! depend on the block they are in, so results are the same at any number of threads.

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

/// The extents of a args.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentShape {
    /// What happens in a step.
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

/// Most rows of a block.
const MOST_ROWS: usize = 16;

/// Floats of a packed kernel above which a block takes twice as many rows, to read it half as often: it no longer fits a core's own cache.
const LARGE: usize = 1 << 18;

impl RecurrentShape {
    /// Features of a projected input.
    fn wide(&self) -> usize {
        self.cell.gates() * self.units
    }

    /// Rows of a block: as many as a tile of the product has, by shape alone.
    fn rows(&self) -> usize {
        if self.units * self.wide() > LARGE { MOST_ROWS } else { MOST_ROWS / 2 }
    }

    fn blocks(&self) -> usize {
        self.batch.div_ceil(self.rows())
    }

    fn block(&self, index: usize) -> Range<usize> {
        index * self.rows()..self.batch.min((index + 1) * self.rows())
    }

    /// Blocks that may be under way at once: more parts of a workspace would never be used.
    fn slots(&self, threads: usize) -> usize {
        threads.max(1).min(self.blocks())
    }

    /// The step that comes `at`-th.
    fn step(&self, at: usize) -> usize {
        if self.reverse { self.steps - 1 - at } else { at }
    }

    /// Where a row's step begins in a tensor of `features` per step.
    fn at(&self, row: usize, step: usize, features: usize) -> usize {
        (row * self.steps + step) * features
    }

    /// Floats from one row of a scratch tensor to the next: padded, lest rows of a power of two fall on the same cache sets.
    fn stride(&self) -> usize {
        padded(self.units)
    }

    /// Whether waking threads is worth it.
    fn parallel(&self) -> bool {
        const SERIAL: usize = 1 << 19;
        (self.batch * self.steps).saturating_mul(self.units * self.wide()) >= SERIAL
    }
}

fn padded(features: usize) -> usize {
    features.next_multiple_of(LINE) + LINE
}

/// Row pointers of a scratch tensor.
fn rows_of<const N: usize>(start: *mut f32, stride: usize) -> [*mut f32; N] {
    std::array::from_fn(|row| start.wrapping_add(row * stride))
}

/// Runs every block once, each with the index of a part of the workspace that no other block uses at the same time.
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
