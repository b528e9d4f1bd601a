//! Offsets: nothing overlaps, nothing is below the bound, and small cases are compared with the true optimum.

use plimsoll_core::Bytes;
use plimsoll_core::plan::{Block, Layout, assign};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::RngSeed;

/// The smallest arena there is, by trying every order of placing blocks as low as they go. That finds the optimum: take an optimal
/// layout and place its blocks by ascending offset; none ends up higher than it was.
pub fn optimum(blocks: &[Block]) -> Bytes {
    let mut best = Bytes(u64::MAX);
    try_orders(blocks, &mut vec![None; blocks.len()], Bytes::ZERO, &mut best);
    best
}

fn try_orders(blocks: &[Block], offsets: &mut Vec<Option<Bytes>>, height: Bytes, best: &mut Bytes) {
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

fn lowest(blocks: &[Block], offsets: &[Option<Bytes>], i: usize) -> Bytes {
    let placed = || {
        (0..blocks.len()).filter_map(|j| offsets[j].filter(|_| lives_with(&blocks[i], &blocks[j])).map(|offset| (offset, blocks[j].size)))
    };
    let free = |at: Bytes| placed().all(|(offset, size)| at + blocks[i].size <= offset || offset + size <= at);
    let tops = placed().map(|(offset, size)| offset + size);
    std::iter::once(Bytes::ZERO).chain(tops).filter(|at| free(*at)).min().expect("above everything is always free")
}

fn lives_with(a: &Block, b: &Block) -> bool {
    a.first <= b.last && b.first <= a.last
}

fn held_at_once(blocks: &[Block]) -> Bytes {
    let at = |step: u32| blocks.iter().filter(|b| b.first <= step && step <= b.last).map(|b| b.size).sum();
    blocks.iter().map(|b| at(b.first)).max().unwrap_or_default()
}

fn blocks(most: usize) -> impl Strategy<Value = Vec<Block>> {
    let block =
        (0u32..12, 0u32..6, 0u64..20).prop_map(|(first, length, size)| Block { first, last: first + length, size: Bytes(size * 64) });
    prop::collection::vec(block, 0..=most)
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, rng_seed: RngSeed::Fixed(7), failure_persistence: None, ..ProptestConfig::default() }
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
        prop_assert!(layout.size.0 * 4 <= optimum.0 * 5, "{} where {} would do", layout.size, optimum);
    }
}

#[test]
fn nearly_every_small_layout_is_optimal() {
    let mut runner = proptest::test_runner::TestRunner::new(config(1));
    let drawn: Vec<Vec<Block>> = (0..500).map(|_| blocks(6).new_tree(&mut runner).unwrap().current()).collect();
    let optimal = drawn.iter().filter(|blocks| assign(blocks).size == optimum(blocks)).count();
    assert!(optimal >= 490, "{optimal} of 500 are optimal");
}
