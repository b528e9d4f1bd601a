//! The records of a small CSV file, one after the other, as text.

use super::records::{FIELD, PIECE, RecordScanner, RecordStart};
use crate::DataError;
use std::fs::File;
use std::path::Path;

/// Calls `visit` with the line and the fields of every record, the header included.
pub(crate) fn each_record(path: &Path, mut visit: impl FnMut(u64, &[Vec<u8>]) -> Result<(), DataError>) -> Result<(), DataError> {
    let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
    let mut memory = vec![0; PIECE + FIELD];
    let mut records = RecordScanner::at(&file, path, RecordStart { byte: 0, line: 1 }, &mut memory);
    let mut fields: Vec<Vec<u8>> = Vec::new();
    while let Some(start) = records.next_record()? {
        let mut count = 0;
        loop {
            let field = records.field()?;
            if field.too_long {
                return Err(DataError::csv(path, start.line, format!("a field has more than {FIELD} bytes; shorten it")));
            }
            if count == fields.len() {
                fields.push(Vec::new());
            }
            fields[count].clear();
            fields[count].extend_from_slice(field.bytes.trim_ascii());
            count += 1;
            if field.ends_record {
                break;
            }
        }
        visit(start.line, &fields[..count])?;
    }
    Ok(())
}
