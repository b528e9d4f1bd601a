//! Strings and numbers as JSON, written to a stream.

use std::io::{self, Write};

/// Writes a string in quotes. `<` is escaped too, so that the text may stand in a `<script>` of an HTML page.
///
/// ```
/// let mut text = Vec::new();
/// plimsoll_formats::json::write_string(&mut text, "a \"b\"\n<c>")?;
/// assert_eq!(text, br#""a \"b\"\n\u003cc>""#);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_string(writer: &mut impl Write, text: &str) -> io::Result<()> {
    writer.write_all(b"\"")?;
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| matches!(c, '"' | '\\' | '<') || c < ' ') {
        writer.write_all(&rest.as_bytes()[..at])?;
        match rest.as_bytes()[at] {
            b'"' => writer.write_all(b"\\\"")?,
            b'\\' => writer.write_all(b"\\\\")?,
            b'\n' => writer.write_all(b"\\n")?,
            b'\t' => writer.write_all(b"\\t")?,
            other => write!(writer, "\\u{other:04x}")?,
        }
        rest = &rest[at + 1..];
    }
    writer.write_all(rest.as_bytes())?;
    writer.write_all(b"\"")
}

/// Writes a number; JSON has none that is not finite, so those become `null`.
pub fn write_number(writer: &mut impl Write, number: f64) -> io::Result<()> {
    if number.is_finite() { write!(writer, "{number}") } else { writer.write_all(b"null") }
}

/// Passes JSON text on with `<` escaped, as a `<script>` of an HTML page needs it. In JSON, `<` stands in strings only.
///
/// ```
/// use std::io::Write;
/// let mut page = Vec::new();
/// plimsoll_formats::json::InScript(&mut page).write_all(br#"["</script>"]"#)?;
/// assert_eq!(page, br#"["\u003c/script>"]"#);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct InScript<W>(pub W);

impl<W: Write> Write for InScript<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut parts = bytes.split(|byte| *byte == b'<');
        if let Some(first) = parts.next() {
            self.0.write_all(first)?;
        }
        for part in parts {
            self.0.write_all(b"\\u003c")?;
            self.0.write_all(part)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
