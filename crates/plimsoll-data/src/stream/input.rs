//! What a stage of a stream reads: the rows of a data set, made here or by an inner feed.

use super::fed::{Epochs, Fed};
use super::promised::Promised;
use super::station::Inlet;
use super::work::StreamWork;
use super::{Room, Stream};
use crate::dataset::{Dataset, Parallelism, Stage};
use crate::fault::{Fault, Notes};
use crate::geometry::{self, Geometry};
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::plan::{self, Keep, PipelinePlan};
use crate::recipe::Recipe;
use crate::source::RowIterator;
use crate::work::{Target, Work};
use crate::{Cache, DataError, Schema};
use plimsoll_core::budget::SlotMemory;
use plimsoll_core::{Bytes, Ledger};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// Bytes a stage holds, and whether an inner feed reserves them itself.
#[derive(Clone)]
pub(crate) struct Held {
    pub name: String,
    pub bytes: Bytes,
    pub elsewhere: bool,
}

impl Held {
    pub fn here(name: String, bytes: Bytes) -> Held {
        Held { name, bytes, elsewhere: false }
    }
}

/// Rows that are passed from stage to stage at a time.
const BLOCK: Bytes = Bytes::kib(64);

fn block_rows(row: Bytes, room: Room) -> usize {
    if room.lean { 1 } else { (BLOCK.0 / row.0.max(1)).clamp(1, 1024) as usize }
}

/// How the rows of a data set come to a stage.
enum Way {
    /// Another stream, and its maps.
    Stream,
    /// Made by the thread that wants them.
    Here(Geometry),
    /// Made ahead by threads of their own.
    Feed(Box<Dataset>, PipelinePlan),
}

/// A data set, and how its rows come.
struct Reading {
    recipe: Recipe,
    way: Way,
    /// What was wrong with the rows that are marked in their last byte, where another thread or a whole block of rows at a time makes them.
    notes: Option<Arc<Notes>>,
}

impl Reading {
    fn new(data: &Dataset, room: Room) -> Result<Reading, DataError> {
        let recipe = data.recipe()?;
        // Rows are made ahead of those that are wanted: what is wrong with one is told when its turn comes, which may be never.
        let notes = Arc::new(Notes::new(room.tolerant));
        let marked = data.clone().stage(Stage::Tolerate(Arc::clone(&notes)));
        let with_marks = marked.recipe()?;
        match way(&marked, &with_marks, room)? {
            // What one thread asks another, it is told at once.
            Way::Stream => Ok(Reading { recipe, way: Way::Stream, notes: None }),
            way => Ok(Reading { recipe: with_marks, way, notes: Some(notes) }),
        }
    }
}

fn way(data: &Dataset, recipe: &Recipe, room: Room) -> Result<Way, DataError> {
    recipe.check_fixed()?;
    if let Some(batch) = recipe.batch {
        return Err(DataError::Stage(format!("rows are counted after batch({batch}) in {}; put the batch last", data.describe())));
    }
    if let Some((mix, _)) = &recipe.mix {
        return Err(DataError::Stage(format!("{mix} works on batches, and a stage that takes single rows stands after it; put it last")));
    }
    let in_memory = |cache: &Cache| cache.path().is_none();
    if recipe.item().is_some() && recipe.cache.as_ref().is_some_and(in_memory) {
        let what = "its pictures are kept in memory by their number, and the stage that follows takes them one after the other";
        let problem = format!("{}: {what}; put the cache behind that stage, or keep them in a file", data.describe());
        return Err(DataError::Stage(problem));
    }
    let rows = block_rows(recipe.schema.row_bytes(), room);
    let threads = match recipe.parallelism {
        Parallelism::Threads(threads) => threads > 1 && (recipe.stream.is_none() || recipe.is_mapped()),
        Parallelism::Auto => recipe.takes_long() && thread::available_parallelism().is_ok_and(|cores| cores.get() > 1),
    };
    let ahead = room.ahead > 0 || threads || recipe.item().is_some();
    if ahead && !room.lean {
        let batched = data.clone().row_by_row().batch(rows.min(16));
        let one_each = room.ahead > 0 && recipe.parallelism == Parallelism::Auto;
        let batched = if one_each { batched.parallelism(Parallelism::Threads(1)) } else { batched };
        // Half of what there is: the rest is for the stages that follow.
        let limit = room.limit.map(|limit| Bytes(limit.0 / 2 / room.ahead.max(1) as u64));
        // A picture that the thread that wants it has room for is no smaller a picture to others, unless there are many at a time.
        let decodes = room.ahead == 0 && recipe.stream.as_ref().is_some_and(|spec| spec.decodes());
        let item = decodes.then(|| geometry::item_room(None, room));
        if let Ok(plan) = batched.plan_keeping(limit, Keep::UpTo(room.keep), item)
            && !(decodes && plan.geometry.room.lean)
        {
            return Ok(Way::Feed(Box::new(batched), plan));
        }
    }
    if recipe.stream.is_some() {
        return Ok(Way::Stream);
    }
    let geometry = if room.lean { geometry::smallest(recipe, 1) } else { geometry::for_speed(recipe, rows)?.alone(recipe) };
    let geometry = Geometry { slots: 0, chunk_rows: geometry.chunk_rows.min(rows), ..geometry };
    Ok(Way::Here(geometry::with_cache(recipe, geometry, |_| room.keep)))
}

/// What the rows of a data set hold on their way.
pub(super) fn cost(data: &Dataset, room: Room) -> Result<Vec<Held>, DataError> {
    let Reading { recipe, way, .. } = Reading::new(data, room)?;
    let row = recipe.schema.row_bytes();
    let mut held = match way {
        Way::Stream => {
            let rows = block_rows(row, room);
            let mut held = plan::holdings(&recipe, Geometry::of_block(&recipe, rows, room))?;
            // It has no thread of its own; those that make rows ahead further up do.
            held.retain(|held| held.elsewhere || !held.name.ends_with("stack"));
            held.push(Held::here("columns".into(), Columns::bytes(&recipe.schema, rows)));
            held
        }
        Way::Here(geometry) => {
            let stages = plan::cost(&recipe, geometry)?.into_iter().filter(|(name, _)| !name.ends_with("stack"));
            let mut held: Vec<Held> = stages.map(|(name, bytes)| Held::here(name, bytes)).collect();
            held.push(Held::here("columns".into(), Columns::bytes(&recipe.schema, geometry.chunk_rows)));
            held
        }
        Way::Feed(_, plan) => {
            let stages = plan.stages().iter().map(|(name, bytes)| Held { name: name.clone(), bytes: *bytes, elsewhere: true });
            stages.collect()
        }
    };
    held.push(Held::here("block".into(), row * block_rows(row, room) as u64));
    Ok(held)
}

/// The rows of a data set, one by one from a block.
pub(super) struct Input {
    stream: Box<dyn Stream>,
    block: Vec<u8>,
    row_bytes: usize,
    /// Rows of the block that were handed out, and that there are.
    from: usize,
    to: usize,
    notes: Option<Arc<Notes>>,
    epoch: u64,
    /// Rows of the epoch that were handed out, with those that could not be.
    place: u64,
    promised: Promised,
    inlet: Arc<Inlet>,
}

impl Input {
    pub fn open(data: &Dataset, room: Room, ledger: &Ledger, inlet: Arc<Inlet>) -> Result<Input, DataError> {
        let Reading { recipe, way, notes } = Reading::new(data, room)?;
        let row = recipe.schema.row_bytes();
        let stream: Box<dyn Stream> = match way {
            Way::Stream => Box::new(Mapped::new(&recipe, room, ledger, block_rows(row, room), &inlet.meter)?),
            Way::Here(geometry) => Box::new(Here::new(&recipe, geometry, &inlet.meter)?),
            Way::Feed(data, plan) => Box::new(Fed::new(*data, plan, ledger, row.get(), Epochs::of(&recipe, room), &inlet)),
        };
        let block = vec![0; row.get() * block_rows(row, room)];
        let promised = Promised::new(recipe.cardinality);
        Ok(Input { stream, block, row_bytes: row.get() - notes.iter().len(), from: 0, to: 0, notes, epoch: 0, place: 0, promised, inlet })
    }

    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    pub fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.from, self.to, self.epoch, self.place) = (0, 0, epoch, 0);
        self.notes.iter().for_each(|notes| notes.begin(epoch));
        self.promised.begin();
        let start = Instant::now();
        let begun = self.stream.begin(epoch);
        self.inlet.came(start);
        begun
    }

    /// No more rows are wanted until the next epoch is begun.
    pub fn close(&mut self) {
        (self.from, self.to) = (0, 0);
        let start = Instant::now();
        self.stream.close();
        self.inlet.came(start);
    }

    /// The next row; `None` when the epoch is over.
    pub fn next(&mut self) -> Result<Option<&[u8]>, Fault> {
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
            let start = Instant::now();
            let filled = self.stream.fill(&mut self.block);
            self.inlet.came(start);
            self.to = match filled {
                Ok(rows) => rows,
                Err(fault) => {
                    self.place += 1;
                    self.promised.lost(fault.loss);
                    return Err(fault);
                }
            };
            if self.to == 0 {
                self.promised.check(self.epoch, self.place, true)?;
                return Ok(None);
            }
        }
        (self.from, self.place) = (self.from + 1, self.place + 1);
        self.promised.check(self.epoch, self.place, false)?;
        let each = self.row_bytes + self.notes.iter().len();
        let (row, mark) = self.block[(self.from - 1) * each..][..each].split_at(self.row_bytes);
        // Behind a row is its mark.
        match &self.notes {
            Some(notes) if mark != [0] => {
                let fault = notes.take(self.epoch, self.place - 1);
                self.promised.lost(fault.loss);
                Err(fault)
            }
            _ => Ok(Some(row)),
        }
    }

    /// Copies the next row.
    pub fn copy(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        let Some(row) = self.next()? else { return Ok(false) };
        out.copy_from_slice(row);
        Ok(true)
    }
}

struct RowByRow<T> {
    stage: T,
    row_bytes: usize,
    over: bool,
    /// What came after the rows that were written last.
    fault: Option<Fault>,
}

pub(super) fn row_by_row<T: RowIterator + 'static>(row_bytes: usize, stage: T) -> Box<dyn Stream> {
    Box::new(RowByRow { stage, row_bytes, over: true, fault: None })
}

impl<T: RowIterator> Stream for RowByRow<T> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (self.over, self.fault) = (false, None);
        self.stage.begin(epoch)
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        if let Some(fault) = self.fault.take() {
            return Err(fault);
        }
        let mut rows = 0;
        for out in out.chunks_exact_mut(self.row_bytes) {
            if self.over {
                break;
            }
            match self.stage.row(out) {
                Ok(true) => rows += 1,
                Ok(false) => self.over = true,
                Err(fault) if rows == 0 => return Err(fault),
                Err(fault) => {
                    self.fault = Some(fault);
                    break;
                }
            }
        }
        Ok(rows)
    }

    fn close(&mut self) {
        (self.over, self.fault) = (true, None);
        self.stage.close();
    }
}

/// Columns of a block of rows.
pub(super) struct Columns {
    buffers: Vec<AlignedBuf>,
    row_bytes: Vec<usize>,
}

impl Columns {
    pub fn new(schema: &Schema, rows: usize) -> Columns {
        let row_bytes: Vec<usize> = schema.columns().iter().map(|column| column.row_bytes().get()).collect();
        Columns { buffers: row_bytes.iter().map(|bytes| AlignedBuf::new(bytes * rows)).collect(), row_bytes }
    }

    pub fn bytes(schema: &Schema, rows: usize) -> Bytes {
        schema.columns().iter().map(|column| (column.row_bytes() * rows as u64).align_up(crate::ALIGNMENT as u64)).sum()
    }

    /// Writes the first `rows` rows, each with its columns one after the other.
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

/// Rows of an indexed source, made by the thread that wants them.
struct Here {
    work: Work,
    rows: u64,
    place: u64,
    columns: Columns,
    row_bytes: usize,
}

impl Here {
    fn new(recipe: &Recipe, geometry: Geometry, meter: &Arc<Meter>) -> Result<Here, DataError> {
        let room = recipe.decode_room(geometry)?;
        let store = if recipe.kept.is_some() { recipe.store(geometry)? } else { None };
        Ok(Here {
            work: Work::new(recipe, geometry, room.as_ref(), store.as_ref(), meter),
            rows: recipe.rows,
            place: recipe.rows,
            columns: Columns::new(&recipe.schema, geometry.chunk_rows),
            row_bytes: recipe.schema.row_bytes().get(),
        })
    }
}

impl Stream for Here {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        self.work.set_epoch(epoch);
        self.place = 0;
        Ok(())
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let mut done = 0;
        let room = out.len() / self.row_bytes;
        while done < room && self.place < self.rows {
            let rows = self.work.chunk_rows().min(room - done).min((self.rows - self.place) as usize);
            self.work.chunk(self.place, &mut self.columns, 0, rows)?;
            self.columns.to_rows(rows, &mut out[done * self.row_bytes..]);
            self.place += rows as u64;
            done += rows;
        }
        Ok(done)
    }
}

/// Rows of another stream, mapped.
struct Mapped {
    work: StreamWork,
    columns: Columns,
    block: usize,
    row_bytes: usize,
}

impl Mapped {
    fn new(recipe: &Recipe, room: Room, ledger: &Ledger, block: usize, meter: &Arc<Meter>) -> Result<Mapped, DataError> {
        Ok(Mapped {
            work: StreamWork::new(recipe, room, ledger, block, meter)?,
            columns: Columns::new(&recipe.schema, block),
            block,
            row_bytes: recipe.schema.row_bytes().get(),
        })
    }
}

impl Stream for Mapped {
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
