//! Object headers: lists of messages.

use crate::error::{Result, damaged, unsupported};
use crate::source::{FieldReader, Metadata};

pub const DATASPACE: u16 = 0x01;
pub const LINK_INFO: u16 = 0x02;
pub const DATATYPE: u16 = 0x03;
pub const LINK: u16 = 0x06;
pub const EXTERNAL_FILES: u16 = 0x07;
pub const LAYOUT: u16 = 0x08;
pub const FILTERS: u16 = 0x0B;
pub const ATTRIBUTE: u16 = 0x0C;
const CONTINUATION: u16 = 0x10;
pub const SYMBOL_TABLE: u16 = 0x11;
const ATTRIBUTE_INFO: u16 = 0x15;

/// The messages of an object, by type.
pub struct Header(Vec<(u16, Vec<u8>)>);

impl Header {
    /// The messages of a type.
    pub fn of(&self, kind: u16) -> impl Iterator<Item = &[u8]> {
        self.0.iter().filter(move |(known, _)| *known == kind).map(|(_, bytes)| bytes.as_slice())
    }

    pub fn read(metadata: &Metadata, address: u64, path: &str) -> Result<Header> {
        let what = format!("the header of `{path}`");
        let start = metadata.read(address, 16, &what)?;
        if start.starts_with(b"OHDR") {
            return unsupported(format!("`{path}` has a version 2 object header; Keras writes version 1 (save it without track_order)"));
        }
        let mut fields = FieldReader::new(&start, &what);
        let version = fields.u8()?;
        if version != 1 {
            return damaged(format!("{what} has the unknown version {version}"));
        }
        fields.u8()?;
        let count = fields.u16()?;
        fields.u32()?;
        let length = fields.u32()?;
        let mut messages = Vec::new();
        let mut blocks = vec![(address.saturating_add(16), u64::from(length))];
        let mut left = usize::from(count);
        while let Some((at, length)) = blocks.pop() {
            let block = metadata.read(at, length, &what)?;
            let mut fields = FieldReader::new(&block, &what);
            while left > 0 && fields.rest().len() >= 8 {
                let (kind, size, flags) = (fields.u16()?, fields.u16()?, fields.u8()?);
                fields.take(3)?;
                let body = fields.take(size.into())?;
                left -= 1;
                match kind {
                    CONTINUATION => {
                        let mut fields = FieldReader::new(body, &what);
                        blocks.push((fields.u64()?, fields.u64()?));
                    }
                    ATTRIBUTE_INFO => {
                        let mut fields = FieldReader::new(body, &what);
                        fields.u8()?;
                        let flags = fields.u8()?;
                        fields.take(usize::from(flags & 1) * 2)?;
                        if fields.u64()? != super::UNDEFINED {
                            return unsupported(format!("the attributes of `{path}` are in a dense heap, which Keras does not write"));
                        }
                    }
                    DATATYPE | DATASPACE | ATTRIBUTE if flags & 2 != 0 => {
                        return unsupported(format!("{what} shares a message with other objects (a committed type)"));
                    }
                    _ => messages.push((kind, body.to_vec())),
                }
            }
        }
        Ok(Header(messages))
    }
}
