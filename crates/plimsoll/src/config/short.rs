//! The short keys of `[data]`, each a stage at a default position: which rows, in which order, mapped, cached, batched,
//! mixed.

use super::row_ops::maps;
use super::stages::{self, Defaults};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::ops::{Op, class_index};
use plimsoll_data::{Arg, Cache, Dataset, StageArgs};
use std::collections::BTreeMap;
use std::sync::Arc;
use toml::Value;

/// The parsed short keys.
pub(super) struct ShortKeys {
    /// The stages that have a key, with their arguments.
    stages: BTreeMap<&'static str, StageArgs>,
    maps: Vec<(String, Arc<dyn Op>)>,
    cache: Option<Cache>,
    batch: usize,
    drop_remainder: bool,
}

/// Stages whose key has the value of their only argument.
const SINGLE: [&str; 8] = ["prefetch", "parallelism", "max_item", "deterministic", "skip", "take", "repeat", "ignore_errors"];

impl ShortKeys {
    pub fn read(data: &Reader<'_>, defaults: Defaults<'_>) -> Result<ShortKeys> {
        let maps = maps(data, defaults.seed)?;
        let mut all = BTreeMap::new();
        if let Some(shuffle) = shuffle(data, defaults)? {
            all.insert("shuffle", shuffle);
        }
        for name in SINGLE {
            let key = &stages::kind(name).keys[0];
            if let Some(arg) = stages::arg(data, name, key.kind, defaults)? {
                let mut args = StageArgs::default();
                args.insert(key.name, arg);
                all.insert(name, args);
            }
        }
        if let Some(shard) = shard(data)? {
            all.insert("shard", shard);
        }
        for name in ["mixup", "cutmix"] {
            let Some(table) = data.section(name)? else { continue };
            all.insert(name, stages::args(&table, stages::kind(name), defaults)?);
            table.finish()?;
        }
        if all.contains_key("mixup") && all.contains_key("cutmix") {
            return Err(Error::Config("`data.mixup` and `data.cutmix` exclude each other".to_string()));
        }
        let cache = super::data::cache(data, "cache", defaults.folder)?;
        Ok(ShortKeys { stages: all, maps, cache, batch: defaults.rows(), drop_remainder: data.flag("drop_remainder")?.unwrap_or(false) })
    }

    /// The operations of `map`, with their columns.
    pub fn maps(&self) -> &[(String, Arc<dyn Op>)] {
        &self.maps
    }

    /// Applies those of some stages that are configured.
    fn then(&self, rows: Dataset, names: &[&str]) -> Result<Dataset> {
        names.iter().try_fold(rows, |rows, name| match self.stages.get(name) {
            Some(args) => stages::kind(name).apply(rows, args).map_err(Error::Config),
            None => Ok(rows),
        })
    }

    /// Training rows; `checked` validates the rows of the source after selection.
    pub fn training(&self, rows: Dataset, checked: impl FnOnce(Dataset) -> Dataset, masks: Option<&[u8]>) -> Result<Dataset> {
        let rows = self.then(rows, &["skip", "take", "shard"])?;
        let rows = self.mapped(rows, checked, &["shuffle", "repeat"], self.cache.clone(), masks)?;
        let rows = self.then(rows, &["ignore_errors"])?.batch(self.batch);
        let rows = self.then(rows, &["prefetch", "deterministic", "mixup", "cutmix"])?;
        Ok(if self.drop_remainder { rows.drop_remainder() } else { rows })
    }

    /// Validation rows: all of them, in order, with the error policy of the training rows. They are cached if training
    /// rows are, so that both are rounded alike; a file cache becomes a memory cache, because they are few.
    pub fn held_out(&self, rows: Dataset, checked: impl FnOnce(Dataset) -> Dataset, masks: Option<&[u8]>) -> Result<Dataset> {
        let cache = match &self.cache {
            Some(Cache::File(_) | Cache::FileIfSpace(_)) => Some(Cache::Memory),
            other => other.clone(),
        };
        // This requires a known number of rows.
        let cache = cache.filter(|cache| *cache != Cache::Memory || rows.len() < u64::MAX);
        let rows = self.then(self.mapped(rows, checked, &[], cache, masks)?, &["ignore_errors"])?;
        self.then(rows.batch(self.batch), &["prefetch"])
    }

    /// Maps rows, and caches them if configured. Deterministic operations are cached; ordering and random operations
    /// come after the cache.
    fn mapped(
        &self,
        rows: Dataset,
        checked: impl FnOnce(Dataset) -> Dataset,
        order: &[&str],
        cache: Option<Cache>,
        masks: Option<&[u8]>,
    ) -> Result<Dataset> {
        let map = |rows: Dataset, maps: &[(String, Arc<dyn Op>)]| {
            maps.iter().fold(rows, |rows, (column, op)| match masks.is_some() && column == "x" {
                true => rows.map_image_and_mask([Arc::clone(op)]),
                false => rows.map(column, [Arc::clone(op)]),
            })
        };
        let limited = |rows: Dataset| self.then(rows, &["max_item", "parallelism"]);
        let classes = |rows: Dataset| with_classes(rows, masks);
        let Some(cache) = cache else { return limited(classes(map(checked(self.then(rows, order)?), &self.maps))) };
        let steady = self.maps.iter().position(|(_, op)| op.is_random()).unwrap_or(self.maps.len());
        let (steady, random) = self.maps.split_at(steady);
        let cached = limited(map(checked(rows), steady))?.cache(cache);
        Ok(map(self.then(cached, order)?, random))
    }
}

/// Replaces the pixel values of masks by class indices, if they have others.
pub(super) fn with_classes(rows: Dataset, masks: Option<&[u8]>) -> Dataset {
    match masks {
        Some(values) if !values.is_empty() => rows.map("y", [class_index(values)]),
        _ => rows,
    }
}

/// `shard = [count, index]`.
fn shard(data: &Reader<'_>) -> Result<Option<StageArgs>> {
    match (data.value("shard"), data.value("shard").and_then(Value::as_array).map(Vec::as_slice)) {
        (None, _) => Ok(None),
        (Some(_), Some([Value::Integer(count), Value::Integer(index)])) if 0 <= *index && index < count => {
            let mut args = StageArgs::default();
            args.insert("count", Arg::Count(*count as u64));
            args.insert("index", Arg::Count(*index as u64));
            Ok(Some(args))
        }
        (Some(other), _) => Err(data.wrong("shard", other, "how many parts there are and which this is, such as [4, 0]")),
    }
}

/// `shuffle = true`, or with a seed.
fn shuffle(data: &Reader<'_>, defaults: Defaults<'_>) -> Result<Option<StageArgs>> {
    let seed = match data.value("shuffle") {
        None | Some(Value::Boolean(false)) => return Ok(None),
        Some(Value::Boolean(true)) => defaults.seed,
        Some(Value::Table(_)) => {
            let table = data.section("shuffle")?.expect("just seen");
            let seed = table.count("seed", 0)?.unwrap_or(defaults.seed);
            table.finish()?;
            seed
        }
        Some(other) => return Err(data.wrong("shuffle", other, "true, false or a table such as { seed = 7 }")),
    };
    let mut args = StageArgs::default();
    args.insert("seed", Arg::Count(seed));
    Ok(Some(args))
}
