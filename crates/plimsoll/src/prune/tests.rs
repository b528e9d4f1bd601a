//! Schedules and masks compared with tfmot, and runs that prune.

use super::{LayerPruning, MaskUpdates, Pooling, Prune, PrunedWeight, Sparsity, SparsityPattern};
use crate::config::Config;
use crate::plan::{DataSummary, Machine};
use crate::prelude::*;
use crate::{Checkpoints, History};
use plimsoll_core::budget::Owner;
use plimsoll_core::graph::{Graph, Init, StateId, StateKind};
use plimsoll_core::plan::{CheckedPlan, plan};
use plimsoll_core::step::Role;
use plimsoll_core::{Device, Executor, Ledger, Shape, TensorType};
use plimsoll_cpu::CpuDevice;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;

fn reference() -> Value {
    serde_json::from_str(include_str!("../../tests/references/pruning.json")).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn schedules_are_those_of_tfmot() {
    for case in reference()["schedules"].as_array().unwrap() {
        let count = |key: &str| case[key].as_u64();
        let sparsity = match case["schedule"].as_str().unwrap() {
            "constant" => Sparsity::constant(number(&case["final"])),
            _ => Sparsity::polynomial(number(&case["initial"]), number(&case["final"]), 0).power(number(&case["power"])),
        };
        let sparsity = sparsity.begin(count("begin").unwrap()).frequency(count("frequency").unwrap());
        let sparsity = count("end").map_or(sparsity, |end| sparsity.end(end));
        for (i, step) in case["steps"].as_array().unwrap().iter().enumerate() {
            let step = step.as_u64().unwrap();
            assert_eq!(sparsity.updates(step), case["updates"][i].as_bool().unwrap(), "{case} {step}");
            let expected = number(&case["sparsity"][i]);
            assert!((f64::from(sparsity.at(step)) - expected).abs() < 1e-6, "{case} {step}: {} {expected}", sparsity.at(step));
        }
    }
}

#[test]
fn masks_are_those_of_tfmot() {
    for case in reference()["masks"].as_array().unwrap() {
        let counts = |value: &Value| -> Vec<usize> { value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect() };
        let shape = counts(&case["shape"]);
        let pattern = match (&counts(&case["block"])[..], &case["m_by_n"]) {
            (_, pair @ Value::Array(_)) => SparsityPattern::MByN { zeros: counts(pair)[0], of: counts(pair)[1] },
            ([1, 1], _) => SparsityPattern::Unstructured,
            (size, _) => {
                let pooling = if case["pooling"] == "max" { Pooling::Max } else { Pooling::Average };
                SparsityPattern::Block { size: (size[0], size[1]), pooling }
            }
        };
        let pruning = LayerPruning { sparsity: Sparsity::constant(number(&case["sparsity"])), pattern };
        let weight = PrunedWeight { name: "w".to_string(), shape: shape.clone(), pruning };
        let mut graph = Graph::new();
        let state = graph.state("w", StateKind::Parameter, TensorType::f32(Shape::fixed(shape)), Init::Constant(0.0)).unwrap();
        let mask = graph.in_scope("w", |graph| weight.declare_mask(graph)).unwrap();
        for (name, value) in [("a", state), ("b", mask)] {
            let sum = graph.sum(value).unwrap();
            graph.output(name, sum);
        }
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
        let planned = CheckedPlan::new(plan(vec![(Role::Step, graph)], 1, &*device).unwrap()).unwrap();
        let mut executor = Executor::new(device, planned, &Ledger::new("host", None)).unwrap();
        let weights: Vec<f32> = case["weights"].as_array().unwrap().iter().map(|x| number(x) as f32).collect();
        let bytes: Vec<u8> = weights.iter().flat_map(|x| x.to_ne_bytes()).collect();
        executor.write_state(StateId(0), &bytes).unwrap();
        let mut updates = MaskUpdates::new(&[weight], &executor);
        updates.update(&mut executor, 0).unwrap();

        let (mut masks, mut pruned) = (vec![0; weights.len()], bytes);
        executor.read_state(StateId(1), &mut masks).unwrap();
        executor.read_state(StateId(0), &mut pruned).unwrap();
        let pruned = pruned.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap()));
        for (i, (mask, pruned)) in masks.iter().zip(pruned).enumerate() {
            let kept = case["mask"][i].as_u64().unwrap();
            assert_eq!(u64::from(1 - *mask), kept, "{pattern:?} of {} at {i}: {}", case["shape"], weights[i]);
            assert_eq!(pruned, weights[i] * kept as f32);
        }
        let sparsity = &updates.sparsity(&executor).unwrap()[0];
        let zeros = weights.iter().zip(case["mask"].as_array().unwrap()).filter(|(w, mask)| **w == 0.0 || **mask == 0);
        assert_eq!((sparsity.zeros, sparsity.numbers), (zeros.count() as u64, weights.len() as u64));
    }
}

fn digits() -> Dataset {
    Dataset::digits(Split::Train).take(120).map("x", [scale(1.0 / 16.0)]).batch(20)
}

fn pruned() -> Trainer {
    let model = Sequential::new().add(nn::Flatten).add(Dense::new(24).relu()).add(Dense::new(10));
    let prune = Prune::new(Sparsity::polynomial(0.2, 0.8, 8).frequency(2)).layers(
        "dense_1",
        Sparsity::constant(0.5),
        SparsityPattern::Block { size: (2, 5), pooling: Pooling::Average },
    );
    Trainer::new(model, &digits()).optimizer(Adam::new(0.01)).average(Ema::new(0.9)).prune(prune).threads(2)
}

fn weights(trainer: &mut Trainer, folder: &Path) -> Vec<u8> {
    let path = folder.join("weights.safetensors");
    trainer.save_weights(&path).unwrap();
    std::fs::read(path).unwrap()
}

fn shares(history: &History) -> Vec<(&str, f64)> {
    history.sparsity.iter().map(|weight| (weight.name.as_str(), weight.share())).collect()
}

#[test]
fn pruned_weights_are_zero_whatever_the_micro_batch_and_in_the_average_too() {
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = pruned();
    let history = trainer.fit(Fit::epochs(2)).unwrap();
    assert_eq!(shares(&history), [("dense/kernel", 1229.0 / 1536.0), ("dense_1/kernel", 0.5)]);
    let whole = weights(&mut trainer, folder.path());
    let averaged = trainer.averaged(|trainer| trainer.sparsity()).unwrap();
    assert!(averaged[0].share() >= 0.8, "{averaged:?}");
    for rows in [7, 20, 3] {
        let mut pieces = pruned().micro_batch(rows);
        pieces.fit(Fit::epochs(2)).unwrap();
        assert!(weights(&mut pieces, folder.path()) == whole, "micro-batches of {rows} rows");
    }
}

#[test]
fn a_resumed_run_has_the_masks_and_weights_of_one_that_was_not_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut whole = pruned();
    whole.fit(Fit::epochs(3)).unwrap();
    let checkpoints = || Checkpoints::new(folder.path().join("checkpoints"));
    pruned().fit(Fit::epochs(1).checkpoints(checkpoints())).unwrap();
    let mut resumed = pruned();
    resumed.fit(Fit::epochs(3).checkpoints(checkpoints()).resume(true)).unwrap();
    assert!(weights(&mut resumed, folder.path()) == weights(&mut whole, folder.path()));
}

#[test]
fn masks_are_planned_and_stated() {
    let trainer = pruned();
    let plan = trainer.plan(&Fit::epochs(1)).unwrap();
    let held = |owner: &Owner| plan.owners.iter().find(|(known, _)| known == owner).map(|(_, size)| size.0);
    assert_eq!(held(&Owner::Masks), Some(64 * 24 + 256), "one byte per weight");
    assert!(held(&Owner::MaskUpdates).is_some());
    let text = plan.to_string();
    assert!(text.contains("pruning masks") && text.contains("mask updates"), "{text}");
    let (machine, data) = (Machine::open(trainer.spec()).unwrap(), DataSummary::read(trainer.spec()).unwrap());
    trainer.spec().prove(&machine, &data, &plan.memory.certificate()).unwrap();
}

#[test]
fn what_cannot_be_pruned_is_refused() {
    let refused = |text: &str| {
        let config = Config::from_text(&format!("{}\n[prune]\n{text}", crate::config::DIGITS)).unwrap();
        let planned = config.build().and_then(|spec| Trainer::from(spec).plan(&Fit::epochs(1)));
        planned.err().map_or("it is planned".to_string(), |error| error.to_string())
    };
    insta::assert_snapshot!(
        [
            "final = 1.0\nend = 10",
            "final = 0.5\ninitial = -0.1\nend = 10",
            "final = 0.5",
            "end = 10",
            "final = 0.5\nbegin = 20\nend = 10",
            "final = 0.5\nend = 10\nfrequency = 0",
            "m_by_n = [4, 4]",
            "m_by_n = [2, 4]\nblock = [1, 4]",
            "final = 0.5\nend = 10\nlayers = [{ match = \"lstm*\", keep = true }]",
            "final = 0.5\nend = 10\nlayers = [{ keep = true }]",
            "final = 0.5\nend = 10\nfrequencies = 3",
            "final = 0.5\nend = 10\nblock = [2, 2]\npooling = \"sum\"",
            "final = 0.5\nend = 10\nblock = [1, 4]",
        ]
        .map(refused)
        .join("\n"),
        @r#"
    `prune.final` is 1, but should be at least 0 and below 1
    `prune.initial` is -0.1, but should be at least 0 and below 1
    `prune.end` is missing: the step at which the final sparsity is reached
    `prune.final` is missing: the share of zeros, such as 0.8; or `m_by_n = [2, 4]`
    `prune`: pruning begins at step 20 and ends at step 10; begin before the end
    `prune.frequency` is 0, but should be an integer, 1 or more
    `prune`: 4 of 4 weights would be zero; use fewer zeros than weights, such as 2 of 4
    `prune`: give `block` or `m_by_n`, not both
    pruning: no layer that can be pruned matches `lstm*`; those are conv2d, conv2d_1, dense, dense_1
    `prune.layers[0].match` is missing: the layers, such as "block1*"
    unknown key `prune.frequencies`; did you mean `prune.frequency`?
    `prune.pooling` is "sum", but should be one of avg, max
    layer `conv2d`: its weight has the shape [3, 3, 1, 16], but blocks need a matrix; prune dense layers and 1×1 convolutions in blocks, others without
    "#
    );
}
