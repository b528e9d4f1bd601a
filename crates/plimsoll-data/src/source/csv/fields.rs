//! The records of a small CSV file, one after the other, as text.

use super::CsvSpec;
use super::input::Compression;
use super::records::{FIELD, LONGEST_FIELD, PIECE, RecordScanner, RecordStart};
use super::syntax::Syntax;
use crate::DataError;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Calls `visit` with the line and the fields of every record, the header included.
pub(crate) fn each_record(path: &Path, visit: impl FnMut(u64, &[Vec<u8>]) -> Result<(), DataError>) -> Result<(), DataError> {
    each_record_of(path, Syntax::of(&CsvSpec::default(), path)?.delimiter(), visit)
}

/// The same, of a table with this delimiter.
pub(super) fn each_record_of(
    path: &Path,
    delimiter: u8,
    mut visit: impl FnMut(u64, &[Vec<u8>]) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
    let bytes = Compression::of(&file, path)?.open(&file).map_err(|error| DataError::io("read", path, error))?;
    let memory: Box<[u8]> = vec![0; PIECE + FIELD].into();
    let shared: Arc<Path> = path.into();
    let mut records = RecordScanner::at(bytes, &shared, delimiter, RecordStart { byte: 0, line: 1 }, memory);
    let mut fields: Vec<Vec<u8>> = Vec::new();
    while let Some(start) = records.next_record()? {
        let mut count = 0;
        loop {
            let field = records.field()?;
            if count == fields.len() {
                fields.push(Vec::new());
            }
            fields[count].clear();
            // Only the start of a very long field is read.
            fields[count].extend_from_slice(field.bytes.trim_ascii());
            count += 1;
            if field.ends_record {
                break;
            }
            if count > LONGEST_FIELD {
                return Err(DataError::csv(path, start.line, "it has too many fields; correct the row"));
            }
        }
        visit(start.line, &fields[..count])?;
    }
    Ok(())
}
