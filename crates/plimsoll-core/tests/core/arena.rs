//! Offsets: nothing overlaps, nothing is below the bound, and small cases are compared with the true optimum.

use plimsoll_core::Bytes;
use plimsoll_core::plan::{BufferInterval, Goal, Layout, PackingEffort, assign, solve};
use plimsoll_core::random::StepRandom;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// The smallest arena there is, by trying every order of placing blocks as low as they go. That finds the optimum: take
/// an optimal layout and place its blocks by ascending offset; none ends up higher than it was.
pub fn optimum(blocks: &[BufferInterval]) -> Bytes {
    let mut best = Bytes(u64::MAX);
    try_orders(blocks, &mut vec![None; blocks.len()], Bytes::ZERO, &mut best);
    best
}

fn try_orders(blocks: &[BufferInterval], offsets: &mut Vec<Option<Bytes>>, height: Bytes, best: &mut Bytes) {
    if height >= *best {
        return;
    }
    if offsets.iter().all(Option::is_some) {
        *best = height;
        return;
    }
    for i in 0..blocks.len() {
        if offsets[i].is_none() {
            let offset = lowest(blocks, offsets, i);
            offsets[i] = Some(offset);
            try_orders(blocks, offsets, height.max(offset + blocks[i].size), best);
            offsets[i] = None;
        }
    }
}

fn lowest(blocks: &[BufferInterval], offsets: &[Option<Bytes>], i: usize) -> Bytes {
    let placed = || {
        (0..blocks.len()).filter_map(|j| offsets[j].filter(|_| lives_with(&blocks[i], &blocks[j])).map(|offset| (offset, blocks[j].size)))
    };
    let free = |at: Bytes| placed().all(|(offset, size)| at + blocks[i].size <= offset || offset + size <= at);
    let tops = placed().map(|(offset, size)| offset + size);
    std::iter::once(Bytes::ZERO).chain(tops).filter(|at| free(*at)).min().expect("above everything is always free")
}

fn lives_with(a: &BufferInterval, b: &BufferInterval) -> bool {
    a.first <= b.last && b.first <= a.last
}

fn held_at_once(blocks: &[BufferInterval]) -> Bytes {
    let at = |step: u32| blocks.iter().filter(|b| b.first <= step && step <= b.last).map(|b| b.size).sum();
    blocks.iter().map(|b| at(b.first)).max().unwrap_or_default()
}

fn blocks(most: usize) -> impl Strategy<Value = Vec<BufferInterval>> {
    let block = (0u32..12, 0u32..6, 0u64..20).prop_map(|(first, length, size)| BufferInterval {
        first,
        last: first + length,
        size: Bytes(size * 64),
    });
    prop::collection::vec(block, 0..=most)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() }
}

/// No two blocks that live together overlap, and all stay below the stated size.
fn assert_apart(blocks: &[BufferInterval], layout: &Layout) {
    let mut order: Vec<usize> = (0..blocks.len()).filter(|i| blocks[*i].size > Bytes::ZERO).collect();
    order.sort_by_key(|i| layout.offsets[*i]);
    for (at, i) in order.iter().enumerate() {
        let top = layout.offsets[*i] + blocks[*i].size;
        assert!(top <= layout.size, "block {i} ends above the arena");
        let above = order[at + 1..].iter().take_while(|j| layout.offsets[**j] < top);
        above.for_each(|j| assert!(!lives_with(&blocks[*i], &blocks[*j]), "blocks {i} and {j} overlap"));
    }
}

/// A square of time and offsets cut into pieces: by lines from side to side, and where `whirls` says so into four
/// around a fifth, which no lines from side to side can give. The pieces fill the square, so the smallest arena is
/// known: its height.
fn cut_square(side: u64, pieces: usize, seed: u32, whirls: bool) -> Vec<BufferInterval> {
    let random = StepRandom { seed: 5, step: seed, first_row: 0 };
    let mut drawn = 0;
    let mut below = |limit: u64| {
        drawn += 1;
        u64::from(random.words(0, drawn)[0]) % limit
    };
    let mut cuts = vec![(0, side, 0, side)];
    while cuts.len() < pieces {
        let largest = (0..cuts.len()).max_by_key(|i| {
            let (a, b, c, d) = cuts[*i];
            (b - a) * (d - c) * (1 + below(64))
        });
        let (a, b, c, d) = cuts.swap_remove(largest.unwrap());
        let mut between = |from: u64, to: u64| from + 1 + below(to - from - 1);
        if whirls && b - a > 8 && d - c > 8 && between(0, 5) == 1 {
            let (x, y) = (between(a, b - 2), between(c, d - 2));
            let (later, higher) = (between(x, b), between(y, d));
            cuts.extend([(a, later, c, y), (later, b, c, higher), (x, b, higher, d), (a, x, y, d), (x, later, y, higher)]);
        } else if b - a > 1 && (d - c == 1 || between(0, 3) == 1) {
            let x = between(a, b);
            cuts.extend([(a, x, c, d), (x, b, c, d)]);
        } else if d - c > 1 {
            let y = between(c, d);
            cuts.extend([(a, b, c, y), (a, b, y, d)]);
        } else {
            cuts.push((a, b, c, d));
        }
    }
    // Sorted by size, so that where a piece came from is forgotten.
    cuts.sort_by_key(|(a, b, c, d)| (d - c, b - a, *a));
    cuts.into_iter().map(|(a, b, c, d)| BufferInterval { first: a as u32, last: b as u32 - 1, size: Bytes(64 * (d - c)) }).collect()
}

#[test]
fn cut_squares_are_put_together_again() {
    for (seed, pieces) in [40, 80, 120, 160].into_iter().enumerate() {
        for whirls in [false, true] {
            let blocks = cut_square(256, pieces, seed as u32, whirls);
            let capacity = Bytes(64 * 256);
            let solution = solve(&blocks, Goal::Within(capacity), PackingEffort { work: 100_000_000, ..PackingEffort::default() });
            assert_apart(&blocks, &solution.layout);
            assert_eq!(solution.layout.size, capacity, "{pieces} pieces, seed {seed}, whirls {whirls}");
            assert!(solution.proven);
        }
    }
}

#[test]
fn tens_of_thousands_of_blocks_are_placed() {
    let blocks = cut_square(1 << 14, 20_000, 3, true);
    let layout = assign(&blocks);
    assert_apart(&blocks, &layout);
    assert!(layout.size.0 * 10 <= layout.lower_bound.0 * 15, "{} where {} would do", layout.size, layout.lower_bound);
}

#[test]
fn the_same_effort_gives_the_same_layout_and_no_effort_still_gives_one() {
    let blocks = cut_square(128, 90, 1, true);
    assert_eq!(assign(&blocks), assign(&blocks));
    let none = solve(&blocks, Goal::Smallest, PackingEffort { work: 0, ..PackingEffort::default() });
    assert_apart(&blocks, &none.layout);
    let stopped = solve(&blocks, Goal::Smallest, PackingEffort { work: u64::MAX, keep_going: &|| false });
    assert_apart(&blocks, &stopped.layout);
    assert_eq!(stopped.restarts, 0);
    assert!(stopped.layout.size <= none.layout.size, "without work, fewer greedy orders are tried");
}

proptest! {
    #![proptest_config(config(300))]

    #[test]
    fn blocks_that_live_together_do_not_overlap(blocks in blocks(60)) {
        let Layout { offsets, size, lower_bound } = assign(&blocks);
        prop_assert_eq!(lower_bound, held_at_once(&blocks));
        prop_assert!(size >= lower_bound);
        let top = blocks.iter().zip(&offsets).map(|(block, offset)| *offset + block.size).max().unwrap_or_default();
        prop_assert!(top <= size);
        for (i, a) in blocks.iter().enumerate() {
            for (j, b) in blocks.iter().enumerate().skip(i + 1).filter(|(_, b)| lives_with(a, b)) {
                let apart = offsets[i] + a.size <= offsets[j] || offsets[j] + b.size <= offsets[i];
                prop_assert!(apart || a.size == Bytes::ZERO || b.size == Bytes::ZERO, "blocks {} and {} overlap", i, j);
            }
        }
    }

    #[test]
    fn no_layout_is_below_the_optimum_and_no_optimum_below_the_bound(blocks in blocks(6)) {
        let (layout, optimum) = (assign(&blocks), optimum(&blocks));
        prop_assert!(layout.lower_bound <= optimum && optimum <= layout.size);
        prop_assert_eq!(layout.size, optimum);
    }

    #[test]
    fn what_is_proven_is_true(blocks in blocks(7), spare in 0u64..3) {
        let optimum = optimum(&blocks);
        let smallest = solve(&blocks, Goal::Smallest, PackingEffort::default());
        prop_assert!(smallest.proven);
        prop_assert_eq!(smallest.layout.size, optimum);
        let capacity = Bytes((optimum.0 + 64).saturating_sub(64 * spare));
        let within = solve(&blocks, Goal::Within(capacity), PackingEffort::default());
        prop_assert!(within.proven);
        prop_assert_eq!(within.layout.size <= capacity, optimum <= capacity);
    }
}

/// Cuts a stretch of time and height into blocks that fill it, at most this deep.
fn cut(draw: &mut impl FnMut(u64) -> u64, time: (u32, u32), height: u64, depth: u32, into: &mut Vec<BufferInterval>) {
    let (start, end) = time;
    let whole = depth == 0 || (depth < 3 && draw(4) == 0);
    if !whole && draw(2) == 0 && height >= 2 {
        let part = 1 + draw(height - 1);
        cut(draw, time, part, depth - 1, into);
        cut(draw, time, height - part, depth - 1, into);
    } else if !whole && end - start >= 2 {
        let at = start + 1 + draw(u64::from(end - start - 1)) as u32;
        cut(draw, (start, at), height, depth - 1, into);
        cut(draw, (at, end), height, depth - 1, into);
    } else {
        into.push(BufferInterval { first: start, last: end - 1, size: Bytes(height << 24) });
    }
}

/// As the activations of a network for images at a few sizes, with their many statistics: the large ones leave no gap.
#[test]
fn a_few_great_blocks_among_many_small_ones_are_packed_without_gaps() {
    let mut packed = 0;
    for seed in 0..20 {
        let (random, mut at) = (StepRandom { seed: 31, step: seed, first_row: 0 }, 0);
        let mut draw = |below: u64| {
            at += 1;
            u64::from(random.words(0, at)[0]) % below
        };
        let mut blocks = Vec::new();
        cut(&mut draw, (0, 600), 32, 7, &mut blocks);
        let great = held_at_once(&blocks);
        for _ in 0..600 {
            let first = draw(590) as u32;
            let length = if draw(4) == 0 { draw(600) as u32 } else { draw(10) as u32 };
            blocks.push(BufferInterval { first, last: (first + length).min(599), size: Bytes(64 * (1 + draw(16))) });
        }
        let wanted = Bytes(great.0 + (1 << 20));
        let solution = solve(&blocks, Goal::Within(wanted), PackingEffort::default());
        packed += usize::from(solution.layout.size <= wanted);
    }
    assert!(packed >= 19, "{packed} of 20 were packed");
}
