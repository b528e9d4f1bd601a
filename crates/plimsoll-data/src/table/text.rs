//! Text to tokens, as Keras' `TextVectorization` does: standardize, split, n-grams.

use serde::{Deserialize, Serialize};

/// What happens to a text before it is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextStandardize {
    /// ASCII letters in lower case, without ASCII punctuation.
    #[default]
    LowerAndStripPunctuation,
    /// ASCII letters in lower case.
    Lower,
    /// Without ASCII punctuation.
    StripPunctuation,
    /// Nothing.
    None,
}

/// How a text is split.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TextSplit {
    /// At white space.
    #[default]
    Whitespace,
    /// Into characters.
    Character,
    /// Not at all: the text is one token.
    None,
}

/// How a text becomes tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokenization {
    /// What happens first.
    pub standardize: TextStandardize,
    /// How the result is split.
    pub split: TextSplit,
    /// The widths of n-grams, in this order; empty for single tokens.
    #[serde(default)]
    pub ngrams: Vec<usize>,
}

impl Tokenization {
    /// Bytes of scratch memory for texts of up to `longest` bytes.
    pub(crate) fn scratch_bytes(&self, longest: usize) -> usize {
        if self.only_words() { longest } else { longest + (longest + 1) * RANGE + 2 * longest + 16 }
    }

    fn only_words(&self) -> bool {
        self.ngrams.is_empty() && self.split == TextSplit::Whitespace
    }

    /// Calls `sink` with each token, until it returns `false`. `scratch` has the memory for a text of this length.
    pub(crate) fn tokens(&self, text: &[u8], scratch: &mut [u8], mut sink: impl FnMut(&[u8]) -> bool) {
        let standardize = self.standardize;
        let lower = matches!(standardize, TextStandardize::LowerAndStripPunctuation | TextStandardize::Lower);
        let strip = matches!(standardize, TextStandardize::LowerAndStripPunctuation | TextStandardize::StripPunctuation);
        let table = match (lower, strip) {
            (true, true) => &LOWER_STRIP,
            (true, false) => &LOWER,
            (false, true) => &STRIP,
            (false, false) => &AS_IS,
        };
        if self.only_words() {
            return words(text, table, scratch, sink);
        }
        let (copy, rest) = scratch.split_at_mut(text.len());
        let (ranges, ngram) = rest.split_at_mut((text.len() + 1) * RANGE);
        let mut length = 0;
        for byte in text.iter().map(|byte| table[usize::from(*byte)]).filter(|byte| *byte != STRIPPED) {
            copy[length] = byte;
            length += 1;
        }
        let (text, ranges) = (&copy[..length], ranges.as_chunks_mut::<RANGE>().0);
        let count = self.split(text, ranges);
        let token = |at: usize| {
            let [a, b, c, d, e, f, g, h] = ranges[at];
            &text[u32::from_ne_bytes([a, b, c, d]) as usize..u32::from_ne_bytes([e, f, g, h]) as usize]
        };
        if self.ngrams.is_empty() {
            (0..count).all(|at| sink(token(at)));
            return;
        }
        for &width in &self.ngrams {
            for first in 0..(count + 1).saturating_sub(width.max(1)) {
                let mut length = 0;
                for at in first..first + width {
                    let token = token(at);
                    let space = usize::from(at > first);
                    let Some(out) = ngram.get_mut(length..length + space + token.len()) else { break };
                    out[..space].fill(b' ');
                    out[space..].copy_from_slice(token);
                    length += out.len();
                }
                if !sink(&ngram[..length]) {
                    return;
                }
            }
        }
    }

    /// Writes the ranges of tokens and returns their number.
    fn split(&self, text: &[u8], ranges: &mut [[u8; RANGE]]) -> usize {
        let mut count = 0;
        let mut push = |start: usize, end: usize| {
            let (start, end) = ((start as u32).to_ne_bytes(), (end as u32).to_ne_bytes());
            ranges[count] = [start[0], start[1], start[2], start[3], end[0], end[1], end[2], end[3]];
            count += 1;
        };
        let mut start = 0;
        match self.split {
            TextSplit::None => push(0, text.len()),
            TextSplit::Character => {
                while start < text.len() {
                    let length = character(&text[start..]);
                    push(start, start + length);
                    start += length;
                }
            }
            TextSplit::Whitespace => {
                for word in text.split(|byte| is_space(*byte)) {
                    if !word.is_empty() {
                        push(start, start + word.len());
                    }
                    start += word.len() + 1;
                }
            }
        }
        count
    }
}

/// Bytes of the range of a token.
const RANGE: usize = 8;

/// Words, standardized while they are found.
fn words(text: &[u8], table: &[u8; 256], word: &mut [u8], mut sink: impl FnMut(&[u8]) -> bool) {
    let mut length = 0;
    for &byte in text {
        match table[usize::from(byte)] {
            STRIPPED => {}
            byte if is_space(byte) => {
                if length > 0 && !sink(&word[..length]) {
                    return;
                }
                length = 0;
            }
            byte => {
                word[length] = byte;
                length += 1;
            }
        }
    }
    if length > 0 {
        sink(&word[..length]);
    }
}

/// Bytes of the first character; an invalid byte is one by itself.
fn character(text: &[u8]) -> usize {
    let length = match text[0] {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    if text.get(1..length).is_some_and(|rest| rest.iter().all(|byte| byte & 0xC0 == 0x80)) { length } else { 1 }
}

const fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C)
}

/// The mark of a byte that is removed; no UTF-8 text has it.
const STRIPPED: u8 = 0xFF;

const AS_IS: [u8; 256] = standardization(false, false);
const LOWER: [u8; 256] = standardization(true, false);
const STRIP: [u8; 256] = standardization(false, true);
const LOWER_STRIP: [u8; 256] = standardization(true, true);

const fn standardization(lower: bool, strip: bool) -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let this = byte as u8;
        table[byte] = if strip && this.is_ascii_punctuation() {
            STRIPPED
        } else if lower {
            this.to_ascii_lowercase()
        } else {
            this
        };
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(how: &Tokenization, text: &str) -> Vec<String> {
        let mut found = Vec::new();
        how.tokens(text.as_bytes(), &mut vec![0; how.scratch_bytes(text.len())], |token| {
            found.push(String::from_utf8_lossy(token).into_owned());
            true
        });
        found
    }

    #[test]
    fn texts_are_split_as_keras_splits_them() {
        let how = Tokenization::default();
        assert_eq!(tokens(&how, "  Don't, STOP -- me\tnow!\n"), ["dont", "stop", "me", "now"]);
        assert_eq!(tokens(&how, ""), Vec::<String>::new());
        let pairs = Tokenization { ngrams: vec![1, 2], ..how.clone() };
        assert_eq!(tokens(&pairs, "a b c"), ["a", "b", "c", "a b", "b c"]);
        let characters = Tokenization { split: TextSplit::Character, standardize: TextStandardize::Lower, ngrams: vec![] };
        assert_eq!(tokens(&characters, "Aé€!"), ["a", "é", "€", "!"]);
        let whole = Tokenization { split: TextSplit::None, standardize: TextStandardize::StripPunctuation, ngrams: vec![] };
        assert_eq!(tokens(&whole, "A b."), ["A b"]);
    }
}
