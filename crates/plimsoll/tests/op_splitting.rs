//! Op splitting: large layers computed in slices train bit-identically, for a language model and a convolutional
//! network.

use plimsoll::nn::{Activation, BatchNorm, Conv2D, Dense, Flatten, MaxPool2D, Padding, Sequential};
use plimsoll::optim::Adam;
use plimsoll::zoo::{self, Options};
use plimsoll::{Allow, Budget, Bytes, Dataset, Fit, Loss, Permission, RandomSpec, RunPlan, Trainer};

/// A small GPT whose vocabulary dominates the memory.
fn trainer(allow: Allow, line: Option<Bytes>) -> Trainer {
    let options = Options { width: Some(0.5), context: Some(512), vocabulary: Some(8_000), ..Options::default() };
    let network = zoo::find("char-gpt").unwrap().build(&options).unwrap();
    // Three batches, the last one row shorter.
    let data = network.synthetic(5).unwrap().batch(2);
    let budget = Budget { host: line, ..Budget::default() };
    Trainer::new(network.model.clone(), &data).loss(network.loss).optimizer(Adam::new(1e-3)).seed(5).threads(2).budget(budget).allow(allow)
}

fn train_run(mut trainer: Trainer, name: &str) -> (RunPlan, Vec<f64>, Vec<u8>) {
    let plan = trainer.plan(&Fit::epochs(1)).unwrap();
    let history = trainer.fit(Fit::epochs(1)).unwrap();
    let losses = history.epochs.iter().map(|epoch| epoch.training.loss).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    trainer.save_weights(&path).unwrap();
    (plan, losses, std::fs::read(path).unwrap())
}

#[test]
fn splitting_a_language_model_head_is_bit_identical() {
    let none = Allow::of([]);
    let (whole, losses, weights) = train_run(trainer(none, None), "whole");
    assert!(whole.split.is_none() && whole.used.is_empty());
    // 16 MB of logits for each of two rows, of which half are enough at a time.
    let line = Bytes(whole.minimum.0 - (8 << 20));
    let (cut, cut_losses, cut_weights) = train_run(trainer(Allow::of([Permission::Split]), Some(line)), "cut");
    let split = cut.split.as_ref().expect("it was cut");
    assert_eq!((&cut.used[..], split.pieces, cut.results_unchanged), (&[Permission::Split][..], 2, true));
    assert!(split.saved >= Bytes(8 << 20) && split.layers.iter().any(|layer| layer == "loss"), "{split:?}");
    assert!(cut.total() <= line && cut.to_string().contains("into 2 slices of their rows"), "{cut}");
    assert_eq!(losses, cut_losses);
    assert!(weights == cut_weights, "the weights differ");
}

/// Images through a first convolution that dominates the memory, with batch statistics that rule out micro-batches.
fn convolutions(allow: Allow, line: Option<Bytes>) -> Trainer {
    let model = Sequential::new()
        .named("first", Conv2D::new(16, 3).padding(Padding::Same).bias(false))
        .named("norm", BatchNorm::new())
        .named("relu", Activation::Relu)
        .named("pool", MaxPool2D::new(4))
        .named("second", Conv2D::new(8, 3).relu())
        .add(Flatten)
        .named("scores", Dense::new(10));
    // Two batches, the last with a third of the rows.
    let data = Dataset::random(RandomSpec::new(32).floats("x", [64, 64, 3]).labels("y", 10)).unwrap().batch(24);
    let budget = Budget { host: line, ..Budget::default() };
    let trainer = Trainer::new(model, &data).loss(Loss::SoftmaxCrossEntropy).optimizer(Adam::new(1e-3)).seed(5).threads(2);
    trainer.budget(budget).allow(allow)
}

#[test]
fn splitting_the_first_convolution_is_bit_identical() {
    let none = Allow::of([]);
    let (whole, losses, weights) = train_run(convolutions(none, None), "whole");
    assert!(whole.split.is_none() && whole.used.is_empty());
    let others = Allow::of([Permission::Microbatch]);
    // 6 MB of feature maps, their activations and gradients, of which an eighth is live at a time.
    let line = Bytes(whole.minimum.0 - (8 << 20));
    let refused = convolutions(others, Some(line)).plan(&Fit::epochs(1)).unwrap_err().to_string();
    assert!(refused.contains("does not fit"), "micro-batches would change the statistics: {refused}");
    let (cut, cut_losses, cut_weights) = train_run(convolutions(Allow::of([Permission::Split]), Some(line)), "cut");
    let split = cut.split.as_ref().expect("it was cut");
    assert_eq!((&cut.used[..], cut.results_unchanged), (&[Permission::Split][..], true));
    assert!(split.pieces > 1 && split.layers.iter().any(|layer| layer == "norm"), "{split:?}");
    assert!(cut.total() <= line, "{cut}");
    assert_eq!(losses, cut_losses);
    assert!(weights == cut_weights, "the weights differ");
}
