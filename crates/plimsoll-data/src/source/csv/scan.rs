//! One pass over the files of a text table: columns, rows, offsets, and what cells look like.

use super::CsvSpec;
use super::json;
use super::records::{LONGEST_FIELD, PIECE};
use super::syntax::{Delimiters, Syntax};
use super::table::{CsvFile, INTERVAL, uneven};
use crate::DataError;
use crate::progress::Reporter;
use crate::table::{CellFormat, ColumnNames, Inference, TokenSet, candidates, fitted_numbers};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Numbers of the longest list in JSON lines.
const LONGEST_LIST: usize = 1 << 16;

/// What a pass over all rows finds.
pub(super) struct CsvScan {
    pub files: Vec<CsvFile>,
    pub names: ColumnNames,
    pub seen: Vec<Option<Inference>>,
    /// Columns of numbers that were fitted before, of which only the decimal mark is inferred.
    pub fitted: Vec<usize>,
    pub rows: u64,
    pub longest: usize,
    /// The first row with another number of fields.
    pub uneven: Option<(Arc<Path>, u64, String)>,
    /// Lines of the files so far, and before each of them.
    lines: u64,
    pub first_lines: Vec<u64>,
}

impl CsvScan {
    pub fn new(paths: &[PathBuf], spec: &CsvSpec, syntax: &Syntax, format: &CellFormat) -> Result<CsvScan, DataError> {
        let mut memory = vec![0; PIECE + LONGEST_FIELD];
        let mut scan = CsvScan {
            files: Vec::new(),
            names: ColumnNames::default(),
            seen: Vec::new(),
            fitted: Vec::new(),
            rows: 0,
            longest: 0,
            uneven: None,
            lines: 0,
            first_lines: Vec::new(),
        };
        for path in paths {
            let file = CsvFile::open(path)?;
            scan.first_lines.push(scan.lines);
            match syntax {
                Syntax::JsonLines => scan.objects(file, spec, format, &mut memory)?,
                Syntax::Delimited(_) => scan.fields(file, spec, syntax, format, &mut memory)?,
            }
        }
        scan.files.iter_mut().for_each(|file| file.places.shrink_to_fit());
        scan.names.settle();
        if scan.rows == 0 {
            return Err(DataError::csv(&paths[0], 1, "there are no rows after the names of the columns"));
        }
        Ok(scan)
    }

    /// Adds a file of delimited fields.
    fn fields(
        &mut self,
        mut file: CsvFile,
        spec: &CsvSpec,
        syntax: &Syntax,
        format: &CellFormat,
        memory: &mut [u8],
    ) -> Result<(), DataError> {
        let path = Arc::clone(&file.path);
        let mut records = file.scanner(syntax.delimiter(), memory)?;
        let Some(start) = records.next_record()? else {
            return Err(DataError::csv(&path, 1, "there is nothing here; the first line names the columns"));
        };
        let header = Delimiters::header(&mut records, spec)?;
        let refuse = |problem: String| DataError::csv(&path, 1, problem);
        let is_first = self.files.is_empty();
        if is_first {
            header.iter().try_for_each(|name| self.names.push(name)).map_err(|problem| refuse(problem.into()))?;
            self.names.settle();
            let wanted = candidates(&spec.table, &self.names).map_err(refuse)?;
            self.seen = wanted.into_iter().map(|wanted| wanted.map(Inference::new)).collect();
            if spec.decimal.is_none() && syntax.delimiter() != b',' {
                // What they hold is known, but not how this file writes it.
                self.fitted = fitted_numbers(&spec.table, &self.names);
                self.fitted.iter().for_each(|at| _ = self.seen[*at].get_or_insert_with(|| Inference::new(false)));
            }
        }
        let columns = self.names.len();
        file.map = match is_first {
            true => (0..columns as u32).collect(),
            false => {
                let sorted = self.names.sorted();
                let find = |name: &String| {
                    sorted.only(name).map_err(|_| {
                        refuse(format!(
                            "its column `{name}` is not one of {}, which has {}; give all files the same columns",
                            self.files[0].path.display(),
                            self.names.listed()
                        ))
                    })
                };
                let map = header.iter().map(find).collect::<Result<Vec<u32>, _>>()?;
                if map.len() != columns {
                    return Err(refuse(format!(
                        "it has {} columns, and {} has {columns}; give all files the same",
                        map.len(),
                        self.files[0].path.display()
                    )));
                }
                map
            }
        };
        drop(header);
        file.first_row = self.rows;
        let mut reporter = Reporter::new("reading", &path, file.bytes);
        if spec.header == Some(false) {
            // The first record was read for the number of columns only.
            drop(records);
            records = file.scanner(syntax.delimiter(), memory)?;
            records.next_record()?;
            file.start = start;
        }
        let first_line = self.lines;
        let mut next = if spec.header == Some(false) { Some(start) } else { records.next_record()? };
        if let Some(place) = next {
            file.start = place;
        }
        let mut line = 1;
        while let Some(place) = next {
            if file.rows.is_multiple_of(INTERVAL) {
                file.places.push(place);
            }
            reporter.at(place.byte);
            line = place.line;
            let mut fields = 0;
            loop {
                let field = records.field()?;
                if let Some(Some(seen)) = file.map.get(fields).map(|at| &mut self.seen[*at as usize]) {
                    seen.add(field.cell(), format, false, first_line + place.line);
                }
                self.longest = self.longest.max(field.bytes.len());
                fields += 1;
                if field.ends_record {
                    break;
                }
            }
            if fields != columns && self.uneven.is_none() {
                self.uneven = Some((Arc::clone(&path), place.line, uneven(fields, columns)));
            }
            file.rows += 1;
            next = records.next_record()?;
        }
        drop(reporter);
        self.add(file, line);
        Ok(())
    }

    /// Adds a file of JSON lines.
    fn objects(&mut self, mut file: CsvFile, spec: &CsvSpec, format: &CellFormat, memory: &mut [u8]) -> Result<(), DataError> {
        let path = Arc::clone(&file.path);
        let targets = spec.table.target_names();
        let mut known = self.names.iter().map(str::as_bytes).collect::<TokenSet>();
        let mut lists = vec![[0; 8]; LONGEST_LIST];
        let mut records = file.scanner(b'\n', memory)?;
        let mut reporter = Reporter::new("reading", &path, file.bytes);
        file.first_row = self.rows;
        let first_line = self.lines;
        let mut line_number = 1;
        // A key may be missing in some rows, so each counts the rows in which it was seen.
        while let Some(place) = records.next_record()? {
            if file.rows.is_multiple_of(INTERVAL) {
                file.places.push(place);
            }
            reporter.at(place.byte);
            line_number = place.line;
            let line = match records.line()? {
                Ok(line) => line,
                Err(limit) => {
                    self.uneven.get_or_insert((Arc::clone(&path), place.line, format!("it is longer than {limit} bytes; shorten it")));
                    file.rows += 1;
                    continue;
                }
            };
            self.longest = self.longest.max(line.len());
            let (names, seen, rows) = (&mut self.names, &mut self.seen, self.rows + file.rows);
            let read = json::object(line, &mut lists, &mut |key, cell| {
                let Some((at, new)) = known.insert(key) else { return };
                if new {
                    let name = String::from_utf8_lossy(key);
                    let label = targets.iter().any(|target| *target == spec.table.renamed(&name));
                    _ = names.push(&name);
                    seen.push(Some(Inference::new(label)));
                }
                if let Some(seen) = &mut seen[at] {
                    seen.catch_up(rows, first_line + place.line);
                    seen.add(cell, format, true, first_line + place.line);
                }
            });
            if let Err(problem) = read {
                self.uneven.get_or_insert((Arc::clone(&path), place.line, problem));
            }
            file.rows += 1;
        }
        drop(reporter);
        let rows = self.rows + file.rows;
        self.seen.iter_mut().flatten().for_each(|seen| seen.catch_up(rows, first_line + line_number + 1));
        self.add(file, line_number);
        Ok(())
    }

    /// Lines of all files are counted through, so that the first problem of all files is known.
    fn add(&mut self, file: CsvFile, last_line: u64) {
        self.rows += file.rows;
        self.lines += last_line + 1;
        self.files.push(file);
    }
}
