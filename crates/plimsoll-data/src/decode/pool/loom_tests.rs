//! The room under every order of threads that loom can think of: nobody waits for ever, and no more is taken than there is.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test --release -p plimsoll-data --lib decode_room::loom
//! ```

use super::*;
use crate::cache::Store;
use loom::thread;

/// What three rows in memory take, and what is for files beside them.
const CACHE: u64 = 3 * PAGE as u64;
const FILES: u64 = 2 * (PAGE as u64 + ROUNDING);

/// Enters and keeps rows, as a thread that makes them does.
fn make(room: &Arc<DecodePool>, rows: &[(u64, usize)]) {
    for &(row, pages) in rows {
        let mut out = vec![0; PAGE];
        if !room.find(row, &mut out).unwrap() {
            let (lent, _) = room.acquire(pages * PAGE, Bytes::ZERO);
            assert!(lent.region.len() >= pages * PAGE);
            {
                let state = room.lock();
                assert!(state.in_work + state.idle_bytes() + state.cached <= room.all);
            }
            drop(lent);
            room.keep(row, &out, pages > 2).unwrap();
        }
    }
}

#[test]
fn small_and_giant_pictures_pass_and_the_cache_gives_way() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let store = Arc::new(Store::in_memory(0, 3, PAGE));
        let room = Arc::new(DecodePool::new(Bytes(FILES), Bytes(CACHE), 2, Some(store)));
        // More than is for files, and all there is but for the rounding.
        let giant = ((FILES + CACHE - ROUNDING) / PAGE as u64) as usize;
        let other = Arc::clone(&room);
        let worker = thread::spawn(move || make(&other, &[(0, 1), (1, giant)]));
        make(&room, &[(2, 1), (1, 2)]);
        worker.join().unwrap();
        let state = room.lock();
        assert_eq!((state.in_work, state.came), (0, state.let_in));
    });
}
