//! Sources composed of others: `parts = [{ source = … }, { source = … }]`, each with its own `map` or `stages`.

use super::{InputKind, Opened, SourceArgs, SourceKind};
use crate::config::row_ops::maps;
use crate::config::stages::{self, Defaults};
use crate::error::{Error, Result};
use crate::preprocessing::Preprocessing;
use plimsoll_data::Dataset;
use std::sync::Arc;

pub(super) const CONCATENATE: SourceKind = SourceKind {
    name: "concatenate",
    keys: "`parts`: a list of tables, each a source with its own keys and optionally its own `map` or [`stages`](#stages)",
    rows: "the rows of one part after those of another, whose classes have the same indices (`classes` of `image_folder`)",
    paths: &[],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |args| Ok(Opened::new(Dataset::concatenate(parts(args)?))),
    from_path: None,
};

pub(super) const ZIP: SourceKind = SourceKind {
    name: "zip",
    keys: "`parts`",
    rows: "the rows of the parts side by side, with different column names",
    paths: &[],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |args| Ok(Opened::new(Dataset::zip(parts(args)?))),
    from_path: None,
};

pub(super) const SAMPLE_FROM: SourceKind = SourceKind {
    name: "sample_from",
    keys: "`parts`, each with a `weight`; `seed`",
    rows: "each row from a randomly chosen part",
    paths: &[],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |args| {
        let (parts, weights) = weighted_parts(args, true)?;
        let seed = args.table.count("seed", 0)?.unwrap_or(0);
        Ok(Opened::new(Dataset::sample_from(parts.into_iter().zip(weights), seed)))
    },
    from_path: None,
};

pub(super) const INTERLEAVE: SourceKind = SourceKind {
    name: "interleave",
    keys: "`parts`, `cycle`, `block`",
    rows: "`block` rows of each of `cycle` parts in turn, with a thread for each",
    paths: &[],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: |args| {
        let parts = parts(args)?;
        let cycle = args.table.count("cycle", 1)?.unwrap_or(4) as usize;
        let block = args.table.count("block", 1)?.unwrap_or(1) as usize;
        Ok(Opened::new(Dataset::interleave_parallel(parts, cycle, block)))
    },
    from_path: None,
};

fn parts(args: &SourceArgs<'_>) -> Result<Vec<Dataset>> {
    Ok(weighted_parts(args, false)?.0)
}

/// The datasets of `parts`, and their weights where they have any.
fn weighted_parts(args: &SourceArgs<'_>, weighted: bool) -> Result<(Vec<Dataset>, Vec<f64>)> {
    let SourceArgs { table: data, folder, lenient, fitted, host } = *args;
    let example = "a list of tables, such as [{ source = \"npy\", x = \"a.npy\" }, { source = \"npy\", x = \"b.npy\" }]";
    let tables = data.sections("parts")?.filter(|parts| !parts.is_empty()).ok_or_else(|| data.missing("parts", example))?;
    // Names of columns are those of all parts together.
    let fitted = fitted.map(|fitted| Preprocessing { features: Vec::new(), ..fitted.clone() });
    let (mut parts, mut weights) = (Vec::new(), Vec::new());
    for table in tables {
        let rows = SourceKind::required(&table)?.open(&table, folder, lenient, fitted.as_ref(), host)?.training;
        let rows = match stages::read(&table, Defaults { folder, seed: 0, batch_of_run: None, batch_of_data: None, batch: 32 })? {
            Some(list) => stages::apply(&list, rows, None)?,
            None => maps(&table, 0)?.iter().fold(rows, |rows, (column, op)| rows.map(column, [Arc::clone(op)])),
        };
        if rows.batch_size().is_some() {
            let what = format!("`{}` ends in batches, and parts are composed row by row; leave the batch out", table.name("stages"));
            return Err(Error::Config(what));
        }
        if weighted {
            weights.push(table.number("weight")?.unwrap_or(1.0));
        }
        table.finish()?;
        parts.push(rows);
    }
    Ok((parts, weights))
}
