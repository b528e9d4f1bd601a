//! Memory does not grow: steps allocate nothing and resident memory is flat. Alone in its process, so that the counters are its own, and
//! without a test harness, whose threads allocate.

use plimsoll::nn::{Conv2D, Dropout, Flatten, MaxPool2D};
use plimsoll::prelude::*;
use plimsoll::{CountingAllocator, system};
use plimsoll_core::budget::Owner;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn main() {
    fifty_epochs_take_what_two_take();
    copies_to_and_from_a_file_take_no_memory();
}

fn fifty_epochs_take_what_two_take() {
    let data = Dataset::digits(Split::Train).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0)]).batch(32);
    let held_out = Dataset::digits(Split::Test).map("x", [scale(1.0 / 16.0)]).batch(32);
    let mut seen: Vec<(u64, u64)> = Vec::with_capacity(64);
    let model =
        Sequential::new().add(Conv2D::new(4, 3).relu()).add(MaxPool2D::new(2)).add(Flatten).add(Dropout::new(0.1)).add(Dense::new(10));
    let mut trainer = Trainer::new(model, &data).micro_batch(12).budget(Budget::host("96MiB").unwrap());
    let fit = Fit::epochs(50).validate(&held_out).on_event(|event| {
        if let Event::EpochEnd(_) = event {
            seen.push((HEAP.allocations(), system::resident().0));
        }
    });
    let history = trainer.fit(fit).unwrap();
    assert_eq!(seen.len(), 50);

    // The first epoch has every micro-batch size; after that no thread allocates.
    let per_epoch: Vec<u64> = seen.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(per_epoch.iter().all(|allocations| *allocations == 0), "allocations per epoch: {per_epoch:?}");

    let (second, last) = (seen[1].1, seen[49].1);
    assert!(last <= second + (256 << 10), "resident memory grew from {second} to {last}");
    assert!(history.measured <= history.planned, "{} measured, {} planned", history.measured, history.planned);
}

/// The same with optimizer state that is offloaded to a file in every step.
fn copies_to_and_from_a_file_take_no_memory() {
    let data = Dataset::random(RandomSpec::new(128).floats("x", [64]).floats("y", [8])).unwrap().batch(32);
    let build = |budget: &str| {
        let layer = || Dense::new(256).activation(Activation::Relu);
        let model = Sequential::new().add(layer()).add(layer()).add(layer()).add(Dense::new(8));
        let trainer = Trainer::new(model, &data).loss(Loss::MeanSquaredError).threads(2);
        trainer.allow("offload".parse().unwrap()).budget(Budget::host(budget).unwrap())
    };
    let free = build("1GiB").plan(&Fit::epochs(1)).unwrap();
    let optimizer = free.owners.iter().find(|(name, _)| *name == Owner::Optimizer).unwrap().1;
    let mut seen: Vec<(u64, u64)> = Vec::with_capacity(32);
    let mut trainer = build(&(free.total().0 - optimizer.0 / 2).to_string());
    assert!(trainer.plan(&Fit::epochs(1)).unwrap().offload_bytes() > Bytes::ZERO);
    trainer
        .fit(Fit::epochs(20).on_event(|event| {
            if let Event::EpochEnd(_) = event {
                seen.push((HEAP.allocations(), system::resident().0));
            }
        }))
        .unwrap();
    let per_epoch: Vec<u64> = seen.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert!(per_epoch.iter().all(|allocations| *allocations == 0), "allocations per epoch: {per_epoch:?}");
    assert!(seen[19].1 <= seen[1].1 + (256 << 10), "resident memory grew from {} to {}", seen[1].1, seen[19].1);
}
