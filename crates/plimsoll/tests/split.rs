//! Layers in pieces of their rows: a language model whose scores do not fit learns the same bits as one whose scores do.

use plimsoll::optim::Adam;
use plimsoll::zoo::{self, Options};
use plimsoll::{Allow, Budget, Bytes, Fit, Permission, RunPlan, Trainer};

/// A small GPT with a vocabulary that outweighs all else.
fn trainer(allow: Allow, line: Option<Bytes>) -> Trainer {
    let options = Options { width: Some(0.5), context: Some(512), vocabulary: Some(8_000), ..Options::default() };
    let network = zoo::find("char-gpt").unwrap().build(&options).unwrap();
    // Three batches, the last with a row less.
    let data = network.synthetic(5).unwrap().batch(2);
    let budget = Budget { host: line, ..Budget::default() };
    Trainer::new(network.model.clone(), &data).loss(network.loss).optimizer(Adam::new(1e-3)).seed(5).threads(2).budget(budget).allow(allow)
}

fn learnt(mut trainer: Trainer, name: &str) -> (RunPlan, Vec<f64>, Vec<u8>) {
    let plan = trainer.plan().unwrap();
    let history = trainer.fit(Fit::epochs(1)).unwrap();
    let losses = history.epochs.iter().map(|epoch| epoch.training.loss).collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    trainer.save_weights(&path).unwrap();
    (plan, losses, std::fs::read(path).unwrap())
}

#[test]
fn a_language_model_with_its_head_in_pieces_learns_the_same_bits() {
    let none = Allow::of([]);
    let (whole, losses, weights) = learnt(trainer(none, None), "whole");
    assert!(whole.split.is_none() && whole.used.is_empty());
    // Sixteen megabytes of scores for each row of two, of which half are enough at a time.
    let line = Bytes(whole.least.0 - (8 << 20));
    let (cut, cut_losses, cut_weights) = learnt(trainer(Allow::of([Permission::Split]), Some(line)), "cut");
    let split = cut.split.as_ref().expect("it was cut");
    assert_eq!((&cut.used[..], split.pieces, cut.results_unchanged), (&[Permission::Split][..], 2, true));
    assert!(split.saved >= Bytes(8 << 20) && split.layers.iter().any(|layer| layer == "loss"), "{split:?}");
    assert!(cut.total() <= line && cut.to_string().contains("in 2 pieces of their rows"), "{cut}");
    assert_eq!(losses, cut_losses);
    assert!(weights == cut_weights, "the weights differ");
}
