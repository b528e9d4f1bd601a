//! How small a file becomes when it is compressed, as in a download or an application package.

use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::{self, Read, Write};

/// The bytes of what is read, compressed with gzip at its default level. Nothing is kept.
///
/// ```
/// let zeros = vec![0; 1 << 20];
/// assert!(plimsoll_formats::gzip::compressed_size(&zeros[..])? < 2048);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn compressed_size(mut from: impl Read) -> io::Result<u64> {
    let mut encoder = GzEncoder::new(Counter(0), Compression::default());
    io::copy(&mut from, &mut encoder)?;
    Ok(encoder.finish()?.0)
}

struct Counter(u64);

impl Write for Counter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
