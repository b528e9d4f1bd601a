//! From the rows of a stream to columns, mapped on the way.

use super::fault::{Fault, guarded};
use super::{Room, Station, Stream};
use crate::DataError;
use crate::block::Rows;
use crate::meter::Meter;
use crate::recipe::Recipe;
use crate::work::{Path, Target};
use plimsoll_core::{Bytes, Ledger};
use std::sync::Arc;
use std::time::Instant;

/// A stream and the maps after it.
pub(crate) struct StreamWork {
    stream: Box<dyn Stream>,
    station: Arc<Station>,
    /// Rows as they come from the stream; how many were mapped, and how many there are.
    block: Vec<u8>,
    from: usize,
    to: usize,
    rows: usize,
    row_bytes: usize,
    paths: Vec<Path>,
    place: u64,
    /// Whether one of the block cannot be mapped.
    one_by_one: bool,
    /// What came after the rows that were written last.
    fault: Option<Fault>,
}

impl StreamWork {
    /// Work on at most `rows` rows at a time.
    pub fn new(recipe: &Recipe, room: Room, ledger: &Ledger, rows: usize, meter: &Meter) -> Result<StreamWork, DataError> {
        let spec = recipe.stream.as_ref().expect("only for streams");
        let station = Arc::clone(meter.station.get_or_init(|| Station::of(spec)));
        let row_bytes = recipe.source.schema().row_bytes().get();
        let columns = recipe.source.schema().columns();
        let paths = recipe.maps.iter().zip(columns).map(|(map, column)| Path::new(map, column, rows, None)).collect();
        Ok(StreamWork {
            stream: spec.open(room, ledger, &station)?,
            station,
            block: vec![0; rows * row_bytes],
            from: 0,
            to: 0,
            rows,
            row_bytes,
            paths,
            place: 0,
            one_by_one: false,
            fault: None,
        })
    }

    /// What it holds, apart from the stream itself and what the plan counts for maps.
    pub fn bytes(recipe: &Recipe, rows: usize) -> Bytes {
        recipe.source.schema().row_bytes() * rows as u64
    }

    pub fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.from, self.to, self.place, self.one_by_one, self.fault) = (0, 0, 0, false, None);
        self.paths.iter_mut().for_each(|path| path.set_epoch(epoch));
        let start = Instant::now();
        let begun = self.stream.begin(epoch);
        self.station.came(0, start);
        begun
    }

    /// Writes up to `rows` rows to the target's rows from `at` on; none only when the epoch is over. A fault comes after the rows before it,
    /// when it is asked again.
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

    /// The same with a block at most.
    fn some(&mut self, target: &mut impl Target, at: usize, rows: usize) -> Result<usize, Fault> {
        if self.from == self.to {
            (self.from, self.to, self.one_by_one) = (0, 0, false);
            let start = Instant::now();
            self.to = self.stream.fill(&mut self.block[..self.rows.min(rows) * self.row_bytes])?;
            self.station.came(self.to, start);
        }
        let rows = rows.min(self.to - self.from);
        if !self.one_by_one {
            if guarded(|| self.write(target, at, rows)).flatten().is_ok() {
                self.pass(rows);
                return Ok(rows);
            }
            // One of them cannot be mapped: the others are tried by themselves.
            self.one_by_one = true;
        }
        let written = guarded(|| self.write(target, at, 1)).flatten();
        let place = self.place;
        self.pass(1);
        written.map(|()| 1).map_err(|error| Fault::row(error).numbered(place, "of a stream"))
    }

    /// No more rows are wanted until the next epoch is begun.
    pub fn close(&mut self) {
        (self.from, self.to, self.fault) = (0, 0, None);
        self.stream.close();
    }

    fn pass(&mut self, rows: usize) {
        self.from += rows;
        self.place += rows as u64;
    }

    /// Passes over rows that were consumed before; fewer only when the epoch is over.
    pub fn pass_over(&mut self, mut rows: u64, stopping: impl Fn() -> bool) -> Result<(), Fault> {
        while rows > 0 && !stopping() {
            let wanted = (self.rows as u64).min(rows);
            let came = self.stream.fill(&mut self.block[..wanted as usize * self.row_bytes])? as u64;
            self.place += came;
            rows -= came;
            if came == 0 {
                break;
            }
        }
        Ok(())
    }

    /// Takes the next rows of the block through their maps.
    fn write(&mut self, target: &mut impl Target, at: usize, rows: usize) -> Result<(), DataError> {
        let mut from = 0;
        let block = &self.block[self.from * self.row_bytes..];
        for (path, slot) in self.paths.iter_mut().zip(target.columns(at, rows)) {
            let bytes = path.row_bytes();
            let out = path.input(rows, slot);
            for (row, out) in block.chunks_exact(self.row_bytes).zip(out.chunks_exact_mut(bytes)) {
                out.copy_from_slice(&row[from..from + bytes]);
            }
            from += bytes;
            path.run(Rows::From(self.place), rows, slot)?;
        }
        Ok(())
    }
}
