//! Tables: CSV, JSON lines, Parquet, Arrow.

use super::columns::table_spec;
use super::text::split;
use super::{InputKind, Opened, SourceArgs, SourceKind, only_path};
use crate::error::{Error, Result};
use crate::preprocessing::Preprocessing;
use crate::reader::Reader;
use plimsoll_data::Dataset;
use plimsoll_data::source::{ArrowSpec, Csv, CsvSpec, ParquetSpec, TableSpec, Window, arrow_files, parquet_files, table_files};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use toml::Value;

pub(super) const CSV: SourceKind = SourceKind {
    name: "csv",
    keys: "`path`: a file, a pattern or a list; `target`, `features`, `types`, `columns`, `missing`, `window`, `standardize`, `rows` or `split` \
           (see [tables](tables.md)); `delimiter`, `decimal`, `header = false`, `names`",
    rows: "a table, or windows of a time series; gzip and Zstandard are decompressed as a stream",
    paths: &["path"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Table,
    open: csv,
    from_path: Some(only_path),
};

pub(super) const JSON_LINES: SourceKind = SourceKind {
    name: "json_lines",
    keys: "`path` and the others as for `csv`",
    rows: "a JSON object per line, such as `{\"age\": 31, \"city\": \"Bern\"}`; lists of numbers are columns of lists",
    paths: &["path"],
    unchecked_floats: false,
    has_masks: false,
    inputs: InputKind::Table,
    open: json_lines,
    from_path: Some(only_path),
};

pub(super) const PARQUET: SourceKind = SourceKind {
    name: "parquet",
    keys: "`path`: a file, a folder, a pattern or a list; `target`, `features` and the others as for `csv`; `row_groups = [0, 8]`",
    rows: "columns of numbers, texts, dates and lists of numbers, or windows of a time series, page by page, as a stream; only these columns and row groups are \
           read. All encodings; Snappy, gzip, zstd, LZ4, Brotli or no compression",
    paths: &["path"],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Table,
    open: parquet,
    from_path: Some(only_path),
};

pub(super) const ARROW: SourceKind = SourceKind {
    name: "arrow",
    keys: "`path`: a file, a folder, a pattern or a list; `target`, `features` and the others as for `csv`",
    rows: "columns of Arrow files and streams and of Feather files (version 2), as a stream, with the types and windows of `parquet`; buffers \
           compressed with LZ4 or zstd, or not at all",
    paths: &["path"],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Table,
    open: arrow,
    from_path: Some(only_path),
};

impl SourceKind {
    /// The kind of a file with a table, by its first bytes; of a compressed text, by its name. Where they do not say,
    /// this kind.
    pub(in crate::config) fn of_table_file(&'static self, path: &Path) -> Result<&'static SourceKind> {
        let mut head = Vec::new();
        let read = File::open(path).and_then(|file| file.take(1 << 10).read_to_end(&mut head));
        read.map_err(|source| Error::Io { action: "open", path: path.to_path_buf(), source })?;
        let text = head.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&head).trim_ascii_start();
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        let is_named = |extensions: &[&str]| extensions.iter().any(|extension| name.contains(extension));
        let is_compressed = head.starts_with(&[0x1F, 0x8B]) || head.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]);
        Ok(match () {
            () if head.starts_with(b"PAR1") => &PARQUET,
            () if [&b"ARROW1"[..], b"FEA1", &[0xFF; 4]].iter().any(|magic| head.starts_with(magic)) => &ARROW,
            () if is_compressed && is_named(&[".jsonl", ".ndjson", ".json"]) => &JSON_LINES,
            () if is_compressed && is_named(&[".csv", ".tsv"]) => &CSV,
            () if is_compressed => self,
            () if text.starts_with(b"{") => &JSON_LINES,
            () => &CSV,
        })
    }
}

fn arrow(args: &SourceArgs<'_>) -> Result<Opened> {
    let files = paths(args, "the path of an Arrow file or folder, a pattern, or a list of paths", arrow_files)?;
    stream_table::<ArrowSpec>(args, files, arrow_files, &|spec| spec)
}

fn parquet(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let files = paths(args, "the path of a Parquet file or folder, a pattern, or a list of paths", parquet_files)?;
    let Some(value) = table.value("row_groups") else { return stream_table::<ParquetSpec>(args, files, parquet_files, &|spec| spec) };
    let groups = table.counts("row_groups").ok().flatten().unwrap_or_default();
    let [start, end] = groups[..] else {
        return Err(table.wrong("row_groups", value, "the first row group and the one after the last, such as [0, 8]"));
    };
    stream_table(args, files, parquet_files, &|spec: ParquetSpec| spec.row_groups(start..end))
}

/// A table that is read as a stream.
trait StreamSpec: Clone + From<TableSpec> + 'static {
    fn window(self, window: Window) -> Self;
    fn rows(self, rows: Range<u64>) -> Self;
    fn part(self, from: f64, to: f64) -> Self;
    fn fitted_to(self, rows: u64, keep: &dyn Fn(u64) -> bool) -> Self;
    fn open(&self, files: &[PathBuf]) -> Result<Dataset>;
}

impl StreamSpec for ParquetSpec {
    fn window(self, window: Window) -> ParquetSpec {
        ParquetSpec::window(self, window)
    }

    fn rows(self, rows: Range<u64>) -> ParquetSpec {
        ParquetSpec::rows(self, rows)
    }

    fn part(self, from: f64, to: f64) -> ParquetSpec {
        ParquetSpec::part(self, from, to)
    }

    fn fitted_to(self, rows: u64, keep: &dyn Fn(u64) -> bool) -> ParquetSpec {
        ParquetSpec::fitted_to(self, rows, keep)
    }

    fn open(&self, files: &[PathBuf]) -> Result<Dataset> {
        Ok(Dataset::parquet_of(files, self)?)
    }
}

impl StreamSpec for ArrowSpec {
    fn window(self, window: Window) -> ArrowSpec {
        ArrowSpec::window(self, window)
    }

    fn rows(self, rows: Range<u64>) -> ArrowSpec {
        ArrowSpec::rows(self, rows)
    }

    fn part(self, from: f64, to: f64) -> ArrowSpec {
        ArrowSpec::part(self, from, to)
    }

    fn fitted_to(self, rows: u64, keep: &dyn Fn(u64) -> bool) -> ArrowSpec {
        ArrowSpec::fitted_to(self, rows, keep)
    }

    fn open(&self, files: &[PathBuf]) -> Result<Dataset> {
        Ok(Dataset::arrow_of(files, self)?)
    }
}

/// Opens a table as a stream; what is fitted is fitted to the rows that are trained on.
fn stream_table<S: StreamSpec>(args: &SourceArgs<'_>, files: Vec<PathBuf>, list: ListFiles, limit: &dyn Fn(S) -> S) -> Result<Opened> {
    let table = args.table;
    let (window, (split, end), rows) = (window_of(table)?, split(table)?, range(table)?);
    let of_columns = |spec: TableSpec| {
        let spec = limit(S::from(spec));
        window.iter().fold(spec, |spec, window| spec.window(window.clone()))
    };
    let spec = of_columns(table_spec(args)?);
    let spec = match (rows, split) {
        (Some(_), Some(_)) => return Err(rows_and_split()),
        (Some((start, end)), None) => spec.rows(start..end),
        (None, Some(split)) => spec.part(0.0, split),
        (None, None) => spec,
    };
    let training = spec.open(&files)?;
    // Other rows are encoded as these were fitted.
    let preprocessing = Preprocessing::of(&training);
    let fitted = of_columns(table_spec(&SourceArgs { fitted: Some(&preprocessing), ..*args })?);
    let test = if end < 1.0 { Some(fitted.clone().part(end, 1.0).open(&files)?) } else { None };
    let mut opened = Opened::new(training.clone());
    if window.is_some() || rows.is_some() || split.is_some() {
        let (folder, files) = (args.folder.to_path_buf(), files.clone());
        opened = opened.with_validation(move |table| {
            let held_out = || split.map(|split| fitted.clone().part(split, end).open(&files)).transpose();
            let Some(table) = table else { return held_out() };
            let others = table.texts("path")?.map(|paths| listed(&folder, &paths, list)).transpose()?;
            let rows = match (range(table)?, others) {
                (Some((start, end)), others) => fitted.clone().rows(start..end).open(others.as_deref().unwrap_or(&files))?,
                (None, Some(others)) => fitted.open(&others)?,
                (None, None) => held_out()?.ok_or_else(|| table.missing("rows", "the rows to validate on, such as [8640, 11520]"))?,
            };
            Ok(Some(rows))
        });
    }
    let fits = args.fitted.is_none_or(|fitted| fitted.columns.is_empty());
    if let Some(rows) = training.size().filter(|_| fits && training.is_fitted()) {
        opened = opened.with_refit(move |keep| spec.clone().fitted_to(rows, keep).open(&files));
    }
    Ok(Opened { overlapping: window.is_some(), split, test, ..opened })
}

fn rows_and_split() -> Error {
    Error::Config("`data.rows` and `data.split` exclude each other".to_string())
}

fn csv(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let mut spec = CsvSpec::from(table_spec(args)?);
    if let Some(delimiter) = byte(table, "delimiter", "one character, such as \";\"")? {
        spec = spec.delimiter(delimiter);
    }
    if let Some(mark) = byte(table, "decimal", "\".\" or \",\"")? {
        spec = spec.decimal(mark);
    }
    if !table.flag("header")?.unwrap_or(true) {
        spec = spec.no_header();
    }
    if let Some(names) = table.texts("names")? {
        spec = spec.names(names);
    }
    text_table(args, spec)
}

fn json_lines(args: &SourceArgs<'_>) -> Result<Opened> {
    text_table(args, CsvSpec::from(table_spec(args)?).json_lines())
}

/// A single character.
fn byte(table: &Reader<'_>, key: &'static str, wanted: &str) -> Result<Option<u8>> {
    match table.text(key)?.map(str::as_bytes) {
        None => Ok(None),
        Some(b"tab") => Ok(Some(b'\t')),
        Some(&[byte]) => Ok(Some(byte)),
        Some(_) => Err(table.wrong(key, table.value(key).unwrap_or(&Value::Boolean(false)), wanted)),
    }
}

/// The files of `path`: one, those that match a pattern, or a list of either.
fn paths(args: &SourceArgs<'_>, what: &str, list: ListFiles) -> Result<Vec<PathBuf>> {
    let paths = args.table.texts("path")?.filter(|paths| !paths.is_empty()).ok_or_else(|| args.table.missing("path", what))?;
    listed(args.folder, &paths, list)
}

/// Finds the files of a path.
type ListFiles = fn(&Path) -> std::result::Result<Vec<PathBuf>, plimsoll_data::DataError>;

fn listed(folder: &Path, paths: &[String], list: ListFiles) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        files.extend(list(&folder.join(path))?);
    }
    Ok(files)
}

/// The windows of a time series.
fn forecast_window(table: &Reader<'_>) -> Result<Option<Window>> {
    let Some(window) = table.section("window")? else { return Ok(None) };
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
    Ok(Some(described.stride(stride as usize).sampling_rate(rate)))
}

/// The same. Without a target, as of new data, a window may end with the last row.
fn window_of(table: &Reader<'_>) -> Result<Option<Window>> {
    let has_target = table.value("target").is_some();
    Ok(forecast_window(table)?.map(|window| if has_target { window } else { window.horizons([]) }))
}

/// How many rows ahead each prediction of a forecast is; none for other tables.
pub(in crate::config) fn rows_ahead(table: &Reader<'_>) -> Result<Vec<usize>> {
    Ok(forecast_window(table)?.map(|window| window.ahead().to_vec()).unwrap_or_default())
}

fn text_table(args: &SourceArgs<'_>, mut spec: CsvSpec) -> Result<Opened> {
    let table = args.table;
    let files = paths(args, "the path of a table, a pattern, or a list of paths", table_files)?;
    if args.lenient {
        spec = spec.lenient();
    }
    let window = window_of(table)?;
    let overlapping = window.is_some();
    if let Some(window) = window {
        spec = spec.window(window);
    }
    let (split, end) = split(table)?;
    let spec = match (range(table)?, split) {
        (Some(_), Some(_)) => return Err(rows_and_split()),
        (Some((start, end)), None) => spec.rows(start..end),
        (None, Some(split)) => spec.part(0.0, split),
        (None, None) => spec,
    };
    let training = Csv::open_files(&files, &spec)?;
    let test = if end < 1.0 { Some(training.part(end, 1.0)?.dataset()?) } else { None };
    let (rows, folder) = (training.clone().dataset()?, args.folder.to_path_buf());
    let whole = training.clone();
    let opened = Opened::new(rows).with_validation(move |table| {
        let held_out = || split.map(|split| training.part(split, end)).transpose();
        let Some(table) = table else { return held_out()?.map(|rows| Ok(rows.dataset()?)).transpose() };
        let other = table.text("path")?.map(|path| training.other_file(&folder.join(path))).transpose()?;
        let rows = match (range(table)?, other) {
            (Some((start, end)), other) => other.as_ref().unwrap_or(&training).rows(start..end)?,
            (None, Some(other)) => other,
            (None, None) => held_out()?.ok_or_else(|| table.missing("rows", "the rows to validate on, such as [8640, 11520]"))?,
        };
        Ok(Some(rows.dataset()?))
    });
    // What is fitted is fitted to the rows that are trained on.
    let fits = args.fitted.is_none_or(|fitted| fitted.columns.is_empty()) && whole.is_fitted();
    let opened = if fits { opened.with_refit(move |keep| Ok(whole.fitted_to(keep)?.dataset()?)) } else { opened };
    Ok(Opened { overlapping, split, test, ..opened })
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
