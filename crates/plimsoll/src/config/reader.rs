//! Reading tables key by key: what is not asked for by the end is an error that names the nearest key that is.

use crate::error::{Error, Result};
use crate::suggest::{did_you_mean, nearest};
use std::cell::RefCell;
use toml::{Table, Value};

/// One table of a configuration and the keys it was asked for.
pub(super) struct Reader<'a> {
    path: String,
    table: &'a Table,
    asked: RefCell<Vec<&'static str>>,
}

impl<'a> Reader<'a> {
    pub fn root(table: &'a Table) -> Reader<'a> {
        Reader { path: String::new(), table, asked: RefCell::default() }
    }

    fn within(path: String, table: &'a Table) -> Reader<'a> {
        Reader { path, table, asked: RefCell::default() }
    }

    /// The full name of a key.
    pub fn name(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) }
    }

    /// The full name of the table.
    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn value(&self, key: &'static str) -> Option<&'a Value> {
        self.asked.borrow_mut().push(key);
        self.table.get(key)
    }

    /// An error about a key's value.
    pub fn wrong(&self, key: &str, value: &Value, wanted: &str) -> Error {
        Error::Config(format!("`{}` is {value}, but should be {wanted}", self.name(key)))
    }

    pub fn text(&self, key: &'static str) -> Result<Option<&'a str>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "text in quotes")),
        }
    }

    /// A word, or a list of them.
    pub fn texts(&self, key: &'static str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let texts = match value {
            Value::Array(list) => list.iter().map(|item| item.as_str().map(String::from)).collect(),
            single => single.as_str().map(|text| vec![text.to_string()]),
        };
        texts.map(Some).ok_or_else(|| self.wrong(key, value, "text in quotes, or a list of it"))
    }

    /// A whole number of at least `least`.
    pub fn count(&self, key: &'static str, least: u64) -> Result<Option<u64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Integer(number)) if *number >= 0 && *number as u64 >= least => Ok(Some(*number as u64)),
            Some(other) => Err(self.wrong(key, other, &format!("a whole number, {least} or more"))),
        }
    }

    pub fn number(&self, key: &'static str) -> Result<Option<f64>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Float(number)) if number.is_finite() => Ok(Some(*number)),
            Some(Value::Integer(number)) => Ok(Some(*number as f64)),
            Some(other) => Err(self.wrong(key, other, "a number")),
        }
    }

    pub fn flag(&self, key: &'static str) -> Result<Option<bool>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Boolean(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A list of whole numbers.
    pub fn counts(&self, key: &'static str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let numbers = value.as_array().map(|list| list.iter().map(|n| n.as_integer().and_then(|n| usize::try_from(n).ok())).collect());
        match numbers {
            Some(Some(numbers)) => Ok(Some(numbers)),
            _ => Err(self.wrong(key, value, "a list of whole numbers, such as [28, 28, 1]")),
        }
    }

    /// A number, or a list of them.
    pub fn numbers(&self, key: &'static str) -> Result<Option<Vec<f32>>> {
        Ok(self.exact_numbers(key)?.map(|numbers| numbers.into_iter().map(|number| number as f32).collect()))
    }

    /// The same, as they are written.
    pub fn exact_numbers(&self, key: &'static str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let number = |value: &Value| value.as_float().or(value.as_integer().map(|n| n as f64));
        let numbers = match value {
            Value::Array(list) => list.iter().map(number).collect(),
            single => number(single).map(|number| vec![number]),
        };
        numbers.map(Some).ok_or_else(|| self.wrong(key, value, "a number or a list of numbers"))
    }

    /// A whole number for both directions, or one for each.
    pub fn pair(&self, key: &'static str) -> Result<Option<(usize, usize)>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let count = |value: &Value| value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let pair = match value {
            Value::Array(list) => match &list[..] {
                [a, b] => count(a).zip(count(b)),
                _ => None,
            },
            single => count(single).map(|n| (n, n)),
        };
        pair.map(Some).ok_or_else(|| self.wrong(key, value, "a whole number of 1 or more, or two of them"))
    }

    /// One of several words.
    pub fn choice<T: Copy>(&self, key: &'static str, names: &[(&'static str, T)]) -> Result<Option<T>> {
        let Some(word) = self.text(key)? else { return Ok(None) };
        choose(&self.name(key), word, names).map(Some)
    }

    /// A table inside this one.
    pub fn section(&self, key: &'static str) -> Result<Option<Reader<'a>>> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Table(table)) => Ok(Some(Reader::within(self.name(key), table))),
            Some(other) => Err(self.wrong(key, other, "a table")),
        }
    }

    /// All that is in the table, whatever its keys, with a reader for what is a table.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value, Option<Reader<'a>>)> {
        self.table.iter().map(|(key, value)| {
            let inner = value.as_table().map(|table| Reader::within(self.name(key), table));
            (key.as_str(), value, inner)
        })
    }

    /// A list of tables.
    pub fn sections(&self, key: &'static str) -> Result<Option<Vec<Reader<'a>>>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        let list = value.as_array().ok_or_else(|| self.wrong(key, value, "a list of tables"))?;
        let readers = list.iter().enumerate().map(|(i, item)| match item {
            Value::Table(table) => Ok(Reader::within(format!("{}[{i}]", self.name(key)), table)),
            other => Err(self.wrong(&format!("{key}[{i}]"), other, "a table")),
        });
        readers.collect::<Result<Vec<_>>>().map(Some)
    }

    /// The error of a key that must be there.
    pub fn missing(&self, key: &str, what: &str) -> Error {
        Error::Config(format!("`{}` is missing: {what}", self.name(key)))
    }

    /// Refuses keys nobody asked for.
    pub fn finish(self) -> Result<()> {
        self.check_keys()
    }

    /// Refuses keys nobody has asked for so far.
    pub fn check_keys(&self) -> Result<()> {
        let mut asked = self.asked.borrow().clone();
        let mut seen = Vec::new();
        asked.retain(|key| {
            !seen.contains(key) && {
                seen.push(*key);
                true
            }
        });
        let Some(unknown) = self.table.keys().find(|key| !asked.contains(&key.as_str())) else { return Ok(()) };
        let full = |key: &str| if self.path.is_empty() { key.to_string() } else { format!("{}.{key}", self.path) };
        let hint = match nearest(unknown, &asked) {
            Some(near) => format!("did you mean `{}`?", full(near)),
            None => format!("the keys here are {}", asked.join(", ")),
        };
        Err(Error::Config(format!("unknown key `{}`; {hint}", full(unknown))))
    }
}

/// One of several words, by its name.
pub(super) fn choose<T: Copy>(key: &str, word: &str, names: &[(&'static str, T)]) -> Result<T> {
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == word) {
        return Ok(*value);
    }
    let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let hint = did_you_mean(word, &known);
    Err(Error::Config(format!("`{key}` is \"{word}\", but should be one of {}{hint}", known.join(", "))))
}
