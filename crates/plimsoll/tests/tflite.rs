//! Files of TensorFlow's converter give what LiteRT's reference kernels compute. References:
//! `references/tflite_vectors.py`.

use plimsoll::prelude::*;
use plimsoll::{Error, Predictions, TflitePlan};
use plimsoll_formats::source::Region;
use plimsoll_formats::tflite::{BuiltinOp, TfliteModel};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references/tflite").join(name)
}

/// The numbers of a `.npy` file in single precision.
fn numbers(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[10 + header..].chunks_exact(4).map(|number| f32::from_le_bytes(number.try_into().unwrap())).collect()
}

fn predicted(name: &str) -> Predictions {
    let mut model = Model::load(reference(&format!("{name}.tflite"))).unwrap();
    model.predict(&reference(&format!("{name}_x.npy"))).unwrap()
}

/// By the name of an output: the step of its integers.
fn steps(name: &str) -> HashMap<String, f32> {
    let file = std::fs::File::open(reference(&format!("{name}.tflite"))).unwrap();
    let model = TfliteModel::open(Region::file(file).unwrap()).unwrap();
    let names = model.signature.as_ref().unwrap().1.clone();
    let step = |tensor: i32| {
        let operator = model.operators.iter().find(|operator| operator.op == BuiltinOp::Dequantize && operator.outputs[0] == tensor);
        model.tensors[operator.unwrap().inputs[0] as usize].quantization.as_ref().unwrap().scales[0]
    };
    names.into_iter().zip(model.outputs.iter().map(|tensor| step(*tensor))).collect()
}

#[test]
fn operators_in_int8_give_the_integers_of_litert() {
    let (predictions, steps) = (predicted("ops_int8"), steps("ops_int8"));
    assert_eq!(predictions.outputs.len(), 17);
    for output in &predictions.outputs {
        let wanted = numbers(&reference(&format!("ops_int8_{}.npy", output.name)));
        assert_eq!(output.values.len(), wanted.len(), "{}", output.name);
        let away = output.values.iter().zip(&wanted).map(|(found, wanted)| (found - wanted).abs() / steps[&output.name]);
        let most = away.fold(0.0, f32::max);
        // These are computed in fixed point by LiteRT's reference kernels, and here from tables of real numbers.
        let allowed = if matches!(output.name.as_str(), "softmax" | "hard_swish") { 1.01 } else { 0.01 };
        assert!(most < allowed, "{}: {most} steps", output.name);
    }
}

#[test]
fn an_lstm_in_int8_gives_the_integers_of_litert() {
    let (predictions, steps) = (predicted("lstm_int8"), steps("lstm_int8"));
    let wanted = numbers(&reference("lstm_int8_y.npy"));
    assert_eq!(predictions.values().len(), wanted.len());
    for (found, wanted) in predictions.values().iter().zip(&wanted) {
        assert!((found - wanted).abs() < 0.01 * steps["y"], "{found} {wanted}");
    }
}

#[test]
fn weights_in_int8_under_real_numbers_are_computed_as_by_litert() {
    let predictions = predicted("ops_dynamic");
    let wanted = numbers(&reference("ops_dynamic_y.npy"));
    let largest = wanted.iter().fold(0.0_f32, |most, number| most.max(number.abs()));
    for (found, wanted) in predictions.values().iter().zip(&wanted) {
        assert!((found - wanted).abs() < 1e-4 * largest, "{found} {wanted}");
    }
}

#[test]
fn the_memory_of_predictions_is_planned_and_a_budget_below_it_is_refused() {
    let path = reference("ops_int8.tflite");
    let plan = TflitePlan::of(&path, None).unwrap();
    assert!(plan.threads >= 1 && plan.total() < Bytes::mib(64), "{plan}");
    let error = TflitePlan::of(&path, Some(Bytes::kib(64))).unwrap_err();
    let Error::PipelineInfeasible(refusal) = &error else { panic!("{error}") };
    assert!(error.to_string().starts_with("running "), "{error}");
    // The stated minimum is enough, and one byte less is not.
    let minimum = TflitePlan::of(&path, Some(refusal.minimum)).unwrap();
    assert!(minimum.total() <= refusal.minimum && minimum.threads == 1, "{minimum}");
    assert!(TflitePlan::of(&path, Some(Bytes(refusal.minimum.0 - 1))).is_err());
    // Rows of a file take what their source takes.
    let rows = reference("ops_int8_x.npy");
    let error = Model::load(&path).unwrap().budget(Bytes::kib(64)).predict(&rows).unwrap_err();
    let Error::PipelineInfeasible(refusal) = &error else { panic!("{error}") };
    let mut model = Model::load(&path).unwrap().budget(refusal.minimum);
    assert_eq!(model.predict(&rows).unwrap().rows.len(), 3);
}

#[test]
fn rows_of_another_shape_are_refused() {
    let mut model = Model::load(reference("ops_int8.tflite")).unwrap();
    let error = model.predict(&reference("ops_dynamic_x.npy")).unwrap_err().to_string();
    assert!(
        error.contains("the rows have the shape [8, 8, 4], but `x` of") && error.ends_with("takes rows of the shape [9, 9, 4]"),
        "{error}"
    );
}
