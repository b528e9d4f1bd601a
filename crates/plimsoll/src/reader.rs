//! Typed access to the tables of a configuration. Keys that nothing has read are errors, with the nearest known key as
//! a suggestion.

use crate::error::{Error, Result};
use crate::suggest::{did_you_mean, inner_key, nearest};
use std::cell::RefCell;
use toml::{Table, Value};

/// One table of a configuration, and the keys that were read from it.
pub(crate) struct Reader<'a> {
    path: String,
    table: &'a Table,
    read: RefCell<Vec<Key>>,
}

/// A key that a table may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub name: &'static str,
    /// Its default as TOML, where it has one.
    pub default: Option<String>,
    /// What its value may be.
    pub kind: ValueType,
}

/// What the value of a key may be, as far as the reader is asked for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ValueType {
    /// Not read yet.
    Unknown,
    /// Read as it is, by the code that asked.
    Any,
    Text,
    /// A string, or a list of them.
    TextList,
    /// An integer of at least this.
    Count(u64),
    Number,
    Flag,
    /// A list of integers.
    Counts,
    /// A number, or a list of them.
    Numbers,
    /// An integer of at least one, or two of them.
    Pair,
    Choice(Vec<&'static str>),
    Table,
    Tables,
}

impl ValueType {
    /// What a key may be that is read in two ways.
    fn or(self, other: ValueType) -> ValueType {
        match (self, other) {
            (ValueType::Unknown, kind) | (kind, ValueType::Unknown) => kind,
            (kind, other) if kind == other => kind,
            // The words of a text.
            (ValueType::Text, choice @ ValueType::Choice(_)) | (choice @ ValueType::Choice(_), ValueType::Text) => choice,
            _ => ValueType::Any,
        }
    }
}

thread_local! {
    /// The keys that any reader of this thread is asked for, by table, while a schema is made.
    static RECORDED: RefCell<Option<Vec<(String, Key)>>> = const { RefCell::new(None) };
}

/// The keys that reading asks for, with the names of their tables; also those before an error.
pub(crate) fn record(read: impl FnOnce()) -> Vec<(String, Key)> {
    RECORDED.set(Some(Vec::new()));
    read();
    RECORDED.take().unwrap_or_default()
}

impl<'a> Reader<'a> {
    pub fn root(table: &'a Table) -> Reader<'a> {
        Reader { path: String::new(), table, read: RefCell::default() }
    }

    fn within(path: String, table: &'a Table) -> Reader<'a> {
        Reader { path, table, read: RefCell::default() }
    }

    /// The same table, with nothing read.
    pub fn same(&self) -> Reader<'a> {
        Reader::within(self.path.clone(), self.table)
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
        self.get(key, ValueType::Any)
    }

    fn get(&self, key: &'static str, kind: ValueType) -> Option<&'a Value> {
        self.note(key, None, Some(kind));
        self.table.get(key)
    }

    /// Remembers that a key may be there, and what it may be.
    fn note(&self, name: &'static str, default: Option<String>, kind: Option<ValueType>) {
        let mut read = self.read.borrow_mut();
        let at = read.iter().position(|key| key.name == name).unwrap_or_else(|| {
            read.push(Key { name, default: None, kind: kind.clone().unwrap_or(ValueType::Unknown) });
            read.len() - 1
        });
        let key = &mut read[at];
        key.default = key.default.take().or(default);
        if let Some(kind) = kind {
            key.kind = std::mem::replace(&mut key.kind, ValueType::Any).or(kind);
        }
        RECORDED.with_borrow_mut(|recorded| recorded.iter_mut().for_each(|all| all.push((self.path.clone(), key.clone()))));
    }

    /// The keys that were read so far, in order.
    pub fn keys(&self) -> Vec<Key> {
        self.read.borrow().clone()
    }

    /// An error about a key's value.
    pub fn wrong(&self, key: &str, value: &Value, wanted: &str) -> Error {
        Error::Config(format!("`{}` is {value}, but should be {wanted}", self.name(key)))
    }

    pub fn text(&self, key: &'static str) -> Result<Option<&'a str>> {
        match self.get(key, ValueType::Text) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(key, other, "text in quotes")),
        }
    }

    /// A word, or a list of them.
    pub fn texts(&self, key: &'static str) -> Result<Option<Vec<String>>> {
        let Some(value) = self.get(key, ValueType::TextList) else { return Ok(None) };
        let texts = match value {
            Value::Array(list) => list.iter().map(|item| item.as_str().map(String::from)).collect(),
            single => single.as_str().map(|text| vec![text.to_string()]),
        };
        texts.map(Some).ok_or_else(|| self.wrong(key, value, "text in quotes, or a list of it"))
    }

    /// An integer of at least `least`.
    pub fn count(&self, key: &'static str, least: u64) -> Result<Option<u64>> {
        match self.get(key, ValueType::Count(least)) {
            None => Ok(None),
            Some(Value::Integer(number)) if *number >= 0 && *number as u64 >= least => Ok(Some(*number as u64)),
            Some(other) => Err(self.wrong(key, other, &format!("an integer, {least} or more"))),
        }
    }

    pub fn number(&self, key: &'static str) -> Result<Option<f64>> {
        match self.get(key, ValueType::Number) {
            None => Ok(None),
            Some(value) => match number(value).filter(|number| number.is_finite()) {
                Some(number) => Ok(Some(number)),
                None => Err(self.wrong(key, value, "a number")),
            },
        }
    }

    pub fn flag(&self, key: &'static str) -> Result<Option<bool>> {
        match self.get(key, ValueType::Flag) {
            None => Ok(None),
            Some(Value::Boolean(flag)) => Ok(Some(*flag)),
            Some(other) => Err(self.wrong(key, other, "true or false")),
        }
    }

    /// A list of integers.
    pub fn counts(&self, key: &'static str) -> Result<Option<Vec<usize>>> {
        let Some(value) = self.get(key, ValueType::Counts) else { return Ok(None) };
        let numbers = value.as_array().map(|list| list.iter().map(|n| n.as_integer().and_then(|n| usize::try_from(n).ok())).collect());
        match numbers {
            Some(Some(numbers)) => Ok(Some(numbers)),
            _ => Err(self.wrong(key, value, "a list of integers, such as [28, 28, 1]")),
        }
    }

    /// A number, or a list of them.
    pub fn numbers(&self, key: &'static str) -> Result<Option<Vec<f32>>> {
        Ok(self.exact_numbers(key)?.map(|numbers| numbers.into_iter().map(|number| number as f32).collect()))
    }

    /// The same, as they are written.
    pub fn exact_numbers(&self, key: &'static str) -> Result<Option<Vec<f64>>> {
        let Some(value) = self.get(key, ValueType::Numbers) else { return Ok(None) };
        let numbers = match value {
            Value::Array(list) => list.iter().map(number).collect(),
            single => number(single).map(|number| vec![number]),
        };
        numbers.map(Some).ok_or_else(|| self.wrong(key, value, "a number or a list of numbers"))
    }

    /// An integer for both directions, or one for each.
    pub fn pair(&self, key: &'static str) -> Result<Option<(usize, usize)>> {
        let Some(value) = self.get(key, ValueType::Pair) else { return Ok(None) };
        let count = |value: &Value| value.as_integer().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
        let pair = match value {
            Value::Array(list) => match &list[..] {
                [a, b] => count(a).zip(count(b)),
                _ => None,
            },
            single => count(single).map(|n| (n, n)),
        };
        pair.map(Some).ok_or_else(|| self.wrong(key, value, "an integer of 1 or more, or two of them"))
    }

    /// One of several words.
    pub fn choice<T: Clone>(&self, key: &'static str, names: &[(&'static str, T)]) -> Result<Option<T>> {
        self.note(key, None, Some(choices(names)));
        let Some(word) = self.text(key)? else { return Ok(None) };
        choose(&self.name(key), word, names).map(Some)
    }

    /// A table inside this one.
    pub fn section(&self, key: &'static str) -> Result<Option<Reader<'a>>> {
        match self.get(key, ValueType::Table) {
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
        let Some(value) = self.get(key, ValueType::Tables) else { return Ok(None) };
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

    /// An integer of at least `min` that must be there.
    pub fn required_count(&self, key: &'static str, min: u64, what: &str) -> Result<usize> {
        self.count(key, min)?.map(|count| count as usize).ok_or_else(|| self.missing(key, what))
    }

    /// An integer of at least 1, or the default.
    pub fn count_or(&self, key: &'static str, default: usize) -> Result<usize> {
        self.note(key, Some(default.to_string()), None);
        Ok(self.count(key, 1)?.map_or(default, |count| count as usize))
    }

    /// An integer, or the default.
    pub fn count_from_zero_or(&self, key: &'static str, default: u64) -> Result<u64> {
        self.note(key, Some(default.to_string()), None);
        Ok(self.count(key, 0)?.unwrap_or(default))
    }

    /// A number, or the default.
    pub fn number_or(&self, key: &'static str, default: f32) -> Result<f32> {
        self.note(key, Some(float(default)), None);
        Ok(self.number(key)?.map_or(default, |number| number as f32))
    }

    /// A number of at least 0, or the default.
    pub fn non_negative_or(&self, key: &'static str, default: f32) -> Result<f32> {
        self.within_or(key, default, f32::INFINITY, "a number of at least 0")
    }

    /// A number from 0 to below 1, or the default.
    pub fn fraction_or(&self, key: &'static str, default: f32) -> Result<f32> {
        self.within_or(key, default, 1.0, "a number from 0 to below 1")
    }

    /// A number from 0 to below `end`, checked as the single precision it becomes: 1e300 is finite, but not then.
    fn within_or(&self, key: &'static str, default: f32, end: f32, wanted: &str) -> Result<f32> {
        let number = self.number_or(key, default)?;
        match number.is_finite() && (0.0..end).contains(&number) {
            true => Ok(number),
            false => Err(Error::Config(format!("`{}` is {number}, but should be {wanted}", self.name(key)))),
        }
    }

    /// True or false, or the default.
    pub fn flag_or(&self, key: &'static str, default: bool) -> Result<bool> {
        self.note(key, Some(default.to_string()), None);
        Ok(self.flag(key)?.unwrap_or(default))
    }

    /// An integer for both axes or one for each, or the default for both.
    pub fn pair_or(&self, key: &'static str, default: usize) -> Result<(usize, usize)> {
        self.note(key, Some(default.to_string()), None);
        Ok(self.pair(key)?.unwrap_or((default, default)))
    }

    /// One of several names, or that of the default.
    pub fn choice_or<T: Clone>(&self, key: &'static str, names: &[(&'static str, T)], default: &'static str) -> Result<T> {
        self.note(key, Some(format!("\"{default}\"")), Some(choices(names)));
        choose(&self.name(key), self.text(key)?.unwrap_or(default), names)
    }

    /// An error if the table has a key that nothing has read.
    pub fn finish(self) -> Result<()> {
        self.check_keys()
    }

    /// An error if the table has a key that nothing has read so far.
    pub fn check_keys(&self) -> Result<()> {
        let read = self.read.borrow();
        let known: Vec<&str> = read.iter().map(|key| key.name).collect();
        let Some(unknown) = self.table.keys().find(|key| !known.contains(&key.as_str())) else { return Ok(()) };
        let inner = inner_key(unknown, &known);
        let hint = match inner.as_deref().or_else(|| nearest(unknown, &known)) {
            Some(near) => format!("did you mean `{}`?", self.name(near)),
            None => format!("the keys here are {}", known.join(", ")),
        };
        Err(Error::Config(format!("unknown key `{}`; {hint}", self.name(unknown))))
    }
}

fn choices<T>(names: &[(&'static str, T)]) -> ValueType {
    ValueType::Choice(names.iter().map(|(name, _)| *name).collect())
}

/// A number as people write it: 0.5, 3, or text such as "1/255", "10%" or "1e-3".
fn number(value: &Value) -> Option<f64> {
    let parse = |text: &str| text.trim().parse::<f64>().ok().filter(|number| number.is_finite());
    match value {
        Value::Float(number) => Some(*number),
        Value::Integer(number) => Some(*number as f64),
        Value::String(text) => match (text.split_once('/'), text.trim_end().strip_suffix('%')) {
            (Some((above, below)), _) => parse(above).zip(parse(below)).map(|(above, below)| above / below).filter(|q| q.is_finite()),
            (None, Some(percent)) => parse(percent).map(|percent| percent / 100.0),
            (None, None) => parse(text),
        },
        _ => None,
    }
}

/// A number as TOML writes it.
fn float(number: f32) -> String {
    let text = format!("{number:?}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

/// One of several words, by its name.
pub(crate) fn choose<T: Clone>(key: &str, word: &str, names: &[(&'static str, T)]) -> Result<T> {
    if let Some((_, value)) = names.iter().find(|(name, _)| *name == word) {
        return Ok(value.clone());
    }
    let known: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
    let hint = did_you_mean(word, &known);
    Err(Error::Config(format!("`{key}` is \"{word}\", but should be one of {}{hint}", known.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_may_be_fractions_and_percentages() {
        let table: Table = "a = '1/255'\nb = '10%'\nc = '1e-3'\nd = ['1/2', 3, 0.5]\ne = '1/0'\nf = 'one'".parse().unwrap();
        let reader = Reader::root(&table);
        let read = |key| reader.number(key).map_err(|error| error.to_string());
        assert_eq!([read("a"), read("b"), read("c")], [Ok(Some(1.0 / 255.0)), Ok(Some(0.1)), Ok(Some(0.001))]);
        assert_eq!(reader.exact_numbers("d").unwrap().unwrap(), [0.5, 3.0, 0.5]);
        assert_eq!(read("e"), Err("`e` is \"1/0\", but should be a number".to_string()));
        assert_eq!(read("f"), Err("`f` is \"one\", but should be a number".to_string()));
    }
}
