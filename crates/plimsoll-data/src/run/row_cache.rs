//! Whole rows by index: cached rows are copied, the others are produced together and then cached.
//!
//! A cached row is the concatenation of its columns, followed by a checksum in a file.

use super::path::Path;
use crate::DataError;
use crate::block::{BlockMut, ColumnMut, Rows, recycle};
use crate::cache::{CHECK, FileStore, Insertion, Store, checksum};
use crate::dataset::Recipe;
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::plan::row_cache_window;
use crate::source::{Gather, Source};
use plimsoll_core::budget::SlotMemory;
use std::mem;
use std::sync::Arc;
use std::time::Instant;

/// The state of one thread that reads rows from the cache, and produces and caches the missing ones.
pub(crate) struct RowCache {
    store: Arc<Store>,
    source: Arc<dyn Source>,
    /// The operations on each column before it is cached.
    paths: Vec<Path>,
    /// The rows just produced, by column, and the row size of each column.
    made: Vec<AlignedBuf>,
    row_bytes: Vec<usize>,
    /// Missing rows, and their positions in the output.
    missing: Vec<u64>,
    wanted_at: Vec<u32>,
    /// Permutation of the missing rows into ascending order, if the source benefits from that; else empty.
    ascending: Vec<u32>,
    /// Rows in the file by position there, and their positions in the output.
    found: Vec<(u64, u32)>,
    /// Buffer for rows read from or written to the store.
    window: Vec<u8>,
    /// Always empty; reused for its capacity.
    blocks: Vec<ColumnMut<'static>>,
}

/// Gaps of up to this many bytes between rows are read too: copying them costs about as much as another call.
const WORTH_READING_OVER: u64 = 3 << 10;

impl RowCache {
    /// For at most `rows` rows per call; `None` if nothing is cached.
    pub fn new(recipe: &Recipe, rows: usize, store: Option<&Arc<Store>>) -> Option<RowCache> {
        let (cached, store) = recipe.cached_rows.as_ref().zip(store)?;
        let columns = recipe.source.schema().columns();
        let paths = cached.maps.iter().zip(columns).map(|(map, column)| Path::new(map, column, rows, None)).collect();
        let row_bytes: Vec<usize> = cached.schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        let row = row_bytes.iter().sum();
        let in_file = matches!(**store, Store::File(_));
        Some(RowCache {
            store: Arc::clone(store),
            source: Arc::clone(&recipe.source),
            paths,
            made: row_bytes.iter().map(|bytes| AlignedBuf::new(bytes * rows)).collect(),
            row_bytes,
            missing: Vec::with_capacity(rows),
            wanted_at: Vec::with_capacity(rows),
            ascending: Vec::with_capacity(if recipe.source.wants_ascending() { rows } else { 0 }),
            found: Vec::with_capacity(if in_file { rows } else { 0 }),
            window: vec![0; row_cache_window(row, in_file)],
            blocks: Vec::with_capacity(columns.len()),
        })
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.paths.iter_mut().for_each(|path| path.set_epoch(epoch));
    }

    /// Writes these rows to `out`, by column.
    pub fn rows(
        &mut self,
        which: Rows<'_>,
        count: usize,
        scratch: &mut [u8],
        out: &mut [ColumnMut<'_>],
        meter: &Meter,
    ) -> Result<(), DataError> {
        let start = Instant::now();
        self.missing.clear();
        self.wanted_at.clear();
        let found = self.find(which, count, out);
        Meter::add(&meter.cache, start);
        found?;
        if self.missing.is_empty() {
            return Ok(());
        }
        self.make(scratch, meter)?;
        let start = Instant::now();
        self.hand_on(out);
        let kept = self.keep();
        Meter::add(&meter.cache, start);
        kept
    }

    /// Copies the cached rows and lists the missing ones.
    fn find(&mut self, which: Rows<'_>, count: usize, out: &mut [ColumnMut<'_>]) -> Result<(), DataError> {
        let RowCache { store, row_bytes, missing, wanted_at, found, window, .. } = self;
        let mut miss = |at: usize| {
            missing.push(which.row(at));
            wanted_at.push(at as u32);
        };
        match &**store {
            Store::Memory(store) => store.read_each(which, count, |at, row| scatter(row, row_bytes, at, out), miss),
            Store::File(store) => {
                found.clear();
                for at in 0..count {
                    match store.place(which.row(at)) {
                        Some(place) => found.push((place, at as u32)),
                        None => miss(at),
                    }
                }
                if !found.is_sorted() {
                    found.sort_unstable();
                }
                let mut rest = &found[..];
                while !rest.is_empty() {
                    let (together, after) = rest.split_at(read_together(rest, store.row_bytes(), window.len()));
                    if !read(store, together, window, row_bytes, out)? {
                        // The cache was disabled in the meantime, so the remaining rows are missing too.
                        rest.iter().for_each(|&(_, at)| miss(at as usize));
                        break;
                    }
                    rest = after;
                }
            }
        }
        Ok(())
    }

    /// Produces the missing rows.
    fn make(&mut self, scratch: &mut [u8], meter: &Meter) -> Result<(), DataError> {
        let start = Instant::now();
        let rows = self.missing.len();
        let mut blocks = recycle(mem::take(&mut self.blocks));
        for ((path, made), bytes) in self.paths.iter_mut().zip(&mut self.made).zip(&self.row_bytes) {
            blocks.push(ColumnMut::new(path.input(rows, &mut made.bytes_mut()[..rows * bytes])));
        }
        let mut block = BlockMut::new(self.source.schema(), rows, &mut blocks);
        let is_run = self.missing.is_sorted_by(|a, b| a + 1 == *b);
        let which = if is_run { Rows::From(self.missing[0]) } else { Rows::At(&self.missing) };
        match which {
            Rows::From(first) => self.source.read(first, scratch, &mut block)?,
            Rows::At(missing) => {
                self.ascending.clear();
                if self.source.wants_ascending() {
                    self.ascending.extend(0..rows as u32);
                    self.ascending.sort_unstable_by_key(|&at| missing[at as usize]);
                }
                self.source.gather(Gather { rows: missing, ascending: &self.ascending }, scratch, &mut block)?;
            }
        }
        self.blocks = recycle(blocks);
        let start = Meter::lap(&meter.read, start);
        for (column, ((path, made), bytes)) in self.paths.iter_mut().zip(&mut self.made).zip(&self.row_bytes).enumerate() {
            let mapped = path.run(which, rows, &mut made.bytes_mut()[..rows * bytes]);
            mapped.map_err(|error| error.located(|row| self.source.locate(row, column)))?;
        }
        Meter::lap(&meter.map, start);
        Ok(())
    }

    /// Copies the produced rows to their positions in the output.
    fn hand_on(&mut self, out: &mut [ColumnMut<'_>]) {
        for ((made, &bytes), out) in self.made.iter().zip(&self.row_bytes).zip(out) {
            let out = out.bytes();
            for (row, &at) in made.bytes().chunks_exact(bytes).zip(&self.wanted_at) {
                out[at as usize * bytes..][..bytes].copy_from_slice(row);
            }
        }
    }

    fn keep(&mut self) -> Result<(), DataError> {
        let RowCache { store, made, row_bytes, missing, window, .. } = self;
        match &**store {
            Store::Memory(_) => {
                for (index, &row) in missing.iter().enumerate() {
                    gather(made, row_bytes, index, window);
                    // The memory was reserved when the feed started.
                    if let Insertion::Needs(_) = store.write(row, window, false)? {
                        store.begin(row);
                        store.write(row, window, false)?;
                    }
                }
            }
            Store::File(store) => {
                let record = store.row_bytes();
                // The first row in the window, and the number of rows in it.
                let (mut first, mut held) = (0, 0);
                for (index, &row) in missing.iter().enumerate() {
                    let Some(place) = store.place_for(row) else { continue };
                    if held > 0 && (place != first + held as u64 || (held + 1) * record > window.len()) {
                        store.write_from(first, &window[..held * record])?;
                        held = 0;
                    }
                    if held == 0 {
                        first = place;
                    }
                    let (bytes, check) = window[held * record..][..record].split_at_mut(record - CHECK);
                    gather(made, row_bytes, index, bytes);
                    check.copy_from_slice(&checksum(bytes));
                    held += 1;
                }
                if held > 0 {
                    store.write_from(first, &window[..held * record])?;
                }
            }
        }
        Ok(())
    }
}

/// Copies a row to position `at` of each column.
fn scatter(row: &[u8], row_bytes: &[usize], at: usize, out: &mut [ColumnMut<'_>]) {
    let mut rest = row;
    for (&bytes, out) in row_bytes.iter().zip(out) {
        let (column, after) = rest.split_at(bytes);
        out.bytes()[at * bytes..][..bytes].copy_from_slice(column);
        rest = after;
    }
}

/// Concatenates the columns of a produced row.
fn gather(made: &[AlignedBuf], row_bytes: &[usize], index: usize, out: &mut [u8]) {
    let mut rest = out;
    for (made, &bytes) in made.iter().zip(row_bytes) {
        let (column, after) = rest.split_at_mut(bytes);
        column.copy_from_slice(&made.bytes()[index * bytes..][..bytes]);
        rest = after;
    }
}

/// How many of these rows, sorted by position, are read with one call.
fn read_together(found: &[(u64, u32)], record: usize, window: usize) -> usize {
    let (record, window) = (record as u64, window as u64);
    let ends = found.windows(2).position(|pair| {
        let (this, next) = (pair[0].0, pair[1].0);
        (next - this).saturating_sub(1) * record > WORTH_READING_OVER || (next - found[0].0 + 1) * record > window
    });
    ends.map_or(found.len(), |last| last + 1)
}

/// Reads these rows, sorted by position; `false` if the cache was disabled.
fn read(
    store: &FileStore,
    found: &[(u64, u32)],
    window: &mut [u8],
    row_bytes: &[usize],
    out: &mut [ColumnMut<'_>],
) -> Result<bool, DataError> {
    let (Some(&(first, _)), Some(&(last, _)), record) = (found.first(), found.last(), store.row_bytes()) else { return Ok(true) };
    let window = &mut window[..(last - first + 1) as usize * record];
    if !store.read_from(first, window)? {
        return Ok(false);
    }
    for &(place, at) in found {
        let (row, check) = window[(place - first) as usize * record..][..record].split_at(record - CHECK);
        if check != checksum(row) {
            return Err(store.damaged(place));
        }
        scatter(row, row_bytes, at as usize, out);
    }
    Ok(true)
}
