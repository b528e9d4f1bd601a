//! The `[data]` table: a source and what is done to its rows.

use super::reader::{Reader, choose};
use crate::error::{Error, Result};
use plimsoll_data::ops::{Method, Op, cast_f32, normalize, one_hot, resize, scale};
use plimsoll_data::{Dataset, Prefetch, RandomSpec, Shuffle, Split};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use toml::Value;

/// What rows come from.
#[derive(Clone, Copy, PartialEq)]
enum Source {
    Digits,
    Random,
    Npy,
}

const SOURCES: [(&str, Source); 3] = [("digits", Source::Digits), ("random", Source::Random), ("npy", Source::Npy)];

/// The keys whose text is a path.
pub(super) const PATHS: [&str; 2] = ["x", "y"];

/// The rows to learn from and those to validate on.
pub(super) fn datasets(root: &Reader<'_>, folder: &Path, batch: Option<usize>, seed: u64) -> Result<(Dataset, Option<Dataset>)> {
    let Some(data) = root.section("data")? else {
        return Err(root.missing("data", "a table that says what to learn from, such as source = \"digits\""));
    };
    let Some(kind) = data.choice("source", &SOURCES)? else {
        return Err(data.missing("source", "one of digits, random, npy"));
    };
    let batch = match (batch, data.count("batch", 1)?) {
        (Some(batch), _) => batch,
        (None, Some(batch)) => batch as usize,
        (None, None) => 32,
    };
    let holdout = data.number("holdout")?;
    let own_validation = data.section("validation")?;
    let maps = maps(&data)?;
    let shuffle = shuffle(&data, seed)?;
    let prefetch = prefetch(&data)?;
    let finish = |rows: Dataset, shuffle: Option<Shuffle>| {
        let rows = match shuffle {
            Some(shuffle) => rows.shuffle(shuffle),
            None => rows,
        };
        let rows = maps.iter().fold(rows, |rows, (column, op)| rows.map(column, [Arc::clone(op)]));
        rows.batch(batch).prefetch(prefetch)
    };

    let whole = source(&data, kind, folder, Split::Train)?;
    data.finish()?;
    let (training, held_out) = match (own_validation, holdout, kind) {
        (Some(_), Some(_), _) => return Err(Error::Config("`data.holdout` and `data.validation` exclude each other".to_string())),
        (Some(table), None, _) => {
            let kind = table.choice("source", &SOURCES)?.unwrap_or(kind);
            let rows = source(&table, kind, folder, Split::Test)?;
            table.finish()?;
            (whole, Some(rows))
        }
        (None, Some(share), _) => {
            let held = (whole.len() as f64 * share).round() as u64;
            if !(0.0..1.0).contains(&share) || (held == 0 && share > 0.0) || held >= whole.len() {
                let rows = whole.len();
                let what = format!(
                    "`data.holdout` is {share}, but should be a share of the {rows} rows that leaves some to learn from and some to hold out"
                );
                return Err(Error::Config(what));
            }
            let kept = whole.len() - held;
            (whole.clone().take(kept), (held > 0).then(|| whole.skip(kept)))
        }
        (None, None, Source::Digits) => (whole, Some(Dataset::digits(Split::Test))),
        (None, None, _) => (whole, None),
    };
    Ok((finish(training, shuffle), held_out.map(|rows| finish(rows, None))))
}

fn source(data: &Reader<'_>, kind: Source, folder: &Path, split: Split) -> Result<Dataset> {
    match kind {
        Source::Digits => Ok(Dataset::digits(split)),
        Source::Npy => {
            let path = |key: &'static str| -> Result<PathBuf> {
                let path = data.text(key)?.ok_or_else(|| data.missing(key, "the path of a .npy file"))?;
                Ok(folder.join(path))
            };
            Ok(Dataset::npy(&[("x", path("x")?), ("y", path("y")?)])?)
        }
        Source::Random => {
            let rows = data.count("rows", 1)?.ok_or_else(|| data.missing("rows", "how many rows to make up"))?;
            let x = data.counts("x")?.ok_or_else(|| data.missing("x", "the shape of one row, such as [28, 28, 1]"))?;
            let spec = RandomSpec::new(rows).seed(data.count("seed", 0)?.unwrap_or(0));
            let spec = match data.choice("dtype", &[("f32", false), ("u8", true)])?.unwrap_or(false) {
                true => spec.bytes("x", x),
                false => spec.floats("x", x),
            };
            let spec = match (data.count("classes", 1)?, data.counts("y")?) {
                (Some(classes), None) => spec.labels("y", u32::try_from(classes).unwrap_or(u32::MAX)),
                (None, Some(shape)) => spec.floats("y", shape),
                _ => return Err(data.missing("y", "the shape of one row's labels, or `classes` for class numbers instead")),
            };
            Ok(Dataset::random(spec)?)
        }
    }
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

fn prefetch(data: &Reader<'_>) -> Result<Prefetch> {
    match data.value("prefetch") {
        None => Ok(Prefetch::Auto),
        Some(Value::String(word)) if word == "auto" => Ok(Prefetch::Auto),
        Some(Value::Integer(n)) if *n >= 1 => Ok(Prefetch::Batches(*n as usize)),
        Some(other) => Err(data.wrong("prefetch", other, "\"auto\" or a number of batches")),
    }
}

/// The operations on columns, in order.
fn maps(data: &Reader<'_>) -> Result<Vec<(String, Arc<dyn Op>)>> {
    let mut maps = Vec::new();
    for map in data.sections("map")?.unwrap_or_default() {
        let Some(name) = map.text("op")? else { return Err(map.missing("op", "which operation, such as \"scale\"")) };
        let known = [("cast", 0), ("scale", 1), ("normalize", 2), ("resize", 3), ("one_hot", 4)];
        let (column, op): (&str, Arc<dyn Op>) = match choose(&map.name("op"), name, &known)? {
            0 => ("x", cast_f32()),
            1 => ("x", scale(map.number("by")?.ok_or_else(|| map.missing("by", "the factor"))? as f32)),
            2 => {
                let mean = map.numbers("mean")?.ok_or_else(|| map.missing("mean", "a number, or one per channel"))?;
                let std = map.numbers("std")?.ok_or_else(|| map.missing("std", "a number, or one per channel"))?;
                ("x", normalize(mean, std))
            }
            3 => {
                let (height, width) = map.pair("size")?.ok_or_else(|| map.missing("size", "height and width, such as [64, 64]"))?;
                let method = map.choice("method", &[("bilinear", Method::Bilinear), ("nearest", Method::Nearest)])?;
                ("x", resize(height, width, method.unwrap_or(Method::Bilinear)))
            }
            _ => ("y", one_hot(map.count("classes", 1)?.ok_or_else(|| map.missing("classes", "how many there are"))? as usize)),
        };
        let column = map.text("column")?.unwrap_or(column).to_string();
        map.finish()?;
        maps.push((column, op));
    }
    Ok(maps)
}
