//! Rows of compressed text tables, in sequence.

use super::table::{StreamScanner, TextTable};
use crate::DataError;
use crate::fault::Fault;
use crate::source::RowIterator;
use crate::table::WORD;
use std::ops::Range;
use std::sync::Arc;

/// The rows of one epoch.
pub(super) struct CsvRows {
    table: Arc<TextTable>,
    rows: Range<u64>,
    records: Option<StreamScanner>,
    file: usize,
    row: u64,
    extra: Vec<u8>,
    text: Vec<u8>,
    words: Vec<[u8; WORD]>,
}

/// Memory of reading.
pub(super) fn held(table: &TextTable) -> usize {
    let (scanner, extra, text) = table.buffers();
    let unpacking = table.files.iter().map(|file| file.compression.bytes(&file.file).unwrap_or(0) as usize).max().unwrap_or(0);
    scanner + extra + text + table.columns.words * WORD + unpacking
}

impl CsvRows {
    pub fn new(table: &Arc<TextTable>, rows: Range<u64>) -> CsvRows {
        let (_, extra, text) = table.buffers();
        let words = vec![[0; WORD]; table.columns.words];
        CsvRows { table: Arc::clone(table), rows, records: None, file: 0, row: 0, extra: vec![0; extra], text: vec![0; text], words }
    }

    fn open(&mut self) -> Result<(), DataError> {
        self.records = None;
        let (scanner, ..) = self.table.buffers();
        if let Some(file) = self.table.files.get(self.file) {
            self.records = Some(file.stream(self.table.delimiter(), vec![0; scanner])?);
        }
        Ok(())
    }

    /// Skips the rest of a file that cannot be decompressed.
    fn give_up(&mut self, error: DataError) -> Fault {
        self.records = None;
        self.row = self.table.files.get(self.file).map_or(self.row, |file| file.first_row + file.rows);
        self.file += 1;
        Fault::part(error)
    }
}

impl RowIterator for CsvRows {
    fn begin(&mut self, _epoch: u64) -> Result<(), Fault> {
        (self.file, self.row, self.records) = (0, 0, None);
        Ok(())
    }

    fn row(&mut self, out: &mut [u8]) -> Result<bool, Fault> {
        loop {
            if self.row >= self.rows.end || self.file >= self.table.files.len() {
                return Ok(false);
            }
            if self.records.is_none() {
                self.open().map_err(|error| self.give_up(error))?;
            }
            let table = Arc::clone(&self.table);
            let file = &table.files[self.file];
            let Some(records) = &mut self.records else { return Ok(false) };
            let place = match records.next_record() {
                Ok(Some(place)) => place,
                Ok(None) => {
                    (self.file, self.records) = (self.file + 1, None);
                    continue;
                }
                Err(error) => return Err(self.give_up(error)),
            };
            let encoded = match table.encode(records, file, &mut self.extra, &mut self.text, &mut self.words) {
                Ok(encoded) => encoded,
                Err(error) => return Err(self.give_up(error)),
            };
            let row = self.row;
            self.row += 1;
            if row < self.rows.start {
                continue;
            }
            encoded.map_err(|problem| Fault::row(DataError::csv(&file.path, place.line, problem)))?;
            let mut rest = out.as_chunks_mut().0;
            for (at, width) in table.columns.widths().enumerate() {
                let (this, after) = rest.split_at_mut(width);
                table.columns.put(&self.words, at, this);
                rest = after;
            }
            return Ok(true);
        }
    }

    fn close(&mut self) {
        self.records = None;
    }
}
