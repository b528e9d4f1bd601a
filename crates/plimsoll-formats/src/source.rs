//! Random access to the bytes of a file, or of a member of one, with a limit on the metadata that a reader may hold.

use crate::error::{FormatError, Result, damaged, unsupported};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The most metadata that a reader takes from one file: headers, directories, names and attributes. Everything that a
/// reader holds is a small multiple of it at most, whatever the size of the file. The weights themselves are read piece
/// by piece.
pub const MAX_METADATA: u64 = 64 << 20;

/// Bytes that can be read at any offset.
pub trait ReadAt: Send + Sync {
    /// Fills `out` with the bytes from `at`.
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, out, at)
    }
}

impl ReadAt for Vec<u8> {
    fn read_exact_at(&self, out: &mut [u8], at: u64) -> io::Result<()> {
        let start = usize::try_from(at).unwrap_or(usize::MAX);
        let bytes = start.checked_add(out.len()).and_then(|end| self.get(start..end));
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A range of the bytes of a file.
#[derive(Clone)]
pub struct Region {
    source: Arc<dyn ReadAt>,
    start: u64,
    length: u64,
}

impl std::fmt::Debug for Region {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Region({}..+{})", self.start, self.length)
    }
}

impl Region {
    /// All bytes of an open file.
    pub fn file(file: File) -> io::Result<Region> {
        let length = file.metadata()?.len();
        Ok(Region { source: Arc::new(file), start: 0, length })
    }

    /// Bytes in memory.
    pub fn bytes(bytes: Vec<u8>) -> Region {
        let length = bytes.len() as u64;
        Region { source: Arc::new(bytes), start: 0, length }
    }

    /// The number of bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// `length` bytes from `at`; `what` names them in the error if they are not there.
    pub fn part(&self, at: u64, length: u64, what: &str) -> Result<Region> {
        match at.checked_add(length) {
            Some(end) if end <= self.length => Ok(Region { source: Arc::clone(&self.source), start: self.start + at, length }),
            _ => damaged(format!("{what} takes {length} bytes from {at}, but the file has {} bytes", self.length)),
        }
    }

    /// Fills `out` with the bytes from `at`.
    pub fn read(&self, at: u64, out: &mut [u8], what: &str) -> Result<()> {
        let part = self.part(at, out.len() as u64, what)?;
        self.source.read_exact_at(out, part.start).map_err(FormatError::Io)
    }

    /// All bytes, if they are within a limit.
    pub fn read_all(&self, limit: u64, what: &str) -> Result<Vec<u8>> {
        if self.length > limit {
            return unsupported(format!("{what} has {} bytes; at most {limit} are read", self.length));
        }
        let mut bytes = vec![0; self.length as usize];
        self.read(0, &mut bytes, what)?;
        Ok(bytes)
    }
}

/// Reads metadata and counts it, so that neither a large nor a cyclic structure takes more than [`MAX_METADATA`].
pub(crate) struct Metadata {
    pub region: Region,
    left: Cell<u64>,
}

impl Metadata {
    pub fn new(region: Region) -> Metadata {
        Metadata { region, left: Cell::new(MAX_METADATA) }
    }

    /// Counts bytes that are about to be held.
    pub fn count(&self, bytes: u64) -> Result<()> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => unsupported(format!("it has more than {MAX_METADATA} bytes of metadata, or its metadata refers to itself")),
        }
    }

    /// The bytes counted so far.
    pub fn counted(&self) -> u64 {
        MAX_METADATA - self.left.get()
    }

    pub fn read(&self, at: u64, length: u64, what: &str) -> Result<Vec<u8>> {
        // A range outside the file is an error before it is an allocation.
        let part = self.region.part(at, length, what)?;
        self.count(length.max(8))?;
        part.read_all(MAX_METADATA, what)
    }
}

/// Takes numbers off the front of bytes; a message that ends early is an error that names it.
pub(crate) struct FieldReader<'a> {
    bytes: &'a [u8],
    what: &'a str,
}

impl<'a> FieldReader<'a> {
    pub fn new(bytes: &'a [u8], what: &'a str) -> FieldReader<'a> {
        FieldReader { bytes, what }
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8]> {
        match self.bytes.split_at_checked(length) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None => damaged(format!("{} is cut off", self.what)),
        }
    }

    pub fn rest(&self) -> &'a [u8] {
        self.bytes
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        Ok(self.take(N)?.try_into().expect("as long as asked for"))
    }

    pub fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
}
