//! Samples of compressed tar files, in sequence.

use super::tar::{BLOCK, MOST_TEXT, TarEntry, class_number, pax_path, safe, split};
use super::{no_class, no_image};
use crate::image::is_image_name;
use plimsoll_core::Bytes;
use std::io::{self, ErrorKind, Read};

/// What is wrong with a sample.
pub(in crate::source) enum TarFault {
    /// Only this sample.
    Sample(String),
    /// Nothing after it can be found.
    File(String),
}

/// Reads the samples of a decompressed tar file.
pub(in crate::source) struct TarSamples<R> {
    reader: R,
    /// Bytes read so far.
    at: u64,
    /// Where the last sample begins.
    pub start: u64,
    /// The header of the next file, if it was read, and where it begins.
    next: Option<(TarEntry, u64)>,
    longest: Bytes,
}

/// Bytes of the label of a sample, in front of its image.
pub(in crate::source) const LABEL: usize = 4;

/// The files of a sample.
#[derive(Default)]
struct Sample {
    key: Vec<u8>,
    image: bool,
    label: Option<i32>,
    wrong: Option<String>,
}

impl<R: Read> TarSamples<R> {
    /// Samples with images of up to `longest` bytes.
    pub fn new(reader: R, longest: Bytes) -> TarSamples<R> {
        TarSamples { reader, at: 0, start: 0, next: None, longest }
    }

    /// Reads the next sample into `record`: its label in [`LABEL`] bytes, then its image. `false` at the end.
    pub fn next(&mut self, record: &mut Vec<u8>) -> Result<bool, TarFault> {
        let mut sample: Option<Sample> = None;
        loop {
            if self.next.is_none() {
                self.next = self.header()?;
            }
            let key = self.next.as_ref().map(|(entry, _)| split(&entry.name).0);
            let ended = sample.take_if(|sample| key != Some(&sample.key[..]));
            match ended.map(|sample| sample.complete(record)) {
                Some(Ok(true)) => return Ok(true),
                Some(Err(problem)) => return Err(TarFault::Sample(problem)),
                // A sample without an image and a class is passed over.
                Some(Ok(false)) | None => {}
            }
            let Some((entry, at)) = self.next.take() else { return Ok(false) };
            if sample.is_none() {
                record.clear();
                record.resize(LABEL, 0);
                self.start = at;
            }
            let sample = sample.get_or_insert_with(|| Sample { key: split(&entry.name).0.to_vec(), ..Sample::default() });
            self.file(&entry, sample, record)?;
        }
    }

    /// Reads a file of a sample, or passes over it.
    fn file(&mut self, entry: &TarEntry, sample: &mut Sample, record: &mut Vec<u8>) -> Result<(), TarFault> {
        let extension = split(&entry.name).1;
        if is_image_name(extension) {
            sample.image = true;
            if entry.bytes <= self.longest.0 {
                record.truncate(LABEL);
                record.resize(LABEL + entry.bytes as usize, 0);
                self.bytes(&mut record[LABEL..])?;
                return self.skip(padding(entry.bytes));
            }
            let name = String::from_utf8_lossy(&entry.name);
            let problem = format!("{name} is of {} and may be of {} in a compressed file", Bytes(entry.bytes), self.longest);
            sample.wrong.get_or_insert(format!("{problem}; decompress the file"));
        } else if extension.eq_ignore_ascii_case(b"cls") {
            let digits = self.text(entry.bytes)?;
            match class_number(&entry.name, &digits) {
                Ok(label) => sample.label = Some(label),
                Err(problem) => _ = sample.wrong.get_or_insert(problem),
            }
            return Ok(());
        }
        self.skip(entry.bytes.saturating_add(padding(entry.bytes)))
    }

    /// The next header of a file and where it begins; `None` at the end of the archive.
    fn header(&mut self) -> Result<Option<(TarEntry, u64)>, TarFault> {
        let mut long_name = None;
        loop {
            let (at, mut header) = (self.at, [0; BLOCK as usize]);
            // No bytes at all is an end without the empty blocks that should be there.
            if self.reader.read(&mut header[..1]).map_err(unpack)? == 0 {
                return Ok(None);
            }
            self.reader.read_exact(&mut header[1..]).map_err(unpack)?;
            self.at += BLOCK;
            if header.iter().all(|byte| *byte == 0) {
                return Ok(None);
            }
            let entry = TarEntry::read(&header).map_err(TarFault::File)?;
            match entry.kind {
                b'L' => long_name = Some(self.text(entry.bytes)?.split(|byte| *byte == 0).next().unwrap_or_default().to_vec()),
                b'x' => long_name = pax_path(&self.text(entry.bytes)?).or(long_name),
                b'0' | 0 => {
                    let name = long_name.take().unwrap_or(entry.name);
                    safe(&name).map_err(TarFault::File)?;
                    return Ok(Some((TarEntry { name, ..entry }, at)));
                }
                _ => {
                    long_name = None;
                    self.skip(entry.bytes.saturating_add(padding(entry.bytes)))?;
                }
            }
        }
    }

    /// The start of a text of this many bytes; the rest is passed over.
    fn text(&mut self, bytes: u64) -> Result<Vec<u8>, TarFault> {
        let mut text = vec![0; bytes.min(MOST_TEXT) as usize];
        self.bytes(&mut text)?;
        self.skip(bytes - text.len() as u64 + padding(bytes))?;
        Ok(text)
    }

    fn bytes(&mut self, out: &mut [u8]) -> Result<(), TarFault> {
        self.reader.read_exact(out).map_err(unpack)?;
        self.at += out.len() as u64;
        Ok(())
    }

    fn skip(&mut self, bytes: u64) -> Result<(), TarFault> {
        let passed = io::copy(&mut (&mut self.reader).take(bytes), &mut io::sink()).map_err(unpack)?;
        self.at += passed;
        if passed == bytes { Ok(()) } else { Err(unpack(ErrorKind::UnexpectedEof.into())) }
    }
}

impl Sample {
    /// Completes a record with the label; `false` if the sample has neither an image nor a class.
    fn complete(self, record: &mut [u8]) -> Result<bool, String> {
        match (self.wrong, self.image, self.label) {
            (Some(problem), ..) => Err(problem),
            (None, true, Some(label)) => {
                record[..LABEL].copy_from_slice(&label.to_ne_bytes());
                Ok(true)
            }
            (None, true, None) => Err(no_class(&self.key)),
            (None, false, Some(_)) => Err(no_image(&self.key)),
            (None, false, None) => Ok(false),
        }
    }
}

/// Bytes after a file up to a whole block.
fn padding(bytes: u64) -> u64 {
    bytes.wrapping_neg() % BLOCK
}

fn unpack(error: io::Error) -> TarFault {
    TarFault::File(match error.kind() {
        ErrorKind::UnexpectedEof => "the file ends inside it; copy or write the file again".into(),
        _ => format!("it cannot be unpacked ({error}); write the file again"),
    })
}
