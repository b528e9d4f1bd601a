//! The rows of Arrow files.

use super::buffer::{BufferLimits, BufferUnpacker};
use super::file::{ArrowFile, BufferSlot, MessageAt, RecordBatch};
use super::values::{ArrowColumn, ColumnLimits, buffers};
use crate::DataError;
use crate::source::columnar::{BLOCK, Block, BlockReader, CellReader};
use crate::table::RowBuffer;
use std::sync::Arc;

/// A file and the columns that are read of it.
pub(super) struct Projected {
    pub file: ArrowFile,
    pub columns: Vec<ArrowProjection>,
}

pub(super) struct ArrowProjection {
    pub name: String,
    /// The index of its field, and of each child on the way to it.
    pub path: Vec<usize>,
    pub limits: ColumnLimits,
}

impl Projected {
    /// The slot of a column in a batch, after those of the structs that it is in.
    fn slots<'b>(batch: &'b RecordBatch, path: &[usize]) -> Vec<&'b BufferSlot> {
        let mut slots = vec![&batch.slots[path[0]]];
        for &child in &path[1..] {
            slots.push(&slots[slots.len() - 1].children[child]);
        }
        slots
    }

    fn field(&self, path: &[usize]) -> &super::schema::ArrowField {
        path[1..].iter().fold(&self.file.schema.fields[path[0]], |field, &child| &field.children[child])
    }

    /// Reads the sizes of all buffers of a column.
    pub fn measure(&self, path: &[usize]) -> Result<ColumnLimits, DataError> {
        let (file, field) = (&self.file, self.field(path));
        let (mut limits, mut values) = (ColumnLimits::default(), ColumnLimits::default());
        let mut known = std::collections::HashSet::new();
        for message in &file.batches {
            let broken = |problem: String| file.broken(message, problem);
            let batch = file.batch(message, &file.schema.fields).map_err(broken)?;
            let slots = Projected::slots(&batch, path);
            let (slot, outer) = slots.split_last().expect("a column has a slot");
            add(&mut limits, file, &batch, outer, slot).map_err(broken)?;
            let Some((id, of)) = &field.dictionary else { continue };
            let mut count = 0;
            for at in file.dictionary(message, *id) {
                let Some(dictionary) = file.dictionary_message(at, *id) else { continue };
                count += dictionary.rows;
                if known.insert(at) {
                    let broken = |problem: String| file.broken(dictionary, problem);
                    let batch = file.batch(dictionary, [&**of]).map_err(broken)?;
                    add(&mut values, file, &batch, &[], &batch.slots[0]).map_err(broken)?;
                }
            }
            limits.dictionary = limits.dictionary.max(usize::try_from(count).unwrap_or(usize::MAX));
        }
        if field.dictionary.is_some() {
            limits.dictionary_values = Some(Box::new(values));
        }
        Ok(limits)
    }
}

fn add(limits: &mut ColumnLimits, file: &ArrowFile, batch: &RecordBatch, outer: &[&BufferSlot], slot: &BufferSlot) -> Result<(), String> {
    for (at, span) in buffers(outer, slot).enumerate() {
        limits.add(at, BufferLimits::of(file, batch.codec, span)?);
    }
    Ok(())
}

/// Memory of reading these columns of all files, of which one is read at a time.
pub(super) fn reading_bytes(files: &[Projected]) -> u64 {
    let columns = files.first().map_or(0, |file| file.columns.len());
    let most = |of: &dyn Fn(&Projected) -> u64| files.iter().map(of).max().unwrap_or(0);
    let sum: u64 = (0..columns).map(|at| most(&|file| file.columns[at].limits.bytes(&file.field(&file.columns[at].path).layout))).sum();
    let unpacking = |file: &Projected| {
        let of = file.columns.iter().map(|column| column.limits.unpacking());
        let (packed, unpacking) = of.fold((0, 0), |most, of| (most.0.max(of.0), most.1.max(of.1)));
        packed + unpacking
    };
    let held: usize = files.iter().map(|file| file.file.held()).sum();
    sum + most(&unpacking) + most(&|file| file.file.metadata_bytes()) + held as u64
}

/// One pass over the rows of the files.
pub(super) struct ArrowReader {
    files: Arc<Vec<Projected>>,
    pub columns: Vec<ArrowColumn>,
    /// The columns whose integers are not rounded.
    exact: Vec<bool>,
    unpacker: BufferUnpacker,
    /// The current file and batch, its first row in the file, and how many of its rows were read.
    file: usize,
    batch: usize,
    first: u64,
    read: u64,
    /// Whether the buffers of the batch are known.
    entered: bool,
    /// Rows of the block, and the next one, for reading them one by one.
    rows: usize,
    next: usize,
}

impl ArrowReader {
    pub fn new(files: &Arc<Vec<Projected>>) -> ArrowReader {
        let mut reader = ArrowReader {
            files: Arc::clone(files),
            columns: Vec::new(),
            exact: Vec::new(),
            unpacker: BufferUnpacker::default(),
            file: 0,
            batch: 0,
            first: 0,
            read: 0,
            entered: false,
            rows: 0,
            next: 0,
        };
        reader.begin();
        reader
    }

    /// Returns the cells of some columns with integers that are not rounded, for categories. Slices of their numbers
    /// are then not available.
    pub fn keeping_integers(mut self, of: impl Fn(usize) -> bool) -> ArrowReader {
        let columns = self.files.first().map_or(0, |file| file.columns.len());
        self.exact = (0..columns).map(of).collect();
        self
    }

    fn message(&self) -> Option<&MessageAt> {
        self.files.get(self.file).and_then(|file| file.file.batches.get(self.batch))
    }

    /// Moves to the next batch with rows; `false` after the last.
    fn advance(&mut self) -> bool {
        loop {
            let Some(file) = self.files.get(self.file) else { return false };
            match file.file.batches.get(self.batch) {
                Some(batch) if self.read < batch.rows => return true,
                Some(batch) => {
                    self.first += batch.rows;
                    self.batch += 1;
                }
                None => (self.file, self.batch, self.first) = (self.file + 1, 0, 0),
            }
            (self.read, self.entered) = (0, false);
        }
    }

    /// Reads the next rows of all columns, at most [`BLOCK`], and returns how many.
    fn load(&mut self) -> Result<usize, DataError> {
        if !self.advance() {
            return Ok(0);
        }
        let files = Arc::clone(&self.files);
        let projected = &files[self.file];
        let (file, message) = (&projected.file, *self.message().expect("there is a batch"));
        let broken = |column: &ArrowProjection, problem: String| file.broken(&message, format!("column `{}` {problem}", column.name));
        if !self.entered {
            // Limits differ from file to file.
            if self.batch == 0 || self.columns.is_empty() {
                let column = |(at, column): (usize, &ArrowProjection)| {
                    let layout = &projected.field(&column.path).layout;
                    let layout = if self.exact.get(at) == Some(&true) { layout.exact() } else { layout.clone() };
                    ArrowColumn::new(layout, column.limits.clone())
                };
                let seen: Vec<_> = self.columns.iter().map(|column| column.seen).collect();
                self.columns = Vec::new();
                let columns: Vec<_> = projected.columns.iter().enumerate().map(column).collect();
                self.columns = columns;
                self.columns.iter_mut().zip(seen).for_each(|(column, seen)| column.seen = seen);
            }
            let batch = file.batch(&message, &file.schema.fields).map_err(|problem| file.broken(&message, problem))?;
            for (column, of) in self.columns.iter_mut().zip(&projected.columns) {
                let slots = Projected::slots(&batch, &of.path);
                let (slot, outer) = slots.split_last().expect("a column has a slot");
                let entered = column
                    .enter(file, batch.codec, outer, slot, &mut self.unpacker)
                    .and_then(|()| column.enter_dictionary(file, self.file, &message, projected.field(&of.path), &mut self.unpacker));
                entered.map_err(|problem| broken(of, problem))?;
            }
            self.entered = true;
        }
        let rows = (message.rows - self.read).min(BLOCK as u64) as usize;
        for (column, of) in self.columns.iter_mut().zip(&projected.columns) {
            column.load(file, self.read, rows).map_err(|problem| broken(of, problem))?;
        }
        self.read += rows as u64;
        Ok(rows)
    }
}

impl CellReader for ArrowReader {
    fn row(&mut self, wanted: Option<&[bool]>, cells: &mut RowBuffer) -> Result<bool, DataError> {
        if self.next == self.rows {
            (self.rows, self.next) = (self.load()?, 0);
            if self.rows == 0 {
                return Ok(false);
            }
        }
        let columns = self.columns.iter().enumerate().filter(|(at, _)| wanted.is_none_or(|wanted| wanted[*at]));
        columns.for_each(|(at, column)| cells.push(at, column.cell(self.next)));
        self.next += 1;
        Ok(true)
    }
}

impl BlockReader for ArrowReader {
    fn begin(&mut self) {
        (self.file, self.batch, self.first, self.read, self.entered) = (0, 0, 0, 0, false);
        (self.rows, self.next) = (0, 0);
    }

    fn fill(&mut self, block: &mut Block) -> Result<usize, DataError> {
        let rows = self.load()?;
        let Some(file) = self.files.get(self.file).filter(|_| rows > 0) else { return Ok(0) };
        let first = self.first + self.read - rows as u64;
        let refuse = |row: usize, problem: String| DataError::TableRow { path: file.file.path.clone(), row: first + row as u64, problem };
        for (at, column) in self.columns.iter().enumerate() {
            match column.numbers().filter(|_| block.is_direct(at)) {
                Some(numbers) => block.put_numbers(at, 0, numbers, refuse),
                None => (0..rows).for_each(|row| block.put_cell(at, row, column.cell(row), refuse)),
            }
        }
        Ok(rows)
    }

    fn skip_group(&mut self) {
        self.read = self.message().map_or(0, |message| message.rows);
        self.entered = false;
    }
}
