//! Many short searches instead of a long one: which block to try first is a guess, and a wrong guess near the root costs everything.

use super::search::{Focus, PackingOutcome, Search};
use super::sections::{Interval, Partition, totals};

/// The work of the shortest search, and its least per block.
const SHORTEST: u64 = 300_000;
const PER_BLOCK: u64 = 200;

/// After these many rounds the keys of the rankings are blurred, each time differently.
const EXACT_ROUNDS: u64 = 2;

/// A key moves by at most this many thousandths.
const BLUR: u64 = 50;

/// Where the searches of a round look first.
const FOCUS: [Focus; 4] = [Focus::Troubled, Focus::Tightest, Focus::Troubled, Focus::Lowest];

/// What is known of a block when it is ranked.
struct Traits {
    width: u64,
    size: u64,
    area: u64,
    /// The section at its peak.
    total: u64,
}

/// The greatest goes first.
type Key = fn(&Traits) -> [u64; 3];

const KEYS: [Key; 5] = [
    |t| [t.width, t.area, t.total],
    |t| [t.total, t.area, t.width],
    |t| [t.total, t.width, t.area],
    |t| [t.area, t.width, t.total],
    |t| [t.size, t.width, t.total],
];

/// Searches for a layout of a part within a height.
pub(super) struct Restarts<'a> {
    part: &'a Partition,
    height: u64,
    traits: Vec<Traits>,
    /// How much trouble each section made so far.
    trouble: Vec<u64>,
    /// How many searches there were.
    pub count: u64,
    /// What was found.
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

    /// Searches until something is found or proven, `work` is done, or nobody wants to go on. Also gives the work that was done.
    pub fn run(&mut self, work: u64, keep_going: &dyn Fn() -> bool) -> (PackingOutcome, u64) {
        let blocks = self.part.pieces.len() as u64;
        // Sets of blocks per section are work too.
        let preparation = self.part.sections as u64 * (1 + blocks / 64);
        let mut left = work;
        while left > preparation && keep_going() {
            left -= preparation;
            let round = self.count / KEYS.len() as u64;
            let share = (SHORTEST.max(PER_BLOCK * blocks) * luby(round + 1)).min(left);
            let focus = FOCUS[(round % FOCUS.len() as u64) as usize];
            let mut search = Search::new(self.part, self.height, self.order(round), focus, std::mem::take(&mut self.trouble));
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
        // What is left is not enough to begin again.
        (PackingOutcome::GaveUp, work)
    }

    /// The blocks in the order in which this search tries them.
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

/// 1, 1, 2, 1, 1, 2, 4, …: no sequence of lengths is much better when nothing is known about the searches (Luby, Sinclair, Zuckerman 1993).
fn luby(i: u64) -> u64 {
    let mut whole = 1;
    while whole < i {
        whole = 2 * whole + 1;
    }
    if whole == i { whole.div_ceil(2) } else { luby(i - whole / 2) }
}

/// The next of a fixed sequence of numbers without a pattern (SplitMix64).
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
