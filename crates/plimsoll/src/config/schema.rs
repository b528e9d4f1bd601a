//! The JSON schema of configurations, for editors. It follows from the code that reads configurations: readers tell
//! which keys they are asked for and what they may be, and the definitions of layers, optimizers, stages and the like
//! give one alternative each.

use super::{data, descriptions, layers, row_ops, sources};
use crate::loss::Loss;
use crate::nn::{Activation, LAYERS};
use crate::optim::OPTIMIZERS;
use crate::reader::{Key, Reader, ValueType, record};
use crate::schedule::SCHEDULES;
use crate::spec::RunSpec;
use crate::zoo;
use plimsoll_data::{KeyKind, STAGES};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use toml::Table;

/// A configuration with every table, so that readers ask for all of their keys.
const EVERYTHING: &str = r#"
[data]
source = "digits"
holdout = { share = 0.1 }
shuffle = { seed = 1 }
mixup = {}
[model]
zoo = "mlp"
[train]
early_stopping = { score = "val_loss" }
clip = { norm = 1.0 }
weights = { path = "weights.safetensors" }
[prune]
final = 0.5
end = 1000
layers = [{ match = "*" }]
[quantize]
[distill]
teacher = "runs/teacher"
[checkpoint]
[log]
[parallel]
[budget]
"#;

/// The schema, as one JSON document.
///
/// ```
/// let schema = plimsoll::config::schema();
/// let epochs = &schema["properties"]["train"]["properties"]["epochs"];
/// assert_eq!((&epochs["type"], &epochs["minimum"]), (&serde_json::json!("integer"), &serde_json::json!(1)));
/// ```
pub fn schema() -> Value {
    let table: Table = EVERYTHING.parse().expect("it is TOML");
    let keys = record(|| {
        let root = Reader::root(&table);
        let _ = RunSpec::default().read(&root, Path::new(""));
        let _ = data::open(&root, Path::new(""), None, 0, None, None);
        let _ = layers::model(&root, Path::new(""));
    });
    let mut tables = by_table(keys);
    let layered: Table = "[model]\nlayers = [{ type = \"flatten\" }]".parse().expect("it is TOML");
    for (table, keys) in by_table(record(|| drop(layers::model(&Reader::root(&layered), Path::new(""))))) {
        tables.entry(table).or_default().extend(keys);
    }
    let mut root = object(&tables, "");
    root["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    root["title"] = json!("Plimsoll run");
    let properties = |root: &mut Value, table: &str| root["properties"][table]["properties"].take();
    let mut train = properties(&mut root, "train");
    train["optimizer"] = typed(OPTIMIZERS.iter().map(|def| (def.name, built("", |reader| drop((def.from_config)(reader))))));
    train["schedule"] = typed(SCHEDULES.iter().map(|def| (def.name, built(def.example, |reader| drop(def.build(reader))))));
    train["loss"] = json!({ "anyOf": [{ "enum": Loss::NAMES.iter().map(|(name, _)| *name).collect::<Vec<_>>() }, { "type": "object" }] });
    root["properties"]["train"]["properties"] = train;
    let mut model = properties(&mut root, "model");
    model["layers"] = json!({ "type": "array", "items": layer(&tables) });
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    model["freeze"] = json!({ "anyOf": [{ "type": "boolean" }, texts] });
    model["trainable"] = texts;
    let classes = json!({ "classes": { "type": "integer", "minimum": 1 } });
    model["replace_head"] = json!({ "type": "object", "properties": classes, "additionalProperties": false });
    model["zoo"] = json!({ "enum": zoo::ENTRIES.iter().map(|entry| entry.name).collect::<Vec<_>>() });
    root["properties"]["model"]["properties"] = model;
    let mut data = properties(&mut root, "data");
    let mut names: Vec<&str> = sources::names();
    names.push("synthetic");
    data["source"] = json!({ "enum": names });
    for key in sources::documented_keys() {
        if data.get(&key).is_none() {
            data[key] = json!({});
        }
    }
    let list = json!({ "type": "array", "items": stage() });
    data["stages"] = list.clone();
    data["map"] = json!({ "type": "array", "items": row_op() });
    data["validation"] = json!({ "type": "object" });
    data["test"] = json!({ "type": "object" });
    root["properties"]["data"]["properties"] = data;
    descriptions::add(&mut root);
    root
}

/// Keys by table; items of a list of tables are one.
fn by_table(keys: Vec<(String, Key)>) -> BTreeMap<String, Vec<Key>> {
    let mut tables: BTreeMap<String, Vec<Key>> = BTreeMap::new();
    for (path, key) in keys {
        let path = path.split('[').next().unwrap_or_default().to_string();
        let known = tables.entry(path).or_default();
        // The last time a key is noted, all of its kinds are known.
        known.retain(|earlier| earlier.name != key.name);
        known.push(key);
    }
    tables
}

/// The schema of a table and those in it.
fn object(tables: &BTreeMap<String, Vec<Key>>, path: &str) -> Value {
    let keys = tables.get(path).map_or(&[][..], Vec::as_slice);
    let properties = keys.iter().map(|key| {
        let below = if path.is_empty() { key.name.to_string() } else { format!("{path}.{}", key.name) };
        let inner = tables.contains_key(&below).then(|| object(tables, &below));
        (key.name.to_string(), value(key, inner))
    });
    json!({ "type": "object", "properties": properties.collect::<Map<_, _>>(), "additionalProperties": false })
}

/// The schema of a key, with that of its table if it may be one.
fn value(key: &Key, inner: Option<Value>) -> Value {
    let mut schema = match (&key.kind, inner) {
        (ValueType::Table, Some(inner)) => inner,
        (ValueType::Any | ValueType::Unknown, Some(inner)) => {
            json!({ "anyOf": [{ "type": ["string", "number", "boolean", "array"] }, inner] })
        }
        (ValueType::Any | ValueType::Unknown, None) => json!({}),
        (ValueType::Text, _) => json!({ "type": "string" }),
        (ValueType::TextList, _) => json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] }),
        (ValueType::Count(least), _) => json!({ "type": "integer", "minimum": least }),
        (ValueType::Number, _) => number(),
        (ValueType::Flag, _) => json!({ "type": "boolean" }),
        (ValueType::Counts, _) => json!({ "type": "array", "items": { "type": "integer" } }),
        (ValueType::Numbers, _) => json!({ "anyOf": [number(), { "type": "array", "items": number() }] }),
        (ValueType::Pair, _) => {
            json!({ "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "array", "items": { "type": "integer" } }] })
        }
        (ValueType::Choice(names), _) => json!({ "enum": names }),
        (ValueType::Table, None) => json!({ "type": "object" }),
        (ValueType::Tables, _) => json!({ "type": "array", "items": { "type": "object" } }),
    };
    if let Some(default) = &key.default
        && let Some(default) = format!("value = {default}").parse::<Table>().ok().and_then(|mut table| table.remove("value"))
    {
        schema["default"] = json!(default);
    }
    schema
}

/// A number, or text such as "1/255" or "10%".
fn number() -> Value {
    json!({ "anyOf": [{ "type": "number" }, { "type": "string", "pattern": "^[-+0-9.eE]+( */ *[-+0-9.eE]+| *%)?$" }] })
}

/// The keys that building from an example asks for.
fn built(example: &str, build: impl FnOnce(&Reader<'_>)) -> Vec<Key> {
    let table: Table = example.parse().unwrap_or_default();
    by_table(record(|| build(&Reader::root(&table)))).remove("").unwrap_or_default()
}

/// A table with a `type` and the keys of that type.
fn alternative(tag: &str, name: &str, keys: &[Key]) -> Value {
    let mut properties: Map<String, Value> = keys.iter().map(|key| (key.name.to_string(), value(key, None))).collect();
    properties.insert(tag.to_string(), json!({ "const": name }));
    json!({ "type": "object", "properties": properties, "required": [tag], "additionalProperties": false })
}

/// A name, or a table with a `type`.
fn typed<'n>(definitions: impl Iterator<Item = (&'n str, Vec<Key>)> + Clone) -> Value {
    let names: Vec<&str> = definitions.clone().map(|(name, _)| name).collect();
    let tables = definitions.map(|(name, keys)| alternative("type", name, &keys));
    let all: Vec<Value> = [json!({ "enum": names })].into_iter().chain(tables).collect();
    json!({ "anyOf": all })
}

/// A layer: one of the types, or an activation, with the keys of every layer.
fn layer(tables: &BTreeMap<String, Vec<Key>>) -> Value {
    let every = tables.get("model.layers").cloned().unwrap_or_default();
    let of = |name: &str, own: Vec<Key>| {
        let keys: Vec<Key> = own.into_iter().chain(every.iter().filter(|key| key.name != "type").cloned()).collect();
        alternative("type", name, &keys)
    };
    let layers = LAYERS.iter().map(|def| of(def.name, built(def.example, |reader| drop(def.build(reader)))));
    let activations = Activation::NAMES.iter().map(|(name, _)| of(name, Vec::new()));
    json!({ "anyOf": layers.chain(activations).collect::<Vec<_>>() })
}

/// A stage of `data.stages`, or an operation on rows.
fn stage() -> Value {
    let stages = STAGES.iter().map(|stage| {
        let mut properties: Map<String, Value> = stage.keys.iter().map(|key| (key.name.to_string(), argument(key.kind))).collect();
        properties.insert("op".to_string(), json!({ "const": stage.name }));
        json!({ "type": "object", "properties": properties, "required": ["op"], "additionalProperties": false })
    });
    json!({ "anyOf": stages.chain([row_op()]).collect::<Vec<_>>() })
}

fn row_op() -> Value {
    json!({ "type": "object", "properties": { "op": { "enum": row_ops::names().map(|(name, _)| name).collect::<Vec<_>>() } }, "required": ["op"] })
}

fn argument(kind: KeyKind) -> Value {
    match kind {
        KeyKind::Count(least) => json!({ "type": "integer", "minimum": least }),
        KeyKind::RowsAtOnce | KeyKind::BatchRows(_) => json!({ "type": "integer", "minimum": 1 }),
        KeyKind::Seed => json!({ "type": "integer", "minimum": 0 }),
        KeyKind::Number => number(),
        KeyKind::Numbers => json!({ "anyOf": [number(), { "type": "array", "items": number() }] }),
        KeyKind::Counts => json!({ "type": "array", "items": { "type": "integer" } }),
        KeyKind::Text => json!({ "type": "string" }),
        KeyKind::Flag => json!({ "type": "boolean" }),
        KeyKind::Size => json!({ "type": ["string", "integer"] }),
        KeyKind::Choice(names) => json!({ "enum": names }),
        KeyKind::Ops => json!({ "type": "array" }),
        KeyKind::Cache => json!({ "type": ["string", "object"] }),
        KeyKind::Threads | KeyKind::Prefetch => json!({ "type": ["integer", "string"] }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    /// The first problem of a value with a schema, as far as schemas made here go.
    fn problem(schema: &Value, value: &Value, path: &str) -> Option<String> {
        if let Some(any) = schema["anyOf"].as_array() {
            return any.iter().all(|schema| problem(schema, value, path).is_some()).then(|| format!("{path} is none of its alternatives"));
        }
        if let Some(names) = schema["enum"].as_array() {
            return (!names.contains(value)).then(|| format!("{path} is none of the names"));
        }
        if schema.get("const").is_some_and(|wanted| wanted != value) {
            return Some(format!("{path} has another type"));
        }
        let is = |name: &str| match name {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            _ => value.is_boolean(),
        };
        let types: Vec<&str> = schema["type"]
            .as_array()
            .map_or(schema["type"].as_str().into_iter().collect(), |all| all.iter().filter_map(Value::as_str).collect());
        if !types.is_empty() && !types.iter().any(|name| is(name)) {
            return Some(format!("{path} is no {types:?}"));
        }
        if let (Some(least), Some(number)) = (schema["minimum"].as_i64(), value.as_i64())
            && number < least
        {
            return Some(format!("{path} is less than {least}"));
        }
        let items = value.as_array().filter(|_| schema.get("items").is_some());
        let wrong = items.into_iter().flatten().find_map(|item| problem(&schema["items"], item, &format!("{path}[]")));
        let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).find(|key| value.get(key).is_none());
        let keys = value.as_object().filter(|_| schema.get("properties").is_some()).into_iter().flatten();
        wrong.or(required.map(|key| format!("{path}.{key} is missing"))).or(keys.into_iter().find_map(|(key, inner)| {
            match schema["properties"].get(key) {
                Some(schema) => problem(schema, inner, &format!("{path}.{key}")),
                None => (schema["additionalProperties"] == false).then(|| format!("{path}.{key} is unknown")),
            }
        }))
    }

    fn json_of(text: &str) -> Value {
        json!(text.parse::<Table>().unwrap())
    }

    #[test]
    fn examples_satisfy_the_schema() {
        let schema = schema();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
        let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let texts =
            files.filter(|path| path.extension().is_some_and(|end| end == "toml")).map(|path| std::fs::read_to_string(path).unwrap());
        for text in texts.chain([super::super::DIGITS.to_string(), EVERYTHING.to_string()]) {
            assert_eq!(problem(&schema, &json_of(&text), ""), None, "{text}");
        }
    }

    /// Sets every key of a table that is read whole, to a value the schema allows: the reader must know it. And one
    /// that it does not know.
    #[test]
    fn the_reader_knows_the_keys_of_the_schema_and_no_others() {
        let schema = schema();
        for table in ["train", "checkpoint", "log", "budget", "model"] {
            let properties = schema["properties"][table]["properties"].as_object().unwrap();
            assert!(!properties.is_empty());
            for key in properties.keys() {
                // A model is a network of the zoo or a list of layers, with keys of its own.
                let knows = |mut config: Config| {
                    config.set_value(&format!("{table}.{key}"), toml::Value::Array(vec![])).unwrap();
                    config.build().err().is_none_or(|error| !error.to_string().starts_with("unknown key"))
                };
                let layers = "[data]\nsource = \"digits\"\n[model]\nlayers = [{ type = \"flatten\", name = \"a\" }]";
                let file = concat!(
                    "[data]\nsource = \"synthetic\"\n[model]\nfile = \"",
                    env!("CARGO_MANIFEST_DIR"),
                    "/tests/references/keras/words.keras\""
                );
                let ways = [Config::digits(), Config::from_text(layers).unwrap(), Config::from_text(file).unwrap()];
                assert!(ways.into_iter().any(knows), "{table}.{key}");
            }
            let unknown = json_of(&format!("[{table}]\nno_such_key = 1"));
            assert!(problem(&schema, &unknown, "").is_some());
            let mut config = Config::digits();
            config.set_value(&format!("{table}.no_such_key"), 1).unwrap();
            assert!(config.build().unwrap_err().to_string().starts_with("unknown key"), "{table}");
        }
    }

    /// What the reader refuses for its type, the schema refuses too.
    #[test]
    fn wrong_values_are_refused_by_both() {
        let schema = schema();
        for text in [
            "[train]\nepochs = 0",
            "[train]\nepochs = \"three\"",
            "[train]\noptimizer = \"adamm\"",
            "[train]\noptimizer = { type = \"sgd\", beta1 = 0.9 }",
            "[train]\nschedule = { type = \"cosine\", rate = 1 }",
            "[checkpoint]\nkeep = 0",
            "[log]\ntensorboard = 1",
            "[model]\nlayers = [{ type = \"dense\" , filters = 3 }]",
            "[model]\nlayers = [{ type = \"danse\" }]",
            "[data]\nsource = \"npyy\"",
        ] {
            assert!(problem(&schema, &json_of(text), "").is_some(), "{text}");
            let mut whole: Table = super::super::DIGITS.parse().unwrap();
            for (table, keys) in text.parse::<Table>().unwrap() {
                if keys.get("layers").is_some() {
                    whole.remove("model");
                }
                let into = whole.entry(table).or_insert_with(|| toml::Value::Table(Table::new()));
                into.as_table_mut().unwrap().extend(keys.as_table().unwrap().clone());
            }
            assert!(Config::from_text(&whole.to_string()).unwrap().build().is_err(), "{text}");
        }
    }
}
