//! `stages = [{ op = "filter", … }, { op = "shuffle" }, …]`: the stages of the pipeline, in order. Names, keys and
//! hints are those of [`plimsoll_data::STAGES`].

use super::data::{cache, parallelism, prefetch, size};
use super::row_ops::{self, RowOp, operations};
use super::short::with_classes;
use crate::error::{Error, Result};
use crate::reader::{Reader, choose};
use plimsoll_data::{Arg, Batches, Dataset, KeyKind, MAX_ROWS_AT_ONCE, Need, STAGES, StageArgs, StageKind};
use std::path::Path;
use std::sync::Arc;
use toml::Value;

/// One entry of the list, with its position and name as errors report them.
#[derive(Clone)]
pub(super) struct Stage {
    name: String,
    kind: &'static StageKind,
    args: StageArgs,
}

impl Stage {
    /// The column and the operations of a map.
    pub fn mapping(&self) -> Option<(String, Vec<Arc<dyn plimsoll_data::ops::Op>>)> {
        self.args.mapping().filter(|_| self.kind.name == "map")
    }

    /// Whether it gives rows of variable length one shape.
    pub fn pads(&self) -> bool {
        self.kind.name == "padded_batch"
    }
}

/// Defaults for the entries of a list.
#[derive(Clone, Copy)]
pub(super) struct Defaults<'a> {
    /// Base of relative paths.
    pub folder: &'a Path,
    /// The seed of entries that have none.
    pub seed: u64,
    /// Batch size that overrides the list: `train.batch`, or `--batch`.
    pub batch_of_run: Option<usize>,
    /// Batch size if the list has none: `data.batch`.
    pub batch_of_data: Option<usize>,
    /// Default batch size.
    pub batch: usize,
}

impl Defaults<'_> {
    /// Batch size if no entry sets it.
    pub fn rows(&self) -> usize {
        self.batch_of_run.or(self.batch_of_data).unwrap_or(self.batch)
    }
}

/// The kind of an entry: a pipeline stage, or an operation on a column.
#[derive(Clone, Copy)]
enum Op {
    Stage(&'static StageKind),
    Map(&'static RowOp),
}

impl Op {
    fn batches(self) -> Batches {
        match self {
            Op::Stage(kind) => kind.batches,
            Op::Map(_) => Batches::None,
        }
    }
}

/// The stage of a name.
pub(super) fn kind(name: &str) -> &'static StageKind {
    STAGES.iter().find(|kind| kind.name == name).expect("a stage of this name")
}

/// The table of stages in the documentation.
pub(super) fn reference() -> String {
    let head = "| `op` | keys (optional ones in brackets) | what it does | applies to validation |\n|---|---|---|---|\n";
    format!("{head}{}", STAGES.iter().map(StageKind::reference).collect::<String>())
}

/// The list of a table, if it has one.
pub(super) fn read(table: &Reader<'_>, defaults: Defaults<'_>) -> Result<Option<Vec<Stage>>> {
    let Some(entries) = table.sections("stages")? else { return Ok(None) };
    let short = STAGES.iter().filter(|kind| kind.has_short_form).map(|kind| (kind.name, kind.to_string()));
    let remainder = ("drop_remainder", "{ op = \"batch\", drop_remainder = true }".to_string());
    for (key, entry) in short.chain([remainder]) {
        if table.value(key).is_some() {
            let (key, list) = (table.name(key), table.name("stages"));
            return Err(Error::Config(format!("`{key}` has no place beside `{list}`: write {entry} into the list instead")));
        }
    }
    let ops = entries.iter().map(op).collect::<Result<Vec<_>>>()?;
    // The batch size of the run applies to the final batches, not to those that are unbatched again.
    let last = ops.iter().rposition(|(op, _)| matches!(op.batches(), Batches::Makes | Batches::Undoes));
    let last = last.filter(|last| ops[*last].0.batches() == Batches::Makes);
    let come_out = last.map_or(Ok(defaults.rows()), |last| batch_rows(&entries[last], "rows", defaults))?;
    let mut stages = Vec::with_capacity(entries.len());
    for (index, (entry, (op, name))) in entries.into_iter().zip(ops).enumerate() {
        let defaults = match op.batches() {
            Batches::GathersFor => Defaults { batch_of_data: None, batch: come_out, ..defaults },
            _ if Some(index) == last => defaults,
            _ => Defaults { batch_of_run: None, batch_of_data: None, ..defaults },
        };
        let (kind, args) = match op {
            Op::Stage(kind) => (kind, args(&entry, kind, defaults)?),
            Op::Map(operation) => mapping(&entry, operation, defaults)?,
        };
        stages.push(Stage { name: format!("`{}` ({name})", entry.path()), kind, args });
        entry.finish()?;
    }
    Ok(Some(stages))
}

/// The kind and name of an entry.
fn op<'a>(entry: &Reader<'a>) -> Result<(Op, &'a str)> {
    let Some(op) = entry.text("op")? else { return Err(entry.missing("op", "which stage, such as \"shuffle\"")) };
    let no_stage = |why: &str| Err(Error::Config(format!("`{}` is \"{op}\", {why}", entry.name("op"))));
    match op {
        "flat_map" => return no_stage("which needs a program: `Dataset::flat_map` is given code that makes rows of a row"),
        "zip" | "concatenate" | "sample_from" | "interleave" => {
            return no_stage("which puts several sources together: make it the `source`, with `parts` that have stages of their own");
        }
        _ => {}
    }
    let stages = STAGES.iter().map(|kind| (kind.name, Op::Stage(kind)));
    let operations = row_ops::names().map(|(name, operation)| (name, Op::Map(operation)));
    let names: Vec<(&'static str, Op)> = stages.chain(operations).collect();
    Ok((choose(&entry.name("op"), op, &names)?, op))
}

/// Whether a stage of a list skips rows with errors; sources that scan all rows need to know.
pub(super) fn leave_out_errors(table: &Reader<'_>) -> bool {
    let entries = table.value("stages").and_then(Value::as_array);
    entries.into_iter().flatten().any(|entry| entry.get("op").and_then(Value::as_str) == Some("ignore_errors"))
}

/// A `map` with one operation, as a list entry.
fn mapping(entry: &Reader<'_>, operation: &RowOp, defaults: Defaults<'_>) -> Result<(&'static StageKind, StageArgs)> {
    let (column, op) = operation.read(entry, defaults.seed)?;
    let mut args = StageArgs::default();
    args.insert("column", Arg::Text(column));
    args.insert("ops", Arg::Ops(vec![op]));
    Ok((kind("map"), args))
}

/// The arguments of a stage.
pub(super) fn args(entry: &Reader<'_>, kind: &StageKind, defaults: Defaults<'_>) -> Result<StageArgs> {
    let mut args = StageArgs::default();
    for key in kind.keys {
        if let Some(arg) = arg(entry, key.name, key.kind, defaults)? {
            args.insert(key.name, arg);
        }
    }
    let missing = |key: &str, what: &str| {
        entry.check_keys()?;
        Err(entry.missing(key, what))
    };
    for key in kind.keys {
        if let Need::Required(what) = key.need
            && !args.contains(key.name)
        {
            return missing(key.name, what);
        }
    }
    let optional = |key: &&plimsoll_data::Key| key.need == Need::Optional;
    if let Some((key, keys)) = kind.needs_one_of
        && !kind.keys.iter().filter(optional).any(|key| args.contains(key.name))
    {
        return missing(key, &format!("what has to hold for `{}`: {keys}", args.name("column")));
    }
    Ok(args)
}

/// The argument of a key, if there is one.
pub(super) fn arg(entry: &Reader<'_>, key: &'static str, kind: KeyKind, defaults: Defaults<'_>) -> Result<Option<Arg>> {
    Ok(match kind {
        KeyKind::Count(least) => entry.count(key, least)?.map(Arg::Count),
        KeyKind::RowsAtOnce => at_most(entry, key, entry.count(key, 1)?, MAX_ROWS_AT_ONCE)?.map(Arg::Count),
        KeyKind::BatchRows(most) => {
            at_most(entry, key, entry.count(key, 1)?, most)?;
            Some(Arg::Count(batch_rows(entry, key, defaults)? as u64))
        }
        KeyKind::Seed => Some(Arg::Count(entry.count(key, 0)?.unwrap_or(defaults.seed))),
        KeyKind::Number => entry.number(key)?.map(Arg::Number),
        // An empty list of numbers is invalid.
        KeyKind::Numbers => entry.exact_numbers(key)?.filter(|numbers| !numbers.is_empty()).map(Arg::Numbers),
        KeyKind::Counts => {
            let counts = entry.counts(key)?.filter(|counts| !counts.is_empty());
            counts.map(|counts| Arg::Counts(counts.into_iter().map(|count| count as u64).collect()))
        }
        KeyKind::Text => entry.text(key)?.map(|text| Arg::Text(text.to_string())),
        KeyKind::Flag => entry.flag(key)?.map(Arg::Flag),
        KeyKind::Size => size(entry, key)?.map(Arg::Size),
        KeyKind::Choice(words) => {
            let words: Vec<(&'static str, &'static str)> = words.iter().map(|word| (*word, *word)).collect();
            entry.choice(key, &words)?.map(|word| Arg::Text(word.to_string()))
        }
        KeyKind::Ops => Some(Arg::Ops(operations(entry, key, defaults.seed)?)),
        KeyKind::Cache => cache(entry, key, defaults.folder)?.map(Arg::Cache),
        KeyKind::Threads => Some(Arg::Threads(parallelism(entry, key)?)),
        KeyKind::Prefetch => Some(Arg::Prefetch(prefetch(entry, key)?)),
    })
}

fn at_most(entry: &Reader<'_>, key: &str, rows: Option<u64>, most: u64) -> Result<Option<u64>> {
    match rows {
        Some(rows) if rows > most => Err(Error::Config(format!("`{}` is {rows}, but should be at most {most}", entry.name(key)))),
        rows => Ok(rows),
    }
}

/// Batch size: the run's, then the entry's, then the data's.
fn batch_rows(entry: &Reader<'_>, key: &'static str, defaults: Defaults<'_>) -> Result<usize> {
    match (entry.count(key, 1)?, defaults.batch_of_data) {
        (Some(_), Some(_)) => {
            let what = format!("`{}` and `data.batch` both say how many rows a batch has; leave one of them out", entry.name(key));
            Err(Error::Config(what))
        }
        (Some(rows), None) => Ok(defaults.batch_of_run.unwrap_or(rows as usize)),
        (None, _) => Ok(defaults.rows()),
    }
}

/// Applies a list of stages to rows. Errors report the position in the list. Where `y` has masks of images in `x`,
/// operations that move pixels are applied to both, and the values of masks are replaced before the first batch.
pub(super) fn apply(stages: &[Stage], rows: Dataset, masks: Option<&[u8]>) -> Result<Dataset> {
    rows.output_schema()?;
    let mut unnamed = masks.filter(|values| !values.is_empty());
    let rows = stages.iter().try_fold(rows, |mut rows, Stage { name, kind, args }| {
        if kind.batches == Batches::Makes {
            rows = with_classes(rows, unnamed.take());
        }
        if rows.batch_size().is_some() && kind.counts_rows {
            let what = "counts rows and stands after the batch; put it before, or put { op = \"unbatch\" } between";
            return Err(Error::Config(format!("{name} {what}")));
        }
        let rows = match args.mapping().filter(|(column, _)| masks.is_some() && column == "x") {
            Some((_, ops)) => rows.map_image_and_mask(ops),
            None => kind.apply(rows, args).map_err(|problem| Error::Config(format!("{name} {problem}")))?,
        };
        rows.output_schema().map_err(|error| Error::Config(format!("{name}: {error}")))?;
        Ok(rows)
    })?;
    Ok(with_classes(rows, unnamed))
}

/// The stages of the training data that also apply to evaluation rows.
pub(super) fn for_validation(stages: &[Stage]) -> Vec<Stage> {
    stages.iter().filter_map(|stage| Some(Stage { args: stage.kind.for_validation(&stage.args)?, ..stage.clone() })).collect()
}

/// Removes stages that change the order of rows, so that predictions can be matched to rows by position.
pub(super) fn in_source_order(stages: &mut Vec<Value>) {
    let reorders = |op: &str| STAGES.iter().any(|kind| kind.name == op && kind.reorders);
    stages.retain(|entry| !entry.get("op").and_then(Value::as_str).is_some_and(reorders));
}
