//! Training: it converges, micro-batches match the full batch, and the number of threads does not matter.

use plimsoll::nn::{Add, AveragePool2D, Conv2D, Dropout, Flatten, Functional, GlobalAveragePool, MaxPool2D, Model, Padding};
use plimsoll::prelude::*;
use std::path::PathBuf;

fn digits(split: Split, batch: usize) -> Dataset {
    let rows = match split {
        Split::Train => Dataset::digits(split).shuffle(Shuffle::seed(7)),
        Split::Test => Dataset::digits(split),
    };
    rows.map("x", [scale(1.0 / 16.0)]).batch(batch)
}

/// A unique file name.
fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("plimsoll-{}-{name}", std::process::id()))
}

/// All weights after training, as the bytes of their file.
fn weights(mut trainer: Trainer, epochs: u64, name: &str) -> Vec<u8> {
    trainer.fit(Fit::epochs(epochs)).unwrap();
    let path = temporary(name);
    trainer.save_weights(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    bytes
}

/// The numbers after the header of a weight file.
fn numbers(file: &[u8]) -> Vec<f32> {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

/// A branching model with dropout, pooling and residual connections, which could distinguish micro-batches from the
/// full batch.
fn branching() -> Model {
    let mut net = Functional::new("branching");
    let x = net.input();
    let stem = net.add(Conv2D::new(6, 3).padding(Padding::Same).relu(), [x]);
    let branch = net.add(Conv2D::new(6, 3).padding(Padding::Same).activation(Activation::Tanh), [stem]);
    let sum = net.add(Add, [stem, branch]);
    let pooled = net.add(MaxPool2D::new(2), [sum]);
    let averaged = net.add(AveragePool2D::new(2).stride(1, 1), [pooled]);
    let dropped = net.add(Dropout::new(0.3), [averaged]);
    let flat = net.add(Flatten, [dropped]);
    let hidden = net.add(Dense::new(24).activation(Activation::Gelu), [flat]);
    let last = net.add(Dense::new(10), [hidden]);
    net.build(last)
}

#[test]
fn a_small_network_classifies_the_digits() {
    let mut trainer = Trainer::new(zoo::digits_cnn(10), &digits(Split::Train, 32)).optimizer(Adam::new(2e-3));
    let history = trainer.fit(Fit::epochs(6).validate(&digits(Split::Test, 32))).unwrap();
    let held_out = history.last().unwrap().validation.clone().unwrap();
    assert!(held_out.accuracy.unwrap() >= 0.95, "{held_out:?}");
    assert_eq!(trainer.evaluate(&digits(Split::Test, 100)).unwrap().accuracy, held_out.accuracy, "evaluation is what validation saw");

    let predictions = trainer.predict(&digits(Split::Test, 32)).unwrap();
    let right = predictions.chunks_exact(10).map(|row| (0..10).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap());
    assert_eq!((right.count(), predictions.len()), (359, 3590), "one prediction for every row, the ragged end included");
}

#[test]
fn micro_batches_match_the_full_batch() {
    // 1,438 rows in batches of 50 end with a batch of 38; micro-batches of 16 end with 2 and 6 rows.
    let train = |micro_batch: Option<usize>, name: &str| {
        let trainer = Trainer::new(branching(), &digits(Split::Train, 50)).optimizer(Sgd::new(0.05).momentum(0.9)).seed(3);
        let trainer = match micro_batch {
            Some(rows) => trainer.micro_batch(rows),
            None => trainer,
        };
        numbers(&weights(trainer, 1, name))
    };
    let whole = train(None, "whole");
    for micro_batch in [1, 16, 25, 50] {
        let pieces = train(Some(micro_batch), &format!("pieces-{micro_batch}"));
        assert!(whole == pieces, "micro-batches of {micro_batch}: the weights differ");
    }
}

#[test]
fn a_micro_batch_of_the_full_batch_is_bit_identical() {
    let trainer = || Trainer::new(branching(), &digits(Split::Train, 50)).seed(3);
    assert!(weights(trainer(), 1, "plain") == weights(trainer().micro_batch(50), 1, "said"));
}

#[test]
fn weights_are_independent_of_the_number_of_threads() {
    let train = |threads: usize| {
        let trainer = Trainer::new(zoo::digits_cnn(10), &digits(Split::Train, 64)).threads(threads).seed(11);
        weights(trainer, 2, &format!("threads-{threads}"))
    };
    let one = train(1);
    assert!(one == train(2), "one and two threads differ");
    assert!(one == train(3), "one and three threads differ");
}

#[test]
fn the_seed_determines_the_weights() {
    let train = |seed: u64, name: &str| weights(Trainer::new(zoo::mlp(10), &digits(Split::Train, 64)).seed(seed), 1, name);
    assert!(train(1, "a") == train(1, "b"));
    assert!(train(1, "c") != train(2, "d"));
}

#[test]
fn every_loss_and_optimizer_trains() {
    let one_hot_digits = || Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]).batch(32);
    let head = |activation| Sequential::new().add(Flatten).add(Dense::new(32).relu()).add(Dense::new(10).activation(activation));
    let first_and_last = |trainer: Trainer| {
        let mut trainer = trainer;
        let history = trainer.fit(Fit::epochs(3)).unwrap();
        (history.epochs[0].training.loss, history.epochs[2].training.loss)
    };
    let trainers = [
        ("mse, sgd", Trainer::new(head(Activation::Linear), &one_hot_digits()).loss(Loss::MeanSquaredError).optimizer(Sgd::new(0.1))),
        (
            "dense cross-entropy, momentum",
            Trainer::new(head(Activation::Softmax), &one_hot_digits()).optimizer(Sgd::new(0.02).momentum(0.9)),
        ),
        ("binary, nesterov", {
            let data = one_hot_digits();
            let optimizer = Sgd::new(0.05).momentum(0.9).nesterov(true);
            Trainer::new(head(Activation::Sigmoid), &data).loss(Loss::BinaryCrossEntropy).optimizer(optimizer)
        }),
        ("sparse cross-entropy, adam", Trainer::new(head(Activation::Linear), &digits(Split::Train, 32)).optimizer(Adam::default())),
        (
            "sparse cross-entropy after softmax, adamw",
            Trainer::new(head(Activation::Softmax), &digits(Split::Train, 32)).optimizer(AdamW::default()),
        ),
    ];
    for (name, trainer) in trainers {
        let (first, last) = first_and_last(trainer);
        assert!(last < 0.8 * first, "{name}: {first} → {last}");
    }
}

#[test]
fn a_final_softmax_changes_predictions_but_not_training() {
    let train = |activation: Activation, name: &str| {
        let model = Sequential::new().add(Flatten).add(Dense::new(10).activation(activation));
        weights(Trainer::new(model, &digits(Split::Train, 32)).seed(5), 1, name)
    };
    assert!(train(Activation::Linear, "scores") == train(Activation::Softmax, "shares"));

    let model = Sequential::new().add(Flatten).add(Dense::new(10).activation(Activation::Softmax));
    let mut trainer = Trainer::new(model, &digits(Split::Train, 32));
    trainer
        .predict_with(&digits(Split::Test, 32), |piece| {
            assert!(piece.values.chunks_exact(10).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5));
        })
        .unwrap();
}

#[test]
fn weights_round_trip_through_a_file() {
    let path = temporary("saved");
    let model = || Sequential::new().add(GlobalAveragePool).add(Dense::new(10));
    let mut trained = Trainer::new(model(), &digits(Split::Train, 32)).seed(1);
    trained.fit(Fit::epochs(1)).unwrap();
    trained.save_weights(&path).unwrap();
    let mut fresh = Trainer::new(model(), &digits(Split::Train, 32)).seed(2);
    fresh.load_weights(&path).unwrap();
    assert_eq!(fresh.predict(&digits(Split::Test, 32)).unwrap(), trained.predict(&digits(Split::Test, 32)).unwrap());

    let mut other = Trainer::new(Sequential::new().add(GlobalAveragePool).add(Dense::new(9)), &digits(Split::Train, 32));
    let error = other.load_weights(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("does not have the tensors of this model: `dense/kernel` is F32 [1, 10] in the file and F32 [1, 9] in the model"),
        "{error}"
    );
    std::fs::write(&path, b"not weights at all").unwrap();
    assert!(other.load_weights(&path).unwrap_err().to_string().contains("not a safetensors file"));
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_second_fit_continues_training() {
    let mut trainer = Trainer::new(zoo::mlp(10), &digits(Split::Train, 32));
    let first = trainer.fit(Fit::epochs(1)).unwrap();
    let second = trainer.fit(Fit::epochs(1).validate(&digits(Split::Test, 32))).unwrap();
    assert_eq!((first.steps, second.steps, second.epochs[0].epoch), (45, 90, 2));
    assert!(second.epochs[0].training.loss < first.epochs[0].training.loss);
}

#[test]
fn evaluation_data_of_another_schema_is_refused() {
    let mut trainer = Trainer::new(zoo::mlp(10), &digits(Split::Train, 32));
    trainer.fit(Fit::epochs(1)).unwrap();
    let wider = Dataset::random(RandomSpec::new(5).floats("x", [9, 9, 1]).labels("y", 10)).unwrap().batch(5);
    let error = trainer.evaluate(&wider).unwrap_err().to_string();
    assert_eq!(error, "the model was trained on the column x: f32[8, 8, 1], but this data has x: f32[9, 9, 1] in its place");

    let unlabelled = Dataset::random(RandomSpec::new(5).floats("x", [8, 8, 1])).unwrap().batch(5);
    assert_eq!(trainer.predict(&unlabelled).unwrap().len(), 50, "predictions need no labels");
    let error = trainer.evaluate(&unlabelled).unwrap_err().to_string();
    assert_eq!(error, "the model was trained on the column y: i32[], but this data has only x: f32[8, 8, 1]");
}

#[test]
fn accuracy_of_sequences_counts_every_position() {
    // Three predictions per row; an untrained model is right by chance, and the accuracy never exceeds 1.
    let data = Dataset::random(RandomSpec::new(64).floats("x", [3, 5]).bytes("y", [3])).unwrap().batch(16);
    let model = || Sequential::new().add(Dense::new(256));
    let mut trainer = Trainer::new(model(), &data).optimizer(Sgd::new(0.0));
    let epoch = trainer.fit(Fit::epochs(1)).unwrap().epochs[0].clone();
    assert!((0.0..=1.0).contains(&epoch.training.accuracy.unwrap()), "{epoch:?}");
    assert!((epoch.training.loss - 256f64.ln()).abs() < 1.0, "the mean over the answers, as for a single one: {epoch:?}");

    let one_label = Dataset::random(RandomSpec::new(64).floats("x", [3, 5]).labels("y", 256)).unwrap().batch(16);
    let error = Trainer::new(model(), &one_label).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert_eq!(
        error,
        "layer `loss`: class IDs i32[B] do not match 3B predictions; there must be one ID for each. The output of the model has shape \
         [3, 256] for each row; for one prediction per row, add `flatten` or a global pooling layer before the last dense layer"
    );

    // The dense layer of a classifier of images is applied to every pixel without `flatten`.
    let images = Dataset::random(RandomSpec::new(64).floats("x", [8, 8, 1]).labels("y", 10)).unwrap().batch(16);
    let error = Trainer::new(Sequential::new().add(Dense::new(10)), &images).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert!(error.contains("do not match 64B predictions") && error.contains("has shape [8, 8, 10] for each row"), "{error}");
    let floats = Dataset::random(RandomSpec::new(64).floats("x", [5]).floats("y", [])).unwrap().batch(16);
    let error = Trainer::new(Sequential::new().add(Dense::new(3)), &floats).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert!(error.ends_with("nor a probability for each of 3 classes; convert class IDs to integers, such as i32"), "{error}");
    // More labels than predictions need no other layer.
    let many = Dataset::random(RandomSpec::new(64).floats("x", [5]).bytes("y", [3])).unwrap().batch(16);
    let error = Trainer::new(Sequential::new().add(Dense::new(256)), &many).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert_eq!(error, "layer `loss`: class IDs u8[B, 3] do not match B predictions; there must be one ID for each");
}

#[test]
fn empty_validation_data_is_refused() {
    let mut trainer = Trainer::new(zoo::mlp(10), &digits(Split::Train, 32));
    let error = trainer.evaluate(&Dataset::digits(Split::Test).take(0).map("x", [scale(1.0)]).batch(4)).unwrap_err().to_string();
    assert!(error.starts_with("there is nothing to evaluate"), "{error}");
}
