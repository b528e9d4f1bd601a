//! Models that Keras saved, imported and compared with its predictions (`tests/references/keras_models.py`).

use super::{Imported, import};
use plimsoll_core::random::StepRandom;
use plimsoll_core::reference;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references/keras")
}

fn numbers(tensor: &Value) -> Vec<f64> {
    tensor["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

/// The outputs of an imported model in double precision.
fn predict(imported: &Imported, rows: usize, inputs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let (graph, lowered) = imported.model.graph(&imported.types(), false).unwrap();
    let widened = |name: &str| imported.weights.read(name).unwrap().into_iter().map(f64::from).collect();
    let states: Vec<Vec<f64>> = graph.states().iter().map(|state| widened(&state.name)).collect();
    let scalars = vec![0.0; graph.scalars().len()];
    let outcome = reference::run(&graph, rows, inputs, &states, &scalars, &StepRandom::default());
    lowered.outputs.iter().map(|output| outcome.value(output.value).to_vec()).collect()
}

#[test]
fn imported_models_predict_what_keras_predicts() {
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(folder().join("models.json")).unwrap()).unwrap();
    assert!(cases.len() >= 9);
    for case in &cases {
        let file = case["file"].as_str().unwrap();
        let imported = import(&folder().join(file)).unwrap_or_else(|error| panic!("{error}"));
        let inputs: Vec<Vec<f64>> = case["inputs"].as_array().unwrap().iter().map(numbers).collect();
        let rows = case["inputs"][0]["shape"][0].as_u64().unwrap() as usize;
        let outputs = predict(&imported, rows, &inputs);
        let wanted: Vec<Vec<f64>> = case["outputs"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(outputs.len(), wanted.len(), "{file}");
        for (got, wanted) in outputs.iter().zip(&wanted) {
            assert_eq!(got.len(), wanted.len(), "{file}");
            let largest = wanted.iter().fold(0.0, |most: f64, number| most.max(number.abs()));
            let difference = got.iter().zip(wanted).fold(0.0, |most: f64, (got, wanted)| most.max((got - wanted).abs()));
            assert!(difference <= 1e-4 * largest, "{file}: max|Δ| is {difference}, max|reference| {largest}");
        }
    }
}

#[test]
fn names_inputs_outputs_losses_and_optimizer_come_along() {
    let imported = import(&folder().join("graph.keras")).unwrap();
    assert_eq!(imported.model.title(), "graph");
    assert_eq!(imported.model.outputs().collect::<Vec<_>>(), ["values", "classes"]);
    assert!(imported.model.layer_names().contains(&"inner/conv2d"), "{:?}", imported.model.layer_names());
    let optimizer = imported.optimizer.unwrap();
    assert_eq!((optimizer.name(), optimizer.learning_rate()), ("adam", 0.002));
    let losses = format!("{:?}", imported.losses.unwrap());
    assert!(losses.contains("MeanSquaredError") && losses.contains("SoftmaxCrossEntropy") && losses.contains("Accuracy"), "{losses}");
    let input = &imported.inputs[0];
    assert_eq!((input.column.as_str(), input.name.as_str(), &input.row[..], input.integers), ("x", "image", &[8, 8, 3][..], false));

    let shared = import(&folder().join("shared.keras")).unwrap();
    assert_eq!(shared.inputs.iter().map(|input| input.column.as_str()).collect::<Vec<_>>(), ["one", "other"]);
    // A layer that is called twice has one set of weights.
    let weights = shared.model.weights_for(&shared.types()).unwrap();
    assert_eq!(weights.iter().filter(|(name, _)| name == "shared/kernel" || name == "block/dense/kernel").count(), 2);
    assert!(import(&folder().join("words.keras")).unwrap().inputs[0].integers);
}

#[test]
fn everything_that_cannot_be_imported_is_listed_at_once() {
    let error = import(&folder().join("refused.keras")).unwrap_err().to_string();
    let listed: Vec<&str> = error.lines().skip(1).collect();
    assert_eq!(
        listed,
        ["  `conv3d` (Conv3D): there is no such layer here", "  `unit_normalization` (UnitNormalization): there is no such layer here"],
        "{error}"
    );
    let error = import("model.pt".as_ref()).unwrap_err().to_string();
    assert!(error.contains("save_file(torch.load('model.pt', weights_only=True), 'model.safetensors')"), "{error}");
}
