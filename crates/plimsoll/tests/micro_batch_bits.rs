//! Micro-batches of any size, at any number of threads, train the same weights as whole batches, bit for bit.

use plimsoll::nn::{
    Add, Concatenate, Conv2D, Conv2DTranspose, DepthwiseConv2D, Dropout, Embedding, Flatten, Functional, GlobalAveragePool, Gru, LayerNorm,
    Lstm, MaxPool2D, Model, MultiHeadAttention, Padding, PositionEmbedding, Regularizer, Reshape,
};
use plimsoll::prelude::*;
use plimsoll_data::Mix;

/// 30 rows in batches of 12: the last batch has 6.
const ROWS: u64 = 30;
const BATCH: usize = 12;

/// Sizes that divide the batch and sizes that do not, each with its number of threads.
const CASES: [(usize, usize); 11] = [(12, 1), (12, 3), (12, 7), (1, 2), (2, 2), (3, 2), (5, 2), (6, 2), (5, 1), (5, 3), (5, 7)];

/// The bits of the weights after an epoch of three steps.
fn bits(trainer: Trainer, (micro_batch, threads): (usize, usize)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let mut trainer = trainer.optimizer(Sgd::new(0.05).momentum(0.9)).seed(3).micro_batch(micro_batch).threads(threads);
    trainer.fit(Fit::epochs(1)).unwrap();
    trainer.save_weights(&path).unwrap();
    std::fs::read(&path).unwrap()
}

fn check(name: &str, trainer: impl Fn() -> Trainer) {
    let whole = bits(trainer(), (BATCH, 2));
    for case in CASES {
        let pieces = bits(trainer(), case);
        let different = whole.chunks(4).zip(pieces.chunks(4)).filter(|(a, b)| a != b).count();
        assert_eq!(different, 0, "{name} in micro-batches of {} on {} threads: weights differ", case.0, case.1);
    }
}

fn images(extent: usize, channels: usize, classes: u32) -> Dataset {
    Dataset::random(RandomSpec::new(ROWS).seed(4).floats("x", [extent, extent, channels]).labels("y", classes)).unwrap().batch(BATCH)
}

#[test]
fn a_multilayer_perceptron_with_dropout_and_regularization() {
    let data = || Dataset::random(RandomSpec::new(ROWS).seed(4).floats("x", [37]).floats("y", [1])).unwrap().batch(BATCH);
    let model = || -> Model {
        let hidden = Dense::new(70).relu().regularizer(Regularizer { l1: 0.0, l2: 1e-2 });
        Sequential::new().add(hidden).add(Dropout::new(0.3)).add(Dense::new(5).activation(Activation::Tanh)).add(Dense::new(1)).into()
    };
    check("mlp", || Trainer::new(model(), &data()).loss(Loss::MeanSquaredError));
}

/// Large enough for several tasks, shared panels and blocks of columns.
#[test]
fn wide_layers() {
    let data = || Dataset::random(RandomSpec::new(ROWS).seed(4).floats("x", [1100]).labels("y", 3)).unwrap().batch(BATCH);
    check("wide", || Trainer::new(Sequential::new().add(Dense::new(700).relu()).add(Dense::new(3)), &data()));
}

#[test]
fn a_convolutional_network() {
    let model = || -> Model {
        Sequential::new()
            .add(Conv2D::new(6, 3).padding(Padding::Same).relu())
            .add(DepthwiseConv2D::new(3).stride(2, 2))
            .add(Conv2D::new(12, 1).relu())
            .add(DepthwiseConv2D::new(3).padding(Padding::Same))
            .add(Conv2D::new(9, 3).stride(2, 2))
            .add(GlobalAveragePool)
            .add(Dense::new(4))
            .into()
    };
    check("large images", || Trainer::new(model(), &images(25, 3, 4)));
    let small = || -> Model {
        let body = Sequential::new().add(Conv2D::new(8, 3).relu()).add(MaxPool2D::new(2)).add(DepthwiseConv2D::new(2));
        body.add(Conv2D::new(50, 2)).add(Flatten).add(Dense::new(4)).into()
    };
    check("small images", || Trainer::new(small(), &images(10, 2, 4)));
}

/// An encoder and a decoder with a skip connection.
#[test]
fn a_u_net() {
    let model = || {
        let mut net = Functional::new("u_net");
        let x = net.input();
        let wide = net.add(Conv2D::new(5, 1).relu(), [x]);
        let down = net.add(Conv2D::new(8, 3).padding(Padding::Same).stride(2, 2).relu(), [wide]);
        let up = net.add(Conv2DTranspose::new(5, 2, 2), [down]);
        let both = net.add(Concatenate, [wide, up]);
        let last = net.add(Conv2D::new(1, 1), [both]);
        net.build(last)
    };
    let data = || {
        let spec = RandomSpec::new(ROWS).seed(4).floats("x", [24, 24, 2]).floats("y", [24, 24, 1]);
        Dataset::random(spec).unwrap().batch(BATCH)
    };
    check("u-net", || Trainer::new(model(), &data()).loss(Loss::MeanSquaredError));
}

#[test]
fn recurrent_networks() {
    let data = || Dataset::random(RandomSpec::new(ROWS).seed(4).floats("x", [9, 5]).floats("y", [2])).unwrap().batch(BATCH);
    let model = || -> Model { Sequential::new().add(Lstm::new(18).sequence()).add(Gru::new(7)).add(Dense::new(2)).into() };
    check("lstm and gru", || Trainer::new(model(), &data()).loss(Loss::MeanSquaredError));
}

/// Tokens that are looked up and scored with the same weights: two sums over rows.
#[test]
fn a_transformer_with_tied_embeddings() {
    let model = || {
        let mut net = Functional::new("transformer");
        let tokens = net.input();
        let vectors = net.named("tokens", Embedding::new(11, 16), [tokens]);
        let placed = net.add(PositionEmbedding::new(14), [vectors]);
        let normed = net.add(LayerNorm::new(), [placed]);
        let attended = net.add(MultiHeadAttention::new(2).causal().dropout(0.2), [normed]);
        let sum = net.add(Add, [placed, attended]);
        let fed = net.add(Dense::new(16).activation(Activation::Gelu), [sum]);
        let scores = net.tied(vectors, Embedding::new(11, 16).scores(), [fed]);
        net.build(scores)
    };
    let data = || Dataset::random(RandomSpec::new(ROWS).seed(4).classes("x", vec![14], 11).classes("y", [14], 11)).unwrap().batch(BATCH);
    check("transformer", || Trainer::new(model(), &data()));
    // The divisor of the loss, the number of labels that count, is known only after all micro-batches.
    check("ignored labels", || Trainer::new(model(), &data()).loss(Loss::SoftmaxCrossEntropy.ignore_class(3)));
}

/// Optimizers that see all gradients, 16-bit activations, and whole batches that are mixed.
#[test]
fn clipping_mixed_precision_and_mixup() {
    let model = || -> Model { Sequential::new().add(Conv2D::new(6, 3).relu()).add(Reshape::new([36 * 6])).add(Dense::new(4)).into() };
    check("clipped", || Trainer::new(model(), &images(8, 1, 4)).clip(Clip::GlobalNorm(0.1)));
    check("bf16", || Trainer::new(model(), &images(8, 1, 4)).precision(Precision::MixedBf16));
    check("f16", || Trainer::new(model(), &images(8, 1, 4)).precision(Precision::MixedF16));
    let mixed = || {
        let spec = RandomSpec::new(ROWS).seed(4).floats("x", [8, 8, 1]).labels("y", 4);
        Dataset::random(spec).unwrap().map("y", [one_hot(4)]).shuffle(Shuffle::seed(2)).batch(BATCH).mix(Mix::up(0.4).seed(2))
    };
    check("mixup", || Trainer::new(model(), &mixed()));
}
