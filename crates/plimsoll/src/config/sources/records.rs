//! TFRecord files of `tf.train.Example`.

use super::images::decode_and_resize;
use super::{InputKind, Opened, SourceArgs, SourceKind, only_path};
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_data::Dataset;
use plimsoll_data::source::{Feature, RecordFeature, RecordValues, TfRecord, files};
use std::path::Path;
use toml::{Table, Value};

pub(super) const TFRECORD: SourceKind = SourceKind {
    name: "tfrecord",
    keys: r#"`path`: a glob pattern; `input`, `label`: `{ name = "pixels", dtype = "f32", shape = [28, 28, 1], padded = false, up_to = false }`; `interleave = { cycle = 4, block = 1 }`"#,
    rows: "`tf.train.Example`; checksums are verified; files compressed with GZIP or ZLIB are decompressed as a stream of records of up to 4 MiB",
    paths: &["path"],
    unchecked_floats: true,
    has_masks: false,
    inputs: InputKind::Arrays,
    open: tfrecord,
    from_path: Some(first_features),
};

fn tfrecord(args: &SourceArgs<'_>) -> Result<Opened> {
    let table = args.table;
    let path = args.path("path", "the path of a TFRecord file, or a glob pattern such as train-*.tfrecord")?;
    // Rows can be inspected without labels; training requires them.
    let label = table.value("label").map(|_| feature(table, "label")).transpose()?;
    let features: Vec<(&str, Feature)> = [("x", feature(table, "input")?)].into_iter().chain(label.map(|label| ("y", label))).collect();
    let Some(interleave) = table.section("interleave")? else {
        return Ok(Opened::new(Dataset::tfrecord(path, &features)?));
    };
    let parts = files(path)?.iter().map(|file| Dataset::tfrecord(file, &features)).collect::<Result<Vec<_>, _>>()?;
    let cycle = interleave.count("cycle", 1)?.unwrap_or(4) as usize;
    let block = interleave.count("block", 1)?.unwrap_or(1) as usize;
    interleave.finish()?;
    Ok(Opened::new(Dataset::interleave_parallel(parts, cycle, block)))
}

/// A feature of a record, such as `input = { name = "pixels", dtype = "f32", shape = [28, 28, 1] }`.
fn feature(data: &Reader<'_>, key: &'static str) -> Result<Feature> {
    let what = "a table such as { name = \"pixels\", dtype = \"f32\", shape = [28, 28, 1] }";
    let table = data.section(key)?.ok_or_else(|| data.missing(key, what))?;
    let name = table.text("name")?.ok_or_else(|| table.missing("name", "the name of the feature in the records"))?;
    let shape = table.counts("shape")?.unwrap_or_default();
    let kinds = [("f32", 0), ("i32", 1), ("u8", 2), ("image", 3)];
    let feature = match table.choice("dtype", &kinds)?.ok_or_else(|| table.missing("dtype", "f32, i32, u8 or image"))? {
        0 => Feature::f32(name, shape),
        1 => Feature::i32(name, shape),
        2 => Feature::u8(name, shape),
        _ => Feature::image(name),
    };
    let padding = match table.value("padded") {
        None | Some(Value::Boolean(false)) => None,
        Some(Value::Boolean(true)) => Some(0.0),
        Some(Value::Integer(value)) => Some(*value as f32),
        Some(Value::Float(value)) => Some(*value as f32),
        Some(other) => return Err(table.wrong("padded", other, "true, or the value to use where a record has none")),
    };
    let up_to = table.flag("up_to")?.unwrap_or(false);
    table.finish()?;
    match padding {
        Some(_) if up_to => Err(Error::Config(format!(
            "`{0}.padded` and `{0}.up_to` exclude each other: rows are padded when they are read, or batch by batch",
            data.name(key)
        ))),
        Some(value) => Ok(feature.padded_with(value)),
        None => Ok(if up_to { feature.up_to() } else { feature }),
    }
}

/// The features that the first record suggests: an image, or else the feature with the most values; and a single
/// integer as the label.
fn first_features(path: &Path) -> Result<Table> {
    let found = TfRecord::features(path)?;
    let label = |feature: &&RecordFeature| feature.values == RecordValues::Ints && feature.count == 1;
    let named = |feature: &&RecordFeature| label(feature) && ["label", "class"].iter().any(|word| feature.name.contains(word));
    let label = found.iter().find(named).or_else(|| found.iter().find(label));
    let inputs = || found.iter().filter(|feature| Some(*feature) != label);
    let Some(input) = inputs().find(|feature| feature.is_image).or_else(|| inputs().max_by_key(|feature| feature.count)) else {
        return Err(Error::Config(format!("{}: its first record has no features to show", path.display())));
    };
    let described = |feature: &RecordFeature| {
        let dtype = match feature.values {
            RecordValues::Bytes if feature.is_image => "image",
            RecordValues::Bytes => "u8",
            RecordValues::Floats => "f32",
            RecordValues::Ints => "i32",
        };
        let mut table = Table::from_iter([("name", feature.name.as_str()), ("dtype", dtype)].map(|(key, word)| (key.into(), word.into())));
        if Some(feature) != label && dtype != "image" {
            table.insert("shape".to_string(), Value::Array(vec![Value::Integer(feature.count as i64)]));
        }
        Value::Table(table)
    };
    let mut table = only_path(path)?;
    table.insert("input".into(), described(input));
    if let Some(label) = label {
        table.insert("label".into(), described(label));
    }
    if input.is_image {
        table.insert("map".into(), decode_and_resize());
    }
    Ok(table)
}
