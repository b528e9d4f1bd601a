//! Converts rows of a stream to columns and maps them on the calling thread.

use super::path::{ColumnBlock, Path, Target, decode_pool, paths};
use crate::DataError;
use crate::block::Rows;
use crate::dataset::{BlockIterator, OpenInput, Recipe, StreamBudget};
use crate::decode::DecodePool;
use crate::fault::{Fault, guarded};
use crate::meter::{Meter, StageTimer};
use crate::plan::Geometry;
use crate::source::referenced_row;
use plimsoll_core::Ledger;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A block of rows of a stream, and the operations on each column.
pub(super) struct Mapper {
    pub rows_block: Vec<u8>,
    /// Capacity in rows, and the bytes of a row.
    pub rows: usize,
    pub row_bytes: usize,
    paths: Vec<Path>,
    /// Time spent reading and decoding files.
    pub opened: Duration,
}

impl Mapper {
    /// For one thread; files that rows refer to are decoded in `files`.
    pub fn new(recipe: &Recipe, geometry: Geometry, files: Option<&Arc<DecodePool>>, meter: &Arc<Meter>) -> Mapper {
        let (rows, row_bytes) = (geometry.chunk_rows, recipe.stream_row_bytes().get());
        let paths = paths(recipe, geometry, files, meter);
        Mapper { rows_block: vec![0; rows * row_bytes], rows, row_bytes, paths, opened: Duration::ZERO }
    }

    /// The buffer for `rows` rows of a stream, or for as many as fit.
    pub fn block(&mut self, rows: usize) -> &mut [u8] {
        &mut self.rows_block[..self.rows.min(rows) * self.row_bytes]
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.paths.iter_mut().for_each(|path| path.set_epoch(epoch));
    }

    /// Maps rows of the block, starting at `from`, and writes them to the target, starting at row `at`. The first one
    /// has index `place`.
    pub fn write(&mut self, from: usize, place: u64, target: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        let mut column = 0;
        let block = &self.rows_block[from * self.row_bytes..];
        for (path, slot) in self.paths.iter_mut().zip(target.columns(at, rows)) {
            if path.has_items() {
                let start = Instant::now();
                path.make_items(|row| referenced_row(&block[row * self.row_bytes..][..self.row_bytes]), rows, slot)?;
                self.opened += start.elapsed();
            } else {
                let bytes = path.row_bytes();
                let out = path.input(rows, slot);
                copy_column(block, self.row_bytes, column..column + bytes, out);
                column += bytes;
            }
            path.run(Rows::From(place), rows, slot)?;
        }
        Ok(())
    }

    /// Like `write`, for rows whose maps may fail.
    pub fn try_write(&mut self, from: usize, place: u64, target: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        guarded(|| self.write(from, place, target, at, rows)).flatten()
    }
}

/// Copies the bytes of a column from each row.
fn copy_column(rows: &[u8], row_bytes: usize, column: Range<usize>, out: &mut [u8]) {
    fn small<const BYTES: usize>(rows: &[u8], row_bytes: usize, at: usize, out: &mut [u8]) {
        for (row, out) in rows.chunks_exact(row_bytes).zip(out.as_chunks_mut::<BYTES>().0) {
            if let Some(bytes) = row[at..].first_chunk::<BYTES>() {
                *out = *bytes;
            }
        }
    }
    match column.len() {
        all if all == row_bytes => out.copy_from_slice(&rows[..out.len()]),
        // Without a call for each row.
        1 => small::<1>(rows, row_bytes, column.start, out),
        4 => small::<4>(rows, row_bytes, column.start, out),
        8 => small::<8>(rows, row_bytes, column.start, out),
        16 => small::<16>(rows, row_bytes, column.start, out),
        bytes => {
            for (row, out) in rows.chunks_exact(row_bytes).zip(out.chunks_exact_mut(bytes)) {
                out.copy_from_slice(&row[column.clone()]);
            }
        }
    }
}

/// The fault of a row whose map failed.
pub(super) fn unmapped(place: u64, error: DataError) -> Fault {
    Fault::row(error).numbered(place, "of a stream")
}

/// The rows of a stream after its maps, on the calling thread.
pub(super) struct MappedRows {
    stream: Box<dyn BlockIterator>,
    timer: Arc<StageTimer>,
    mapper: Mapper,
    columns: ColumnBlock,
    row_bytes: usize,
    /// Rows of the block already mapped, and its total rows.
    from: usize,
    to: usize,
    /// The index of the next row; failed rows count.
    place: u64,
    /// Whether mapping the block failed, so that rows are mapped one by one.
    one_by_one: bool,
    /// The fault that follows the rows written last.
    fault: Option<Fault>,
}

impl MappedRows {
    /// For at most `rows` rows per block.
    pub fn new(
        recipe: &Recipe,
        budget: StreamBudget,
        ledger: &Ledger,
        rows: usize,
        meter: &Arc<Meter>,
        opener: &'static dyn OpenInput,
    ) -> Result<MappedRows, DataError> {
        let node = recipe.node.as_ref().expect("only for streams");
        let timer = Arc::clone(meter.stage.get_or_init(|| node.timer(node.stage.describe())));
        let geometry = Geometry::of_block(recipe, rows, budget);
        let mapper = Mapper::new(recipe, geometry, decode_pool(recipe, geometry)?.as_ref(), meter);
        let stream = node.open(budget, ledger, &timer, opener)?;
        let (columns, row_bytes) = (ColumnBlock::new(&recipe.schema, rows), recipe.schema.row_bytes().get());
        Ok(MappedRows { stream, timer, mapper, columns, row_bytes, from: 0, to: 0, place: 0, one_by_one: false, fault: None })
    }

    /// Writes up to `rows` rows of one block to the columns, starting at row `at`; zero only at the end of the epoch.
    fn some(&mut self, at: usize, rows: usize) -> Result<usize, Fault> {
        if self.from == self.to {
            (self.from, self.to, self.one_by_one) = (0, 0, false);
            let start = Instant::now();
            let came = self.stream.fill(self.mapper.block(rows));
            self.timer.add(*came.as_ref().unwrap_or(&0), start);
            self.place += u64::from(came.is_err());
            self.to = came?;
        }
        let rows = rows.min(self.to - self.from);
        if !self.one_by_one {
            if self.mapper.try_write(self.from, self.place, &mut self.columns, at, rows).is_ok() {
                self.pass(rows);
                return Ok(rows);
            }
            // Mapping the block failed, so each row is mapped by itself.
            self.one_by_one = true;
        }
        let place = self.place;
        let written = self.mapper.try_write(self.from, place, &mut self.columns, at, 1);
        self.pass(1);
        written.map(|()| 1).map_err(|error| unmapped(place, error))
    }

    fn pass(&mut self, rows: usize) {
        self.from += rows;
        self.place += rows as u64;
    }
}

impl BlockIterator for MappedRows {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.from, self.to, self.place, self.one_by_one, self.fault) = (0, 0, 0, false, None);
        self.mapper.set_epoch(epoch);
        let start = Instant::now();
        let begun = self.stream.begin(epoch);
        self.timer.add(0, start);
        begun
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let (mut done, rows) = (0, self.mapper.rows.min(out.len() / self.row_bytes));
        while done < rows {
            match self.some(done, rows - done) {
                Ok(0) => break,
                Ok(came) => done += came,
                Err(fault) if done == 0 => return Err(fault),
                Err(fault) => {
                    self.fault = Some(fault);
                    break;
                }
            }
        }
        self.columns.to_rows(done, out);
        Ok(done)
    }

    fn close(&mut self) {
        (self.from, self.to, self.fault) = (0, 0, None);
        self.stream.close();
    }
}
