//! Stages as named in a configuration file: name, keys and documentation, next to the code.

use crate::cache::Cache;
use crate::dataset::{Dataset, Parallelism, Prefetch};
use crate::ops::Op;
use plimsoll_core::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A stage that a configuration can name. Lists of names, keys, hints and docs are generated from this.
pub struct StageKind {
    /// Its name, which is that of the [`Dataset`] method.
    pub name: &'static str,
    /// Its summary in the documentation.
    pub summary: &'static str,
    /// Its arguments.
    pub keys: &'static [Key],
    /// Whether it counts rows, so that it cannot follow a batch.
    pub counts_rows: bool,
    /// Its effect on batches.
    pub batches: Batches,
    /// Whether it changes the order of rows.
    pub reorders: bool,
    /// Whether there is also a shorthand key outside of the list of stages.
    pub has_short_form: bool,
    /// Its form for validation data.
    pub validation: Validation,
    /// If one of several keys is required: the key to report as missing, and the message.
    pub needs_one_of: Option<(&'static str, &'static str)>,
    pub(crate) build: fn(Dataset, &StageArgs) -> Result<Dataset, String>,
}

/// The effect of a stage on batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// None.
    None,
    /// It creates batches.
    Makes,
    /// It splits batches.
    Undoes,
    /// It groups rows for the batches that follow, which must have the same number of rows.
    GathersFor,
}

/// An argument of a stage.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub kind: KeyKind,
    /// Whether it is required.
    pub need: Need,
    /// Its default, as written in a configuration, if it can be stated.
    pub default: Option<&'static str>,
}

/// Maximum number of rows that a stage buffers. Larger numbers are a mistake; below it, products of bytes cannot
/// overflow.
pub const MAX_ROWS_AT_ONCE: u64 = 1 << 24;

/// The type of an argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyKind {
    /// An integer not less than this.
    Count(u64),
    /// A number of rows that are buffered, from 1 to [`MAX_ROWS_AT_ONCE`].
    RowsAtOnce,
    /// A batch size, at most this; defaults to that of the run.
    BatchRows(u64),
    /// A random seed; defaults to that of the run.
    Seed,
    /// A number.
    Number,
    /// A number or a list of numbers.
    Numbers,
    /// A list of integers.
    Counts,
    /// A string.
    Text,
    /// A Boolean.
    Flag,
    /// A number of bytes, such as `"64MiB"`.
    Size,
    /// One of these strings.
    Choice(&'static [&'static str]),
    /// Operations on a column.
    Ops,
    /// A cache location.
    Cache,
    /// A number of threads.
    Threads,
    /// A number of batches to prefetch.
    Prefetch,
}

/// Whether an argument is required.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// Required; a short description for the error message.
    Required(&'static str),
    /// Optional, but usually given.
    Usual,
    /// Optional.
    Optional,
}

/// The form of a stage of the training data for validation data.
pub enum Validation {
    /// Unchanged: it determines the content of rows.
    Same,
    /// Omitted: it selects, reorders or mixes rows.
    Omitted,
    /// With changed arguments; the text describes the change.
    Changed(&'static str, fn(&mut StageArgs)),
}

/// The value of an argument.
#[derive(Clone)]
pub enum Arg {
    /// An integer.
    Count(u64),
    /// A list of integers.
    Counts(Vec<u64>),
    /// A number.
    Number(f64),
    /// A list of numbers.
    Numbers(Vec<f64>),
    /// A string.
    Text(String),
    /// A Boolean.
    Flag(bool),
    /// A number of bytes.
    Size(Bytes),
    /// Operations on a column.
    Ops(Vec<Arc<dyn Op>>),
    /// A cache location.
    Cache(Cache),
    /// A number of threads.
    Threads(Parallelism),
    /// A number of batches to prefetch.
    Prefetch(Prefetch),
}

/// The arguments of a stage by key. Required ones are present.
#[derive(Clone, Default)]
pub struct StageArgs(BTreeMap<&'static str, Arg>);

impl Key {
    pub(super) const fn required(name: &'static str, kind: KeyKind, what: &'static str) -> Key {
        Key { name, kind, need: Need::Required(what), default: None }
    }

    pub(super) const fn usual(name: &'static str, kind: KeyKind) -> Key {
        Key { name, kind, need: Need::Usual, default: None }
    }

    pub(super) const fn optional(name: &'static str, kind: KeyKind) -> Key {
        Key { name, kind, need: Need::Optional, default: None }
    }

    /// Sets the default.
    pub(super) const fn or(self, default: &'static str) -> Key {
        Key { default: Some(default), ..self }
    }
}

impl StageKind {
    /// The default of each field; a stage overrides what differs.
    pub(super) const DEFAULT: StageKind = StageKind {
        name: "",
        summary: "",
        keys: &[],
        counts_rows: false,
        batches: Batches::None,
        reorders: false,
        has_short_form: false,
        validation: Validation::Same,
        needs_one_of: None,
        build: |data, _| Ok(data),
    };

    /// Its row in the reference table: name, keys, summary, and validation form.
    pub fn reference(&self) -> String {
        let keys = self.keys.iter().map(|key| match (key.need, key.default) {
            (Need::Required(_), _) => format!("`{}`", key.name),
            (_, Some(default)) => format!("[`{} = {default}`]", key.name),
            (_, None) => format!("[`{}`]", key.name),
        });
        let validation = match self.validation {
            Validation::Same => "yes",
            Validation::Omitted => "no",
            Validation::Changed(how, _) => how,
        };
        format!("| `{}` | {} | {} | {validation} |\n", self.name, keys.collect::<Vec<_>>().join(", "), self.summary)
    }

    /// Appends the stage to a data set.
    pub fn apply(&self, data: Dataset, args: &StageArgs) -> Result<Dataset, String> {
        (self.build)(data, args)
    }

    /// Its arguments for validation data; `None` if it is omitted.
    pub fn for_validation(&self, args: &StageArgs) -> Option<StageArgs> {
        match self.validation {
            Validation::Same => Some(args.clone()),
            Validation::Omitted => None,
            Validation::Changed(_, change) => {
                let mut args = args.clone();
                change(&mut args);
                Some(args)
            }
        }
    }
}

/// Formats an entry of a list of stages.
impl fmt::Display for StageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ op = \"{}\"", self.name)?;
        for key in self.keys.iter().filter(|key| key.need != Need::Optional) {
            write!(f, ", {} = …", key.name)?;
        }
        write!(f, " }}")
    }
}

/// Defines getters, which return `None` for a missing argument.
macro_rules! args {
    ($($method:ident, $variant:ident, $type:ty;)*) => {
        impl StageArgs {
            $(pub(super) fn $method(&self, key: &str) -> Option<$type> {
                match self.0.get(key) {
                    Some(Arg::$variant(value)) => Some(value.clone()),
                    _ => None,
                }
            })*
        }
    };
}

args! {
    count, Count, u64;
    counts, Counts, Vec<u64>;
    number, Number, f64;
    numbers, Numbers, Vec<f64>;
    text, Text, String;
    flag, Flag, bool;
    size, Size, Bytes;
    ops, Ops, Vec<Arc<dyn Op>>;
    cache, Cache, Cache;
    threads, Threads, Parallelism;
    prefetch, Prefetch, Prefetch;
}

impl StageArgs {
    /// The column and the operations of a map.
    pub fn mapping(&self) -> Option<(String, Vec<Arc<dyn Op>>)> {
        Some((self.text("column").unwrap_or("x".into()), self.ops("ops")?))
    }

    /// The column that a stage looks at, if it names one.
    pub fn column(&self) -> Option<String> {
        self.text("column")
    }

    /// Inserts or replaces an argument.
    pub fn insert(&mut self, key: &'static str, arg: Arg) {
        self.0.insert(key, arg);
    }

    /// Removes an argument.
    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Whether there is an argument with this key.
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// A required string.
    pub fn name(&self, key: &str) -> String {
        self.text(key).unwrap_or_default()
    }

    pub(super) fn rows(&self, key: &str) -> u64 {
        self.count(key).unwrap_or_default()
    }

    pub(super) fn rows_at_once(&self, key: &str) -> usize {
        self.rows(key) as usize
    }
}
