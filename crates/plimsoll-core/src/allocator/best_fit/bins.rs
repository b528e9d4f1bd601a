//! Free blocks in bins by size: exact sizes up to 32 units, then 32 bins per power of two. The last bin holds the free
//! blocks at the end of growing segments, which are used only if no other fits.

use super::heap::{AddressRange, NONE};

/// Bins per power of two, and number of exact bins.
const STEPS: u64 = 32;
const STEP_BITS: u32 = STEPS.trailing_zeros();
const BINS: usize = (65 - STEP_BITS as usize) * STEPS as usize;
/// The bin of the free blocks at the end of growing segments.
pub(super) const LAST: u16 = BINS as u16;
const WORDS: usize = (BINS + 1).div_ceil(64);

/// Blocks of a bin that are compared, so that no allocation takes long.
const LOOKED_AT: usize = 8;

/// Heads of doubly linked lists, and which of them are not empty.
pub(super) struct Bins {
    heads: Vec<u32>,
    words: [u64; WORDS],
    summary: u64,
}

const _: () = assert!(WORDS <= 64, "one word summarizes the others");

/// The bin of a size in units.
pub(super) fn bin(units: u64) -> u16 {
    if units < STEPS {
        return units as u16;
    }
    let log = 63 - units.leading_zeros();
    let step = (units >> (log - STEP_BITS)) & (STEPS - 1);
    ((u64::from(log - STEP_BITS) + 1) * STEPS + step) as u16
}

impl Bins {
    pub fn new() -> Bins {
        Bins { heads: vec![NONE; BINS + 1], words: [0; WORDS], summary: 0 }
    }

    pub fn insert(&mut self, nodes: &mut [AddressRange], id: u32, bin: u16) {
        let node = &mut nodes[id as usize];
        node.bin = bin;
        let bin = usize::from(bin);
        let head = self.heads[bin];
        node.bin_prev = NONE;
        node.bin_next = head;
        if head == NONE {
            self.words[bin / 64] |= 1 << (bin % 64);
            self.summary |= 1 << (bin / 64);
        } else {
            nodes[head as usize].bin_prev = id;
        }
        self.heads[bin] = id;
    }

    pub fn remove(&mut self, nodes: &mut [AddressRange], id: u32) {
        let AddressRange { bin_prev, bin_next, bin, .. } = nodes[id as usize];
        if bin_next != NONE {
            nodes[bin_next as usize].bin_prev = bin_prev;
        }
        if bin_prev != NONE {
            nodes[bin_prev as usize].bin_next = bin_next;
            return;
        }
        let bin = usize::from(bin);
        self.heads[bin] = bin_next;
        if bin_next == NONE {
            self.words[bin / 64] &= !(1 << (bin % 64));
            if self.words[bin / 64] == 0 {
                self.summary &= !(1 << (bin / 64));
            }
        }
    }

    /// The smallest free block of at least `size` bytes, of `units` units; among equal ones that at the lowest address.
    pub fn best(&self, nodes: &[AddressRange], size: u64, units: u64) -> Option<u32> {
        let own = usize::from(bin(units));
        // Blocks of the request's own bin may be smaller than it.
        let found = self.best_of(nodes, self.heads[own], size);
        found.or_else(|| self.best_of(nodes, self.heads[self.next(own + 1)?], size))
    }

    /// The size of the largest free block.
    pub fn largest(&self, nodes: &[AddressRange]) -> u64 {
        let largest = |bin: usize| self.list(nodes, bin).map(|id| nodes[id as usize].size).max().unwrap_or(0);
        let highest = self.occupied().find(|bin| *bin != usize::from(LAST)).map_or(0, largest);
        highest.max(largest(usize::from(LAST)))
    }

    /// All free blocks, those of the highest bin first.
    pub fn descending<'a>(&'a self, nodes: &'a [AddressRange]) -> impl Iterator<Item = u32> + 'a {
        self.occupied().flat_map(move |bin| self.list(nodes, bin))
    }

    /// Bins that are not empty, the highest first.
    fn occupied(&self) -> impl Iterator<Item = usize> + '_ {
        let words = (0..WORDS).rev().filter(|word| self.words[*word] != 0);
        words.flat_map(move |word| (0..64).rev().filter(move |bit| self.words[word] >> bit & 1 == 1).map(move |bit| word * 64 + bit))
    }

    fn list<'a>(&self, nodes: &'a [AddressRange], bin: usize) -> impl Iterator<Item = u32> + use<'a> {
        let head = Some(self.heads[bin]).filter(|id| *id != NONE);
        std::iter::successors(head, |id| Some(nodes[*id as usize].bin_next).filter(|id| *id != NONE))
    }

    fn best_of(&self, nodes: &[AddressRange], head: u32, size: u64) -> Option<u32> {
        let (mut best, mut best_key) = (None, (u64::MAX, u32::MAX, u64::MAX));
        let mut id = head;
        for _ in 0..LOOKED_AT {
            if id == NONE {
                break;
            }
            let node = &nodes[id as usize];
            let key = (node.size, node.segment, node.offset);
            if node.size >= size && key < best_key {
                (best, best_key) = (Some(id), key);
            }
            id = node.bin_next;
        }
        best
    }

    /// The first bin from `from` on that is not empty.
    fn next(&self, from: usize) -> Option<usize> {
        let word = from / 64;
        if word >= WORDS {
            return None;
        }
        let here = self.words[word] & (u64::MAX << (from % 64));
        if here != 0 {
            return Some(word * 64 + here.trailing_zeros() as usize);
        }
        let after = self.summary & u64::MAX.checked_shl(word as u32 + 1).unwrap_or(0);
        (after != 0).then(|| {
            let word = after.trailing_zeros() as usize;
            word * 64 + self.words[word].trailing_zeros() as usize
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_ordered_like_sizes_and_a_thirty_second_apart() {
        let mut sizes: Vec<u64> = (0..64).flat_map(|log| [1u64 << log, (1 << log) + (1 << log) / 3, u64::MAX >> (63 - log)]).collect();
        sizes.sort_unstable();
        assert!(sizes.windows(2).all(|pair| bin(pair[0]) <= bin(pair[1])));
        assert!(bin(u64::MAX) < LAST);
        for units in 1..100_000u64 {
            let same = (units + 1..).take_while(|other| bin(*other) == bin(units)).last().unwrap_or(units);
            assert!(same - units <= units / STEPS, "{units} and {same} share a bin");
        }
    }
}
