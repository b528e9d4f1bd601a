//! Restarts: many short searches instead of one long one, because a wrong branching order near the root is never
//! recovered from.

use super::search::{Focus, PackingOutcome, PackingSearch};
use super::sections::{Interval, Partition, totals};

/// Work of the shortest search, and the minimum per block.
const SHORTEST: u64 = 300_000;
const PER_BLOCK: u64 = 200;

/// Number of rounds with exact ranking keys. Later rounds perturb the keys at random.
const EXACT_ROUNDS: u64 = 2;

/// Maximum perturbation of a key, in thousandths.
const BLUR: u64 = 50;

/// The section choice of successive searches.
const FOCUS: [Focus; 4] = [Focus::Troubled, Focus::Tightest, Focus::Troubled, Focus::Lowest];

/// Properties of a block that the ranking uses.
struct Traits {
    width: u64,
    size: u64,
    area: u64,
    /// Live bytes of the section with the highest peak.
    total: u64,
}

/// Blocks are sorted by descending key.
type Key = fn(&Traits) -> [u64; 3];

const KEYS: [Key; 5] = [
    |t| [t.width, t.area, t.total],
    |t| [t.total, t.area, t.width],
    |t| [t.total, t.width, t.area],
    |t| [t.area, t.width, t.total],
    |t| [t.size, t.width, t.total],
];

/// A search with restarts for a layout of one partition within a height.
pub(super) struct Restarts<'a> {
    part: &'a Partition,
    height: u64,
    traits: Vec<Traits>,
    /// Number of dead ends per section, over all searches so far.
    trouble: Vec<u64>,
    /// Number of searches so far.
    pub count: u64,
    /// The layout, if one was found.
    pub found: Option<Vec<u64>>,
}

impl<'a> Restarts<'a> {
    pub fn new(part: &'a Partition, height: u64) -> Restarts<'a> {
        let totals = totals(&part.pieces, part.sections);
        let traits = |piece: &Interval| {
            let (width, size) = (u64::from(piece.end - piece.start), piece.size);
            let total = totals[piece.start as usize..piece.end as usize].iter().copied().max().unwrap_or(0);
            Traits { width, size, area: width.saturating_mul(size), total }
        };
        let traits = part.pieces.iter().map(traits).collect();
        Restarts { part, height, traits, trouble: vec![0; part.sections], count: 0, found: None }
    }

    /// Searches until a layout is found, infeasibility is proven, `work` is spent, or `keep_going` returns false. Also
    /// returns the work spent.
    pub fn run(&mut self, work: u64, keep_going: &dyn Fn() -> bool) -> (PackingOutcome, u64) {
        let blocks = self.part.pieces.len() as u64;
        // Building the bit sets of the sections counts as work.
        let preparation = self.part.sections as u64 * (1 + blocks / 64);
        let mut left = work;
        while left > preparation && keep_going() {
            left -= preparation;
            let round = self.count / KEYS.len() as u64;
            let share = (SHORTEST.max(PER_BLOCK * blocks) * luby(round + 1)).min(left);
            let focus = FOCUS[(round % FOCUS.len() as u64) as usize];
            let mut search = PackingSearch::new(self.part, self.height, self.order(round), focus, std::mem::take(&mut self.trouble));
            self.count += 1;
            let outcome = search.run(share);
            left -= share - search.work;
            if outcome == PackingOutcome::Found {
                self.found = Some(search.offsets());
            }
            if outcome != PackingOutcome::GaveUp {
                return (outcome, work - left);
            }
            self.trouble = search.trouble;
            self.trouble.iter_mut().for_each(|trouble| *trouble -= *trouble / 10);
        }
        // The remaining work is too little for another search.
        (PackingOutcome::GaveUp, work)
    }

    /// The branching order of this round.
    fn order(&self, round: u64) -> Vec<u32> {
        let key = KEYS[(self.count % KEYS.len() as u64) as usize];
        let mut random = self.count;
        let keys: Vec<[u128; 3]> = self
            .traits
            .iter()
            .map(|traits| {
                key(traits).map(|key| {
                    let blur = if round < EXACT_ROUNDS { BLUR } else { draw(&mut random) % (2 * BLUR + 1) };
                    u128::from(key) * u128::from(1000 - BLUR + blur)
                })
            })
            .collect();
        let mut order: Vec<u32> = (0..keys.len() as u32).collect();
        order.sort_by_key(|id| (std::cmp::Reverse(keys[*id as usize]), *id));
        order
    }
}

/// The Luby sequence 1, 1, 2, 1, 1, 2, 4, …: optimal up to a constant factor when run times are unknown (Luby,
/// Sinclair, Zuckerman 1993).
fn luby(i: u64) -> u64 {
    let mut whole = 1;
    while whole < i {
        whole = 2 * whole + 1;
    }
    if whole == i { whole.div_ceil(2) } else { luby(i - whole / 2) }
}

/// The next number of a deterministic pseudo-random sequence (SplitMix64).
pub(super) fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::luby;

    #[test]
    fn lengths_follow_the_known_sequence() {
        assert_eq!((1..=15).map(luby).collect::<Vec<_>>(), [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}
