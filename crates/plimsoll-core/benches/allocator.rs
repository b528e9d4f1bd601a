//! What an allocation costs, and ten million random ones under a limit:
//! `cargo bench -p plimsoll-core --bench allocator`.

use plimsoll_core::Bytes;
use plimsoll_core::allocator::{Allocator, AllocatorError, BestFit, BestFitOptions, Block, Limit, OwnerId, Request, VirtualSegments};
use std::collections::BTreeMap;
use std::time::Instant;

fn main() {
    one_block();
    among_many();
    ten_million();
}

fn best_fit(limit: Limit) -> BestFit {
    let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::gib(64), Bytes::kib(4));
    BestFit::new(segments, BestFitOptions { limit, ..BestFitOptions::default() }).expect("a limit in bytes")
}

/// The fastest of many rounds: on a shared machine that is the one nobody disturbed.
fn best_of(rounds: usize, calls: u32, mut round: impl FnMut()) -> f64 {
    let seconds = (0..rounds).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    });
    seconds.fold(f64::INFINITY, f64::min) / f64::from(calls) * 1e9
}

/// A block that is allocated and freed, as for the result of a small op.
fn one_block() {
    let (allocator, owner) = (best_fit(Limit::OnDemand), OwnerId::named("add"));
    let ns = best_of(200, 10_000, || {
        for _ in 0..10_000 {
            let block = allocator.allocate(Request::new(Bytes(32), owner)).expect("no limit");
            allocator.free(block).expect("its own block");
        }
    });
    println!("alloc + free of one block                {ns:>7.1} ns");
    let lock = std::sync::Mutex::new(0u64);
    let ns = best_of(200, 10_000, || {
        for _ in 0..20_000 {
            *std::hint::black_box(&lock).lock().expect("nothing panics") += 1;
        }
    });
    println!("  of these, two locks of a mutex         {ns:>7.1} ns");
}

/// Random blocks replaced among many live ones, so that blocks are split and merged.
fn among_many() {
    for live in [100, 10_000] {
        let (allocator, owner, mut random) = (best_fit(Limit::OnDemand), OwnerId::named("add"), 1);
        let ask = |random: &mut u64| {
            let draw = xorshift(random);
            allocator.allocate(Request::new(Bytes(draw >> 32 & ((1 << (draw % 20)) - 1)), owner)).expect("no limit")
        };
        let mut blocks: Vec<Option<Block>> = (0..live).map(|_| Some(ask(&mut random))).collect();
        let ns = best_of(50, 20_000, || {
            for _ in 0..20_000 {
                let block = &mut blocks[xorshift(&mut random) as usize % live];
                allocator.free(block.take().expect("it is put back")).expect("its own block");
                *block = Some(ask(&mut random));
            }
        });
        println!("alloc + free among {live:>6} random blocks  {ns:>7.1} ns");
    }
}

/// Plays ten million allocations and checks every answer.
fn ten_million() {
    let limit = 64 << 20;
    let allocator = best_fit(Limit::Bytes(Bytes(limit)));
    let (owner, mut random) = (OwnerId::named("random"), 0x9e37_79b9_7f4a_7c15);
    let (mut live, mut blocks, mut in_use, mut refused) = (BTreeMap::new(), Vec::new(), 0u64, 0u64);
    let start = Instant::now();
    for _ in 0..10_000_000u64 {
        let draw = xorshift(&mut random);
        match allocator.allocate(Request::new(Bytes(draw >> 20 & ((1 << (draw % 22)) - 1)), owner)) {
            Ok(block) => {
                let range = allocator.range(&block);
                let (segment, first, last) = (range.segment, range.offset.0, (range.offset + range.size).0);
                let before = live.range((segment, 0)..(segment, last)).next_back();
                assert!(before.is_none_or(|(_, end)| *end <= first), "blocks overlap");
                live.insert((segment, first), last);
                in_use += range.size.0;
                blocks.push(block);
            }
            Err(AllocatorError::OverLimit(_)) => refused += 1,
            Err(other) => panic!("{other}"),
        }
        while blocks.len() > 2000 || (!blocks.is_empty() && draw >> 60 < 8) {
            let block: Block = blocks.swap_remove((draw >> 32) as usize % blocks.len());
            let range = allocator.range(&block);
            assert_eq!(live.remove(&(range.segment, range.offset.0)), Some((range.offset + range.size).0));
            in_use -= range.size.0;
            allocator.free(block).expect("its own block");
            if blocks.len() <= 2000 {
                break;
            }
        }
        if draw.is_multiple_of(4096) {
            let stats = allocator.stats();
            assert_eq!((stats.in_use.0, stats.blocks), (in_use, live.len() as u64), "the account is wrong");
            assert!(stats.in_use <= stats.reserved && stats.reserved.0 <= limit, "{stats}");
        }
    }
    let stats = allocator.stats();
    blocks.into_iter().for_each(|block| allocator.free(block).expect("its own block"));
    allocator.give_back().expect("nothing refuses it");
    let end = allocator.stats();
    assert_eq!((end.in_use, end.requested, end.reserved, end.blocks), (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO, 0));
    println!("10,000,000 allocations: no overlap, balanced to the byte, {refused} refused, {:.1} s", start.elapsed().as_secs_f64());
    println!("{stats}");
}

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
