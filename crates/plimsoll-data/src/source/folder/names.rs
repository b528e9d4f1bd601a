//! Compact storage for many file names: one byte buffer with offsets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// Names of at most 255 bytes each, as file systems guarantee.
#[derive(Default)]
pub(super) struct Names {
    /// Each name is preceded by a byte with its length.
    bytes: Vec<u8>,
    starts: Vec<u32>,
}

/// The buffer is full.
#[derive(Debug)]
pub(super) struct Full;

impl Names {
    pub fn push(&mut self, name: &OsStr) -> Result<(), Full> {
        let name = name.as_bytes();
        let start = u32::try_from(self.bytes.len()).map_err(|_| Full)?;
        self.bytes.push(u8::try_from(name.len()).map_err(|_| Full)?);
        self.bytes.extend_from_slice(name);
        self.starts.push(start);
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.starts.len()
    }

    pub fn get(&self, index: usize) -> &OsStr {
        OsStr::from_bytes(name(&self.bytes, self.starts[index]))
    }

    /// Sorts the names from index `first` on.
    pub fn sort_from(&mut self, first: usize) {
        let bytes = &self.bytes;
        self.starts[first..].sort_unstable_by(|&a, &b| name(bytes, a).cmp(name(bytes, b)));
    }

    /// Sorts the names by a part of each.
    pub fn sort_by_key(&mut self, key: impl Fn(&OsStr) -> &[u8]) {
        let bytes = &self.bytes;
        let key = |start: u32| key(OsStr::from_bytes(name(bytes, start)));
        self.starts.sort_unstable_by(|&a, &b| key(a).cmp(key(b)));
    }

    /// Shrinks the capacity to the length.
    pub fn settle(&mut self) {
        self.bytes.shrink_to_fit();
        self.starts.shrink_to_fit();
    }

    /// Bytes allocated.
    pub fn held(&self) -> usize {
        self.bytes.capacity() + self.starts.capacity() * size_of::<u32>()
    }
}

fn name(bytes: &[u8], start: u32) -> &[u8] {
    let start = start as usize;
    &bytes[start + 1..][..usize::from(bytes[start])]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_names_take_little_more_than_their_bytes() {
        let mut names = Names::default();
        for number in (0..1_000_000u32).rev() {
            names.push(OsStr::new(&format!("photo-{number:07}.jpg"))).unwrap();
        }
        names.sort_from(0);
        names.settle();
        assert_eq!(
            (names.len(), names.get(0), names.get(999_999)),
            (1_000_000, OsStr::new("photo-0000000.jpg"), OsStr::new("photo-0999999.jpg"))
        );
        assert_eq!(names.held(), 1_000_000 * (17 + 1 + 4));
    }

    #[test]
    fn only_the_names_from_a_place_on_are_sorted() {
        let mut names = Names::default();
        for name in ["c", "b", "a"] {
            names.push(OsStr::new(name)).unwrap();
        }
        names.sort_from(1);
        assert_eq!([0, 1, 2].map(|index| names.get(index).to_str().unwrap()), ["c", "a", "b"]);
    }
}
