//! Which columns of a table are read, in which role, and how each is encoded.

use super::column::{ColumnKind, Encoding, FittedColumn, Output, TextOutput};
use super::encode::{CellFormat, Encoder};
use super::fit::Fitting;
use super::infer::{Inference, Inferred};
use super::layout::{Columns, Group};
use super::names::{ColumnNames, is_index_name};
use super::parse;
use super::rows::RowBuffer;
use super::spec::{Encode, Missing, Standardize, TableSpec, VocabularySpec};
use crate::DataError;
use plimsoll_core::Bytes;
use std::collections::{HashMap, HashSet};

/// The index of a column that is not used.
pub(crate) const UNUSED: u32 = u32::MAX;

/// A pass over the rows that columns are fitted to: is given which of the used columns are wanted, and calls a function
/// with the index and the cells of each row.
pub(crate) type FitPass<'r> = dyn FnMut(&[bool], &mut dyn FnMut(u64, &RowBuffer) -> Result<(), String>) -> Result<(), DataError> + 'r;

/// The rows that columns are fitted to.
pub(crate) struct FitRows<'p, 'r> {
    pub pass: &'p mut FitPass<'r>,
    /// Whether they are the rows that the columns were inferred over, none of which is malformed.
    pub all: bool,
}

/// The columns that are read, by their positions in the file, and their roles.
#[derive(Clone, Debug)]
pub(crate) struct Chosen {
    /// The positions of the used columns.
    pub used: Vec<u32>,
    /// For each column of the file, its index among the used ones.
    pub map: Vec<u32>,
    pub features: Vec<u32>,
    pub targets: Vec<u32>,
    weight: Option<u32>,
    inputs: Vec<(String, Vec<u32>)>,
    /// The labels of a model with several outputs.
    pub outputs: Vec<(String, Vec<u32>)>,
    /// What the used columns hold.
    inferred: Vec<Option<Inferred>>,
    /// The columns that are not read, with the reason.
    pub unused: Vec<(u32, &'static str)>,
}

/// Whether pandas wrote the column as its index: first and without a name; when such a file is written again, the name
/// is its position.
fn is_index(name: &str, position: usize) -> bool {
    is_index_name(name) || name.is_empty() && position == 0
}

/// The names of columns after renaming.
fn renamed(spec: &TableSpec, names: &ColumnNames) -> Result<ColumnNames, String> {
    // New data need not have all columns of the data that was trained on.
    let missing = spec.rename.iter().find(|(old, _)| spec.fitted.is_empty() && !names.iter().any(|name| name == old));
    if let Some((old, new)) = missing {
        let known = names.sorted().only(old).unwrap_err();
        return Err(format!("`rename` gives `{old}` the name `{new}`, but {known}"));
    }
    let mut new = ColumnNames::default();
    for name in names.iter() {
        new.push(spec.renamed(name))?;
    }
    Ok(new)
}

/// The columns whose cells have to be inspected, each with whether it is a label; `None` for others.
pub(crate) fn candidates(spec: &TableSpec, names: &ColumnNames) -> Result<Vec<Option<bool>>, String> {
    let names = if spec.rename.is_empty() { names.clone() } else { renamed(spec, names)? };
    let sorted = names.sorted();
    let mut wanted = vec![spec.features.is_none().then_some(false); names.len()];
    // Very many columns: not one after the other.
    let known: HashSet<&str> = spec.fitted.iter().map(|column| column.name.as_str()).collect();
    let mut mark =
        |name: &String, label: bool| sorted.only(name).map(|at| wanted[at as usize] = (!known.contains(name.as_str())).then_some(label));
    for name in spec.features.iter().flatten().chain(spec.inputs.iter().flat_map(|(_, names)| names)).chain(&spec.weight) {
        mark(name, false)?;
    }
    spec.target_names().iter().try_for_each(|name| mark(name, true))?;
    let read = spec.features.iter().flatten().chain(spec.inputs.iter().flat_map(|(_, names)| names)).chain(&spec.weight);
    let read: HashSet<&String> = read.collect();
    let targets = spec.target_names();
    for name in &spec.drop {
        wanted[sorted.only(name)? as usize] = None;
        if read.contains(name) || targets.contains(name) {
            return Err(format!("column `{name}` is dropped, and it is also named to be read; remove it from one of the two"));
        }
    }
    spec.columns.iter().try_for_each(|(name, _)| sorted.only(name).map(drop))?;
    Ok(wanted)
}

/// The columns that were fitted as numbers.
pub(crate) fn fitted_numbers(spec: &TableSpec, names: &ColumnNames) -> Vec<usize> {
    let numbers = spec.fitted.iter().filter(|column| column.kind == ColumnKind::Number);
    let numbers: HashSet<&str> = numbers.map(|column| column.name.as_str()).collect();
    (0..names.len()).filter(|at| numbers.contains(spec.renamed(names.get(*at)))).collect()
}

impl Chosen {
    /// Chooses columns by what was seen of them. `series` if rows form windows, in which targets are features too.
    pub fn new(
        spec: &TableSpec,
        names: &ColumnNames,
        seen: &[Option<Inference>],
        series: bool,
        index: &[String],
    ) -> Result<Chosen, String> {
        let names = if spec.rename.is_empty() { names.clone() } else { renamed(spec, names)? };
        let sorted = names.sorted();
        let all = |wanted: &[String]| wanted.iter().map(|name| sorted.only(name)).collect::<Result<Vec<u32>, String>>();
        let targets = all(&spec.targets)?;
        let outputs = spec.outputs.iter().map(|(name, columns)| Ok((name.clone(), all(columns)?))).collect::<Result<Vec<_>, String>>()?;
        let weight = spec.weight.as_ref().map(|name| sorted.only(name)).transpose()?;
        let inputs = spec.inputs.iter().map(|(name, columns)| Ok((name.clone(), all(columns)?))).collect::<Result<Vec<_>, String>>()?;
        let mut found: Vec<Option<Inferred>> = seen.iter().map(|seen| seen.as_ref().map(Inference::finish)).collect();
        let mut unused = Vec::new();
        let features = match (&spec.features, inputs.is_empty()) {
            (Some(features), _) => all(features)?,
            (None, false) => inputs.iter().flat_map(|(_, columns)| columns.iter().copied()).collect(),
            (None, true) => {
                let mut taken = vec![false; names.len()];
                // With windows, past values of the targets are features as well.
                let labels = targets.iter().chain(outputs.iter().flat_map(|(_, columns)| columns)).filter(|_| !series);
                labels.chain(&weight).for_each(|at| taken[*at as usize] = true);
                for name in &spec.drop {
                    taken[sorted.only(name)? as usize] = true;
                }
                let mut features = Vec::new();
                for at in (0..names.len()).filter(|at| !taken[*at]) {
                    let name = names.get(at);
                    let declared = spec.columns.iter().any(|(known, _)| known == name);
                    let by_default = found[at].as_ref().is_some_and(|found| found.by_default);
                    match is_index(name, at) || index.iter().any(|index| index == name) {
                        true if !declared => unused.push((at as u32, "index column")),
                        _ if declared || by_default => features.push(at as u32),
                        _ => unused.push((at as u32, found[at].as_ref().map_or("", |found| found.reason))),
                    }
                }
                if let Some(twice) = features.iter().find(|at| !sorted.is_unique(**at)) {
                    return Err(sorted.only(names.get(*twice as usize)).unwrap_err());
                }
                features
            }
        };
        if features.is_empty() {
            return Err(nothing_left(&names, &unused));
        }
        let (mut used, mut map) = (Vec::new(), vec![UNUSED; names.len()]);
        let mut place = |column: &u32| {
            let place = &mut map[*column as usize];
            if *place == UNUSED {
                *place = used.len() as u32;
                used.push(*column);
            }
            *place
        };
        let mut places = |columns: &[u32]| columns.iter().map(&mut place).collect::<Vec<u32>>();
        let (features, targets) = (places(&features), places(&targets));
        let inputs = inputs.into_iter().map(|(name, columns)| (name, places(&columns))).collect();
        let outputs = outputs.into_iter().map(|(name, columns)| (name, places(&columns))).collect();
        let weight = weight.map(|weight| places(&[weight])[0]);
        let dropped = |at: usize| spec.drop.iter().any(|name| name == names.get(at));
        if unused.is_empty() || spec.features.is_some() {
            let others = (0..names.len()).filter(|at| map[*at] == UNUSED);
            unused = others.map(|at| (at as u32, unused_reason(&found[at], is_index(names.get(at), at)))).collect();
        } else {
            unused.extend((0..names.len()).filter(|at| dropped(*at)).map(|at| (at as u32, "dropped")));
            unused.sort_unstable();
        }
        let inferred = used.iter().map(|at| found[*at as usize].take()).collect();
        Ok(Chosen { used, map, features, targets, weight, inputs, outputs, inferred, unused })
    }

    /// Numbers of the longest list of a used column.
    pub fn longest_list(&self) -> usize {
        self.inferred.iter().flatten().map(|found| found.longest_list).max().unwrap_or(0)
    }

    /// For each used column, whether it is a label and nothing else.
    fn labels(&self) -> Vec<bool> {
        let mut labels = flags(&self.targets, self.used.len());
        self.outputs.iter().flat_map(|(_, columns)| columns).for_each(|column| labels[*column as usize] = true);
        self.features.iter().for_each(|column| labels[*column as usize] = false);
        labels
    }

    /// The first line with a value that cannot be read, and the problem, if missing values are not filled.
    pub fn first_problem(&self, spec: &TableSpec, names: &ColumnNames, seen: &[Option<Inference>], series: bool) -> Option<(u64, String)> {
        let (integers, labels) = (self.integer_labels(spec, names, series).ok()?, self.labels());
        let problems = self.used.iter().enumerate().filter_map(|(index, at)| {
            let name = spec.renamed(names.get(*at as usize));
            let options = spec.options(name);
            let label = labels[index];
            let missing = options.missing.clone().unwrap_or_else(|| if label { Missing::Error } else { spec.missing.clone() });
            let integer = options.integer == Some(true) && (integers[index] || !label);
            let (line, problem) = seen[*at as usize].as_ref()?.first_problem(options.kind, missing == Missing::Error, integer)?;
            Some((line, format!("column `{name}` {problem}")))
        });
        problems.min_by_key(|(line, _)| *line)
    }

    /// Encodes the columns: as they were fitted before, or fitted to rows.
    pub fn columns(
        &self,
        spec: &TableSpec,
        names: &ColumnNames,
        format: &CellFormat,
        series: bool,
        rows: FitRows<'_, '_>,
    ) -> Result<(Columns, Bytes), ColumnsError> {
        let name = |index: u32| spec.renamed(names.get(self.used[index as usize] as usize));
        let integers = self.integer_labels(spec, names, series)?;
        // Very many columns: not one after the other.
        let fitted: HashMap<&str, &FittedColumn> = spec.fitted.iter().map(|column| (column.name.as_str(), column)).collect();
        let mut fittings: Vec<Result<FittedColumn, Fitting>> = Vec::with_capacity(self.used.len());
        let labels = self.labels();
        let scales: Option<HashMap<&str, (f64, f64)>> =
            spec.scales.as_ref().map(|scales| scales.iter().map(|scale| (scale.name.as_str(), (scale.mean, scale.std))).collect());
        for index in 0..self.used.len() as u32 {
            let name = name(index);
            if let Some(&fitted) = fitted.get(name) {
                fittings.push(Ok(fitted.clone()));
                continue;
            }
            let Some(found) = &self.inferred[index as usize] else {
                return Err(ColumnsError::Problem(format!("column `{name}` was not fitted in training; train with it")));
            };
            let label = labels[index as usize];
            let scale = scales.as_ref().map(|scales| scales.get(name).copied());
            fittings.push(self.fitting(spec, name, found, label, integers[index as usize], self.weight == Some(index), scale, format)?);
        }
        let counting = fittings.iter().filter_map(|fitting| fitting.as_ref().err()).filter(|fitting| fitting.counts_values()).count();
        fittings.iter_mut().filter_map(|fitting| fitting.as_mut().err()).for_each(|fitting| fitting.share_memory(spec.fitting.0, counting));
        let found = |column: usize| self.inferred[column].as_ref();
        let fitting_of = |fitting: &Result<FittedColumn, Fitting>, column: usize, is: &dyn Fn(&Fitting, &Inferred) -> bool| {
            fitting.as_ref().err().zip(found(column)).is_some_and(|(fitting, found)| is(fitting, found))
        };
        let checked: Vec<bool> =
            fittings.iter().enumerate().map(|(column, fitting)| fitting_of(fitting, column, &Fitting::checks_cells)).collect();
        let mut counted: Vec<bool> =
            fittings.iter().enumerate().map(|(column, fitting)| fitting_of(fitting, column, &|fitting, _| fitting.needs_rows())).collect();
        // A row that cannot be read counts for no column, so categories that were counted over all rows are right only
        // if all of them can be.
        if rows.all && !checked.contains(&true) {
            for (column, fitting) in fittings.iter_mut().enumerate() {
                if let (Err(fitting), Some(found)) = (fitting, found(column)) {
                    counted[column] &= !fitting.take_counts(found);
                }
            }
        }
        if counted.contains(&true) {
            let wanted: Vec<bool> = checked.iter().zip(&counted).map(|(checked, counted)| *checked || *counted).collect();
            let result = (rows.pass)(&wanted, &mut |row, cells| {
                let named = |column: usize, problem: String| format!("column `{}` {problem}", name(column as u32));
                for (column, cell) in cells.iter().filter(|(column, _)| checked[*column]) {
                    let read = fittings[column].as_ref().map_or_else(|fitting| fitting.check(cell), |_| Ok(()));
                    read.map_err(|problem| named(column, problem))?;
                }
                cells.iter().filter(|(column, _)| counted[*column]).try_for_each(|(column, cell)| match &mut fittings[column] {
                    Err(fitting) => fitting.add(cell, row).map_err(|problem| named(column, problem)),
                    Ok(_) => Ok(()),
                })
            });
            result.map_err(ColumnsError::Data)?;
        }
        let bytes = fittings.iter().filter_map(|fitting| fitting.as_ref().err()).map(Fitting::bytes).sum();
        let fitted = fittings.into_iter().map(|fitting| fitting.or_else(Fitting::finish)).collect::<Result<Vec<_>, String>>()?;
        let encoders: Vec<Encoder> = fitted.into_iter().map(|column| Encoder::new(column, format.clone())).collect();
        let group = |name: &str, columns: &[u32], label: bool| Group { name: name.to_string(), columns: columns.to_vec(), label };
        let inputs: Vec<Group> = self.inputs.iter().map(|(name, columns)| group(name, columns, false)).collect();
        let mut labels: Vec<Group> = self.outputs.iter().map(|(name, columns)| group(name, columns, true)).collect();
        if !self.targets.is_empty() {
            labels.insert(0, group("y", &self.targets, true));
        }
        Ok((Columns::new(encoders, &self.features, inputs, labels, self.weight)?, bytes))
    }

    /// For each used column whether it is read as integers: labels without fractions, unless their type is given. With
    /// several labels in one group, all of them are or none is.
    fn integer_labels(&self, spec: &TableSpec, names: &ColumnNames, series: bool) -> Result<Vec<bool>, String> {
        let (mut integers, labels) = (vec![false; self.used.len()], self.labels());
        let groups = std::iter::once(&self.targets).chain(self.outputs.iter().map(|(_, columns)| columns));
        for group in groups {
            let found = |at: &u32| self.inferred[*at as usize].as_ref();
            let whole = |at: &u32| {
                let is_class = |found: &Inferred| !matches!(found.kind, Some(ColumnKind::Number)) || found.whole;
                found(at).is_some_and(is_class) && labels[*at as usize]
            };
            let all = !series && group.iter().all(whole);
            let kinds: Vec<bool> = group
                .iter()
                .map(|at| {
                    let name = spec.renamed(names.get(self.used[*at as usize] as usize));
                    spec.options(name).integer.unwrap_or(all)
                })
                .collect();
            if kinds.iter().any(|kind| *kind != kinds[0]) {
                return Err("its targets are partly integers and partly not; give them one type, such as float".into());
            }
            group.iter().zip(kinds).for_each(|(at, kind)| integers[*at as usize] = kind);
        }
        Ok(integers)
    }

    #[allow(clippy::too_many_arguments)]
    fn fitting(
        &self,
        spec: &TableSpec,
        name: &str,
        found: &Inferred,
        label: bool,
        integer: bool,
        weight: bool,
        scale: Option<Option<(f64, f64)>>,
        format: &CellFormat,
    ) -> Result<Result<FittedColumn, Fitting>, ColumnsError> {
        let options = spec.options(name);
        let kind = options.kind.or(found.kind).unwrap_or(ColumnKind::Number);
        if let Some(problem) = options.format.as_deref().and_then(parse::format_problem) {
            return Err(ColumnsError::Problem(format!("column `{name}` {problem}")));
        }
        let mut column = FittedColumn { kind, format: options.format.clone(), ..FittedColumn::number(name) };
        let missing = options.missing.clone().unwrap_or_else(|| if label { Missing::Error } else { spec.missing.clone() });
        let is_number = matches!(kind, ColumnKind::Number | ColumnKind::Boolean | ColumnKind::Date);
        let filled = found.missing > 0 && missing != Missing::Error;
        column.integers = options.integer == Some(true) && kind == ColumnKind::Number && !(label && integer);
        column.indicator = is_number && !label && options.indicator.unwrap_or(spec.indicator && filled);
        let standardized = match spec.standardize {
            Some(Standardize::All) => !weight,
            Some(Standardize::Features) => !label && !weight,
            None => false,
        };
        let default = match kind {
            ColumnKind::Number | ColumnKind::Date | ColumnKind::Boolean if label && integer => None,
            ColumnKind::Number | ColumnKind::Date if standardized => match scale {
                Some(Some(scale)) => Some(Encode::Normalize(Some(scale))),
                Some(None) => {
                    let have = spec.scales.iter().flatten().map(|scale| scale.name.as_str()).collect::<Vec<_>>().join(", ");
                    let problem = format!("column `{name}` was not standardized in training; the columns that were are {have}");
                    return Err(ColumnsError::Problem(problem));
                }
                None => Some(Encode::Normalize(None)),
            },
            ColumnKind::Number | ColumnKind::Boolean | ColumnKind::Date | ColumnKind::List => Some(Encode::AsIs),
            ColumnKind::Category | ColumnKind::Text if label => {
                let classes = found.texts.clone();
                if classes.is_none() {
                    let problem =
                        format!("its target `{name}` has more than 65536 different texts, which are no classes; choose another column");
                    return Err(ColumnsError::Problem(problem));
                }
                // Numbers that are declared as classes are counted.
                let given = classes.filter(|_| !found.has_numbers);
                Some(Encode::Lookup(VocabularySpec { given, oov: 0, ..VocabularySpec::default() }, Output::Int))
            }
            ColumnKind::Category => Some(Encode::Lookup(VocabularySpec::default(), Output::OneHot)),
            ColumnKind::Text => {
                let (tokens, vocabulary) = Default::default();
                Some(Encode::Vectorize { tokens, vocabulary, output: TextOutput::Int, length: None })
            }
        };
        let Some(encode) = options.encode.clone().or(default) else {
            column.encoding = Encoding::Integer;
            return Ok(Ok(column));
        };
        let sorted = label && matches!(encode, Encode::Lookup(..));
        let lists = (found.shortest_list, found.longest_list);
        Ok(Err(Fitting::new(column, encode, missing, sorted, lists, format).map_err(ColumnsError::Data)?))
    }
}

/// Why there are no features.
fn nothing_left(names: &ColumnNames, unused: &[(u32, &'static str)]) -> String {
    match unused {
        [] => "no column is left to train on; name some as features".to_string(),
        [(at, reason)] if names.len() == 1 => {
            let name = names.get(*at as usize);
            format!("its only column is `{name}` ({reason}); name it in `columns`, or if it is several, set `delimiter`")
        }
        [(at, reason), more @ ..] => {
            let others = if more.is_empty() { String::new() } else { format!(" and {} more", more.len()) };
            let name = names.get(*at as usize);
            format!("no column is left to train on, without `{name}` ({reason}){others}; name columns in `columns` or as features")
        }
    }
}

fn unused_reason(found: &Option<Inferred>, index: bool) -> &'static str {
    match found {
        _ if index => "index column",
        Some(Inferred { kind: None, .. }) => "no values",
        Some(Inferred { kind: Some(ColumnKind::Text), .. }) => "text",
        _ => "not among the features",
    }
}

/// Why columns cannot be encoded.
pub(crate) enum ColumnsError {
    /// A problem of the table as a whole.
    Problem(String),
    /// An error with its own place.
    Data(DataError),
}

impl From<String> for ColumnsError {
    fn from(problem: String) -> ColumnsError {
        ColumnsError::Problem(problem)
    }
}

/// Whether each of the used columns is among `columns`.
fn flags(columns: &[u32], used: usize) -> Vec<bool> {
    let mut flags = vec![false; used];
    columns.iter().for_each(|column| flags[*column as usize] = true);
    flags
}
