//! The index of a text table after one pass: its columns, its number of rows, and the offset of every nth row.

use super::CsvSpec;
use super::input::Compression;
use super::json;
use super::records::{FIELD, PIECE, RecordScanner, RecordStart, Supply};
use super::scan::CsvScan;
use super::syntax::Syntax;
use crate::DataError;
use crate::progress::Reporter;
use crate::source::selection::RowSelection;
use crate::table::{
    Cell, CellFormat, Chosen, ColumnNames, Columns, ColumnsError, FitRows, Inference, RowBuffer, TokenSet, UNUSED, WORD, candidates,
};
use plimsoll_core::Bytes;
use std::fs::File;
use std::io::Read;
use std::ops::{DerefMut, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The offset of every row with an index divisible by this is stored.
pub(super) const INTERVAL: u64 = 16;

#[derive(Clone)]
pub(super) struct TextTable {
    pub files: Arc<Vec<CsvFile>>,
    /// The names of all columns.
    names: ColumnNames,
    /// The names of the used columns, for objects.
    used_names: TokenSet,
    pub chosen: Chosen,
    pub columns: Columns,
    pub rows: u64,
    syntax: Syntax,
    /// Space for the longest field or line, and for the longest list.
    field: usize,
    lists: usize,
    /// Memory of fitting the columns.
    pub fitting: Bytes,
}

pub(super) struct CsvFile {
    pub path: Arc<Path>,
    pub file: File,
    pub compression: Compression,
    /// The index of its first row among those of all files.
    pub first_row: u64,
    pub rows: u64,
    /// For each of its columns, the index among the used ones, or [`UNUSED`].
    pub map: Vec<u32>,
    /// The offset of its first record, and of every nth row.
    pub start: RecordStart,
    pub places: Vec<RecordStart>,
    pub bytes: u64,
}

type Scanned<'a> = RecordScanner<Box<dyn Read + Send>, &'a mut [u8]>;

/// A scanner that owns its memory.
pub(super) type StreamScanner = RecordScanner<Box<dyn Read + Send>, Box<[u8]>>;

impl TextTable {
    /// Reads the files once. An invalid row is an error, unless `lenient` defers that.
    pub fn open(paths: &[PathBuf], spec: &CsvSpec) -> Result<TextTable, DataError> {
        let Some(first) = paths.first() else { return Err(DataError::Stage("a table needs at least one file".into())) };
        let refuse = |problem: String| DataError::csv(first, 1, problem);
        let missing: Arc<[String]> = spec.table.missing_values.iter().cloned().collect();
        let mut format = CellFormat { decimal: spec.decimal.unwrap_or(b'.'), missing };
        let syntax = Syntax::of(spec, first)?;
        let mut scan = CsvScan::new(paths, spec, &syntax, &format)?;
        let commas = scan.seen.iter().flatten().any(Inference::has_decimal_commas);
        if spec.decimal.is_none() && commas && syntax.delimiter() != b',' && syntax != Syntax::JsonLines {
            format.decimal = b',';
            scan = CsvScan::new(paths, spec, &syntax, &format)?;
        }
        scan.fitted.iter().for_each(|at| scan.seen[*at] = None);
        if syntax == Syntax::JsonLines {
            if let Some((path, line, problem)) = scan.uneven.take_if(|_| scan.names.len() == 0) {
                return Err(DataError::csv(&path, line, problem));
            }
            candidates(&spec.table, &scan.names).map_err(refuse)?;
        }
        let series = spec.window.is_some();
        let chosen = Chosen::new(&spec.table, &scan.names, &scan.seen, series, &[]).map_err(refuse)?;
        if !spec.lenient {
            let problem = chosen.first_problem(&spec.table, &scan.names, &scan.seen, series).map(|(line, problem)| {
                let at = scan.first_lines.partition_point(|first| *first < line).max(1) - 1;
                (line, Arc::clone(&scan.files[at].path), line - scan.first_lines[at], problem)
            });
            let uneven = scan.uneven.take().map(|(path, line, problem)| {
                let at = scan.files.iter().position(|file| file.path == path).unwrap_or(0);
                (scan.first_lines[at] + line, path, line, problem)
            });
            if let Some((_, path, line, problem)) = uneven.into_iter().chain(problem).min_by_key(|(at, ..)| *at) {
                return Err(DataError::csv(&path, line, problem));
            }
        }
        let used_names = chosen.used.iter().map(|at| scan.names.get(*at as usize).as_bytes()).collect();
        for file in &mut scan.files {
            match syntax {
                Syntax::JsonLines => file.map = Vec::new(),
                Syntax::Delimited(_) => file.map.iter_mut().for_each(|at| *at = chosen.map[*at as usize]),
            }
        }
        let lists = chosen.longest_list();
        let mut table = TextTable {
            files: Arc::new(scan.files),
            names: scan.names,
            used_names,
            columns: Columns::empty(),
            chosen,
            rows: scan.rows,
            syntax,
            field: scan.longest.max(FIELD).next_multiple_of(16),
            lists,
            fitting: Bytes::ZERO,
        };
        drop(scan.seen);
        let rows = table.part(&spec.part)?;
        let all = scan.uneven.is_none() && rows == (0..table.rows);
        table.fit(spec, &format, &|row| rows.contains(&row), all)?;
        table.chosen.map = Vec::new();
        Ok(table)
    }

    /// Fits the columns to some rows; `all` if those are all, and none is malformed.
    fn fit(&mut self, spec: &CsvSpec, format: &CellFormat, keep: &dyn Fn(u64) -> bool, all: bool) -> Result<(), DataError> {
        let path = Arc::clone(&self.files[0].path);
        let (this, lenient) = (&*self, spec.lenient);
        let mut pass =
            |wanted: &[bool], sink: &mut dyn FnMut(u64, &RowBuffer) -> Result<(), String>| this.each_row(keep, lenient, wanted, sink);
        let rows = FitRows { pass: &mut pass, all };
        let fitted = self.chosen.columns(&spec.table, &self.names, format, spec.window.is_some(), rows);
        let (columns, bytes) = fitted.map_err(|error| match error {
            ColumnsError::Problem(problem) => DataError::csv(&path, 1, problem),
            ColumnsError::Data(error) => error,
        })?;
        (self.columns, self.fitting) = (columns, bytes.max(self.fitting));
        Ok(())
    }

    /// The same table, fitted to other rows.
    pub fn refit(&self, spec: &CsvSpec, keep: &dyn Fn(u64) -> bool) -> Result<TextTable, DataError> {
        let mut table = self.clone();
        let format = self.columns.encoders.first().map(|encoder| encoder.format().clone()).unwrap_or_default();
        table.fit(spec, &format, keep, false)?;
        Ok(table)
    }

    /// Calls `sink` with the wanted cells of the kept rows of all files. With `lenient`, rows that cannot be read are
    /// skipped.
    fn each_row(
        &self,
        keep: &dyn Fn(u64) -> bool,
        lenient: bool,
        wanted: &[bool],
        sink: &mut dyn FnMut(u64, &RowBuffer) -> Result<(), String>,
    ) -> Result<(), DataError> {
        let (mut memory, mut extra) = (vec![0; PIECE + self.field], vec![0; self.extra_bytes()]);
        let mut cells = RowBuffer::default();
        for file in self.files.iter() {
            let mut records = file.begin(self.syntax.delimiter(), &mut memory)?;
            let mut reporter = Reporter::new("fitting", &file.path, file.bytes);
            for row in file.first_row..file.first_row + file.rows {
                let Some(place) = records.next_record()? else { break };
                reporter.at(place.byte);
                if !keep(row) {
                    self.skip(&mut records)?;
                    continue;
                }
                cells.clear();
                let read = self.record(&mut records, file, &mut extra, &mut |column, cell| {
                    if wanted[column] {
                        cells.push(column, cell);
                    }
                })?;
                let done = read.and_then(|()| sink(row, &cells));
                if let (Err(problem), false) = (done, lenient) {
                    return Err(DataError::csv(&file.path, place.line, problem));
                }
            }
        }
        Ok(())
    }

    /// Calls `visit` with the index of every row of JSON lines and the text of a key, which is empty where the key is
    /// missing; returns whether a row has it.
    pub fn visit_key(&self, name: &str, mut visit: impl FnMut(u64, &[u8])) -> Result<bool, DataError> {
        let (mut memory, mut lists) = (vec![0; PIECE + self.field], vec![[0; 8]; self.lists]);
        let (mut found, mut text) = (false, Vec::new());
        for file in self.files.iter() {
            let mut records = file.scanner(self.syntax.delimiter(), &mut memory)?;
            for row in file.first_row..file.first_row + file.rows {
                if records.next_record()?.is_none() {
                    break;
                }
                text.clear();
                if let Ok(line) = records.line()? {
                    // A line that cannot be read is reported when the row is.
                    _ = json::object(line, &mut lists, &mut |key, cell| {
                        if key == name.as_bytes() {
                            found = true;
                            cell.with_text(|value| text.extend_from_slice(value));
                        }
                    });
                }
                visit(row, &text);
            }
        }
        Ok(found)
    }

    /// The files in a few words.
    pub fn files_named(&self) -> String {
        crate::source::named("", self.files.iter().map(|file| &*file.path)).trim_start().to_string()
    }

    /// The name of a used column.
    pub fn name(&self, used: usize) -> &str {
        &self.columns.encoders[used].column.name
    }

    /// The columns that are not read, each with the reason.
    pub fn unused(&self) -> impl Iterator<Item = (&str, &'static str)> {
        self.chosen.unused.iter().map(|(at, reason)| (self.names.get(*at as usize), *reason))
    }

    /// Memory of fitting the columns, beyond what they hold since.
    pub fn fitting_beyond_held(&self) -> Bytes {
        self.fitting.saturating_sub(Bytes(self.columns.held() as u64))
    }

    /// Bytes of the index: the columns with what was fitted, and the offsets of rows.
    pub fn held(&self) -> usize {
        let files = self
            .files
            .iter()
            .map(|file| size_of::<CsvFile>() + size_of_val(&file.map[..]) + size_of_val(&file.places[..]) + file.path.as_os_str().len());
        let roles = size_of_val(&self.chosen.features[..]) + size_of_val(&self.chosen.targets[..]) + size_of_val(&self.chosen.used[..]);
        let names = self.names.held() + self.used_names.bytes().get() + size_of_val(&self.chosen.unused[..]);
        names + self.columns.held() + roles + files.sum::<usize>()
    }

    /// Bytes of scratch memory for reading rows, without those of the rows themselves.
    pub fn scratch_bytes(&self) -> usize {
        PIECE + self.field + self.extra_bytes() + self.text_bytes()
    }

    /// Memory of the lists and of the columns that an object has.
    fn extra_bytes(&self) -> usize {
        match self.syntax {
            Syntax::JsonLines => (self.lists * 8 + self.chosen.used.len()).next_multiple_of(8),
            Syntax::Delimited(_) => 0,
        }
    }

    /// Memory of tokenizing.
    fn text_bytes(&self) -> usize {
        self.columns.encoders.iter().map(|encoder| encoder.scratch_bytes(self.field)).max().unwrap_or(0)
    }

    /// Whether the files are read as a stream.
    pub fn is_stream(&self) -> bool {
        self.files.iter().any(|file| file.compression != Compression::None)
    }

    /// The selected rows, checked against the file.
    pub fn part(&self, part: &RowSelection) -> Result<Range<u64>, DataError> {
        part.range(self.rows).map_err(|problem| DataError::csv(&self.files[0].path, 1, problem))
    }

    /// The file of a row.
    pub fn file_of(&self, row: u64) -> &CsvFile {
        let at = self.files.partition_point(|file| file.first_row <= row);
        &self.files[at.max(1) - 1]
    }

    /// The line that a row begins on.
    pub fn line(&self, row: u64, memory: &mut [u8]) -> Result<u64, DataError> {
        let file = self.file_of(row);
        let of_file = row - file.first_row;
        let known = of_file / INTERVAL;
        let memory = &mut memory[..PIECE + self.field];
        let mut records = RecordScanner::at(&file.file, &file.path, self.syntax.delimiter(), file.places[known as usize], memory);
        for _ in known * INTERVAL..of_file {
            records.next_record()?;
            self.skip(&mut records)?;
        }
        Ok(records.next_record()?.map_or(0, |place| place.line))
    }

    /// Encodes some rows and calls `sink` with each, relative to the first, as words or with its error. The words are
    /// the first `seen` rows of `words`, in which a row is at its index modulo `seen`.
    pub fn walk(
        &self,
        rows: Range<u64>,
        scratch: &mut [u8],
        words: &mut [[u8; WORD]],
        mut sink: impl FnMut(u64, &mut [[u8; WORD]], Result<(), DataError>) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let (memory, rest) = scratch.split_at_mut(PIECE + self.field);
        let (extra, text) = rest.split_at_mut(self.extra_bytes());
        let mut row = rows.start;
        while row < rows.end {
            let file = self.file_of(row);
            let end = rows.end.min(file.first_row + file.rows);
            let known = (row - file.first_row) / INTERVAL;
            let mut records = RecordScanner::at(&file.file, &file.path, self.syntax.delimiter(), file.places[known as usize], &mut *memory);
            for at in file.first_row + known * INTERVAL..end {
                let Some(place) = records.next_record()? else {
                    let problem = format!("row {at} was there when the file was opened and is not now; start again");
                    let line = file.places.get(((at - file.first_row) / INTERVAL) as usize).map_or(0, |place| place.line);
                    return Err(DataError::csv(&file.path, line, problem));
                };
                if at < row {
                    self.skip(&mut records)?;
                    continue;
                }
                let encoded = self.encode(&mut records, file, extra, text, words)?;
                let encoded = encoded.map_err(|problem| DataError::csv(&file.path, place.line, problem));
                sink(at - rows.start, words, encoded)?;
            }
            row = end;
        }
        Ok(())
    }

    /// Encodes a record to words.
    #[inline]
    pub fn encode<S: Supply, M: DerefMut<Target = [u8]>>(
        &self,
        records: &mut RecordScanner<S, M>,
        file: &CsvFile,
        extra: &mut [u8],
        text: &mut [u8],
        words: &mut [[u8; WORD]],
    ) -> Result<Result<(), String>, DataError> {
        let (columns, mut wrong) = (&self.columns, None);
        let read = self.record(records, file, extra, &mut |column, cell| {
            let encoder = &columns.encoders[column];
            let out = &mut words[columns.offsets[column]..][..encoder.words];
            if let Err(problem) = encoder.encode(cell, text, out)
                && wrong.is_none()
            {
                wrong = Some(format!("column `{}` {problem}", encoder.column.name));
            }
        })?;
        Ok(wrong.map_or(read, Err))
    }

    /// Reads a record and calls `sink` with the cells of the used columns.
    #[inline]
    fn record<S: Supply, M: DerefMut<Target = [u8]>>(
        &self,
        records: &mut RecordScanner<S, M>,
        file: &CsvFile,
        extra: &mut [u8],
        sink: &mut impl FnMut(usize, Cell<'_>),
    ) -> Result<Result<(), String>, DataError> {
        if self.syntax == Syntax::JsonLines {
            return self.object(records, extra, sink);
        }
        let mut fields = 0;
        loop {
            let field = records.field()?;
            if let Some(&column) = file.map.get(fields).filter(|column| **column != UNUSED) {
                sink(column as usize, field.cell());
            }
            fields += 1;
            if field.ends_record {
                break;
            }
        }
        Ok(if fields == file.map.len() { Ok(()) } else { Err(uneven(fields, file.map.len())) })
    }

    fn object<S: Supply, M: DerefMut<Target = [u8]>>(
        &self,
        records: &mut RecordScanner<S, M>,
        extra: &mut [u8],
        sink: &mut impl FnMut(usize, Cell<'_>),
    ) -> Result<Result<(), String>, DataError> {
        let (lists, seen) = extra.split_at_mut(self.lists * 8);
        seen.fill(0);
        let line = match records.line()? {
            Ok(line) => line,
            Err(limit) => return Ok(Err(format!("it is longer than {limit} bytes; shorten it"))),
        };
        let read = json::object(line, lists.as_chunks_mut().0, &mut |key, cell| {
            if let Some(column) = self.used_names.find(key) {
                seen[column] = 1;
                sink(column, cell);
            }
        });
        for column in (0..self.chosen.used.len()).filter(|column| seen[*column] == 0) {
            sink(column, Cell::Missing);
        }
        Ok(read)
    }

    fn skip<S: Supply, M: DerefMut<Target = [u8]>>(&self, records: &mut RecordScanner<S, M>) -> Result<(), DataError> {
        match self.syntax {
            Syntax::JsonLines => drop(records.line()?),
            Syntax::Delimited(_) => while !records.field()?.ends_record {},
        }
        Ok(())
    }

    pub fn delimiter(&self) -> u8 {
        self.syntax.delimiter()
    }

    /// Memory of the scanner, of what a record takes besides, and of tokenizing.
    pub fn buffers(&self) -> (usize, usize, usize) {
        (PIECE + self.field, self.extra_bytes(), self.text_bytes())
    }
}

pub(super) fn uneven(fields: usize, columns: usize) -> String {
    format!("it has {fields} fields where the first line names {columns} columns; correct it")
}

impl CsvFile {
    pub fn open(path: &Path) -> Result<CsvFile, DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let compression = Compression::of(&file, path)?;
        compression.bytes(&file).map_err(|problem| DataError::csv(path, 1, problem))?;
        let bytes = file.metadata().map_err(|error| DataError::io("examine", path, error))?.len();
        let start = RecordStart { byte: 0, line: 1 };
        Ok(CsvFile { path: path.into(), file, compression, first_row: 0, rows: 0, map: Vec::new(), start, places: Vec::new(), bytes })
    }

    /// A scanner at its first row.
    fn begin<'m>(&self, delimiter: u8, memory: &'m mut [u8]) -> Result<Scanned<'m>, DataError> {
        let mut records = self.scanner(delimiter, memory)?;
        // The header, which a stream has to pass; a compressed file has no other place to begin at.
        while records.next_record()?.is_some_and(|place| place.byte < self.start.byte) {
            while !records.field()?.ends_record {}
        }
        Ok(records)
    }

    pub fn scanner<'m>(&self, delimiter: u8, memory: &'m mut [u8]) -> Result<Scanned<'m>, DataError> {
        let bytes = self.compression.open(&self.file).map_err(|error| DataError::io("open", &self.path, error))?;
        Ok(RecordScanner::at(bytes, &self.path, delimiter, RecordStart { byte: 0, line: 1 }, memory))
    }

    /// A scanner that owns its memory, at the first row.
    pub fn stream(&self, delimiter: u8, memory: Vec<u8>) -> Result<StreamScanner, DataError> {
        let bytes = self.compression.open(&self.file).map_err(|error| DataError::io("open", &self.path, error))?;
        let mut records = RecordScanner::at(bytes, &self.path, delimiter, RecordStart { byte: 0, line: 1 }, memory.into_boxed_slice());
        while records.next_record()?.is_some_and(|place| place.byte < self.start.byte) {
            while !records.field()?.ends_record {}
        }
        Ok(records)
    }
}
