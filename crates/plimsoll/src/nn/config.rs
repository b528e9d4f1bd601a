//! Layers as configurations write them: `{ type = "dense", units = 64 }`.

use super::{Activation, Initializer, LAYERS, Layer, Padding, Regularizer};
use crate::error::{Error, Result};
use crate::reader::Reader;
use crate::suggest::did_you_mean;
use std::ops::Deref;
use std::sync::Arc;

/// How a configuration writes a layer. The lists of types and keys, their hints and the table in `docs/models.md`
/// follow from it.
#[derive(Clone, Copy)]
pub(crate) struct LayerDef {
    /// The `type`.
    pub name: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// The required keys with typical values, as TOML.
    pub example: &'static str,
    /// Builds the layer from its table.
    pub from_config: fn(&LayerConfig<'_, '_>) -> Result<Arc<dyn Layer>>,
}

impl LayerDef {
    /// The layer that a table of this type describes.
    pub fn build(&self, reader: &Reader<'_>) -> Result<Arc<dyn Layer>> {
        (self.from_config)(&LayerConfig { reader })
    }
}

/// The layer that a table describes: a type of [`LAYERS`], or an activation.
pub(crate) fn layer_from_config(reader: &Reader<'_>) -> Result<Arc<dyn Layer>> {
    let Some(name) = reader.text("type")? else {
        return Err(reader.missing("type", "such as \"dense\", \"conv2d\", or an activation such as \"relu\""));
    };
    if let Some(def) = LAYERS.iter().find(|def| def.name == name) {
        return def.build(reader);
    }
    if let Some((_, activation)) = Activation::NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(Arc::new(*activation));
    }
    let layers: Vec<&str> = LAYERS.iter().map(|def| def.name).collect();
    let known: Vec<&str> = layers.iter().copied().chain(Activation::NAMES.iter().map(|(name, _)| *name)).collect();
    Err(Error::Config(format!(
        "`{}` is \"{name}\", but should be an activation or one of {}{}",
        reader.name("type"),
        layers.join(", "),
        did_you_mean(name, &known)
    )))
}

/// The table of a layer, with the keys that several layers have.
pub(crate) struct LayerConfig<'r, 'a> {
    reader: &'r Reader<'a>,
}

impl<'a> Deref for LayerConfig<'_, 'a> {
    type Target = Reader<'a>;

    fn deref(&self) -> &Reader<'a> {
        self.reader
    }
}

/// Above and below, and left and right.
type Edges = ((usize, usize), (usize, usize));

impl LayerConfig<'_, '_> {
    pub fn filters(&self) -> Result<usize> {
        self.required_count("filters", 1, "the number of output channels")
    }

    pub fn vocabulary(&self) -> Result<usize> {
        self.required_count("vocabulary", 1, "the number of tokens")
    }

    pub fn required_list(&self, key: &'static str, what: &str) -> Result<Vec<usize>> {
        self.counts(key)?.ok_or_else(|| self.missing(key, what))
    }

    pub fn required_number(&self, key: &'static str, what: &str) -> Result<f32> {
        Ok(self.number(key)?.ok_or_else(|| self.missing(key, what))? as f32)
    }

    pub fn rate(&self) -> Result<f32> {
        self.required_number("rate", "the fraction to drop")
    }

    pub fn activation(&self) -> Result<Activation> {
        self.choice_or("activation", Activation::NAMES, Activation::Linear.name())
    }

    pub fn initializer(&self) -> Result<Initializer> {
        self.choice_or("initializer", Initializer::NAMES, Initializer::GlorotUniform.name())
    }

    pub fn bias(&self) -> Result<bool> {
        self.flag_or("bias", true)
    }

    pub fn regularizer(&self) -> Result<Regularizer> {
        Ok(Regularizer { l1: self.non_negative_or("l1", 0.0)?, l2: self.non_negative_or("l2", 0.0)? })
    }

    pub fn size(&self) -> Result<(usize, usize)> {
        self.pair("size")?.ok_or_else(|| self.missing("size", "height and width, such as 3 or [3, 3]"))
    }

    /// `"valid"`, `"same"`, or explicit [edges](LayerConfig::edges).
    pub fn padding(&self) -> Result<Padding> {
        match self.value("padding") {
            None | Some(toml::Value::String(_)) => self.choice_or("padding", &Padding::NAMES, "valid"),
            Some(_) => self.edges().map(|(rows, columns)| Padding::Explicit { rows, columns }),
        }
    }

    /// One number for all sides, `[rows, columns]`, or `[top, bottom, left, right]`.
    pub fn edges(&self) -> Result<Edges> {
        let wanted = "an integer, [rows, columns] or [top, bottom, left, right]";
        let Some(value) = self.value("padding") else { return Err(self.missing("padding", wanted)) };
        let count = |value: &toml::Value| value.as_integer().and_then(|n| usize::try_from(n).ok());
        let numbers = match value {
            toml::Value::Array(list) => list.iter().map(count).collect::<Option<Vec<usize>>>(),
            single => count(single).map(|n| vec![n]),
        };
        match numbers.as_deref() {
            Some(&[all]) => Ok(((all, all), (all, all))),
            Some(&[rows, columns]) => Ok(((rows, rows), (columns, columns))),
            Some(&[top, bottom, left, right]) => Ok(((top, bottom), (left, right))),
            _ => Err(self.wrong("padding", value, wanted)),
        }
    }
}
