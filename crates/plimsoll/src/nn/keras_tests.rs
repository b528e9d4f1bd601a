//! Layers compared with Keras: outputs, gradients and moving statistics on committed vectors (see
//! `tests/references/keras_layers.py`).

use super::{Functional, MICRO_BATCH_RECIPROCAL, layer_from_config};
use crate::reader::Reader;
use plimsoll_core::autodiff::gradients;
use plimsoll_core::graph::StateKind;
use plimsoll_core::random::StepRandom;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, Graph, ValueId, reference};
use serde_json::Value;

const CASES: &str = include_str!("../../tests/references/layers.json");

fn numbers(tensor: &Value) -> Vec<f64> {
    tensor["data"].as_array().expect("a list").iter().map(|number| number.as_f64().expect("a number")).collect()
}

fn rows_and_type(tensor: &Value) -> (usize, TensorType) {
    let dims: Vec<usize> = tensor["shape"].as_array().expect("a list").iter().map(|dim| dim.as_u64().expect("whole") as usize).collect();
    (dims[0], TensorType::f32(Shape::batch_of(dims[1..].iter().copied())))
}

#[track_caller]
fn near(what: &str, got: &[f64], wanted: &Value) {
    let wanted = numbers(wanted);
    assert_eq!(got.len(), wanted.len(), "{what}");
    for (i, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
        assert!((got - wanted).abs() <= 3e-5 * (1.0 + wanted.abs()), "{what}: element {i} is {got}, Keras has {wanted}");
    }
}

#[test]
fn layers_match_keras() {
    let cases: Vec<Value> = serde_json::from_str(CASES).unwrap();
    assert!(cases.len() > 60);
    for case in &cases {
        let name = case["name"].as_str().unwrap();
        let table = toml::Table::try_from(&case["layer"]).unwrap();
        let reader = Reader::root(&table);
        let layer = layer_from_config(&reader).unwrap();
        reader.finish().unwrap();

        let mut net = Functional::new("case");
        let x = net.input();
        let mask = case.get("mask").map(|_| net.input_named("mask"));
        let y = net.add_layer(Some("layer"), layer, [x].into_iter().chain(mask));
        let model = net.build(y);
        let mut g = Graph::new();
        let ((rows, ty), (_, pulled)) = (rows_and_type(&case["x"]), rows_and_type(&case["pull"]));
        let x = g.input("x", ty);
        let mask = case.get("mask").map(|mask| g.input("mask", TensorType::new(DType::U8, rows_and_type(mask).1.shape)));
        let read: Vec<ValueId> = [x].into_iter().chain(mask).collect();
        let lowered = model.lower(&mut g, &read, case["training"].as_bool().unwrap()).unwrap();
        let pull = g.input("pull", pulled);
        let product = g.times(lowered.outputs[0].value, pull).unwrap();
        let loss = g.sum(product).unwrap();
        let trainable: Vec<(String, ValueId)> = (0..g.states().len())
            .filter(|i| g.states()[*i].kind == StateKind::Parameter)
            .map(|i| (g.states()[i].name.clone(), g.state_value(plimsoll_core::graph::StateId(i as u32)).unwrap()))
            .collect();
        let wanted: Vec<ValueId> = trainable.iter().map(|(_, value)| *value).chain([x]).collect();
        let found = gradients(&mut g, loss, &wanted).unwrap();

        let own = |state: &str| state.strip_prefix("layer/").unwrap().to_string();
        let states: Vec<Vec<f64>> = g.states().iter().map(|state| numbers(&case["weights"][own(&state.name)])).collect();
        let scalars: Vec<f64> =
            g.scalars().iter().map(|scalar| if scalar == MICRO_BATCH_RECIPROCAL { 1.0 / rows as f64 } else { f64::NAN }).collect();
        let inputs: Vec<Vec<f64>> = [case.get("x"), case.get("mask"), case.get("pull")].into_iter().flatten().map(numbers).collect();
        let outcome = reference::run(&g, rows, &inputs, &states, &scalars, &StepRandom::default());
        near(&format!("{name}, result"), outcome.value(lowered.outputs[0].value), &case["y"]);
        near(&format!("{name}, gradient of the input"), outcome.value(*found.last().unwrap()), &case["dx"]);
        for ((state, _), gradient) in trainable.iter().zip(&found) {
            near(&format!("{name}, gradient of {state}"), outcome.value(*gradient), &case["gradients"][own(state)]);
        }
        for (state, after) in g.states().iter().zip(outcome.states()) {
            if let Some(wanted) = case["after"].get(own(&state.name)) {
                near(&format!("{name}, {} afterwards", state.name), after, wanted);
            }
        }
    }
}
