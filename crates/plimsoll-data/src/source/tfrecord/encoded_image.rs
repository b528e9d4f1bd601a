//! Locates the image of an example in a file without loading the record, or in a record that is loaded.

use crate::image::ReadAt;
use std::ops::Range;

/// Finds the byte range of the first value of feature `key` in the example at `record`.
pub(super) fn find(file: &dyn ReadAt, record: Range<u64>, key: &str) -> Result<Range<u64>, String> {
    let mut window = FileWindow { file, bytes: [0; WINDOW], start: 0, length: 0 };
    // An example has one list of features (field 1), whose entries (1) have a name (1) and a value (2).
    let mut features = ImageFields::new(record);
    while let Some((number, feature)) = features.next(&mut window)? {
        if number != 1 {
            continue;
        }
        let mut entries = ImageFields::new(feature);
        while let Some((number, entry)) = entries.next(&mut window)? {
            if number != 1 {
                continue;
            }
            let (mut named, mut value) = (false, None);
            let mut fields = ImageFields::new(entry);
            while let Some((number, range)) = fields.next(&mut window)? {
                match number {
                    1 => named = window.is(range, key.as_bytes())?,
                    2 => value = Some(range),
                    _ => {}
                }
            }
            if let (true, Some(value)) = (named, value) {
                return first_bytes(&mut window, value, key);
            }
        }
    }
    Err(format!("it has no feature `{key}`"))
}

/// A value is a list of bytes (field 1), floats or integers; a list of bytes has items (1).
fn first_bytes(window: &mut FileWindow<'_>, value: Range<u64>, key: &str) -> Result<Range<u64>, String> {
    let mut lists = ImageFields::new(value);
    while let Some((number, list)) = lists.next(window)? {
        if number != 1 {
            return Err(format!("feature `{key}` is numbers and no image; declare it as what it is"));
        }
        if let Some((1, item)) = ImageFields::new(list).next(window)? {
            return Ok(item);
        }
    }
    Err(format!("feature `{key}` is empty where an image should be"))
}

const WINDOW: usize = 1024;

/// A small buffered window of the file.
struct FileWindow<'f> {
    file: &'f dyn ReadAt,
    bytes: [u8; WINDOW],
    start: u64,
    length: usize,
}

const NO_EXAMPLE: &str = "it is no tf.train.Example";

impl FileWindow<'_> {
    fn byte(&mut self, at: u64) -> Result<u8, String> {
        if at < self.start || at >= self.start + self.length as u64 {
            let read = self.file.read_at(&mut self.bytes, at).map_err(|error| format!("it cannot be read: {error}"))?;
            (self.start, self.length) = (at, read);
        }
        self.bytes[..self.length].get((at - self.start) as usize).copied().ok_or_else(|| "the file ends inside it".to_string())
    }

    fn is(&mut self, range: Range<u64>, text: &[u8]) -> Result<bool, String> {
        if range.end - range.start != text.len() as u64 {
            return Ok(false);
        }
        for (at, wanted) in range.zip(text) {
            if self.byte(at)? != *wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Iterates over the length-delimited fields of a message; other fields are skipped.
struct ImageFields {
    rest: Range<u64>,
}

impl ImageFields {
    fn new(rest: Range<u64>) -> ImageFields {
        ImageFields { rest }
    }

    /// The next field's number and byte range.
    fn next(&mut self, window: &mut FileWindow<'_>) -> Result<Option<(u64, Range<u64>)>, String> {
        while !self.rest.is_empty() {
            let tag = self.varint(window)?;
            match tag & 7 {
                0 => _ = self.varint(window)?,
                1 => _ = self.take(8)?,
                2 => {
                    let bytes = self.varint(window)?;
                    return Ok(Some((tag >> 3, self.take(bytes)?)));
                }
                5 => _ = self.take(4)?,
                _ => return Err(NO_EXAMPLE.into()),
            }
        }
        Ok(None)
    }

    fn varint(&mut self, window: &mut FileWindow<'_>) -> Result<u64, String> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = window.byte(self.take(1)?.start)?;
            value |= u64::from(byte & 0x7F) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(NO_EXAMPLE.into())
    }

    fn take(&mut self, bytes: u64) -> Result<Range<u64>, String> {
        let end = self.rest.start.checked_add(bytes).filter(|end| *end <= self.rest.end).ok_or(NO_EXAMPLE)?;
        let taken = self.rest.start..end;
        self.rest.start = end;
        Ok(taken)
    }
}
