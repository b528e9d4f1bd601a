//! Rows of files of columns, in blocks: columns are decoded one after the other, so that each is a tight loop.

use super::resize_to;
use crate::DataError;
use crate::fault::Fault;
use crate::source::RowIterator;
use crate::table::{Cell, Columns, Direct, WORD};
use std::sync::Arc;

/// Rows that are decoded at a time.
pub(in crate::source) const BLOCK: usize = 1024;

/// Bytes of the error of a row: its path, its words, and its place in a list that grows.
const ERROR: usize = 320;

/// Fills blocks with the next rows of its files.
pub(in crate::source) trait BlockReader: Send {
    /// Moves before the first row.
    fn begin(&mut self);

    /// Writes up to [`BLOCK`] rows and returns how many; 0 after the last. Where a column is damaged, the rows before
    /// it count, and [`Block::damage`] has the error.
    fn fill(&mut self, block: &mut Block) -> Result<usize, DataError>;

    /// Moves behind the group of rows that cannot be read on.
    fn skip_group(&mut self);
}

/// Encoded rows.
pub(in crate::source) struct Block {
    table: Arc<Columns>,
    text: Vec<u8>,
    words: Vec<[u8; WORD]>,
    /// For each column how its numbers become words, if that takes no more than numbers.
    direct: Vec<Option<Direct>>,
    /// For each column that is a category or takes no more than numbers, the words of its dictionary.
    listed: Vec<Option<Listed>>,
    /// The errors of rows.
    errors: Vec<(usize, DataError)>,
    /// The error that ends the group of rows after the block.
    pub damage: Option<DataError>,
}

/// The words of a dictionary.
#[derive(Default)]
struct Listed {
    /// Which dictionary.
    dictionary: u64,
    words: Vec<[u8; WORD]>,
    /// Whether all numbers could be encoded.
    valid: bool,
    /// The texts that could not, and why.
    refused: Vec<(u32, String)>,
}

impl Block {
    fn text_bytes(table: &Columns, longest_text: usize) -> usize {
        table.encoders.iter().map(|encoder| encoder.scratch_bytes(longest_text)).max().unwrap_or(0)
    }

    /// Whether numbers of a column are taken as slices.
    pub fn is_direct(&self, column: usize) -> bool {
        self.direct[column].is_some()
    }

    /// Encodes numbers of consecutive rows of a column that is [direct](Self::is_direct). `refuse` makes the error of a
    /// row.
    pub fn put_numbers(&mut self, column: usize, first: usize, numbers: &[f64], refuse: impl Fn(usize, String) -> DataError) {
        let (width, offset) = (self.table.words, self.table.offsets[column]);
        let out = self.words[first * width + offset..].iter_mut().step_by(width);
        let good = self.direct[column].is_some_and(|direct| direct.encode(numbers, out));
        if !good {
            numbers.iter().enumerate().for_each(|(at, number)| self.put_cell(column, first + at, Cell::Number(*number), &refuse));
        }
    }

    /// Encodes the numbers of a dictionary of a column that is [direct](Self::is_direct), unless it is the last one,
    /// and returns their words; `None` if one of them is invalid, so that its rows have to be found.
    pub fn list_numbers(&mut self, column: usize, dictionary: u64, numbers: &[f64]) -> Option<&[[u8; WORD]]> {
        let (direct, listed) = (self.direct[column]?, self.listed[column].as_mut()?);
        if listed.dictionary != dictionary {
            listed.dictionary = dictionary;
            resize_to(&mut listed.words, numbers.len());
            listed.words.resize(numbers.len(), [0; WORD]);
            listed.valid = direct.encode(numbers, listed.words.iter_mut());
        }
        listed.valid.then_some(&listed.words)
    }

    /// Writes encoded numbers of consecutive rows.
    pub fn put_words(&mut self, column: usize, first: usize, words: &[[u8; WORD]]) {
        let (width, offset) = (self.table.words, self.table.offsets[column]);
        let out = self.words[first * width + offset..].iter_mut().step_by(width);
        out.zip(words).for_each(|(out, word)| *out = *word);
    }

    /// Whether texts of a column become one word each.
    pub fn is_category(&self, column: usize) -> bool {
        self.direct[column].is_none() && self.listed[column].is_some()
    }

    /// Encodes the texts of a dictionary, unless it is the last one, and returns their words; `None` if one of them
    /// could not be encoded, so that its rows have to be found.
    pub fn list_words<'t>(
        &mut self,
        column: usize,
        dictionary: u64,
        texts: usize,
        text: impl Fn(usize) -> &'t [u8],
    ) -> Option<&[[u8; WORD]]> {
        let encoder = &self.table.encoders[column];
        let listed = self.listed[column].as_mut()?;
        if listed.dictionary == dictionary {
            return listed.refused.is_empty().then_some(&listed.words);
        }
        listed.dictionary = dictionary;
        listed.refused.clear();
        resize_to(&mut listed.words, texts);
        for index in 0..texts {
            let mut word = [[0; WORD]];
            if let Err(problem) = encoder.encode(Cell::Text(text(index)), &mut self.text, &mut word) {
                listed.refused.push((index as u32, problem));
            }
            listed.words.push(word[0]);
        }
        listed.refused.is_empty().then_some(&listed.words)
    }

    /// Encodes texts of consecutive rows by their indices in the dictionary of [`list_words`](Self::list_words).
    pub fn put_indices(&mut self, column: usize, first: usize, indices: &[u32], refuse: impl Fn(usize, String) -> DataError) {
        let (width, offset) = (self.table.words, self.table.offsets[column]);
        let Some(listed) = &self.listed[column] else { return };
        let out = self.words[first * width + offset..].iter_mut().step_by(width);
        out.zip(indices).for_each(|(out, index)| *out = listed.words[*index as usize]);
        if listed.refused.is_empty() {
            return;
        }
        let name = &self.table.encoders[column].column.name;
        for (row, index) in indices.iter().enumerate() {
            if let Some((_, problem)) = listed.refused.iter().find(|(refused, _)| refused == index) {
                self.errors.push((first + row, refuse(first + row, format!("column `{name}` {problem}"))));
            }
        }
    }

    /// Encodes a cell.
    pub fn put_cell(&mut self, column: usize, row: usize, cell: Cell<'_>, refuse: impl Fn(usize, String) -> DataError) {
        let encoder = &self.table.encoders[column];
        let out = &mut self.words[row * self.table.words + self.table.offsets[column]..][..encoder.words];
        if let Err(problem) = encoder.encode(cell, &mut self.text, out) {
            self.errors.push((row, refuse(row, format!("column `{}` {problem}", encoder.column.name))));
        }
    }
}

/// The rows of one epoch.
pub(in crate::source) struct BlockRows<R> {
    reader: R,
    block: Block,
    next: usize,
    rows: usize,
    /// Whether the words of a row are the row.
    whole: bool,
}

impl<R: BlockReader> BlockRows<R> {
    /// Memory of the block, of a table with n rows, all of which may be bad.
    pub fn bytes(table: &Columns, longest_text: usize, rows: u64) -> usize {
        let errors = rows.min(BLOCK as u64) as usize * ERROR;
        errors + BLOCK * table.words * WORD + Block::text_bytes(table, longest_text)
    }

    pub fn new(reader: R, table: &Arc<Columns>, longest_text: usize) -> BlockRows<R> {
        let block = Block {
            text: vec![0; Block::text_bytes(table, longest_text)],
            words: vec![[0; WORD]; BLOCK * table.words],
            direct: table.encoders.iter().map(|encoder| encoder.direct()).collect(),
            listed: table
                .encoders
                .iter()
                .map(|encoder| (encoder.is_category() || encoder.direct().is_some()).then(Listed::default))
                .collect(),
            errors: Vec::new(),
            damage: None,
            table: Arc::clone(table),
        };
        BlockRows { reader, block, next: 0, rows: 0, whole: table.is_whole_row() }
    }

    /// Decodes the next rows; `false` after the last.
    fn fill(&mut self) -> Result<bool, DataError> {
        (self.next, self.rows) = (0, 0);
        self.block.errors.clear();
        if let Some(error) = self.block.damage.take() {
            return Err(error);
        }
        self.rows = self.reader.fill(&mut self.block)?;
        match self.block.damage.take_if(|_| self.rows == 0) {
            Some(error) => Err(error),
            None => Ok(self.rows > 0),
        }
    }
}

impl<R: BlockReader> RowIterator for BlockRows<R> {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        self.reader.begin();
        (self.next, self.rows, self.block.damage) = (0, 0, None);
        self.block.errors.clear();
        self.block.listed.iter_mut().flatten().for_each(|listed| listed.dictionary = 0);
        Ok(())
    }

    fn rows(&mut self, out: &mut [u8], row_bytes: usize) -> Result<usize, Fault> {
        let ready = (self.rows - self.next).min(out.len() / row_bytes.max(1));
        if ready == 0 || !self.block.errors.is_empty() {
            return Ok(usize::from(self.row(&mut out[..row_bytes])?));
        }
        let width = self.block.table.words;
        let words = &self.block.words[self.next * width..][..ready * width];
        self.block.table.put_rows(words, out[..ready * row_bytes].as_chunks_mut().0);
        self.next += ready;
        Ok(ready)
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        if self.next == self.rows {
            match self.fill() {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(error) => {
                    // Only the start of the next group is known.
                    self.block.errors.clear();
                    self.reader.skip_group();
                    return Err(Fault::part(error));
                }
            }
        }
        let (row, table) = (self.next, &self.block.table);
        self.next += 1;
        if !self.block.errors.is_empty()
            && let Some((_, error)) = self.block.errors.iter().find(|(at, _)| *at == row)
        {
            return Err(Fault::row(error.clone()));
        }
        let words = &self.block.words[row * table.words..][..table.words];
        let mut rest = out.as_chunks_mut().0;
        if self.whole {
            rest.copy_from_slice(words);
            return Ok(true);
        }
        for (at, width) in table.widths().enumerate() {
            let (this, after) = rest.split_at_mut(width);
            table.put(words, at, this);
            rest = after;
        }
        Ok(true)
    }
}
