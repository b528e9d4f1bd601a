//! Weights of torchvision, compared with its outputs (`tests/references/torchvision_weights.py`).

use super::{Scheme, open};
use crate::zoo::{Options, find};
use plimsoll_core::random::StepRandom;
use plimsoll_core::reference;
use plimsoll_formats::safetensors::SafeTensors;
use plimsoll_formats::source::Region;
use std::path::{Path, PathBuf};

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references/mobilenet_v2.safetensors")
}

fn wanted(classes: usize) -> (crate::zoo::Network, Vec<(String, Vec<u64>)>) {
    let options = Options { classes: Some(classes), input: Some(vec![32, 32]), width: Some(0.1), ..Options::default() };
    let network = find("mobilenet-v2").unwrap().build(&options).unwrap();
    let weights = network.model.weights(&network.input()).unwrap();
    let shape = |shape: &plimsoll_core::Shape| shape.bind(1).iter().map(|dim| *dim as u64).collect();
    let weights = weights.iter().map(|(name, ty)| (name.clone(), shape(&ty.shape))).collect();
    (network, weights)
}

#[test]
fn weights_of_torchvision_give_its_outputs() {
    let (network, wanted) = wanted(3);
    let mapped = open(&file(), &wanted).unwrap();
    assert_eq!(mapped.scheme, Some("MobileNetV2 of torchvision"));
    let (graph, lowered) = network.model.graph(&[network.input()], false).unwrap();
    let weights = |name: &str| mapped.weights.read(name).unwrap().into_iter().map(f64::from).collect();
    let states: Vec<Vec<f64>> = graph.states().iter().map(|state| weights(&state.name)).collect();
    let stored = SafeTensors::open(Region::bytes(std::fs::read(file()).unwrap())).unwrap();
    let numbers = |key: &str| serde_json::from_str::<Vec<f64>>(&stored.metadata[key]).unwrap();
    let inputs = numbers("inputs").into_iter().map(|number| number / 64.0).collect();
    let outcome = reference::run(&graph, 2, &[inputs], &states, &[], &StepRandom::default());
    let (found, outputs) = (outcome.value(lowered.outputs[0].value), numbers("outputs"));
    let largest = outputs.iter().fold(0.0_f64, |most, number| most.max(number.abs()));
    for (found, wanted) in found.iter().zip(&outputs) {
        assert!((found - wanted).abs() <= 1e-4 * largest, "{found} {wanted}");
    }
}

#[test]
fn a_head_of_other_classes_is_the_only_part_that_does_not_match() {
    let (_, wanted) = wanted(5);
    let mapped = open(&file(), &wanted).unwrap();
    let missing: Vec<&str> =
        wanted.iter().filter(|(name, shape)| mapped.weights.check(name, shape).is_err()).map(|(name, _)| name.as_str()).collect();
    assert_eq!(missing, ["scores/kernel", "scores/bias"]);
}

#[test]
fn names_of_the_model_itself_come_first() {
    let scheme = Scheme { name: "none", module: |_| None, plain_kernels: false };
    assert!(scheme.read(&Default::default(), &wanted(3).1).is_empty());
}
