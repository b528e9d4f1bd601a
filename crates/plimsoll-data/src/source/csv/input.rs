//! The files of a text table: plain, or compressed with gzip or Zstandard.

use crate::DataError;
use flate2::read::MultiGzDecoder;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Compression {
    None,
    Gzip,
    Zstandard,
}

/// The largest window of a Zstandard file, as of `zstd` without `--ultra`.
const LARGEST_WINDOW: u64 = 8 << 20;

/// Memory of decompressing: of gzip, and of Zstandard besides its window.
const GZIP: u64 = 64 << 10;
const ZSTANDARD: u64 = 1 << 20;

impl Compression {
    /// By the first bytes of a file. UTF-16 is refused.
    pub fn of(file: &File, path: &Path) -> Result<Compression, DataError> {
        let mut head = [0; 64];
        let count = file.read_at(&mut head, 0).map_err(|error| DataError::io("read", path, error))?;
        let head = &head[..count];
        let zeros = |from: usize| head.iter().skip(from).step_by(2).filter(|byte| **byte == 0).count() * 4 > count;
        match head {
            [0x1F, 0x8B, ..] => Ok(Compression::Gzip),
            [0x28, 0xB5, 0x2F, 0xFD, ..] => Ok(Compression::Zstandard),
            [0xFF, 0xFE, ..] | [0xFE, 0xFF, ..] => Err(refuse(path, "is UTF-16")),
            [b'P', b'A', b'R', b'1', ..] => Err(DataError::csv(path, 1, "it is a Parquet file; set source = \"parquet\"")),
            [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Err(DataError::csv(path, 1, "it is an Arrow file; set source = \"arrow\"")),
            [b'P', b'K', 3, 4, ..] => {
                Err(DataError::csv(path, 1, "it is a ZIP archive (or an Excel workbook); unpack it, or save it as CSV"))
            }
            [b'B', b'Z', b'h', ..] => Err(DataError::csv(path, 1, "it is compressed with bzip2, which is not read; use gzip or zstd")),
            [0xFD, b'7', b'z', b'X', b'Z', ..] => {
                Err(DataError::csv(path, 1, "it is compressed with xz, which is not read; use gzip or zstd"))
            }
            _ if head.starts_with(b"SQLite format 3") => {
                let remedy = "export a query, such as with sqlite3 -header -csv data.db \"select …\" > table.csv";
                Err(DataError::csv(path, 1, format!("it is an SQLite database, which is not read; {remedy}")))
            }
            _ if count >= 4 && (zeros(0) || zeros(1)) => Err(refuse(path, "looks like UTF-16")),
            _ if head.contains(&0) => Err(DataError::csv(path, 1, "it is no text; save it as CSV, or set `source` to its format")),
            _ => Ok(Compression::None),
        }
    }

    /// Bytes of decompressing a file.
    pub fn bytes(self, file: &File) -> Result<u64, String> {
        match self {
            Compression::None => Ok(0),
            Compression::Gzip => Ok(GZIP),
            Compression::Zstandard => {
                let mut head = [0; 18];
                let count = file.read_at(&mut head, 0).map_err(|error| error.to_string())?;
                let window = window(&head[..count]).ok_or("its Zstandard header is cut off")?;
                match window > LARGEST_WINDOW {
                    true => Err(format!(
                        "it was compressed with a window of {} MiB, and at most 8 are read; compress it without --ultra or --long",
                        window >> 20
                    )),
                    false => Ok(ZSTANDARD + 2 * window + (256 << 10)),
                }
            }
        }
    }

    /// The decompressed bytes.
    pub fn open(self, file: &File) -> io::Result<Box<dyn Read + Send>> {
        let file = Positioned { file: file.try_clone()?, at: 0 };
        Ok(match self {
            Compression::None => Box::new(file),
            Compression::Gzip => Box::new(MultiGzDecoder::new(file)),
            Compression::Zstandard => Box::new(Frames { file: Some(file), frame: None }),
        })
    }
}

/// A file read from a position of its own: clones of a file share theirs.
struct Positioned {
    file: File,
    at: u64,
}

impl Read for Positioned {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

fn refuse(path: &Path, what: &str) -> DataError {
    DataError::csv(path, 1, format!("it {what}; save it as UTF-8, such as with iconv -f UTF-16 -t UTF-8"))
}

/// The window of a Zstandard frame, from its header.
fn window(head: &[u8]) -> Option<u64> {
    let descriptor = *head.get(4)?;
    let single = descriptor & 0x20 != 0;
    if !single {
        let byte = *head.get(5)?;
        let base = 1u64 << (10 + (byte >> 3));
        return Some(base + base / 8 * u64::from(byte & 7));
    }
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = match descriptor >> 6 {
        0 => 1,
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let bytes = head.get(5 + dictionary..5 + dictionary + size)?;
    let value = bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    Some(if size == 2 { value + 256 } else { value })
}

/// Zstandard frames, one after the other.
struct Frames {
    file: Option<Positioned>,
    frame: Option<ruzstd::decoding::StreamingDecoder<Positioned, ruzstd::decoding::FrameDecoder>>,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(frame) = &mut self.frame {
                let read = frame.read(buffer)?;
                if read > 0 {
                    return Ok(read);
                }
                self.file = self.frame.take().map(|frame| frame.into_inner());
            }
            let Some(file) = self.file.take() else { return Ok(0) };
            if file.file.read_at(&mut [0], file.at)? == 0 {
                return Ok(0);
            }
            let frame = ruzstd::decoding::StreamingDecoder::new(file);
            self.frame = Some(frame.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?);
        }
    }
}
