//! Layers, losses, metrics and optimizers from closures over eager tensors train as the built-in ones do.

use plimsoll::eager::{CustomLayer, CustomOptimizer, LayerCall, Result, Tensor, UpdateCall, custom_gradient, grad, stop_gradient};
use plimsoll::nn::{Initializer, Layer, Model};
use plimsoll::prelude::*;
use plimsoll::{EarlyStopping, Scores};
use std::collections::BTreeMap;

const ROWS: u64 = 30;
/// The last batch has 6 rows.
const BATCH: usize = 12;

fn values() -> Dataset {
    Dataset::random(RandomSpec::new(ROWS).seed(4).floats("x", [8]).floats("y", [4])).unwrap().batch(BATCH)
}

fn classes() -> Dataset {
    Dataset::random(RandomSpec::new(ROWS).seed(5).floats("x", [8]).labels("y", 4)).unwrap().batch(BATCH)
}

fn model() -> Model {
    Sequential::new().add(Dense::new(16).relu()).add(Dense::new(4)).into()
}

/// The weights by name.
type Weights = BTreeMap<String, Vec<f32>>;

/// The scores of the last epoch and the weights after three epochs.
fn trained(trainer: Trainer, micro_batch: usize) -> (Scores, Weights) {
    let mut trainer = trainer.seed(3).threads(2).micro_batch(micro_batch);
    let scores = trainer.fit(Fit::epochs(3)).unwrap().last().unwrap().training.clone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    trainer.save_weights(&path).unwrap();
    (scores, weights(&std::fs::read(&path).unwrap()))
}

/// The tensors of a safetensors file.
fn weights(file: &[u8]) -> Weights {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let (header, data) = file[8..].split_at(header);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header).unwrap();
    let tensors = header.iter().filter(|(name, _)| *name != "__metadata__").map(|(name, tensor)| {
        let offset = |i: usize| tensor["data_offsets"][i].as_u64().unwrap() as usize;
        let numbers = data[offset(0)..offset(1)].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        (name.clone(), numbers.collect())
    });
    tensors.collect()
}

#[track_caller]
fn assert_close(a: &Weights, b: &Weights, tolerance: f32) {
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (name, numbers) in a {
        for (x, y) in numbers.iter().zip(&b[name]) {
            assert!((x - y).abs() <= tolerance * x.abs().max(1.0), "{name}: {x} and {y}");
        }
    }
}

fn squared(prediction: &Tensor, labels: &Tensor) -> Result<Tensor> {
    prediction.sub(labels)?.square()?.mean_axes(&[1])
}

fn absolute(prediction: &Tensor, labels: &Tensor) -> Result<Tensor> {
    prediction.sub(labels)?.abs()?.mean_axes(&[1])
}

/// Whole batches, micro-batches that divide them, and others.
const MICRO_BATCHES: [usize; 3] = [BATCH, 4, 5];

#[test]
fn a_custom_loss_and_metric_match_the_built_in_ones() {
    for micro_batch in MICRO_BATCHES {
        let built_in = Trainer::new(model(), &values()).loss(Loss::MeanSquaredError).metrics([Metric::MeanAbsoluteError]);
        let (expected, expected_weights) = trained(built_in, micro_batch);
        let custom =
            Trainer::new(model(), &values()).loss(Loss::custom("squared", squared)).metrics([Metric::custom("distance", absolute)]);
        let (scores, weights) = trained(custom, micro_batch);
        assert!((scores.loss - expected.loss).abs() < 1e-6, "{} and {}", scores.loss, expected.loss);
        assert!((scores.get("distance").unwrap() - expected.get("mae").unwrap()).abs() < 1e-6);
        // Products with powers of two are exact, so that the order of the factors does not matter.
        assert_eq!(weights, expected_weights, "micro-batches of {micro_batch}");
    }
}

#[test]
fn a_custom_cross_entropy_matches_the_built_in_one_beside_built_in_metrics() {
    let metrics = || [Metric::Accuracy, Metric::custom("entropy", |p, y| p.cross_entropy_rows(y))];
    let (expected, expected_weights) = trained(Trainer::new(model(), &classes()).metrics([Metric::Accuracy]), BATCH);
    for micro_batch in MICRO_BATCHES {
        let custom = Trainer::new(model(), &classes()).loss(Loss::custom("entropy", |p, y| p.cross_entropy_rows(y))).metrics(metrics());
        let (scores, weights) = trained(custom, micro_batch);
        assert!((scores.loss - expected.loss).abs() < 1e-5 && scores.accuracy == expected.accuracy, "{scores:?} and {expected:?}");
        assert!((scores.get("entropy").unwrap() - scores.loss).abs() < 1e-6);
        assert_close(&weights, &expected_weights, 1e-4);
    }
}

/// A fully connected layer, also on tensors with values.
fn dense(x: &Tensor, w: &[Tensor]) -> Result<Tensor> {
    x.matmul(&w[0])?.add(&w[1])
}

fn custom_dense(units: usize, relu: bool) -> impl Layer + 'static {
    CustomLayer::new("dense", move |call: &LayerCall<'_>| {
        let y = dense(&call.inputs[0], call.weights)?;
        if relu { y.relu() } else { Ok(y) }
    })
    .weight("kernel", move |inputs| vec![inputs[0][1], units], Initializer::GlorotUniform)
    .weight("bias", move |_| vec![units], Initializer::Zeros)
}

#[test]
fn a_custom_layer_trains_the_bits_of_the_built_in_one() {
    let custom = || -> Model { Sequential::new().add(custom_dense(16, true)).add(custom_dense(4, false)).into() };
    for micro_batch in MICRO_BATCHES {
        let expected = trained(Trainer::new(model(), &classes()), micro_batch);
        assert_eq!(trained(Trainer::new(custom(), &classes()), micro_batch), expected);
    }
    let x = Tensor::from_slice(&[1.0, 2.0], [1, 2]).unwrap();
    let y = dense(&x, &[Tensor::ones([2, 1]).unwrap(), Tensor::ones([1]).unwrap()]).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap(), [4.0]);
}

/// Dropout and gradients that stop work inside of layers; predictions are not dropped out.
#[test]
fn a_custom_layer_knows_whether_it_is_trained() {
    let noisy = || {
        CustomLayer::new(
            "noisy",
            |call: &LayerCall<'_>| if call.training { call.inputs[0].dropout(0.5) } else { Ok(call.inputs[0].clone()) },
        )
    };
    let stopped = CustomLayer::new("stopped", |call: &LayerCall<'_>| Ok(stop_gradient(&call.inputs[0])));
    let initial = trained_for(Sequential::new().add(Dense::new(6)).add(noisy()).add(stopped).add(Dense::new(4)).into(), 0);
    let stopped = CustomLayer::new("stopped", |call: &LayerCall<'_>| Ok(stop_gradient(&call.inputs[0])));
    let after = trained_for(Sequential::new().add(Dense::new(6)).add(noisy()).add(stopped).add(Dense::new(4)).into(), 1);
    for (name, numbers) in &initial {
        assert_eq!(after[name] == *numbers, name.starts_with("dense/"), "only what is behind the constant is trained: {name}");
    }
}

fn trained_for(model: Model, epochs: u64) -> Weights {
    let mut trainer = Trainer::new(model, &classes()).seed(1).threads(1);
    trainer.fit(Fit::epochs(epochs)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    trainer.save_weights(&path).unwrap();
    weights(&std::fs::read(&path).unwrap())
}

#[test]
fn custom_optimizers_match_the_built_in_ones() {
    let momentum = |call: &UpdateCall<'_>| {
        let velocity = call.slots[0].mul_scalar(0.9)?.sub(&call.learning_rate.mul(call.gradient)?)?;
        Ok(vec![call.parameter.add(&velocity)?, velocity])
    };
    let expected = trained(Trainer::new(model(), &classes()).optimizer(Sgd::new(0.05).momentum(0.9)), 5);
    let custom = CustomOptimizer::new("momentum", 0.05, momentum).slot("velocity", 0.0);
    assert_eq!(trained(Trainer::new(model(), &classes()).optimizer(custom), 5), expected);

    let adam = |call: &UpdateCall<'_>| {
        let mean = call.slots[0].add(&call.gradient.sub(&call.slots[0])?.mul_scalar(1.0 - 0.9)?)?;
        let square = call.slots[1].add(&call.gradient.mul(call.gradient)?.sub(&call.slots[1])?.mul_scalar(1.0 - 0.999)?)?;
        // 1 - βᵗ, from the number of the step.
        let grown = |beta: f32| call.step.mul_scalar(beta.ln())?.exp()?.scalar_sub(1.0);
        let rate = call.learning_rate.mul(&grown(0.999)?.sqrt()?)?.div(&grown(0.9)?)?;
        let change = mean.mul(&rate)?.div(&square.sqrt()?.add_scalar(1e-7)?)?;
        Ok(vec![call.parameter.sub(&change)?, mean, square])
    };
    let (_, expected) = trained(Trainer::new(model(), &classes()).optimizer(Adam::new(0.01)), BATCH);
    let custom = CustomOptimizer::new("my_adam", 0.01, adam).slot("mean", 0.0).slot("square", 0.0);
    let (_, weights) = trained(Trainer::new(model(), &classes()).optimizer(custom), BATCH);
    assert_close(&weights, &expected, 1e-4);
}

/// After one step of gradient descent from zero with rate 1, weights are the negative gradient.
#[test]
fn the_gradients_of_custom_losses_match_finite_differences_and_tapes() {
    fn huber_like(prediction: &Tensor, labels: &Tensor) -> Result<Tensor> {
        prediction.sub(labels)?.square()?.add_scalar(1.0)?.sqrt()?.sub_scalar(1.0)?.sum_axes(&[1])
    }
    let x: Vec<f32> = (0..6 * 3).map(|i| ((i * 37 + 5) % 23) as f32 / 11.0 - 0.97).collect();
    let y: Vec<f32> = (0..6 * 2).map(|i| ((i * 29 + 3) % 19) as f32 / 9.0 - 1.1).collect();
    let columns = [("x", plimsoll::Tensor::f32([6, 3], x.clone()).unwrap()), ("y", plimsoll::Tensor::f32([6, 2], y.clone()).unwrap())];
    let data = Dataset::from_tensor_slices(columns).unwrap().batch(6);
    let model: Model = Sequential::new().add(Dense::new(2).bias(false).initializer(Initializer::Zeros)).into();
    for micro_batch in [6, 4] {
        let mut trainer = Trainer::new(model.clone(), &data).loss(Loss::custom("huber_like", huber_like)).optimizer(Sgd::new(1.0));
        trainer = trainer.threads(1).micro_batch(micro_batch);
        trainer.fit(Fit::epochs(1)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        trainer.save_weights(&path).unwrap();
        let moved = weights(&std::fs::read(&path).unwrap()).into_values().next().unwrap();

        let (x, y) = (Tensor::from_slice(&x, [6, 3]).unwrap(), Tensor::from_slice(&y, [6, 2]).unwrap());
        let loss = |w: &[Tensor]| huber_like(&x.matmul(&w[0])?, &y)?.mean();
        let taped = grad(loss)(&[Tensor::zeros([3, 2]).unwrap()]).unwrap()[0].to_vec::<f32>().unwrap();
        for i in 0..6 {
            let at = |offset: f32| {
                let mut w = [0.0f32; 6];
                w[i] = offset;
                loss(&[Tensor::from_slice(&w, [3, 2]).unwrap()]).unwrap().item::<f32>().unwrap()
            };
            let slope = (at(1e-2) - at(-1e-2)) / 2e-2;
            assert!((moved[i] + slope).abs() < 1e-3, "element {i}: {} and {slope}", -moved[i]);
            assert!((moved[i] + taped[i]).abs() < 1e-6, "element {i}: {} and {}", -moved[i], taped[i]);
        }
    }
}

#[test]
fn closures_that_a_step_cannot_contain_are_refused() {
    let refused = |trainer: Trainer| trainer.plan(&Fit::epochs(1)).expect_err("it is refused").to_string();
    let loss = |f: fn(&Tensor, &Tensor) -> Result<Tensor>| refused(Trainer::new(model(), &values()).loss(Loss::custom("mine", f)));
    insta::assert_snapshot!(loss(|p, y| p.sub(y)?.square()?.sum()), @"layer `loss/mine`: sum reduces the rows of a batch to one value, which would depend on the size of micro-batches; compute one value per row");
    insta::assert_snapshot!(loss(|p, y| p.sub(y)), @"layer `loss`: `mine` returns one number per row, of shape [batch], but returned f32[B, 4]");
    insta::assert_snapshot!(loss(|p, y| p.sub(y)?.mean()), @"layer `loss/mine/mean`: the mean along axes [0, 1] of [B, 4] depends on the batch; leave axis 0 out");
    insta::assert_snapshot!(loss(|p, _| p.to_vec::<f32>().map(|_| p.clone())), @"layer `loss/mine`: to_vec: while a closure is traced, tensors have shapes but no values; compute with tensors, or do this outside of the closure");
    insta::assert_snapshot!(
        loss(|p, y| Ok(custom_gradient(&[p], |p| Ok(vec![p[0].sub(y)?.sum_axes(&[1])?]), |dy| Ok(dy.to_vec()))?.swap_remove(0))), @"layer `loss/mine`: custom_gradient: a model differentiates its graph, which has the gradients of ops only; write it with ops and `stop_gradient`");
    let outside = Tensor::ones([8]).unwrap();
    let captures = CustomLayer::new("shift", move |call: &LayerCall<'_>| call.inputs[0].add(&outside));
    let text = refused(Trainer::new(Sequential::new().add(captures), &values()).loss(Loss::MeanSquaredError));
    assert!(text.contains("the closure uses a tensor f32[8] made at") && text.contains("declare it as a weight"), "{text}");
    let optimizer = CustomOptimizer::new("mine", 0.1, |call: &UpdateCall<'_>| Ok(vec![call.parameter.clone()])).slot("velocity", 0.0);
    insta::assert_snapshot!(refused(Trainer::new(model(), &classes()).optimizer(optimizer)), @"layer `dense/kernel`: mine: the closure returned 1 tensors instead of the parameter and 1 slots");
    let twice = || Metric::custom("twice", absolute);
    insta::assert_snapshot!(refused(Trainer::new(model(), &values()).loss(Loss::MeanSquaredError).metrics([twice(), twice()])), @"layer `metrics`: two metrics are called `twice`; names should be unique");
}

/// A falling metric is an improvement if its name says so.
#[test]
fn callbacks_take_a_custom_metric_by_its_name() {
    for (name, epochs) in [("fit", 2), ("fit_error", 6)] {
        let metrics = [Metric::custom(name, squared)];
        let mut trainer = Trainer::new(model(), &values()).loss(Loss::MeanSquaredError).metrics(metrics).optimizer(Sgd::new(0.05));
        let history = trainer.fit(Fit::epochs(6).callback(EarlyStopping::new(name))).unwrap();
        assert_eq!(history.epochs.len(), epochs, "{name}");
    }
}
