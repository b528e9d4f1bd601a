//! The index of a CSV file after one pass: its columns, its number of rows, and the offset of every nth row.

use super::records::{FIELD, PIECE, RecordScanner, RecordStart};
use super::{ColumnScale, CsvSpec, CsvType, Standardize};
use crate::DataError;
use crate::source::file_use::is_index_name;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The offset of every row with an index divisible by this is stored.
pub(super) const INTERVAL: u64 = 16;

pub(super) struct CsvTable {
    pub path: PathBuf,
    pub file: File,
    /// For each column of the file, its index among the used columns.
    pub map: Vec<Option<usize>>,
    pub used: Vec<UsedColumn>,
    pub features: Vec<usize>,
    pub targets: Vec<usize>,
    /// The other columns, each with the reason.
    pub unused: Vec<(String, String)>,
    pub rows: u64,
    pub places: Vec<RecordStart>,
}

/// A used column.
#[derive(Clone, Debug)]
pub(super) struct UsedColumn {
    pub name: String,
    /// Whether it is read as integers.
    pub whole: bool,
    /// A value is converted to (value − mean) · factor.
    pub mean: f64,
    pub factor: f64,
}

impl UsedColumn {
    /// The bytes of a converted value.
    pub fn word(&self, value: f64) -> [u8; 4] {
        if self.whole { (value as i32).to_ne_bytes() } else { (((value - self.mean) * self.factor) as f32).to_ne_bytes() }
    }
}

impl CsvTable {
    /// Reads the file once. An invalid row is an error, unless `lenient` defers that.
    pub fn open(path: &Path, spec: &CsvSpec) -> Result<CsvTable, DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let mut memory = vec![0; PIECE + FIELD];
        let mut records = RecordScanner::at(&file, path, RecordStart { byte: 0, line: 1 }, &mut memory);
        let refuse = |line, problem: String| DataError::csv(path, line, problem);

        if records.next_record()?.is_none() {
            return Err(refuse(1, "there is nothing here; the first line names the columns".into()));
        }
        let mut header = Vec::new();
        loop {
            let field = records.field()?;
            header.push(field.text().trim().to_string());
            if field.ends_record {
                break;
            }
        }
        let Some(first) = records.next_record()? else {
            return Err(refuse(1, "there are no rows after the names of the columns".into()));
        };
        // Default columns are chosen by the first value of each column.
        let kinds = column_kinds(&mut records, header.len())?;
        let chosen = Chosen::new(path, spec, &header, &kinds)?;

        let mut table = CsvTable {
            path: path.to_path_buf(),
            map: header.iter().map(|name| chosen.used.iter().position(|used| used == name)).collect(),
            used: Vec::new(),
            features: chosen.features,
            targets: chosen.targets,
            unused: chosen.unused,
            rows: 0,
            places: Vec::new(),
            file,
        };
        let mut whole: Vec<bool> = vec![true; chosen.used.len()];
        let mut records = RecordScanner::at(&table.file, path, first, &mut memory);
        while let Some(place) = records.next_record()? {
            if table.rows.is_multiple_of(INTERVAL) {
                table.places.push(place);
            }
            let mut not_whole = None;
            let read = record(&mut records, path, place.line, &table.map, &chosen.used, |column, value| {
                if value.fract() != 0.0 || value.abs() > f64::from(i32::MAX) {
                    whole[column] = false;
                    if spec.type_of(&chosen.used[column]) == Some(CsvType::Int) {
                        not_whole = Some((column, value));
                    }
                }
            });
            match read {
                Err(DataError::Csv { .. }) if spec.lenient => {}
                read => read?,
            }
            if let Some((column, value)) = not_whole {
                let problem = format!("column `{}` is {value}, which is no integer of 32 bits; read it as float", chosen.used[column]);
                return Err(refuse(place.line, problem));
            }
            table.rows += 1;
        }
        table.places.shrink_to_fit();
        let labels = spec.window.is_none() && table.targets.iter().all(|&target| whole[target]);
        table.used = (chosen.used.into_iter().enumerate())
            .map(|(index, name)| {
                let is_label = labels && table.targets.contains(&index) && !table.features.contains(&index);
                let whole = match spec.type_of(&name) {
                    Some(kind) => kind == CsvType::Int && table.targets.contains(&index),
                    None => is_label,
                };
                UsedColumn { name, whole, mean: 0.0, factor: 1.0 }
            })
            .collect();
        let kinds: Vec<bool> = table.targets.iter().map(|&target| table.used[target].whole).collect();
        if kinds.iter().any(|kind| *kind != kinds[0]) {
            let problem = "its targets are partly integers and partly not; give them one type, such as float";
            return Err(refuse(1, problem.into()));
        }
        Ok(table)
    }

    /// Standardizes each column to mean 0 and standard deviation 1 over these rows. A constant column is only
    /// centered. If `lenient`, invalid rows are skipped.
    pub fn standardize(&mut self, which: Standardize, rows: Range<u64>, lenient: bool) -> Result<(), DataError> {
        // Welford's algorithm, so that a large mean does not cancel a small variance.
        let (mut means, mut squares) = (vec![0.0f64; self.used.len()], vec![0.0f64; self.used.len()]);
        let (mut memory, mut count) = (vec![0; PIECE + FIELD], 0.0f64);
        let mut values = vec![0.0; self.used.len()];
        let mut add = |values: &[f64]| {
            count += 1.0;
            for ((value, mean), square) in values.iter().zip(&mut means).zip(&mut squares) {
                let step = value - *mean;
                *mean += step / count;
                *square += step * (value - *mean);
            }
        };
        self.walk(rows, &mut memory, |_, read| match read {
            Read::Value(column, value) => {
                values[column] = value;
                Ok(())
            }
            Read::End(Ok(())) => {
                add(&values);
                Ok(())
            }
            Read::End(Err(_)) if lenient => Ok(()),
            Read::End(Err(error)) => Err(error),
        })?;
        let count = count.max(1.0);
        for (index, used) in self.used.iter_mut().enumerate() {
            let wanted = which == Standardize::All || self.features.contains(&index);
            if wanted && !used.whole {
                let deviation = (squares[index] / count).sqrt();
                used.mean = means[index];
                used.factor = if deviation > 0.0 { 1.0 / deviation } else { 1.0 };
            }
        }
        Ok(())
    }

    /// Standardizes each column that has statistics; every other one stays as it is.
    pub fn standardize_with(&mut self, scales: &[ColumnScale]) -> Result<(), DataError> {
        for used in &mut self.used {
            let Some(scale) = scales.iter().find(|scale| scale.name == used.name) else {
                let have = scales.iter().map(|scale| scale.name.as_str()).collect::<Vec<_>>().join(", ");
                let problem = format!("column `{}` was not standardized in training; the columns that were are {have}", used.name);
                return Err(DataError::csv(&self.path, 1, problem));
            };
            if !used.whole {
                (used.mean, used.factor) = (scale.mean, 1.0 / scale.std);
            }
        }
        Ok(())
    }

    /// The line that a row begins on.
    pub fn line(&self, row: u64, memory: &mut [u8]) -> Result<u64, DataError> {
        let known = row / INTERVAL;
        let mut records = RecordScanner::at(&self.file, &self.path, self.places[known as usize], memory);
        for _ in known * INTERVAL..row {
            records.next_record()?;
            skip(&mut records)?;
        }
        Ok(records.next_record()?.map_or(0, |place| place.line))
    }

    /// Calls `sink` for each value of some rows, with the row (relative to the first), the column and the value.
    pub fn each(&self, rows: Range<u64>, memory: &mut [u8], mut sink: impl FnMut(u64, usize, f64)) -> Result<(), DataError> {
        self.walk(rows, memory, |row, read| match read {
            Read::Value(column, value) => {
                sink(row, column, value);
                Ok(())
            }
            Read::End(how) => how,
        })
    }

    /// Like `each`, and reports the end of each row and whether it was valid.
    pub fn walk(
        &self,
        rows: Range<u64>,
        memory: &mut [u8],
        mut sink: impl FnMut(u64, Read) -> Result<(), DataError>,
    ) -> Result<(), DataError> {
        let known = rows.start / INTERVAL;
        let mut records = RecordScanner::at(&self.file, &self.path, self.places[known as usize], memory);
        let names = |column: usize| self.used[column].name.as_str();
        for row in known * INTERVAL..rows.end {
            let Some(place) = records.next_record()? else {
                let problem = format!("row {row} was there when the file was opened and is not now; start again");
                return Err(DataError::csv(&self.path, records_line(&self.places, row), problem));
            };
            let Some(index) = row.checked_sub(rows.start) else {
                skip(&mut records)?;
                continue;
            };
            let mut told = Ok(());
            let read = record_with(&mut records, &self.path, place.line, &self.map, &names, |column, value| {
                if told.is_ok() {
                    told = sink(index, Read::Value(column, value));
                }
            });
            told?;
            sink(index, Read::End(read))?;
        }
        Ok(())
    }
}

/// An event of `walk`.
pub(super) enum Read {
    Value(usize, f64),
    /// The end of a row, or its error.
    End(Result<(), DataError>),
}

fn records_line(places: &[RecordStart], row: u64) -> u64 {
    places.get((row / INTERVAL) as usize).map_or(0, |place| place.line)
}

/// What a column holds, by its first non-missing value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ColumnKind {
    Number,
    Boolean,
    Text,
    Empty,
}

impl ColumnKind {
    /// Why a column of this kind is not read.
    fn reason(self) -> &'static str {
        match self {
            ColumnKind::Number => "not among the features",
            ColumnKind::Boolean => "boolean; write 0 and 1 to read it",
            ColumnKind::Text => "text",
            ColumnKind::Empty => "no values",
        }
    }
}

/// What columns hold, by the first non-missing value of each, starting at the current record. Usually one row decides
/// all.
fn column_kinds(records: &mut RecordScanner<'_>, columns: usize) -> Result<Vec<ColumnKind>, DataError> {
    let mut known: Vec<Option<ColumnKind>> = vec![None; columns];
    loop {
        for column in 0.. {
            let field = records.field()?;
            if let Some(known @ None) = known.get_mut(column) {
                let text = field.text();
                let is_boolean = ["true", "false"].iter().any(|word| text.trim().eq_ignore_ascii_case(word));
                *known = field.kind().map(|number| match (number, is_boolean) {
                    (true, _) => ColumnKind::Number,
                    (false, true) => ColumnKind::Boolean,
                    (false, false) => ColumnKind::Text,
                });
            }
            if field.ends_record {
                break;
            }
        }
        if known.iter().all(Option::is_some) || records.next_record()?.is_none() {
            return Ok(known.into_iter().map(|known| known.unwrap_or(ColumnKind::Empty)).collect());
        }
    }
}

fn skip(records: &mut RecordScanner<'_>) -> Result<(), DataError> {
    while !records.field()?.ends_record {}
    Ok(())
}

fn record(
    records: &mut RecordScanner<'_>,
    path: &Path,
    line: u64,
    map: &[Option<usize>],
    names: &[String],
    sink: impl FnMut(usize, f64),
) -> Result<(), DataError> {
    record_with(records, path, line, map, &|column| names[column].as_str(), sink)
}

/// Reads the rest of a record and emits the used columns.
fn record_with<'n>(
    records: &mut RecordScanner<'_>,
    path: &Path,
    line: u64,
    map: &[Option<usize>],
    name: &dyn Fn(usize) -> &'n str,
    mut sink: impl FnMut(usize, f64),
) -> Result<(), DataError> {
    let (mut fields, mut wrong) = (0, None);
    loop {
        let field = records.field()?;
        if let Some(&Some(column)) = map.get(fields) {
            match field.number() {
                Ok(number) => sink(column, number),
                Err(problem) => wrong = wrong.or_else(|| Some(format!("column `{}` {problem}", name(column)))),
            }
        }
        fields += 1;
        if field.ends_record {
            break;
        }
    }
    if fields != map.len() && wrong.is_none() {
        wrong = Some(format!("it has {fields} fields where the first line names {} columns; correct it", map.len()));
    }
    wrong.map_or(Ok(()), |problem| Err(DataError::csv(path, line, problem)))
}

/// Names of columns, and their roles.
struct Chosen {
    used: Vec<String>,
    features: Vec<usize>,
    targets: Vec<usize>,
    /// The other columns, each with the reason.
    unused: Vec<(String, String)>,
}

impl Chosen {
    fn new(path: &Path, spec: &CsvSpec, header: &[String], kinds: &[ColumnKind]) -> Result<Chosen, DataError> {
        let kind = |name: &String| header.iter().position(|other| other == name).map_or(ColumnKind::Empty, |at| kinds[at]);
        // pandas writes the index first, without a name; when such a file is written again, the name is its position.
        let is_index = |name: &String| is_index_name(name) || name.is_empty() && header.first() == Some(name);
        let is_number = |name: &String| kind(name) == ColumnKind::Number && !is_index(name);
        // With a window, past values of the targets are features as well.
        let by_default = |name: &String| is_number(name) && (spec.window.is_some() || !spec.targets.contains(name));
        let features = match &spec.features {
            Some(features) => features.clone(),
            None => header.iter().filter(|name| by_default(name)).cloned().collect(),
        };
        let mut chosen = Chosen { used: Vec::new(), features: Vec::new(), targets: Vec::new(), unused: Vec::new() };
        let typed = spec.types.iter().map(|(name, _)| name);
        for name in features.iter().chain(&spec.targets).chain(typed) {
            match header.iter().filter(|other| *other == name).count() {
                1 => {}
                0 => return Err(DataError::csv(path, 1, format!("there is no column `{name}`; the columns are {}", header.join(", ")))),
                _ => return Err(DataError::csv(path, 1, format!("there is more than one column `{name}`; give each its own name"))),
            }
        }
        if features.is_empty() {
            return Err(DataError::csv(path, 1, "no column is left to train on; name some as features"));
        }
        let mut place = |name: &String| match chosen.used.iter().position(|used| used == name) {
            Some(place) => place,
            None => {
                chosen.used.push(name.clone());
                chosen.used.len() - 1
            }
        };
        let (features, targets): (Vec<usize>, Vec<usize>) =
            (features.iter().map(&mut place).collect(), spec.targets.iter().map(&mut place).collect());
        let unused = header.iter().filter(|name| !chosen.used.contains(name)).map(|name| {
            let reason = if is_index(name) { "index column" } else { kind(name).reason() };
            (name.clone(), reason.to_string())
        });
        Ok(Chosen { features, targets, unused: unused.collect(), ..chosen })
    }
}
