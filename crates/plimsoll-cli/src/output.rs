//! Standard output.

use serde_json::Value;
use std::io::Write;

/// Prints one JSON document.
pub fn print(document: &Value) {
    say(&format!("{document:#}\n"));
}

/// Writes to standard output. A reader that has closed the pipe, or a full disk, is no reason to panic.
pub fn say(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
