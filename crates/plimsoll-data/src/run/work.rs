//! Produces rows of an indexed source: selects, reads and maps them, and writes them to the slot.

use super::path::{Path, Target, mark, paths};
use super::ring::Claim;
use super::row_cache::RowCache;
use crate::DataError;
use crate::block::{BlockMut, ColumnMut, Rows, recycle};
use crate::cache::Store;
use crate::dataset::{Order, Recipe};
use crate::decode::DecodePool;
use crate::fault::{Fault, RowErrors, guarded};
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::plan::Geometry;
use crate::source::{Gather, Source};
use plimsoll_core::budget::SlotMemory;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// The buffers of one worker thread; none grows beyond what the plan counts.
pub(crate) struct Work {
    source: Arc<dyn Source>,
    order: Order,
    epoch: Option<u64>,
    meter: Arc<Meter>,
    scratch: AlignedBuf,
    chunk_rows: usize,
    /// The row indices of a chunk and their ascending order; `None` if rows are contiguous.
    gathered: Option<Gathered>,
    /// The cache of whole rows, which also produces missing ones.
    row_cache: Option<RowCache>,
    paths: Vec<Path>,
    /// Always empty; reused for its capacity.
    columns: Vec<ColumnMut<'static>>,
    /// Records the errors of rows, if they do not end the run.
    row_errors: Option<Arc<RowErrors>>,
}

struct Gathered {
    rows: Vec<u64>,
    /// Empty if the source does not benefit from it.
    ascending: Vec<u32>,
}

impl Work {
    /// Allocates what [`holdings`](crate::plan::holdings) counts for one worker, except its stack.
    pub fn new(
        recipe: &Recipe,
        geometry: Geometry,
        pool: Option<&Arc<DecodePool>>,
        store: Option<&Arc<Store>>,
        meter: &Arc<Meter>,
    ) -> Work {
        let rows = geometry.chunk_rows;
        // With a cache, the rows to read are known only after the lookup.
        let sorted = recipe.source.wants_ascending() && recipe.cached_rows.is_none();
        let gathered = || Gathered { rows: vec![0; rows], ascending: vec![0; if sorted { rows } else { 0 }] };
        Work {
            source: Arc::clone(&recipe.source),
            order: Order::new(recipe.source.len(), &recipe.index_steps, recipe.consumed),
            epoch: None,
            meter: Arc::clone(meter),
            scratch: AlignedBuf::new(recipe.source.scratch_bytes(rows).get()),
            chunk_rows: rows,
            gathered: recipe.is_gathered().then(gathered),
            row_cache: RowCache::new(recipe, rows, store),
            paths: paths(recipe, geometry, pool, meter),
            columns: Vec::with_capacity(recipe.maps.len()),
            row_errors: recipe.settings.row_errors.clone(),
        }
    }

    /// Writes the rows of a claim. Returns `false` if it stopped early because `stopping` returned true.
    pub fn fill(&mut self, claim: &mut Claim<'_>, stopping: impl Fn() -> bool) -> Result<bool, DataError> {
        self.set_epoch(claim.epoch);
        let mut done = 0;
        while done < claim.rows() {
            if stopping() {
                return Ok(false);
            }
            let chunk = self.chunk_rows.min(claim.rows() - done);
            self.chunk(claim.place + done as u64, claim, done, chunk)?;
            done += chunk;
        }
        Ok(true)
    }

    /// Sets the epoch of the rows that follow.
    pub fn set_epoch(&mut self, epoch: u64) {
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            self.order.set_epoch(epoch);
            self.paths.iter_mut().for_each(|path| path.set_epoch(epoch));
            self.row_cache.iter_mut().for_each(|cache| cache.set_epoch(epoch));
        }
    }

    /// Maximum number of rows per chunk.
    pub fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// Writes the rows starting at position `place` to the target, starting at row `at`; at most one chunk.
    pub fn chunk(&mut self, place: u64, claim: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        if self.row_errors.is_none() {
            return self.make(place, claim, at, rows);
        }
        // The last column marks rows with errors. If a block fails, its rows are produced one by one.
        if self.make_or_panic(place, claim, at, rows).is_ok() {
            mark(claim, at, rows, 0);
            return Ok(());
        }
        for row in 0..rows {
            let made = self.make_or_panic(place + row as u64, claim, at + row, 1);
            // A cache write error is not an error of the row.
            if let Err(DataError::Cache { .. }) = made {
                return made;
            }
            mark(claim, at + row, 1, u8::from(made.is_err()));
            if let (Err(error), Some(errors)) = (made, &self.row_errors) {
                errors.record(self.epoch.unwrap_or(0), place + row as u64, Fault::row(error));
            }
        }
        Ok(())
    }

    /// A panic in user code or in a decoder counts as an error of the row.
    fn make_or_panic(&mut self, place: u64, claim: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        guarded(|| self.make(place, claim, at, rows)).flatten()
    }

    fn make(&mut self, place: u64, claim: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        let mut columns = recycle(mem::take(&mut self.columns));
        for (path, region) in self.paths.iter_mut().zip(claim.columns(at, rows)) {
            columns.push(ColumnMut::new(path.block(rows, region)));
        }
        let scratch = self.scratch.bytes_mut();
        let start = Instant::now();
        let gather = self.gathered.as_mut().map(|gathered| gathered.choose(&self.order, place, rows));
        let which = gather.map_or_else(|| Rows::From(self.order.row(place)), |gather| Rows::At(gather.rows));
        let mut mapped = match &mut self.row_cache {
            Some(cache) => {
                // The cache measures its own times.
                cache.rows(which, rows, scratch, &mut columns, &self.meter)?;
                Instant::now()
            }
            None => {
                let mut block = BlockMut::new(self.source.schema(), rows, &mut columns);
                match (gather, which) {
                    (Some(gather), _) => self.source.gather(gather, scratch, &mut block)?,
                    (None, which) => self.source.read(which.row(0), scratch, &mut block)?,
                }
                Meter::lap(&self.meter.read, start)
            }
        };
        self.columns = recycle(columns);
        self.meter.rows.fetch_add(rows as u64, Relaxed);
        for (column, (path, region)) in self.paths.iter_mut().zip(claim.columns(at, rows)).enumerate() {
            if path.has_items() {
                // The decode kernel measures its own times.
                path.make_items(|index| which.row(index), rows, region)?;
                mapped = Instant::now();
            }
            if path.has_steps() {
                path.run(which, rows, region).map_err(|error| error.located(|row| self.source.locate(row, column)))?;
                mapped = Meter::lap(&self.meter.map, mapped);
            }
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
