//! Updates of masks by the host, between two steps. A weight is read in small parts as often as needed, so that its
//! size does not matter.

use super::{Pooling, PrunedWeight, SparsityPattern};
use crate::history::WeightSparsity;
use plimsoll_core::device::DeviceError;
use plimsoll_core::graph::StateId;
use plimsoll_core::{Bytes, Executor};

type Done = Result<(), DeviceError>;

/// Weights that are read at a time, where no pattern asks for more.
const PART: usize = 4096;

/// Buckets of a histogram: 11 bits of a number.
const BUCKETS: usize = 1 << 11;

/// Heap per weight: its names, and its line of the report.
const PER_WEIGHT: usize = 1024;

/// The masks of a run, and the buffers for their updates.
pub(crate) struct MaskUpdates {
    weights: Vec<(PrunedWeight, StateId, StateId)>,
    buffers: Buffers,
}

struct Buffers {
    /// Weights as bytes, and their masks.
    weights: Vec<u8>,
    masks: Vec<u8>,
    /// A row of blocks: the pooled magnitudes.
    pooled: Vec<f32>,
    /// How many numbers have the bits of a bucket.
    counts: Vec<u64>,
}

impl MaskUpdates {
    /// The weights whose parameter and mask the executor has.
    pub fn new(weights: &[PrunedWeight], executor: &Executor) -> MaskUpdates {
        let state = |name: &str| executor.plan().states.iter().position(|state| state.name == name).map(|i| StateId(i as u32));
        let found = weights.iter().filter_map(|weight| Some((weight.clone(), state(&weight.name)?, state(&weight.mask())?)));
        let (part, pooled) = sizes(weights);
        let counts = if weights.is_empty() { 0 } else { BUCKETS };
        let buffers = Buffers { weights: vec![0; 4 * part], masks: vec![0; part], pooled: vec![0.0; pooled], counts: vec![0; counts] };
        MaskUpdates { weights: found.collect(), buffers }
    }

    /// Bytes of the buffers.
    pub fn footprint(weights: &[PrunedWeight]) -> Bytes {
        let (part, pooled) = sizes(weights);
        Bytes((5 * part + 4 * pooled + 8 * BUCKETS + PER_WEIGHT * weights.len()) as u64).align_up(4096)
    }

    /// Updates the masks that are due before a step, counted from 0, and sets the weights that they prune to zero.
    pub fn update(&mut self, executor: &mut Executor, step: u64) -> Done {
        for (weight, parameter, mask) in &self.weights {
            let sparsity = &weight.pruning.sparsity;
            let due = match weight.pruning.pattern {
                SparsityPattern::MByN { .. } => step == sparsity.begin,
                _ => sparsity.updates(step),
            };
            if due {
                let mut tensor = MaskedTensor { executor, weight, parameter: *parameter, mask: *mask };
                tensor.update_mask(&mut self.buffers, sparsity.at(step))?;
                tensor.apply_mask(&mut self.buffers)?;
            }
        }
        Ok(())
    }

    /// How many numbers of every weight are zero.
    pub fn sparsity(&mut self, executor: &Executor) -> Result<Vec<WeightSparsity>, DeviceError> {
        let mut counted = Vec::with_capacity(self.weights.len());
        for (weight, parameter, _) in &self.weights {
            let (size, mut zeros) = (weight.shape.iter().product::<usize>(), 0);
            for at in (0..size).step_by(PART) {
                let numbers = &mut self.buffers.weights[..4 * PART.min(size - at)];
                executor.read_state_part(*parameter, Bytes(4 * at as u64), numbers)?;
                zeros += numbers.chunks_exact(4).filter(|number| magnitude(number) == 0.0).count() as u64;
            }
            counted.push(WeightSparsity { name: weight.name.clone(), zeros, numbers: size as u64 });
        }
        Ok(counted)
    }
}

/// Weights that are read at a time and blocks of a row, at most.
fn sizes(weights: &[PrunedWeight]) -> (usize, usize) {
    let size = |weight: &PrunedWeight| {
        let (_, columns) = weight.matrix();
        match weight.pruning.pattern {
            SparsityPattern::Unstructured => (PART, 0),
            // The magnitudes of a row of blocks are pooled along its rows first.
            SparsityPattern::Block { .. } => (PART.max(columns), columns),
            SparsityPattern::MByN { of, .. } => (PART.max(of * columns), 0),
        }
    };
    weights.iter().map(size).fold((0, 0), |(a, b), (c, d)| (a.max(c), b.max(d)))
}

/// A weight with its mask.
struct MaskedTensor<'a> {
    executor: &'a mut Executor,
    weight: &'a PrunedWeight,
    parameter: StateId,
    mask: StateId,
}

impl MaskedTensor<'_> {
    fn update_mask(&mut self, buffers: &mut Buffers, sparsity: f32) -> Done {
        match self.weight.pruning.pattern {
            SparsityPattern::Unstructured => {
                let kept = kept_count(self.weight.shape.iter().product(), sparsity);
                let Buffers { weights, masks, counts, .. } = buffers;
                let threshold = kth_largest(kept, counts, |visit| self.parts(weights, |_, numbers| numbers.for_each(&mut *visit)))?;
                self.write_masks(weights, masks, |number| number < threshold)
            }
            SparsityPattern::Block { size, pooling } => self.update_blocks(buffers, size, pooling, sparsity),
            SparsityPattern::MByN { zeros, of } => self.update_groups(buffers, of - zeros, of),
        }
    }

    /// Passes the magnitudes of all weights to `visit`, part by part, with the index of the first.
    fn parts(&self, buffer: &mut [u8], mut visit: impl FnMut(usize, &mut dyn Iterator<Item = f32>)) -> Done {
        let size = self.weight.shape.iter().product::<usize>();
        for at in (0..size).step_by(PART) {
            let numbers = self.read(buffer, at, PART.min(size - at))?;
            visit(at, &mut numbers.chunks_exact(4).map(magnitude));
        }
        Ok(())
    }

    fn read<'b>(&self, buffer: &'b mut [u8], at: usize, count: usize) -> Result<&'b mut [u8], DeviceError> {
        let numbers = &mut buffer[..4 * count];
        self.executor.read_state_part(self.parameter, Bytes(4 * at as u64), numbers)?;
        Ok(numbers)
    }

    fn write_masks(&mut self, buffer: &mut [u8], masks: &mut [u8], pruned: impl Fn(f32) -> bool) -> Done {
        let size = self.weight.shape.iter().product::<usize>();
        for at in (0..size).step_by(PART) {
            let count = PART.min(size - at);
            let numbers = self.read(buffer, at, count)?;
            masks.iter_mut().zip(numbers.chunks_exact(4)).for_each(|(mask, number)| *mask = u8::from(pruned(magnitude(number))));
            self.executor.write_state_part(self.mask, Bytes(at as u64), &masks[..count])?;
        }
        Ok(())
    }

    /// Blocks are pooled with tfmot's `SAME` padding, half of which comes before the first row and column.
    fn update_blocks(&mut self, buffers: &mut Buffers, (height, width): (usize, usize), pooling: Pooling, sparsity: f32) -> Done {
        let (rows, columns) = self.block_matrix();
        let (down, across) = (rows.div_ceil(height), columns.div_ceil(width));
        let Buffers { weights, masks, pooled, counts } = buffers;
        let kept = kept_count(down * across, sparsity);
        let threshold = kth_largest(kept, counts, |visit| {
            for block in 0..down {
                self.pool(weights, pooled, block, (height, width), pooling)?;
                pooled[..across].iter().copied().for_each(&mut *visit);
            }
            Ok(())
        })?;
        for block in 0..down {
            self.pool(weights, pooled, block, (height, width), pooling)?;
            masks[..columns].iter_mut().enumerate().for_each(|(column, mask)| *mask = u8::from(pooled[column / width] < threshold));
            for row in block * height..rows.min((block + 1) * height) {
                self.executor.write_state_part(self.mask, Bytes((row * columns) as u64), &masks[..columns])?;
            }
        }
        Ok(())
    }

    /// Rows and columns without axes of extent 1.
    fn block_matrix(&self) -> (usize, usize) {
        let mut extents = self.weight.shape.iter().copied().filter(|extent| *extent > 1);
        match (extents.next(), extents.next()) {
            (Some(rows), Some(columns)) => (rows, columns),
            _ => self.weight.matrix(),
        }
    }

    /// The pooled magnitudes of a row of blocks: along the rows first, then along the columns.
    fn pool(&self, buffer: &mut [u8], pooled: &mut [f32], block: usize, (height, width): (usize, usize), pooling: Pooling) -> Done {
        let (rows, columns) = self.block_matrix();
        let covered = |block: usize, size: usize, extent: usize| {
            let before = (extent.div_ceil(size) * size - extent) / 2;
            (block * size).saturating_sub(before)..((block + 1) * size - before).min(extent)
        };
        let add = |total: f32, number: f32| match pooling {
            Pooling::Average => total + number,
            Pooling::Max => total.max(number),
        };
        let mean = |total: f32, count: usize| match pooling {
            Pooling::Average => total / count as f32,
            Pooling::Max => total,
        };
        let covers = covered(block, height, rows);
        pooled[..columns].fill(0.0);
        for row in covers.clone() {
            let numbers = self.read(buffer, row * columns, columns)?;
            pooled.iter_mut().zip(numbers.chunks_exact(4)).for_each(|(total, number)| *total = add(*total, magnitude(number)));
        }
        pooled[..columns].iter_mut().for_each(|total| *total = mean(*total, covers.len()));
        // A block begins at or after its own place in the row, so that nothing is overwritten before it was read.
        for block in 0..columns.div_ceil(width) {
            let covers = covered(block, width, columns);
            pooled[block] = mean(pooled[covers.clone()].iter().fold(0.0, |total, number| add(total, *number)), covers.len());
        }
        Ok(())
    }

    /// Of every group of consecutive inputs of an output, the largest are kept; of equal ones, the first.
    fn update_groups(&mut self, buffers: &mut Buffers, kept: usize, of: usize) -> Done {
        let (rows, columns) = self.weight.matrix();
        let inputs = self.weight.shape.iter().rev().nth(1).copied().unwrap_or(rows);
        let Buffers { weights, masks, .. } = buffers;
        for first in (0..rows).step_by(inputs) {
            for from in (0..inputs).step_by(of) {
                let group = of.min(inputs - from);
                let at = (first + from) * columns;
                let numbers = self.read(weights, at, group * columns)?;
                let number = |row: usize, column: usize| magnitude(&numbers[4 * (row * columns + column)..][..4]);
                for column in 0..columns {
                    for row in 0..group {
                        let own = number(row, column);
                        let before = |other: &usize| match number(*other, column) {
                            equal if equal == own => *other < row,
                            other => other > own,
                        };
                        masks[row * columns + column] = u8::from((0..group).filter(before).count() >= kept);
                    }
                }
                self.executor.write_state_part(self.mask, Bytes(at as u64), &masks[..group * columns])?;
            }
        }
        Ok(())
    }

    /// Sets pruned weights to zero.
    fn apply_mask(&mut self, buffers: &mut Buffers) -> Done {
        let size = self.weight.shape.iter().product::<usize>();
        for at in (0..size).step_by(PART) {
            let count = PART.min(size - at);
            let (numbers, masks) = (&mut buffers.weights[..4 * count], &mut buffers.masks[..count]);
            self.executor.read_state_part(self.parameter, Bytes(4 * at as u64), numbers)?;
            self.executor.read_state_part(self.mask, Bytes(at as u64), masks)?;
            numbers.chunks_exact_mut(4).zip(masks).filter(|(_, mask)| **mask != 0).for_each(|(number, _)| number.fill(0));
            self.executor.write_state_part(self.parameter, Bytes(4 * at as u64), numbers)?;
        }
        Ok(())
    }
}

fn magnitude(bytes: &[u8]) -> f32 {
    f32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]).abs()
}

/// How many of the largest numbers are kept: in single precision and rounded to even, as in tfmot, and at least one.
fn kept_count(size: usize, sparsity: f32) -> u64 {
    ((size as f32 * (1.0 - sparsity)).round_ties_even() as u64).clamp(1, size as u64)
}

/// The `k`-th largest of some magnitudes, by the bits of their histogram. `each` passes all of them to a function,
/// three times.
fn kth_largest(k: u64, counts: &mut [u64], mut each: impl FnMut(&mut dyn FnMut(f32)) -> Done) -> Result<f32, DeviceError> {
    let (mut prefix, mut left) = (0, k);
    for (shift, bits) in [(21, 11), (10, 11), (0, 10)] {
        counts.fill(0);
        each(&mut |number| {
            let number = u64::from(number.to_bits());
            if number >> (shift + bits) == prefix {
                counts[(number >> shift) as usize & ((1 << bits) - 1)] += 1;
            }
        })?;
        for bucket in (0..1usize << bits).rev() {
            if counts[bucket] >= left {
                prefix = prefix << bits | bucket as u64;
                break;
            }
            left -= counts[bucket];
        }
    }
    Ok(f32::from_bits(prefix as u32))
}
