//! A set of byte strings, each with an index, in two growable buffers: the text and an open-addressing table.

use super::hash::fingerprint;
use plimsoll_core::Bytes;

/// Distinct byte strings in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenSet {
    text: Vec<u8>,
    /// One past the last byte of each token.
    ends: Vec<u32>,
    /// For each place the upper half of the hash and the index + 1; zero is free. The length is a power of two.
    places: Vec<(u32, u32)>,
}

/// The most bytes that tokens may have together; offsets are 32 bits.
const MAX_TEXT: usize = 1 << 30;

impl TokenSet {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        &self.text[start..self.ends[index] as usize]
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The index of a token.
    pub fn find(&self, token: &[u8]) -> Option<usize> {
        if self.places.is_empty() {
            return None;
        }
        self.probe(token, quick(token)).ok()
    }

    /// The index of a token, or the free place for it.
    fn probe(&self, token: &[u8], hash: u64) -> Result<usize, usize> {
        let mask = self.places.len() - 1;
        let mut place = hash as usize & mask;
        loop {
            match self.places[place] {
                (_, 0) => return Err(place),
                (upper, index) if upper == (hash >> 32) as u32 && self.get(index as usize - 1) == token => return Ok(index as usize - 1),
                _ => place = (place + 1) & mask,
            }
        }
    }

    /// Adds a token and returns its index, and whether it is new; `None` if the set is full.
    pub fn insert(&mut self, token: &[u8]) -> Option<(usize, bool)> {
        if (self.len() + 1) * 2 > self.places.len() {
            self.grow();
        }
        let hash = quick(token);
        match self.probe(token, hash) {
            Ok(index) => Some((index, false)),
            Err(place) => {
                if self.text.len() + token.len() > MAX_TEXT {
                    return None;
                }
                self.text.extend_from_slice(token);
                self.ends.push(self.text.len() as u32);
                self.places[place] = ((hash >> 32) as u32, self.len() as u32);
                Some((self.len() - 1, true))
            }
        }
    }

    fn grow(&mut self) {
        let size = (self.places.len() * 2).max(16);
        self.places = Vec::new();
        self.places.resize(size, (0, 0));
        for index in 0..self.len() {
            let hash = quick(self.get(index));
            let mut place = hash as usize & (size - 1);
            while self.places[place].1 != 0 {
                place = (place + 1) & (size - 1);
            }
            self.places[place] = ((hash >> 32) as u32, index as u32 + 1);
        }
    }

    /// Shrinks the buffers to their length.
    pub fn settle(&mut self) {
        self.text.shrink_to_fit();
        self.ends.shrink_to_fit();
    }

    /// Bytes allocated.
    pub fn bytes(&self) -> Bytes {
        Bytes((self.text.capacity() + self.ends.capacity() * 4 + self.places.capacity() * 8) as u64)
    }
}

impl<'t> FromIterator<&'t [u8]> for TokenSet {
    fn from_iter<I: IntoIterator<Item = &'t [u8]>>(tokens: I) -> TokenSet {
        let mut set = TokenSet::default();
        for token in tokens {
            set.insert(token);
        }
        set.settle();
        set
    }
}

/// A hash for the table; short tokens take a shortcut.
fn quick(token: &[u8]) -> u64 {
    if token.len() > 16 {
        return fingerprint(token);
    }
    let word = |from: &[u8]| {
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        u64::from_le_bytes(bytes)
    };
    let (low, high) = token.split_at(token.len().min(8));
    let product =
        u128::from(word(low) ^ 0x9e37_79b9_7f4a_7c15) * u128::from((word(high) ^ (token.len() as u64) << 59) ^ 0xd6e8_feb8_6659_fd93);
    (product ^ (product >> 64)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_by_their_bytes() {
        let mut set = TokenSet::default();
        let names: Vec<String> = (0..5000).map(|n| format!("{}{n}", "x".repeat(n % 23))).chain([String::new()]).collect();
        for (index, name) in names.iter().enumerate() {
            assert_eq!(set.insert(name.as_bytes()), Some((index, true)));
        }
        for (index, name) in names.iter().enumerate() {
            assert_eq!((set.insert(name.as_bytes()), set.find(name.as_bytes())), (Some((index, false)), Some(index)));
            assert_eq!(set.get(index), name.as_bytes());
        }
        assert_eq!((set.find(b"y"), set.len(), TokenSet::default().find(b"")), (None, 5001, None));
        assert!(set.bytes() >= Bytes(8 * 10_000));
    }
}
