//! The model of a GPU against what was measured on an H200: samples of one calibration, nodes of three small steps that
//! are not among them, and the medians of nine runs.

use super::features::Features;
use super::{CostTable, StepCosts};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Deserialize)]
struct Recording {
    /// The samples nearest to the nodes, and the largest of their classes.
    table: CostTable,
    /// The nodes of steps.
    nodes: BTreeMap<String, Vec<RecordedNode>>,
    /// Predictions of steps by class, and what they took.
    steps: Vec<(StepCosts, f64)>,
}

#[derive(Deserialize)]
struct RecordedNode {
    class: String,
    sizes: Vec<f64>,
    built_in: f64,
    /// Whether it is bound by arithmetic, and weighted as such.
    compute_bound: bool,
    seconds: f64,
}

fn recording() -> Recording {
    serde_json::from_str(include_str!("recorded_gpu.json")).unwrap()
}

/// How far a prediction may be off.
const WITHIN: std::ops::RangeInclusive<f64> = 0.85..=1.15;

#[test]
fn small_steps_and_narrow_products_take_what_was_measured() {
    let Recording { table, nodes, .. } = recording();
    assert!(table.on_gpu && (0.0..2e-5).contains(&table.start_s), "{}", table.start_s);
    for (name, nodes) in nodes {
        let predicted = |node: &RecordedNode| {
            let features = Features {
                class: node.class.clone(),
                sizes: node.sizes.clone(),
                work: 0.0,
                bytes: 0.0,
                gpu_seconds: node.built_in,
                compute_bound: node.compute_bound,
            };
            table.base_seconds(&features) * table.factor(&features).unwrap().exp()
        };
        let (all, measured) = nodes.iter().fold((0.0, 0.0), |(all, measured), node| (all + predicted(node), measured + node.seconds));
        // Launches that small updates share are part of the start of a step.
        let ratio = (all + table.start_s) / (measured + table.start_s);
        assert!(WITHIN.contains(&ratio), "{name}: {ratio}");
    }
}

#[test]
fn runs_in_any_order_leave_the_predictions_of_others_right() {
    let steps = recording().steps;
    let predicted = |table: &CostTable, step: &StepCosts| -> f64 {
        step.classes.iter().map(|(class, seconds)| f64::from(*seconds) * table.correction.factor(class)).sum()
    };
    for first in 0..steps.len() {
        for stride in [1, 2, 4] {
            let mut table = CostTable { on_gpu: true, ..CostTable::default() };
            let order: Vec<usize> = (0..steps.len()).map(|i| (first + i * stride) % steps.len()).collect();
            for at in &order {
                let (step, seconds) = &steps[*at];
                let ratio = predicted(&table, step) / seconds;
                assert!(WITHIN.contains(&ratio), "{}: {ratio} before its own run, in the order {order:?}", step.name);
                assert!(table.refine(step, 40, (*seconds, *seconds)));
            }
            for (step, seconds) in &steps {
                let ratio = predicted(&table, step) / seconds;
                assert!((0.93..=1.07).contains(&ratio), "{}: {ratio} after all runs, in the order {order:?}", step.name);
            }
        }
    }
}
