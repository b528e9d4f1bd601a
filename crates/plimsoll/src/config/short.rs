//! The keys of `[data]` that say in short what is done to rows, each at its usual place: which rows, in which order, mapped, kept, batched, mixed.

use super::data::{cache, parallelism, prefetch, size};
use super::row_ops::maps;
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_core::Bytes;
use plimsoll_data::ops::Op;
use plimsoll_data::{Cache, Dataset, Mix, Parallelism, Prefetch, Shuffle};
use std::path::Path;
use std::sync::Arc;
use toml::Value;

/// All that they say.
pub(super) struct Short {
    chosen: Chosen,
    shuffle: Option<Shuffle>,
    maps: Vec<(String, Arc<dyn Op>)>,
    max_item: Option<Bytes>,
    parallelism: Parallelism,
    cache: Option<Cache>,
    batch: usize,
    prefetch: Prefetch,
    deterministic: bool,
    mix: Option<Mix>,
}

impl Short {
    pub fn read(data: &Reader<'_>, folder: &Path, batch: usize, seed: u64) -> Result<Short> {
        Ok(Short {
            maps: maps(data, seed)?,
            shuffle: shuffle(data, seed)?,
            prefetch: prefetch(data, "prefetch")?,
            parallelism: parallelism(data, "parallelism")?,
            max_item: size(data, "max_item")?,
            cache: cache(data, "cache", folder)?,
            deterministic: data.flag("deterministic")?.unwrap_or(true),
            chosen: Chosen::read(data)?,
            mix: mix(data, seed)?,
            batch,
        })
    }

    /// Rows that are learnt from; `checked` looks at what came from the source, once it is known which rows that are.
    pub fn training(&self, rows: Dataset, checked: impl FnOnce(Dataset) -> Dataset) -> Dataset {
        let rows = self.chosen.before(rows);
        let in_order = |rows: Dataset| {
            let rows = self.shuffle.map_or(rows.clone(), |shuffle| rows.shuffle(shuffle));
            self.chosen.repeat.map_or(rows.clone(), |times| rows.repeat(times))
        };
        let rows = self.made(rows, checked, in_order, self.cache.clone());
        let rows = self.chosen.ignore_errors.map_or(rows.clone(), |cap| rows.ignore_errors(cap));
        let rows = rows.batch(self.batch).prefetch(self.prefetch);
        let rows = if self.deterministic { rows } else { rows.deterministic(false) };
        let rows = self.mix.clone().map_or(rows.clone(), |mix| rows.mix(mix));
        if self.chosen.drop_remainder { rows.drop_remainder() } else { rows }
    }

    /// Rows that are measured: all of them, as they are. They must be rounded as those that are learnt from; they are few, so they are kept in
    /// memory.
    pub fn held_out(&self, rows: Dataset, checked: impl FnOnce(Dataset) -> Dataset) -> Dataset {
        let cache = match &self.cache {
            Some(Cache::File(_) | Cache::FileIfRoom(_)) => Some(Cache::Memory),
            other => other.clone(),
        };
        // How many they are has to be known for that.
        let cache = cache.filter(|cache| *cache != Cache::Memory || rows.len() < u64::MAX);
        self.made(rows, checked, |rows| rows, cache).batch(self.batch).prefetch(self.prefetch)
    }

    /// Rows mapped, and kept if there is a cache: what is kept is what is the same in each epoch, so their order, and what draws lots, comes after that.
    fn made(
        &self,
        rows: Dataset,
        checked: impl FnOnce(Dataset) -> Dataset,
        in_order: impl FnOnce(Dataset) -> Dataset,
        cache: Option<Cache>,
    ) -> Dataset {
        let mapped =
            |rows: Dataset, maps: &[(String, Arc<dyn Op>)]| maps.iter().fold(rows, |rows, (column, op)| rows.map(column, [Arc::clone(op)]));
        let bounded = |rows: Dataset| {
            let rows = self.max_item.map_or(rows.clone(), |bytes| rows.max_item(bytes));
            rows.parallelism(self.parallelism)
        };
        let Some(cache) = cache else { return bounded(mapped(checked(in_order(rows)), &self.maps)) };
        let steady = self.maps.iter().position(|(_, op)| op.is_random()).unwrap_or(self.maps.len());
        let (steady, by_lot) = self.maps.split_at(steady);
        mapped(in_order(bounded(mapped(checked(rows), steady)).cache(cache)), by_lot)
    }
}

/// Which of the rows to learn from are used, and how often.
struct Chosen {
    skip: Option<u64>,
    take: Option<u64>,
    shard: Option<(u64, u64)>,
    repeat: Option<u64>,
    drop_remainder: bool,
    ignore_errors: Option<u64>,
}

impl Chosen {
    fn read(data: &Reader<'_>) -> Result<Chosen> {
        let shard = match (data.value("shard"), data.value("shard").and_then(Value::as_array).map(Vec::as_slice)) {
            (None, _) => None,
            (Some(_), Some([Value::Integer(count), Value::Integer(index)])) if 0 <= *index && index < count => {
                Some((*count as u64, *index as u64))
            }
            (Some(other), _) => return Err(data.wrong("shard", other, "how many parts there are and which this is, such as [4, 0]")),
        };
        Ok(Chosen {
            skip: data.count("skip", 0)?,
            take: data.count("take", 1)?,
            shard,
            repeat: data.count("repeat", 1)?,
            drop_remainder: data.flag("drop_remainder")?.unwrap_or(false),
            ignore_errors: data.count("ignore_errors", 0)?,
        })
    }

    /// What is chosen before anything else is done.
    fn before(&self, rows: Dataset) -> Dataset {
        let rows = self.skip.map_or(rows.clone(), |skip| rows.skip(skip));
        let rows = self.take.map_or(rows.clone(), |take| rows.take(take));
        self.shard.map_or(rows.clone(), |(count, index)| rows.shard(count, index))
    }
}

/// How rows of a batch are mixed, and with which lots.
fn mix(data: &Reader<'_>, seed: u64) -> Result<Option<Mix>> {
    let read = |key: &'static str, make: fn(f32) -> Mix, usual: f32| {
        let Some(table) = data.section(key)? else { return Ok::<_, Error>(None) };
        let mix = mixed(&table, make, usual, seed)?;
        table.finish()?;
        Ok(Some(mix))
    };
    match (read("mixup", Mix::up, MIXUP)?, read("cutmix", Mix::cut, CUTMIX)?) {
        (Some(_), Some(_)) => Err(Error::Config("`data.mixup` and `data.cutmix` exclude each other".to_string())),
        (up, cut) => Ok(up.or(cut)),
    }
}

/// What `alpha` is unless it is said.
pub(super) const MIXUP: f32 = 0.2;
pub(super) const CUTMIX: f32 = 1.0;

pub(super) fn mixed(table: &Reader<'_>, make: fn(f32) -> Mix, usual: f32, seed: u64) -> Result<Mix> {
    let mix = make(table.number("alpha")?.map_or(usual, |alpha| alpha as f32)).seed(table.count("seed", 0)?.unwrap_or(seed));
    Ok(mix.columns(table.text("images")?.unwrap_or("x"), table.text("labels")?.unwrap_or("y")))
}

fn shuffle(data: &Reader<'_>, seed: u64) -> Result<Option<Shuffle>> {
    match data.value("shuffle") {
        None | Some(Value::Boolean(false)) => Ok(None),
        Some(Value::Boolean(true)) => Ok(Some(Shuffle::seed(seed))),
        Some(Value::Table(_)) => {
            let table = data.section("shuffle")?.expect("just seen");
            let shuffle = Shuffle::seed(table.count("seed", 0)?.unwrap_or(seed));
            table.finish()?;
            Ok(Some(shuffle))
        }
        Some(other) => Err(data.wrong("shuffle", other, "true, false or a table such as { seed = 7 }")),
    }
}
