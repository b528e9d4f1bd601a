//! Making rows: chosen, read, mapped, and written where the consumer will find them.

use crate::block::{BlockLayout, BlockMut, ColumnMut, Rows, recycle};
use crate::memory::{AlignedBuf, SlotMemory};
use crate::ops::Kernel;
use crate::order::Order;
use crate::plan::Geometry;
use crate::recipe::{MapStep, Recipe};
use crate::source::{Gather, Source};
use crate::{Column, DataError};
use std::mem;
use std::sync::Arc;

/// All that the thread making rows owns: fixed buffers, and nothing that grows.
pub(crate) struct Work {
    source: Arc<dyn Source>,
    order: Order,
    layout: Arc<BlockLayout>,
    scratch: AlignedBuf,
    chunk_rows: usize,
    /// The rows of a chunk and their ascending order; `None` where rows follow each other anyway.
    gathered: Option<Gathered>,
    paths: Vec<Path>,
    /// Kept only for its capacity.
    columns: Vec<ColumnMut<'static>>,
}

struct Gathered {
    rows: Vec<u64>,
    /// Empty where the source has no use for it.
    ascending: Vec<u32>,
}

/// The way of one column from the source to the slot.
struct Path {
    row_bytes: usize,
    steps: Vec<PathStep>,
    /// The input of each step that does not work in place; the first is where the source writes. The last such step
    /// writes to the slot, and without one the source does.
    buffers: Vec<AlignedBuf>,
}

struct PathStep {
    kernel: Box<dyn Kernel>,
    in_place: bool,
    /// Bytes of one row going in.
    row_bytes: usize,
}

impl Work {
    /// Allocates what [`cost`](crate::plan::cost) counts, apart from the stack and the ring.
    pub fn new(recipe: &Recipe, geometry: Geometry, layout: Arc<BlockLayout>) -> Work {
        let rows = geometry.chunk_rows;
        let columns = recipe.source.schema().columns();
        Work {
            source: Arc::clone(&recipe.source),
            order: Order::new(recipe.source.len(), &recipe.reorders),
            layout,
            scratch: AlignedBuf::new(recipe.source.scratch_bytes(rows).get()),
            chunk_rows: rows,
            gathered: recipe
                .is_shuffled()
                .then(|| Gathered { rows: vec![0; rows], ascending: vec![0; if recipe.source.wants_ascending() { rows } else { 0 }] }),
            paths: columns.iter().zip(&recipe.maps).map(|(column, steps)| Path::new(column, steps, rows)).collect(),
            columns: Vec::with_capacity(columns.len()),
        }
    }

    /// Rows in one epoch.
    pub fn rows(&self) -> u64 {
        self.order.len()
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.order.set_epoch(epoch);
    }

    /// Writes the `rows` rows from `place` of the epoch on to the start of a slot. Stops early, and says so by `false`,
    /// when `stopping` does.
    pub fn fill(&mut self, slot: &mut [u8], place: u64, rows: usize, stopping: impl Fn() -> bool) -> Result<bool, DataError> {
        let mut done = 0;
        while done < rows {
            if stopping() {
                return Ok(false);
            }
            let chunk = self.chunk_rows.min(rows - done);
            self.chunk(slot, done, place + done as u64, chunk)?;
            done += chunk;
        }
        Ok(true)
    }

    fn chunk(&mut self, slot: &mut [u8], at: usize, place: u64, rows: usize) -> Result<(), DataError> {
        let mut columns = recycle(mem::take(&mut self.columns));
        for (path, region) in self.paths.iter_mut().zip(self.layout.split_mut(slot, at, rows)) {
            columns.push(ColumnMut::new(match path.buffers.first_mut() {
                Some(buffer) => &mut buffer.bytes_mut()[..rows * path.row_bytes],
                None => region,
            }));
        }
        let mut block = BlockMut::new(self.source.schema(), rows, &mut columns);
        let scratch = self.scratch.bytes_mut();
        let which = match &mut self.gathered {
            None => {
                let first = self.order.row(place);
                self.source.read(first, scratch, &mut block)?;
                Rows::From(first)
            }
            Some(gathered) => {
                let gather = gathered.choose(&self.order, place, rows);
                self.source.gather(gather, scratch, &mut block)?;
                Rows::At(gather.rows)
            }
        };
        self.columns = recycle(columns);
        for (path, region) in self.paths.iter_mut().zip(self.layout.split_mut(slot, at, rows)) {
            path.run(which, rows, region)?;
        }
        Ok(())
    }
}

impl Gathered {
    fn choose(&mut self, order: &Order, place: u64, count: usize) -> Gather<'_> {
        let rows = &mut self.rows[..count];
        for (index, row) in rows.iter_mut().enumerate() {
            *row = order.row(place + index as u64);
        }
        let wanted = count.min(self.ascending.len());
        let ascending = &mut self.ascending[..wanted];
        for (index, at) in ascending.iter_mut().enumerate() {
            *at = index as u32;
        }
        ascending.sort_unstable_by_key(|&at| rows[at as usize]);
        Gather { rows, ascending }
    }
}

impl Path {
    fn new(column: &Column, steps: &[MapStep], rows: usize) -> Path {
        let buffers = steps.iter().filter(|step| !step.in_place).map(|step| AlignedBuf::new(step.input.row_bytes().get() * rows));
        let bound = steps.iter().map(|step| PathStep {
            kernel: step.op.kernel(&step.input),
            in_place: step.in_place,
            row_bytes: step.input.row_bytes().get(),
        });
        Path { row_bytes: column.row_bytes().get(), buffers: buffers.collect(), steps: bound.collect() }
    }

    /// Takes `rows` rows from where the source wrote them to `slot`.
    fn run(&mut self, which: Rows<'_>, rows: usize, slot: &mut [u8]) -> Result<(), DataError> {
        let mut rest = &mut self.buffers[..];
        for index in 0..self.steps.len() {
            // A step's output is as large as the next one's input; the last writes to the slot, which is sized for it.
            let next = self.steps.get(index + 1).map(|step| rows * step.row_bytes);
            let step = &mut self.steps[index];
            match rest {
                [] => step.kernel.run_in_place(slot),
                [input, ..] if step.in_place => step.kernel.run_in_place(&mut input.bytes_mut()[..rows * step.row_bytes]),
                [input, after @ ..] => {
                    let output = match (after.first_mut(), next) {
                        (Some(buffer), Some(bytes)) => &mut buffer.bytes_mut()[..bytes],
                        _ => &mut *slot,
                    };
                    step.kernel.run(which, &input.bytes()[..rows * step.row_bytes], output)?;
                    rest = after;
                }
            }
        }
        Ok(())
    }
}
