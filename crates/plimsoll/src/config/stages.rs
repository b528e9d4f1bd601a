//! `stages = [{ op = "filter", … }, { op = "shuffle" }, …]`: what is done to rows, in the order it is written.

use super::data::{CACHES, cache, parallelism, prefetch, size};
use super::row_ops::{self, RowOp, operations};
use super::short::{CUTMIX, MIXUP, mixed};
use crate::error::{Error, Result};
use crate::reader::{Reader, choose};
use plimsoll_core::Bytes;
use plimsoll_data::ops::Op;
use plimsoll_data::{Cache, Condition, Dataset, Mix, PadTo, Parallelism, Prefetch, Relation, Shuffle};
use std::path::Path;
use std::sync::Arc;
use toml::Value;

/// One entry of the list, with its place and name as errors tell them.
#[derive(Clone)]
pub(super) struct Stage {
    name: String,
    what: What,
}

/// What an entry says; each is a method of [`Dataset`] with its arguments.
#[derive(Clone)]
enum What {
    Map { column: String, ops: Vec<Arc<dyn Op>> },
    Filter(Condition),
    TakeWhile(Condition),
    Shuffle(Shuffle, Option<Bytes>),
    Skip(u64),
    Take(u64),
    Shard(u64, u64),
    Repeat(u64),
    Enumerate(String),
    Window { size: usize, shift: usize, stride: usize },
    Unbatch,
    Buckets { column: String, bounds: Vec<i64>, rows: usize },
    IgnoreErrors(u64),
    Cache(Cache),
    Cardinality(u64),
    Batch { rows: usize, padded: Option<(PadTo, f32)>, drop_remainder: bool },
    Rebatch(usize),
    Mix(Mix),
    Prefetch(Prefetch),
    Parallelism(Parallelism),
    MaxItem(Bytes),
    Deterministic(bool),
}

#[derive(Clone, Copy, PartialEq)]
enum Name {
    Map,
    Filter,
    TakeWhile,
    Shuffle,
    Skip,
    Take,
    Shard,
    Repeat,
    Enumerate,
    Window,
    Unbatch,
    Buckets,
    IgnoreErrors,
    Cache,
    Cardinality,
    Batch,
    PaddedBatch,
    Rebatch,
    Mixup,
    Cutmix,
    Prefetch,
    Parallelism,
    MaxItem,
    Deterministic,
    Row(&'static RowOp),
}

const STAGES: [(&str, Name); 24] = [
    ("map", Name::Map),
    ("filter", Name::Filter),
    ("take_while", Name::TakeWhile),
    ("shuffle", Name::Shuffle),
    ("skip", Name::Skip),
    ("take", Name::Take),
    ("shard", Name::Shard),
    ("repeat", Name::Repeat),
    ("enumerate", Name::Enumerate),
    ("window", Name::Window),
    ("unbatch", Name::Unbatch),
    ("bucket_by_length", Name::Buckets),
    ("ignore_errors", Name::IgnoreErrors),
    ("cache", Name::Cache),
    ("cardinality", Name::Cardinality),
    ("batch", Name::Batch),
    ("padded_batch", Name::PaddedBatch),
    ("rebatch", Name::Rebatch),
    ("mixup", Name::Mixup),
    ("cutmix", Name::Cutmix),
    ("prefetch", Name::Prefetch),
    ("parallelism", Name::Parallelism),
    ("max_item", Name::MaxItem),
    ("deterministic", Name::Deterministic),
];

/// The keys of `[data]` that say in short what a list says at a place of its own, and how a list says it.
const SHORT: [(&str, &str); 15] = [
    ("map", "its operations"),
    ("shuffle", "{ op = \"shuffle\" }"),
    ("skip", "{ op = \"skip\", rows = … }"),
    ("take", "{ op = \"take\", rows = … }"),
    ("shard", "{ op = \"shard\", count = …, index = … }"),
    ("repeat", "{ op = \"repeat\", times = … }"),
    ("ignore_errors", "{ op = \"ignore_errors\", cap = … }"),
    ("cache", "{ op = \"cache\", in = … }"),
    ("drop_remainder", "{ op = \"batch\", drop_remainder = true }"),
    ("mixup", "{ op = \"mixup\" }"),
    ("cutmix", "{ op = \"cutmix\" }"),
    ("prefetch", "{ op = \"prefetch\", batches = … }"),
    ("parallelism", "{ op = \"parallelism\", threads = … }"),
    ("max_item", "{ op = \"max_item\", bytes = … }"),
    ("deterministic", "{ op = \"deterministic\", is = false }"),
];

/// What entries take over from around the list.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    /// Where relative paths begin.
    pub folder: &'a Path,
    /// What lots are drawn with where an entry does not say.
    pub seed: u64,
    /// Rows of a batch, whatever the list says: `train.batch`, or `--batch`.
    pub batch: Option<usize>,
    /// Rows of a batch where the list does not say: `data.batch`.
    pub beside: Option<usize>,
    /// Rows of a batch where nothing is said.
    pub usual: usize,
}

impl Around<'_> {
    /// Rows of a batch if no entry says how many.
    pub fn rows(&self) -> usize {
        self.batch.or(self.beside).unwrap_or(self.usual)
    }
}

/// The list of a table, if it has one.
pub(super) fn read(table: &Reader<'_>, around: Around<'_>) -> Result<Option<Vec<Stage>>> {
    let Some(entries) = table.sections("stages")? else { return Ok(None) };
    for (short, how) in SHORT {
        if table.value(short).is_some() {
            let (key, list) = (table.name(short), table.name("stages"));
            return Err(Error::Config(format!("`{key}` has no place beside `{list}`: write {how} into the list instead")));
        }
    }
    let kinds = entries.iter().map(named).collect::<Result<Vec<_>>>()?;
    // What is said for the whole run is said of the batches that come out, not of those that are taken apart again.
    let last = kinds.iter().rposition(|(kind, _)| matches!(kind, Name::Batch | Name::PaddedBatch | Name::Rebatch | Name::Unbatch));
    let last = last.filter(|last| kinds[*last].0 != Name::Unbatch);
    let come_out = last.map_or(Ok(around.rows()), |last| rows(&entries[last], around))?;
    let mut stages = Vec::with_capacity(entries.len());
    for (index, (entry, (kind, op))) in entries.into_iter().zip(kinds).enumerate() {
        let around = match kind {
            Name::Buckets => Around { beside: None, usual: come_out, ..around },
            _ if Some(index) == last => around,
            _ => Around { batch: None, beside: None, ..around },
        };
        let what = stage(&entry, kind, around)?;
        stages.push(Stage { name: format!("`{}` ({op})", entry.path()), what });
        entry.finish()?;
    }
    Ok(Some(stages))
}

/// Which stage an entry is, and its name.
fn named<'a>(entry: &Reader<'a>) -> Result<(Name, &'a str)> {
    let Some(op) = entry.text("op")? else { return Err(entry.missing("op", "which stage, such as \"shuffle\"")) };
    let no_stage = |why: &str| Err(Error::Config(format!("`{}` is \"{op}\", {why}", entry.name("op"))));
    match op {
        "flat_map" => return no_stage("which needs a program: `Dataset::flat_map` is given code that makes rows of a row"),
        "zip" | "concatenate" | "sample_from" | "interleave" => {
            return no_stage("which puts several sources together: make it the `source`, with `parts` that have stages of their own");
        }
        _ => {}
    }
    let rows = row_ops::names().map(|(name, row)| (name, Name::Row(row)));
    let names: Vec<(&'static str, Name)> = STAGES.into_iter().chain(rows).collect();
    Ok((choose(&entry.name("op"), op, &names)?, op))
}

/// Whether rows that cannot be read are left out somewhere in a list, which sources that look at all rows have to know.
pub(super) fn leave_out_errors(table: &Reader<'_>) -> bool {
    let entries = table.value("stages").and_then(Value::as_array);
    entries.into_iter().flatten().any(|entry| entry.get("op").and_then(Value::as_str) == Some("ignore_errors"))
}

fn stage(entry: &Reader<'_>, kind: Name, around: Around<'_>) -> Result<What> {
    let seed = || Ok::<_, Error>(entry.count("seed", 0)?.unwrap_or(around.seed));
    let needed = |key: &'static str, least: u64, what: &str| entry.count(key, least)?.ok_or_else(|| entry.missing(key, what));
    Ok(match kind {
        Name::Row(row) => {
            let (column, op) = row.read(entry, around.seed)?;
            What::Map { column, ops: vec![op] }
        }
        Name::Map => {
            let column = entry.text("column")?.unwrap_or("x").to_string();
            What::Map { column, ops: operations(entry, "ops", around.seed)? }
        }
        Name::Filter => What::Filter(condition(entry)?),
        Name::TakeWhile => What::TakeWhile(condition(entry)?),
        Name::Shuffle => What::Shuffle(Shuffle::seed(seed()?), size(entry, "buffer")?),
        Name::Skip => What::Skip(needed("rows", 0, "how many rows are left out")?),
        Name::Take => What::Take(needed("rows", 1, "how many rows are kept")?),
        Name::Shard => {
            What::Shard(needed("count", 1, "how many parts there are")?, needed("index", 0, "which part this is, counted from 0")?)
        }
        Name::Repeat => What::Repeat(needed("times", 1, "how often an epoch has each row")?),
        Name::Enumerate => {
            let column =
                entry.text("column")?.ok_or_else(|| entry.missing("column", "what the column of numbers is called, such as \"n\""))?;
            What::Enumerate(column.to_string())
        }
        Name::Window => {
            let size = at_once(entry, "size")?.ok_or_else(|| entry.missing("size", "how many rows become one"))?;
            What::Window { size, shift: at_once(entry, "shift")?.unwrap_or(size), stride: at_once(entry, "stride")?.unwrap_or(1) }
        }
        Name::Unbatch => What::Unbatch,
        Name::Buckets => buckets(entry, around)?,
        Name::IgnoreErrors => What::IgnoreErrors(needed("cap", 0, "how many rows of an epoch may be left out")?),
        Name::Cache => {
            let cache = cache(entry, "in", around.folder)?;
            entry.check_keys()?;
            What::Cache(cache.ok_or_else(|| entry.missing("in", CACHES))?)
        }
        Name::Cardinality => What::Cardinality(needed("rows", 0, "how many rows an epoch has")?),
        Name::Batch => What::Batch { rows: rows(entry, around)?, padded: None, drop_remainder: drop_remainder(entry)? },
        Name::PaddedBatch => {
            let to = entry.choice("to", &[("declared", PadTo::Declared), ("longest", PadTo::Longest)])?.unwrap_or(PadTo::Declared);
            let value = entry.number("value")?.unwrap_or(0.0) as f32;
            What::Batch { rows: rows(entry, around)?, padded: Some((to, value)), drop_remainder: drop_remainder(entry)? }
        }
        Name::Rebatch => What::Rebatch(rows(entry, around)?),
        Name::Mixup => What::Mix(mixed(entry, Mix::up, MIXUP, around.seed)?),
        Name::Cutmix => What::Mix(mixed(entry, Mix::cut, CUTMIX, around.seed)?),
        Name::Prefetch => What::Prefetch(prefetch(entry, "batches")?),
        Name::Parallelism => What::Parallelism(parallelism(entry, "threads")?),
        Name::MaxItem => What::MaxItem(size(entry, "bytes")?.ok_or_else(|| entry.missing("bytes", "a size such as \"64MiB\""))?),
        Name::Deterministic => {
            What::Deterministic(entry.flag("is")?.ok_or_else(|| entry.missing("is", "whether batches come in the order of their rows"))?)
        }
    })
}

/// What is asked about a column; all that is said has to hold.
fn condition(entry: &Reader<'_>) -> Result<Condition> {
    const KEYS: [(&str, &str, Relation); 4] = [
        ("below", "length_below", Relation::Below),
        ("above", "length_above", Relation::Above),
        ("at_least", "length_at_least", Relation::AtLeast),
        ("at_most", "length_at_most", Relation::AtMost),
    ];
    let column = entry.text("column")?.ok_or_else(|| entry.missing("column", "which column is looked at"))?;
    let everything = Condition::on(column);
    let mut condition = everything.clone();
    // No number at all is nothing that could hold.
    let numbers = |key| Ok::<_, Error>(entry.exact_numbers(key)?.filter(|values| !values.is_empty()));
    if let Some(values) = numbers("is")? {
        condition = condition.is(values);
    }
    if let Some(values) = numbers("not")? {
        condition = condition.is_not(values);
    }
    for (number, length, relation) in KEYS {
        if let Some(than) = entry.number(number)? {
            condition = condition.number(relation, than);
        }
        if let Some(than) = entry.count(length, 0)? {
            condition = condition.length(relation, than);
        }
    }
    if condition == everything {
        entry.check_keys()?;
        let keys = "is, not, below, above, at_least, at_most, or the same of its length, such as length_below";
        return Err(entry.missing("is", &format!("what has to hold for `{column}`: {keys}")));
    }
    Ok(condition)
}

fn buckets(entry: &Reader<'_>, around: Around<'_>) -> Result<What> {
    let column = entry.text("column")?.ok_or_else(|| entry.missing("column", "which column is looked at"))?.to_string();
    let bounds = entry.counts("bounds")?.filter(|bounds| !bounds.is_empty());
    let bounds = bounds.ok_or_else(|| entry.missing("bounds", "the lengths at which a bucket begins, such as [16, 32, 64]"))?;
    at_once(entry, "rows")?;
    Ok(What::Buckets { column, bounds: bounds.into_iter().map(|bound| bound as i64).collect(), rows: rows(entry, around)? })
}

/// A number of rows that are held at once. Past the limit it is a mistake; below it bytes can be multiplied without a thought.
fn at_once(entry: &Reader<'_>, key: &'static str) -> Result<Option<usize>> {
    const MOST: u64 = 1 << 24;
    match entry.count(key, 1)? {
        Some(rows) if rows > MOST => Err(Error::Config(format!("`{}` is {rows}, but should be at most {MOST}", entry.name(key)))),
        rows => Ok(rows.map(|rows| rows as usize)),
    }
}

/// Rows of a batch: what is said for the run, then what the entry says, then what is said beside the list.
fn rows(entry: &Reader<'_>, around: Around<'_>) -> Result<usize> {
    match (entry.count("rows", 1)?, around.beside) {
        (Some(_), Some(_)) => {
            let what = format!("`{}` and `data.batch` both say how many rows a batch has; leave one of them out", entry.name("rows"));
            Err(Error::Config(what))
        }
        (Some(rows), None) => Ok(around.batch.unwrap_or(rows as usize)),
        (None, _) => Ok(around.rows()),
    }
}

fn drop_remainder(entry: &Reader<'_>) -> Result<bool> {
    Ok(entry.flag("drop_remainder")?.unwrap_or(false))
}

/// Puts rows through a list. What a stage makes wrong is told with its place in it.
pub(super) fn apply(stages: &[Stage], rows: Dataset) -> Result<Dataset> {
    rows.output_schema()?;
    stages.iter().try_fold(rows, |rows, stage| {
        if rows.batch_size().is_some() && stage.what.counts_rows() {
            let what = "counts rows and stands after the batch; put it before, or put { op = \"unbatch\" } between";
            return Err(Error::Config(format!("{} {what}", stage.name)));
        }
        if let What::Shuffle(_, Some(buffer)) = stage.what {
            let row = rows.output_schema()?.row_bytes();
            if buffer.0 < 2 * row.0.max(1) {
                let what = format!("with a buffer of {buffer} leaves rows as they are: it takes two of {row} at least");
                return Err(Error::Config(format!("{} {what}", stage.name)));
            }
        }
        let rows = stage.what.onto(rows);
        rows.output_schema().map_err(|error| Error::Config(format!("{}: {error}", stage.name)))?;
        Ok(rows)
    })
}

/// The stages of what is learnt from that make a row what it is, for rows that are measured. What chooses, orders or mixes rows is left out; all
/// batches are measured, whole or not; and what is kept in a file is kept in memory, since the file has other rows.
pub(super) fn for_validation(stages: &[Stage]) -> Vec<Stage> {
    let kept = |what: &What| match what {
        What::Map { .. } | What::Filter(_) | What::Enumerate(_) | What::Window { .. } | What::Unbatch | What::Rebatch(_) => {
            Some(what.clone())
        }
        What::Prefetch(_) | What::Parallelism(_) | What::MaxItem(_) => Some(what.clone()),
        What::Batch { rows, padded, .. } => Some(What::Batch { rows: *rows, padded: *padded, drop_remainder: false }),
        What::Cache(Cache::Auto) => Some(what.clone()),
        What::Cache(_) => Some(What::Cache(Cache::Memory)),
        What::Shuffle(..)
        | What::Skip(_)
        | What::Take(_)
        | What::TakeWhile(_)
        | What::Shard(..)
        | What::Repeat(_)
        | What::Buckets { .. } => None,
        What::IgnoreErrors(_) | What::Cardinality(_) | What::Mix(_) | What::Deterministic(_) => None,
    };
    stages.iter().filter_map(|stage| Some(Stage { name: stage.name.clone(), what: kept(&stage.what)? })).collect()
}

/// Takes out of a list what changes the order of rows, so that predictions can be told apart by their place.
pub(super) fn in_source_order(stages: &mut Vec<Value>) {
    let reorders =
        |entry: &Value| matches!(entry.get("op").and_then(Value::as_str), Some("shuffle" | "bucket_by_length" | "deterministic"));
    stages.retain(|entry| !reorders(entry));
}

impl What {
    /// Whether it means rows, of which batches have none to count.
    fn counts_rows(&self) -> bool {
        match self {
            What::Filter(_) | What::TakeWhile(_) | What::Shuffle(..) | What::Skip(_) | What::Take(_) | What::Shard(..) => true,
            What::Repeat(_) | What::Enumerate(_) | What::Window { .. } | What::Buckets { .. } | What::IgnoreErrors(_) => true,
            What::Map { .. } | What::Unbatch | What::Cache(_) | What::Cardinality(_) | What::Batch { .. } | What::Rebatch(_) => false,
            What::Mix(_) | What::Prefetch(_) | What::Parallelism(_) | What::MaxItem(_) | What::Deterministic(_) => false,
        }
    }

    fn onto(&self, data: Dataset) -> Dataset {
        match self.clone() {
            What::Map { column, ops } => data.map(&column, ops),
            What::Filter(condition) => data.filter_where(condition),
            What::TakeWhile(condition) => data.take_while_where(condition),
            What::Shuffle(shuffle, Some(buffer)) => data.shuffle_buffer(shuffle, buffer),
            What::Shuffle(shuffle, None) => data.shuffle(shuffle),
            What::Skip(rows) => data.skip(rows),
            What::Take(rows) => data.take(rows),
            What::Shard(count, index) => data.shard(count, index),
            What::Repeat(times) => data.repeat(times),
            What::Enumerate(column) => data.enumerate(column),
            What::Window { size, shift, stride } => data.window(size, shift, stride),
            What::Unbatch => data.unbatch(),
            What::Buckets { column, bounds, rows } => data.bucket_by_length(column, bounds, rows),
            What::IgnoreErrors(cap) => data.ignore_errors(cap),
            What::Cache(cache) => data.cache(cache),
            What::Cardinality(rows) => data.assert_cardinality(rows),
            What::Batch { rows, padded, drop_remainder } => {
                let data = match padded {
                    Some((to, value)) => data.padded_batch(rows, to, value),
                    None => data.batch(rows),
                };
                if drop_remainder { data.drop_remainder() } else { data }
            }
            What::Rebatch(rows) => data.rebatch(rows),
            What::Mix(mix) => data.mix(mix),
            What::Prefetch(prefetch) => data.prefetch(prefetch),
            What::Parallelism(parallelism) => data.parallelism(parallelism),
            What::MaxItem(bytes) => data.max_item(bytes),
            What::Deterministic(ordered) => data.deterministic(ordered),
        }
    }
}
