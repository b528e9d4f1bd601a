//! Sources that put the rows of others together: `parts = [{ source = … }, { source = … }]`, each with a `map` or `stages` of its own.

use super::maps::maps;
use super::sources::{Opened, SOURCES, Source};
use super::stages::{self, Around};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::Dataset;
use std::path::Path;
use std::sync::Arc;

/// The rows of several tables, each a source with operations of its own; `lenient` if bad ones are left out further on.
pub(super) fn rows(data: &Reader<'_>, kind: Source, folder: &Path, lenient: bool) -> Result<Dataset> {
    let example = "a list of tables, such as [{ source = \"npy\", x = \"a.npy\" }, { source = \"npy\", x = \"b.npy\" }]";
    let tables = data.sections("parts")?.filter(|parts| !parts.is_empty()).ok_or_else(|| data.missing("parts", example))?;
    let (mut parts, mut weights) = (Vec::new(), Vec::new());
    for table in tables {
        let known: Vec<&str> = SOURCES.iter().map(|(name, _)| *name).collect();
        let source = table.choice("source", &SOURCES)?.ok_or_else(|| table.missing("source", &format!("one of {}", known.join(", "))))?;
        let rows = Opened::new(&table, source, folder, lenient)?.rows();
        let rows = match stages::read(&table, Around { folder, seed: 0, batch: None, beside: None, usual: 32 })? {
            Some(list) => stages::apply(&list, rows)?,
            None => maps(&table, 0)?.iter().fold(rows, |rows, (column, op)| rows.map(column, [Arc::clone(op)])),
        };
        if rows.batch_size().is_some() {
            let what = format!("`{}` ends in batches, and parts are put together row by row; leave the batch out", table.name("stages"));
            return Err(Error::Config(what));
        }
        if kind == Source::SampleFrom {
            weights.push(table.number("weight")?.unwrap_or(1.0));
        }
        table.finish()?;
        parts.push(rows);
    }
    Ok(match kind {
        Source::SampleFrom => Dataset::sample_from(parts.into_iter().zip(weights), data.count("seed", 0)?.unwrap_or(0)),
        Source::Interleave => {
            let cycle = data.count("cycle", 1)?.unwrap_or(4) as usize;
            let block = data.count("block", 1)?.unwrap_or(1) as usize;
            Dataset::interleave_parallel(parts, cycle, block)
        }
        Source::Zip => Dataset::zip(parts),
        _ => Dataset::concatenate(parts),
    })
}
