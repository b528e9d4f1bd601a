//! Stages as a configuration file names them: name, keys, and what it says about each, beside the code that does it.

use crate::cache::Cache;
use crate::dataset::{Dataset, Parallelism, Prefetch};
use crate::ops::Op;
use plimsoll_core::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A stage that a configuration can name. Everything that is said about it elsewhere (lists of names, keys, hints, docs) is read from here.
pub struct StageKind {
    /// Its name, that of the method of [`Dataset`] that adds it.
    pub name: &'static str,
    /// What it does, as the documentation says it.
    pub summary: &'static str,
    /// Its arguments.
    pub keys: &'static [Key],
    /// Whether it counts rows, of which there are none behind a batch.
    pub counts_rows: bool,
    /// What it does to batches.
    pub batches: Batches,
    /// Whether it changes the order of rows.
    pub reorders: bool,
    /// Whether it has a key of its own beside the list of stages.
    pub has_short_form: bool,
    /// What it is for data that is only evaluated.
    pub validation: Validation,
    /// The key that is missing where none of several is given, and what it says then.
    pub needs_one_of: Option<(&'static str, &'static str)>,
    pub(crate) build: fn(Dataset, &StageArgs) -> Result<Dataset, String>,
}

/// What a stage does to batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batches {
    /// Nothing.
    None,
    /// It makes them.
    Makes,
    /// It takes them apart.
    Undoes,
    /// It gathers rows for the batches that follow, of as many rows.
    GathersFor,
}

/// An argument of a stage.
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What it can be.
    pub kind: KeyKind,
    /// Whether it has to be given.
    pub need: Need,
    /// What it is otherwise, as a configuration would write it, if that can be said.
    pub default: Option<&'static str>,
}

/// The most rows that a stage holds at once. More are a mistake; below it, bytes can be multiplied without a thought.
pub const MAX_ROWS_AT_ONCE: u64 = 1 << 24;

/// What an argument can be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyKind {
    /// An integer of at least this.
    Count(u64),
    /// A number of rows that are held at once, from 1 to [`MAX_ROWS_AT_ONCE`].
    RowsAtOnce,
    /// Rows of a batch, at most this many; if not given, those of the run.
    BatchRows(u64),
    /// What random numbers are drawn with; if not given, that of the run.
    Seed,
    /// Any number.
    Number,
    /// A number or several.
    Numbers,
    /// Several integers.
    Counts,
    /// A text.
    Text,
    /// Yes or no.
    Flag,
    /// A number of bytes, such as `"64MiB"`.
    Size,
    /// One of these.
    Choice(&'static [&'static str]),
    /// Operations on a column.
    Ops,
    /// Where rows are cached.
    Cache,
    /// How many threads.
    Threads,
    /// How many batches ahead.
    Prefetch,
}

/// Whether an argument has to be given.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Need {
    /// It has to; what it is, in a few words.
    Required(&'static str),
    /// It usually is.
    Usual,
    /// It need not.
    Optional,
}

/// What a stage of the training data is for data that is only evaluated.
pub enum Validation {
    /// The same: it makes rows what they are.
    Same,
    /// Left out: it chooses, orders or mixes rows.
    Omitted,
    /// The same with other arguments; in what way, in words.
    Changed(&'static str, fn(&mut StageArgs)),
}

/// The value of an argument.
#[derive(Clone)]
pub enum Arg {
    /// An integer.
    Count(u64),
    /// Several.
    Counts(Vec<u64>),
    /// A number.
    Number(f64),
    /// Several.
    Numbers(Vec<f64>),
    /// A text.
    Text(String),
    /// Yes or no.
    Flag(bool),
    /// A number of bytes.
    Size(Bytes),
    /// Operations on a column.
    Ops(Vec<Arc<dyn Op>>),
    /// Where rows are cached.
    Cache(Cache),
    /// How many threads.
    Threads(Parallelism),
    /// How many batches ahead.
    Prefetch(Prefetch),
}

/// The arguments of a stage by their keys. Those that have to be given are there.
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

    /// The same with what it is if it is not given.
    pub(super) const fn or(self, default: &'static str) -> Key {
        Key { default: Some(default), ..self }
    }
}

impl StageKind {
    /// What most stages are; each names what is different.
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

    /// Its row in the documentation: name, keys, what it does, and whether it applies to validation data.
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

    /// Puts the stage behind a data set.
    pub fn apply(&self, data: Dataset, args: &StageArgs) -> Result<Dataset, String> {
        (self.build)(data, args)
    }

    /// What it is for data that is only evaluated, with these arguments.
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

/// How an entry of a list of stages is written.
impl fmt::Display for StageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{ op = \"{}\"", self.name)?;
        for key in self.keys.iter().filter(|key| key.need != Need::Optional) {
            write!(f, ", {} = …", key.name)?;
        }
        write!(f, " }}")
    }
}

/// Reads one kind of argument: `None` where it was not given.
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
    /// Adds or replaces an argument.
    pub fn insert(&mut self, key: &'static str, arg: Arg) {
        self.0.insert(key, arg);
    }

    /// Leaves out an argument.
    pub(super) fn remove(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Whether there is an argument of this name.
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// A text that has to be there.
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
