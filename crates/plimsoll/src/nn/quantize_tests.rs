//! Fake quantization compared with TensorFlow, and runs that train for int8.

use super::quantize::fake_quantize;
use super::{BatchNorm, Conv2D, DepthwiseConv2D, GlobalAveragePool, LayerNorm, Lowering, Quantize};
use crate::Checkpoints;
use crate::config::Config;
use crate::prelude::*;
use plimsoll_core::autodiff::gradients;
use plimsoll_core::device::StepInputs;
use plimsoll_core::graph::{Graph, Init, StateKind};
use plimsoll_core::plan::{CheckedPlan, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Device, Executor, GraphError, Ledger, Shape, TensorType, ValueId};
use plimsoll_cpu::CpuDevice;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

fn reference() -> Value {
    serde_json::from_str(include_str!("../../tests/references/fake_quant.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f32> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

/// A function of a tensor, and the gradient of its elements times 1, 2, 3, …
fn with_gradient(
    shape: &[usize],
    x: &[f32],
    function: impl FnOnce(&mut Graph, ValueId) -> Result<ValueId, GraphError>,
) -> (Vec<f32>, Vec<f32>) {
    let mut g = Graph::new();
    let column = g.input("x", TensorType::f32(Shape::batch_of(shape.iter().copied())));
    let factors = g.input("factors", TensorType::f32(Shape::batch_of(shape.iter().copied())));
    let value = g.state("w", StateKind::Parameter, TensorType::f32(Shape::fixed(shape.iter().copied())), Init::Constant(0.0)).unwrap();
    let y = function(&mut g, value).unwrap();
    let product = g.times(y, factors).unwrap();
    let loss = g.sum(product).unwrap();
    let gradient = gradients(&mut g, loss, &[value]).unwrap()[0];
    // The batch has one row.
    let unread = g.times(column, factors).unwrap();
    for (name, value) in [("y", y), ("gradient", gradient), ("unread", unread)] {
        let copy = g.map(value, |_, x| x).unwrap();
        g.output(name, copy);
    }
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let planned = CheckedPlan::new(plan(vec![(Role::Step, g)], 1, &*device).unwrap()).unwrap();
    let mut executor = Executor::new(device, planned, &Ledger::new("host", None)).unwrap();
    executor.initialize(0).unwrap();
    let bytes = |numbers: &[f32]| numbers.iter().flat_map(|x| x.to_ne_bytes()).collect::<Vec<u8>>();
    executor.write_state(plimsoll_core::graph::StateId(0), &bytes(x)).unwrap();
    let factors: Vec<f32> = (1..=x.len()).map(|i| i as f32).collect();
    let columns = [bytes(x), bytes(&factors)];
    let random = StepRandom { seed: 0, step: 0, first_row: 0 };
    let inputs = StepInputs { columns: &[&columns[0], &columns[1]], scalars: &[], random };
    let ticket = executor.run(Role::Step, 1, &inputs).unwrap();
    executor.outcome(ticket, &mut []).unwrap();
    let output = |name: &str| {
        let mut bytes = vec![0; 4 * x.len()];
        executor.read(executor.output(Role::Step, name).unwrap(), &mut bytes).unwrap();
        bytes.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    };
    (output("y"), output("gradient"))
}

#[test]
fn activations_are_rounded_as_in_tensorflow() {
    for case in reference()["activations"].as_array().unwrap() {
        let x = numbers(&case["x"]);
        let bound = |key: &str| case[key].as_f64().unwrap() as f32;
        let (y, gradient) = with_gradient(&[x.len()], &x, |g, x| {
            let (min, max) = (g.full(bound("min"), Shape::scalar())?, g.full(bound("max"), Shape::scalar())?);
            fake_quantize(g, x, min, max)
        });
        let (expected, expected_gradient) = (numbers(&case["y"]), numbers(&case["gradient"]));
        let scale = (bound("max") - bound("min")) / 255.0;
        for i in 0..x.len() {
            // A number halfway between two levels may be either of them.
            let halfway = ((x[i] / scale).fract().abs() - 0.5).abs() < 1e-4;
            let near = if halfway { 1.001 * scale } else { 1e-6 };
            assert!((y[i] - expected[i]).abs() <= near, "{} becomes {}, in TensorFlow {}", x[i], y[i], expected[i]);
            assert_eq!(gradient[i], expected_gradient[i], "gradient at {}", x[i]);
        }
    }
}

#[test]
fn kernels_are_rounded_as_in_tensorflow_also_with_a_folded_normalization() {
    for case in reference()["kernels"].as_array().unwrap() {
        let shape: Vec<usize> = numbers(&case["shape"]).iter().map(|n| *n as usize).collect();
        let (w, quantize) = (numbers(&case["w"]), Quantize::new());
        let round = |w: &[f32]| {
            with_gradient(&shape, w, |g, w| {
                let (mut penalties, mut observed) = (Vec::new(), Vec::new());
                let lowering = Lowering::to_infer(g, "layer", &mut penalties, &mut observed);
                Lowering { quantize: Some(&quantize), ..lowering }.int8_kernel(w, shape.len() - 1)
            })
        };
        let (y, gradient) = round(&w);
        for (y, expected) in y.iter().zip(numbers(&case["y"])) {
            assert!((y - expected).abs() <= 1e-6, "{y} {expected}");
        }
        assert_eq!(gradient, numbers(&case["gradient"]));
        // One symmetric scale per channel commutes with one factor per channel.
        let channels = shape[shape.len() - 1];
        let factor = |i: usize| 0.3 + (i % channels) as f32;
        let folded: Vec<f32> = w.iter().enumerate().map(|(i, w)| w * factor(i)).collect();
        for (i, (folded, y)) in round(&folded).0.iter().zip(&y).enumerate() {
            assert!((folded - y * factor(i)).abs() <= 1e-5, "{folded} {}", y * factor(i));
        }
    }
}

fn trainer(norm: bool) -> Trainer {
    let data = Dataset::digits(Split::Train).take(160).map("x", [scale(1.0 / 16.0)]).batch(20);
    let mut net = Sequential::new().add(Conv2D::new(8, 3).bias(!norm));
    if norm {
        net = net.add(BatchNorm::new());
    }
    let net =
        net.add(Activation::Relu6).add(DepthwiseConv2D::new(3).activation(Activation::Relu)).add(GlobalAveragePool).add(LayerNorm::new());
    let model = net.add(Dense::new(10).activation(Activation::Softmax));
    Trainer::new(model, &data).optimizer(Adam::new(0.01)).threads(2).seed(5).quantize(Quantize::new().momentum(0.9)).unwrap()
}

fn weights(trainer: &mut Trainer, folder: &Path) -> Vec<u8> {
    let path = folder.join("weights.safetensors");
    trainer.save_weights(&path).unwrap();
    std::fs::read(path).unwrap()
}

#[test]
fn ranges_are_the_same_in_any_micro_batch_and_after_resuming() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = trainer(false);
    whole.fit(Fit::epochs(2)).unwrap();
    let expected = weights(&mut whole, folder.path());
    for rows in [7, 20, 3] {
        let mut pieces = trainer(false).micro_batch(rows);
        pieces.fit(Fit::epochs(2)).unwrap();
        let found = weights(&mut pieces, folder.path());
        assert!(found == expected, "micro-batches of {rows} rows");
    }
    let checkpoints = || Checkpoints::new(folder.path().join("checkpoints"));
    for norm in [false, true] {
        let mut whole = trainer(norm);
        whole.fit(Fit::epochs(3)).unwrap();
        let expected = weights(&mut whole, folder.path());
        trainer(norm).fit(Fit::epochs(1).checkpoints(checkpoints())).unwrap();
        let mut resumed = trainer(norm);
        resumed.fit(Fit::epochs(3).checkpoints(checkpoints()).resume(true)).unwrap();
        assert!(weights(&mut resumed, folder.path()) == expected);
        std::fs::remove_dir_all(folder.path().join("checkpoints")).unwrap();
    }
}

#[test]
fn ranges_are_planned_where_an_int8_model_has_them() {
    let trainer = trainer(true);
    let plan = trainer.plan(&Fit::epochs(1)).unwrap();
    let states = plan.memory.states.iter().map(|state| state.name.as_str());
    let ranges: Vec<&str> = states.filter_map(|name| name.strip_suffix("/min")).collect();
    // The normalization and ReLU6 are part of the convolution; softmax has a fixed scale.
    let expected = [
        "quantized_inputs/x",
        "relu6/output",
        "depthwise_conv2d/output",
        "global_average_pool/output",
        "layer_norm/output",
        "dense/before_activation",
    ];
    assert_eq!(ranges, expected);
    assert_eq!(trainer.spec().model.float_layers(), [("layer_norm".to_string(), "it has no int8 operator")]);
    // Rounded values are not stored beside the others.
    let mut spec = trainer.spec().clone();
    spec.model = spec.model.without_rounding();
    let float = Trainer::from(spec).plan(&Fit::epochs(1)).unwrap().memory.arena;
    assert!(plan.memory.arena.0 <= 2 * float.0, "{} instead of {float}", plan.memory.arena);
}

#[test]
fn what_cannot_be_trained_for_int8_is_refused() {
    let refused = |text: &str| {
        let config = Config::from_text(&format!("{}\n[quantize]\n{text}", crate::config::DIGITS)).unwrap();
        config.build().err().map_or("it is built".to_string(), |error| error.to_string())
    };
    insta::assert_snapshot!(
        ["", "momentum = 1.0", "keep_float = \"nothing*\"", "keep_float = \"*\"", "bits = 8"].map(refused).join("\n"),
        @r#"
    it is built
    `quantize.momentum` is 1, but should be a number from 0 to below 1
    quantization: no layer matches `nothing*`; the model has conv2d, conv2d_1, max_pool2d, flatten, dropout, dense, dense_1
    quantization: the model has no convolution or dense layer that could be int8
    unknown key `quantize.bits`; the keys here are momentum, keep_float
    "#
    );
}
