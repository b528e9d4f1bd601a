//! FlatBuffers, as far as the metadata of Arrow uses them. Every offset is checked against the buffer.

/// Bytes that are no such metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MalformedMessage;

/// A table: fields by number, each of which may be absent.
#[derive(Clone, Copy)]
pub(super) struct Table<'b> {
    bytes: &'b [u8],
    at: usize,
    /// The offsets of its fields.
    fields: &'b [[u8; 2]],
}

/// Elements of a vector.
#[derive(Clone, Copy)]
pub(super) struct Vector<'b> {
    bytes: &'b [u8],
    at: usize,
    pub len: usize,
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], MalformedMessage> {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(MalformedMessage)
}

/// The place that the offset at `at` points to.
fn follow(bytes: &[u8], at: usize) -> Result<usize, MalformedMessage> {
    at.checked_add(u32::from_le_bytes(number(bytes, at)?) as usize).filter(|at| *at < bytes.len()).ok_or(MalformedMessage)
}

impl<'b> Table<'b> {
    /// The table that a buffer consists of.
    pub fn root(bytes: &'b [u8]) -> Result<Table<'b>, MalformedMessage> {
        Table::new(bytes, follow(bytes, 0)?)
    }

    fn new(bytes: &'b [u8], at: usize) -> Result<Table<'b>, MalformedMessage> {
        let back = i64::from(i32::from_le_bytes(number(bytes, at)?));
        let fields_at = usize::try_from(at as i64 - back).map_err(|_| MalformedMessage)?;
        let size = usize::from(u16::from_le_bytes(number(bytes, fields_at)?));
        let fields = bytes.get(fields_at + 4..fields_at + size.max(4)).ok_or(MalformedMessage)?;
        Ok(Table { bytes, at, fields: fields.as_chunks().0 })
    }

    fn place(&self, field: usize) -> Option<usize> {
        let offset = u16::from_le_bytes(*self.fields.get(field)?);
        (offset > 0).then(|| self.at + usize::from(offset))
    }

    pub fn u8(&self, field: usize) -> Result<u8, MalformedMessage> {
        self.place(field).map_or(Ok(0), |at| number::<1>(self.bytes, at).map(|[byte]| byte))
    }

    pub fn flag(&self, field: usize) -> Result<bool, MalformedMessage> {
        Ok(self.u8(field)? != 0)
    }

    pub fn i16(&self, field: usize, default: i16) -> Result<i16, MalformedMessage> {
        self.place(field).map_or(Ok(default), |at| number(self.bytes, at).map(i16::from_le_bytes))
    }

    pub fn i32(&self, field: usize, default: i32) -> Result<i32, MalformedMessage> {
        self.place(field).map_or(Ok(default), |at| number(self.bytes, at).map(i32::from_le_bytes))
    }

    pub fn i64(&self, field: usize) -> Result<i64, MalformedMessage> {
        self.place(field).map_or(Ok(0), |at| number(self.bytes, at).map(i64::from_le_bytes))
    }

    pub fn table(&self, field: usize) -> Result<Option<Table<'b>>, MalformedMessage> {
        self.place(field).map(|at| Table::new(self.bytes, follow(self.bytes, at)?)).transpose()
    }

    /// A vector; an empty one if it is absent.
    pub fn vector(&self, field: usize) -> Result<Vector<'b>, MalformedMessage> {
        let Some(at) = self.place(field) else { return Ok(Vector { bytes: &[], at: 0, len: 0 }) };
        let at = follow(self.bytes, at)?;
        let len = u32::from_le_bytes(number(self.bytes, at)?) as usize;
        // Each element has at least a byte.
        Some(Vector { bytes: self.bytes, at: at + 4, len }).filter(|_| len <= self.bytes.len()).ok_or(MalformedMessage)
    }

    pub fn text(&self, field: usize) -> Result<&'b str, MalformedMessage> {
        let vector = self.vector(field)?;
        let bytes = vector.bytes.get(vector.at..vector.at + vector.len).ok_or(MalformedMessage)?;
        str::from_utf8(bytes).map_err(|_| MalformedMessage)
    }
}

impl<'b> Vector<'b> {
    pub fn table(&self, index: usize) -> Result<Table<'b>, MalformedMessage> {
        Table::new(self.bytes, follow(self.bytes, self.at + index * 4)?)
    }

    pub fn tables(self) -> impl Iterator<Item = Result<Table<'b>, MalformedMessage>> {
        (0..self.len).map(move |index| self.table(index))
    }

    /// A number of 64 bits in an element of `size` bytes, at an offset in it.
    pub fn i64(&self, index: usize, size: usize, offset: usize) -> Result<i64, MalformedMessage> {
        if index >= self.len {
            return Err(MalformedMessage);
        }
        number(self.bytes, self.at + index * size + offset).map(i64::from_le_bytes)
    }

    /// A number of 32 bits in an element of `size` bytes, at an offset in it.
    pub fn i32(&self, index: usize, size: usize, offset: usize) -> Result<i32, MalformedMessage> {
        if index >= self.len {
            return Err(MalformedMessage);
        }
        number(self.bytes, self.at + index * size + offset).map(i32::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_number_and_offsets_stay_inside() {
        // The root at 12: its fields at 4, an i32 (field 1) of 7, and a text (field 2) of two bytes.
        let bytes: Vec<u8> = [
            &12u32.to_le_bytes()[..],
            &[8 + 2, 0, 12, 0, 0, 0, 4, 0, 8, 0, 0, 0],
            &12i32.to_le_bytes(),
            &7i32.to_le_bytes(),
            &4u32.to_le_bytes(),
            &2u32.to_le_bytes(),
            b"ab",
        ]
        .concat();
        let bytes = {
            // The table is at 16, and its fields are 12 bytes before it.
            let mut bytes = bytes;
            bytes[0] = 16;
            bytes
        };
        let table = Table::root(&bytes).unwrap();
        assert_eq!((table.i32(0, 3), table.i32(1, 3), table.text(2), table.i64(9)), (Ok(3), Ok(7), Ok("ab"), Ok(0)));
        for at in 0..bytes.len() {
            for byte in [0, 1, 0x7F, 0xFF] {
                let mut damaged = bytes.clone();
                damaged[at] = byte;
                let Ok(table) = Table::root(&damaged) else { continue };
                _ = (table.i32(1, 0), table.text(2), table.vector(2).map(|vector| vector.i64(0, 8, 0)), table.table(2).is_ok());
            }
            _ = Table::root(&bytes[..at]).map(|table| (table.i32(1, 0), table.text(2)));
        }
    }
}
