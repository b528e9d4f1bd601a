//! Opens the inputs of sequential stages: another stage, an indexed source, or an inner feed that reads ahead.

use super::path::{Target, decode_pool, row_store};
use super::read_ahead::{Epochs, ReadAhead};
use super::stream_work::StreamWork;
use super::work::Work;
use crate::dataset::{BlockIterator, Dataset, ExpectedRows, Holding, Input, OpenInput, Recipe, StreamBudget};
use crate::fault::Fault;
use crate::memory::AlignedBuf;
use crate::meter::{InputTimer, Meter};
use crate::plan::{Geometry, InputPlan, Route, block_rows, input_holdings};
use crate::{DataError, Schema};
use plimsoll_core::Ledger;
use plimsoll_core::budget::SlotMemory;
use std::sync::Arc;

/// Opens inputs according to their plan.
pub(super) struct Opener;

impl OpenInput for Opener {
    fn open(&self, data: &Dataset, budget: StreamBudget, ledger: &Ledger, timer: Arc<InputTimer>) -> Result<Input, DataError> {
        let InputPlan { recipe, route, errors } = InputPlan::new(data, budget)?;
        let row = recipe.schema.row_bytes();
        let rows = block_rows(row, budget);
        let stream: Box<dyn BlockIterator> = match route {
            Route::Stage => Box::new(MappedRows::new(&recipe, budget, ledger, rows, &timer.meter)?),
            Route::Indexed(geometry) => Box::new(IndexedRows::new(&recipe, geometry, &timer.meter)?),
            Route::ReadAhead(data, plan) => Box::new(ReadAhead::new(*data, plan, ledger, row.get(), Epochs::of(&recipe, budget), &timer)),
        };
        Ok(Input::new(stream, row.get(), rows, errors, ExpectedRows::new(recipe.settings.cardinality), timer))
    }

    fn holdings(&self, data: &Dataset, budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        input_holdings(data, budget)
    }
}

/// Columns of a block of rows.
struct Columns {
    buffers: Vec<AlignedBuf>,
    row_bytes: Vec<usize>,
}

impl Columns {
    pub fn new(schema: &Schema, rows: usize) -> Columns {
        let row_bytes: Vec<usize> = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        Columns { buffers: row_bytes.iter().map(|bytes| AlignedBuf::new(bytes * rows)).collect(), row_bytes }
    }

    /// Writes the first `rows` rows in row-major order, the columns of a row adjacent.
    pub fn to_rows(&self, rows: usize, out: &mut [u8]) {
        let all: usize = self.row_bytes.iter().sum();
        let mut at = 0;
        for (buffer, &bytes) in self.buffers.iter().zip(&self.row_bytes) {
            for (row, out) in buffer.bytes().chunks_exact(bytes).zip(out.chunks_exact_mut(all)).take(rows) {
                out[at..at + bytes].copy_from_slice(row);
            }
            at += bytes;
        }
    }
}

impl Target for Columns {
    fn columns(&mut self, from: usize, rows: usize) -> impl Iterator<Item = &mut [u8]> {
        self.buffers.iter_mut().zip(&self.row_bytes).map(move |(buffer, bytes)| &mut buffer.bytes_mut()[from * bytes..][..rows * bytes])
    }
}

/// Rows of an indexed source, produced on the calling thread.
struct IndexedRows {
    work: Work,
    rows: u64,
    place: u64,
    columns: Columns,
    row_bytes: usize,
}

impl IndexedRows {
    fn new(recipe: &Recipe, geometry: Geometry, meter: &Arc<Meter>) -> Result<IndexedRows, DataError> {
        let (pool, store) = (decode_pool(recipe, geometry)?, row_store(recipe, geometry)?);
        Ok(IndexedRows {
            work: Work::new(recipe, geometry, pool.as_ref(), store.as_ref(), meter),
            rows: recipe.rows,
            place: recipe.rows,
            columns: Columns::new(&recipe.schema, geometry.chunk_rows),
            row_bytes: recipe.schema.row_bytes().get(),
        })
    }
}

impl BlockIterator for IndexedRows {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.work.set_epoch(epoch);
        self.place = 0;
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let mut done = 0;
        let wanted = out.len() / self.row_bytes;
        while done < wanted && self.place < self.rows {
            let rows = self.work.chunk_rows().min(wanted - done).min((self.rows - self.place) as usize);
            self.work.chunk(self.place, &mut self.columns, 0, rows)?;
            self.columns.to_rows(rows, &mut out[done * self.row_bytes..]);
            self.place += rows as u64;
            done += rows;
        }
        Ok(done)
    }
}

/// Rows of another stream, after its maps.
struct MappedRows {
    work: StreamWork,
    columns: Columns,
    block: usize,
    row_bytes: usize,
}

impl MappedRows {
    fn new(recipe: &Recipe, budget: StreamBudget, ledger: &Ledger, block: usize, meter: &Arc<Meter>) -> Result<MappedRows, DataError> {
        Ok(MappedRows {
            work: StreamWork::new(recipe, budget, ledger, block, meter, &Opener)?,
            columns: Columns::new(&recipe.schema, block),
            block,
            row_bytes: recipe.schema.row_bytes().get(),
        })
    }
}

impl BlockIterator for MappedRows {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.work.begin(epoch)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let rows = self.work.fill(&mut self.columns, 0, self.block.min(out.len() / self.row_bytes))?;
        self.columns.to_rows(rows, out);
        Ok(rows)
    }

    fn close(&mut self) {
        self.work.close();
    }
}
