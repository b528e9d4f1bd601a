//! Cells to numbers. A row is first encoded to few words, one per category, and expanded to the elements of its columns
//! when it is written to a batch; rows in memory are kept in the first form.

use super::bpe::BytePairs;
use super::column::{ColumnKind, Encoding, Fill, FittedColumn, Output, TextOutput};
use super::hash::{fingerprint, siphash};
use super::parse;
use super::tokens::TokenSet;
use plimsoll_core::DType;
use std::sync::Arc;

/// A cell of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Cell<'c> {
    Missing,
    Number(f64),
    /// An integer beyond 2^53, of which not all are f64.
    Integer(LargeInteger),
    Boolean(bool),
    /// Text, to be parsed by the column.
    Text(&'c [u8]),
    /// Numbers as bytes, which need no alignment.
    List(&'c [[u8; 8]]),
    /// A text longer than this many bytes.
    TooLong(usize),
}

/// An integer of 64 bits, with or without a sign.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LargeInteger {
    pub negative: bool,
    pub magnitude: u64,
}

/// Integers up to here are f64 without rounding.
const EXACT: u64 = 1 << 53;

impl<'c> Cell<'c> {
    /// An integer.
    pub fn integer(negative: bool, magnitude: u64) -> Cell<'c> {
        match magnitude <= EXACT {
            true => Cell::Number(if negative { -(magnitude as f64) } else { magnitude as f64 }),
            false => Cell::Integer(LargeInteger { negative, magnitude }),
        }
    }

    /// An integer written as text, if it is beyond 2^53.
    pub fn large_integer(text: &[u8]) -> Option<LargeInteger> {
        let (negative, digits) = match text {
            [b'-', digits @ ..] => (true, digits),
            [b'+', digits @ ..] | digits => (false, digits),
        };
        // Shorter ones are below 2^53, and most numbers are shorter.
        let magnitude = (digits.len() >= 16 && digits.iter().all(u8::is_ascii_digit)).then(|| str::from_utf8(digits).ok()?.parse().ok());
        magnitude.flatten().filter(|magnitude| *magnitude > EXACT).map(|magnitude| LargeInteger { negative, magnitude })
    }
}

impl LargeInteger {
    /// The nearest number.
    pub fn rounded(self) -> f64 {
        if self.negative { -(self.magnitude as f64) } else { self.magnitude as f64 }
    }

    fn digits(self, buffer: &mut [u8; 24]) -> &[u8] {
        digits(self.negative, self.magnitude, buffer)
    }
}

impl Cell<'_> {
    /// Calls `with` with its text, which is empty for a missing value.
    pub fn with_text(&self, with: impl FnOnce(&[u8])) {
        match self {
            Cell::Text(text) => with(text),
            Cell::Number(value) => with(value.to_string().as_bytes()),
            Cell::Integer(integer) => with(integer.digits(&mut [0; 24])),
            Cell::Boolean(truth) => with(truth_text(*truth)),
            Cell::List(list) => with(list.as_flattened()),
            Cell::Missing | Cell::TooLong(_) => with(b""),
        }
    }
}

fn truth_text(truth: bool) -> &'static [u8] {
    if truth { b"true" } else { b"false" }
}

/// A text, which in another encoding would be another category or token.
pub(crate) fn utf8(text: &[u8]) -> Result<&str, String> {
    str::from_utf8(text).map_err(|_| {
        let start = String::from_utf8_lossy(&text[..text.len().min(80)]);
        format!("is {start:?}, which is not UTF-8; save the file as UTF-8, such as with iconv -f LATIN1 -t UTF-8")
    })
}

/// What a format does with the text of cells.
#[derive(Clone, Debug)]
pub(crate) struct CellFormat {
    /// The decimal mark.
    pub decimal: u8,
    /// Texts that mean a missing value, besides none.
    pub missing: Arc<[String]>,
}

impl Default for CellFormat {
    fn default() -> CellFormat {
        CellFormat { decimal: b'.', missing: Arc::new([]) }
    }
}

/// What pandas takes for a missing number.
const MISSING: [&[u8]; 8] = [b"NA", b"N/A", b"n/a", b"#N/A", b"null", b"NULL", b"None", b"<NA>"];

impl CellFormat {
    /// Whether a text means a missing value in any column.
    pub fn is_missing(&self, text: &[u8]) -> bool {
        text.is_empty() || self.missing.iter().any(|missing| missing.as_bytes() == text)
    }

    /// Whether a text means a missing number.
    pub fn is_missing_number(&self, text: &[u8]) -> bool {
        self.is_missing(text) || text[0].is_ascii_alphabetic() | matches!(text[0], b'#' | b'<') && MISSING.contains(&text)
    }

    /// A number.
    pub fn number(&self, text: &[u8]) -> Option<f64> {
        parse::number_with(text, self.decimal)
    }
}

/// How a number becomes a word.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Direct {
    /// As f32.
    Number,
    /// As f32, less a mean and divided by a deviation.
    Standardized(f64, f64),
    /// As i32.
    Integer,
}

impl Direct {
    /// Encodes numbers to words, and returns whether all of them could be.
    pub fn encode<'w>(self, numbers: &[f64], out: impl Iterator<Item = &'w mut [u8; WORD]>) -> bool {
        let mut good = true;
        match self {
            Direct::Integer => out.zip(numbers).for_each(|(out, number)| {
                let integer = *number as i32;
                good &= f64::from(integer) == *number;
                *out = integer.to_ne_bytes();
            }),
            Direct::Number => out.zip(numbers).for_each(|(out, number)| {
                let number = *number as f32;
                good &= number.is_finite();
                *out = number.to_ne_bytes();
            }),
            Direct::Standardized(mean, std) => out.zip(numbers).for_each(|(out, number)| {
                let number = ((number - mean) / std) as f32;
                good &= number.is_finite();
                *out = number.to_ne_bytes();
            }),
        }
        good
    }
}

/// A column and what encoding it takes.
#[derive(Clone, Debug)]
pub(crate) struct Encoder {
    pub column: FittedColumn,
    format: CellFormat,
    /// The vocabulary.
    tokens: TokenSet,
    /// Words of an encoded cell.
    pub words: usize,
    /// Elements of an expanded cell, and their type.
    pub width: usize,
    pub dtype: DType,
}

/// Bytes of an element.
pub(crate) const WORD: usize = 4;

fn float(value: f64) -> [u8; WORD] {
    (value as f32).to_ne_bytes()
}

fn index(index: usize) -> [u8; WORD] {
    (index as i32).to_ne_bytes()
}

impl Encoder {
    pub fn new(column: FittedColumn, format: CellFormat) -> Encoder {
        let (width, dtype) = column.shape();
        let (words, tokens) = match &column.encoding {
            Encoding::Normalize { .. } | Encoding::Rescale { .. } | Encoding::Integer => (width, TokenSet::default()),
            Encoding::Lookup { vocabulary, .. } => (1, vocabulary.iter().map(|token| token.as_bytes()).collect()),
            Encoding::Hash { .. } | Encoding::Discretize { .. } => (1, TokenSet::default()),
            Encoding::Vectorize { vocabulary, .. } => (width, vocabulary.iter().map(|token| token.as_bytes()).collect()),
            Encoding::BytePair { .. } => (width, TokenSet::default()),
            Encoding::List { length, .. } => (length + 1, TokenSet::default()),
        };
        Encoder { column, format, tokens, words, width, dtype }
    }

    /// How numbers become words, if each becomes one and none is filled.
    pub fn direct(&self) -> Option<Direct> {
        match self.column.encoding {
            _ if self.words != 1 || self.column.fill.is_some() || self.column.integers || self.column.kind == ColumnKind::Boolean => None,
            Encoding::Normalize { mean: 0.0, std: 1.0 } => Some(Direct::Number),
            Encoding::Normalize { mean, std } => Some(Direct::Standardized(mean, std)),
            Encoding::Integer => Some(Direct::Integer),
            _ => None,
        }
    }

    /// Whether a text becomes one word.
    pub fn is_category(&self) -> bool {
        matches!(self.column.encoding, Encoding::Lookup { .. } | Encoding::Hash { .. })
    }

    /// How the text of cells is read.
    pub fn format(&self) -> &CellFormat {
        &self.format
    }

    /// Bytes of the vocabulary.
    pub fn held(&self) -> usize {
        let strings =
            |texts: &[String]| texts.iter().map(|text| size_of::<String>() + (text.len() + 8).next_multiple_of(16)).sum::<usize>();
        let encoding = match &self.column.encoding {
            Encoding::Lookup { vocabulary, .. } => strings(vocabulary),
            Encoding::Vectorize { vocabulary, idf, .. } => strings(vocabulary) + size_of_val(&idf[..]),
            Encoding::BytePair { pairs, .. } => pairs.bytes(),
            _ => 0,
        };
        self.tokens.bytes().get() + encoding + size_of::<Encoder>()
    }

    /// Bytes of scratch memory for texts of up to `longest` bytes.
    pub fn scratch_bytes(&self, longest: usize) -> usize {
        match &self.column.encoding {
            Encoding::Vectorize { tokens, .. } => tokens.scratch_bytes(longest),
            Encoding::BytePair { .. } => BytePairs::scratch_bytes(longest),
            _ => 0,
        }
    }

    /// Whether rows of the column vary in length.
    pub fn is_ragged(&self) -> bool {
        matches!(self.column.encoding, Encoding::List { ragged: true, .. })
    }

    /// Encodes a cell, or says what is wrong with it.
    #[inline]
    pub fn encode(&self, cell: Cell<'_>, scratch: &mut [u8], out: &mut [[u8; WORD]]) -> Result<(), String> {
        match &self.column.encoding {
            Encoding::Normalize { mean, std } => {
                let value = self.number(cell)?;
                self.put(value, |value| float((value - mean) / std), out)
            }
            Encoding::Rescale { scale, offset } => {
                let value = self.number(cell)?;
                self.put(value, |value| float(value * scale + offset), out)
            }
            Encoding::Integer => {
                let value = self.number(cell)?.map_or_else(|| self.filled(), Ok)?;
                if f64::from(value as i32) != value {
                    return Err(format!("is {value}, which is no integer of 32 bits; read it as float"));
                }
                out[0] = (value as i32).to_ne_bytes();
                Ok(())
            }
            Encoding::Discretize { boundaries, .. } => {
                let value = self.number(cell)?.map_or_else(|| self.filled(), Ok)? as f32;
                out[0] = index(boundaries.partition_point(|boundary| *boundary <= value));
                Ok(())
            }
            Encoding::Lookup { .. } | Encoding::Hash { .. } => {
                self.category(cell, |token| self.index_of(token)).map(|at| out[0] = index(at))
            }
            Encoding::Vectorize { .. } | Encoding::BytePair { .. } => self.text(cell, scratch, out),
            Encoding::List { length, ragged } => {
                let Cell::List(list) = cell else {
                    return Err(if cell == Cell::Missing { "is missing; leave the row out" } else { "is no list of numbers" }.into());
                };
                if list.len() > *length || !ragged && list.len() != *length {
                    let wanted = if *ragged { "at most " } else { "" };
                    return Err(format!("is a list of {} numbers where {wanted}{length} are read; correct the row", list.len()));
                }
                for (value, out) in
                    list.iter().map(|value| float(f64::from_ne_bytes(*value))).chain(std::iter::repeat([0; WORD])).zip(&mut out[..*length])
                {
                    *out = value;
                }
                out[*length] = (list.len() as u32).to_ne_bytes();
                Ok(())
            }
        }
    }

    fn put(&self, value: Option<f64>, to: impl Fn(f64) -> [u8; WORD], out: &mut [[u8; WORD]]) -> Result<(), String> {
        let missing = value.is_none();
        let value = value.map_or_else(|| self.filled(), Ok)?;
        out[0] = to(value);
        if !f32::from_ne_bytes(out[0]).is_finite() {
            return Err(not_finite(&format!("{value:e}")));
        }
        if let Some(indicator) = out.get_mut(1) {
            *indicator = float(f64::from(u8::from(missing)));
        }
        Ok(())
    }

    /// The value of a missing number.
    fn filled(&self) -> Result<f64, String> {
        match &self.column.fill {
            Some(Fill::Number(value)) => Ok(*value),
            Some(Fill::Text(text)) => {
                self.format.number(text.as_bytes()).ok_or_else(|| format!("is missing, and its fill {text:?} is no number"))
            }
            None => Err("is empty; fill missing values (`missing`), or leave the row or the column out".into()),
        }
    }

    /// The number of a cell; `None` if it is missing and filled.
    fn number(&self, cell: Cell<'_>) -> Result<Option<f64>, String> {
        match self.any_number(cell)? {
            Some(value) if self.column.integers && value.fract() != 0.0 => {
                Err(format!("is {value}, which is no integer; read it as float"))
            }
            Some(value) if self.column.kind == ColumnKind::Boolean && value != 0.0 && value != 1.0 => {
                Err(self.no_number(&value.to_string()))
            }
            value => Ok(value),
        }
    }

    fn any_number(&self, cell: Cell<'_>) -> Result<Option<f64>, String> {
        let text = match cell {
            Cell::Number(value) if value.is_finite() => return Ok(Some(value)),
            Cell::Number(value) if value.is_nan() && self.column.fill.is_some() => return Ok(None),
            Cell::Number(value) => return Err(not_finite(&value.to_string())),
            Cell::Integer(integer) => return Ok(Some(integer.rounded())),
            Cell::Missing => return Ok(None),
            Cell::Boolean(truth) => return Ok(Some(f64::from(u8::from(truth)))),
            Cell::List(_) => return Err("is a list; choose another column".into()),
            Cell::TooLong(limit) => return Err(format!("is no number but more than {limit} bytes of text; choose another column")),
            Cell::Text(text) => text.trim_ascii(),
        };
        let value = match self.column.kind {
            ColumnKind::Boolean => parse::declared_truth(text).map(|truth| f64::from(u8::from(truth))),
            ColumnKind::Date => match &self.column.format {
                Some(format) => parse::formatted_date(text, format),
                None => parse::date(text),
            },
            _ => self.format.number(text),
        };
        match value {
            Some(value) if value.is_finite() => Ok(Some(value)),
            Some(value) if value.is_nan() && self.column.fill.is_some() => Ok(None),
            Some(_) => Err(not_finite(&String::from_utf8_lossy(text))),
            None if self.format.is_missing_number(text) => Ok(None),
            None => Err(self.no_number(&String::from_utf8_lossy(text))),
        }
    }

    fn no_number(&self, text: &str) -> String {
        match self.column.kind {
            ColumnKind::Boolean => format!("is {text:?}, which is neither true nor false; correct the row or read it as a category"),
            ColumnKind::Date => match &self.column.format {
                Some(format) => format!("is {text:?}, which is no date like {format}; correct the row or its `format`"),
                None => format!("is {text:?}, which is no date like 2024-12-31; give its `format`, or correct the row"),
            },
            _ => format!("is {text:?}, which is no number; choose another column or correct the row"),
        }
    }

    /// Calls `with` with the bytes of a category.
    fn category<T>(&self, cell: Cell<'_>, with: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, String> {
        self.category_text(cell, self.is_integers(), with)
    }

    /// The same, with integers written in one way if `integers`.
    pub fn category_text<T>(&self, cell: Cell<'_>, integers: bool, with: impl FnOnce(&[u8]) -> Result<T, String>) -> Result<T, String> {
        let mut buffer = [0; 24];
        let text = match cell {
            Cell::Text(text) if integers && !self.format.is_missing(text.trim_ascii()) => {
                let text = text.trim_ascii();
                if let Some(integer) = Cell::large_integer(text) {
                    return with(integer.digits(&mut buffer));
                }
                let value = self.format.number(text).filter(|value| value.fract() == 0.0 && value.abs() < 9e18);
                let Some(value) = value else {
                    return Err(format!("is {:?}, which is no integer; correct the row", String::from_utf8_lossy(text)));
                };
                digits(value < 0.0, value.abs() as u64, &mut buffer)
            }
            Cell::Text(text) if self.format.is_missing(text) => self.filled_text(),
            Cell::Text(text) => text,
            Cell::Missing => self.filled_text(),
            Cell::Boolean(truth) if integers => [b"0", b"1"][usize::from(truth)],
            Cell::Boolean(truth) => truth_text(truth),
            Cell::Number(value) if value.is_nan() => self.filled_text(),
            Cell::Number(value) if value.fract() == 0.0 && value.abs() < 9e18 => digits(value < 0.0, value.abs() as u64, &mut buffer),
            Cell::Integer(integer) => integer.digits(&mut buffer),
            Cell::Number(value) => return with(value.to_string().as_bytes()),
            Cell::List(_) => return Err("is a list; choose another column".into()),
            Cell::TooLong(limit) => return Err(format!("is more than {limit} bytes of text, which is no category; choose another column")),
        };
        with(text)
    }

    /// Whether a cell can be read, whatever it is encoded to.
    pub fn check(&self, cell: Cell<'_>, fills: bool) -> Result<(), String> {
        match (&self.column.encoding, self.column.kind) {
            (Encoding::Normalize { .. } | Encoding::Integer, ColumnKind::Number | ColumnKind::Boolean | ColumnKind::Date) => {
                let missing = "is empty; fill missing values (`missing`), or leave the row or the column out";
                let value = self.number(cell)?;
                if value.is_none_or(f64::is_nan) && !fills { Err(missing.into()) } else { Ok(()) }
            }
            _ => Ok(()),
        }
    }

    /// Whether a text means a missing value.
    pub fn is_missing(&self, text: &[u8]) -> bool {
        self.format.is_missing(text.trim_ascii())
    }

    /// The number of a cell, if it has one.
    pub fn parsed(&self, cell: Cell<'_>) -> Result<Option<f64>, String> {
        self.number(cell)
    }

    fn is_integers(&self) -> bool {
        matches!(self.column.encoding, Encoding::Lookup { integers: true, .. })
    }

    fn filled_text(&self) -> &[u8] {
        match &self.column.fill {
            Some(Fill::Text(text)) => text.as_bytes(),
            _ => b"",
        }
    }

    /// The index of a category.
    fn index_of(&self, token: &[u8]) -> Result<usize, String> {
        match &self.column.encoding {
            Encoding::Lookup { integers, mask, oov, vocabulary, .. } => {
                let masked = usize::from(mask.is_some());
                if mask.as_ref().is_some_and(|mask| mask.as_bytes() == token) {
                    return Ok(0);
                }
                if let Some(at) = self.tokens.find(token).or_else(|| self.find_other_writing(token)) {
                    return Ok(masked + oov + at);
                }
                utf8(token)?;
                match oov {
                    0 => {
                        let (token, count) = (String::from_utf8_lossy(token), vocabulary.len());
                        Err(format!(
                            "is {token:?}, which is none of its {count} categories; correct the row, or give unknown ones an index (`oov`)"
                        ))
                    }
                    1 => Ok(masked),
                    several if *integers => {
                        let value = str::from_utf8(token).ok().and_then(|text| text.parse::<i64>().ok()).unwrap_or(0);
                        Ok(masked + value.rem_euclid(*several as i64) as usize)
                    }
                    several => Ok(masked + (fingerprint(token) % *several as u64) as usize),
                }
            }
            Encoding::Hash { bins, salt, mask, .. } => {
                utf8(token)?;
                let masked = usize::from(mask.is_some() && *bins > 1);
                if masked > 0 && mask.as_ref().is_some_and(|mask| mask.as_bytes() == token) {
                    return Ok(0);
                }
                let hash = salt.map_or_else(|| fingerprint(token), |salt| siphash(salt, token));
                Ok(masked + (hash % (*bins - masked) as u64) as usize)
            }
            _ => unreachable!("the column is a category"),
        }
    }

    /// The index of an integer that is written with a decimal zero here and without it in the vocabulary, or the
    /// reverse: pandas writes `10.0` instead of `10` as soon as a value of the column is missing.
    fn find_other_writing(&self, token: &[u8]) -> Option<usize> {
        let zero = [self.format.decimal, b'0'];
        let is_integer = |text: &[u8]| {
            let digits = text.strip_prefix(b"-").unwrap_or(text);
            !digits.is_empty() && digits.iter().all(u8::is_ascii_digit)
        };
        if let Some(digits) = token.strip_suffix(&zero[..]) {
            return self.tokens.find(digits).filter(|_| is_integer(digits));
        }
        let mut text = [0; 24];
        let longer = text.get_mut(..token.len() + zero.len()).filter(|_| is_integer(token))?;
        longer[..token.len()].copy_from_slice(token);
        longer[token.len()..].copy_from_slice(&zero);
        self.tokens.find(longer)
    }

    fn text(&self, cell: Cell<'_>, scratch: &mut [u8], out: &mut [[u8; WORD]]) -> Result<(), String> {
        let text = match cell {
            Cell::Text(text) => text,
            Cell::Missing => self.filled_text(),
            Cell::Boolean(truth) => truth_text(truth),
            Cell::TooLong(limit) => return Err(format!("is more than {limit} bytes of text; shorten it or leave the row out")),
            Cell::Number(value) => {
                let text = value.to_string();
                return self.text(Cell::Text(text.as_bytes()), &mut vec![0; self.scratch_bytes(text.len())], out);
            }
            Cell::Integer(integer) => {
                let mut buffer = [0; 24];
                let text = integer.digits(&mut buffer);
                return self.text(Cell::Text(text), &mut vec![0; self.scratch_bytes(text.len())], out);
            }
            Cell::List(_) => return Err("is a list; choose another column".into()),
        };
        let valid = utf8(text)?;
        let mut at = 0;
        match &self.column.encoding {
            Encoding::Vectorize { tokens, output: TextOutput::Int, .. } => {
                tokens.tokens(text, scratch, |token| {
                    // 0 is padding, 1 an unknown token.
                    out[at] = index(self.tokens.find(token).map_or(1, |at| at + 2));
                    at += 1;
                    at < out.len()
                });
                out[at..].fill([0; WORD]);
            }
            Encoding::Vectorize { tokens, output, idf, .. } => {
                out.fill([0; WORD]);
                tokens.tokens(text, scratch, |token| {
                    let at = self.tokens.find(token).map_or(0, |at| at + 1);
                    let sum = f32::from_ne_bytes(out[at]);
                    out[at] = match output {
                        TextOutput::MultiHot => 1.0,
                        TextOutput::TfIdf => sum + idf[at],
                        _ => sum + 1.0,
                    }
                    .to_ne_bytes();
                    true
                });
            }
            Encoding::BytePair { pairs, .. } => {
                pairs.each(valid, scratch, |id| {
                    out[at] = id.to_ne_bytes();
                    at += 1;
                    at < out.len()
                });
                out[at..].fill(pairs.pad().to_ne_bytes());
            }
            _ => unreachable!("the column is a text"),
        }
        Ok(())
    }

    /// Whether a cell is encoded as the index of the one in its elements.
    pub fn is_expanded(&self) -> bool {
        matches!(
            &self.column.encoding,
            Encoding::Lookup { output: Output::OneHot, .. }
                | Encoding::Hash { output: Output::OneHot, .. }
                | Encoding::Discretize { output: Output::OneHot, .. }
        )
    }

    /// Writes the elements of an encoded cell.
    #[inline]
    pub fn expand(&self, words: &[[u8; WORD]], out: &mut [[u8; WORD]]) {
        match self.is_expanded() {
            true => {
                out.fill([0; WORD]);
                out[i32::from_ne_bytes(words[0]) as usize] = 1f32.to_ne_bytes();
            }
            false => out.copy_from_slice(&words[..out.len()]),
        }
    }
}

/// What is wrong with a number.
pub(crate) fn not_finite(text: &str) -> String {
    let remedy =
        if text.eq_ignore_ascii_case("nan") { "fill missing values (`missing`), or leave the row out" } else { "leave the row out" };
    format!("is {text}, which nothing can be trained on; {remedy}")
}

/// An integer as text.
fn digits(negative: bool, magnitude: u64, buffer: &mut [u8; 24]) -> &[u8] {
    let (mut rest, mut at) = (magnitude, buffer.len());
    loop {
        at -= 1;
        buffer[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if negative {
        at -= 1;
        buffer[at] = b'-';
    }
    &buffer[at..]
}
