//! Large blocks first. A few large blocks usually decide whether a layout exists. Searching them alone is fast, while a
//! search over all blocks spends its time on small ones.

use super::greedy;
use super::restarts::Restarts;
use super::search::PackingOutcome;
use super::sections::{Interval, Partition, part_of};

/// A block is large if its size is at least the maximum divided by this. Later entries are tried if earlier ones fail.
const SHARES: [u64; 3] = [24, 150, 400];

/// Work limit of one attempt. Large blocks that can be placed are placed quickly.
const MOST: u64 = 6_000_000;

/// Outcome of a search, the layout it found, and the work it spent.
pub(super) struct Tried {
    pub outcome: PackingOutcome,
    pub found: Option<Vec<u64>>,
    pub work: u64,
    pub restarts: u64,
}

/// Searches for a layout within a height by placing the large blocks, then the others around or above them.
pub(super) fn search(part: &Partition, wanted: u64, work: u64, keep_going: &dyn Fn() -> bool) -> Tried {
    let mut tried = Tried { outcome: PackingOutcome::GaveUp, found: None, work: 0, restarts: 0 };
    let greatest = part.pieces.iter().map(|piece| piece.size).max().unwrap_or(0);
    let mut known = 0;
    for share in SHARES {
        let (great, small): (Vec<usize>, Vec<usize>) =
            (0..part.pieces.len()).partition(|i| part.pieces[*i].size >= greatest.div_ceil(share));
        // If nearly all blocks are large, search all of them together.
        if great.len() == known || small.len() < part.pieces.len() / 4 || tried.outcome != PackingOutcome::GaveUp {
            break;
        }
        known = great.len();
        place(part, &great, &small, wanted, (work / SHARES.len() as u64).min(MOST), keep_going, &mut tried);
    }
    tried
}

fn place(part: &Partition, great: &[usize], small: &[usize], wanted: u64, work: u64, keep_going: &dyn Fn() -> bool, tried: &mut Tried) {
    let (below, above) = (part_of(part, great), part_of(part, small));
    let upper = greedy::pack(&above, above.bound, usize::MAX);
    let strip = greedy::height(&above.pieces, &upper);
    // Small blocks always fit in a band of their own. Without space for a band, they may still fit around the large
    // ones.
    let apart = wanted.checked_sub(strip).filter(|height| *height >= below.bound);
    let height = apart.unwrap_or(wanted);
    let mut lower = greedy::pack(&below, height, usize::MAX);
    if greedy::height(&below.pieces, &lower) > height {
        let mut restarts = Restarts::new(&below, height);
        let (outcome, spent) = restarts.run(work, keep_going);
        tried.work += spent;
        tried.restarts += restarts.count;
        match restarts.found {
            Some(found) => lower = found,
            None => {
                // A subset of the blocks is never harder to place than all of them.
                tried.outcome = if outcome == PackingOutcome::Impossible && apart.is_none() {
                    PackingOutcome::Impossible
                } else {
                    PackingOutcome::GaveUp
                };
                return;
            }
        }
    }
    let mut offsets = vec![0; part.pieces.len()];
    great.iter().zip(&lower).for_each(|(id, offset)| offsets[*id] = *offset);
    if let Some(height) = apart {
        small.iter().zip(&upper).for_each(|(id, offset)| offsets[*id] = height + offset);
    } else {
        let mut order = small.to_vec();
        order.sort_by_key(|id| (std::cmp::Reverse(area(&part.pieces[*id])), *id));
        greedy::place_around(&part.pieces, great, &order, &mut offsets);
    }
    if greedy::height(&part.pieces, &offsets) <= wanted {
        (tried.outcome, tried.found) = (PackingOutcome::Found, Some(offsets));
    }
}

fn area(piece: &Interval) -> u64 {
    piece.size.saturating_mul(u64::from(piece.end - piece.start))
}
