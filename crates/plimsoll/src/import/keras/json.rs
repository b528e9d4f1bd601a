//! The configuration of a layer, read with errors that name the layer.

use crate::nn::{Activation, Padding, Regularizer};
use crate::suggest::did_you_mean;
use serde_json::Value;

/// What is read, or why it cannot be imported.
pub(super) type Parsed<T> = std::result::Result<T, String>;

/// The fields of a layer's `config`.
#[derive(Clone, Copy)]
pub(super) struct Fields<'a> {
    pub name: &'a str,
    pub class: &'a str,
    pub config: &'a Value,
}

impl<'a> Fields<'a> {
    /// A sentence about the layer.
    pub fn problem(&self, what: impl std::fmt::Display) -> String {
        format!("`{}` ({}): {what}", self.name, self.class)
    }

    pub fn get(&self, key: &str) -> &'a Value {
        self.config.get(key).unwrap_or(&Value::Null)
    }

    fn wrong<T>(&self, key: &str) -> Parsed<T> {
        Err(self.problem(format!("`{key}` is {}, which is not understood", self.get(key))))
    }

    pub fn count(&self, key: &str) -> Parsed<usize> {
        self.get(key).as_u64().map(|count| count as usize).map_or_else(|| self.wrong(key), Ok)
    }

    pub fn count_or(&self, key: &str, default: usize) -> Parsed<usize> {
        if self.get(key).is_null() { Ok(default) } else { self.count(key) }
    }

    pub fn number_or(&self, key: &str, default: f64) -> Parsed<f64> {
        match self.get(key) {
            Value::Null => Ok(default),
            value => value.as_f64().map_or_else(|| self.wrong(key), Ok),
        }
    }

    pub fn flag(&self, key: &str, default: bool) -> Parsed<bool> {
        match self.get(key) {
            Value::Null => Ok(default),
            value => value.as_bool().map_or_else(|| self.wrong(key), Ok),
        }
    }

    pub fn text(&self, key: &str) -> &'a str {
        self.get(key).as_str().unwrap_or_default()
    }

    /// A number, or a list of them.
    pub fn counts(&self, key: &str) -> Parsed<Vec<usize>> {
        let count = |value: &Value| value.as_u64().map(|count| count as usize);
        let all = match self.get(key) {
            Value::Array(list) => list.iter().map(count).collect::<Option<Vec<usize>>>(),
            single => count(single).map(|count| vec![count]),
        };
        all.map_or_else(|| self.wrong(key), Ok)
    }

    /// Two numbers, or one for both.
    pub fn pair(&self, key: &str) -> Parsed<(usize, usize)> {
        match self.counts(key)?[..] {
            [both] => Ok((both, both)),
            [first, second] => Ok((first, second)),
            _ => self.wrong(key),
        }
    }

    /// The only number of a list, for layers over time.
    pub fn single(&self, key: &str) -> Parsed<usize> {
        match self.counts(key)?[..] {
            [one] => Ok(one),
            _ => self.wrong(key),
        }
    }

    pub fn single_or(&self, key: &str, default: usize) -> Parsed<usize> {
        if self.get(key).is_null() { Ok(default) } else { self.single(key) }
    }

    pub fn pair_or(&self, key: &str, default: usize) -> Parsed<(usize, usize)> {
        if self.get(key).is_null() { Ok((default, default)) } else { self.pair(key) }
    }

    pub fn padding(&self) -> Parsed<Padding> {
        match self.text("padding") {
            "valid" | "" => Ok(Padding::Valid),
            "same" => Ok(Padding::Same),
            _ => self.wrong("padding"),
        }
    }

    /// That the channels are last.
    pub fn channels_last(&self) -> Parsed<()> {
        match self.text("data_format") {
            "channels_first" => Err(self.problem("has `data_format` channels_first; save the model with channels_last")),
            _ => Ok(()),
        }
    }

    /// An activation, by name or as Keras serializes a function.
    pub fn activation(&self, key: &str) -> Parsed<Activation> {
        let value = self.get(key);
        let name = match value {
            Value::Null => return Ok(Activation::Linear),
            Value::String(name) => name.as_str(),
            Value::Object(_) if value["class_name"] == "function" => value["config"].as_str().unwrap_or_default(),
            _ => return self.wrong(key),
        };
        self.activation_named(name)
    }

    pub fn activation_named(&self, name: &str) -> Parsed<Activation> {
        match Activation::NAMES.iter().find(|(known, _)| *known == name) {
            Some((_, activation)) => Ok(*activation),
            None => {
                let known: Vec<&str> = Activation::NAMES.iter().map(|(name, _)| *name).collect();
                Err(self.problem(format!("the activation \"{name}\" is unknown{}", did_you_mean(name, &known))))
            }
        }
    }

    /// A regularizer of Keras: L1, L2 or both.
    pub fn regularizer(&self, key: &str) -> Parsed<Regularizer> {
        let value = self.get(key);
        if value.is_null() {
            return Ok(Regularizer::default());
        }
        let number = |key: &str| value["config"][key].as_f64().unwrap_or(0.0) as f32;
        match value["class_name"].as_str() {
            Some("L1" | "L2" | "L1L2") => Ok(Regularizer { l1: number("l1"), l2: number("l2") }),
            _ => self.wrong(key),
        }
    }

    /// Sentences about settings that are there and not used.
    pub fn unused(&self, keys: &[&'static str]) -> Vec<String> {
        let used = |key: &&&'static str| !self.get(key).is_null();
        keys.iter().filter(used).map(|key| self.problem(format!("`{key}` is not imported"))).collect()
    }
}
