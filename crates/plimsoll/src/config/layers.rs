//! The `[model]` table: a network of the zoo, a list of layers, or a file of another program.

use super::imported::{self, FromFile};
use crate::error::{Error, Result};
use crate::nn::{Functional, Model, SymbolicTensor, layer_from_config};
use crate::reader::{Reader, choose};
use crate::zoo::{self, Network};
use std::path::Path;

/// A model with what is known about it.
pub(super) struct Described {
    pub model: Model,
    /// The network of the zoo that it is.
    pub network: Option<Network>,
    /// The file that it comes from.
    pub imported: Option<FromFile>,
}

/// The model. Paths are relative to `folder`.
pub(super) fn model(root: &Reader<'_>, folder: &Path) -> Result<Described> {
    let Some(table) = root.section("model")? else {
        return Err(root.missing("model", "a table with zoo = \"NAME\", layers = [ … ] or file = \"model.keras\""));
    };
    if let Some(file) = table.text("file")? {
        for key in ["zoo", "layers"] {
            if table.value(key).is_some() {
                return Err(Error::Config(format!("`model.file` and `model.{key}` are mutually exclusive")));
            }
        }
        let (model, imported) = imported::read(&table, &folder.join(file))?;
        let model = match table.text("name")? {
            Some(name) => model.name(name),
            None => model,
        };
        table.finish()?;
        return Ok(Described { model, network: None, imported: Some(imported) });
    }
    let mut network = None;
    let model = match (table.text("zoo")?, table.sections("layers")?) {
        (Some(_), Some(_)) => return Err(Error::Config("`model.zoo` and `model.layers` are mutually exclusive".to_string())),
        (None, None) => return Err(table.missing("layers", "a list of layers, or zoo = \"NAME\" instead")),
        (Some(name), None) => {
            let names: Vec<(&'static str, usize)> = zoo::ENTRIES.iter().enumerate().map(|(i, entry)| (entry.name, i)).collect();
            let entry = zoo::ENTRIES[choose(&table.name("zoo"), name, &names)?];
            let built = entry.build(&overrides(&table)?)?;
            network.insert(built).model.clone()
        }
        (None, Some(layers)) => layered(layers, &names(&table, "inputs", "columns of the data")?, &table)?,
    };
    let model = match table.text("name")? {
        Some(name) => model.name(name),
        None => model,
    };
    table.finish()?;
    Ok(Described { model, network, imported: None })
}

/// A list of names, empty if there is none.
fn names(table: &Reader<'_>, key: &'static str, of: &str) -> Result<Vec<String>> {
    let Some(value) = table.value(key) else { return Ok(Vec::new()) };
    let wanted = format!("a list of {of}, such as [\"image\", \"numbers\"]");
    let names = value.as_array().map(|list| list.iter().map(|item| item.as_str().map(str::to_string)).collect::<Option<Vec<_>>>());
    names.flatten().filter(|names| !names.is_empty()).ok_or_else(|| table.wrong(key, value, &wanted))
}

/// The overrides of a network of the zoo.
fn overrides(table: &Reader<'_>) -> Result<zoo::Options> {
    let count = |key: &'static str| table.count(key, 1).map(|count| count.map(|count| count as usize));
    Ok(zoo::Options {
        classes: count("classes")?,
        input: table.counts("input")?,
        width: table.number("width")?,
        context: count("context")?,
        vocabulary: count("vocabulary")?,
    })
}

/// Every layer takes the output of the previous one, unless `inputs` names others. The outputs are those that `outputs`
/// names, else the last layer's.
fn layered(layers: Vec<Reader<'_>>, inputs: &[String], table: &Reader<'_>) -> Result<Model> {
    let mut net = Functional::new("layers");
    let mut named: Vec<(String, SymbolicTensor)> = inputs.iter().map(|name| (name.clone(), net.input_named(name))).collect();
    if named.is_empty() {
        named.push(("input".to_string(), net.input()));
    }
    let first = named[0].1;
    let mut last = first;
    for reader in layers {
        let layer = layer_from_config(&reader)?;
        let name = reader.text("name")?.map(str::to_string);
        if let Some(name) = name.as_deref()
            && (name.is_empty() || named.iter().any(|(known, _)| known == name))
        {
            let what = if name.is_empty() { "is empty".to_string() } else { format!("is \"{name}\", which is already used") };
            return Err(Error::Config(format!("`{}` {what}; layer names should be unique", reader.name("name"))));
        }
        let inputs = match reader.value("inputs") {
            None => vec![last],
            Some(value) => {
                let list = value.as_array().ok_or_else(|| reader.wrong("inputs", value, "a list of layer names"))?;
                let find = |item: &toml::Value| {
                    let word = item.as_str().ok_or_else(|| reader.wrong("inputs", value, "a list of layer names"))?;
                    named.iter().find(|(name, _)| name == word).map(|(_, tensor)| *tensor).ok_or_else(|| {
                        let known: Vec<&str> = named.iter().map(|(name, _)| name.as_str()).collect();
                        Error::Config(format!(
                            "`{}` names \"{word}\", but the earlier named layers are {}",
                            reader.name("inputs"),
                            known.join(", ")
                        ))
                    })
                };
                list.iter().map(find).collect::<Result<Vec<_>>>()?
            }
        };
        let trainable = reader.flag("trainable")?.unwrap_or(true);
        let shares = match reader.text("shares")? {
            None => None,
            Some(word) => match named.iter().find(|(name, tensor)| name == word && net.is_layer(*tensor)) {
                Some((_, tensor)) => Some(*tensor),
                None => {
                    let what = format!("`{}` names \"{word}\", which is not an earlier named layer", reader.name("shares"));
                    return Err(Error::Config(what));
                }
            },
        };
        reader.finish()?;
        last = match shares {
            Some(with) => net.tie_layer(with, layer, inputs),
            None => net.add_layer(name.as_deref(), layer, inputs),
        };
        if !trainable {
            net.freeze(last);
        }
        if let Some(name) = name {
            named.push((name, last));
        }
    }
    if last == first {
        return Err(Error::Config("`model.layers` is empty; a model needs at least one layer".to_string()));
    }
    let outputs = names(table, "outputs", "layer names")?;
    if outputs.is_empty() {
        return Ok(net.build(last));
    }
    let mut results = Vec::with_capacity(outputs.len());
    for name in &outputs {
        match named.iter().find(|(known, tensor)| known == name && net.is_layer(*tensor)) {
            Some((_, tensor)) => results.push((name.as_str(), *tensor)),
            None => {
                let known: Vec<&str> = named.iter().filter(|(_, tensor)| net.is_layer(*tensor)).map(|(name, _)| name.as_str()).collect();
                let what = format!("`{}` names \"{name}\", but the named layers are {}", table.name("outputs"), known.join(", "));
                return Err(Error::Config(what));
            }
        }
    }
    Ok(net.build_many(results))
}
