//! The operations on one column, from the source's output to the slot.

use super::ring::Claim;
use crate::block::Rows;
use crate::cache::Store;
use crate::dataset::{ColumnRecipe, Recipe};
use crate::decode::{DecodeKernel, DecodePool, DecodeRecipe, ItemCap};
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::ops::Kernel;
use crate::plan::{Geometry, cached_bytes};
use crate::{Column, DataError, Schema};
use plimsoll_core::budget::SlotMemory;
use std::sync::Arc;

/// A destination for rows: the memory of each column.
pub(crate) trait Target {
    /// The memory of `rows` rows starting at row `from`, one slice per column.
    fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]>;
}

impl Target for Claim<'_> {
    fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]> {
        Claim::columns(self, from, rows)
    }
}

/// Columns of a block of rows.
pub(super) struct ColumnBlock {
    buffers: Vec<AlignedBuf>,
    row_bytes: Vec<usize>,
}

impl ColumnBlock {
    pub fn new(schema: &Schema, rows: usize) -> ColumnBlock {
        let row_bytes: Vec<usize> = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        ColumnBlock { buffers: row_bytes.iter().map(|bytes| AlignedBuf::new(bytes * rows)).collect(), row_bytes }
    }

    /// Writes the first `rows` rows in row-major order, the columns of a row adjacent.
    pub fn to_rows(&self, rows: usize, out: &mut [u8]) {
        join_columns(self.buffers.iter().map(|buffer| buffer.bytes()).zip(self.row_bytes.iter().copied()), rows, out);
    }
}

impl Target for ColumnBlock {
    fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]> {
        self.buffers.iter_mut().zip(&self.row_bytes).map(move |(buffer, bytes)| &mut buffer.bytes_mut()[from * bytes..][..rows * bytes])
    }
}

/// Writes `rows` rows in row-major order, from the bytes of each column and those of one of its rows.
pub(super) fn join_columns<'c>(columns: impl Iterator<Item = (&'c [u8], usize)> + Clone, rows: usize, out: &mut [u8]) {
    let all: usize = columns.clone().map(|(_, bytes)| bytes).sum();
    let mut at = 0;
    for (column, bytes) in columns {
        for (row, out) in column.chunks_exact(bytes).zip(out.chunks_exact_mut(all)).take(rows) {
            out[at..at + bytes].copy_from_slice(row);
        }
        at += bytes;
    }
}

/// Writes the error mark of rows, which is their last column.
pub(crate) fn mark(claim: &mut impl Target, at: usize, rows: usize, with: u8) {
    claim.columns(at, rows).last().expect("the mark is the last column").fill(with);
}

/// The operations on one column between the source and the slot.
pub(crate) struct Path {
    /// Decodes files to rows, if the source provides files.
    item: Option<DecodeKernel>,
    /// Bytes of one row as written by the source or by `item`.
    row_bytes: usize,
    steps: Vec<PathStep>,
    /// The input of each step that does not work in place; the source writes to the first one. The last such step
    /// writes to the slot; if there is none, the source does.
    buffers: Vec<AlignedBuf>,
}

struct PathStep {
    kernel: Box<dyn Kernel>,
    in_place: bool,
    /// Bytes of one input row.
    row_bytes: usize,
}

impl Path {
    /// The operations on rows of schema `written`, which come from the source, from `item` or from a cache.
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

    /// The buffer that the source writes `rows` rows to; empty if the rows are decoded from files later, one by one.
    pub fn block<'p>(&'p mut self, rows: usize, slot: &'p mut [u8]) -> &'p mut [u8] {
        if self.item.is_some() { &mut [] } else { self.input(rows, slot) }
    }

    pub fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Whether rows are decoded from files.
    pub fn has_items(&self) -> bool {
        self.item.is_some()
    }

    /// Bytes of one row as written by the source.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// The buffer that holds `rows` input rows of the first step.
    pub fn input<'p>(&'p mut self, rows: usize, slot: &'p mut [u8]) -> &'p mut [u8] {
        match self.buffers.first_mut() {
            Some(buffer) => &mut buffer.bytes_mut()[..rows * self.row_bytes],
            None => slot,
        }
    }

    /// Decodes files into the buffer that the source would otherwise write to.
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

    /// Applies all steps to `rows` rows and writes the result to `slot`.
    pub fn run(&mut self, which: Rows<'_>, rows: usize, slot: &mut [u8]) -> Result<(), DataError> {
        let mut rest = &mut self.buffers[..];
        for index in 0..self.steps.len() {
            // The output of a step has the size of the next step's input. The last step writes to the slot, which has
            // its output size.
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

/// The operations on each column in every epoch, for one thread. Files are decoded in `pool`.
pub(super) fn paths(recipe: &Recipe, geometry: Geometry, pool: Option<&Arc<DecodePool>>, meter: &Arc<Meter>) -> Vec<Path> {
    let cap = ItemCap { stated: recipe.sizes().cap(), here: geometry.max_item };
    let kernel = |column: usize, (item, pool): (&DecodeRecipe, &Arc<DecodePool>)| {
        DecodeKernel::new((Arc::clone(&recipe.source), column), item.clone(), cap, Arc::clone(pool), Arc::clone(meter))
    };
    let columns = recipe.cached_rows.as_ref().map_or(recipe.source.schema(), |cached| &cached.schema).columns();
    let path = |(at, (map, column)): (usize, (&ColumnRecipe, &Column))| {
        Path::new(map, column, geometry.chunk_rows, map.item.as_ref().zip(pool).map(|item| kernel(at, item)))
    };
    recipe.maps.iter().zip(columns).enumerate().map(path).collect()
}

/// The pool that files are decoded in, with its cache, if the data set has files.
pub(super) fn decode_pool(recipe: &Recipe, geometry: Geometry) -> Result<Option<Arc<DecodePool>>, DataError> {
    if recipe.item().is_none() {
        return Ok(None);
    }
    let cache = cached_bytes(recipe, geometry.cache_rows);
    Ok(Some(Arc::new(DecodePool::new(geometry.decode, cache, geometry.workers, store(recipe, geometry)?))))
}

/// The cache of whole rows, if there is one.
pub(super) fn row_store(recipe: &Recipe, geometry: Geometry) -> Result<Option<Arc<Store>>, DataError> {
    if recipe.cached_rows.is_some() { store(recipe, geometry) } else { Ok(None) }
}

fn store(recipe: &Recipe, geometry: Geometry) -> Result<Option<Arc<Store>>, DataError> {
    let Some((cache, row)) = recipe.cached_row() else { return Ok(None) };
    let (span, bypass) = (recipe.span.clone().take(geometry.cache_rows), recipe.bypass.clone().unwrap_or_default());
    Ok(Some(Arc::new(Store::open(cache, span, row.get(), bypass, || recipe.fingerprint())?)))
}
