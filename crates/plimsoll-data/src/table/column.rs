//! Columns of a table as they were fitted: what a cell is, how a missing one is filled, and how it becomes numbers.
//! Everything here is a plain value that is stored with the weights of a model.

use super::bpe::BytePairs;
use super::text::Tokenization;
use plimsoll_core::DType;
use serde::{Deserialize, Serialize};

/// The name of the class of unknown values.
const UNKNOWN: &str = "[UNK]";

/// What the cells of a column hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ColumnKind {
    /// Numbers.
    Number,
    /// True and false.
    Boolean,
    /// Dates and times, as days since 1970-01-01.
    Date,
    /// Names or integers of categories.
    Category,
    /// Texts.
    Text,
    /// Lists of numbers.
    List,
}

impl ColumnKind {
    /// Its name in configurations and descriptions.
    pub fn name(self) -> &'static str {
        match self {
            ColumnKind::Number => "number",
            ColumnKind::Boolean => "boolean",
            ColumnKind::Date => "date",
            ColumnKind::Category => "category",
            ColumnKind::Text => "text",
            ColumnKind::List => "list",
        }
    }
}

/// The value of a missing cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// A number.
    Number(f64),
    /// A category or a text.
    Text(String),
}

/// The form of a category.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// Its index, for an embedding.
    Int,
    /// A vector with a one.
    #[default]
    OneHot,
}

/// The form of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextOutput {
    /// The indices of its tokens, padded or cut to one length.
    #[default]
    Int,
    /// Ones for the tokens that occur.
    MultiHot,
    /// How often each token occurs.
    Count,
    /// The same, times the inverse document frequency.
    TfIdf,
}

/// How a cell becomes numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "type")]
pub enum Encoding {
    /// `(value − mean) / std` as f32.
    Normalize {
        /// The mean of the training rows.
        mean: f64,
        /// Their standard deviation; 1 for a constant column.
        std: f64,
    },
    /// `value · scale + offset` as f32.
    Rescale {
        /// The factor.
        scale: f64,
        /// What is added.
        offset: f64,
    },
    /// The integer itself, such as a class, as i32.
    Integer,
    /// The index in a vocabulary, after the indices of unknown values.
    Lookup {
        /// The categories by index.
        vocabulary: Vec<String>,
        /// Whether they are integers.
        #[serde(default)]
        integers: bool,
        /// The value with index 0, if there is one.
        #[serde(default)]
        mask: Option<String>,
        /// How many indices unknown values have; with none they are bad rows.
        oov: usize,
        /// The form of the index.
        output: Output,
    },
    /// A hash.
    Hash {
        /// The number of bins.
        bins: usize,
        /// The key of SipHash; the fingerprint of FarmHash without.
        #[serde(default)]
        salt: Option<[u64; 2]>,
        /// The value with index 0, if there is one.
        #[serde(default)]
        mask: Option<String>,
        /// The form of the index.
        output: Output,
    },
    /// The index of the bin that a number is in.
    Discretize {
        /// The boundaries between bins, in order.
        boundaries: Vec<f32>,
        /// The form of the index.
        output: Output,
    },
    /// The tokens of a text.
    Vectorize {
        /// How a text becomes tokens.
        tokens: Tokenization,
        /// The tokens by index, after those of padding (for `int`) and of unknown tokens.
        vocabulary: Vec<String>,
        /// The form of the result.
        output: TextOutput,
        /// The number of indices, for `int`.
        #[serde(default)]
        length: usize,
        /// The inverse document frequencies, for `tf_idf`: of unknown tokens, then by index.
        #[serde(default)]
        idf: Vec<f32>,
    },
    /// The tokens of a byte-pair encoding.
    BytePair {
        /// The vocabulary and the merges.
        pairs: BytePairs,
        /// The number of indices.
        length: usize,
    },
    /// A list of numbers.
    List {
        /// The longest list.
        length: usize,
        /// Whether lists may be shorter.
        ragged: bool,
    },
}

/// The mean and standard deviation that a column is standardized with.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ColumnScale {
    /// The name of the column.
    pub name: String,
    /// The mean of the training rows.
    pub mean: f64,
    /// The standard deviation of the training rows; 1 for a constant column.
    pub std: f64,
}

/// A column of a table as it was fitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FittedColumn {
    /// Its name in the file.
    pub name: String,
    /// What its cells hold.
    pub kind: ColumnKind,
    /// The format of its dates, if it is not ISO 8601.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// The value of a missing cell; without one it is a bad row, or the empty category.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fill: Option<Fill>,
    /// Whether another feature says that the cell was missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub indicator: bool,
    /// Whether its numbers are declared to be integers; others are bad rows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub integers: bool,
    /// How a cell becomes numbers.
    pub encoding: Encoding,
}

impl FittedColumn {
    /// A column of numbers as they are.
    pub fn number(name: impl Into<String>) -> FittedColumn {
        let encoding = Encoding::Normalize { mean: 0.0, std: 1.0 };
        FittedColumn { name: name.into(), kind: ColumnKind::Number, format: None, fill: None, indicator: false, integers: false, encoding }
    }

    /// Whether something was fitted to rows, such as a mean or a vocabulary.
    pub fn is_fitted(&self) -> bool {
        match &self.encoding {
            Encoding::Normalize { mean, std } => (*mean, *std) != (0.0, 1.0) || self.fill.is_some(),
            Encoding::Integer | Encoding::Rescale { .. } | Encoding::List { .. } => self.fill.is_some(),
            _ => true,
        }
    }

    /// Elements of the encoded column, and their type.
    pub fn shape(&self) -> (usize, DType) {
        let of = |output: Output, size: usize| match output {
            Output::Int => (1, DType::I32),
            Output::OneHot => (size, DType::F32),
        };
        match &self.encoding {
            Encoding::Normalize { .. } | Encoding::Rescale { .. } => (1 + usize::from(self.indicator), DType::F32),
            Encoding::Integer => (1, DType::I32),
            Encoding::Lookup { output, .. } | Encoding::Hash { output, .. } | Encoding::Discretize { output, .. } => {
                of(*output, self.categories().unwrap_or(1))
            }
            Encoding::Vectorize { output: TextOutput::Int, length, .. } | Encoding::BytePair { length, .. } => (*length, DType::I32),
            Encoding::Vectorize { .. } => (self.categories().unwrap_or(1), DType::F32),
            Encoding::List { length, .. } => (*length, DType::F32),
        }
    }

    /// The number of indices, where the column becomes indices: the vocabulary of an embedding.
    pub fn categories(&self) -> Option<usize> {
        Some(match &self.encoding {
            Encoding::Lookup { vocabulary, mask, oov, .. } => vocabulary.len() + oov + usize::from(mask.is_some()),
            Encoding::Hash { bins, .. } => *bins,
            Encoding::Discretize { boundaries, .. } => boundaries.len() + 1,
            Encoding::Vectorize { vocabulary, output, .. } => vocabulary.len() + 1 + usize::from(*output == TextOutput::Int),
            Encoding::BytePair { pairs, .. } => pairs.len(),
            _ => return None,
        })
    }

    /// The names of its classes by index, if it is a label of classes; unknown values and the mask have indices too.
    pub fn class_names(&self) -> Vec<String> {
        match &self.encoding {
            Encoding::Lookup { vocabulary, mask, oov, .. } => {
                mask.iter().cloned().chain((0..*oov).map(|_| UNKNOWN.to_string())).chain(vocabulary.iter().cloned()).collect()
            }
            Encoding::Integer if self.kind == ColumnKind::Boolean => vec!["false".to_string(), "true".to_string()],
            _ => Vec::new(),
        }
    }

    /// What maps its encoded numbers back: they are `value · scale + offset` of these, as `(offset, scale)`.
    pub fn inverse(&self) -> (f64, f64) {
        match self.encoding {
            Encoding::Normalize { mean, std } => (mean, std),
            Encoding::Rescale { scale, offset } if scale != 0.0 => (-offset / scale, 1.0 / scale),
            _ => (0.0, 1.0),
        }
    }

    /// The encoding in a few words, if it is more than the number itself.
    pub fn describe(&self) -> Option<String> {
        let mut words = Vec::new();
        let form = |output: &Output| if *output == Output::OneHot { "one-hot" } else { "index" };
        match &self.encoding {
            Encoding::Normalize { mean, std } if (*mean, *std) != (0.0, 1.0) => words.push("standardized".to_string()),
            Encoding::Normalize { .. } | Encoding::Integer => {}
            Encoding::Rescale { scale, offset } => words.push(format!("rescaled by {scale} + {offset}")),
            Encoding::Lookup { vocabulary, output, .. } => words.push(format!("{} categories, {}", vocabulary.len(), form(output))),
            Encoding::Hash { bins, output, .. } => words.push(format!("hashed to {bins} bins, {}", form(output))),
            Encoding::Discretize { boundaries, output } => words.push(format!("{} bins, {}", boundaries.len() + 1, form(output))),
            Encoding::Vectorize { vocabulary, length, output: TextOutput::Int, .. } => {
                words.push(format!("text, {} tokens of {}", length, vocabulary.len()));
            }
            Encoding::Vectorize { vocabulary, .. } => words.push(format!("text, bag of {} tokens", vocabulary.len())),
            Encoding::BytePair { pairs, length } => words.push(format!("text, {length} tokens of {}", pairs.len())),
            Encoding::List { length, ragged } => words.push(format!("list of {}{length}", if *ragged { "up to " } else { "" })),
        }
        if matches!(self.kind, ColumnKind::Date | ColumnKind::Boolean) {
            words.insert(0, self.kind.name().to_string());
        }
        match &self.fill {
            Some(Fill::Number(number)) => words.push(format!("missing → {}", short(*number))),
            Some(Fill::Text(text)) => words.push(format!("missing → {text:?}")),
            None => {}
        }
        if self.indicator {
            words.push("with indicator".to_string());
        }
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// A number with at most four digits after the point.
fn short(number: f64) -> String {
    let text = format!("{number:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}
