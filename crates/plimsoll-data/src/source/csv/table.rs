//! The index of a CSV file after one pass: its columns, its number of rows, and the offset of every nth row.

use super::names::{ColumnNames, SortedNames};
use super::records::{FIELD, PIECE, RecordScanner, RecordStart};
use super::{ColumnScale, CsvSpec, CsvType, Standardize};
use crate::DataError;
use crate::source::file_use::is_index_name;
use std::collections::HashMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// The offset of every row with an index divisible by this is stored.
pub(super) const INTERVAL: u64 = 16;

pub(super) struct CsvTable {
    pub path: PathBuf,
    pub file: File,
    /// The names of all columns of the file.
    names: ColumnNames,
    /// What they hold.
    kinds: Vec<ColumnKind>,
    /// For each column of the file, its index among the used columns, or [`UNUSED`].
    map: Vec<u32>,
    pub used: Vec<UsedColumn>,
    pub features: Vec<u32>,
    pub targets: Vec<u32>,
    pub rows: u64,
    pub places: Vec<RecordStart>,
}

/// The index of a column that is not used.
const UNUSED: u32 = u32::MAX;

/// A used column.
#[derive(Clone, Debug)]
pub(super) struct UsedColumn {
    /// Its position in the file.
    column: u32,
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
        let mut names = ColumnNames::default();
        loop {
            let field = records.field()?;
            names.push(String::from_utf8_lossy(field.bytes).trim(), path)?;
            if field.ends_record {
                break;
            }
        }
        names.settle();
        let Some(first) = records.next_record()? else {
            return Err(refuse(1, "there are no rows after the names of the columns".into()));
        };
        // Default columns are chosen by the first value of each column.
        let kinds = column_kinds(&mut records, names.len())?;
        let chosen = ChosenColumns::new(path, spec, &names, &kinds)?;
        let types: HashMap<&str, CsvType> = spec.types.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
        let used_name = |column: usize| names.get(chosen.used[column] as usize);

        let mut table = CsvTable {
            path: path.to_path_buf(),
            names: ColumnNames::default(),
            kinds,
            map: chosen.map,
            used: Vec::new(),
            features: chosen.features,
            targets: chosen.targets,
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
            let read = record(&mut records, path, place.line, &table.map, &used_name, |column, value| {
                if value.fract() != 0.0 || value.abs() > f64::from(i32::MAX) {
                    whole[column] = false;
                    if types.get(used_name(column)) == Some(&CsvType::Int) {
                        not_whole = Some((column, value));
                    }
                }
            });
            match read {
                Err(DataError::Csv { .. }) if spec.lenient => {}
                read => read?,
            }
            if let Some((column, value)) = not_whole {
                let problem = format!("column `{}` is {value}, which is no integer of 32 bits; read it as float", used_name(column));
                return Err(refuse(place.line, problem));
            }
            table.rows += 1;
        }
        table.places.shrink_to_fit();
        let labels = spec.window.is_none() && table.targets.iter().all(|&target| whole[target as usize]);
        let (is_target, is_feature) = (flags(&table.targets, whole.len()), flags(&table.features, whole.len()));
        let used = chosen.used.iter().enumerate().map(|(index, &column)| {
            let is_label = labels && is_target[index] && !is_feature[index];
            let whole = match types.get(names.get(column as usize)) {
                Some(kind) => *kind == CsvType::Int && is_target[index],
                None => is_label,
            };
            UsedColumn { column, whole, mean: 0.0, factor: 1.0 }
        });
        table.used = used.collect();
        table.names = names;
        let kinds: Vec<bool> = table.targets.iter().map(|&target| table.used[target as usize].whole).collect();
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
        let is_feature = flags(&self.features, self.used.len());
        for (index, used) in self.used.iter_mut().enumerate() {
            let wanted = which == Standardize::All || is_feature[index];
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
        let by_name: HashMap<&str, &ColumnScale> = scales.iter().map(|scale| (scale.name.as_str(), scale)).collect();
        for used in &mut self.used {
            let name = self.names.get(used.column as usize);
            let Some(scale) = by_name.get(name) else {
                let have = scales.iter().map(|scale| scale.name.as_str()).collect::<Vec<_>>().join(", ");
                let problem = format!("column `{name}` was not standardized in training; the columns that were are {have}");
                return Err(DataError::csv(&self.path, 1, problem));
            };
            if !used.whole {
                (used.mean, used.factor) = (scale.mean, 1.0 / scale.std);
            }
        }
        Ok(())
    }

    /// The name of a used column.
    pub fn name(&self, used: usize) -> &str {
        self.names.get(self.used[used].column as usize)
    }

    /// The types and the statistics of the same used columns of another file.
    pub fn convert_like(&mut self, other: &CsvTable) {
        for (used, like) in self.used.iter_mut().zip(&other.used) {
            (used.whole, used.mean, used.factor) = (like.whole, like.mean, like.factor);
        }
    }

    /// The columns that are not read, each with the reason.
    pub fn unused(&self) -> impl Iterator<Item = (&str, &'static str)> {
        let unused = self.names.iter().enumerate().filter(|(at, _)| self.map[*at] == UNUSED);
        unused.map(|(at, name)| (name, if is_index(name, at) { "index column" } else { self.kinds[at].reason() }))
    }

    /// Bytes of the index: the columns with their names and statistics, and the offsets of rows.
    pub fn held(&self) -> usize {
        let columns = size_of_val(&self.used[..]) + size_of_val(&self.map[..]) + size_of_val(&self.kinds[..]);
        let roles = size_of_val(&self.features[..]) + size_of_val(&self.targets[..]);
        self.names.held() + columns + roles + size_of_val(&self.places[..])
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
        let names = |column: usize| self.name(column);
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
            let read = record(&mut records, &self.path, place.line, &self.map, &names, |column, value| {
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

/// Whether each of the used columns is among `columns`.
fn flags(columns: &[u32], used: usize) -> Vec<bool> {
    let mut flags = vec![false; used];
    columns.iter().for_each(|column| flags[*column as usize] = true);
    flags
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

/// Reads the rest of a record and emits the used columns.
fn record<'n>(
    records: &mut RecordScanner<'_>,
    path: &Path,
    line: u64,
    map: &[u32],
    name: &dyn Fn(usize) -> &'n str,
    mut sink: impl FnMut(usize, f64),
) -> Result<(), DataError> {
    let (mut fields, mut wrong) = (0, None);
    loop {
        let field = records.field()?;
        if let Some(column) = map.get(fields).filter(|column| **column != UNUSED).map(|column| *column as usize) {
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

/// Whether pandas wrote the column as its index: first and without a name; when such a file is written again, the name is
/// its position.
fn is_index(name: &str, position: usize) -> bool {
    is_index_name(name) || name.is_empty() && position == 0
}

/// The columns that are read, by their positions in the file, and their roles.
struct ChosenColumns {
    used: Vec<u32>,
    /// For each column of the file, its index among the used ones.
    map: Vec<u32>,
    features: Vec<u32>,
    targets: Vec<u32>,
}

impl ChosenColumns {
    fn new(path: &Path, spec: &CsvSpec, names: &ColumnNames, kinds: &[ColumnKind]) -> Result<ChosenColumns, DataError> {
        let sorted = names.sorted();
        let refuse = |problem: String| DataError::csv(path, 1, problem);
        let find = |name: &str| find(&sorted, name, names).map_err(refuse);
        let targets = spec.targets.iter().map(|name| find(name)).collect::<Result<Vec<u32>, _>>();
        let features = match &spec.features {
            Some(features) => features.iter().map(|name| find(name)).collect::<Result<Vec<u32>, _>>()?,
            None => {
                let mut is_target = vec![false; names.len()];
                // With a window, past values of the targets are features as well.
                let excluded = spec.targets.iter().filter(|_| spec.window.is_none());
                excluded.flat_map(|name| sorted.of(name)).for_each(|at| is_target[*at as usize] = true);
                let is_number = |at: usize| kinds[at] == ColumnKind::Number && !is_index(names.get(at), at);
                let by_default = (0..names.len()).filter(|at| is_number(*at) && !is_target[*at]);
                let features: Vec<u32> = by_default.map(|at| at as u32).collect();
                if let Some(twice) = features.iter().find(|at| !sorted.is_unique(**at)) {
                    return Err(refuse(more_than_one(names.get(*twice as usize))));
                }
                features
            }
        };
        let targets = targets?;
        spec.types.iter().try_for_each(|(name, _)| find(name).map(|_| ()))?;
        if features.is_empty() {
            return Err(refuse("no column is left to train on; name some as features".to_string()));
        }
        let (mut used, mut map) = (Vec::with_capacity(features.len() + targets.len()), vec![UNUSED; names.len()]);
        let mut place = |column: &u32| {
            let place = &mut map[*column as usize];
            if *place == UNUSED {
                *place = used.len() as u32;
                used.push(*column);
            }
            *place
        };
        let (features, targets) = (features.iter().map(&mut place).collect(), targets.iter().map(&mut place).collect());
        Ok(ChosenColumns { used, map, features, targets })
    }
}

/// The position of the only column of this name.
fn find(sorted: &SortedNames<'_>, name: &str, names: &ColumnNames) -> Result<u32, String> {
    match sorted.of(name) {
        [at] => Ok(*at),
        [] => Err(format!("there is no column `{name}`; the columns are {}", names.listed())),
        _ => Err(more_than_one(name)),
    }
}

fn more_than_one(name: &str) -> String {
    format!("there is more than one column `{name}`; give each its own name")
}
