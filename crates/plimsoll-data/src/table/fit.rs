//! Fits columns to the training rows: statistics, categories, quantiles, vocabularies.

use super::bpe::BytePairs;
use super::column::{ColumnKind, Encoding, Fill, FittedColumn, TextOutput};
use super::encode::{Cell, CellFormat, Encoder};
use super::infer::Inferred;
use super::spec::{Encode, Missing, VocabularySpec};
use super::text::Tokenization;
use super::tokens::TokenSet;
use crate::DataError;
use plimsoll_core::Bytes;
use std::cmp::Ordering;

/// The minimum memory for the distinct values of a column.
const LEAST_BYTES: Bytes = Bytes::kib(32);

/// Values that quantiles are taken of at a time.
const QUANTILE_VALUES: usize = 1 << 20;

/// The longest sequence of tokens that is chosen without being asked for.
const LONGEST_DEFAULT: usize = 512;

/// A column that is being fitted.
pub(crate) struct Fitting {
    /// The column with what is known of it; its encoding parses cells.
    parser: Encoder,
    encode: Encode,
    missing: Missing,
    /// Vocabulary in alphabetical order, as classes have it.
    sorted: bool,
    lists: (usize, usize),
    // What was seen.
    count: f64,
    mean: f64,
    squares: f64,
    values: Counts,
    quantiles: Quantiles,
    documents: u64,
    longest: usize,
    pairs: Option<BytePairs>,
    scratch: Vec<u8>,
}

/// Distinct values and how often they occurred.
#[derive(Default)]
struct Counts {
    /// The most bytes.
    limit: Bytes,
    tokens: TokenSet,
    counts: Vec<u64>,
    /// In how many rows, and the last of them.
    documents: Vec<(u64, u64)>,
    full: bool,
    /// The most bytes that there were at once.
    peak: Bytes,
}

impl Counts {
    fn add(&mut self, token: &[u8], row: u64) {
        match self.tokens.insert(token) {
            Some((at, true)) => {
                debug_assert_eq!(at, self.counts.len());
                self.counts.push(1);
                self.documents.push((1, row));
                let bytes = self.bytes();
                self.full |= bytes > self.limit;
                self.peak = self.peak.max(bytes);
            }
            Some((at, false)) => {
                self.counts[at] += 1;
                let (documents, last) = &mut self.documents[at];
                if *last != row {
                    (*documents, *last) = (*documents + 1, row);
                }
            }
            None => self.full = true,
        }
    }

    fn bytes(&self) -> Bytes {
        self.tokens.bytes() + Bytes((self.counts.capacity() * 8 + self.documents.capacity() * 16) as u64)
    }

    /// Drops the tokens that occurred once, for a vocabulary that is too large to count.
    fn prune(&mut self) {
        let mut kept = Counts { limit: self.limit, ..Counts::default() };
        for at in (0..self.tokens.len()).filter(|at| self.counts[*at] > 1) {
            kept.tokens.insert(self.tokens.get(at));
            kept.counts.push(self.counts[at]);
            kept.documents.push(self.documents[at]);
        }
        // Without anything to drop, it stays full.
        kept.full = kept.bytes() > kept.limit;
        kept.peak = self.peak.max(self.bytes() + kept.bytes());
        *self = kept;
    }

    /// The indices by falling count; of equal ones the greater value first, as Keras orders them.
    fn by_count(&self, integers: bool) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.tokens.len()).collect();
        let number = |at: usize| str::from_utf8(self.tokens.get(at)).ok().and_then(|text| text.parse::<i64>().ok());
        order.sort_unstable_by(|&a, &b| {
            let tie = if integers { number(b).cmp(&number(a)) } else { self.tokens.get(b).cmp(self.tokens.get(a)) };
            self.counts[b].cmp(&self.counts[a]).then(tie)
        });
        order
    }
}

/// Quantiles as Keras' `Discretization` approximates them.
#[derive(Default)]
struct Quantiles {
    values: Vec<f32>,
    /// Values with their weights.
    summary: Vec<(f32, f32)>,
}

impl Quantiles {
    const EPSILON: f64 = 0.01;

    fn add(&mut self, value: f32) {
        self.values.push(value);
        if self.values.len() == QUANTILE_VALUES {
            self.summarize();
        }
    }

    fn summarize(&mut self) {
        self.values.sort_unstable_by(f32::total_cmp);
        let step = (self.values.len() as f64 * Self::EPSILON).max(1.0);
        let points = self.values.iter().skip((step - 1.0) as usize).step_by((step as usize).max(1));
        let next: Vec<(f32, f32)> = points.map(|value| (*value, step as f32)).collect();
        self.values.clear();
        match self.summary.is_empty() {
            true => self.summary = next,
            false => {
                self.summary.extend(next);
                self.summary.sort_by(|a, b| a.0.total_cmp(&b.0));
                compress(&mut self.summary, Self::EPSILON);
            }
        }
    }

    fn boundaries(&mut self, bins: usize) -> Vec<f32> {
        if !self.values.is_empty() {
            self.summarize();
        }
        compress(&mut self.summary, 1.0 / bins as f64);
        self.summary.pop();
        self.summary.iter().map(|(value, _)| *value).collect()
    }
}

/// Interpolates a summary at equal shares of its weight.
fn compress(summary: &mut Vec<(f32, f32)>, epsilon: f64) {
    if (summary.len() as f64) * epsilon < 1.0 {
        return;
    }
    let mut total = 0.0;
    let sums: Vec<f64> = summary
        .iter()
        .map(|(_, weight)| {
            total += f64::from(*weight);
            total
        })
        .collect();
    let count = (1.0 / epsilon).ceil() as usize;
    let mut before = 0.0;
    let at = |share: f64| {
        let above = sums.partition_point(|sum| sum / total <= share);
        match (above.checked_sub(1), sums.get(above)) {
            (None, _) => (f64::from(summary[0].0), sums[0]),
            (Some(last), None) => (f64::from(summary[last].0), sums[last]),
            (Some(low), Some(high_sum)) => {
                let (from, to) = (sums[low] / total, high_sum / total);
                let part = (share - from) / (to - from);
                let (a, b) = (f64::from(summary[low].0), f64::from(summary[above].0));
                (a + (b - a) * part, sums[low] + (high_sum - sums[low]) * part)
            }
        }
    };
    let new: Vec<(f32, f32)> = (0..count)
        .map(|n| {
            let (value, sum) = at(epsilon + n as f64 * epsilon);
            let weight = sum - before;
            before = sum;
            (value as f32, weight as f32)
        })
        .collect();
    *summary = new;
}

/// Numbers in their order, before texts.
fn by_number(left: &String, right: &String) -> Ordering {
    match (left.parse::<f64>(), right.parse::<f64>()) {
        (Ok(left), Ok(right)) => left.total_cmp(&right),
        (left_number, right_number) => right_number.is_ok().cmp(&left_number.is_ok()).then_with(|| left.cmp(right)),
    }
}

impl Fitting {
    /// Begins to fit a column. `lists` are the lengths of its shortest and longest list.
    pub fn new(
        mut column: FittedColumn,
        encode: Encode,
        missing: Missing,
        sorted: bool,
        lists: (usize, usize),
        format: &CellFormat,
    ) -> Result<Fitting, DataError> {
        // Cells are parsed as numbers where they are counted as numbers.
        column.encoding = Encoding::Normalize { mean: 0.0, std: 1.0 };
        column.fill = Some(Fill::Number(f64::NAN));
        let pairs = match &encode {
            Encode::BytePair { path, .. } => Some(BytePairs::open(path)?),
            _ => None,
        };
        Ok(Fitting {
            parser: Encoder::new(column, format.clone()),
            encode,
            missing,
            sorted,
            lists,
            count: 0.0,
            mean: 0.0,
            squares: 0.0,
            values: Counts { limit: LEAST_BYTES, ..Counts::default() },
            quantiles: Quantiles::default(),
            documents: 0,
            longest: 0,
            pairs,
            scratch: Vec::new(),
        })
    }

    fn wants_mean(&self) -> bool {
        let mean = matches!(self.missing, Missing::Mean) && self.is_number();
        mean || matches!(self.encode, Encode::Normalize(None))
    }

    /// Whether cells are numbers to the encoding.
    fn is_number(&self) -> bool {
        let number = matches!(self.parser.column.kind, ColumnKind::Number | ColumnKind::Boolean | ColumnKind::Date);
        number && !matches!(self.encode, Encode::Lookup(..) | Encode::Hash { .. })
    }

    fn is_missing(&self, cell: &Cell<'_>) -> bool {
        match cell {
            Cell::Missing => true,
            Cell::Number(value) => value.is_nan(),
            Cell::Text(text) => self.parser.is_missing(text),
            _ => false,
        }
    }

    fn wants_most_frequent(&self) -> bool {
        self.missing == Missing::MostFrequent || self.missing == Missing::Mean && !self.is_number()
    }

    /// Whether anything follows from the rows.
    pub fn needs_rows(&self) -> bool {
        let encode = match &self.encode {
            Encode::Lookup(vocabulary, _) => vocabulary.given.is_none(),
            Encode::Discretize { boundaries, .. } => boundaries.is_empty(),
            Encode::Vectorize { vocabulary, length, output, .. } => {
                vocabulary.given.is_none() || *output == TextOutput::TfIdf || *output == TextOutput::Int && length.is_none()
            }
            Encode::BytePair { length, .. } => length.is_none(),
            _ => false,
        };
        encode || self.wants_mean() || self.wants_most_frequent()
    }

    /// Whether distinct values are counted.
    pub fn counts_values(&self) -> bool {
        matches!(self.encode, Encode::Lookup(..) | Encode::Vectorize { .. }) || self.wants_most_frequent()
    }

    /// Sets the memory for distinct values, as one of so many columns that count them in `all`.
    pub fn share_memory(&mut self, all: Bytes, columns: usize) {
        self.values.limit = Bytes(all.0 / columns.max(1) as u64).max(LEAST_BYTES);
    }

    /// The most memory that was used at once. Dropping tokens takes both the old and the new ones for a moment.
    pub fn bytes(&self) -> Bytes {
        let quantiles = self.quantiles.values.capacity() * 4 + self.quantiles.summary.capacity() * 8;
        self.values.peak + Bytes((quantiles + self.scratch.capacity()) as u64)
    }

    /// Whether cells have to be checked, given what was inferred: a column that was read as another kind, or has values
    /// that cannot be read.
    pub fn checks_cells(&self, found: &Inferred) -> bool {
        let column = &self.parser.column;
        let as_inferred = found.kind == Some(column.kind) && column.format.is_none() && found.valid;
        let filled = found.missing == 0 || self.missing != Missing::Error;
        (self.is_number() || self.is_integers()) && !(as_inferred && filled)
    }

    /// Takes categories as they were counted while the column was inferred; `false` if they have to be counted again.
    pub fn take_counts(&mut self, found: &Inferred) -> bool {
        let (Some(texts), Some(counts)) = (&found.texts, &found.counts) else { return false };
        let Encode::Lookup(wanted, _) = &self.encode else { return false };
        if self.is_integers() || wanted.given.is_some() {
            return false;
        }
        for (text, count) in texts.iter().zip(counts) {
            self.values.add(text.as_bytes(), 0);
            if let Some(last) = self.values.counts.last_mut() {
                *last = *count;
            }
        }
        let fits = !self.values.full;
        if !fits {
            self.values = Counts { limit: self.values.limit, ..Counts::default() };
        }
        fits
    }

    /// Whether a cell can be read.
    pub fn check(&self, cell: Cell<'_>) -> Result<(), String> {
        match self.is_number() || self.is_integers() {
            true => self.parser.check(cell, self.missing != Missing::Error),
            false => Ok(()),
        }
    }

    /// Adds a cell of row `row`. A cell that cannot be read is reported when the row is.
    pub fn add(&mut self, cell: Cell<'_>, row: u64) -> Result<(), String> {
        let discretized = matches!(&self.encode, Encode::Discretize { boundaries, .. } if boundaries.is_empty());
        if self.is_number() && (discretized || self.wants_mean() || self.wants_most_frequent()) {
            return self.add_number(cell);
        }
        match &self.encode {
            // Where unknown values have an index, that is theirs.
            Encode::Lookup(wanted, _) if wanted.oov == 0 && self.is_missing(&cell) && matches!(self.missing, Missing::Constant(_)) => {
                self.add_constant(row)
            }
            Encode::Lookup(..) | Encode::Hash { .. } if self.missing != Missing::Error && self.is_missing(&cell) => Ok(()),
            Encode::Hash { .. } if !self.wants_most_frequent() => Ok(()),
            Encode::Lookup(..) | Encode::Hash { .. } => self.add_category(cell, row),
            Encode::Vectorize { tokens, .. } => {
                let (Cell::Text(text), tokens) = (cell, tokens.clone()) else { return Ok(()) };
                self.add_text(text, &tokens, row);
                Ok(())
            }
            Encode::BytePair { .. } => {
                let (Cell::Text(text), Some(pairs)) = (cell, self.pairs.clone()) else { return Ok(()) };
                let mut count = 0;
                self.scratch.resize(self.scratch.len().max(BytePairs::scratch_bytes(text.len())), 0);
                pairs.each(&String::from_utf8_lossy(text), &mut self.scratch, |_| {
                    count += 1;
                    count < LONGEST_DEFAULT
                });
                self.longest = self.longest.max(count);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn add_number(&mut self, cell: Cell<'_>) -> Result<(), String> {
        let value = match cell {
            Cell::Number(value) if value.is_nan() => return Ok(()),
            Cell::Number(value) => value,
            Cell::Missing => return Ok(()),
            cell => match self.parser.parsed(cell)? {
                Some(value) => value,
                None => return Ok(()),
            },
        };
        // Welford's algorithm, so that a large mean does not cancel a small variance.
        self.count += 1.0;
        let step = value - self.mean;
        self.mean += step / self.count;
        self.squares += step * (value - self.mean);
        if matches!(&self.encode, Encode::Discretize { boundaries, .. } if boundaries.is_empty()) {
            self.quantiles.add(value as f32);
        }
        if self.wants_most_frequent() {
            self.values.add(&value.to_le_bytes(), 0);
        }
        Ok(())
    }

    fn add_category(&mut self, cell: Cell<'_>, row: u64) -> Result<(), String> {
        let name = self.parser.column.name.clone();
        let integers = self.is_integers();
        let values = &mut self.values;
        self.parser.category_text(cell, integers, |token| {
            values.add(token, row);
            Ok(())
        })?;
        match values.full {
            true => {
                Err(format!("has more distinct values than are counted in {} (`{name}`); hash it, or give its vocabulary", values.limit))
            }
            false => Ok(()),
        }
    }

    /// Counts the constant of a missing category, as if it had been there.
    fn add_constant(&mut self, row: u64) -> Result<(), String> {
        let Missing::Constant(fill) = &self.missing else { return Ok(()) };
        match self.constant(fill) {
            Fill::Text(text) => self.add_category(Cell::Text(text.as_bytes()), row),
            Fill::Number(_) => Ok(()),
        }
    }

    /// The constant that fills a cell, as a text where the column is one of texts or categories.
    fn constant(&self, fill: &Fill) -> Fill {
        match fill {
            Fill::Number(number) if !self.is_number() => Fill::Text(number.to_string()),
            fill => fill.clone(),
        }
    }

    fn is_integers(&self) -> bool {
        self.parser.column.kind == ColumnKind::Number
    }

    fn add_text(&mut self, text: &[u8], tokens: &Tokenization, row: u64) {
        self.scratch.resize(self.scratch.len().max(tokens.scratch_bytes(text.len())), 0);
        self.documents += 1;
        let (values, mut count) = (&mut self.values, 0);
        tokens.tokens(text, &mut self.scratch, |token| {
            count += 1;
            values.add(token, row);
            true
        });
        if values.full {
            values.prune();
        }
        self.longest = self.longest.max(count);
    }

    /// The fitted column.
    pub fn finish(mut self) -> Result<FittedColumn, String> {
        let name = self.parser.column.name.clone();
        let mut column = self.parser.column.clone();
        column.fill = match &self.missing {
            Missing::Error => None,
            Missing::Constant(fill) => Some(self.constant(fill)),
            Missing::Mean if self.is_number() => Some(Fill::Number(if self.count > 0.0 { self.mean } else { 0.0 })),
            Missing::Mean | Missing::MostFrequent => {
                let most = self.values.by_count(false).first().map(|&at| self.values.tokens.get(at).to_vec());
                most.map(|most| match (self.is_number(), <[u8; 8]>::try_from(&most[..])) {
                    (true, Ok(bytes)) => Fill::Number(f64::from_le_bytes(bytes)),
                    _ => Fill::Text(String::from_utf8_lossy(&most).into_owned()),
                })
            }
        };
        let deviation = (self.squares / self.count.max(1.0)).sqrt();
        column.encoding = match self.encode {
            Encode::AsIs => Encoding::Normalize { mean: 0.0, std: 1.0 },
            Encode::Normalize(Some((mean, std))) => Encoding::Normalize { mean, std },
            Encode::Normalize(None) => Encoding::Normalize { mean: self.mean, std: if deviation > 0.0 { deviation } else { 1.0 } },
            Encode::Rescale(scale, offset) => Encoding::Rescale { scale, offset },
            Encode::Hash { bins, salt, ref mask, output } => Encoding::Hash { bins, salt, mask: mask.clone(), output },
            Encode::Discretize { ref boundaries, output, .. } if !boundaries.is_empty() => {
                Encoding::Discretize { boundaries: boundaries.clone(), output }
            }
            Encode::Discretize { bins, output, .. } => Encoding::Discretize { boundaries: self.quantiles.boundaries(bins), output },
            Encode::Lookup(ref wanted, output) => {
                let integers = self.is_integers();
                let special = wanted.oov + usize::from(wanted.mask.is_some());
                let mut vocabulary = self.vocabulary(wanted, special, integers);
                if self.sorted {
                    match integers {
                        true => vocabulary.sort_by_key(|text| text.parse::<i64>().unwrap_or(0)),
                        false if wanted.given.is_none() => vocabulary.sort_by(by_number),
                        false => vocabulary.sort_unstable(),
                    }
                }
                if vocabulary.is_empty() && !self.values.counts.is_empty() {
                    let most = wanted.max_tokens.unwrap_or(special);
                    return Err(format!(
                        "column `{name}` has no index left for categories: {special} of `max_tokens = {most}` are for unknown values and \
                         the mask; raise it"
                    ));
                }
                if vocabulary.is_empty() {
                    return Err(format!("column `{name}` has no values to make categories of; leave it out"));
                }
                Encoding::Lookup { vocabulary, integers, mask: wanted.mask.clone(), oov: wanted.oov, output }
            }
            Encode::Vectorize { ref tokens, vocabulary: ref wanted, output, length } => {
                let special = 1 + usize::from(output == TextOutput::Int);
                let vocabulary = self.vocabulary(wanted, special, false);
                let mut idf = Vec::new();
                if output == TextOutput::TfIdf {
                    let of = |token: &String| {
                        let documents = self.values.tokens.find(token.as_bytes()).map_or(0, |at| self.values.documents[at].0);
                        (1.0 + self.documents as f32 / (1.0 + documents as f32)).ln()
                    };
                    let known: Vec<f32> = vocabulary.iter().map(of).collect();
                    idf.push(known.iter().sum::<f32>() / known.len().max(1) as f32);
                    idf.extend(known);
                }
                let length = if output == TextOutput::Int { length.unwrap_or(self.longest.clamp(1, LONGEST_DEFAULT)) } else { 0 };
                Encoding::Vectorize { tokens: tokens.clone(), vocabulary, output, length, idf }
            }
            Encode::BytePair { length, .. } => {
                let pairs = self.pairs.take().expect("opened with the column");
                Encoding::BytePair { pairs, length: length.unwrap_or(self.longest.clamp(1, LONGEST_DEFAULT)) }
            }
        };
        if column.kind == ColumnKind::List {
            let (shortest, longest) = self.lists;
            column.encoding = Encoding::List { length: longest.max(1), ragged: shortest != longest };
        }
        Ok(column)
    }

    fn vocabulary(&self, wanted: &VocabularySpec, special: usize, integers: bool) -> Vec<String> {
        if let Some(given) = &wanted.given {
            return given.clone();
        }
        let most = wanted.max_tokens.map_or(usize::MAX, |most| most.saturating_sub(special));
        let text = |at: usize| String::from_utf8_lossy(self.values.tokens.get(at)).into_owned();
        let all = self.values.by_count(integers).into_iter().map(text);
        all.filter(|token| wanted.mask.as_ref() != Some(token)).take(most).collect()
    }
}
