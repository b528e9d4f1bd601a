//! Opens the inputs of sequential stages: another stage, an indexed source, or an inner feed that reads ahead.

use super::path::{ColumnBlock, decode_pool, row_store};
use super::read_ahead::{Epochs, ReadAhead};
use super::stream_work::MappedRows;
use super::work::Work;
use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, ExpectedRows, Holding, Input, OpenInput, Recipe, StreamBudget};
use crate::fault::Fault;
use crate::meter::{InputTimer, Meter};
use crate::plan::{Geometry, InputPlan, Route, block_rows, input_holdings};
use plimsoll_core::Ledger;
use std::sync::Arc;

/// Opens inputs according to their plan.
pub(super) struct Opener;

impl OpenInput for Opener {
    fn open(&self, data: &Dataset, budget: StreamBudget, ledger: &Ledger, timer: Arc<InputTimer>) -> Result<Input, DataError> {
        let InputPlan { recipe, route, errors } = InputPlan::new(data, budget)?;
        let row = recipe.schema.row_bytes();
        let rows = block_rows(row, budget);
        let stream: Box<dyn BlockIterator> = match route {
            Route::Stage => Box::new(MappedRows::new(&recipe, budget, ledger, rows, &timer.meter, &Opener)?),
            Route::Indexed(geometry) => Box::new(IndexedRows::new(&recipe, geometry, &timer.meter)?),
            Route::ReadAhead(data, plan) => Box::new(ReadAhead::new(*data, plan, ledger, row.get(), Epochs::of(&recipe, budget), &timer)),
        };
        Ok(Input::new(stream, row.get(), rows, errors, ExpectedRows::new(recipe.settings.cardinality), timer))
    }

    fn holdings(&self, data: &Dataset, budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        input_holdings(data, budget)
    }
}

/// Rows of an indexed source, produced on the calling thread.
struct IndexedRows {
    work: Work,
    rows: u64,
    place: u64,
    columns: ColumnBlock,
    row_bytes: usize,
}

impl IndexedRows {
    fn new(recipe: &Recipe, geometry: Geometry, meter: &Arc<Meter>) -> Result<IndexedRows, DataError> {
        let (pool, store) = (decode_pool(recipe, geometry)?, row_store(recipe, geometry)?);
        Ok(IndexedRows {
            work: Work::new(recipe, geometry, pool.as_ref(), store.as_ref(), meter),
            rows: recipe.rows,
            place: recipe.rows,
            columns: ColumnBlock::new(&recipe.schema, geometry.chunk_rows),
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
