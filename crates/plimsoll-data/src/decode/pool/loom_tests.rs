//! Model-checks the pool with loom: no thread waits forever, and the memory in use never exceeds the total.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p plimsoll-data --lib pool::loom
//! ```

use super::*;
use crate::cache::Store;
use loom::thread;

/// Bytes of three rows in memory, and bytes for files.
const CACHE: u64 = 3 * PAGE as u64;
const FILES: u64 = 2 * (PAGE as u64 + ROUNDING);

/// Acquires memory and caches rows, like a worker.
fn make(pool: &Arc<DecodePool>, rows: &[(u64, usize)]) {
    for &(row, pages) in rows {
        let mut out = vec![0; PAGE];
        if !pool.find(row, &mut out).unwrap() {
            let (memory, _) = pool.acquire(pages * PAGE, Bytes::ZERO);
            assert!(memory.region.len() >= pages * PAGE);
            {
                let state = pool.lock();
                assert!(state.in_work + state.idle_bytes() + state.cached <= pool.all);
            }
            drop(memory);
            pool.keep(row, &out, pages > 2).unwrap();
        }
    }
}

#[test]
fn small_and_giant_images_pass_and_the_cache_gives_way() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let store = Arc::new(Store::in_memory(0, 3, PAGE));
        let pool = Arc::new(DecodePool::new(Bytes(FILES), Bytes(CACHE), 2, Some(store)));
        // More than the memory for files: the total without the rounding.
        let giant = ((FILES + CACHE - ROUNDING) / PAGE as u64) as usize;
        let other = Arc::clone(&pool);
        let worker = thread::spawn(move || make(&other, &[(0, 1), (1, giant)]));
        make(&pool, &[(2, 1), (1, 2)]);
        worker.join().unwrap();
        let state = pool.lock();
        assert_eq!((state.in_work, state.came), (0, state.let_in));
    });
}
