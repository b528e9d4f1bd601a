//! Whole models (`tests/references/onnx_models.py`).

use super::{difference, folder, run};
use crate::import::{Imported, import};
use plimsoll_core::{Device, Graph, Op, ops::Conv2d};
use plimsoll_cpu::CpuDevice;
use serde_json::Value;
use std::sync::Arc;

fn numbers(tensor: &Value) -> Vec<f64> {
    tensor["data"].as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

fn cases() -> Vec<Value> {
    serde_json::from_str(&std::fs::read_to_string(folder().join("models.json")).unwrap()).unwrap()
}

fn imported(file: &str) -> Imported {
    import(&folder().join(file)).unwrap_or_else(|error| panic!("{error}"))
}

/// The graph of a model for prediction.
fn graph(imported: &Imported) -> Graph {
    let (mut graph, lowered) = imported.model.graph(&imported.types(), false).unwrap();
    lowered.outputs.iter().enumerate().for_each(|(index, output)| graph.output(&index.to_string(), output.value));
    graph
}

#[test]
fn imported_models_predict_what_onnxruntime_predicts() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let cases = cases();
    assert!(cases.len() >= 12);
    let mut wrong = Vec::new();
    for case in &cases {
        let file = case["file"].as_str().unwrap();
        let imported = match import(&folder().join(file)) {
            Ok(imported) => imported,
            Err(error) => {
                wrong.push(error.to_string());
                continue;
            }
        };
        let graph = graph(&imported);
        let inputs: Vec<Vec<f64>> = case["inputs"].as_array().unwrap().iter().map(numbers).collect();
        let rows = case["inputs"][0]["shape"][0].as_u64().unwrap() as usize;
        let widened = |name: &str| imported.weights.read(name).unwrap().into_iter().map(f64::from).collect();
        let states: Vec<Vec<f64>> = graph.states().iter().map(|state| widened(&state.name)).collect();
        let outputs = run(&device, &graph, rows, &inputs, &states).unwrap();
        let wanted: Vec<Vec<f64>> = case["outputs"].as_array().unwrap().iter().map(numbers).collect();
        assert_eq!(outputs.len(), wanted.len(), "{file}");
        for (got, wanted) in outputs.iter().zip(&wanted) {
            let difference = difference(got, wanted);
            if difference > 1e-4 {
                wrong.push(format!("{file}: max|Δ| / max|reference| is {difference:.1e}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Transpositions of tensors that depend on the batch.
fn transposes(graph: &Graph) -> usize {
    graph.nodes().filter(|(_, node)| matches!(node.op, Op::Transpose(_)) && graph.shape(node.inputs[0]).has_batch()).count()
}

#[test]
fn no_transposes_are_left_between_convolutions() {
    for (file, convolutions) in [("residual.onnx", 4), ("residual_folded.onnx", 4), ("residual_dynamo.onnx", 4), ("mobile.onnx", 5)] {
        let mut imported = imported(file);
        let graph = graph(&imported);
        let count = graph.nodes().filter(|(_, node)| matches!(node.op, Op::Conv2d(Conv2d { .. }))).count();
        assert_eq!((count, transposes(&graph)), (convolutions, 1), "{file}: only the input is transposed");
        // Rows whose channels are last already, such as decoded images, are not transposed at all.
        let &[channels, height, width] = &imported.inputs[0].row[..] else { panic!("an image") };
        assert!(imported.inputs[0].channels_first);
        imported.inputs[0].row = vec![height, width, channels];
        let graph = self::graph(&imported);
        assert_eq!(transposes(&graph), 0, "{file}");
    }
    let graph = graph(&imported("channels_last.onnx"));
    assert_eq!(transposes(&graph), 0, "{graph}");
}

#[test]
fn two_products_around_a_softmax_are_fused_attention() {
    let graph = graph(&imported("heads.onnx"));
    let count = |kind: fn(&Op) -> bool| graph.nodes().filter(|(_, node)| kind(&node.op)).count();
    assert_eq!((count(|op| matches!(op, Op::Attention(_))), count(|op| matches!(op, Op::Reduce(_)))), (2, 0), "{graph}");
}

#[test]
fn names_weights_inputs_and_outputs_come_along() {
    let residual = imported("residual.onnx");
    assert_eq!(residual.model.title(), "residual");
    let weights = residual.model.weights_for(&residual.types()).unwrap();
    let names: Vec<&str> = weights.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.starts_with(&["conv1/kernel", "bn1/gamma", "bn1/beta", "bn1/moving_mean"]), "{names:?}");
    assert!(names.ends_with(&["fc/kernel", "fc/bias"]), "{names:?}");
    // Fine-tuning: frozen layers have no gradients, and the head is replaced by name.
    let model = residual.model.clone().trainable_matching("*", false).unwrap().replace_head(3).unwrap();
    let weights = model.weights_for(&residual.types()).unwrap();
    assert!(weights.iter().any(|(name, ty)| name == "head/kernel" && ty.shape.to_string() == "[12, 3]"), "{weights:?}");

    let shared = imported("shared.onnx");
    assert_eq!(shared.inputs.iter().map(|input| input.column.as_str()).collect::<Vec<_>>(), ["left", "right"]);
    assert_eq!(shared.model.outputs().collect::<Vec<_>>(), ["hidden", "mean"]);
    assert_eq!(shared.model.weights_for(&shared.types()).unwrap().len(), 1, "two products share one matrix");

    let transformer = imported("transformer.onnx");
    assert!(transformer.inputs[0].integers && !transformer.inputs[0].channels_first);
    let mask: Vec<String> = transformer.model.weights_for(&transformer.types()).unwrap().into_iter().map(|(name, _)| name).collect();
    assert!(mask.iter().any(|name| name.contains("token")), "{mask:?}");
}

#[test]
fn everything_that_cannot_be_imported_is_listed_at_once() {
    let error = import(&folder().join("refused.onnx")).unwrap_err().to_string();
    let listed: Vec<&str> = error.lines().skip(1).collect();
    assert_eq!(
        listed,
        [
            "  `places` (NonZero): the shape of its output depends on the data",
            "  `determinant` (Det): there is no such operator here",
            "  `list` (SequenceConstruct): sequences and optionals are not imported",
        ],
        "{error}"
    );
}
