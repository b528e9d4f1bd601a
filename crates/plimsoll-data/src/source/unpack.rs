//! Compressed files, by their first bytes.

use crate::DataError;
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    None,
    Gzip,
    Zlib,
}

impl Packing {
    /// That of a file. Two bytes look like zlib by accident, so `plain` is asked whether the first 16 bytes are those
    /// of an uncompressed file.
    pub fn of(path: &Path, plain: impl FnOnce(&[u8]) -> bool) -> Result<Packing, DataError> {
        let file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let mut head = [0; 16];
        let count = file.read_at(&mut head, 0).map_err(|error| DataError::io("read", path, error))?;
        let named_gzip = path.extension().is_some_and(|extension| extension == "gz");
        Ok(match head[..count] {
            [] if named_gzip => Packing::Gzip,
            _ if plain(&head[..count]) => Packing::None,
            [0x1F, 0x8B, ..] => Packing::Gzip,
            [method, flags, ..] if method & 0x8F == 8 && (u32::from(method) << 8 | u32::from(flags)).is_multiple_of(31) => Packing::Zlib,
            // Damaged from the start.
            _ if named_gzip => Packing::Gzip,
            _ => Packing::None,
        })
    }
}

/// The decompressed bytes of a file.
pub(super) enum Unpacked {
    Plain(BufReader<File>),
    Gzip(MultiGzDecoder<BufReader<File>>),
    Zlib(ZlibDecoder<BufReader<File>>),
}

impl Unpacked {
    pub fn open(path: &Path, packing: Packing) -> Result<Unpacked, DataError> {
        let file = BufReader::new(File::open(path).map_err(|error| DataError::io("open", path, error))?);
        Ok(match packing {
            Packing::None => Unpacked::Plain(file),
            Packing::Gzip => Unpacked::Gzip(MultiGzDecoder::new(file)),
            Packing::Zlib => Unpacked::Zlib(ZlibDecoder::new(file)),
        })
    }
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Unpacked::Plain(file) => file.read(buffer),
            Unpacked::Gzip(decoder) => decoder.read(buffer),
            Unpacked::Zlib(decoder) => decoder.read(buffer),
        }
    }
}
