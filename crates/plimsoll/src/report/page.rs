//! The page: HTML, style and script as they are in `page/`, with the data in one JSON object between them.

use super::{COPIED, copy};
use crate::error::{Error, Result};
use plimsoll_formats::json::{InScript, write_string};
use serde_json::Value;
use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::path::Path;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const SCRIPTS: [&str; 9] = [
    include_str!("page/base.js"),
    include_str!("page/charts.js"),
    include_str!("page/budget.js"),
    include_str!("page/memory.js"),
    include_str!("page/arena.js"),
    include_str!("page/training.js"),
    include_str!("page/tables.js"),
    include_str!("page/profile.js"),
    include_str!("page/main.js"),
];

/// A page under construction: runs, each with named parts.
pub(super) struct Page<W> {
    writer: InScript<W>,
    runs: usize,
    parts: usize,
}

impl<W: Write> Page<W> {
    pub fn begin(mut writer: W, title: &str) -> io::Result<Page<W>> {
        let title = title.replace('&', "&amp;").replace('<', "&lt;");
        let head = part(HTML, "", "{{style}}").replace("{{title}}", &title);
        for text in [head.as_str(), STYLE, part(HTML, "{{style}}", "{{data}}"), "{\"runs\":["] {
            writer.write_all(text.as_bytes())?;
        }
        Ok(Page { writer: InScript(writer), runs: 0, parts: 0 })
    }

    pub fn begin_run(&mut self) -> io::Result<()> {
        self.writer.write_all(if self.runs > 0 { b",{" } else { b"{" })?;
        (self.runs, self.parts) = (self.runs + 1, 0);
        Ok(())
    }

    pub fn end_run(&mut self) -> io::Result<()> {
        self.writer.write_all(b"}")
    }

    fn key(&mut self, key: &str) -> io::Result<()> {
        if self.parts > 0 {
            self.writer.write_all(b",")?;
        }
        self.parts += 1;
        write!(self.writer, "\"{key}\":")
    }

    pub fn value(&mut self, key: &str, value: &Value) -> io::Result<()> {
        self.key(key)?;
        serde_json::to_writer(&mut self.writer, value).map_err(Into::into)
    }

    /// What a function writes as JSON.
    pub fn stream(&mut self, key: &str, write: impl FnOnce(&mut InScript<W>) -> io::Result<()>) -> io::Result<()> {
        self.key(key)?;
        write(&mut self.writer)
    }

    /// The JSON document of a file, if there is one.
    pub fn file(&mut self, key: &str, path: &Path) -> Result<()> {
        let Some(file) = open(path)? else { return Ok(()) };
        self.key(key).and_then(|()| copy(file, &mut self.writer)).map_err(|source| wrong(path, source))
    }

    /// The lines of a file, each a JSON document, as a list.
    pub fn lines(&mut self, key: &str, path: &Path) -> Result<()> {
        let Some(file) = open(path)? else { return Ok(()) };
        let write = || {
            self.key(key)?;
            self.writer.write_all(b"[")?;
            let (mut reader, mut line, mut first) = (BufReader::with_capacity(COPIED, file), Vec::new(), true);
            while reader.read_until(b'\n', &mut line)? > 0 {
                // A run that was killed may have left half a line.
                if line.ends_with(b"}\n") {
                    self.writer.write_all(if first { b"" } else { b"," })?;
                    self.writer.write_all(&line)?;
                    first = false;
                }
                line.clear();
            }
            self.writer.write_all(b"]")
        };
        write().map_err(|source| wrong(path, source))
    }

    /// The text of a file as a string.
    pub fn text(&mut self, key: &str, path: &Path) -> Result<()> {
        let Ok(text) = std::fs::read_to_string(path) else { return Ok(()) };
        self.key(key).and_then(|()| write_string(&mut self.writer, &text)).map_err(|source| wrong(path, source))
    }

    pub fn finish(self) -> io::Result<()> {
        let mut writer = self.writer.0;
        writer.write_all(b"]}")?;
        writer.write_all(part(HTML, "{{data}}", "{{script}}").as_bytes())?;
        SCRIPTS.iter().try_for_each(|script| writer.write_all(script.as_bytes()))?;
        writer.write_all(part(HTML, "{{script}}", "").as_bytes())?;
        writer.flush()
    }
}

/// The template between two marks; an empty mark is its beginning or its end.
fn part(template: &'static str, from: &str, to: &str) -> &'static str {
    let start = template.find(from).map_or(0, |at| at + from.len());
    let end = if to.is_empty() { template.len() } else { template.find(to).unwrap_or(template.len()) };
    &template[start..end]
}

fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(wrong(path, source)),
    }
}

fn wrong(path: &Path, source: io::Error) -> Error {
    Error::Io { action: "put into the report", path: path.to_path_buf(), source }
}
