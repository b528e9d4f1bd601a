//! Standard output and files. What is asked for must arrive: a full disk is an error. A reader that has closed the pipe
//! has seen enough. A terminal gets text only: bytes that would change its state are replaced.

use anyhow::{Result, bail};
use serde_json::Value;
use std::borrow::Cow;
use std::fs::File;
use std::io::{BufWriter, ErrorKind, IsTerminal, Write, stderr, stdout};
use std::path::Path;

/// Prints one JSON document.
pub fn print(document: &Value) -> Result<()> {
    let stream = stdout();
    if stream.is_terminal() {
        return say(&format!("{document:#}\n"));
    }
    // As it comes: its text can be larger than everything else that is in memory.
    let mut stream = BufWriter::new(stream);
    let written = serde_json::to_writer_pretty(&mut stream, document).map_err(std::io::Error::from);
    written_to_stdout(written.and_then(|()| stream.write_all(b"\n")).and_then(|()| stream.flush()))
}

/// Writes to standard output.
pub fn say(text: &str) -> Result<()> {
    say_styled(&if stdout().is_terminal() { printable(text) } else { Cow::Borrowed(text) })
}

/// Writes text with colours to standard output; names and data in it have to be [`printable`] already.
pub fn say_styled(text: &str) -> Result<()> {
    let mut stream = stdout();
    written_to_stdout(stream.write_all(text.as_bytes()).and_then(|()| stream.flush()))
}

/// A reader that has seen enough is no error.
fn written_to_stdout(written: std::io::Result<()>) -> Result<()> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(anyhow::anyhow!("cannot write to standard output: {error}")),
        _ => Ok(()),
    }
}

/// Writes to standard error, as far as somebody reads it.
pub fn complain(text: &str) {
    let mut stream = stderr();
    let text = if stream.is_terminal() { printable(text) } else { Cow::Borrowed(text) };
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

/// An error with its causes, as far as it does not state them itself.
pub fn message(error: &anyhow::Error) -> String {
    error.chain().skip(1).map(ToString::to_string).fold(error.to_string(), |message, cause| match message.contains(&cause) {
        true => message,
        false => format!("{message}: {cause}"),
    })
}

/// Text without control characters other than line ends and tabs, such as those in names and in the contents of files.
pub fn printable(text: &str) -> Cow<'_, str> {
    let harmless = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\t');
    if text.chars().all(harmless) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|letter| if harmless(letter) { letter } else { char::REPLACEMENT_CHARACTER }).collect())
}

/// Creates a file for bytes that are no text; a terminal is refused.
pub fn create_binary(path: &Path) -> Result<File> {
    let file = File::create(path).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))?;
    if file.is_terminal() {
        bail!("{} is a terminal, which cannot show binary data; name a file", path.display());
    }
    Ok(file)
}

/// Whether colours are wanted on a stream that may be a terminal: not if NO_COLOR is set, and not on a terminal without
/// them.
pub fn colours(terminal: bool) -> bool {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_characters() {
        assert_eq!(printable("weights 1.5 MiB\n\tα"), "weights 1.5 MiB\n\tα");
        assert_eq!(printable("a\x1b[2Jb\0\r\u{9b}c"), "a\u{fffd}[2Jb\u{fffd}\u{fffd}\u{fffd}c");
    }
}
