//! How the cells of a text table are separated.

use super::CsvSpec;
use super::input::Compression;
use super::records::{RecordScanner, Supply};
use crate::DataError;
use std::fs::File;
use std::io::Read;
use std::ops::DerefMut;
use std::path::Path;

/// How cells are separated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syntax {
    /// Fields between delimiters.
    Delimited(u8),
    /// A JSON object per line.
    JsonLines,
}

/// Bytes at the start of a file that the delimiter is detected in.
const DETECTED: usize = 64 << 10;

/// Records that are compared.
const SAMPLED_RECORDS: usize = 32;

impl Syntax {
    /// As asked for, or as the first file looks.
    pub fn of(spec: &CsvSpec, path: &Path) -> Result<Syntax, DataError> {
        if spec.json_lines {
            return Ok(Syntax::JsonLines);
        }
        if let Some(delimiter) = spec.delimiter {
            return Ok(Syntax::Delimited(delimiter));
        }
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let compression = Compression::of(&file, path)?;
        let mut start = Vec::new();
        let read = compression.open(&file).and_then(|bytes| bytes.take(DETECTED as u64).read_to_end(&mut start));
        read.map_err(|error| DataError::io("read", path, error))?;
        if start.starts_with(b"{\"") {
            return Err(DataError::csv(path, 1, "its lines are JSON objects; set source = \"json_lines\""));
        }
        Ok(Syntax::Delimited(Delimiters::detect(&start)))
    }

    pub fn delimiter(&self) -> u8 {
        match self {
            Syntax::Delimited(delimiter) => *delimiter,
            Syntax::JsonLines => b'\n',
        }
    }
}

/// Delimiters and headers.
pub(super) struct Delimiters;

impl Delimiters {
    /// The delimiter that splits the first records into the same number of fields, and into the most of them; a comma
    /// if none does.
    pub fn detect(start: &[u8]) -> u8 {
        let mut best = (1, b',');
        for delimiter in *b",;\t|" {
            let counts = Delimiters::count(start, delimiter);
            let Some(&first) = counts.first() else { continue };
            let even = counts.iter().filter(|count| **count == first).count() * 10 >= counts.len() * 9;
            if even && first > best.0 {
                best = (first, delimiter);
            }
        }
        if best.0 > 1 {
            return best.1;
        }
        // Uneven rows are bad rows; the header alone decides.
        let header = |delimiter: &u8| Delimiters::count(start, *delimiter).first().copied().unwrap_or(0);
        [b',', b';', b'\t', b'|'].into_iter().rev().max_by_key(header).unwrap_or(b',')
    }

    /// The number of fields of the first complete records.
    fn count(start: &[u8], delimiter: u8) -> Vec<usize> {
        let (mut counts, mut fields, mut quoted, mut empty) = (Vec::new(), 1, false, true);
        for &byte in start {
            match byte {
                b'"' => quoted = !quoted,
                b'\n' | b'\r' if !quoted => {
                    if !empty {
                        counts.push(fields);
                    }
                    (fields, empty) = (1, true);
                    if counts.len() == SAMPLED_RECORDS {
                        return counts;
                    }
                    continue;
                }
                byte if byte == delimiter && !quoted => fields += 1,
                _ => {}
            }
            empty = false;
        }
        if counts.is_empty() && !empty {
            counts.push(fields);
        }
        counts
    }

    /// The names of the columns: of the header, those that were given, or numbers.
    pub fn header<S: Supply, M: DerefMut<Target = [u8]>>(
        records: &mut RecordScanner<S, M>,
        spec: &CsvSpec,
    ) -> Result<Vec<String>, DataError> {
        let mut names = Vec::new();
        loop {
            let field = records.field()?;
            names.push(match spec.header {
                Some(false) => format!("column_{}", names.len()),
                _ => field.text().trim().to_string(),
            });
            if field.ends_record {
                break;
            }
        }
        if let Some(given) = &spec.names {
            names.iter_mut().zip(given).for_each(|(name, given)| given.clone_into(name));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delimiter_splits_rows_evenly() {
        for (text, delimiter) in [
            ("a,b\n1,2\n", b','),
            ("a;b;c\n1,5;2;3\n2,5;1;1\n", b';'),
            ("a\tb\n\"x, y, z\"\t2\n", b'\t'),
            ("a|b\n1|2\n", b'|'),
            ("a\n1\n", b','),
            ("", b','),
            ("a;b,c\n1,2\n1,2\n1,2\n", b','),
            ("name;text\n\"a;b\";x\ny;\"z\n,,;\"\n", b';'),
        ] {
            assert_eq!(char::from(Delimiters::detect(text.as_bytes())), char::from(delimiter), "{text:?}");
        }
    }
}
