//! The rows of Parquet files.

use super::codec::Unpacker;
use super::file::{ParquetFile, ProjectedColumn};
use super::footer::{DATA, DATA_V2, DICTIONARY};
use super::values::Pages;
use crate::DataError;
use crate::source::columnar::{BLOCK, Block, BlockReader, CellReader, resize_to};
use crate::table::{Cell, RowBuffer};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

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
        let pages = Pages::new(&column.leaf, column.value);
        ColumnReader { pages, page: Vec::new(), page_at: 0, at: 0, unread: 0, list: Vec::new() }
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
            let at = self.page_at;
            let element = self.pages.element().map_err(|problem| file.broken(&column.leaf.name, at, problem))?;
            if let Some(number) = element {
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
        let mut reader = Reader { files: Arc::clone(files), columns, unpacker: Unpacker::default(), file: 0, group: 0, left: 0 };
        reader.begin();
        reader
    }

    /// Returns the cells of some columns with integers that are not rounded, for categories.
    pub fn keeping_integers(mut self, of: impl Fn(usize) -> bool) -> Reader {
        self.columns.iter_mut().enumerate().filter(|(at, _)| of(*at)).for_each(|(_, column)| column.pages.keep_integers());
        self
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
}

impl CellReader for Reader {
    fn row(&mut self, wanted: Option<&[bool]>, cells: &mut RowBuffer) -> Result<bool, DataError> {
        if !self.advance() {
            return Ok(false);
        }
        let Reader { files, columns, unpacker, file, group, left } = self;
        let file = &files[*file];
        let all = columns.iter_mut().zip(&file.columns).enumerate();
        for (at, (reader, column)) in all.filter(|(at, _)| wanted.is_none_or(|wanted| wanted[*at])) {
            reader.cell(file, column, *group, unpacker, |cell| cells.push(at, cell))?;
        }
        *left -= 1;
        Ok(true)
    }
}

impl BlockReader for Reader {
    fn begin(&mut self) {
        (self.file, self.group) = (0, 0);
        self.enter();
    }

    fn fill(&mut self, block: &mut Block) -> Result<usize, DataError> {
        if !self.advance() {
            return Ok(0);
        }
        let Reader { files, columns, unpacker, file, group, left } = self;
        let file = &files[*file];
        let mut rows = (*left).min(BLOCK as u64) as usize;
        let first = file.first_row(*group) + file.groups[*group] - *left;
        let refuse = |row: usize, problem: String| DataError::TableRow { path: file.path.clone(), row: first + row as u64, problem };
        for (at, (reader, column)) in columns.iter_mut().zip(&file.columns).enumerate() {
            let mut row = 0;
            while row < rows {
                if let Err(error) = reader.fill(file, column, *group, unpacker) {
                    (rows, block.damage) = (row, Some(error));
                    break;
                }
                let run = reader.pages.left().min(rows - row);
                let of_texts = block.is_category(at) && reader.pages.lists_texts();
                let listed = match reader.pages.listed_numbers().filter(|_| block.is_direct(at)) {
                    Some((dictionary, numbers)) => block.list_numbers(at, dictionary, numbers),
                    None if of_texts => {
                        let (dictionary, texts) = reader.pages.dictionary();
                        block.list_words(at, dictionary, texts, |index| reader.pages.listed(index))
                    }
                    None => None,
                };
                if let Some(listed) = listed {
                    match reader.pages.words(run, listed) {
                        Ok(words) => {
                            block.put_words(at, row, words);
                            row += words.len();
                            continue;
                        }
                        Err(problem) => {
                            let page = reader.page_at;
                            (rows, block.damage) = (row, Some(file.broken(&column.leaf.name, page, problem)));
                            break;
                        }
                    }
                }
                if block.is_direct(at)
                    && let Some(numbers) = reader.pages.numbers(run)
                {
                    block.put_numbers(at, row, numbers, refuse);
                    row += numbers.len();
                    continue;
                }
                if of_texts {
                    // Of some texts of the dictionary, the rows have to be found.
                    match reader.pages.indices(run) {
                        Ok(indices) => {
                            block.put_indices(at, row, indices, refuse);
                            row += run;
                            continue;
                        }
                        Err(problem) => {
                            let page = reader.page_at;
                            (rows, block.damage) = (row, Some(file.broken(&column.leaf.name, page, problem)));
                            break;
                        }
                    }
                }
                let cell = reader.cell(file, column, *group, unpacker, |cell| block.put_cell(at, row, cell, refuse));
                if let Err(error) = cell {
                    (rows, block.damage) = (row, Some(error));
                    break;
                }
                row += 1;
            }
        }
        *left -= rows as u64;
        Ok(rows)
    }

    fn skip_group(&mut self) {
        self.left = 0;
    }
}
