//! TFRecord framing: a length and a payload, each with a masked CRC-32C.

use std::io::{self, Write};

/// Writes one record.
pub fn write_record(writer: &mut impl Write, payload: &[u8]) -> io::Result<()> {
    let length = (payload.len() as u64).to_le_bytes();
    writer.write_all(&length)?;
    writer.write_all(&masked(crc32c::crc32c(&length)).to_le_bytes())?;
    writer.write_all(payload)?;
    writer.write_all(&masked(crc32c::crc32c(payload)).to_le_bytes())
}

/// A checksum as the format stores it: rotated, so that a file of checksums does not check itself.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The record of an empty payload, as TensorFlow writes it.
    #[test]
    fn an_empty_record_has_the_published_checksums() {
        let mut bytes = Vec::new();
        write_record(&mut bytes, b"").unwrap();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0x29, 0x03, 0x98, 0x07, 0xd8, 0xea, 0x82, 0xa2]);
    }
}
