//! One pass over a text: its vocabulary, and the offset of every nth character.

use super::Vocabulary;
use crate::DataError;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The offset of every character with an index divisible by this is stored, unless the text is ASCII.
pub(super) const INTERVAL: u64 = 1024;

/// The index of a text.
pub(super) struct TextIndex {
    pub vocabulary: Vocabulary,
    pub chars: u64,
    pub bytes: u64,
    /// The offset of character `INTERVAL · i`; empty if every character is one byte.
    pub starts: Vec<u64>,
}

/// Reads the file once, in chunks. With a vocabulary, a character outside of it is an error.
pub(super) fn scan(file: &mut File, path: &Path, known: Option<&Vocabulary>) -> Result<TextIndex, DataError> {
    let mut piece = vec![0; 1 << 16];
    let (mut kept, mut chars, mut bytes, mut line) = (0, 0, 0, 1);
    let mut starts: Vec<u64> = Vec::new();
    let mut seen_ascii = [false; 128];
    let mut seen_others = BTreeSet::new();
    loop {
        let read = file.read(&mut piece[kept..]).map_err(|error| DataError::io("read", path, error))?;
        let text = match str::from_utf8(&piece[..kept + read]) {
            Ok(text) => text,
            // The chunk ends inside a character; carry the partial character over.
            Err(error) if error.error_len().is_none() && read > 0 => {
                str::from_utf8(&piece[..error.valid_up_to()]).expect("this much is valid")
            }
            Err(error) => {
                let at = bytes + error.valid_up_to() as u64;
                return Err(DataError::text(path, format!("byte {at} is not valid UTF-8; save the file as UTF-8")));
            }
        };
        let strange = |char, line, at| {
            let problem = format!("{char:?} in line {line} (byte {at}) is not in the vocabulary; take the vocabulary from this file too");
            DataError::text(path, problem)
        };
        if text.is_ascii() && starts.is_empty() {
            for byte in text.bytes() {
                seen_ascii[usize::from(byte)] = true;
            }
            chars += text.len() as u64;
        } else {
            if starts.is_empty() {
                starts.extend((0..chars.div_ceil(INTERVAL)).map(|index| index * INTERVAL));
            }
            for (at, char) in text.char_indices() {
                if chars.is_multiple_of(INTERVAL) {
                    starts.push(bytes + at as u64);
                }
                chars += 1;
                match char.is_ascii() {
                    true => seen_ascii[char as usize] = true,
                    false => drop(seen_others.insert(char)),
                }
            }
        }
        if let Some(known) = known {
            for (at, char) in text.char_indices() {
                line += u64::from(char == '\n');
                if known.number(char).is_none() {
                    return Err(strange(char, line, bytes + at as u64));
                }
            }
        }
        bytes += text.len() as u64;
        let used = text.len();
        piece.copy_within(used..kept + read, 0);
        kept = kept + read - used;
        if read == 0 {
            break;
        }
    }
    let ascii = (0..128u8).filter(|&byte| seen_ascii[usize::from(byte)]).map(char::from);
    let vocabulary = known.cloned().unwrap_or_else(|| Vocabulary::new(ascii.chain(seen_others)));
    starts.shrink_to_fit();
    Ok(TextIndex { vocabulary, chars, bytes, starts })
}
