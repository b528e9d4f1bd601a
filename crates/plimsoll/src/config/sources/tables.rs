//! Tables of numbers.

use super::text::split;
use super::{InputKind, Opened, SourceArgs, SourceKind, only_path};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::Dataset;
use plimsoll_data::source::{Csv, CsvSpec, CsvType, ParquetSpec, Standardize, Window};
use toml::Value;

pub(super) const CSV: SourceKind = SourceKind {
    name: "csv",
    keys: "`path`, `target`, `features`, `types`, `window`, `standardize`, `rows` or `split` (see [tables](#tables-and-time-series))",
    rows: "a table, or windows of a time series",
    paths: &["path"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Table,
    open: csv,
    from_path: Some(only_path),
};

pub(super) const PARQUET: SourceKind = SourceKind {
    name: "parquet",
    keys: "`path`, `target`, `features` as for `csv`; `row_groups = [0, 8]`",
    rows: "columns of numbers, page by page, as a stream; only these columns and row groups are read. \
           Plain or dictionary encoding; Snappy, gzip or no compression",
    paths: &["path"],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Table,
    open: parquet,
    from_path: Some(only_path),
};

fn parquet(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let path = args.path("path", "the path of a Parquet file")?;
    // Rows can be inspected without labels; training requires them.
    let mut spec = ParquetSpec::new().targets(table.texts("target")?.unwrap_or_default());
    if let Some(features) = features(args)? {
        spec = spec.features(features);
    }
    if let Some(value) = table.value("row_groups") {
        let groups = table.counts("row_groups").ok().flatten().unwrap_or_default();
        let [start, end] = groups[..] else {
            return Err(table.wrong("row_groups", value, "the first row group and the one after the last, such as [0, 8]"));
        };
        spec = spec.row_groups(start..end);
    }
    Ok(Opened::new(Dataset::parquet(path, &spec)?))
}

fn csv(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let path = args.path("path", "the path of a CSV file")?;
    // Rows can be inspected without labels; training requires them.
    let mut spec = CsvSpec::new().targets(table.texts("target")?.unwrap_or_default());
    if args.lenient {
        spec = spec.lenient();
    }
    if let Some(features) = features(args)? {
        spec = spec.features(features);
    }
    if let Some(types) = table.value("types") {
        let columns = types.as_table().ok_or_else(|| table.wrong("types", types, "a table such as { price = \"float\" }"))?;
        for (name, kind) in columns {
            let kind = match kind.as_str() {
                Some("float") => CsvType::Float,
                Some("int") => CsvType::Int,
                _ => return Err(table.wrong(&format!("types.{name}"), kind, "\"float\" or \"int\"")),
            };
            spec = spec.column_type(name, kind);
        }
    }
    let window = table.section("window")?;
    let mut overlapping = window.is_some();
    let foretells = table.value("target").is_some();
    if let Some(window) = window {
        let length = window.count("length", 1)?.ok_or_else(|| window.missing("length", "the number of rows of the input"))?;
        let (horizon, horizons) = (window.count("horizon", 1)?, window.counts("horizons")?);
        let (offset, rate) = (window.count("offset", 1)?, window.count("sampling_rate", 1)?.unwrap_or(1) as usize);
        let stride = window.count("stride", 1)?.unwrap_or(1);
        if horizons.is_some() && (horizon.is_some() || offset.is_some()) {
            let what = "lists the rows ahead that are predicted, and excludes `horizon` and `offset`";
            return Err(Error::Config(format!("`{}` {what}", window.name("horizons"))));
        }
        let sized = |horizon: u64| Window::new(length as usize, horizon as usize).offset(offset.unwrap_or(1) as usize);
        let described = match (horizon, horizons) {
            (_, Some(horizons)) => Window::new(length as usize, 0).horizons(horizons),
            (Some(horizon), None) => sized(horizon),
            (None, None) => return Err(window.missing("horizon", "the number of rows to predict")),
        };
        window.finish()?;
        // Without a target, as of new data, a window may end with the last row.
        let described = if foretells { described } else { described.horizons([]) };
        spec = spec.window(described.stride(stride as usize).sampling_rate(rate));
    }
    let standardize = match table.value("standardize") {
        None | Some(Value::Boolean(false)) => None,
        Some(Value::Boolean(true)) => Some(Standardize::All),
        Some(Value::String(word)) if word == "features" => Some(Standardize::Features),
        Some(other) => return Err(table.wrong("standardize", other, "true, false or \"features\"")),
    };
    if let Some(which) = standardize {
        spec = spec.standardize(which);
        if let Some(fitted) = args.fitted.filter(|fitted| !fitted.scales.is_empty()) {
            spec = spec.scales(fitted.scales.clone());
        }
        overlapping = true;
    }
    let (split, end) = split(table)?;
    let spec = match (range(table)?, split) {
        (Some(_), Some(_)) => return Err(Error::Config("`data.rows` and `data.split` exclude each other".to_string())),
        (Some((start, end)), None) => spec.rows(start..end),
        (None, Some(split)) => spec.part(0.0, split),
        (None, None) => spec,
    };
    let training = Csv::open(&path, &spec)?;
    let test = if end < 1.0 { Some(training.part(end, 1.0)?.into()) } else { None };
    let (rows, folder) = (training.clone().into(), args.folder.to_path_buf());
    let opened = Opened::new(rows).with_validation(move |table| {
        let held_out = || split.map(|split| training.part(split, end)).transpose();
        let Some(table) = table else { return Ok(held_out()?.map(Into::into)) };
        let other = table.text("path")?.map(|path| training.other_file(&folder.join(path))).transpose()?;
        let rows = match (range(table)?, other) {
            (Some((start, end)), other) => other.as_ref().unwrap_or(&training).rows(start..end)?,
            (None, Some(other)) => other,
            (None, None) => held_out()?.ok_or_else(|| table.missing("rows", "the rows to validate on, such as [8640, 11520]"))?,
        };
        Ok(Some(rows.into()))
    });
    Ok(Opened { overlapping, split, test, ..opened })
}

/// The columns of the input: as named, or those that a model was trained on.
fn features(args: &SourceArgs<'_>) -> Result<Option<Vec<String>>> {
    let fitted = args.fitted.map(|fitted| fitted.features.clone()).filter(|features| !features.is_empty());
    Ok(args.table.texts("features")?.or(fitted))
}

/// The first row and the one after the last.
fn range(data: &Reader<'_>) -> Result<Option<(u64, u64)>> {
    let wrong = |value| data.wrong("rows", value, "the first row and the one after the last, such as [0, 8640]");
    match (data.counts("rows"), data.value("rows")) {
        (_, None) => Ok(None),
        (Ok(Some(rows)), Some(value)) => match rows[..] {
            [start, end] => Ok(Some((start as u64, end as u64))),
            _ => Err(wrong(value)),
        },
        (_, Some(value)) => Err(wrong(value)),
    }
}
