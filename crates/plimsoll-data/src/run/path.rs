//! The operations on one column, from where the source writes rows to where the consumer finds them.

use super::ring::Claim;
use crate::block::Rows;
use crate::cache::Store;
use crate::dataset::{ColumnRecipe, Recipe};
use crate::decode::{DecodeKernel, DecodePool, DecodeRecipe, ItemCap, stated_item_bytes};
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::ops::Kernel;
use crate::plan::{Geometry, cached_bytes};
use crate::{Column, DataError};
use plimsoll_core::budget::SlotMemory;
use std::sync::Arc;

/// Where rows are written: the memory of each column.
pub(crate) trait Target {
    /// The memory of `rows` rows from row `from` on, column by column.
    fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]>;
}

impl Target for Claim<'_> {
    fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]> {
        Claim::columns(self, from, rows)
    }
}

/// Says in the last column whether rows are there.
pub(crate) fn mark(claim: &mut impl Target, at: usize, rows: usize, with: u8) {
    claim.columns(at, rows).last().expect("the mark is the last column").fill(with);
}

/// The way of one column from the source to the slot.
pub(crate) struct Path {
    /// Makes rows from files, where the source gives those.
    item: Option<DecodeKernel>,
    /// Bytes of one row as the source, or `item`, writes it.
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

impl Path {
    /// The way of rows as they are `written` by the source, by `item` or by a cache.
    pub fn new(map: &ColumnRecipe, written: &Column, rows: usize, item: Option<DecodeKernel>) -> Path {
        let buffers = map.steps.iter().filter(|step| !step.in_place).map(|step| AlignedBuf::new(step.input.row_bytes().get() * rows));
        let bound = map.steps.iter().map(|step| PathStep {
            kernel: step.op.kernel(&step.input),
            in_place: step.in_place,
            row_bytes: step.input.row_bytes().get(),
        });
        let written = map.item.as_ref().map_or(written, |item| &item.output);
        Path { item, row_bytes: written.row_bytes().get(), buffers: buffers.collect(), steps: bound.collect() }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.item.iter_mut().for_each(|item| item.set_epoch(epoch));
        self.steps.iter_mut().for_each(|step| step.kernel.set_epoch(epoch));
    }

    /// Where the source writes `rows` rows on their way to `slot`; nowhere where files come later, one by one.
    pub fn block<'p>(&'p mut self, rows: usize, slot: &'p mut [u8]) -> &'p mut [u8] {
        if self.item.is_some() { &mut [] } else { self.input(rows, slot) }
    }

    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Whether rows are made from files.
    pub fn has_items(&self) -> bool {
        self.item.is_some()
    }

    /// Bytes of one row as the source writes it.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// Where the source writes `rows` rows on their way to `slot`.
    pub fn input<'p>(&'p mut self, rows: usize, slot: &'p mut [u8]) -> &'p mut [u8] {
        match self.buffers.first_mut() {
            Some(buffer) => &mut buffer.bytes_mut()[..rows * self.row_bytes],
            None => slot,
        }
    }

    /// Makes rows from files where the source would have written them.
    pub fn make_items(&mut self, which: impl Fn(usize) -> u64, rows: usize, slot: &mut [u8]) -> Result<(), DataError> {
        let out = match self.buffers.first_mut() {
            Some(buffer) => &mut buffer.bytes_mut()[..rows * self.row_bytes],
            None => slot,
        };
        let Some(item) = &mut self.item else { return Ok(()) };
        for (index, out) in out.chunks_exact_mut(self.row_bytes).enumerate() {
            item.run(which(index), out)?;
        }
        Ok(())
    }

    /// Takes `rows` rows from where the source wrote them to `slot`.
    pub fn run(&mut self, which: Rows<'_>, rows: usize, slot: &mut [u8]) -> Result<(), DataError> {
        let mut rest = &mut self.buffers[..];
        for index in 0..self.steps.len() {
            // A step's output is as large as the next one's input; the last writes to the slot, which is sized for it.
            let next = self.steps.get(index + 1).map(|step| rows * step.row_bytes);
            let step = &mut self.steps[index];
            match rest {
                [] => step.kernel.run_in_place(which, slot)?,
                [input, ..] if step.in_place => step.kernel.run_in_place(which, &mut input.bytes_mut()[..rows * step.row_bytes])?,
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

/// What makes rows of files on one thread.
pub(super) fn decode_kernel(
    recipe: &Recipe,
    item: &DecodeRecipe,
    geometry: Geometry,
    pool: &Arc<DecodePool>,
    meter: &Arc<Meter>,
) -> DecodeKernel {
    let cap = ItemCap { stated: stated_item_bytes(recipe.settings.max_item), here: geometry.max_item };
    DecodeKernel::new(Arc::clone(&recipe.source), item.clone(), cap, Arc::clone(pool), Arc::clone(meter))
}

/// Where files are decoded and cached, if there are any.
pub(super) fn decode_pool(recipe: &Recipe, geometry: Geometry) -> Result<Option<Arc<DecodePool>>, DataError> {
    if recipe.item().is_none() {
        return Ok(None);
    }
    let cache = cached_bytes(recipe, geometry.cache_rows);
    Ok(Some(Arc::new(DecodePool::new(geometry.decode, cache, geometry.workers, store(recipe, geometry)?))))
}

/// Where whole rows are cached, if they are.
pub(super) fn row_store(recipe: &Recipe, geometry: Geometry) -> Result<Option<Arc<Store>>, DataError> {
    if recipe.cached_rows.is_some() { store(recipe, geometry) } else { Ok(None) }
}

fn store(recipe: &Recipe, geometry: Geometry) -> Result<Option<Arc<Store>>, DataError> {
    let Some((cache, row)) = recipe.cached_row() else { return Ok(None) };
    let (span, bypass) = (recipe.span.take(geometry.cache_rows), recipe.bypass.clone().unwrap_or_default());
    Ok(Some(Arc::new(Store::open(cache, span, row.get(), bypass, || recipe.fingerprint())?)))
}
