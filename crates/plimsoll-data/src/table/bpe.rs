//! Byte-level byte-pair encoding, as GPT-2's, from a `tokenizer.json` of the `tokenizers` library.

use super::letters::is_letter;
use crate::DataError;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

/// A byte-level byte-pair encoding: its tokens and its merges.
///
/// Two tokens that follow each other are merged, the pair with the lowest rank first, within the words that GPT-2's
/// pattern finds. A clone shares the tables.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "StoredTokenizer", into = "StoredTokenizer")]
pub struct BytePairs {
    tables: Arc<PairTables>,
}

#[derive(Debug)]
struct PairTables {
    stored: StoredTokenizer,
    /// The token of each byte.
    bytes: [u32; 256],
    /// The rank and the result of each merge.
    merges: HashMap<(u32, u32), (u32, u32)>,
}

/// What is stored of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct StoredTokenizer {
    /// The tokens by ID, each byte as a printable character.
    tokens: Vec<String>,
    /// Pairs of tokens, the most important first.
    merges: Vec<(u32, u32)>,
    /// The ID that short texts are padded with.
    pad: u32,
    /// Whether a space is put before a text.
    prefix_space: bool,
    /// The IDs of tokens that are found in texts before anything is split, such as `<|endoftext|>`.
    #[serde(default)]
    added: Vec<u32>,
}

impl PartialEq for BytePairs {
    fn eq(&self, other: &BytePairs) -> bool {
        self.tables.stored == other.tables.stored
    }
}

impl From<BytePairs> for StoredTokenizer {
    fn from(pairs: BytePairs) -> StoredTokenizer {
        pairs.tables.stored.clone()
    }
}

impl TryFrom<StoredTokenizer> for BytePairs {
    type Error = String;

    fn try_from(stored: StoredTokenizer) -> Result<BytePairs, String> {
        if stored.added.iter().any(|id| *id as usize >= stored.tokens.len()) {
            return Err("one of its added tokens has no ID of its own".into());
        }
        let ids: HashMap<&str, u32> = stored.tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id as u32)).collect();
        let mut bytes = [0; 256];
        for (byte, id) in bytes.iter_mut().enumerate() {
            let letter = printable(byte as u8).to_string();
            *id = *ids.get(letter.as_str()).ok_or_else(|| format!("its vocabulary has no token for byte {byte} ({letter:?})"))?;
        }
        let mut merges = HashMap::with_capacity(stored.merges.len());
        for (rank, &(a, b)) in stored.merges.iter().enumerate() {
            let name = |id: u32| stored.tokens.get(id as usize).map(String::as_str).ok_or("a merge of a token that does not exist");
            let merged = format!("{}{}", name(a)?, name(b)?);
            let id = *ids.get(merged.as_str()).ok_or_else(|| format!("its vocabulary has no token {merged:?}, which a merge makes"))?;
            merges.entry((a, b)).or_insert((rank as u32, id));
        }
        Ok(BytePairs { tables: Arc::new(PairTables { bytes, merges, stored }) })
    }
}

impl BytePairs {
    /// Reads a `tokenizer.json`.
    ///
    /// # Errors
    /// If it describes anything but a byte-level byte-pair encoding.
    pub fn open(path: &Path) -> Result<BytePairs, DataError> {
        let text = std::fs::read_to_string(path).map_err(|error| DataError::io("read", path, error))?;
        BytePairs::parse(&text).map_err(|problem| DataError::Tokenizer { path: path.to_path_buf(), problem })
    }

    fn parse(text: &str) -> Result<BytePairs, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON ({error})"))?;
        let model = &json["model"];
        let kind = model["type"].as_str().unwrap_or("BPE");
        if kind != "BPE" {
            return Err(format!("its model is {kind}, and only byte-level BPE (as GPT-2's) is read; tokenize the text beforehand"));
        }
        let mut before = vec![&json["pre_tokenizer"]];
        if let Some(several) = json["pre_tokenizer"]["pretokenizers"].as_array() {
            before = several.iter().collect();
        }
        let [Value::Object(level)] = &before[..] else {
            return Err(
                "its pre-tokenizer is none or several, and only ByteLevel (as GPT-2's) is read; tokenize the text beforehand".into()
            );
        };
        let name = level.get("type").and_then(Value::as_str).unwrap_or("");
        if name != "ByteLevel" || level.get("use_regex").and_then(Value::as_bool) == Some(false) {
            return Err(format!(
                "its pre-tokenizer is {name:?}, and only ByteLevel with GPT-2's pattern is read; tokenize the text beforehand"
            ));
        }
        if !json["normalizer"].is_null() {
            let kind = json["normalizer"]["type"].as_str().unwrap_or("unknown");
            return Err(format!("it normalizes texts ({kind}), which is not supported; tokenize the text beforehand"));
        }
        let vocabulary = model["vocab"].as_object().ok_or("it has no vocabulary (`model.vocab`)")?;
        let added = json["added_tokens"].as_array().into_iter().flatten();
        let added = added.filter_map(|token| Some((token["content"].as_str()?.to_string(), token["id"].as_u64()?)));
        let (mut pad, mut special) = (None, Vec::new());
        let mut ids: Vec<(String, u64)> = vocabulary.iter().filter_map(|(token, id)| Some((token.clone(), id.as_u64()?))).collect();
        for (token, id) in added {
            if ["<pad>", "[PAD]", "<|padding|>"].contains(&token.as_str()) || pad.is_none() && token == "<|endoftext|>" {
                pad = Some(id as u32);
            }
            special.push(id as u32);
            if !vocabulary.contains_key(&token) {
                ids.push((token, id));
            }
        }
        let size = ids.iter().map(|(_, id)| id + 1).max().unwrap_or(0);
        if size > 4 * ids.len() as u64 + 1024 {
            return Err(format!("its IDs go up to {size}, but it has {} tokens", ids.len()));
        }
        let mut tokens = vec![String::new(); size as usize];
        for (token, id) in ids {
            tokens[id as usize] = token;
        }
        let by_name: HashMap<&str, u32> = tokens.iter().enumerate().map(|(id, token)| (token.as_str(), id as u32)).collect();
        let merges = model["merges"].as_array().ok_or("it has no merges (`model.merges`)")?;
        let pair = |merge: &Value| {
            let (a, b) = match merge {
                Value::String(pair) => pair.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())),
                Value::Array(pair) => match &pair[..] {
                    [a, b] => a.as_str().map(str::to_string).zip(b.as_str().map(str::to_string)),
                    _ => None,
                },
                _ => None,
            }?;
            Some((*by_name.get(a.as_str())?, *by_name.get(b.as_str())?))
        };
        let merges = merges.iter().map(pair).collect::<Option<Vec<_>>>().ok_or("one of its merges is no pair of its tokens")?;
        let prefix_space = level.get("add_prefix_space").and_then(Value::as_bool).unwrap_or(false);
        BytePairs::try_from(StoredTokenizer { merges, pad: pad.unwrap_or(0), prefix_space, tokens, added: special })
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tables.stored.tokens.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.tables.stored.tokens.is_empty()
    }

    /// The ID that short texts are padded with.
    pub fn pad(&self) -> u32 {
        self.tables.stored.pad
    }

    /// Bytes allocated, to within the rounding of the allocator.
    pub(crate) fn bytes(&self) -> usize {
        let tokens: usize = self.tables.stored.tokens.iter().map(|token| token.capacity() + size_of::<String>() + 16).sum();
        tokens + self.tables.stored.merges.capacity() * 8 + self.tables.merges.capacity() * 24
    }

    /// Bytes of scratch memory for texts of up to `longest` bytes.
    pub(crate) fn scratch_bytes(longest: usize) -> usize {
        (longest + 1) * 4
    }

    /// Encodes a text.
    ///
    /// ```no_run
    /// use plimsoll_data::source::BytePairs;
    /// assert_eq!(BytePairs::open("gpt2/tokenizer.json".as_ref())?.encode("Hello world"), [15496, 995]);
    /// # Ok::<(), plimsoll_data::DataError>(())
    /// ```
    pub fn encode(&self, text: &str) -> Vec<u32> {
        let mut ids = Vec::new();
        self.each(text, &mut vec![0; BytePairs::scratch_bytes(text.len())], |id| {
            ids.push(id);
            true
        });
        ids
    }

    /// Calls `sink` with each ID, until it returns `false`.
    pub(crate) fn each(&self, text: &str, scratch: &mut [u8], mut sink: impl FnMut(u32) -> bool) {
        let stored = &self.tables.stored;
        let mut rest = text;
        while !rest.is_empty() {
            // The first added token, the longest of those that begin together.
            let found = stored.added.iter().filter_map(|&id| {
                let token = stored.tokens[id as usize].as_str();
                rest.find(token).filter(|_| !token.is_empty()).map(|at| (at, std::cmp::Reverse(token.len()), id))
            });
            let (end, length, id) = found.min().map_or((rest.len(), 0, None), |(at, length, id)| (at, length.0, Some(id)));
            if !self.each_word(&rest[..end], scratch, &mut sink) || !id.is_none_or(&mut sink) {
                return;
            }
            rest = &rest[end + length..];
        }
    }

    /// The same, of a text without added tokens; `false` if `sink` returned it.
    fn each_word(&self, text: &str, scratch: &mut [u8], sink: &mut impl FnMut(u32) -> bool) -> bool {
        let symbols = scratch.as_chunks_mut::<4>().0;
        let mut prefix = self.tables.stored.prefix_space && !text.starts_with(' ') && !text.is_empty();
        let mut rest = text;
        while !rest.is_empty() {
            let length = word(rest, prefix);
            let (piece, after) = rest.split_at(length);
            rest = after;
            let mut count = 0;
            for byte in prefix.then_some(b' ').into_iter().chain(piece.bytes()) {
                symbols[count] = self.tables.bytes[usize::from(byte)].to_ne_bytes();
                count += 1;
            }
            prefix = false;
            count = self.merge(&mut symbols[..count]);
            if !symbols[..count].iter().all(|id| sink(u32::from_ne_bytes(*id))) {
                return false;
            }
        }
        true
    }

    /// Merges the symbols of a word in place and returns how many are left.
    fn merge(&self, symbols: &mut [[u8; 4]]) -> usize {
        let mut count = symbols.len();
        while count > 1 {
            let pair = |at: usize| (u32::from_ne_bytes(symbols[at]), u32::from_ne_bytes(symbols[at + 1]));
            let best = (0..count - 1).filter_map(|at| self.tables.merges.get(&pair(at)).map(|&(rank, id)| (rank, pair(at), id))).min();
            let Some((_, merged, id)) = best else { break };
            let (mut from, mut to) = (0, 0);
            while from < count {
                let is_pair = from + 1 < count && (u32::from_ne_bytes(symbols[from]), u32::from_ne_bytes(symbols[from + 1])) == merged;
                symbols[to] = if is_pair { id.to_ne_bytes() } else { symbols[from] };
                from += 1 + usize::from(is_pair);
                to += 1;
            }
            count = to;
        }
        count
    }
}

/// Bytes of the first word by GPT-2's pattern
/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`; with `prefix`, of a text after a
/// space.
fn word(text: &str, prefix: bool) -> usize {
    if !prefix {
        for ending in ["'s", "'t", "'re", "'ve", "'m", "'ll", "'d"] {
            if text.starts_with(ending) {
                return ending.len();
            }
        }
    }
    let space = usize::from(!prefix && text.starts_with(' '));
    let class = |char: char| match char {
        char if char.is_whitespace() => 0,
        char if is_letter(char) => 1,
        char if char.is_numeric() => 2,
        _ => 3,
    };
    let body = &text[space..];
    if let Some(first) = body.chars().next().map(class).filter(|first| *first > 0) {
        return space + body.find(|char| class(char) != first).unwrap_or(body.len());
    }
    // White space: the last one belongs to the word that follows, unless it is the only one.
    let end = text.find(|char: char| !char.is_whitespace()).unwrap_or(text.len());
    let last = text[..end].chars().next_back().map_or(0, char::len_utf8);
    match end == text.len() || end == last && !prefix {
        true => end,
        false => end - last,
    }
}

/// The printable character that stands for a byte in vocabularies.
fn printable(byte: u8) -> char {
    let is_plain = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_plain(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|byte| !is_plain(*byte)).count() as u32;
    char::from_u32(256 + before).expect("a letter of Latin Extended-A")
}
