//! Batch-level pipeline stages with micro-batches: another budget trains the same weights.

use plimsoll::nn::{Flatten, Model};
use plimsoll::prelude::*;
use plimsoll::{Checkpoints, Scores};
use plimsoll_data::Mix;

fn model() -> Model {
    Sequential::new().add(Flatten).add(Dense::new(24).relu()).add(Dense::new(10).activation(Activation::Softmax)).into()
}

/// 300 rows with a probability per class; the last batch has 12.
fn digits(split: Split) -> Dataset {
    Dataset::digits(split).take(300).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)])
}

/// The weights after two epochs, and the validation scores.
fn train_run(data: &Dataset, held_out: &Dataset, micro_batch: usize) -> (Vec<f32>, Scores) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let mut trainer = Trainer::new(model(), data).optimizer(Sgd::new(0.05).momentum(0.9)).seed(3).micro_batch(micro_batch);
    let history = trainer.fit(Fit::epochs(2).validate(held_out)).unwrap();
    let validation = history.last().unwrap().validation.clone().unwrap();
    trainer.save_weights(&path).unwrap();
    let file = std::fs::read(&path).unwrap();
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    (file[8 + header..].chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect(), validation)
}

#[test]
fn micro_batches_match_the_full_batch_after_batch_level_stages() {
    let rows = || digits(Split::Train).shuffle(Shuffle::seed(7));
    let numbered = || Dataset::digits(Split::Train).take(300).enumerate("n").map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]);
    let plain = rows().batch(32);
    let cases = [
        ("mixup", plain.clone().mix(Mix::up(0.4).seed(2))),
        ("cutmix", plain.clone().mix(Mix::cut(1.0))),
        ("mixup of a stream", rows().filter(|_| true).batch(32).mix(Mix::up(0.4).seed(2))),
        ("mixup of a stream that is counted", rows().filter(|_| true).assert_cardinality(300).batch(32).mix(Mix::up(0.4).seed(2))),
        ("drop_remainder", plain.clone().drop_remainder()),
        ("mixup of whole batches", plain.clone().drop_remainder().mix(Mix::up(0.4).seed(2))),
        ("bucket_by_length", numbered().bucket_by_length("n", [100, 200], 32).batch(32)),
        ("bucket_by_length, counted", numbered().bucket_by_length("n", [100, 200], 32).assert_cardinality(300).batch(32)),
    ];
    for (name, data) in cases {
        let held_out = digits(Split::Test).batch(20).mix(Mix::up(0.4));
        // The columns have the same order as in training.
        let held_out = if name.starts_with("bucket") { numbered().batch(20) } else { held_out };
        let (whole, scores) = train_run(&data, &held_out, 32);
        for micro_batch in [1, 8, 7] {
            let (pieces, in_pieces) = train_run(&data, &held_out, micro_batch);
            assert!(whole == pieces, "{name} in micro-batches of {micro_batch}: the weights differ");
            assert!((scores.loss - in_pieces.loss).abs() < 1e-3, "{name} in micro-batches of {micro_batch}: {in_pieces:?}, not {scores:?}");
        }
    }
}

/// MixUp needs the whole batch, and the plan accounts for it.
#[test]
fn the_plan_reserves_memory_for_a_mixed_batch() {
    let ring = |data: &Dataset| {
        let plan = Trainer::new(model(), data).micro_batch(8).plan(&Fit::epochs(1)).unwrap();
        plan.pipeline_stages.iter().find(|(name, _)| name == "staging ring").unwrap().1
    };
    let one = digits(Split::Train).batch(256).prefetch(Prefetch::Batches(0));
    let row = Bytes(64 * 4 + 10 * 4);
    assert!(ring(&one) < row * 256);
    assert!(ring(&one.mix(Mix::up(0.4))) >= row * 256);
}

#[test]
fn unordered_batches_are_checkpointed_at_epoch_ends_only() {
    let steps_saved = |data: &Dataset| {
        let folder = tempfile::tempdir().unwrap();
        let checkpoints = Checkpoints::new(folder.path()).keep(50).every_steps(1);
        Trainer::new(model(), data).micro_batch(8).fit(Fit::epochs(2).checkpoints(checkpoints)).unwrap();
        let names = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut steps: Vec<u64> = names.map(|name| name[5..17].parse().unwrap()).collect();
        steps.sort_unstable();
        steps.dedup();
        steps
    };
    let data = digits(Split::Train).batch(32);
    assert!(steps_saved(&data).len() > 2);
    assert_eq!(steps_saved(&data.deterministic(false)), [10, 20]);
}
