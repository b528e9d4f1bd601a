//! The sources that `data.source` may name, and what each takes of `[data]` and `[data.validation]`.

use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::source::{Csv, CsvSpec, CsvType, Feature, ParquetSpec, ShapesSpec, Standardize, Text, Window};
use plimsoll_data::{Dataset, RandomSpec, Split};
use std::path::{Path, PathBuf};
use toml::Value;

/// What rows come from.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Source {
    Digits,
    Random,
    Npy,
    ImageFolder,
    Text,
    Csv,
    Shapes,
    Npz,
    TfRecord,
    WebDataset,
    Parquet,
    ImageFiles,
    Range,
    Concatenate,
    SampleFrom,
    Interleave,
    Zip,
}

impl Source {
    /// Whether its numbers are what somebody's file says, and may be none.
    pub fn holds_numbers(self) -> bool {
        let joined = matches!(self, Source::Concatenate | Source::SampleFrom | Source::Interleave | Source::Zip);
        joined || matches!(self, Source::Npy | Source::Npz | Source::TfRecord | Source::Parquet)
    }
}

pub(super) const SOURCES: [(&str, Source); 17] = [
    ("digits", Source::Digits),
    ("random", Source::Random),
    ("npy", Source::Npy),
    ("image_folder", Source::ImageFolder),
    ("text", Source::Text),
    ("csv", Source::Csv),
    ("shapes", Source::Shapes),
    ("npz", Source::Npz),
    ("tfrecord", Source::TfRecord),
    ("webdataset", Source::WebDataset),
    ("parquet", Source::Parquet),
    ("image_files", Source::ImageFiles),
    ("range", Source::Range),
    ("concatenate", Source::Concatenate),
    ("sample_from", Source::SampleFrom),
    ("interleave", Source::Interleave),
    ("zip", Source::Zip),
];

/// A source that was opened, with what validation rows have to share with it.
pub(super) enum Opened {
    /// Rows to learn from, and those the source itself holds out.
    Rows(Dataset, Option<Dataset>),
    ImageFolder(Dataset),
    /// Windows of a text, and where the part to learn from ends.
    Text {
        whole: Text,
        training: Text,
        split: Option<f64>,
    },
    /// The same of a table.
    Csv {
        training: Csv,
        split: Option<f64>,
        entangled: bool,
    },
    Shapes {
        rows: Dataset,
        height: usize,
        width: usize,
        most: usize,
    },
}

impl Opened {
    /// Opens what a table says; `lenient` if bad rows are left out further on.
    pub fn new(data: &Reader<'_>, kind: Source, folder: &Path, lenient: bool) -> Result<Opened> {
        let lenient = lenient || super::stages::leave_out_errors(data);
        match kind {
            Source::Digits => Ok(Opened::Rows(Dataset::digits(Split::Train), Some(Dataset::digits(Split::Test)))),
            Source::Npy if data.value("files").is_some() => {
                let files = columns(data, "files", "{ x = \"images.npy\", digit = \"digits.npy\" }")?;
                let files: Vec<(&str, PathBuf)> = files.into_iter().map(|(column, file)| (column, folder.join(file))).collect();
                Ok(Opened::Rows(Dataset::npy(&files)?, None))
            }
            Source::Npy => {
                let x = path(data, folder, "x", "the path of a .npy file")?;
                // Rows can be looked at without labels; what learns from them asks for some.
                let y = data.text("y")?.map(|y| ("y", folder.join(y)));
                let files: Vec<(&str, PathBuf)> = [("x", x)].into_iter().chain(y).collect();
                Ok(Opened::Rows(Dataset::npy(&files)?, None))
            }
            Source::Npz => {
                let path = path(data, folder, "path", "the path of a .npz file")?;
                if data.value("arrays").is_some_and(Value::is_table) {
                    let arrays = columns(data, "arrays", "{ x = \"images\", digit = \"digits\" }")?;
                    return Ok(Opened::Rows(Dataset::npz(path, &arrays)?, None));
                }
                let names = data.texts("arrays")?.unwrap_or_else(|| vec!["x".into(), "y".into()]);
                let [x, y] = &names[..] else {
                    let what = format!("`{}` is {names:?}, but should be two names, such as [\"images\", \"labels\"]", data.name("arrays"));
                    return Err(Error::Config(what));
                };
                Ok(Opened::Rows(Dataset::npz(path, &[("x", x), ("y", y)])?, None))
            }
            Source::TfRecord => {
                let path = path(data, folder, "path", "the path of a TFRecord file, or a pattern such as train-*.tfrecord")?;
                // Rows can be looked at without labels; what learns from them asks for some.
                let label = data.value("label").map(|_| feature(data, "label")).transpose()?;
                let features: Vec<(&str, Feature)> =
                    [("x", feature(data, "input")?)].into_iter().chain(label.map(|label| ("y", label))).collect();
                let Some(table) = data.section("interleave")? else {
                    return Ok(Opened::Rows(Dataset::tfrecord(path, &features)?, None));
                };
                let files = plimsoll_data::source::files(path)?;
                let parts = files.iter().map(|file| Dataset::tfrecord(file, &features)).collect::<Result<Vec<_>, _>>()?;
                let cycle = table.count("cycle", 1)?.unwrap_or(4) as usize;
                let block = table.count("block", 1)?.unwrap_or(1) as usize;
                table.finish()?;
                Ok(Opened::Rows(Dataset::interleave_parallel(parts, cycle, block), None))
            }
            Source::WebDataset => {
                let path = path(data, folder, "path", "the path of a tar file, or a pattern such as train-*.tar")?;
                Ok(Opened::Rows(Dataset::webdataset(path)?, None))
            }
            Source::Parquet => {
                let path = path(data, folder, "path", "the path of a Parquet file")?;
                // Rows can be looked at without labels; what learns from them asks for some.
                let mut spec = ParquetSpec::new().targets(data.texts("target")?.unwrap_or_default());
                if let Some(features) = data.texts("features")? {
                    spec = spec.features(features);
                }
                if let Some(value) = data.value("row_groups") {
                    let groups = data.counts("row_groups").ok().flatten().unwrap_or_default();
                    let [start, end] = groups[..] else {
                        return Err(data.wrong("row_groups", value, "the first group of rows and the one after the last, such as [0, 8]"));
                    };
                    spec = spec.row_groups(start..end);
                }
                Ok(Opened::Rows(Dataset::parquet(path, &spec)?, None))
            }
            Source::Concatenate | Source::SampleFrom | Source::Interleave | Source::Zip => {
                Ok(Opened::Rows(super::joined::rows(data, kind, folder, lenient)?, None))
            }
            Source::ImageFiles => {
                let path = path(data, folder, "path", "a pattern of pictures, such as photos/**/*.jpg")?;
                Ok(Opened::Rows(Dataset::image_files(path)?, None))
            }
            Source::Range => {
                let number = |key: &'static str, usual: Option<i32>| match data.value(key) {
                    None => usual.ok_or_else(|| data.missing(key, "the number to end before")),
                    Some(value) => {
                        let wrong = || data.wrong(key, value, "a whole number of 32 bits");
                        value.as_integer().and_then(|number| i32::try_from(number).ok()).ok_or_else(wrong)
                    }
                };
                Ok(Opened::Rows(Dataset::range(number("start", Some(0))?, number("stop", None)?, number("step", Some(1))?)?, None))
            }
            Source::Random => Ok(Opened::Rows(random(data)?, None)),
            Source::ImageFolder => Ok(Opened::ImageFolder(image_folder(data, folder, None)?)),
            Source::Text => text(data, folder),
            Source::Csv => csv(data, folder, lenient),
            Source::Shapes => {
                let (height, width) = data.pair("size")?.unwrap_or((64, 64));
                let most = data.count("shapes", 1)?.unwrap_or(4) as usize;
                Ok(Opened::Shapes { rows: shapes(data, height, width, most)?, height, width, most })
            }
        }
    }

    /// The rows to learn from.
    pub fn rows(&self) -> Dataset {
        match self {
            Opened::Rows(rows, _) | Opened::ImageFolder(rows) | Opened::Shapes { rows, .. } => rows.clone(),
            Opened::Text { training, .. } => training.clone().into(),
            Opened::Csv { training, .. } => training.clone().into(),
        }
    }

    /// Whether each row depends on more than its own values, so that the last of them cannot simply be held out.
    pub fn entangled(&self) -> bool {
        matches!(self, Opened::Text { .. } | Opened::Csv { entangled: true, .. })
    }

    /// What is held out where nothing is said about it.
    pub fn held_out(&self) -> Result<Option<Dataset>> {
        Ok(match self {
            Opened::Rows(_, held_out) => held_out.clone(),
            Opened::Text { whole, split: Some(split), .. } => Some(whole.part(*split, 1.0)?.into()),
            Opened::Csv { training, split: Some(split), .. } => Some(training.part(*split, 1.0)?.into()),
            _ => None,
        })
    }

    /// The rows of `[data.validation]`: of the same kind, what has to be alike is taken over.
    pub fn validation(&self, table: &Reader<'_>, kind: Source, folder: &Path) -> Result<Dataset> {
        let other = table.choice("source", &SOURCES)?.unwrap_or(kind);
        if other != kind {
            return Ok(Opened::new(table, other, folder, false)?.rows());
        }
        match self {
            Opened::Rows(_, Some(held_out)) => Ok(held_out.clone()),
            Opened::Rows(..) => Ok(Opened::new(table, kind, folder, false)?.rows()),
            Opened::ImageFolder(rows) => image_folder(table, folder, Some(rows.class_names())),
            Opened::Shapes { height, width, most, .. } => shapes(table, *height, *width, *most),
            Opened::Text { whole, split, .. } => {
                let text = match (table.text("path")?, split) {
                    (Some(path), _) => Text::open_with(&folder.join(path), whole.context(), Some(whole.vocabulary()))?,
                    (None, Some(split)) => whole.part(*split, 1.0)?,
                    (None, None) => return Err(table.missing("path", "the text to validate on; or set `data.split`, such as 0.9")),
                };
                let stride = table.count("stride", 1)?.unwrap_or(whole.context() as u64);
                Ok(text.stride(stride as usize)?.into())
            }
            Opened::Csv { training, split, .. } => {
                let rows = match table.text("path")? {
                    Some(path) => Some(training.other_file(&folder.join(path))?),
                    None => None,
                };
                match (range(table)?, split) {
                    (Some((start, end)), _) => Ok(rows.as_ref().unwrap_or(training).rows(start..end)?.into()),
                    (None, Some(split)) if rows.is_none() => Ok(training.part(*split, 1.0)?.into()),
                    (None, _) => {
                        let rows = rows.ok_or_else(|| table.missing("rows", "the rows to validate on, such as [8640, 11520]"))?;
                        Ok(rows.into())
                    }
                }
            }
        }
    }
}

/// A table of columns and what each is read from.
fn columns<'a>(data: &Reader<'a>, key: &'static str, example: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let wanted = format!("a table of columns, such as {example}");
    let Some(Value::Table(table)) = data.value(key) else {
        return Err(data.value(key).map_or_else(|| data.missing(key, &wanted), |value| data.wrong(key, value, &wanted)));
    };
    table
        .iter()
        .map(|(column, name)| Ok((column.as_str(), name.as_str().ok_or_else(|| data.wrong(key, &Value::Table(table.clone()), &wanted))?)))
        .collect()
}

fn path(data: &Reader<'_>, folder: &Path, key: &'static str, what: &str) -> Result<PathBuf> {
    Ok(folder.join(data.text(key)?.ok_or_else(|| data.missing(key, what))?))
}

/// A feature of a record, such as `input = { name = "pixels", dtype = "f32", shape = [28, 28, 1] }`.
fn feature(data: &Reader<'_>, key: &'static str) -> Result<Feature> {
    let what = "a table such as { name = \"pixels\", dtype = \"f32\", shape = [28, 28, 1] }";
    let table = data.section(key)?.ok_or_else(|| data.missing(key, what))?;
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "what the feature is called in the records"))?;
    let shape = table.counts("shape")?.unwrap_or_default();
    let kinds = [("f32", 0), ("i32", 1), ("u8", 2), ("image", 3)];
    let feature = match table.choice("dtype", &kinds)?.ok_or_else(|| table.missing("dtype", "f32, i32, u8 or image"))? {
        0 => Feature::f32(name, shape),
        1 => Feature::i32(name, shape),
        2 => Feature::u8(name, shape),
        _ => Feature::picture(name),
    };
    let padding = match table.value("padded") {
        None | Some(Value::Boolean(false)) => None,
        Some(Value::Boolean(true)) => Some(0.0),
        Some(Value::Integer(value)) => Some(*value as f32),
        Some(Value::Float(value)) => Some(*value as f32),
        Some(other) => return Err(table.wrong("padded", other, "true, or the number that stands where a record has no value")),
    };
    let up_to = table.flag("up_to")?.unwrap_or(false);
    table.finish()?;
    match padding {
        Some(_) if up_to => {
            let what = format!(
                "`{0}.padded` and `{0}.up_to` exclude each other: rows are padded when they are read, or batch by batch",
                data.name(key)
            );
            Err(Error::Config(what))
        }
        Some(value) => Ok(feature.padded_with(value)),
        None => Ok(if up_to { feature.up_to() } else { feature }),
    }
}

fn image_folder(data: &Reader<'_>, folder: &Path, classes: Option<Vec<String>>) -> Result<Dataset> {
    let path = path(data, folder, "path", "a folder with one folder of pictures per class")?;
    let classes = match data.text("classes")? {
        Some(other) => Some(Dataset::image_folder(folder.join(other))?.class_names()),
        None => classes,
    };
    Ok(match classes {
        Some(classes) => Dataset::image_folder_with(path, &classes)?,
        None => Dataset::image_folder(path)?,
    })
}

fn random(data: &Reader<'_>) -> Result<Dataset> {
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
        (None, None) => return Err(data.missing("y", "the shape of one row's labels, or `classes` for class numbers instead")),
        (Some(_), Some(_)) => {
            let what = format!("`{}` and `{}` both say what labels are; leave one of them out", data.name("y"), data.name("classes"));
            return Err(Error::Config(what));
        }
    };
    Ok(Dataset::random(spec)?)
}

fn shapes(data: &Reader<'_>, height: usize, width: usize, most: usize) -> Result<Dataset> {
    let rows = data.count("rows", 1)?.ok_or_else(|| data.missing("rows", "how many pictures to make up"))?;
    let seed = data.count("seed", 0)?.unwrap_or(0);
    Ok(Dataset::shapes(ShapesSpec::new(rows, height, width).seed(seed).at_most(most))?)
}

fn text(data: &Reader<'_>, folder: &Path) -> Result<Opened> {
    let path = path(data, folder, "path", "the path of a text file")?;
    let context = data.count("context", 1)?.ok_or_else(|| data.missing("context", "how many characters are seen at once"))?;
    let stride = data.count("stride", 1)?;
    let split = split(data)?;
    let whole = Text::open(&path, context as usize)?;
    let training = whole.part(0.0, split.unwrap_or(1.0))?.stride(stride.unwrap_or(context) as usize)?;
    Ok(Opened::Text { whole, training, split })
}

fn csv(data: &Reader<'_>, folder: &Path, lenient: bool) -> Result<Opened> {
    let path = path(data, folder, "path", "the path of a CSV file")?;
    // Rows can be looked at without labels; what learns from them asks for some.
    let mut spec = CsvSpec::new().targets(data.texts("target")?.unwrap_or_default());
    if lenient {
        spec = spec.lenient();
    }
    if let Some(features) = data.texts("features")? {
        spec = spec.features(features);
    }
    if let Some(types) = data.value("types") {
        let table = types.as_table().ok_or_else(|| data.wrong("types", types, "a table such as { price = \"float\" }"))?;
        for (name, kind) in table {
            let kind = match kind.as_str() {
                Some("float") => CsvType::Float,
                Some("int") => CsvType::Int,
                _ => return Err(data.wrong(&format!("types.{name}"), kind, "\"float\" or \"int\"")),
            };
            spec = spec.column_type(name, kind);
        }
    }
    let window = data.section("window")?;
    let mut entangled = window.is_some();
    if let Some(window) = window {
        let length = window.count("length", 1)?.ok_or_else(|| window.missing("length", "how many rows are known"))?;
        let horizon = window.count("horizon", 1)?.ok_or_else(|| window.missing("horizon", "how many rows are to be foretold"))?;
        let stride = window.count("stride", 1)?.unwrap_or(1);
        window.finish()?;
        spec = spec.window(Window { length: length as usize, horizon: horizon as usize, stride: stride as usize });
    }
    let standardize = match data.value("standardize") {
        None | Some(Value::Boolean(false)) => None,
        Some(Value::Boolean(true)) => Some(Standardize::All),
        Some(Value::String(word)) if word == "features" => Some(Standardize::Features),
        Some(other) => return Err(data.wrong("standardize", other, "true, false or \"features\"")),
    };
    if let Some(which) = standardize {
        spec = spec.standardize(which);
        entangled = true;
    }
    let split = split(data)?;
    let spec = match (range(data)?, split) {
        (Some(_), Some(_)) => return Err(Error::Config("`data.rows` and `data.split` exclude each other".to_string())),
        (Some((start, end)), None) => spec.rows(start..end),
        (None, Some(split)) => spec.part(0.0, split),
        (None, None) => spec,
    };
    Ok(Opened::Csv { training: Csv::open(&path, &spec)?, split, entangled })
}

/// The share of a file to learn from; the rest is held out.
fn split(data: &Reader<'_>) -> Result<Option<f64>> {
    match data.number("split")? {
        Some(share) if !(share > 0.0 && share < 1.0) => {
            Err(Error::Config(format!("`{}` is {share}, but should be the share to learn from, such as 0.9", data.name("split"))))
        }
        share => Ok(share),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_made_up_rows_are_said_once() {
        let told = |labels: &str| {
            let table = format!("[data]\nrows = 3\nx = [2]\n{labels}").parse::<toml::Table>().unwrap();
            let data = Reader::root(&table).section("data").unwrap().unwrap();
            random(&data).err().map(|error| error.to_string())
        };
        assert_eq!(told("classes = 3"), None);
        assert_eq!(told("y = [1]"), None);
        assert_eq!(told("").unwrap(), "`data.y` is missing: the shape of one row's labels, or `classes` for class numbers instead");
        assert_eq!(told("y = [1]\nclasses = 3").unwrap(), "`data.y` and `data.classes` both say what labels are; leave one of them out");
    }
}
