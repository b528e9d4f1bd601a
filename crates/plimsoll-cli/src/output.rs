//! Standard output. What is asked for must arrive: a full disk is an error. A reader that has closed the pipe has seen enough.

use anyhow::Result;
use serde_json::Value;
use std::io::{ErrorKind, Write};

/// Prints one JSON document.
pub fn print(document: &Value) -> Result<()> {
    say(&format!("{document:#}\n"))
}

/// Writes to standard output.
pub fn say(text: &str) -> Result<()> {
    let mut stream = std::io::stdout();
    match stream.write_all(text.as_bytes()).and_then(|()| stream.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        _ => Ok(()),
    }
}
