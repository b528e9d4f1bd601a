//! A hash of everything that the content of a cache depends on.

use crate::rng::mix64;
use std::hash::Hasher;

/// A 128-bit hash: two 64-bit hashes with different seeds and steps.
pub(crate) struct Fingerprint {
    state: [u64; 2],
}

impl Fingerprint {
    /// Starts with the version of this crate, because another version may decode or compute differently.
    pub fn new() -> Fingerprint {
        let mut hash = Fingerprint { state: [0x706C_696D_736F_6C6C, 0x6361_6368_6500_0001] };
        hash.write(env!("CARGO_PKG_VERSION").as_bytes());
        hash
    }

    /// The digest.
    pub fn bytes(&self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.state[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.state[1].to_le_bytes());
        bytes
    }
}

impl Hasher for Fingerprint {
    fn write(&mut self, bytes: &[u8]) {
        // The length is hashed first, so that different splits of the same bytes have different digests.
        let mut step = |word: u64| {
            self.state[0] = mix64(self.state[0] ^ word);
            self.state[1] = mix64(self.state[1].rotate_left(23).wrapping_add(word));
        };
        step(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            step(u64::from_le_bytes(word));
        }
    }

    fn finish(&self) -> u64 {
        self.state[0]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_and_every_cut_counts() {
        let of = |pieces: &[&str]| {
            let mut hash = Fingerprint::new();
            pieces.iter().for_each(|piece| hash.write(piece.as_bytes()));
            hash.bytes()
        };
        let all = [of(&[]), of(&[""]), of(&["ab"]), of(&["a", "b"]), of(&["ba"]), of(&["ab\0"]), of(&["ab", ""])];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one && other[..8] != one[..8] && other[8..] != one[8..]));
        }
    }
}
