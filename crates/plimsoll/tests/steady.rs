//! Memory does not grow: steps allocate nothing and resident memory is flat. Alone in its process, so that the counters are its own.

use plimsoll::prelude::*;
use plimsoll::{CountingAllocator, system};

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

#[test]
fn fifty_epochs_take_what_two_take() {
    let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
    let held_out = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).batch(32);
    let mut seen: Vec<(u64, u64)> = Vec::with_capacity(64);
    let mut trainer = Trainer::new(zoo::digits_cnn(10), &data).micro_batch(12).budget(Budget::host("96MiB").unwrap());
    let fit = Fit::epochs(50).validate(&held_out).on_event(|event| {
        if let Event::EpochEnd(_) = event {
            seen.push((HEAP.allocations(), system::resident().0));
        }
    });
    let history = trainer.fit(fit).unwrap();
    assert_eq!(seen.len(), 50);

    // An epoch reads its own resident memory and time, and nothing else may ask for memory: 45 steps of three pieces ask for none.
    let per_epoch: Vec<u64> = seen.windows(2).skip(1).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(per_epoch.iter().all(|allocations| *allocations < 45), "allocations per epoch: {per_epoch:?}");

    let (second, last) = (seen[1].1, seen[49].1);
    assert!(last <= second + (256 << 10), "resident memory grew from {second} to {last}");
    assert!(history.measured <= history.planned, "{} measured, {} planned", history.measured, history.planned);
}
