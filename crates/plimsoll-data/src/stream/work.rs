//! From the rows of a stream to columns, mapped on the way.

use super::{Room, Stream};
use crate::DataError;
use crate::block::Rows;
use crate::geometry::Geometry;
use crate::meter::Meter;
use crate::recipe::Recipe;
use crate::work::{Path, Target};
use plimsoll_core::{Bytes, Ledger};
use std::sync::Arc;

/// A stream and the maps after it.
pub(crate) struct StreamWork {
    stream: Box<dyn Stream>,
    /// Rows as they come from the stream.
    block: Vec<u8>,
    rows: usize,
    row_bytes: usize,
    paths: Vec<Path>,
    place: u64,
}

impl StreamWork {
    /// Work on at most `rows` rows at a time.
    pub fn new(recipe: &Recipe, room: Room, ledger: &Ledger, rows: usize) -> Result<StreamWork, DataError> {
        let spec = recipe.stream.as_ref().expect("only for streams");
        let row_bytes = recipe.source.schema().row_bytes().get();
        let geometry = Geometry::of_block(rows);
        let meter = Arc::new(Meter::default());
        let paths = (0..recipe.maps.len()).map(|column| Path::new(recipe, column, geometry, None, &meter)).collect();
        Ok(StreamWork { stream: spec.open(room, ledger)?, block: vec![0; rows * row_bytes], rows, row_bytes, paths, place: 0 })
    }

    /// What it holds, apart from the stream itself and what the plan counts for maps.
    pub fn bytes(recipe: &Recipe, rows: usize) -> Bytes {
        recipe.source.schema().row_bytes() * rows as u64
    }

    pub fn begin(&mut self, epoch: u64) -> Result<(), DataError> {
        self.place = 0;
        self.paths.iter_mut().for_each(|path| path.set_epoch(epoch));
        self.stream.begin(epoch)
    }

    /// Writes up to `rows` rows to the target's rows from `at` on; fewer only when the epoch is over.
    pub fn fill(&mut self, target: &mut impl Target, at: usize, rows: usize) -> Result<usize, DataError> {
        let mut done = 0;
        while done < rows {
            let wanted = self.rows.min(rows - done);
            let block = &mut self.block[..wanted * self.row_bytes];
            let came = self.stream.fill(block)?;
            if came > 0 {
                self.write(target, at + done, came)?;
            }
            done += came;
            self.place += came as u64;
            if came < wanted {
                break;
            }
        }
        Ok(done)
    }

    /// Passes over rows that were consumed before; fewer only when the epoch is over.
    pub fn pass_over(&mut self, mut rows: u64, stopping: impl Fn() -> bool) -> Result<(), DataError> {
        while rows > 0 && !stopping() {
            let wanted = (self.rows as u64).min(rows);
            let came = self.stream.fill(&mut self.block[..wanted as usize * self.row_bytes])? as u64;
            self.place += came;
            rows -= came;
            if came < wanted {
                break;
            }
        }
        Ok(())
    }

    fn write(&mut self, target: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        let mut from = 0;
        for (path, slot) in self.paths.iter_mut().zip(target.columns(at, rows)) {
            let bytes = path.row_bytes();
            let out = path.input(rows, slot);
            for (row, out) in self.block.chunks_exact(self.row_bytes).zip(out.chunks_exact_mut(bytes)) {
                out.copy_from_slice(&row[from..from + bytes]);
            }
            from += bytes;
            path.run(Rows::From(self.place), rows, slot)?;
        }
        Ok(())
    }
}
