//! The `[model]` table: a network of the zoo, or a list of layers.

use super::reader::{Reader, choose, nearest};
use crate::error::{Error, Result};
use crate::nn::{Activation, Add, AveragePool2D, Concatenate, Conv2D, Dense, Dropout, Flatten, Functional, GlobalAveragePool};
use crate::nn::{Initializer, Layer, MaxPool2D, Model, Padding, Tensor};
use crate::zoo::{self, Network};
use std::sync::Arc;

/// Layer types that are not activations.
const TYPES: [&str; 9] =
    ["dense", "conv2d", "max_pool2d", "average_pool2d", "global_average_pool", "flatten", "dropout", "add", "concatenate"];

/// The model.
pub(super) fn model(root: &Reader<'_>) -> Result<(Model, Option<Network>)> {
    let Some(table) = root.section("model")? else {
        return Err(root.missing("model", "a table with zoo = \"NAME\" or layers = [ … ]"));
    };
    let mut network = None;
    let model = match (table.text("zoo")?, table.sections("layers")?) {
        (Some(_), Some(_)) => return Err(Error::Config("`model.zoo` and `model.layers` exclude each other".to_string())),
        (None, None) => return Err(table.missing("layers", "a list of layers, or zoo = \"NAME\" instead")),
        (Some(name), None) => {
            let names: Vec<(&'static str, usize)> = zoo::ENTRIES.iter().enumerate().map(|(i, entry)| (entry.name, i)).collect();
            let entry = zoo::ENTRIES[choose(&table.name("zoo"), name, &names)?];
            let built = entry.build(&overrides(&table)?)?;
            network.insert(built).model.clone()
        }
        (None, Some(layers)) => layered(layers)?,
    };
    let model = match table.text("name")? {
        Some(name) => model.name(name),
        None => model,
    };
    table.finish()?;
    Ok((model, network))
}

/// What is said about a network of the zoo.
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

/// Layers that read the one before them, unless `inputs` names others.
fn layered(layers: Vec<Reader<'_>>) -> Result<Model> {
    let mut net = Functional::new("layers");
    let mut last = net.input();
    let mut named: Vec<(String, Tensor)> = vec![("input".to_string(), last)];
    for reader in layers {
        let layer = layer(&reader)?;
        let name = reader.text("name")?.map(str::to_string);
        if let Some(name) = name.as_deref()
            && (name.is_empty() || named.iter().any(|(known, _)| known == name))
        {
            let what = if name.is_empty() { "is empty".to_string() } else { format!("is \"{name}\", which is taken") };
            return Err(Error::Config(format!("`{}` {what}; every layer needs a name of its own", reader.name("name"))));
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
                            "`{}` names \"{word}\", but the named layers before it are {}",
                            reader.name("inputs"),
                            known.join(", ")
                        ))
                    })
                };
                list.iter().map(find).collect::<Result<Vec<_>>>()?
            }
        };
        reader.finish()?;
        last = net.add_shared(name.as_deref(), layer, inputs);
        if let Some(name) = name {
            named.push((name, last));
        }
    }
    if last == net.input() {
        return Err(Error::Config("`model.layers` is empty; a model needs at least one layer".to_string()));
    }
    Ok(net.build(last))
}

fn layer(reader: &Reader<'_>) -> Result<Arc<dyn Layer>> {
    let Some(kind) = reader.text("type")? else {
        return Err(reader.missing("type", &format!("one of {}, or an activation", TYPES.join(", "))));
    };
    let activation = || reader.choice("activation", &Activation::NAMES).map(Option::unwrap_or_default);
    let initializer = || reader.choice("initializer", &Initializer::NAMES).map(Option::unwrap_or_default);
    let padding = || reader.choice("padding", &Padding::NAMES).map(Option::unwrap_or_default);
    let bias = || reader.flag("bias").map(|bias| bias.unwrap_or(true));
    let window = |what: &str| reader.pair("size")?.ok_or_else(|| reader.missing("size", what));
    Ok(match kind {
        "dense" => {
            let units = reader.count("units", 1)?.ok_or_else(|| reader.missing("units", "how many outputs"))?;
            Arc::new(Dense::new(units as usize).activation(activation()?).bias(bias()?).initializer(initializer()?))
        }
        "conv2d" => {
            let filters = reader.count("filters", 1)?.ok_or_else(|| reader.missing("filters", "how many there are"))?;
            let (height, width) = window("the filters' height and width, such as 3 or [3, 3]")?;
            let (down, across) = reader.pair("stride")?.unwrap_or((1, 1));
            let conv = Conv2D::new(filters as usize, 1).size(height, width).stride(down, across).padding(padding()?);
            Arc::new(conv.activation(activation()?).bias(bias()?).initializer(initializer()?))
        }
        "max_pool2d" | "average_pool2d" => {
            let size = window("the window's height and width, such as 2")?;
            let stride = reader.pair("stride")?.unwrap_or(size);
            if kind == "max_pool2d" {
                Arc::new(MaxPool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(padding()?))
            } else {
                Arc::new(AveragePool2D::new(1).size(size.0, size.1).stride(stride.0, stride.1).padding(padding()?))
            }
        }
        "global_average_pool" => Arc::new(GlobalAveragePool),
        "flatten" => Arc::new(Flatten),
        "dropout" => Arc::new(Dropout::new(reader.number("rate")?.ok_or_else(|| reader.missing("rate", "the share to drop"))? as f32)),
        "add" => Arc::new(Add),
        "concatenate" => Arc::new(Concatenate),
        word => match Activation::NAMES.iter().find(|(name, _)| *name == word) {
            Some((_, activation)) => Arc::new(*activation),
            None => {
                let known: Vec<&str> = TYPES.iter().copied().chain(Activation::NAMES.iter().map(|(name, _)| *name)).collect();
                let hint = nearest(word, &known).map_or(String::new(), |near| format!("; did you mean \"{near}\"?"));
                let known = known.join(", ");
                return Err(Error::Config(format!("`{}` is \"{word}\", but should be one of {known}{hint}", reader.name("type"))));
            }
        },
    })
}
