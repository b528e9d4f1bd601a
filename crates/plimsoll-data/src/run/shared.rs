//! A sequential stage whose rows are taken by several threads in turn and mapped in parallel.
//!
//! The thread that has the turn takes the next block of rows and passes the turn on. Slow work follows after that:
//! maps, and decoding the image of a record.

use super::path::{decode_pool, mark};
use super::ring::{Claim, Ring};
use super::stream_work::{Mapper, unmapped};
use crate::DataError;
use crate::dataset::{BlockIterator, ExpectedRows, Node, OpenInput, Recipe, StreamBudget};
use crate::fault::{Fault, RowErrors, guarded};
use crate::meter::{Meter, StageTimer};
use crate::plan::{Geometry, packed_images};
use crate::source::RecordReader;
use crate::stages::{RecordDecoder, StartedRecord};
use plimsoll_core::Ledger;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The origin of rows.
enum Origin {
    Stream(Box<dyn BlockIterator>),
    Records(Box<RecordReader>),
}

/// A stream and its position.
struct Shared {
    origin: Origin,
    timer: Arc<StageTimer>,
    epoch: Option<u64>,
    /// Rows of the first epoch to skip, because they were already consumed.
    pass_over: u64,
    /// Rows of the epoch read so far.
    came: u64,
    expected: ExpectedRows,
    /// The epoch that was partly consumed with a different number of shards.
    consumed: Option<u64>,
}

/// The state of one thread that produces rows of a stream.
pub(crate) struct SharedWork {
    shared: Arc<Mutex<Shared>>,
    mapper: Mapper,
    /// Decodes records to rows, and the image that is left to decode.
    decoder: Option<RecordDecoder>,
    started: Option<StartedRecord>,
    epoch: Option<u64>,
    /// The counter for the time spent writing rows: that of maps, if there are any.
    counter: fn(&Meter) -> &AtomicU64,
    /// Records the errors of rows, if they do not end the run.
    row_errors: Option<Arc<RowErrors>>,
    meter: Arc<Meter>,
}

/// The result of reading from a stream.
enum StreamRead {
    /// The number of rows, zero at the end of the epoch; then the error if there are more rows than asserted.
    Rows(usize, Result<(), DataError>),
    /// A row that failed.
    Bad(Fault),
    /// The consumer was dropped.
    Stopped,
}

impl SharedWork {
    /// One per thread, after skipping `pass_over` rows of the first epoch. Allocates what the plan counts.
    pub fn new(
        recipe: &Recipe,
        geometry: Geometry,
        pass_over: u64,
        ledger: &Ledger,
        meter: &Arc<Meter>,
        opener: &'static dyn OpenInput,
    ) -> Result<Vec<SharedWork>, DataError> {
        let node = recipe.node.as_ref().expect("only for streams");
        // Images are decoded after they are read from their records, and their time is reported separately.
        let timer = meter.stage.get_or_init(|| {
            let name = packed_images(node).map_or_else(|| node.stage.describe(), |images| images.name());
            node.timer(name)
        });
        let timer = Arc::clone(timer);
        let Geometry { workers, budget, .. } = geometry;
        let (origin, mut decoders) = Origin::open(node, budget, workers, ledger, &timer, meter, opener)?;
        let files = decode_pool(recipe, geometry)?;
        let shared = Arc::new(Mutex::new(Shared {
            origin,
            timer,
            epoch: None,
            pass_over,
            came: 0,
            expected: ExpectedRows::new(recipe.settings.cardinality),
            consumed: recipe.consumed.map(|(epoch, _)| epoch),
        }));
        let work = |_| SharedWork {
            shared: Arc::clone(&shared),
            mapper: Mapper::new(recipe, geometry, files.as_ref(), meter),
            decoder: decoders.pop(),
            started: None,
            epoch: None,
            counter: match recipe.maps.iter().any(|map| !map.steps.is_empty()) {
                true => |meter| &meter.map,
                false => |meter| &meter.stream,
            },
            row_errors: recipe.settings.row_errors.clone(),
            meter: Arc::clone(meter),
        };
        Ok((0..workers).map(work).collect())
    }

    /// Takes up to the claimed number of rows, settles the claim, and writes the rows. `false` if the consumer was
    /// dropped.
    pub fn fill(&mut self, claim: &mut Claim<'_>, ring: &Ring) -> Result<bool, DataError> {
        if self.epoch != Some(claim.epoch) {
            self.epoch = Some(claim.epoch);
            self.mapper.set_epoch(claim.epoch);
            self.decoder.iter_mut().for_each(|decoder| decoder.set_epoch(claim.epoch));
        }
        let shared = Arc::clone(&self.shared);
        // Only the thread with the turn gets here, so the lock is free. A panic inside is reported, and no thread
        // follows.
        let taken = shared.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take(self, claim, || ring.stopping())?;
        match taken {
            StreamRead::Stopped => Ok(false),
            StreamRead::Rows(0, _) => {
                ring.settle(claim, 0, true);
                Ok(true)
            }
            StreamRead::Rows(rows, as_promised) => {
                ring.settle(claim, rows, false);
                self.meter.rows.fetch_add(rows as u64, Relaxed);
                self.make(claim)?;
                as_promised.map(|()| true)
            }
            StreamRead::Bad(fault) => {
                ring.settle(claim, 1, !fault.goes_on());
                self.meter.rows.fetch_add(1, Relaxed);
                self.give_up(claim, 0, fault)?;
                Ok(true)
            }
        }
    }

    /// Writes the rows of the block.
    fn make(&mut self, claim: &mut Claim<'_>) -> Result<(), DataError> {
        let rows = claim.rows();
        if let (Some(started), Some(decoder)) = (self.started.take(), &mut self.decoder) {
            let row = &mut self.mapper.rows_block[..self.mapper.row_bytes];
            if let Err(fault) = guarded(|| decoder.finish(started, row)).map_err(Fault::row).flatten() {
                return self.give_up(claim, 0, fault);
            }
        }
        let start = Instant::now();
        let written = self.mapper.try_write(0, claim.place, claim, 0, rows);
        if written.is_ok() && self.row_errors.is_some() {
            mark(claim, 0, rows, 0);
        }
        if written.is_err() {
            // Mapping the block failed, so each row is mapped by itself.
            for row in 0..rows {
                let place = claim.place + row as u64;
                match self.mapper.try_write(row, place, claim, row, 1) {
                    Ok(()) if self.row_errors.is_some() => mark(claim, row, 1, 0),
                    Ok(()) => {}
                    Err(error) => self.give_up(claim, row, unmapped(place, error))?,
                }
            }
        }
        // File reads are timed separately.
        let time = start.elapsed().saturating_sub(std::mem::take(&mut self.mapper.opened));
        (self.counter)(&self.meter).fetch_add(time.as_nanos() as u64, Relaxed);
        Ok(())
    }

    /// Handles a row that failed: if errors are recorded, marks the row and passes on those before it.
    fn give_up(&self, claim: &mut Claim<'_>, row: usize, fault: Fault) -> Result<(), DataError> {
        match &self.row_errors {
            Some(errors) => {
                mark(claim, row, 1, 1);
                errors.record(claim.epoch, claim.place + row as u64, fault);
                Ok(())
            }
            None => Err(fault.into()),
        }
    }
}

impl Origin {
    /// Opens the stream, with a decoder per thread if it produces encoded records.
    fn open(
        node: &Node,
        budget: StreamBudget,
        threads: usize,
        ledger: &Ledger,
        timer: &StageTimer,
        meter: &Arc<Meter>,
        opener: &'static dyn OpenInput,
    ) -> Result<(Origin, Vec<RecordDecoder>), DataError> {
        if let Some(images) = packed_images(node) {
            let (reader, decoders) = images.open_shared(budget, threads, meter)?;
            return Ok((Origin::Records(Box::new(reader)), decoders));
        }
        Ok((Origin::Stream(node.open(budget, ledger, timer, opener)?), Vec::new()))
    }

    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        match self {
            Origin::Stream(stream) => stream.begin(epoch),
            Origin::Records(reader) => {
                reader.begin();
                Ok(())
            }
        }
    }

    /// Reads up to `rows` rows into the block of one thread; zero only at the end of the epoch.
    fn fill(&mut self, work: &mut SharedWork, rows: usize) -> Result<usize, Fault> {
        match self {
            Origin::Stream(stream) => stream.fill(work.mapper.block(rows)),
            // One record at a time: the others are for other threads.
            Origin::Records(reader) => {
                if !reader.next()? {
                    return Ok(0);
                }
                let decoder = work.decoder.as_mut().expect("there is one for each thread");
                work.started = decoder.start(reader, work.mapper.block(1))?;
                Ok(1)
            }
        }
    }
}

impl Shared {
    fn take(&mut self, work: &mut SharedWork, claim: &Claim<'_>, stopping: impl Fn() -> bool) -> Result<StreamRead, DataError> {
        if self.epoch != Some(claim.epoch) {
            self.epoch = Some(claim.epoch);
            self.expected.begin();
            let start = Instant::now();
            let begun = self.origin.begin(claim.epoch);
            self.timer.add(0, start);
            begun?;
            self.came = std::mem::take(&mut self.pass_over);
            self.pass_over(work, self.came, &stopping)?;
        }
        if stopping() {
            return Ok(StreamRead::Stopped);
        }
        let start = Instant::now();
        let filled = self.origin.fill(work, claim.rows());
        self.timer.add(*filled.as_ref().unwrap_or(&0), start);
        let rows = match filled {
            Ok(rows) => rows,
            Err(fault) if work.row_errors.is_some() => {
                self.expected.lost(fault.loss);
                self.came += 1;
                return Ok(StreamRead::Bad(fault));
            }
            Err(fault) => return Err(fault.into()),
        };
        let before = self.came;
        self.came += rows as u64;
        // The number of rows left is unknown if other shards consumed part of the epoch. If rows are marked, the
        // stage that reads them counts them.
        if self.consumed == Some(claim.epoch) || work.row_errors.is_some() {
            return Ok(StreamRead::Rows(rows, Ok(())));
        }
        let as_promised = self.expected.check(claim.epoch, self.came, rows == 0);
        // The asserted rows come first, with their errors.
        match self.expected.of(before, rows) {
            0 => as_promised.map(|()| StreamRead::Rows(0, Ok(()))),
            promised => Ok(StreamRead::Rows(promised, as_promised)),
        }
    }

    /// Skips rows that were already consumed; fewer only at the end of the epoch.
    fn pass_over(&mut self, work: &mut SharedWork, mut rows: u64, stopping: impl Fn() -> bool) -> Result<(), Fault> {
        while rows > 0 && !stopping() {
            let came = self.origin.fill(work, usize::try_from(rows).unwrap_or(usize::MAX))? as u64;
            work.started = None;
            rows -= came;
            if came == 0 {
                break;
            }
        }
        Ok(())
    }
}
