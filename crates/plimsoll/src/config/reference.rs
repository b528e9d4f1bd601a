//! Reference tables in Markdown: the names that a configuration can use, with their keys and defaults. They are
//! generated from the definitions that parse configurations; the docs contain them.

use super::descriptions;
use crate::error::Result;
use crate::loss::Loss;
use crate::metrics::Metric;
use crate::nn::{Activation, Initializer, LAYERS};
use crate::optim::OPTIMIZERS;
use crate::reader::Reader;
use crate::schedule::SCHEDULES;
use serde_json::Value;
use toml::Table;

/// The layers of `[model] layers`.
///
/// ```
/// let table = plimsoll::config::reference::layers();
/// assert!(table.contains("| `layer_norm` | Layer normalization over the last axis. |"));
/// ```
pub fn layers() -> String {
    let rows = LAYERS.iter().map(|def| {
        let keys = keys_of(def.example, |reader| def.build(reader).map(drop));
        format!("| `{}` | {} | {keys} |\n", def.name, def.about)
    });
    format!("| `type` | layer | keys with their defaults |\n|---|---|---|\n{}", rows.collect::<String>())
}

/// The sources of `data.source`.
pub fn sources() -> String {
    super::sources::reference()
}

/// The operations of `data.map`.
pub fn row_operations() -> String {
    super::row_ops::reference()
}

/// The stages of `data.stages`.
pub fn stages() -> String {
    super::stages::reference()
}

/// The optimizers of `train.optimizer`.
pub fn optimizers() -> String {
    let rows = OPTIMIZERS.iter().map(|def| {
        let keys = keys_of("", |reader| (def.from_config)(reader).map(drop));
        format!("| `{}` | {} | {keys} | {} |\n", def.name, def.about, def.state)
    });
    let head = "| `type` | optimizer | keys with their defaults | state per parameter |\n|---|---|---|---|\n";
    format!("{head}{}", rows.collect::<String>())
}

/// The learning-rate schedules of `train.schedule`.
pub fn schedules() -> String {
    let rows = SCHEDULES.iter().map(|def| {
        let keys = keys_of(def.example, |reader| def.build(reader).map(drop));
        format!("| `{}` | {} | {keys} |\n", def.name, def.about)
    });
    format!("| `type` | schedule | keys with their defaults |\n|---|---|---|\n{}", rows.collect::<String>())
}

/// The losses of `train.loss`.
pub fn losses() -> String {
    let loss = |(name, loss): &(&str, Loss)| {
        let keys = keys_of("", |reader| loss.with_config(reader).map(drop));
        if keys.is_empty() { format!("`{name}`") } else { format!("`{name}` ({keys})") }
    };
    listed(Loss::NAMES.iter().map(loss))
}

/// The metrics of `train.metrics`.
pub fn metrics() -> String {
    listed(Metric::NAMES.iter().map(|(name, _)| format!("`{name}`")))
}

/// The activations, which are layers too.
pub fn activations() -> String {
    listed(Activation::NAMES.iter().map(|(name, _)| format!("`{name}`")))
}

/// The initializers of weights.
pub fn initializers() -> String {
    listed(Initializer::NAMES.iter().map(|(name, _)| format!("`{name}`")))
}

/// The tables of a configuration, in the order in which people write them.
const TABLES: [&str; 10] = ["data", "model", "train", "budget", "parallel", "checkpoint", "log", "prune", "quantize", "distill"];

/// All keys of configurations: a section per table, with what values may be and what they are for.
///
/// ```
/// let keys = plimsoll::config::reference::keys();
/// assert!(keys.contains("| `epochs` | an integer of at least 1 | Passes over the training rows. Default 1. |"));
/// ```
pub fn keys() -> String {
    let schema = super::schema();
    let sections = TABLES.iter().map(|table| {
        let rows = rows(&schema["properties"][table], table, "");
        format!("## `[{table}]`\n{}\n\n| key | value | |\n|---|---|---|\n{rows}\n", descriptions::of(table).unwrap_or_default())
    });
    sections.collect::<String>().trim_end().to_string() + "\n"
}

/// The rows of a table and of tables in it. `path` is its full name, `prefix` how its keys begin.
fn rows(schema: &Value, path: &str, prefix: &str) -> String {
    let tables = std::iter::once(schema).chain(schema["anyOf"].as_array().into_iter().flatten());
    let keys = tables.filter_map(|table| table["properties"].as_object()).flatten();
    let rows = keys.filter(|(key, _)| *key != "type").map(|(key, value)| {
        let name = format!("{path}.{key}");
        let source = || super::sources::with_key(key);
        let about = descriptions::of(&name).map(str::to_string).or_else(|| (path == "data").then(source));
        let about = about.unwrap_or_else(|| panic!("config/descriptions.rs does not describe the key `{name}`"));
        // Tables that are lists of alternatives have sections of their own.
        let listed = matches!(name.as_str(), "train.optimizer" | "train.schedule");
        let inner = if listed { String::new() } else { self::rows(value, &name, &format!("{prefix}{key}.")) };
        format!("| `{prefix}{key}` | {} | {about} |\n{inner}", allowed(value).join(" or "))
    });
    rows.collect()
}

/// What the value of a key may be, in words.
fn allowed(schema: &Value) -> Vec<String> {
    if let Some(names) = schema["enum"].as_array() {
        let names: Vec<String> = names.iter().filter_map(Value::as_str).map(|name| format!("`\"{name}\"`")).collect();
        return vec![if names.len() > 12 { "a name".to_string() } else { names.join(", ") }];
    }
    if let Some(alternatives) = schema["anyOf"].as_array() {
        let is_number = alternatives.iter().any(|one| one["pattern"].is_string());
        let mut all: Vec<String> = if is_number { vec!["a number".to_string()] } else { alternatives.iter().flat_map(allowed).collect() };
        all.dedup();
        return all;
    }
    if schema["type"].is_array() {
        return vec!["a value".to_string()];
    }
    let types = [&schema["type"]];
    let words = types.into_iter().filter_map(Value::as_str).map(|name| match name {
        "integer" => schema["minimum"].as_u64().map_or("an integer".to_string(), |least| format!("an integer of at least {least}")),
        "number" => "a number".to_string(),
        "string" => "a text".to_string(),
        "boolean" => "`true`, `false`".to_string(),
        "array" => "a list".to_string(),
        _ => "a table".to_string(),
    });
    words.collect()
}

/// The longest line of a list in the docs.
const MAX_COLUMNS: usize = 118;

fn listed(items: impl Iterator<Item = String>) -> String {
    items.fold(String::new(), |list, item| {
        let column = list.rsplit('\n').next().map_or(0, |line| line.chars().count());
        match column {
            0 => item,
            _ if column + item.chars().count() + 3 > MAX_COLUMNS => format!("{list} ·\n{item}"),
            _ => format!("{list} · {item}"),
        }
    }) + "\n"
}

/// The keys that building from a table reads, those of the example first; optional ones with their defaults.
fn keys_of(example: &str, build: impl FnOnce(&Reader<'_>) -> Result<()>) -> String {
    let table: Table = example.parse().expect("the example of a definition is TOML");
    let reader = Reader::root(&table);
    build(&reader).expect("the example of a definition has all that is required");
    let keys = reader.keys().into_iter().map(|key| match key.default {
        Some(default) if !table.contains_key(key.name) => format!("`{} = {default}`", key.name),
        _ => format!("`{}`", key.name),
    });
    keys.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    /// Compares the text between `<!-- NAME -->` and `<!-- end of NAME -->` with a table; `UPDATE_DOCS=1` writes it
    /// instead.
    fn check(file: &str, name: &str, table: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        let (begin, end) = (format!("<!-- {name} -->\n"), format!("<!-- end of {name} -->"));
        let (before, rest) = text.split_once(&begin).unwrap_or_else(|| panic!("docs/{file} has no line {begin}"));
        let (found, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/{file} has no line {end}"));
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{begin}{table}{end}{after}")).unwrap();
            return;
        }
        assert_eq!(found, table, "docs/{file} does not match the definitions; run UPDATE_DOCS=1 cargo test -p plimsoll --lib reference");
    }

    #[test]
    fn the_docs_contain_the_reference_tables() {
        check("configuration-reference.md", "keys", &keys());
        check("models.md", "layers", &layers());
        check("models.md", "activations", &activations());
        check("models.md", "initializers", &initializers());
        check("data.md", "sources", &sources());
        check("data.md", "stages", &stages());
        check("images.md", "operations", &row_operations());
        check("training.md", "optimizers", &optimizers());
        check("training.md", "schedules", &schedules());
        check("training.md", "losses", &losses());
        check("training.md", "metrics", &metrics());
        check("onnx.md", "operators", &listed(crate::import::onnx_operators().into_iter().map(|name| format!("`{name}`"))));
    }

    #[test]
    fn names_of_layers_are_unique() {
        for (i, def) in LAYERS.iter().enumerate() {
            assert!(LAYERS[..i].iter().all(|other| other.name != def.name), "{}", def.name);
        }
    }
}
