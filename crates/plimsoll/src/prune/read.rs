//! `[prune]` of a configuration.

use super::{LayerPruning, Pooling, Prune, Sparsity, SparsityPattern};
use crate::error::{Error, Result};
use crate::reader::Reader;

/// What `schedule` names.
#[derive(Clone, Copy, PartialEq)]
enum SparsitySchedule {
    Polynomial,
    Constant,
}

const SCHEDULES: [(&str, SparsitySchedule); 2] = [("polynomial", SparsitySchedule::Polynomial), ("constant", SparsitySchedule::Constant)];

impl Prune {
    /// Reads `[prune]`, if it is there.
    pub(crate) fn read(root: &Reader<'_>) -> Result<Option<Prune>> {
        let Some(table) = root.section("prune")? else { return Ok(None) };
        let mut layers = Vec::new();
        let tables = table.sections("layers")?;
        for layer in tables.iter().flatten() {
            let Some(pattern) = layer.text("match")? else {
                return Err(layer.missing("match", "the layers, such as \"block1*\""));
            };
            let keeps = layer.flag_or("keep", false)?;
            let pruning = pruning(layer, Some(&table))?;
            layer.check_keys()?;
            layers.push((pattern.to_string(), (!keeps).then_some(pruning).flatten()));
        }
        // With a sparsity for some layers only, others are not pruned.
        let others = pruning(&table, None)?;
        table.check_keys()?;
        if others.is_none() && layers.iter().all(|(_, pruning)| pruning.is_none()) {
            return Err(table.missing("final", "the share of zeros, such as 0.8; or `m_by_n = [2, 4]`"));
        }
        Ok(Some(Prune { others, layers }))
    }
}

/// The keys of a table; those that it does not have are in `defaults`.
fn pruning(own: &Reader<'_>, defaults: Option<&Reader<'_>>) -> Result<Option<LayerPruning>> {
    let share = |key: &'static str| {
        let read = |table: &Reader<'_>| match table.number(key)? {
            Some(share) if !(0.0..1.0).contains(&share) => {
                Err(Error::Config(format!("`{}` is {share}, but should be at least 0 and below 1", table.name(key))))
            }
            share => Ok(share),
        };
        either(own, defaults, read)
    };
    let count = |key: &'static str, least: u64| either(own, defaults, |table| table.count(key, least));
    let pair = |key: &'static str| either(own, defaults, |table| table.pair(key));
    let kind = either(own, defaults, |table| table.choice("schedule", &SCHEDULES))?.unwrap_or(SparsitySchedule::Polynomial);
    let (initial, last) = (share("initial")?.unwrap_or(0.0), share("final")?);
    let (begin, end, frequency) = (count("begin", 0)?.unwrap_or(0), count("end", 0)?, count("frequency", 1)?.unwrap_or(100));
    let power = either(own, defaults, |table| table.number("power"))?.unwrap_or(3.0);
    let pooling = either(own, defaults, |table| table.choice("pooling", &Pooling::NAMES))?.unwrap_or_default();
    let pattern = match (pair("block")?, pair("m_by_n")?) {
        (Some(_), Some(_)) => return Err(Error::Config(format!("`{}`: give `block` or `m_by_n`, not both", own.path()))),
        (Some((1, 1)) | None, None) => SparsityPattern::Unstructured,
        (Some(size), None) => SparsityPattern::Block { size, pooling },
        (None, Some((zeros, of))) => SparsityPattern::MByN { zeros, of },
    };
    let share_of_groups = match pattern {
        SparsityPattern::MByN { zeros, of } => Some(zeros as f64 / of as f64),
        _ => None,
    };
    let Some(last) = share_of_groups.or(last) else { return Ok(None) };
    let sparsity = match (kind, share_of_groups, end) {
        (SparsitySchedule::Polynomial, None, None) => return Err(own.missing("end", "the step at which the final sparsity is reached")),
        (SparsitySchedule::Polynomial, None, Some(end)) => Sparsity::polynomial(initial, last, end).power(power),
        (_, _, Some(end)) => Sparsity::constant(last).end(end),
        (_, _, None) => Sparsity::constant(last),
    };
    let sparsity = sparsity.begin(begin).frequency(frequency);
    match pattern.problem().or_else(|| sparsity.problem()) {
        Some(what) => Err(Error::Config(format!("`{}`: {what}", own.path()))),
        None => Ok(Some(LayerPruning { sparsity, pattern })),
    }
}

/// A key of a table, or else of the one with its defaults.
fn either<T>(own: &Reader<'_>, defaults: Option<&Reader<'_>>, read: impl Fn(&Reader<'_>) -> Result<Option<T>>) -> Result<Option<T>> {
    match (read(own)?, defaults) {
        (None, Some(defaults)) => read(defaults),
        (own, _) => Ok(own),
    }
}
