//! What the columns of a table hold, inferred over all rows.

use super::column::ColumnKind;
use super::encode::{Cell, CellFormat, not_finite, utf8};
use super::parse;
use super::tokens::TokenSet;
use plimsoll_core::Bytes;

/// The memory for the distinct texts of a column; more are no categories.
const MOST_BYTES: Bytes = Bytes::mib(16);

/// With more distinct texts, a column is no category by default.
const MOST_CATEGORIES: usize = 256;

/// With more distinct texts, a column is no class.
const MOST_CLASSES: usize = 1 << 16;

/// What was seen of a column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inference {
    /// Cells with a value, and without.
    present: u64,
    pub missing: u64,
    numbers: u64,
    /// Numbers that are NaN, which are filled as missing ones are.
    undefined: u64,
    /// Numbers with a decimal comma.
    commas: u64,
    booleans: u64,
    dates: u64,
    lists: u64,
    fractions: bool,
    first_is_number: Option<bool>,
    /// Distinct texts, and how often each occurred.
    texts: TokenSet,
    counts: Vec<u64>,
    /// Whether there are more texts than `most`.
    many: bool,
    most: usize,
    /// What the column holds, if the format says so.
    known: Option<ColumnKind>,
    shortest_list: usize,
    longest_list: usize,
    /// The line of the current row, and the first lines with values that may be a problem.
    line: u64,
    first_missing: Option<u64>,
    first_text: Option<(u64, String)>,
    first_undated: Option<(u64, String)>,
    first_infinite: Option<(u64, String)>,
    first_fraction: Option<(u64, f64)>,
    first_invalid: Option<(u64, String)>,
}

/// Characters of a text that an error quotes.
const QUOTED: usize = 80;

fn quoted(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(QUOTED)]).into_owned()
}

/// What a column holds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Inferred {
    /// `None` if it has no values.
    pub kind: Option<ColumnKind>,
    /// Whether all numbers are integers of 32 bits.
    pub whole: bool,
    pub missing: u64,
    /// Whether it is read without being named.
    pub by_default: bool,
    /// Why it is not.
    pub reason: &'static str,
    /// The distinct texts, sorted, if there are not too many.
    pub texts: Option<Vec<String>>,
    /// Whether there are numbers, which are not among the texts.
    pub has_numbers: bool,
    /// How often each of them occurred, if every cell is a text.
    pub counts: Option<Vec<u64>>,
    /// Whether every cell with a value can be read as its kind.
    pub valid: bool,
    pub shortest_list: usize,
    pub longest_list: usize,
}

impl Inference {
    pub fn new(is_target: bool) -> Inference {
        let most = if is_target { MOST_CLASSES } else { MOST_CATEGORIES };
        Inference { most, shortest_list: usize::MAX, ..Inference::default() }
    }

    /// A column whose format says what it holds.
    pub fn known(kind: ColumnKind, whole: bool) -> Inference {
        Inference { known: Some(kind), fractions: !whole, present: 1, ..Inference::new(false) }
    }

    /// Adds a cell of a line. `known` if the format has types, so that texts are no numbers.
    pub fn add(&mut self, cell: Cell<'_>, format: &CellFormat, known: bool, line: u64) {
        self.line = line;
        if self.known.is_some() {
            // The type says the rest.
            self.missing += u64::from(matches!(cell, Cell::Missing) || matches!(cell, Cell::Number(value) if value.is_nan()));
            return;
        }
        match cell {
            Cell::Missing => self.add_missing(),
            Cell::Number(value) => self.add_number(value, b""),
            Cell::Integer(integer) => self.add_number(integer.rounded(), b""),
            Cell::Boolean(truth) => self.add_text(if truth { b"true" } else { b"false" }, format, true),
            Cell::List(list) => {
                self.lists += 1;
                self.present += 1;
                self.shortest_list = self.shortest_list.min(list.len());
                self.longest_list = self.longest_list.max(list.len());
            }
            Cell::TooLong(limit) => {
                self.present += 1;
                self.first_text.get_or_insert_with(|| (line, format!("more than {limit} bytes of text")));
                self.first_is_number.get_or_insert(false);
                self.many = true;
            }
            Cell::Text(text) => self.add_text(text, format, known),
        }
    }

    /// Counts the rows, of `rows` before this line, in which the column had no cell.
    pub fn catch_up(&mut self, rows: u64, line: u64) {
        let counted = self.present + self.missing;
        if rows > counted {
            self.missing += rows - counted;
            self.first_missing.get_or_insert(line.saturating_sub(rows - counted));
        }
    }

    fn add_missing(&mut self) {
        self.missing += 1;
        self.first_missing.get_or_insert(self.line);
    }

    #[inline]
    fn add_number(&mut self, value: f64, text: &[u8]) {
        self.present += 1;
        self.numbers += 1;
        self.first_is_number.get_or_insert(true);
        self.undefined += u64::from(value.is_nan());
        if f64::from(value as i32) != value {
            // NaN and infinity do not make labels fractions: such a label is a bad row.
            self.fractions |= value.is_finite();
            if !value.is_finite() && self.first_infinite.is_none() {
                self.first_infinite = Some((self.line, if text.is_empty() { value.to_string() } else { quoted(text) }));
            }
            self.first_fraction.get_or_insert((self.line, value));
        }
    }

    fn add_text(&mut self, text: &[u8], format: &CellFormat, known: bool) {
        let trimmed = text.trim_ascii();
        if format.is_missing(trimmed) {
            return self.add_missing();
        }
        if !known {
            if let Some(value) = format.number(trimmed) {
                return self.add_number(value, trimmed);
            }
            if format.is_missing_number(trimmed) {
                return self.add_missing();
            }
            self.commas += u64::from(trimmed.contains(&b',') && parse::number_with(trimmed, b',').is_some());
            if self.first_text.is_none() {
                self.first_text = Some((self.line, quoted(text)));
            }
        }
        if self.present < 64 || self.booleans + self.dates > 0 {
            self.booleans += u64::from(parse::truth(trimmed).is_some());
            match parse::date(trimmed) {
                Some(_) => self.dates += 1,
                None if self.first_undated.is_none() => self.first_undated = Some((self.line, quoted(trimmed))),
                None => {}
            }
        }
        self.present += 1;
        self.first_is_number.get_or_insert(false);
        if !self.many {
            match self.texts.insert(text) {
                Some((at, false)) => self.counts[at] += 1,
                Some((_, true)) => {
                    self.counts.push(1);
                    if let (None, Err(problem)) = (&self.first_invalid, utf8(text)) {
                        self.first_invalid = Some((self.line, problem));
                    }
                    self.many = self.texts.len() > self.most || self.texts.bytes() > MOST_BYTES;
                }
                None => self.many = true,
            }
            if self.many {
                (self.texts, self.counts) = (TokenSet::default(), Vec::new());
            }
        }
    }

    /// The first line with a value that cannot be read as this kind, and what is wrong with it.
    pub fn first_problem(&self, kind: Option<ColumnKind>, strict: bool, integer: bool) -> Option<(u64, String)> {
        let declared = kind;
        let kind = kind.or(self.finish().kind)?;
        let missing =
            || Some((self.first_missing?, "is empty; fill missing values (`missing`), or leave the row or the column out".to_string()));
        let infinite = || {
            let (line, text) = self.first_infinite.as_ref().filter(|(_, text)| strict || !text.eq_ignore_ascii_case("nan"))?;
            Some((*line, not_finite(text)))
        };
        let no_number = || {
            let (line, text) = self.first_text.as_ref()?;
            let remedy = if text.starts_with("more than") { "choose another column" } else { "choose another column or correct the row" };
            let is =
                if text.starts_with("more than") { format!("is no number but {text}") } else { format!("is {text:?}, which is no number") };
            Some((*line, format!("{is}; {remedy}")))
        };
        let no_date = || {
            let (line, text) = self.first_undated.as_ref().filter(|_| declared.is_none())?;
            Some((*line, format!("is {text:?}, which is no date like 2024-12-31; give its `format`, or correct the row")))
        };
        let fraction = || {
            let (line, value) = self.first_fraction.filter(|(_, value)| integer && value.is_finite())?;
            Some((line, format!("is {value}, which is no integer of 32 bits; read it as float")))
        };
        let missing = missing().filter(|_| strict);
        match kind {
            ColumnKind::Number => [missing, infinite(), no_number(), fraction()].into_iter().flatten().min_by_key(|(line, _)| *line),
            ColumnKind::Date => [missing, no_date()].into_iter().flatten().min_by_key(|(line, _)| *line),
            ColumnKind::Boolean => missing,
            ColumnKind::Category | ColumnKind::Text => self.first_invalid.clone(),
            ColumnKind::List => None,
        }
    }

    /// Whether its numbers have a decimal comma.
    pub fn has_decimal_commas(&self) -> bool {
        self.commas > 0 && (self.commas + self.numbers) * 2 > self.present
    }

    /// What the column holds.
    pub fn finish(&self) -> Inferred {
        let is_number = self.numbers * 2 > self.present || self.numbers * 2 == self.present && self.first_is_number == Some(true);
        let repeated = self.texts.len() as u64 * 2 <= self.present - self.numbers;
        let constant = self.texts.len() == 1 && self.missing == 0 && self.numbers == 0;
        let (kind, by_default, reason) = match () {
            () if self.known.is_some() => (self.known, true, ""),
            () if self.present == 0 => (None, false, "no values"),
            () if self.lists > 0 => (Some(ColumnKind::List), true, ""),
            () if is_number => (Some(ColumnKind::Number), true, ""),
            () if self.booleans == self.present => (Some(ColumnKind::Boolean), true, ""),
            () if self.dates * 2 > self.present => (Some(ColumnKind::Date), true, ""),
            () if !self.many && repeated && constant => (Some(ColumnKind::Category), false, "constant"),
            () if !self.many && repeated && self.texts.len() <= MOST_CATEGORIES => (Some(ColumnKind::Category), true, ""),
            () => (Some(ColumnKind::Text), false, "text"),
        };
        let sorted = || {
            let texts = self.texts.iter().map(|text| String::from_utf8_lossy(text).into_owned());
            let mut texts: Vec<(String, u64)> = texts.zip(self.counts.iter().copied()).collect();
            texts.sort_unstable();
            texts.into_iter().unzip()
        };
        let (texts, counts): (Vec<String>, Vec<u64>) = if self.many { Default::default() } else { sorted() };
        // The cells of a column whose format says what it holds were not looked at.
        let only_texts = self.known.is_none()
            && self.missing == 0
            && self.numbers == 0
            && self.lists == 0
            && self.texts.iter().all(|text| str::from_utf8(text).is_ok());
        let valid = match kind {
            Some(ColumnKind::Number) => self.numbers == self.present && self.first_infinite.is_none(),
            Some(ColumnKind::Boolean) => self.booleans == self.present,
            Some(ColumnKind::Date) => self.dates == self.present,
            _ => true,
        };
        Inferred {
            kind,
            whole: !self.fractions,
            missing: self.missing + self.undefined,
            by_default,
            reason,
            texts: (!self.many).then_some(texts),
            has_numbers: self.numbers > 0,
            counts: (!self.many && only_texts).then_some(counts),
            valid,
            shortest_list: self.shortest_list,
            longest_list: self.longest_list,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(cells: &[&str]) -> (Option<ColumnKind>, bool) {
        let mut seen = Inference::new(false);
        cells.iter().for_each(|cell| seen.add(Cell::Text(cell.as_bytes()), &CellFormat::default(), false, 1));
        let found = seen.finish();
        (found.kind, found.by_default)
    }

    #[test]
    fn most_values_decide() {
        assert_eq!(kind(&["1", "2.5", "", "x"]), (Some(ColumnKind::Number), true));
        assert_eq!(kind(&["NA", "7"]), (Some(ColumnKind::Number), true));
        assert_eq!(kind(&["True", "false", ""]), (Some(ColumnKind::Boolean), true));
        assert_eq!(kind(&["2024-01-01", "2024-01-02T03:04:05"]), (Some(ColumnKind::Date), true));
        assert_eq!(kind(&["a", "b", "a", "a"]), (Some(ColumnKind::Category), true));
        assert_eq!(kind(&["a", "b", "c"]), (Some(ColumnKind::Text), false));
        assert_eq!(kind(&["", "  "]), (None, false));
        assert_eq!((kind(&["word", "4"]).0, kind(&["4", "word"]).0), (Some(ColumnKind::Text), Some(ColumnKind::Number)));
    }
}
