//! Splits into training, validation and test rows: random, stratified by class, by group, or by time; shares or folds.

use crate::holdout::{SplitPart, VisitClasses, class_counts};
use crate::rng::mix64;
use crate::{DataError, Permutation};
use std::collections::{BTreeMap, HashMap};
use std::hash::Hasher;

/// How rows are split.
#[derive(Clone, Debug, PartialEq)]
pub struct SplitSpec {
    /// Which rows come together.
    pub method: SplitMethod,
    /// The share of all rows to validate on; ignored with folds.
    pub validation: f64,
    /// The share of all rows to test on.
    pub test: f64,
    /// The fold to validate on, counted from 1, and the number of folds.
    pub fold: Option<(u64, u64)>,
    /// The seed of the choice.
    pub seed: u64,
}

/// Which rows come together.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum SplitMethod {
    /// Each class in proportion, where rows have classes that can be read alone.
    #[default]
    Stratified,
    /// Any rows.
    Random,
    /// All rows with the same value in this column.
    Group(String),
    /// The last rows, by the values of this column, or else in the order of the source. Folds validate on one of the
    /// last parts each, and train on what comes before it.
    Time(Option<String>),
}

impl Default for SplitSpec {
    /// A tenth of the rows to validate on, stratified.
    fn default() -> SplitSpec {
        SplitSpec { method: SplitMethod::default(), validation: 0.1, test: 0.0, fold: None, seed: 0 }
    }
}

impl SplitSpec {
    /// In words.
    pub fn describe(&self) -> String {
        let how = match &self.method {
            SplitMethod::Stratified => format!("stratified, seed {}", self.seed),
            SplitMethod::Random => format!("random, seed {}", self.seed),
            SplitMethod::Group(column) => format!("by group `{column}`, seed {}", self.seed),
            SplitMethod::Time(Some(column)) => format!("by time `{column}`"),
            SplitMethod::Time(None) => "in time order".to_string(),
        };
        let validation = match self.fold {
            Some((fold, folds)) => format!("fold {fold}/{folds}"),
            None => format!("{} to validate", self.validation),
        };
        let test = if self.test > 0.0 { format!(", {} to test", self.test) } else { String::new() };
        format!("{validation}{test}, {how}")
    }

    fn check(&self, rows: u64) -> Result<(), DataError> {
        let refuse = |problem: String| Err(DataError::Stage(format!("a split ({}) {problem}", self.describe())));
        let share = |share: f64| (0.0..1.0).contains(&share);
        if !share(self.validation) || !share(self.test) || self.validation + self.test >= 1.0 {
            return refuse("needs shares from 0 to 1 that leave rows to train on; use smaller ones".into());
        }
        match self.fold {
            Some((fold, folds)) if folds < 2 || !(1..=folds).contains(&fold) => {
                refuse("needs a fold from 1 to the number of folds, of at least 2; such as 3/5".into())
            }
            Some((_, folds)) if folds >= rows => refuse(format!("has more folds than {rows} rows fill; use fewer")),
            _ => Ok(()),
        }
    }
}

/// The rows of each part.
pub(crate) struct Parts {
    pub training: SplitPart,
    pub validation: Option<SplitPart>,
    pub test: Option<SplitPart>,
}

/// Visits the values of the column that a split is by; `false` if there is none.
pub(crate) type VisitValues<'a> = dyn Fn(&str, &mut dyn FnMut(&[u8])) -> Result<bool, DataError> + 'a;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Training,
    Validation,
    Test,
    /// Later than the fold that is validated on.
    Unused,
}

/// Assigns each of `rows` rows to a part.
pub(crate) fn split(rows: u64, spec: &SplitSpec, classes: &VisitClasses<'_>, values: &VisitValues<'_>) -> Result<Parts, DataError> {
    spec.check(rows)?;
    let mut bits = SplitBits::new(rows);
    match &spec.method {
        SplitMethod::Stratified => by_class(rows, spec, classes, &mut bits)?,
        SplitMethod::Random => by_class(rows, spec, &|_| Ok(false), &mut bits)?,
        SplitMethod::Group(column) => by_group(rows, spec, &column_values(column, rows, values)?, &mut bits),
        SplitMethod::Time(None) => (0..rows).for_each(|row| bits.set(row, in_time(row, rows, spec))),
        SplitMethod::Time(Some(column)) => by_time(rows, spec, column, values, &mut bits)?,
    }
    let wanted = [spec.fold.is_some() || spec.validation > 0.0, spec.test > 0.0];
    bits.parts(spec, wanted)
}

/// Ranks rows at random within their class; the first ones are tested on, the next ones validated on.
fn by_class(rows: u64, spec: &SplitSpec, classes: &VisitClasses<'_>, bits: &mut SplitBits) -> Result<(), DataError> {
    let counts = class_counts(rows, classes)?;
    let known = counts.is_some();
    // Each class with its number of rows, the rows of the classes before it, and its next row.
    let mut before = 0;
    let mut table: BTreeMap<i64, (Permutation, u64, u64, u64)> = BTreeMap::new();
    for (class, count) in counts.unwrap_or_else(|| BTreeMap::from([(0, rows)])) {
        let shuffled = Permutation::new(count, spec.seed ^ mix64(class as u64 ^ SALT), 0);
        table.insert(class, (shuffled, count, before, 0));
        before += count;
    }
    let mut row = 0;
    let mut assign = |class: i64| {
        // A file that changed since it was counted has other classes.
        if let Some((shuffled, count, before, next)) = table.get_mut(&class)
            && *next < *count
            && row < rows
        {
            bits.set(row, spec.ranked(shuffled.at(*next), *count, *before));
            *next += 1;
        }
        row += 1;
    };
    match known {
        true => _ = classes(&mut assign)?,
        false => (0..rows).for_each(|_| assign(0)),
    }
    Ok(())
}

impl SplitSpec {
    /// The part of the row at a random rank of its class, which has `count` rows after `before` rows of other classes.
    /// Shares are rounded over all classes together.
    fn ranked(&self, rank: u64, count: u64, before: u64) -> Part {
        let of = |share: f64| {
            let upto = |rows: u64| (rows as f64 * share).round() as u64;
            upto(before + count) - upto(before)
        };
        let test = of(self.test);
        if rank < test {
            return Part::Test;
        }
        match self.fold {
            Some((fold, folds)) => {
                let tested = (before as f64 * self.test).round() as u64;
                if (before - tested + rank - test) % folds == fold - 1 { Part::Validation } else { Part::Training }
            }
            None if rank - test < of(self.validation) => Part::Validation,
            None => Part::Training,
        }
    }
}

/// The part of a row at a place in time.
fn in_time(place: u64, rows: u64, spec: &SplitSpec) -> Part {
    let test = (rows as f64 * spec.test).round() as u64;
    let left = rows - test;
    if place >= left {
        return Part::Test;
    }
    let (start, end) = match spec.fold {
        // One part more than folds, so that the first fold has rows to train on.
        Some((fold, folds)) => {
            let upto = |part: u64| (u128::from(left) * u128::from(part) / u128::from(folds + 1)) as u64;
            (upto(fold), upto(fold + 1))
        }
        None => (left - (rows as f64 * spec.validation).round() as u64, left),
    };
    match place {
        _ if place < start => Part::Training,
        _ if place < end => Part::Validation,
        _ => Part::Unused,
    }
}

fn by_time(rows: u64, spec: &SplitSpec, column: &str, values: &VisitValues<'_>, bits: &mut SplitBits) -> Result<(), DataError> {
    let (mut times, mut wrong): (Vec<(f64, u64)>, Option<String>) = (Vec::with_capacity(rows as usize), None);
    let found = values(column, &mut |value| match time(value) {
        Some(time) => times.push((time, times.len() as u64)),
        None => _ = wrong.get_or_insert_with(|| String::from_utf8_lossy(value).into_owned()),
    })?;
    if let Some(value) = wrong {
        let problem = format!("the column `{column}` has {value:?}, which is neither a number nor a date such as 2024-01-31");
        return Err(DataError::Stage(problem + "; split by another column"));
    }
    check_column(column, found, times.len() as u64, rows)?;
    times.sort_unstable_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    for (place, (_, row)) in times.iter().enumerate() {
        bits.set(*row, in_time(place as u64, rows, spec));
    }
    Ok(())
}

/// A number, or the seconds of a date such as `2024-01-31`, `2024-01-31 12:30:00` or `2024-01-31T12:30`.
fn time(value: &[u8]) -> Option<f64> {
    let text = str::from_utf8(value).ok()?.trim();
    if let Ok(number) = text.parse::<f64>() {
        return Some(number).filter(|number| !number.is_nan());
    }
    let mut fields = text.split(|c: char| !c.is_ascii_digit() && c != '.').filter(|field| !field.is_empty());
    let mut next = |least: f64, most: f64| {
        fields.next().map_or(Some(None), |field| field.parse::<f64>().ok().filter(|n| (least..=most).contains(n)).map(Some))
    };
    let (year, month, day) = (next(0.0, 9999.0)??, next(1.0, 12.0)??, next(1.0, 31.0)??);
    let (hour, minute, second) = (next(0.0, 24.0)?.unwrap_or(0.0), next(0.0, 59.0)?.unwrap_or(0.0), next(0.0, 60.0)?.unwrap_or(0.0));
    Some((((year * 12.0 + month) * 31.0 + day) * 24.0 + hour) * 3600.0 + minute * 60.0 + second)
}

/// A hash of the value of each row.
fn column_values(column: &str, rows: u64, values: &VisitValues<'_>) -> Result<Vec<u64>, DataError> {
    let mut hashes = Vec::with_capacity(rows as usize);
    let found = values(column, &mut |value| {
        let mut hash = std::collections::hash_map::DefaultHasher::new();
        hash.write(value);
        hashes.push(hash.finish());
    })?;
    check_column(column, found, hashes.len() as u64, rows)?;
    Ok(hashes)
}

fn check_column(column: &str, found: bool, values: u64, rows: u64) -> Result<(), DataError> {
    match found {
        false => Err(DataError::Stage(format!("there is no column `{column}` to split by; name one of the file, or use another method"))),
        true if values != rows => {
            Err(DataError::Stage(format!("the column `{column}` has {values} values for {rows} rows; the file changed while it was read")))
        }
        true => Ok(()),
    }
}

/// Groups in random order: the first ones are tested on, the next ones validated on. Folds are balanced, the largest
/// groups first.
fn by_group(rows: u64, spec: &SplitSpec, groups: &[u64], bits: &mut SplitBits) {
    let mut counts: HashMap<u64, u64> = HashMap::new();
    groups.iter().for_each(|group| *counts.entry(*group).or_default() += 1);
    let mut order: Vec<(u64, u64)> = counts.into_iter().collect();
    order.sort_unstable_by_key(|(group, _)| mix64(group ^ mix64(spec.seed ^ SALT)));
    let mut parts: HashMap<u64, Part> = HashMap::new();
    let mut rest = order.into_iter().peekable();
    // A group is taken as long as that comes nearer to the share.
    let mut take = |share: f64, part: Part, rest: &mut std::iter::Peekable<std::vec::IntoIter<(u64, u64)>>| {
        let (wanted, mut taken) = (rows as f64 * share, 0.0);
        while let Some((group, count)) = rest.next_if(|(_, count)| wanted > 0.0 && (taken == 0.0 || taken + *count as f64 / 2.0 <= wanted))
        {
            taken += count as f64;
            parts.insert(group, part);
        }
    };
    take(spec.test, Part::Test, &mut rest);
    match spec.fold {
        None => take(spec.validation, Part::Validation, &mut rest),
        Some((fold, folds)) => {
            let mut others: Vec<(u64, u64)> = rest.collect();
            others.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
            let mut sizes = vec![0; folds as usize];
            for (group, count) in others {
                let smallest = (0..sizes.len()).min_by_key(|at| sizes[*at]).unwrap_or(0);
                sizes[smallest] += count;
                if smallest as u64 == fold - 1 {
                    parts.insert(group, Part::Validation);
                }
            }
        }
    }
    for (row, group) in groups.iter().enumerate() {
        bits.set(row as u64, parts.get(group).copied().unwrap_or(Part::Training));
    }
}

/// Keeps the choice independent of other uses of the same seed.
const SALT: u64 = 0x0F01_D5AB_1EAF_5EED;

/// One bit per row for each part.
struct SplitBits {
    rows: u64,
    words: [Vec<u64>; 3],
}

impl SplitBits {
    fn new(rows: u64) -> SplitBits {
        SplitBits { rows, words: std::array::from_fn(|_| vec![0; rows.div_ceil(64) as usize]) }
    }

    fn set(&mut self, row: u64, part: Part) {
        if part != Part::Unused {
            self.words[part as usize][(row / 64) as usize] |= 1 << (row % 64);
        }
    }

    fn parts(self, spec: &SplitSpec, wanted: [bool; 2]) -> Result<Parts, DataError> {
        let rows = self.rows;
        let [training, validation, test] = self.words.map(|words| SplitPart::of_rows(words, rows));
        let empty = [(true, &training, "train on"), (wanted[0], &validation, "validate on"), (wanted[1], &test, "test on")];
        if let Some((_, _, what)) = empty.into_iter().find(|(wanted, part, _)| *wanted && part.len() == 0) {
            return Err(DataError::Stage(format!("a split ({}) of {rows} rows leaves none to {what}; use other shares", spec.describe())));
        }
        Ok(Parts { training, validation: wanted[0].then_some(validation), test: wanted[1].then_some(test) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows_of(part: &SplitPart) -> Vec<u64> {
        (0..part.len()).map(|place| part.row(place)).collect()
    }

    fn labels_of(labels: &[i64]) -> impl Fn(&mut dyn FnMut(i64)) -> Result<bool, DataError> + '_ {
        |visit| {
            labels.iter().for_each(|label| visit(*label));
            Ok(true)
        }
    }

    type Visit<'v> = &'v mut dyn FnMut(&[u8]);

    fn values_of(values: &[String]) -> impl Fn(&str, Visit<'_>) -> Result<bool, DataError> + '_ {
        |name, visit| {
            values.iter().for_each(|value| visit(value.as_bytes()));
            Ok(name == "key")
        }
    }

    fn parts(rows: u64, spec: &SplitSpec, labels: &[i64], keys: &[String]) -> [Vec<u64>; 3] {
        let parts = split(rows, spec, &labels_of(labels), &values_of(keys)).unwrap();
        [Some(&parts.training), parts.validation.as_ref(), parts.test.as_ref()].map(|part| part.map_or(Vec::new(), rows_of))
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_part_and_folds_are_complementary(rows in 40u64..400, seed: u64, folds in 2u64..6, test in prop_oneof![Just(0.0), Just(0.2)], method in 0..3usize) {
            let labels: Vec<i64> = (0..rows).map(|row| (mix64(seed ^ row) % 4) as i64).collect();
            let keys: Vec<String> = (0..rows).map(|row| format!("g{}", mix64(row ^ 77) % 15)).collect();
            let methods = [SplitMethod::Stratified, SplitMethod::Random, SplitMethod::Group("key".into())];
            let spec = SplitSpec { method: methods[method].clone(), test, seed, ..SplitSpec::default() };
            let mut validated = Vec::new();
            let mut tested = Vec::new();
            for fold in 1..=folds {
                let [training, validation, test] = parts(rows, &SplitSpec { fold: Some((fold, folds)), ..spec.clone() }, &labels, &keys);
                let mut all = [&training[..], &validation, &test].concat();
                all.sort_unstable();
                prop_assert_eq!(all, (0..rows).collect::<Vec<_>>());
                let key = |row: &u64| keys[*row as usize].clone();
                if method == 2 {
                    prop_assert!(validation.iter().all(|row| !training.iter().any(|other| key(other) == key(row))));
                } else {
                    let share = validation.len() as f64 - (rows as usize - test.len()) as f64 / folds as f64;
                    prop_assert!(share.abs() <= 1.0, "{} of {}", validation.len(), rows);
                }
                validated.extend(validation);
                tested = test;
            }
            // The folds validate on each row that is not tested on once.
            validated.extend(&tested);
            validated.sort_unstable();
            prop_assert_eq!(validated, (0..rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn classes_are_in_every_part_in_proportion() {
        let labels: Vec<i64> = (0..1000).map(|row| i64::from(row % 10 == 0)).collect();
        let spec = SplitSpec { validation: 0.2, test: 0.1, ..SplitSpec::default() };
        let [training, validation, test] = parts(1000, &spec, &labels, &[]);
        let rare = |rows: &[u64]| rows.iter().filter(|row| labels[**row as usize] == 1).count();
        assert_eq!([training.len(), validation.len(), test.len()], [700, 200, 100]);
        assert_eq!([rare(&training), rare(&validation), rare(&test)], [70, 20, 10]);
        let random = parts(1000, &SplitSpec { method: SplitMethod::Random, ..spec }, &labels, &[]);
        assert_eq!(random.map(|rows| rows.len()), [700, 200, 100]);
    }

    #[test]
    fn the_last_rows_in_time_are_held_out() {
        let spec = SplitSpec { method: SplitMethod::Time(None), validation: 0.2, test: 0.1, ..SplitSpec::default() };
        assert_eq!(parts(10, &spec, &[], &[]), [(0..7).collect(), vec![7, 8], vec![9]]);
        let dates: Vec<String> = ["2024-03-01", "2023-12-31 23:59", "2024-01-02T01:00:00", "2024-01-02"].map(String::from).to_vec();
        let by_date = SplitSpec { method: SplitMethod::Time(Some("key".into())), validation: 0.25, test: 0.25, ..SplitSpec::default() };
        assert_eq!(parts(4, &by_date, &[], &dates), [vec![1, 3], vec![2], vec![0]]);
        // Folds train on what comes before.
        let folds = |fold| parts(8, &SplitSpec { test: 0.0, fold: Some((fold, 3)), ..spec.clone() }, &[], &[]);
        assert_eq!(folds(1), [vec![0, 1], vec![2, 3], vec![]]);
        assert_eq!(folds(3), [(0..6).collect(), vec![6, 7], vec![]]);
    }

    #[test]
    fn impossible_splits_are_refused() {
        let refused = |spec: SplitSpec, rows| match split(rows, &spec, &|_| Ok(false), &values_of(&["x".into(), "1".into()])) {
            Err(error) => error.to_string(),
            Ok(_) => "made".into(),
        };
        let spec = SplitSpec::default();
        insta::assert_snapshot!([
            refused(SplitSpec { validation: 0.6, test: 0.4, ..spec.clone() }, 10),
            refused(SplitSpec { fold: Some((6, 5)), ..spec.clone() }, 10),
            refused(SplitSpec { fold: Some((1, 5)), ..spec.clone() }, 3),
            refused(SplitSpec { validation: 0.01, ..spec.clone() }, 10),
            refused(SplitSpec { method: SplitMethod::Group("patient".into()), ..spec.clone() }, 2),
            refused(SplitSpec { method: SplitMethod::Time(Some("key".into())), ..spec.clone() }, 2),
        ].join("\n"), @r#"
        a split (0.6 to validate, 0.4 to test, stratified, seed 0) needs shares from 0 to 1 that leave rows to train on; use smaller ones
        a split (fold 6/5, stratified, seed 0) needs a fold from 1 to the number of folds, of at least 2; such as 3/5
        a split (fold 1/5, stratified, seed 0) has more folds than 3 rows fill; use fewer
        a split (0.01 to validate, stratified, seed 0) of 10 rows leaves none to validate on; use other shares
        there is no column `patient` to split by; name one of the file, or use another method
        the column `key` has "x", which is neither a number nor a date such as 2024-01-31; split by another column
        "#);
    }
}
