//! Imported ONNX graphs, run on the CPU and compared with other programs.

mod models;
mod mutations;
mod nodes;

use super::OnnxImporter;
use plimsoll_core::plan::{CheckedPlan, layout};
use plimsoll_core::random::StepRandom;
use plimsoll_core::selftest::{decode, encode};
use plimsoll_core::step::Role;
use plimsoll_core::{Device, Executor, Graph, Ledger, device::StepInputs, graph::StateId, passes::optimize};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Reference files; `tests/references/onnx_models.py` and `tools/onnx_node_check.py` make them.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/references/onnx")
}

/// The outputs of a graph on a device, after all passes.
fn run(device: &Arc<dyn Device>, graph: &Graph, rows: usize, inputs: &[Vec<f64>], states: &[Vec<f64>]) -> Result<Vec<Vec<f64>>, String> {
    let words = |error: &dyn std::fmt::Display| error.to_string();
    let graph = optimize(graph).map_err(|error| words(&error))?;
    let plan = layout(&[(Role::Step, graph.clone())], rows, &**device).map_err(|error| words(&error))?;
    let plan = CheckedPlan::new(plan).map_err(|error| words(&error))?;
    let mut executor = Executor::new(Arc::clone(device), plan, &Ledger::new("test", None)).map_err(|error| words(&error))?;
    for (i, (state, elements)) in graph.states().iter().zip(states).enumerate() {
        executor.write_state(StateId(i as u32), &encode(state.ty.dtype, elements)).map_err(|error| words(&error))?;
    }
    // An empty vector without capacity has no aligned address.
    let column = |dtype, elements: &[f64]| if elements.is_empty() { Vec::with_capacity(64) } else { encode(dtype, elements) };
    let columns: Vec<Vec<u8>> = graph.inputs().iter().zip(inputs).map(|(input, elements)| column(input.ty.dtype, elements)).collect();
    let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
    let step = StepInputs { columns: &columns, scalars: &[], random: StepRandom::default() };
    let ticket = executor.run(Role::Step, rows, &step).map_err(|error| words(&error))?;
    executor.outcome(ticket, &mut []).map_err(|error| words(&error))?;
    let mut outputs = Vec::new();
    for (name, value) in graph.outputs() {
        let ty = graph.ty(*value);
        let mut bytes = vec![0; ty.bytes(rows).get()];
        let place = executor.output(Role::Step, name).ok_or("the plan has no such output")?;
        executor.read(place, &mut bytes).map_err(|error| words(&error))?;
        outputs.push(decode(ty.dtype, &bytes));
    }
    Ok(outputs)
}

/// The largest difference relative to the largest magnitude; infinite if shapes or special numbers differ.
fn difference(got: &[f64], wanted: &[f64]) -> f64 {
    if got.len() != wanted.len() {
        return f64::INFINITY;
    }
    let largest = wanted.iter().filter(|number| number.is_finite()).fold(0.0, |most: f64, number| most.max(number.abs()));
    let error = |(got, wanted): (&f64, &f64)| match got.is_finite() && wanted.is_finite() {
        true if got == wanted => 0.0,
        true => (got - wanted).abs() / largest.max(1e-30),
        false if got.is_nan() && wanted.is_nan() || got == wanted => 0.0,
        false => f64::INFINITY,
    };
    got.iter().zip(wanted).map(error).fold(0.0, f64::max)
}

impl OnnxImporter {
    /// The elements of a state of the graph.
    fn state(&self, name: &str) -> Vec<f64> {
        self.weights.read(name).unwrap().into_iter().map(f64::from).collect()
    }
}
