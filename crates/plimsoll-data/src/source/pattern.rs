//! Lists of files by pattern.

use crate::DataError;
use std::path::{Path, PathBuf};

/// Patterns of more files are mistakes.
const MOST: usize = 1 << 20;

/// The files that match a pattern with `*`, `?`, `[abc]`, `**`, `{a,b}` and `{000..012}`, sorted by name. A pattern
/// without matches is an error, and so is a file that braces name and that does not exist.
///
/// ```
/// let none = plimsoll_data::source::files("no/such/*.tar");
/// assert_eq!(none.unwrap_err().to_string(), "no file matches no/such/*.tar; correct the path or the pattern");
/// let none = plimsoll_data::source::files("no/such-{08..11}.tar");
/// assert_eq!(none.unwrap_err().to_string(), "no/such-{08..11}.tar: no/such-08.tar does not exist; correct the pattern");
/// ```
pub fn files(pattern: impl AsRef<Path>) -> Result<Vec<PathBuf>, DataError> {
    let (literal, text) = (pattern.as_ref(), pattern.as_ref().to_string_lossy());
    // A name may have brackets and braces in it.
    if literal.is_file() {
        return Ok(vec![literal.to_path_buf()]);
    }
    let named = expand(&text).map_err(|problem| DataError::Stage(format!("the pattern {text} {problem}")))?;
    let mut files = Vec::new();
    for pattern in &named {
        let before = files.len();
        matching(pattern, &mut files)?;
        if files.len() == before {
            return Err(DataError::Stage(match named.len() {
                1 => format!("no file matches {text}; correct the path or the pattern"),
                _ => format!("{text}: {pattern} does not exist; correct the pattern"),
            }));
        }
    }
    files.sort_unstable();
    files.dedup();
    Ok(files)
}

/// Adds the files that match a pattern without braces.
fn matching(pattern: &str, files: &mut Vec<PathBuf>) -> Result<(), DataError> {
    let found = glob::glob(pattern)
        .map_err(|error| DataError::Stage(format!("the pattern {pattern} is wrong at character {}: {}", error.pos, error.msg)))?;
    for path in found {
        let path = path.map_err(|error| {
            let path = error.path().to_path_buf();
            DataError::io("list", &path, error.into())
        })?;
        if !path.is_dir() {
            files.push(path);
        }
    }
    Ok(())
}

/// The patterns that a pattern with braces stands for.
fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let Some(open) = pattern.find('{') else { return Ok(vec![pattern.to_string()]) };
    let length = pattern[open..].find('}').ok_or("has a { without a }; correct it")?;
    let (before, inside, after) = (&pattern[..open], &pattern[open + 1..open + length], &pattern[open + length + 1..]);
    let alternatives = match inside.split_once("..") {
        Some((first, last)) => range(first, last)?,
        None => inside.split(',').map(str::to_string).collect(),
    };
    let rest = expand(after)?;
    if alternatives.len().saturating_mul(rest.len()) > MOST {
        return Err(format!("names more than {MOST} files; correct it"));
    }
    Ok(alternatives.iter().flat_map(|name| rest.iter().map(move |rest| format!("{before}{name}{rest}"))).collect())
}

/// `000..012`: numbers with the digits of the longer end, if one begins with a zero.
fn range(first: &str, last: &str) -> Result<Vec<String>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("has {{{first}..{last}}}, which is no range of numbers"));
    let (start, end) = (number(first)?, number(last)?);
    if start.abs_diff(end) >= MOST as u64 {
        return Err(format!("names more than {MOST} files; correct it"));
    }
    let padded = [first, last].iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let digits = if padded { first.len().max(last.len()) } else { 0 };
    let numbers = start.min(end)..=start.max(end);
    Ok(numbers.map(|number| format!("{number:0digits$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_stand_for_several_patterns() {
        let expanded = |pattern: &str| expand(pattern).map(|names| names.join(" "));
        assert_eq!(expanded("s-{008..011}.tar"), Ok("s-008.tar s-009.tar s-010.tar s-011.tar".into()));
        assert_eq!(expanded("{9..10}-{a,b}"), Ok("9-a 9-b 10-a 10-b".into()));
        assert_eq!(expanded("plain-*.tar"), Ok("plain-*.tar".into()));
        assert_eq!(expanded("s-{1..x}"), Err("has {1..x}, which is no range of numbers".into()));
        assert_eq!(expanded("s-{1"), Err("has a { without a }; correct it".into()));
        assert_eq!(expanded("s-{0..99999999}"), Err(format!("names more than {MOST} files; correct it")));
    }
}
