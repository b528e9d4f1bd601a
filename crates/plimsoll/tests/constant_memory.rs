//! Memory does not grow: steps allocate nothing and resident memory is flat. Alone in its process, so that the counters
//! are its own, and without a test harness, whose threads allocate.

use plimsoll::config::Config;
use plimsoll::nn::{Conv2D, Dropout, Flatten, MaxPool2D};
use plimsoll::prelude::*;
use plimsoll::{CountingAllocator, Existing, RunFolder, StopHandle, system};
use plimsoll_core::budget::Owner;

#[global_allocator]
static HEAP: CountingAllocator = CountingAllocator::new();

fn main() {
    fifty_epochs_take_what_two_take();
    copies_to_and_from_a_file_take_no_memory();
    logging_takes_no_memory_in_a_step();
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
    // Code that runs for the first time, such as progress events of slow epochs, becomes resident too.
    assert!(last <= second + (512 << 10), "resident memory grew from {second} to {last}");
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

/// Two outputs, so that progress has several scores, and an epoch that does not end by itself.
const LOGGED: &str = r#"
[model]
outputs = ["kind", "same"]
layers = [
    { type = "dense", name = "hidden", units = 32, activation = "relu" },
    { type = "dense", name = "kind", units = 10 },
    { type = "dense", name = "same", units = 10, inputs = ["hidden"] },
]
[data]
source = "random"
rows = 1000000000
x = [32]
classes = 10
[train]
epochs = 1
batch = 32
loss = { kind = { type = "softmax_cross_entropy", labels = "y" }, same = { type = "softmax_cross_entropy", labels = "y" } }
[log]
tensorboard = true
[checkpoint]
enabled = false
[budget]
host = "96MiB"
"#;

/// A run folder logs progress, its state and TensorBoard's events without the heap.
fn logging_takes_no_memory_in_a_step() {
    let folder = std::env::temp_dir().join(format!("plimsoll-logging-{}", std::process::id()));
    let trainer = Trainer::from(Config::from_text(LOGGED).unwrap().build().unwrap());
    let run = RunFolder::open(&folder, Existing::Refuse).unwrap();
    let plan = trainer.plan(&run.fit(&trainer)).unwrap();
    let (stop, mut seen) = (StopHandle::new(), Vec::with_capacity(16));
    let history = run.train(trainer, plan, &stop, |event| {
        if let Event::Progress { scores, .. } = event {
            assert!(scores.iter().map(|(name, _)| name).eq(["loss", "kind_loss", "same_loss", "kind_accuracy", "same_accuracy"]));
            assert!(scores.iter().all(|(_, value)| value > 0.0));
            seen.push(HEAP.allocations());
            if seen.len() == 8 {
                stop.stop();
            }
        }
    });
    assert!(history.unwrap().stopped);
    let between: Vec<u64> = seen.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(between.len() >= 7 && between[1..].iter().all(|allocations| *allocations == 0), "allocations between events: {between:?}");
    let logged = |name: &str| std::fs::metadata(folder.join(name)).unwrap().len();
    assert!(logged("details/progress.jsonl") > 0 && logged("details/status.json") > 0);
    drop(run);
    std::fs::remove_dir_all(&folder).unwrap();
}
