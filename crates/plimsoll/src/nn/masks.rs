//! Masks that `mask_zero` of an embedding makes reach the layers after it.

use super::{Bidirectional, Dropout, Embedding, Functional, GlobalAveragePool, Gru, Layer, LayerNorm, MultiHeadAttention, SymbolicTensor};
use plimsoll_core::random::StepRandom;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, Graph, reference};

const TOKENS: [[f64; 4]; 3] = [[2.0, 1.0, 3.0, 0.0], [1.0, 0.0, 0.0, 0.0], [3.0, 2.0, 1.0, 1.0]];

/// The outputs of a model of tokens, and of a mask if it has one.
fn outputs(masked: bool, build: impl FnOnce(&mut Functional, SymbolicTensor, Option<SymbolicTensor>) -> SymbolicTensor) -> Vec<f64> {
    let mut net = Functional::new("masks");
    let x = net.input();
    let mask = masked.then(|| net.input_named("mask"));
    let y = build(&mut net, x, mask);
    let model = net.build(y);
    let mut g = Graph::new();
    let tokens = g.input("x", TensorType::new(DType::I32, Shape::batch_of([4])));
    let mut read = vec![tokens];
    read.extend(masked.then(|| g.input("mask", TensorType::new(DType::U8, Shape::batch_of([4])))));
    let lowered = model.lower(&mut g, &read, false).unwrap();
    let states: Vec<Vec<f64>> = g
        .states()
        .iter()
        .map(|state| (0..state.ty.shape.elements().factor()).map(|at| ((at * 37 + state.name.len()) % 17) as f64 / 17.0 - 0.4).collect())
        .collect();
    let tokens: Vec<f64> = TOKENS.concat();
    let mask: Vec<f64> = tokens.iter().map(|token| f64::from(u8::from(*token != 0.0))).collect();
    let inputs: Vec<Vec<f64>> = [Some(tokens), masked.then_some(mask)].into_iter().flatten().collect();
    let outcome = reference::run(&g, 3, &inputs, &states, &vec![1.0; g.scalars().len()], &StepRandom::default());
    outcome.value(lowered.outputs[0].value).to_vec()
}

/// The same layer with a mask of its own.
fn compare(own: impl Layer + 'static, with_mask: impl Layer + 'static) {
    let automatic = outputs(false, |net, x, _| {
        let embedded = net.add(Embedding::new(4, 6).mask_zero(), [x]);
        let dropped = net.add(Dropout::new(0.5), [embedded]);
        let normal = net.add(LayerNorm::new(), [dropped]);
        net.named("last", own, [normal])
    });
    let given = outputs(true, |net, x, mask| {
        let embedded = net.add(Embedding::new(4, 6), [x]);
        let dropped = net.add(Dropout::new(0.5), [embedded]);
        let normal = net.add(LayerNorm::new(), [dropped]);
        net.named("last", with_mask, [normal, mask.unwrap()])
    });
    assert_eq!(automatic, given);
    let without = outputs(false, |net, x, _| {
        let embedded = net.add(Embedding::new(4, 6), [x]);
        net.add(GlobalAveragePool, [embedded])
    });
    assert_ne!(automatic.first(), without.first());
}

#[test]
fn masks_reach_layers_through_those_between() {
    compare(Gru::new(5), Gru::new(5).masked());
    compare(Gru::new(5).sequence(), Gru::new(5).sequence().masked());
    compare(Bidirectional::new(Gru::new(5).sequence()), Bidirectional::new(Gru::new(5).sequence().masked()));
    compare(MultiHeadAttention::new(2), MultiHeadAttention::new(2).masked());
}

#[test]
fn a_mean_is_that_of_the_steps_that_are_no_padding() {
    let pool = |mask: bool| {
        outputs(false, |net, x, _| {
            let embedding = Embedding::new(4, 6);
            let embedded = net.add(if mask { embedding.mask_zero() } else { embedding }, [x]);
            net.add(GlobalAveragePool, [embedded])
        })
    };
    let vectors = outputs(false, |net, x, _| net.add(Embedding::new(4, 6), [x]));
    let step = |row: usize, step: usize, at: usize| vectors[(row * 4 + step) * 6 + at];
    let found = pool(true);
    for at in 0..6 {
        let expected = [(step(0, 0, at) + step(0, 1, at) + step(0, 2, at)) / 3.0, step(1, 0, at)];
        assert!((found[at] - expected[0]).abs() < 1e-9 && (found[6 + at] - expected[1]).abs() < 1e-9);
        assert!((found[12 + at] - pool(false)[12 + at]).abs() < 1e-9, "without padding it is the mean of all");
    }
}
