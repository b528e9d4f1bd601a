//! Partial sums over micro-batches: a tensor added to the latest of them.

use crate::runtime::threads::ThreadPool;
use std::ops::Range;

/// Elements per task, and those that are summed at a time.
const GRAIN: usize = 1 << 14;
const BLOCK: usize = 256;

/// Partial sums of a tensor: `levels` of them behind each other, as a stack.
#[derive(Clone, Copy)]
pub struct PartialSums {
    /// The tensor that is added.
    pub tensor: *const f32,
    /// The partial sums.
    pub sums: *const f32,
    /// The new partial sums, or the sum alone.
    pub output: *mut f32,
    /// Elements of the tensor.
    pub count: usize,
    /// Partial sums that there is memory for.
    pub levels: usize,
}

// SAFETY: tasks access disjoint elements of every tensor.
unsafe impl Send for PartialSums {}
// SAFETY: as above.
unsafe impl Sync for PartialSums {}

impl PartialSums {
    /// Adds the partial sums of a range to the tensor, the last one first. The result is the output, or with `last`
    /// unset the partial sum at the start of the range, and the others stay.
    ///
    /// # Safety
    /// The tensors are valid and exclusive. Either they are disjoint, or the output is at the address of the partial
    /// sums, or with `last` at that of the tensor.
    pub unsafe fn add(self, pool: &ThreadPool, merged: Range<usize>, last: bool) {
        debug_assert!(merged.end <= self.levels);
        let task = |index: usize, _: usize| {
            let elements = index * GRAIN..(index * GRAIN + GRAIN).min(self.count);
            // SAFETY: guaranteed by the caller; no other task has these elements.
            unsafe { self.add_elements(elements, merged.clone(), last) }
        };
        pool.run(self.count.div_ceil(GRAIN), &task);
    }

    /// # Safety
    /// As [`add`](PartialSums::add).
    unsafe fn add_elements(self, elements: Range<usize>, merged: Range<usize>, last: bool) {
        let place = |level: usize, at: usize| level * self.count + at;
        // SAFETY: guaranteed by the caller: all places are below `levels · count`.
        unsafe {
            if !last && !std::ptr::eq(self.sums, self.output) {
                for level in 0..self.levels {
                    let at = place(level, elements.start);
                    std::ptr::copy_nonoverlapping(self.sums.add(at), self.output.add(at), elements.len());
                }
            }
            let to = if last { 0 } else { merged.start.min(self.levels - 1) };
            let mut sum = [0.0f32; BLOCK];
            for at in elements.clone().step_by(BLOCK) {
                let sum = &mut sum[..BLOCK.min(elements.end - at)];
                std::ptr::copy_nonoverlapping(self.tensor.add(at), sum.as_mut_ptr(), sum.len());
                for level in merged.clone().rev() {
                    let partial = std::slice::from_raw_parts(self.sums.add(place(level, at)), sum.len());
                    sum.iter_mut().zip(partial).for_each(|(sum, partial)| *sum += partial);
                }
                std::ptr::copy_nonoverlapping(sum.as_ptr(), self.output.add(place(to, at)), sum.len());
            }
        }
    }
}
