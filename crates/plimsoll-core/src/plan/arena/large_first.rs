//! Great blocks first. Where a few blocks hold most of the bytes, where those go decides whether a layout exists; and few blocks in few
//! sections are searched in no time, where all of them together keep the search busy with what does not matter.

use super::greedy;
use super::restarts::Restarts;
use super::search::PackingOutcome;
use super::sections::{Interval, Partition, part_of};

/// A block is great if it is at least the greatest over this; the next number is tried if one gives nothing.
const SHARES: [u64; 3] = [24, 150, 400];

/// If great blocks can be placed at all, that takes little: no more work than this goes into one attempt, whatever there is.
const MOST: u64 = 6_000_000;

/// What came of a search, what it found, and the work it took.
pub(super) struct Tried {
    pub outcome: PackingOutcome,
    pub found: Option<Vec<u64>>,
    pub work: u64,
    pub restarts: u64,
}

/// Searches a layout of the part within a height by placing the great blocks, then the others around or above them.
pub(super) fn search(part: &Partition, wanted: u64, work: u64, keep_going: &dyn Fn() -> bool) -> Tried {
    let mut tried = Tried { outcome: PackingOutcome::GaveUp, found: None, work: 0, restarts: 0 };
    let greatest = part.pieces.iter().map(|piece| piece.size).max().unwrap_or(0);
    let mut known = 0;
    for share in SHARES {
        let (great, small): (Vec<usize>, Vec<usize>) =
            (0..part.pieces.len()).partition(|i| part.pieces[*i].size >= greatest.div_ceil(share));
        // What is nearly everything is searched as a whole.
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
    let upper = greedy::pack(&above, above.bound);
    let strip = greedy::height(&above.pieces, &upper);
    // Small blocks always fit in a band of their own. If there is no space for one, they may still fit around the large ones.
    let apart = wanted.checked_sub(strip).filter(|height| *height >= below.bound);
    let height = apart.unwrap_or(wanted);
    let mut lower = greedy::pack(&below, height);
    if greedy::height(&below.pieces, &lower) > height {
        let mut restarts = Restarts::new(&below, height);
        let (outcome, spent) = restarts.run(work, keep_going);
        tried.work += spent;
        tried.restarts += restarts.count;
        match restarts.found {
            Some(found) => lower = found,
            None => {
                // Without the others nothing is harder than with them.
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
