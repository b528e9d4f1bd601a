//! Making rows: chosen, read, mapped, and written where the consumer will find them.

use crate::block::{BlockMut, ColumnMut, Rows, recycle};
use crate::cache::{Keeper, Store};
use crate::decode_room::DecodeRoom;
use crate::fault::{Fault, Notes, guarded};
use crate::geometry::Geometry;
use crate::item::ItemKernel;
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::ops::Kernel;
use crate::order::Order;
use crate::recipe::{ColumnRecipe, Recipe};
use crate::ring::Claim;
use crate::source::{Gather, Source};
use crate::{Column, DataError};
use plimsoll_core::budget::SlotMemory;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

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

/// All that a thread making rows owns: fixed buffers, and nothing that grows beyond what was counted.
pub(crate) struct Work {
    source: Arc<dyn Source>,
    order: Order,
    epoch: Option<u64>,
    meter: Arc<Meter>,
    scratch: AlignedBuf,
    chunk_rows: usize,
    /// The rows of a chunk and their ascending order; `None` where rows follow each other anyway.
    gathered: Option<Gathered>,
    /// Where whole rows are kept: it has them, or makes them.
    keeper: Option<Keeper>,
    paths: Vec<Path>,
    /// Kept only for its capacity.
    columns: Vec<ColumnMut<'static>>,
    /// Who is told of rows that cannot be made, where that is no error.
    tolerate: Option<Arc<Notes>>,
}

struct Gathered {
    rows: Vec<u64>,
    /// Empty where the source has no use for it.
    ascending: Vec<u32>,
}

/// The way of one column from the source to the slot.
pub(crate) struct Path {
    /// Makes rows from files, where the source gives those.
    item: Option<ItemKernel>,
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

impl Work {
    /// Allocates what [`cost`](crate::plan::cost) counts for one worker, apart from its stack.
    pub fn new(
        recipe: &Recipe,
        geometry: Geometry,
        room: Option<&Arc<DecodeRoom>>,
        store: Option<&Arc<Store>>,
        meter: &Arc<Meter>,
    ) -> Work {
        let rows = geometry.chunk_rows;
        // Which of the rows have to be read is not known before, where some are kept.
        let sorted = recipe.source.wants_ascending() && recipe.kept.is_none();
        let gathered = || Gathered { rows: vec![0; rows], ascending: vec![0; if sorted { rows } else { 0 }] };
        let columns = recipe.kept.as_ref().map_or(recipe.source.schema(), |kept| &kept.schema).columns();
        let path = |(map, column): (&ColumnRecipe, &Column)| {
            let item = map.item.as_ref().zip(room).map(|(item, room)| recipe.item_kernel(item, geometry, room, meter));
            Path::new(map, column, rows, item)
        };
        Work {
            source: Arc::clone(&recipe.source),
            order: Order::new(recipe.source.len(), &recipe.reorders, recipe.begun),
            epoch: None,
            meter: Arc::clone(meter),
            scratch: AlignedBuf::new(recipe.source.scratch_bytes(rows).get()),
            chunk_rows: rows,
            gathered: recipe.is_gathered().then(gathered),
            keeper: Keeper::new(recipe, rows, store),
            paths: recipe.maps.iter().zip(columns).map(path).collect(),
            columns: Vec::with_capacity(recipe.maps.len()),
            tolerate: recipe.tolerate.clone(),
        }
    }

    /// Writes the rows of a claim. Stops early, and says so by `false`, when `stopping` does.
    pub fn fill(&mut self, claim: &mut Claim<'_>, stopping: impl Fn() -> bool) -> Result<bool, DataError> {
        self.set_epoch(claim.epoch);
        let mut done = 0;
        while done < claim.rows {
            if stopping() {
                return Ok(false);
            }
            let chunk = self.chunk_rows.min(claim.rows - done);
            self.chunk(claim.place + done as u64, claim, done, chunk)?;
            done += chunk;
        }
        Ok(true)
    }

    /// The rows that follow are of this epoch.
    pub fn set_epoch(&mut self, epoch: u64) {
        if self.epoch != Some(epoch) {
            self.epoch = Some(epoch);
            self.order.set_epoch(epoch);
            self.paths.iter_mut().for_each(|path| path.set_epoch(epoch));
            self.keeper.iter_mut().for_each(|keeper| keeper.set_epoch(epoch));
        }
    }

    /// How many rows are made at a time.
    pub fn chunk_rows(&self) -> usize {
        self.chunk_rows
    }

    /// Writes the rows from `place` on to the target's rows from `at` on; at most as many as are made at a time.
    pub fn chunk(&mut self, place: u64, claim: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        if self.tolerate.is_none() {
            return self.make(place, claim, at, rows);
        }
        // The last column says which rows there are; where a block fails, its rows are tried one by one.
        if self.make_or_panic(place, claim, at, rows).is_ok() {
            mark(claim, at, rows, 0);
            return Ok(());
        }
        for row in 0..rows {
            let made = self.make_or_panic(place + row as u64, claim, at + row, 1);
            // A cache that cannot be written is no fault of the row.
            if let Err(DataError::Cache { .. }) = made {
                return made;
            }
            mark(claim, at + row, 1, u8::from(made.is_err()));
            if let (Err(error), Some(notes)) = (made, &self.tolerate) {
                notes.note(self.epoch.unwrap_or(0), place + row as u64, Fault::row(error));
            }
        }
        Ok(())
    }

    /// A panic of user code or of a decoder is the fault of the row, too.
    fn make_or_panic(&mut self, place: u64, claim: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        guarded(|| self.make(place, claim, at, rows)).flatten()
    }

    fn make(&mut self, place: u64, claim: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        let mut columns = recycle(mem::take(&mut self.columns));
        for (path, region) in self.paths.iter_mut().zip(claim.columns(at, rows)) {
            columns.push(ColumnMut::new(match (&path.item, path.buffers.first_mut()) {
                // Files come later, one by one.
                (Some(_), _) => &mut [],
                (None, Some(buffer)) => &mut buffer.bytes_mut()[..rows * path.row_bytes],
                (None, None) => region,
            }));
        }
        let scratch = self.scratch.bytes_mut();
        let start = Instant::now();
        let gather = self.gathered.as_mut().map(|gathered| gathered.choose(&self.order, place, rows));
        let which = gather.map_or_else(|| Rows::From(self.order.row(place)), |gather| Rows::At(gather.rows));
        let mut mapped = match &mut self.keeper {
            Some(keeper) => {
                // It keeps its own times.
                keeper.rows(which, rows, scratch, &mut columns, &self.meter)?;
                Instant::now()
            }
            None => {
                let mut block = BlockMut::new(self.source.schema(), rows, &mut columns);
                match (gather, which) {
                    (Some(gather), _) => self.source.gather(gather, scratch, &mut block)?,
                    (None, which) => self.source.read(which.row(0), scratch, &mut block)?,
                }
                self.meter.lap_read(start)
            }
        };
        self.columns = recycle(columns);
        self.meter.rows.fetch_add(rows as u64, Relaxed);
        for (column, (path, region)) in self.paths.iter_mut().zip(claim.columns(at, rows)).enumerate() {
            if path.item.is_some() {
                // It keeps its own times.
                path.make_items(|index| which.row(index), rows, region)?;
                mapped = Instant::now();
            }
            if !path.steps.is_empty() {
                path.run(which, rows, region).map_err(|error| error.located(|row| self.source.locate(row, column)))?;
                mapped = self.meter.lap_map(mapped);
            }
        }
        Ok(())
    }
}

/// Says in the last column whether rows are there.
pub(crate) fn mark(claim: &mut impl Target, at: usize, rows: usize, with: u8) {
    claim.columns(at, rows).last().expect("the mark is the last column").fill(with);
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
    /// The way of rows as they are `written` by the source, by `item` or by a cache.
    pub fn new(map: &ColumnRecipe, written: &Column, rows: usize, item: Option<ItemKernel>) -> Path {
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
