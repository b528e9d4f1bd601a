//! The rows of Parquet files, in blocks: columns are decoded one after the other, so that each is a tight loop.

use super::codec::Unpacker;
use super::file::{ParquetFile, ProjectedColumn};
use super::footer::{DATA, DATA_V2, DICTIONARY};
use super::values::{Pages, resize_to};
use crate::DataError;
use crate::fault::Fault;
use crate::source::RowIterator;
use crate::table::{Cell, Columns, RowBuffer, WORD};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Rows that are decoded at a time.
const BLOCK: usize = 1024;

/// The position in one column.
struct ColumnReader {
    pages: Pages,
    page: Vec<u8>,
    /// Offset of its page, and of the next one.
    page_at: u64,
    at: u64,
    /// Values of the row group in pages that were not read yet.
    unread: u64,
    /// The numbers of the current list.
    list: Vec<[u8; 8]>,
}

impl ColumnReader {
    fn new(column: &ProjectedColumn) -> ColumnReader {
        ColumnReader { pages: Pages::new(&column.leaf, column.value), page: Vec::new(), page_at: 0, at: 0, unread: 0, list: Vec::new() }
    }

    fn begin(&mut self, column: &ProjectedColumn, group: usize) {
        self.pages.drop_page();
        (self.at, self.unread) = (column.chunks[group].start, column.chunks[group].values);
    }

    /// Reads pages until there is an entry.
    fn fill(&mut self, file: &ParquetFile, column: &ProjectedColumn, group: usize, unpacker: &mut Unpacker) -> Result<(), DataError> {
        while self.pages.left() == 0 {
            let at = self.at;
            let changed = || file.broken(&column.leaf.name, at, "is not what it was; the file changed while it was read");
            let (head, data) = file.head(&column.leaf.name, at)?;
            let codec = column.chunks[group].codec;
            if !column.largest.has(&head, codec) || self.unread == 0 {
                return Err(changed());
            }
            self.at = data + head.packed;
            if !matches!(head.kind, DATA | DATA_V2 | DICTIONARY) {
                continue;
            }
            if head.kind != DICTIONARY {
                self.unread = self.unread.checked_sub(head.values).ok_or_else(changed)?;
            }
            resize_to(&mut self.page, head.packed as usize);
            self.page.resize(head.packed as usize, 0);
            file.file.read_exact_at(&mut self.page, data).map_err(|_| changed())?;
            self.page_at = at;
            let read = self.pages.read(&head, codec, &self.page, unpacker);
            read.map_err(|problem| file.broken(&column.leaf.name, at, problem))?;
        }
        Ok(())
    }

    /// Calls `with` with the cell of the next row.
    fn cell<T>(
        &mut self,
        file: &ParquetFile,
        column: &ProjectedColumn,
        group: usize,
        unpacker: &mut Unpacker,
        with: impl FnOnce(Cell<'_>) -> T,
    ) -> Result<T, DataError> {
        self.fill(file, column, group, unpacker)?;
        if column.leaf.repeated == 0 {
            let at = self.page_at;
            let cell = self.pages.cell().map_err(|problem| file.broken(&column.leaf.name, at, problem))?;
            return Ok(with(cell));
        }
        self.list.clear();
        loop {
            if let Some(number) = self.pages.element() {
                self.list.push(number.to_ne_bytes());
            }
            // A list may go on in the next page.
            if self.pages.left() == 0 && self.unread > 0 {
                self.fill(file, column, group, unpacker)?;
            }
            if self.pages.left() == 0 || !self.pages.continues() {
                return Ok(with(Cell::List(&self.list)));
            }
        }
    }
}

/// The rows of one pass over the files.
pub(super) struct Reader {
    files: Arc<Vec<ParquetFile>>,
    columns: Vec<ColumnReader>,
    unpacker: Unpacker,
    /// The current or next row group, and how many of its rows are left.
    file: usize,
    group: usize,
    left: u64,
}

impl Reader {
    pub fn new(files: &Arc<Vec<ParquetFile>>) -> Reader {
        let columns = files.first().iter().flat_map(|file| &file.columns).map(ColumnReader::new).collect();
        Reader { files: Arc::clone(files), columns, unpacker: Unpacker::default(), file: 0, group: 0, left: 0 }
    }

    pub fn begin(&mut self) {
        (self.file, self.group) = (0, 0);
        self.enter();
    }

    /// Moves before the first row of the current group, if there is one.
    fn enter(&mut self) {
        self.left = 0;
        while let Some(file) = self.files.get(self.file) {
            if let Some(&rows) = file.groups.get(self.group) {
                self.left = rows;
                self.columns.iter_mut().zip(&file.columns).for_each(|(reader, column)| reader.begin(column, self.group));
                return;
            }
            (self.file, self.group) = (self.file + 1, 0);
        }
    }

    /// Moves to the next group with rows; `false` after the last.
    fn advance(&mut self) -> bool {
        while self.left == 0 && self.file < self.files.len() {
            self.group += 1;
            self.enter();
        }
        self.left > 0
    }

    /// Reads the next row and calls `sink` with the cell of each column; `false` after the last.
    pub fn row(&mut self, cells: &mut RowBuffer) -> Result<bool, DataError> {
        if !self.advance() {
            return Ok(false);
        }
        let Reader { files, columns, unpacker, file, group, left } = self;
        let file = &files[*file];
        for (at, (reader, column)) in columns.iter_mut().zip(&file.columns).enumerate() {
            reader.cell(file, column, *group, unpacker, |cell| cells.push(at, cell))?;
        }
        *left -= 1;
        Ok(true)
    }
}

/// The rows of one epoch.
pub(super) struct ParquetRows {
    reader: Reader,
    table: Arc<Columns>,
    text: Vec<u8>,
    words: Vec<[u8; WORD]>,
    /// The errors of rows in the block.
    errors: Vec<(usize, DataError)>,
    /// The error that ends the row group after the block.
    damage: Option<DataError>,
    next: usize,
    rows: usize,
    /// For each column the offset of its word, if its numbers are only converted.
    direct: Vec<Option<usize>>,
    /// Whether a row of words is a row of the output.
    whole: bool,
}

impl ParquetRows {
    pub fn bytes(table: &Columns, longest_text: usize) -> usize {
        let text = table.encoders.iter().map(|encoder| encoder.scratch_bytes(longest_text)).max().unwrap_or(0);
        BLOCK * table.words * WORD + text
    }

    pub fn new(files: &Arc<Vec<ParquetFile>>, table: &Arc<Columns>, longest_text: usize) -> ParquetRows {
        let text = table.encoders.iter().map(|encoder| encoder.scratch_bytes(longest_text)).max().unwrap_or(0);
        let direct = table.encoders.iter().zip(&table.offsets).map(|(encoder, at)| encoder.is_plain_number().then_some(*at)).collect();
        ParquetRows {
            reader: Reader::new(files),
            text: vec![0; text],
            words: vec![[0; WORD]; BLOCK * table.words],
            errors: Vec::new(),
            damage: None,
            next: 0,
            rows: 0,
            direct,
            whole: table.is_whole_row(),
            table: Arc::clone(table),
        }
    }

    /// Decodes a block; `false` after the last row. Rows before a damaged page are part of the block.
    fn fill(&mut self) -> Result<bool, DataError> {
        (self.next, self.rows) = (0, 0);
        if let Some(error) = self.damage.take() {
            return Err(error);
        }
        if !self.reader.advance() {
            return Ok(false);
        }
        let Reader { files, columns, unpacker, file, group, left } = &mut self.reader;
        let file = &files[*file];
        let mut rows = (*left).min(BLOCK as u64) as usize;
        let width = self.table.words;
        for (at, (reader, column)) in columns.iter_mut().zip(&file.columns).enumerate() {
            let (encoder, offset) = (&self.table.encoders[at], self.table.offsets[at]);
            let mut row = 0;
            while row < rows {
                if let Err(error) = reader.fill(file, column, *group, unpacker) {
                    (rows, self.damage) = (row, Some(error));
                    break;
                }
                let run = reader.pages.left().min(rows - row);
                if let Some(numbers) = self.direct[at].and_then(|_| reader.pages.numbers(run)) {
                    let out = self.words[row * width + offset..].iter_mut().step_by(width);
                    let mut finite = true;
                    for (out, number) in out.zip(numbers) {
                        let number = *number as f32;
                        finite &= number.is_finite();
                        *out = number.to_ne_bytes();
                    }
                    if !finite {
                        not_finite(&mut self.errors, numbers, row, |problem| file.broken(&column.leaf.name, reader.page_at, problem));
                    }
                    row += run;
                    continue;
                }
                let (entry, at) = (reader.pages.entry(), reader.page_at);
                let out = &mut self.words[row * width + offset..][..encoder.words];
                let text = &mut self.text;
                let encoded = reader.cell(file, column, *group, unpacker, |cell| {
                    encoder.encode(cell, text, out).map_err(|problem| match cell {
                        Cell::Missing => format!("has no value in its row {entry}; fill it in or leave the row out"),
                        _ => format!("has a value that {problem}"),
                    })
                });
                match encoded {
                    Ok(Ok(())) => {}
                    Ok(Err(problem)) => self.errors.push((row, file.broken(&column.leaf.name, at, problem))),
                    Err(error) => {
                        (rows, self.damage) = (row, Some(error));
                        break;
                    }
                }
                row += 1;
            }
        }
        *left -= rows as u64;
        self.rows = rows;
        match self.damage.take_if(|_| rows == 0) {
            Some(error) => Err(error),
            None => Ok(true),
        }
    }
}

fn not_finite(errors: &mut Vec<(usize, DataError)>, numbers: &[f64], first: usize, broken: impl Fn(String) -> DataError) {
    for (at, number) in numbers.iter().enumerate().filter(|(_, number)| !(**number as f32).is_finite()) {
        errors.push((first + at, broken(format!("has a value that is {number}, which nothing can be trained on; leave the row out"))));
    }
}

impl RowIterator for ParquetRows {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        self.reader.begin();
        (self.next, self.rows, self.damage) = (0, 0, None);
        self.errors.clear();
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if self.next == self.rows {
            self.errors.clear();
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    // Only the start of the next row group is known.
                    self.errors.clear();
                    self.reader.left = 0;
                    return Err(Fault::part(error));
                }
            }
        }
        let (row, width) = (self.next, self.table.words);
        self.next += 1;
        if !self.errors.is_empty()
            && let Some((_, error)) = self.errors.iter().find(|(at, _)| *at == row)
        {
            return Err(Fault::row(error.clone()));
        }
        let words = &self.words[row * width..][..width];
        let mut rest = out.as_chunks_mut().0;
        if self.whole {
            rest.copy_from_slice(words);
            return Ok(true);
        }
        for (at, width) in self.table.widths().enumerate() {
            let (this, after) = rest.split_at_mut(width);
            self.table.put(words, at, this);
            rest = after;
        }
        Ok(true)
    }
}
