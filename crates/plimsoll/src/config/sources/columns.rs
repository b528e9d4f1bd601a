//! The keys of tables that say what columns hold and how they become numbers.

use super::SourceArgs;
use crate::error::{Error, Result};
use crate::reader::Reader;
use plimsoll_core::Bytes;
use plimsoll_data::source::{
    ColumnKind, ColumnOptions, Encode, Fill, Missing, Output, Standardize, TableSpec, TextOutput, TextSplit, TextStandardize, Tokenization,
    VocabularyOptions,
};
use std::path::Path;
use toml::Value;

/// The kinds of columns by name, and whether their numbers are integers.
const KINDS: [(&str, (ColumnKind, Option<bool>)); 9] = [
    ("number", (ColumnKind::Number, None)),
    ("float", (ColumnKind::Number, Some(false))),
    ("int", (ColumnKind::Number, Some(true))),
    ("bool", (ColumnKind::Boolean, None)),
    ("boolean", (ColumnKind::Boolean, None)),
    ("date", (ColumnKind::Date, None)),
    ("category", (ColumnKind::Category, None)),
    ("text", (ColumnKind::Text, None)),
    ("list", (ColumnKind::List, None)),
];

/// The memory for the distinct values of columns while they are fitted, where the budget is large.
const MOST_FITTING: Bytes = Bytes::mib(32);

/// What the keys of a table ask for: columns and their roles, types, missing values, encodings.
pub(super) fn table_spec(args: &SourceArgs<'_>) -> Result<TableSpec> {
    let table = args.table;
    // Rows can be inspected without labels; training requires them.
    let mut spec = TableSpec::new().targets(table.texts("target")?.unwrap_or_default());
    if let Some(host) = args.host {
        // Sets grow to twice their size, and dropping rare tokens takes that twice for a moment: half of the budget at
        // most.
        spec = spec.fitting_memory(MOST_FITTING.min(Bytes(host.0 / 8)));
    }
    spec = spec.drop(table.texts("drop")?.unwrap_or_default());
    let select = table.texts("select")?;
    let features = table.texts("features")?;
    if select.is_some() && features.is_some() {
        return Err(Error::Config("`data.select` and `data.features` are the same; use one of the two".to_string()));
    }
    let fitted = args.fitted.map(|fitted| fitted.features.clone()).filter(|features| !features.is_empty());
    if let Some(features) = features.or(select).or(fitted) {
        spec = spec.features(features);
    }
    if let Some(weight) = table.text("sample_weight")? {
        spec = spec.weight(weight);
    }
    for (old, new) in texts_of(table, "rename", "a table of old and new names, such as { SalePrice = \"price\" }")? {
        spec = spec.rename_one(old, new);
    }
    for (name, columns) in lists_of(table, "inputs", "a table of inputs and their columns, such as { numbers = [\"age\", \"fare\"] }")? {
        spec = spec.input(name, columns);
    }
    for (name, columns) in lists_of(table, "outputs", "a table of labels and their columns, such as { price = \"price\" }")? {
        spec = spec.output(name, columns);
    }
    if let Some(values) = table.texts("missing_values")? {
        spec = spec.missing_values(values);
    }
    if let Some(missing) = missing(table, "missing")? {
        spec = spec.missing(missing);
    }
    if table.flag("indicator")?.unwrap_or(false) {
        spec = spec.indicator();
    }
    spec = types(table, spec)?;
    if let Some(columns) = table.section("columns")? {
        for (name, value, inner) in columns.entries() {
            spec = spec.column(name, options(&columns, name, value, inner, args.folder)?);
        }
    }
    let standardize = match table.value("standardize") {
        None | Some(Value::Boolean(false)) => None,
        Some(Value::Boolean(true)) => Some(Standardize::All),
        Some(Value::String(word)) if word == "features" => Some(Standardize::Features),
        Some(other) => return Err(table.wrong("standardize", other, "true, false or \"features\"")),
    };
    if let Some(which) = standardize {
        spec = spec.standardize(which);
    }
    if let Some(fitted) = args.fitted {
        spec = spec.fitted(fitted.columns.clone());
        if standardize.is_some() && fitted.columns.is_empty() && !fitted.scales.is_empty() {
            spec = spec.scales(fitted.scales.clone());
        }
    }
    Ok(spec)
}

/// `types = { price = "float" }`.
fn types(table: &Reader<'_>, mut spec: TableSpec) -> Result<TableSpec> {
    let Some(types) = table.value("types") else { return Ok(spec) };
    let columns = types.as_table().ok_or_else(|| table.wrong("types", types, "a table such as { price = \"float\" }"))?;
    for (name, kind) in columns {
        spec = spec.column(name, of_kind(table, &format!("types.{name}"), kind)?);
    }
    Ok(spec)
}

fn of_kind(table: &Reader<'_>, key: &str, value: &Value) -> Result<ColumnOptions> {
    let known = value.as_str().and_then(|word| KINDS.iter().find(|(name, _)| *name == word));
    let Some((_, (kind, integer))) = known else {
        return Err(table.wrong(key, value, "\"float\", \"int\", \"bool\", \"date\", \"category\", \"text\" or \"list\""));
    };
    // A type that says only float or int leaves open what cells hold, such as Booleans.
    let kind = if integer.is_some() { Some(ColumnKind::Number) } else { Some(*kind) };
    Ok(ColumnOptions { kind, integer: *integer, ..ColumnOptions::default() })
}

/// A table of texts.
fn texts_of<'a>(table: &Reader<'a>, key: &'static str, wanted: &str) -> Result<Vec<(&'a str, &'a str)>> {
    let Some(value) = table.value(key) else { return Ok(Vec::new()) };
    let entries = value.as_table().ok_or_else(|| table.wrong(key, value, wanted))?;
    entries.iter().map(|(name, text)| Ok((name.as_str(), text.as_str().ok_or_else(|| table.wrong(key, value, wanted))?))).collect()
}

/// A table of names, or lists of them.
fn lists_of<'a>(table: &Reader<'a>, key: &'static str, wanted: &str) -> Result<Vec<(&'a str, Vec<String>)>> {
    let Some(value) = table.value(key) else { return Ok(Vec::new()) };
    let entries = value.as_table().ok_or_else(|| table.wrong(key, value, wanted))?;
    let list = |value: &'a Value| match value {
        Value::String(name) => Some(vec![name.clone()]),
        Value::Array(names) => names.iter().map(|name| name.as_str().map(str::to_string)).collect(),
        _ => None,
    };
    entries.iter().map(|(name, columns)| Ok((name.as_str(), list(columns).ok_or_else(|| table.wrong(key, value, wanted))?))).collect()
}

/// `missing = "mean"`, `"most_frequent"`, `"error"` or a value in `{ constant = 0 }`.
fn missing(table: &Reader<'_>, key: &'static str) -> Result<Option<Missing>> {
    let wanted = "\"error\", \"mean\", \"most_frequent\", a number, or { constant = \"unknown\" }";
    Ok(Some(match table.value(key) {
        None => return Ok(None),
        Some(Value::String(word)) if word == "error" => Missing::Error,
        Some(Value::String(word)) if word == "mean" => Missing::Mean,
        Some(Value::String(word)) if word == "most_frequent" => Missing::MostFrequent,
        Some(value) => {
            let constant = value.as_table().and_then(|table| table.get("constant")).unwrap_or(value);
            match constant {
                Value::Integer(number) => Missing::Constant(Fill::Number(*number as f64)),
                Value::Float(number) => Missing::Constant(Fill::Number(*number)),
                Value::String(text) if value.is_table() => Missing::Constant(Fill::Text(text.clone())),
                _ => return Err(table.wrong(key, value, wanted)),
            }
        }
    }))
}

/// An entry of `columns`: a type, or a table.
fn options(columns: &Reader<'_>, name: &str, value: &Value, inner: Option<Reader<'_>>, folder: &Path) -> Result<ColumnOptions> {
    let Some(table) = inner else { return of_kind(columns, name, value) };
    let mut options = match table.value("type") {
        Some(kind) => of_kind(&table, "type", kind)?,
        None => ColumnOptions::default(),
    };
    options.missing = missing(&table, "missing")?;
    options.indicator = table.flag("indicator")?;
    options.format = table.text("format")?.map(str::to_string);
    let is_text = options.kind == Some(ColumnKind::Text);
    options.encode = match table.choice("encode", &ENCODINGS)? {
        Some(read) => Some(read(&table, folder)?),
        None if is_text => Some(vectorize(&table, folder)?),
        None => None,
    };
    table.finish()?;
    Ok(options)
}

type ReadEncode = fn(&Reader<'_>, &Path) -> Result<Encode>;

const ENCODINGS: [(&str, ReadEncode); 8] = [
    ("none", |_, _| Ok(Encode::AsIs)),
    ("normalize", normalize),
    ("rescale", |table, _| Ok(Encode::Rescale(table.number("scale")?.unwrap_or(1.0), table.number("offset")?.unwrap_or(0.0)))),
    ("lookup", |table, _| Ok(Encode::Lookup(vocabulary(table)?, output(table)?))),
    ("hash", hash),
    ("discretize", discretize),
    ("vectorize", vectorize),
    ("tokenize", tokenize),
];

fn normalize(table: &Reader<'_>, _: &Path) -> Result<Encode> {
    match (table.number("mean")?, table.number("std")?) {
        (None, None) => Ok(Encode::Normalize(None)),
        (Some(mean), Some(std)) if std != 0.0 => Ok(Encode::Normalize(Some((mean, std)))),
        _ => Err(Error::Config(format!("`{}` needs both `mean` and `std` (not 0), or neither to fit them", table.name("encode")))),
    }
}

fn output(table: &Reader<'_>) -> Result<Output> {
    table.choice_or("output", &[("one_hot", Output::OneHot), ("int", Output::Int)], "one_hot")
}

fn vocabulary(table: &Reader<'_>) -> Result<VocabularyOptions> {
    let given = match table.value("vocabulary") {
        None => None,
        Some(Value::Array(values)) => {
            let text = |value: &Value| match value {
                Value::String(text) => Some(text.clone()),
                Value::Integer(number) => Some(number.to_string()),
                _ => None,
            };
            let wanted = "a list of values";
            Some(
                values
                    .iter()
                    .map(text)
                    .collect::<Option<Vec<String>>>()
                    .ok_or_else(|| table.wrong("vocabulary", &Value::Array(values.clone()), wanted))?,
            )
        }
        Some(other) => return Err(table.wrong("vocabulary", other, "a list of values; `max_tokens` limits a fitted one")),
    };
    let max_tokens = table.count("max_tokens", 1)?.map(|count| count as usize);
    let oov = table.count("oov", 0)?.unwrap_or(1) as usize;
    Ok(VocabularyOptions { given, max_tokens, oov, mask: table.text("mask")?.map(str::to_string) })
}

fn hash(table: &Reader<'_>, _: &Path) -> Result<Encode> {
    let bins = table.required_count("bins", 1, "the number of bins, such as 64")?;
    let salt = match table.counts("salt") {
        Ok(None) => None,
        Ok(Some(salt)) if salt.len() == 2 => Some([salt[0] as u64, salt[1] as u64]),
        _ => match table.value("salt") {
            Some(Value::Integer(salt)) if *salt >= 0 => Some([*salt as u64, *salt as u64]),
            Some(other) => return Err(table.wrong("salt", other, "an integer, or two of them")),
            None => None,
        },
    };
    Ok(Encode::Hash { bins, salt, mask: table.text("mask")?.map(str::to_string), output: output(table)? })
}

fn discretize(table: &Reader<'_>, _: &Path) -> Result<Encode> {
    let boundaries = table.numbers("boundaries")?.unwrap_or_default();
    if !boundaries.is_sorted() {
        return Err(Error::Config(format!("`{}` should be sorted", table.name("boundaries"))));
    }
    let bins = table.count("bins", 2)?.unwrap_or(0) as usize;
    if boundaries.is_empty() && bins == 0 {
        return Err(table.missing("bins", "the number of bins to fit, such as 10; or `boundaries`"));
    }
    Ok(Encode::Discretize { boundaries, bins, output: output(table)? })
}

fn vectorize(table: &Reader<'_>, _: &Path) -> Result<Encode> {
    let standardize = table.choice_or(
        "standardize",
        &[
            ("lower_and_strip_punctuation", TextStandardize::LowerAndStripPunctuation),
            ("lower", TextStandardize::Lower),
            ("strip_punctuation", TextStandardize::StripPunctuation),
            ("none", TextStandardize::None),
        ],
        "lower_and_strip_punctuation",
    )?;
    let splits = [("whitespace", TextSplit::Whitespace), ("character", TextSplit::Character), ("none", TextSplit::None)];
    let split = table.choice_or("split", &splits, "whitespace")?;
    let ngrams = match table.value("ngrams") {
        None => Vec::new(),
        Some(Value::Integer(most)) if (1..=16).contains(most) => (1..=*most as usize).collect(),
        Some(value) => match table.counts("ngrams") {
            Ok(Some(widths)) if widths.iter().all(|width| (1..=16).contains(width)) => widths,
            _ => return Err(table.wrong("ngrams", value, "the largest width, or a list of widths, up to 16")),
        },
    };
    let outputs =
        [("int", TextOutput::Int), ("multi_hot", TextOutput::MultiHot), ("count", TextOutput::Count), ("tf_idf", TextOutput::TfIdf)];
    let output = table.choice_or("output", &outputs, "int")?;
    let length = table.count("length", 1)?.map(|length| length as usize);
    let vocabulary = vocabulary(table)?;
    Ok(Encode::Vectorize { tokens: Tokenization { standardize, split, ngrams }, vocabulary, output, length })
}

fn tokenize(table: &Reader<'_>, folder: &Path) -> Result<Encode> {
    let path = table.text("tokenizer")?.ok_or_else(|| table.missing("tokenizer", "the path of a tokenizer.json"))?;
    Ok(Encode::BytePair { path: folder.join(path), length: table.count("length", 1)?.map(|length| length as usize) })
}
