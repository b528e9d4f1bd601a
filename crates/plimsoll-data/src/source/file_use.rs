//! What a source reads of its files, and what it leaves out.

use crate::table::{ColumnScale, FittedColumn};
use serde::{Deserialize, Serialize};

/// Which columns or arrays of a file are read, and which are not.
///
/// ```
/// use plimsoll_data::source::FileUse;
/// let read = FileUse { used: vec!["a".into(), "b".into()], targets: vec!["c".into()], unused: vec![("name".into(), "text".into())], ..FileUse::default() };
/// assert_eq!(read.lines(), [("reads", "a, b → c".to_string()), ("not read", "name (text)".to_string())]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUse {
    /// The names of the inputs.
    pub used: Vec<String>,
    /// The names of the labels.
    pub targets: Vec<String>,
    /// The labels of a model with several outputs, each with the names of its columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<(String, Vec<String>)>,
    /// How columns are encoded, for those that are not read as the numbers they are.
    #[serde(default)]
    pub encoded: Vec<(String, String)>,
    /// The names of the others, each with the reason.
    pub unused: Vec<(String, String)>,
}

/// What a table knows about itself besides its rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct TableFacts {
    pub file_use: FileUse,
    pub scales: Vec<ColumnScale>,
    pub fitted: Vec<FittedColumn>,
    pub classes: Vec<String>,
}

/// Names in a line of text; JSON has them all.
const MOST_NAMES: usize = 8;

/// Characters of a name in a line of text.
const LONGEST_NAME: usize = 40;

impl FileUse {
    /// Sets how columns are encoded.
    pub(crate) fn with_encoded<'c>(self, columns: impl Iterator<Item = &'c FittedColumn>) -> FileUse {
        let encoded = columns.filter_map(|column| Some((column.name.clone(), column.describe()?))).collect();
        FileUse { encoded, ..self }
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self == &FileUse::default()
    }

    /// At most three lines of limited length, each with a label.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = Vec::new();
        if !self.used.is_empty() {
            let targets: Vec<&String> = self.targets.iter().chain(self.outputs.iter().flat_map(|(_, columns)| columns)).collect();
            let targets = if targets.is_empty() { String::new() } else { format!(" → {}", list(&targets, |name| short(name))) };
            lines.push(("reads", list(&self.used, |name| short(name)) + &targets));
        }
        if !self.encoded.is_empty() {
            lines.push(("encoded", list(&self.encoded, |(name, how)| format!("{} ({how})", short(name)))));
        }
        if !self.unused.is_empty() {
            lines.push(("not read", list(&self.unused, |(name, reason)| format!("{} ({reason})", short(name)))));
        }
        lines
    }
}

fn list<T>(items: &[T], name: impl Fn(&T) -> String) -> String {
    let more = items.len().saturating_sub(MOST_NAMES);
    let named: Vec<String> = items.iter().take(MOST_NAMES).map(name).collect();
    if more == 0 { named.join(", ") } else { format!("{} and {more} more", named.join(", ")) }
}

fn short(name: &str) -> String {
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None if name.is_empty() => "\"\"".to_string(),
        None => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_stay_short() {
        let names = |count: usize| (0..count).map(|n| format!("column_with_a_long_name_{n:030}")).collect::<Vec<_>>();
        let unused = names(5000).into_iter().map(|name| (name, "text".to_string())).collect();
        let lines = FileUse { used: names(1000), targets: names(900), unused, ..FileUse::default() }.lines();
        assert!(lines.iter().all(|(_, line)| line.chars().count() < 900), "{lines:?}");
        assert!(lines[0].1.contains("and 992 more → ") && lines[1].1.ends_with("and 4992 more"), "{lines:?}");
    }
}
