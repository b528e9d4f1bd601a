//! Converts rows of a stream to columns and maps them on the calling thread.

use super::path::{Path, Target, decode_kernel, decode_pool};
use crate::block::Rows;
use crate::dataset::{BlockIterator, ColumnRecipe, OpenInput, Recipe, StreamBudget};
use crate::decode::DecodePool;
use crate::fault::{Fault, guarded};
use crate::meter::{Meter, StageTimer};
use crate::plan::Geometry;
use crate::source::referenced_row;
use crate::{Column, DataError};
use plimsoll_core::Ledger;
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
        let path = |(map, column): (&ColumnRecipe, &Column)| {
            let item = map.item.as_ref().zip(files).map(|(item, pool)| decode_kernel(recipe, item, geometry, pool, meter));
            Path::new(map, column, rows, item)
        };
        let paths = recipe.maps.iter().zip(recipe.source.schema().columns()).map(path).collect();
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
                for (row, out) in block.chunks_exact(self.row_bytes).zip(out.chunks_exact_mut(bytes)) {
                    out.copy_from_slice(&row[column..column + bytes]);
                }
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

/// The fault of a row whose map failed.
pub(super) fn unmapped(place: u64, error: DataError) -> Fault {
    Fault::row(error).numbered(place, "of a stream")
}

/// A stream and the maps after it.
pub(crate) struct StreamWork {
    stream: Box<dyn BlockIterator>,
    timer: Arc<StageTimer>,
    mapper: Mapper,
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

impl StreamWork {
    /// For at most `rows` rows per block.
    pub fn new(
        recipe: &Recipe,
        budget: StreamBudget,
        ledger: &Ledger,
        rows: usize,
        meter: &Arc<Meter>,
        opener: &'static dyn OpenInput,
    ) -> Result<StreamWork, DataError> {
        let node = recipe.node.as_ref().expect("only for streams");
        let timer = Arc::clone(meter.stage.get_or_init(|| node.timer(node.stage.describe())));
        let geometry = Geometry::of_block(recipe, rows, budget);
        let mapper = Mapper::new(recipe, geometry, decode_pool(recipe, geometry)?.as_ref(), meter);
        let stream = node.open(budget, ledger, &timer, opener)?;
        Ok(StreamWork { stream, timer, mapper, from: 0, to: 0, place: 0, one_by_one: false, fault: None })
    }

    pub fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.from, self.to, self.place, self.one_by_one, self.fault) = (0, 0, 0, false, None);
        self.mapper.set_epoch(epoch);
        let start = Instant::now();
        let begun = self.stream.begin(epoch);
        self.timer.add(0, start);
        begun
    }

    /// Writes up to `rows` rows to the target, starting at row `at`; zero only at the end of the epoch. A fault is
    /// returned by the next call, after the rows before it.
    pub fn fill(&mut self, target: &mut impl Target, at: usize, rows: usize) -> Result<usize, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut done = 0;
        while done < rows {
            match self.some(target, at + done, rows - done) {
                Ok(0) => break,
                Ok(came) => done += came,
                Err(fault) if done == 0 => return Err(fault),
                Err(fault) => {
                    self.fault = Some(fault);
                    break;
                }
            }
        }
        Ok(done)
    }

    /// Like `fill`, for at most one block.
    fn some(&mut self, target: &mut impl Target, at: usize, rows: usize) -> Result<usize, Fault> {
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
            if self.mapper.try_write(self.from, self.place, target, at, rows).is_ok() {
                self.pass(rows);
                return Ok(rows);
            }
            // Mapping the block failed, so each row is mapped by itself.
            self.one_by_one = true;
        }
        let place = self.place;
        let written = self.mapper.try_write(self.from, place, target, at, 1);
        self.pass(1);
        written.map(|()| 1).map_err(|error| unmapped(place, error))
    }

    /// Stops until the next epoch begins.
    pub fn close(&mut self) {
        (self.from, self.to, self.fault) = (0, 0, None);
        self.stream.close();
    }

    fn pass(&mut self, rows: usize) {
        self.from += rows;
        self.place += rows as u64;
    }
}
