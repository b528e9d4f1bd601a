//! Lists of files by pattern.

use crate::DataError;
use std::path::{Path, PathBuf};

/// The files that match a pattern with `*`, `?`, `[abc]` and `**`, sorted by name; a pattern that matches nothing is an error.
///
/// ```
/// let none = plimsoll_data::source::files("no/such/*.tar");
/// assert_eq!(none.unwrap_err().to_string(), "no file matches no/such/*.tar; correct the path or the pattern");
/// ```
pub fn files(pattern: impl AsRef<Path>) -> Result<Vec<PathBuf>, DataError> {
    let text = pattern.as_ref().to_string_lossy();
    let refuse = |problem: String| DataError::Stage(problem);
    let found =
        glob::glob(&text).map_err(|error| refuse(format!("the pattern {text} is wrong at character {}: {}", error.pos, error.msg)))?;
    let mut files = Vec::new();
    for path in found {
        let path = path.map_err(|error| {
            let path = error.path().to_path_buf();
            DataError::io("list", &path, error.into())
        })?;
        if !path.is_dir() {
            files.push(path);
        }
    }
    if files.is_empty() {
        return Err(refuse(format!("no file matches {text}; correct the path or the pattern")));
    }
    files.sort_unstable();
    Ok(files)
}
