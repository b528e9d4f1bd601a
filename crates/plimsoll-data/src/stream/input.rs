//! What a stage of a stream reads: the rows of a data set, made here or by an inner feed.

use super::fault::{Fault, Notes};
use super::promised::Promised;
use super::station::Inlet;
use super::work::StreamWork;
use super::{Room, Stream};
use crate::dataset::{Dataset, Parallelism, Stage};
use crate::geometry::{self, Geometry};
use crate::memory::AlignedBuf;
use crate::meter::Meter;
use crate::padded::length_of;
use crate::plan::{self, Keep, PipelinePlan};
use crate::recipe::Recipe;
use crate::work::{Target, Work};
use crate::{Cache, DataError, Extent, Feed, Options, Schema};
use plimsoll_core::device::SlotMemory;
use plimsoll_core::{Bytes, DType, Ledger};
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// A row as user code sees it.
pub struct Row<'r> {
    schema: &'r Schema,
    bytes: &'r [u8],
}

impl<'r> Row<'r> {
    pub(super) fn new(schema: &'r Schema, bytes: &'r [u8]) -> Row<'r> {
        Row { schema, bytes }
    }

    /// The columns.
    pub fn schema(&self) -> &'r Schema {
        self.schema
    }

    /// The bytes of a column.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn bytes(&self, name: &str) -> &'r [u8] {
        let index = self.schema.index_of(name).unwrap_or_else(|| panic!("there is no column `{name}`; the columns are {}", self.schema));
        let columns = self.schema.columns();
        let before: Bytes = columns[..index].iter().map(|column| column.row_bytes()).sum();
        &self.bytes[before.get()..][..columns[index].row_bytes().get()]
    }

    /// The numbers of a column, as floats whatever their type.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn numbers(&self, name: &str) -> impl Iterator<Item = f32> + 'r {
        let bytes = self.bytes(name);
        let column = &self.schema.columns()[self.schema.index_of(name).expect("just found")];
        let dtype = column.dtype;
        let bytes = match column.extent {
            Extent::UpTo => &bytes[..length_of(bytes) as usize * (column.elements() / column.shape[0] * dtype.size())],
            _ => bytes,
        };
        bytes.chunks_exact(dtype.size()).map(move |number| match (dtype, number) {
            (DType::U8, [byte]) => f32::from(*byte),
            (DType::I32, &[a, b, c, d]) => i32::from_ne_bytes([a, b, c, d]) as f32,
            (_, &[a, b, c, d]) => f32::from_ne_bytes([a, b, c, d]),
            _ => f32::NAN,
        })
    }

    /// The first number of a column of whole numbers.
    ///
    /// # Panics
    /// If there is no such column.
    pub fn int(&self, name: &str) -> i64 {
        match *self.bytes(name) {
            [byte] => i64::from(byte),
            [a, b, c, d, ..] => i64::from(i32::from_ne_bytes([a, b, c, d])),
            _ => 0,
        }
    }
}

/// Bytes a stage holds, and whether an inner feed reserves them itself.
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
        if let Ok(plan) = batched.plan_keeping(limit, Keep::UpTo(room.keep)) {
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
            let mut held = plan::holdings(&recipe, Geometry { room: Room { ahead: 0, ..room }, ..Geometry::of_block(rows) })?;
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
            let mut held: Vec<Held> = stages.collect();
            held.push(Held::here("columns".into(), row * plan.batch as u64));
            held
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

/// A stage, or a source, that thinks in single rows.
pub(crate) trait PerRow: Send {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault>;
    /// Writes the next row; `false` when the epoch is over. After a [fault](Fault::goes_on) that something follows, it is asked again.
    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault>;
    /// No more rows are wanted until the next epoch is begun, so none of what it reads is either.
    fn close(&mut self) {}
}

impl<T: PerRow + ?Sized> PerRow for Box<T> {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        (**self).begin(epoch)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        (**self).row(out)
    }

    fn close(&mut self) {
        (**self).close();
    }
}

struct RowByRow<T> {
    stage: T,
    row_bytes: usize,
    over: bool,
    /// What came after the rows that were written last.
    fault: Option<Fault>,
}

pub(super) fn row_by_row<T: PerRow + 'static>(row_bytes: usize, stage: T) -> Box<dyn Stream> {
    Box::new(RowByRow { stage, row_bytes, over: true, fault: None })
}

impl<T: PerRow> Stream for RowByRow<T> {
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

/// Rows of an indexed source, made ahead by a feed.
struct Fed {
    data: Dataset,
    plan: PipelinePlan,
    ledger: Ledger,
    feed: Option<Feed>,
    /// The rows of a batch, and how many of them there are and were handed out.
    batch: Vec<u8>,
    from: usize,
    to: usize,
    over: bool,
    row_bytes: usize,
    epochs: Epochs,
    inlet: Arc<Inlet>,
}

/// How a feed that makes rows ahead goes from one epoch to the next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Epochs {
    /// It makes rows of the next before that is asked for.
    Ahead,
    /// It waits, since beginning one may mean something to user code.
    Asked,
    /// It is closed after each, and what it holds is given back.
    Closed,
}

impl Epochs {
    fn of(recipe: &Recipe, room: Room) -> Epochs {
        match recipe.stream {
            _ if room.ahead > 0 => Epochs::Closed,
            Some(_) => Epochs::Asked,
            None => Epochs::Ahead,
        }
    }
}

impl Fed {
    fn new(data: Dataset, plan: PipelinePlan, ledger: &Ledger, row_bytes: usize, epochs: Epochs, inlet: &Arc<Inlet>) -> Fed {
        let batch = vec![0; plan.batch * row_bytes];
        let inlet = Arc::clone(inlet);
        Fed { data, plan, ledger: ledger.clone(), feed: None, batch, from: 0, to: 0, over: true, row_bytes, epochs, inlet }
    }

    /// Threads and what they hold are given back.
    fn end(&mut self) {
        if self.feed.take().is_some() {
            self.inlet.end(self.plan.workers());
        }
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        self.end();
    }
}

impl Stream for Fed {
    fn begin(&mut self, epoch: u64) -> Result<(), Fault> {
        // After a whole epoch the feed stands where the next begins; else it is started anew, the old one given back first.
        match &mut self.feed {
            Some(feed) if feed.stands() == (epoch, 0) && self.epochs != Epochs::Closed => {
                if self.epochs == Epochs::Asked {
                    feed.another_epoch();
                }
            }
            _ => {
                self.end();
                let epochs = (self.epochs != Epochs::Ahead).then_some(1);
                let options = Options { first_epoch: epoch, epochs, ..Options::default() };
                self.feed = Some(Feed::start_inside(&self.data, &self.plan, &self.ledger, options, &self.inlet.meter)?);
                self.inlet.begin(self.plan.workers());
            }
        }
        (self.from, self.to, self.over) = (0, 0, false);
        Ok(())
    }

    fn close(&mut self) {
        self.end();
        self.over = true;
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        let mut done = 0;
        while done < out.len() && !self.over {
            if self.from == self.to {
                let feed = self.feed.as_mut().expect("an epoch was begun");
                let Some(batch) = feed.next()? else {
                    self.over = true;
                    break;
                };
                let mut at = 0;
                for index in 0..batch.columns() {
                    let column = batch.column(index);
                    let bytes = column.len() / batch.rows;
                    for (row, out) in column.chunks_exact(bytes).zip(self.batch.chunks_exact_mut(self.row_bytes)) {
                        out[at..at + bytes].copy_from_slice(row);
                    }
                    at += bytes;
                }
                (self.from, self.to) = (0, batch.rows * self.row_bytes);
            }
            let bytes = (out.len() - done).min(self.to - self.from);
            out[done..done + bytes].copy_from_slice(&self.batch[self.from..self.from + bytes]);
            self.from += bytes;
            done += bytes;
        }
        Ok(done / self.row_bytes)
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
    fn new(recipe: &Recipe, room: Room, ledger: &Ledger, block: usize, meter: &Meter) -> Result<Mapped, DataError> {
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
