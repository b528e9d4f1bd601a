//! What is asked of a table: which columns, what they hold, how they become numbers.

use super::column::{ColumnKind, ColumnScale, Fill, FittedColumn, Output, TextOutput};
use super::text::Tokenization;
use plimsoll_core::Bytes;
use std::path::PathBuf;

/// Which columns of a table are read, and how they become the inputs and labels of a row.
///
/// ```
/// use plimsoll_data::source::{ColumnKind, ColumnOptions, Missing, TableSpec};
/// let spec = TableSpec::new()
///     .targets(["income"])
///     .drop(["name"])
///     .missing(Missing::Mean)
///     .column("zip", ColumnOptions { kind: Some(ColumnKind::Category), ..ColumnOptions::default() });
/// ```
#[derive(Clone, Debug, Default)]
pub struct TableSpec {
    pub(crate) features: Option<Vec<String>>,
    pub(crate) drop: Vec<String>,
    pub(crate) rename: Vec<(String, String)>,
    pub(crate) targets: Vec<String>,
    pub(crate) weight: Option<String>,
    pub(crate) inputs: Vec<(String, Vec<String>)>,
    pub(crate) outputs: Vec<(String, Vec<String>)>,
    pub(crate) columns: Vec<(String, ColumnOptions)>,
    pub(crate) missing: Missing,
    pub(crate) indicator: bool,
    pub(crate) missing_values: Vec<String>,
    pub(crate) standardize: Option<Standardize>,
    pub(crate) scales: Option<Vec<ColumnScale>>,
    pub(crate) fitted: Vec<FittedColumn>,
    pub(crate) fitting: FittingMemory,
}

/// The memory for the distinct values of all columns while they are fitted. It is no property of the rows, so it is not
/// part of the text that identifies them.
#[derive(Clone, Copy)]
pub(crate) struct FittingMemory(pub Bytes);

impl Default for FittingMemory {
    fn default() -> FittingMemory {
        FittingMemory(Bytes::mib(32))
    }
}

impl std::fmt::Debug for FittingMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FittingMemory")
    }
}

/// What happens to missing values.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Missing {
    /// A bad row. (A category or a text that is missing is empty.)
    #[default]
    Error,
    /// The mean of the training rows; of categories and texts, the most frequent one.
    Mean,
    /// The most frequent value of the training rows.
    MostFrequent,
    /// This value.
    Constant(Fill),
}

/// Which columns are standardized to mean 0 and standard deviation 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standardize {
    /// Features, and targets that are not integers.
    All,
    /// Features only.
    Features,
}

/// How one column is read. What is not set follows from the table.
#[derive(Clone, Debug, Default)]
pub struct ColumnOptions {
    /// What its cells hold.
    pub kind: Option<ColumnKind>,
    /// Whether numbers are integers, such as classes.
    pub integer: Option<bool>,
    /// The format of its dates, as of `strptime`.
    pub format: Option<String>,
    /// What happens to missing values.
    pub missing: Option<Missing>,
    /// Whether another feature says that a number was missing.
    pub indicator: Option<bool>,
    /// How cells become numbers.
    pub encode: Option<Encode>,
}

/// How cells become numbers.
#[derive(Clone, Debug, PartialEq)]
pub enum Encode {
    /// Zero mean and unit variance, with these statistics or those of the training rows: `Normalization`.
    Normalize(Option<(f64, f64)>),
    /// `value · scale + offset`: `Rescaling`.
    Rescale(f64, f64),
    /// The number as it is.
    AsIs,
    /// The index in a vocabulary: `StringLookup` and `IntegerLookup`.
    Lookup(VocabularySpec, Output),
    /// A hash: `Hashing`.
    Hash {
        /// The number of bins.
        bins: usize,
        /// The key of SipHash; the fingerprint of FarmHash without.
        salt: Option<[u64; 2]>,
        /// The value with index 0.
        mask: Option<String>,
        /// The form of the index.
        output: Output,
    },
    /// The index of a bin, between these boundaries or those of as many quantiles: `Discretization`.
    Discretize {
        /// The boundaries between bins.
        boundaries: Vec<f32>,
        /// The number of bins, if boundaries are fitted.
        bins: usize,
        /// The form of the index.
        output: Output,
    },
    /// The tokens of a text: `TextVectorization`.
    Vectorize {
        /// How a text becomes tokens.
        tokens: Tokenization,
        /// The vocabulary.
        vocabulary: VocabularySpec,
        /// The form of the result.
        output: TextOutput,
        /// The number of indices, for `int`; that of the longest text by default, up to 512.
        length: Option<usize>,
    },
    /// The tokens of a byte-pair encoding.
    BytePair {
        /// A `tokenizer.json`.
        path: PathBuf,
        /// The number of indices; that of the longest text by default, up to 512.
        length: Option<usize>,
    },
}

/// A vocabulary: given, or the most frequent values of the training rows.
#[derive(Clone, Debug, PartialEq)]
pub struct VocabularySpec {
    /// The values by index.
    pub given: Option<Vec<String>>,
    /// The most indices, including those of unknown values and of the mask.
    pub max_tokens: Option<usize>,
    /// The number of indices of unknown values.
    pub oov: usize,
    /// The value with index 0.
    pub mask: Option<String>,
}

impl Default for VocabularySpec {
    fn default() -> VocabularySpec {
        VocabularySpec { given: None, max_tokens: None, oov: 1, mask: None }
    }
}

fn strings<S: Into<String>>(names: impl IntoIterator<Item = S>) -> Vec<String> {
    names.into_iter().map(Into::into).collect()
}

impl TableSpec {
    /// The default: every column that can be encoded is a feature.
    pub fn new() -> TableSpec {
        TableSpec::default()
    }

    /// Selects the features, in this order.
    pub fn features<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> TableSpec {
        self.features = Some(strings(names));
        self
    }

    /// Leaves columns out.
    pub fn drop<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> TableSpec {
        self.drop = strings(names);
        self
    }

    /// Renames columns, given as pairs of old and new name.
    pub fn rename<S: Into<String>>(mut self, names: impl IntoIterator<Item = (S, S)>) -> TableSpec {
        self.rename = names.into_iter().map(|(old, new)| (old.into(), new.into())).collect();
        self
    }

    /// Renames one column.
    pub fn rename_one(mut self, old: impl Into<String>, new: impl Into<String>) -> TableSpec {
        self.rename.push((old.into(), new.into()));
        self
    }

    /// Standardizes columns with these statistics.
    pub fn scales(mut self, scales: impl IntoIterator<Item = ColumnScale>) -> TableSpec {
        self.scales = Some(scales.into_iter().collect());
        self
    }

    /// Sets the columns of `y`.
    pub fn targets<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> TableSpec {
        self.targets = strings(names);
        self
    }

    /// Sets the column of sample weights.
    pub fn weight(mut self, name: impl Into<String>) -> TableSpec {
        self.weight = Some(name.into());
        self
    }

    /// Adds a named input of the model that consists of these columns.
    pub fn input<S: Into<String>>(mut self, name: impl Into<String>, columns: impl IntoIterator<Item = S>) -> TableSpec {
        self.inputs.push((name.into(), strings(columns)));
        self
    }

    /// Adds named labels that consist of these columns, for a model with several outputs.
    pub fn output<S: Into<String>>(mut self, name: impl Into<String>, columns: impl IntoIterator<Item = S>) -> TableSpec {
        self.outputs.push((name.into(), strings(columns)));
        self
    }

    /// Sets how a column is read.
    pub fn column(mut self, name: impl Into<String>, options: ColumnOptions) -> TableSpec {
        self.columns.push((name.into(), options));
        self
    }

    /// Sets what happens to missing values of columns without an option of their own.
    pub fn missing(mut self, missing: Missing) -> TableSpec {
        self.missing = missing;
        self
    }

    /// Adds a feature for each column of numbers with missing values that says where they were.
    pub fn indicator(mut self) -> TableSpec {
        self.indicator = true;
        self
    }

    /// Adds texts that mean a missing value, such as `?`.
    pub fn missing_values<S: Into<String>>(mut self, values: impl IntoIterator<Item = S>) -> TableSpec {
        self.missing_values = strings(values);
        self
    }

    /// Standardizes columns with the statistics of the training rows.
    pub fn standardize(mut self, which: Standardize) -> TableSpec {
        self.standardize = Some(which);
        self
    }

    /// Reads columns as they were fitted in training. Columns that are no features there are not read.
    pub fn fitted(mut self, columns: impl IntoIterator<Item = FittedColumn>) -> TableSpec {
        self.fitted = columns.into_iter().collect();
        self
    }

    /// Limits the memory for the distinct values of all columns while they are fitted, 32 MiB by default. Beyond it,
    /// rare tokens of texts are dropped, and categories are refused.
    pub fn fitting_memory(mut self, bytes: Bytes) -> TableSpec {
        self.fitting = FittingMemory(bytes);
        self
    }

    /// The options of a column; of those that are set twice, the last.
    pub(crate) fn options(&self, name: &str) -> ColumnOptions {
        let all = self.columns.iter().filter(|(known, _)| known == name).map(|(_, options)| options.clone());
        all.reduce(|earlier, later| ColumnOptions {
            kind: later.kind.or(earlier.kind),
            integer: later.integer.or(earlier.integer),
            format: later.format.or(earlier.format),
            missing: later.missing.or(earlier.missing),
            indicator: later.indicator.or(earlier.indicator),
            encode: later.encode.or(earlier.encode),
        })
        .unwrap_or_default()
    }

    /// The name of a column after renaming.
    pub(crate) fn renamed<'n>(&'n self, name: &'n str) -> &'n str {
        self.rename.iter().find(|(old, _)| old == name).map_or(name, |(_, new)| new)
    }

    /// All names of target columns.
    pub(crate) fn target_names(&self) -> Vec<String> {
        self.targets.iter().chain(self.outputs.iter().flat_map(|(_, columns)| columns)).cloned().collect()
    }
}
