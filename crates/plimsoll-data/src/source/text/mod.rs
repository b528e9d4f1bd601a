//! A text file as windows of characters. The file is neither memory-mapped nor loaded: windows are read on demand.

mod scan;
mod vocabulary;

use super::{Source, identify_open};
use crate::block::{BlockMut, Rows};
use crate::{Column, DataError, Schema};
use plimsoll_core::{Bytes, DType};
use scan::{INTERVAL, TextIndex, scan};
use std::fs::File;
use std::hash::Hasher;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use vocabulary::Vocabulary;

/// Windows of a text file: `x` is `context` characters as i32 `[context]`, `y` the same shifted by one, so that each
/// character's target is the next character.
///
/// ```no_run
/// use plimsoll_data::{Dataset, Shuffle, source::Text};
/// let text = Text::open("plays.txt".as_ref(), 256)?;
/// let (training, held_out) = (text.part(0.0, 0.9)?.stride(1)?, text.part(0.9, 1.0)?);
/// let data = Dataset::from(training).shuffle(Shuffle::seed(7)).batch(64);
/// let letters = data.vocabulary().unwrap();
/// println!("{letters}");
/// # Ok::<(), plimsoll_data::DataError>(())
/// ```
#[derive(Clone)]
pub struct Text {
    file: Arc<TextFile>,
    schema: Schema,
    context: usize,
    stride: usize,
    /// The range of characters that windows are taken from.
    part: Range<u64>,
    windows: u64,
}

struct TextFile {
    path: PathBuf,
    file: File,
    scan: TextIndex,
}

/// Maximum characters per window.
const MOST: usize = 1 << 24;

impl Text {
    /// The whole file as consecutive windows of `context` characters. Reads the file once to build the vocabulary.
    pub fn open(path: &Path, context: usize) -> Result<Text, DataError> {
        Text::open_with(path, context, None)
    }

    /// Like [`open`](Self::open), with the vocabulary of another text. A character outside of it is an error that
    /// gives its position.
    pub fn open_with(path: &Path, context: usize, vocabulary: Option<&Vocabulary>) -> Result<Text, DataError> {
        if !(1..=MOST).contains(&context) {
            return Err(DataError::text(path, format!("windows of {context} characters cannot be; ask for 1 to {MOST}")));
        }
        let mut file = File::open(path).map_err(|error| DataError::io("open", path, error))?;
        let scan = scan(&mut file, path, vocabulary)?;
        let columns = vec![Column::new("x", DType::I32, [context]), Column::new("y", DType::I32, [context])];
        let part = 0..scan.chars;
        let file = Arc::new(TextFile { path: path.to_path_buf(), file, scan });
        Text { file, schema: Schema::new(columns)?, context, stride: context, part, windows: 0 }.counted()
    }

    /// Sets the distance between the starts of windows; `context` by default, so that an epoch has each character
    /// once.
    pub fn stride(&self, stride: usize) -> Result<Text, DataError> {
        if stride == 0 {
            return Err(DataError::text(&self.file.path, "windows that step by 0 characters never end; step by at least 1"));
        }
        Text { stride, ..self.clone() }.counted()
    }

    /// Selects a fraction of the file: `part(0.0, 0.9)` and `part(0.9, 1.0)` have no character in common.
    pub fn part(&self, from: f64, to: f64) -> Result<Text, DataError> {
        if !(0.0..=1.0).contains(&from) || !(from..=1.0).contains(&to) {
            return Err(DataError::text(&self.file.path, format!("{from} to {to} is no part of it; give shares from 0 to 1")));
        }
        let at = |share: f64| (self.file.scan.chars as f64 * share).round() as u64;
        Text { part: at(from)..at(to), ..self.clone() }.counted()
    }

    /// Characters per window.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Its vocabulary.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.file.scan.vocabulary
    }

    fn counted(mut self) -> Result<Text, DataError> {
        let (chars, window) = (self.part.end - self.part.start, self.context as u64 + 1);
        if chars < window {
            let problem = format!(
                "its part of {chars} characters has no window of {} and the one that follows; ask for less context or a larger part",
                self.context
            );
            return Err(DataError::text(&self.file.path, problem));
        }
        self.windows = (chars - window) / self.stride as u64 + 1;
        Ok(self)
    }

    /// Bytes of the token IDs of one window and the character after it.
    fn numbers(&self) -> usize {
        (self.context + 1) * size_of::<i32>()
    }

    /// A byte range that contains these characters, and how many characters in it precede the first of them.
    fn place(&self, first: u64, end: u64) -> (Range<u64>, u64) {
        let scan = &self.file.scan;
        if scan.starts.is_empty() {
            return (first..end, 0);
        }
        let start = (first / INTERVAL) as usize;
        let after = scan.starts.get(end.div_ceil(INTERVAL) as usize).copied().unwrap_or(scan.bytes);
        (scan.starts[start]..after, first % INTERVAL)
    }

    /// Writes the token IDs of the characters after the first `before`, or returns the offset of an invalid byte.
    fn encode(&self, raw: &[u8], before: u64, numbers: &mut [[u8; 4]]) -> Result<(), u64> {
        let vocabulary = self.vocabulary();
        if self.file.scan.starts.is_empty() {
            for (at, (byte, number)) in raw.iter().zip(numbers).enumerate() {
                let char = vocabulary.number(char::from(*byte)).filter(|_| byte.is_ascii());
                *number = char.ok_or(at as u64)?.to_ne_bytes();
            }
            return Ok(());
        }
        let text = str::from_utf8(raw).map_err(|error| error.valid_up_to() as u64)?;
        let mut chars = text.char_indices().skip(before as usize);
        for number in numbers {
            let (at, char) = chars.next().ok_or(raw.len() as u64)?;
            *number = vocabulary.number(char).ok_or(at as u64)?.to_ne_bytes();
        }
        Ok(())
    }
}

impl Source for Text {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.windows
    }

    /// One window at a time, independent of the number of rows.
    fn scratch_bytes(&self, _rows: usize) -> Bytes {
        let window = self.context as u64 + 1;
        let most = match self.file.scan.starts.is_empty() {
            true => window,
            // A character takes up to four bytes, and a window starts and ends between two indexed offsets.
            false => (window / INTERVAL + 2) * INTERVAL * 4,
        };
        Bytes(self.numbers() as u64 + most)
    }

    fn write_rows(&self, rows: Rows<'_>, scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        let (numbers, raw) = scratch.split_at_mut(self.numbers());
        let row_bytes = numbers.len() - size_of::<i32>();
        for (index, row) in rows.iter(out.rows()).enumerate() {
            let first = self.part.start + row * self.stride as u64;
            let (bytes, before) = self.place(first, first + self.context as u64 + 1);
            let raw = &mut raw[..(bytes.end - bytes.start) as usize];
            let file = &self.file;
            let read = file.file.read_exact_at(raw, bytes.start);
            read.map_err(|error| DataError::io(format!("read byte {} of", bytes.start), &file.path, error))?;
            self.encode(raw, before, numbers.as_chunks_mut().0).map_err(|at| {
                let problem = format!("the character at byte {} was not there when the file was opened; start again", bytes.start + at);
                DataError::text(&file.path, problem)
            })?;
            out.column(0)[index * row_bytes..][..row_bytes].copy_from_slice(&numbers[..row_bytes]);
            out.column(1)[index * row_bytes..][..row_bytes].copy_from_slice(&numbers[size_of::<i32>()..]);
        }
        Ok(())
    }

    fn held_bytes(&self) -> Bytes {
        Bytes((size_of_val(&self.file.scan.starts[..]) + self.vocabulary().len() * size_of::<char>()) as u64)
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        Some(self.vocabulary())
    }

    fn held_name(&self) -> &'static str {
        "index"
    }

    fn fingerprint(&self, _rows: Range<u64>, hash: &mut dyn Hasher) -> Result<bool, DataError> {
        identify_open(&self.file.path, &self.file.file, hash)?;
        self.file.scan.vocabulary.chars().iter().for_each(|&char| hash.write(&u32::from(char).to_le_bytes()));
        hash.write(self.describe().as_bytes());
        Ok(true)
    }

    fn describe(&self) -> String {
        let Range { start, end } = self.part;
        format!("text {} (characters {start} to {end}, {} at a time, every {})", self.file.path.display(), self.context, self.stride)
    }
}
