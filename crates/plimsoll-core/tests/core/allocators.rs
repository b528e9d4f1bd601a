//! Allocators as their users see them.

use plimsoll_core::Bytes;
use plimsoll_core::allocator::{Allocator, BestFit, BestFitOptions, Limit, OwnerId, Request, VirtualSegments};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn several_threads_share_one_limit() {
    let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::gib(1), Bytes(4096));
    let options = BestFitOptions { limit: Limit::Bytes(Bytes::mib(4)), ..BestFitOptions::default() };
    let allocator = BestFit::new(segments, options).unwrap();
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (allocator, most) = (&allocator, &most);
            scope.spawn(move || {
                let (mut random, mut blocks) = (thread + 1, Vec::new());
                for _ in 0..20_000 {
                    let draw = xorshift(&mut random);
                    if let Ok(block) = allocator.allocate(Request::new(Bytes(draw >> 8 & 0xffff), OwnerId::named("thread"))) {
                        blocks.push(block);
                    }
                    if draw & 1 == 0 || blocks.len() > 100 {
                        blocks.pop().into_iter().for_each(|block| allocator.free(block).unwrap());
                    }
                    if draw % 64 == 0 {
                        most.fetch_max(allocator.stats().reserved.0, Relaxed);
                    }
                }
                blocks.into_iter().for_each(|block| allocator.free(block).unwrap());
            });
        }
    });
    let stats = allocator.stats();
    assert_eq!((stats.in_use, stats.requested, stats.blocks), (Bytes::ZERO, Bytes::ZERO, 0));
    assert!(stats.peak_reserved <= Bytes::mib(4) && most.into_inner() <= 4 << 20, "{stats}");
}

fn xorshift(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}
