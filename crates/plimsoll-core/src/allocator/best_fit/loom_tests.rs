//! Threads that share an allocator, in every order.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p plimsoll-core --lib best_fit::loom
//! ```

use super::*;
use crate::allocator::{OwnerId, VirtualSegments};
use loom::sync::Arc;
use loom::thread;

const LIMIT: Bytes = Bytes::mib(4);

fn allocator() -> Arc<BestFit> {
    let segments = VirtualSegments::new("host", Bytes(64)).on_demand(Bytes::mib(64), Bytes::kib(4));
    let options = BestFitOptions { limit: Limit::Bytes(LIMIT), ..BestFitOptions::default() };
    Arc::new(BestFit::new(segments, options).unwrap())
}

fn request(mib: u64) -> Request {
    Request::new(Bytes::mib(mib), OwnerId::named("thread"))
}

/// Two threads ask for more than the limit has together: at least one gets its block, no two blocks overlap, and the
/// account is empty at the end.
#[test]
fn loom_threads_stay_within_one_limit() {
    loom::model(|| {
        let allocator = allocator();
        let workers = [3, 2].map(|mib| {
            let allocator = Arc::clone(&allocator);
            thread::spawn(move || {
                let Ok(block) = allocator.allocate(request(mib)) else { return false };
                let stats = allocator.stats();
                assert!(stats.in_use <= LIMIT && stats.reserved <= LIMIT && stats.in_use >= block.size());
                allocator.free(block).unwrap();
                true
            })
        });
        let got = workers.map(|worker| worker.join().unwrap());
        assert!(got[0] || got[1], "the first to ask gets its block");
        assert_eq!(allocator.stats().in_use, Bytes::ZERO);
    });
}

/// A thread that asks where its block is gets the place before or after a compaction, and the new one from then on.
#[test]
fn loom_a_moved_block_is_found() {
    loom::model(|| {
        let allocator = allocator();
        let first = allocator.allocate(request(1)).unwrap();
        let second = allocator.allocate(request(1)).unwrap();
        let (before, free) = (allocator.range(&second), allocator.range(&first));
        allocator.free(first).unwrap();
        let mover = {
            let allocator = Arc::clone(&allocator);
            thread::spawn(move || allocator.compact(&mut |_| true))
        };
        let seen = allocator.range(&second);
        assert!(seen == before || seen.offset == free.offset, "{seen:?}");
        mover.join().unwrap();
        assert_eq!(allocator.range(&second).offset, free.offset);
        allocator.free(second).unwrap();
        assert_eq!(allocator.stats().in_use, Bytes::ZERO);
    });
}
