//! The checks of a case: a device against the reference, gradients against finite differences, passes against the
//! unoptimized graph.

use super::Case;
use super::bytes::{decode, encode};
use crate::base::shape::TensorType;
use crate::device::{Device, DeviceError, StepInputs};
use crate::ir::graph::{Graph, GraphError, StateId, ValueId};
use crate::ir::op::Op;
use crate::plan::{CheckError, CheckedPlan, layout};
use crate::reference::{self, Outcome};
use crate::transform::autodiff::gradients;
use crate::transform::passes::optimize;
use crate::transform::step::Role;
use crate::{Executor, Ledger};
use std::sync::Arc;

/// Tolerance of single precision, relative to the tensor's largest magnitude (at least 1).
const SINGLE: f64 = 5e-5;
/// Tolerance of TF32 products: operands have 10 bits of mantissa and may be truncated, and the largest result may be
/// smaller than its summands.
const TF32: f64 = 5e-3;
/// Tolerance of 16-bit values, in epsilons of the type. The reference rounds where the graph stores, so only values
/// close to a rounding boundary may differ.
const ROUNDED: f64 = 2.0;
/// Tolerance of gradients against finite differences and of optimized graphs against unoptimized ones; both are in
/// double precision.
const DIFFERENCE: f64 = 1e-6;
const REWRITTEN: f64 = 1e-9;
/// Step size of central differences.
const NUDGE: f64 = 1e-5;
/// Number of elements of a leaf that are perturbed individually; a directional derivative covers all elements.
const NUDGED: usize = 6;

/// A failed case.
#[derive(Debug, thiserror::Error)]
#[error("{case}: {why}")]
pub struct Failure {
    /// Op and case.
    pub case: String,
    /// The cause.
    pub why: Why,
}

/// Why a case failed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// A result is wrong.
    #[error(transparent)]
    Wrong(#[from] Mismatch),
    /// Building or planning the graph or its gradient failed.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// The plan is unsound.
    #[error(transparent)]
    Plan(#[from] CheckError),
    /// The device failed to run it.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// The element with the largest error in a tensor that exceeds the tolerance.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{tensor}, {ty}, element {element}: {got} instead of {want}, off by {error:.1e} where {allowed:.0e} is allowed")]
pub struct Mismatch {
    /// Name of the tensor.
    pub tensor: String,
    /// Its type.
    pub ty: String,
    /// Index of the element.
    pub element: usize,
    /// Actual value.
    pub got: f64,
    /// Expected value.
    pub want: f64,
    /// The error, relative to the tensor's largest magnitude.
    pub error: f64,
    /// The tolerance.
    pub allowed: f64,
}

/// Plans the case unoptimized and optimized, checks both plans, runs both on the device, and compares all outputs and
/// states with the reference. Returns the largest error.
pub fn check_forward(case: &Case, device: &Arc<dyn Device>) -> Result<f64, Failure> {
    let compare = || -> Result<f64, Why> {
        let as_written = compare_on_device(case, &case.graph, device)?;
        let improved = compare_on_device(case, &optimize(&case.graph)?, device)?;
        Ok(as_written.max(improved))
    };
    compare().map_err(|why| case.failure(why))
}

/// Compares the reference's gradients with finite differences. Returns the largest error.
pub fn check_gradient(case: &Case) -> Result<f64, Failure> {
    let compare = || -> Result<f64, Why> {
        let Some(graph) = case.with_gradients()? else { return Ok(0.0) };
        let found = case.reference(&graph);
        let mut worst: f64 = 0.0;
        for (i, leaf) in case.wrt.iter().enumerate() {
            let gradient = found.output(&gradient_name(i)).expect("it was added above");
            let single = (0..gradient.len()).step_by(gradient.len().div_ceil(NUDGED)).map(|element| {
                let mut direction = vec![0.0; gradient.len()];
                direction[element] = 1.0;
                direction
            });
            // A direction in which every element contributes, with weights that do not cancel by accident.
            let line = (0..gradient.len()).map(|k| ((k * 7 + 3) % 11) as f64 / 11.0 - 0.4).collect();
            let directions: Vec<Vec<f64>> = single.chain([line]).collect();
            let got: Vec<f64> = directions.iter().map(|d| d.iter().zip(gradient).map(|(d, g)| d * g).sum()).collect();
            let want: Vec<f64> = directions.iter().map(|direction| case.slope(*leaf, direction)).collect();
            let tensor = format!("finite differences of {}", case.leaf_name(*leaf));
            worst = worst.max(compare_elements(&tensor, case.graph.ty(*leaf), &got, &want, DIFFERENCE)?);
        }
        Ok(worst)
    };
    compare().map_err(|why| case.failure(why))
}

/// Runs forward and backward on the device, unoptimized and optimized, and compares the gradients with the reference's.
/// Returns the largest error.
pub fn check_device_gradient(case: &Case, device: &Arc<dyn Device>) -> Result<f64, Failure> {
    let compare = || -> Result<f64, Why> {
        let Some(graph) = case.with_gradients()? else { return Ok(0.0) };
        let as_written = compare_on_device(case, &graph, device)?;
        let improved = compare_on_device(case, &optimize(&graph)?, device)?;
        Ok(as_written.max(improved))
    };
    compare().map_err(|why| case.failure(why))
}

/// Compares the optimized case and its gradients with the unoptimized graph, both in the reference. Returns the largest
/// error.
pub fn check_passes(case: &Case) -> Result<f64, Failure> {
    let compare = || -> Result<f64, Why> {
        let graph = case.with_gradients()?.unwrap_or_else(|| case.graph.clone());
        let (want, got) = (case.reference(&graph), case.reference(&optimize(&graph)?));
        let mut worst: f64 = 0.0;
        for (((name, want), (_, got)), (_, value)) in want.outputs().iter().zip(got.outputs()).zip(graph.outputs()) {
            worst = worst.max(compare_elements(name, graph.ty(*value), got, want, REWRITTEN)?);
        }
        for ((state, want), got) in graph.states().iter().zip(want.states()).zip(got.states()) {
            worst = worst.max(compare_elements(&state.name, &state.ty, got, want, REWRITTEN)?);
        }
        Ok(worst)
    };
    compare().map_err(|why| case.failure(why))
}

fn gradient_name(i: usize) -> String {
    format!("gradient {i}")
}

impl Case {
    /// The graph with the loss gradient of every leaf among its outputs, if there is a loss.
    pub fn with_gradients(&self) -> Result<Option<Graph>, GraphError> {
        let Some(loss) = self.loss else { return Ok(None) };
        let mut graph = self.graph.clone();
        for (i, gradient) in gradients(&mut graph, loss, &self.wrt)?.into_iter().enumerate() {
            graph.output(&gradient_name(i), gradient);
        }
        Ok(Some(graph))
    }

    /// The reference's result for a graph with this case's leaves.
    pub fn reference(&self, graph: &Graph) -> Outcome {
        reference::run(graph, self.rows, &self.inputs, &self.states, &self.scalars, &self.random)
    }

    /// The reference's result with rounding of values that the graph stores in 16 bits.
    fn reference_stored(&self, graph: &Graph) -> Outcome {
        reference::run_stored(graph, self.rows, &self.inputs, &self.states, &self.scalars, &self.random)
    }

    /// Directional derivative of the loss with respect to a leaf, by central differences.
    fn slope(&self, leaf: ValueId, direction: &[f64]) -> f64 {
        let loss = self.loss.expect("only cases with a loss are differentiated");
        let at = |nudge: f64| {
            let mut case = self.clone();
            let elements = match self.graph.producer(leaf).op {
                Op::Input(id) => &mut case.inputs[id.0 as usize][..],
                Op::State(id) => &mut case.states[id.0 as usize],
                Op::Scalar(id) => &mut case.scalars[id.0 as usize..=id.0 as usize],
                _ => unreachable!("cases are differentiated by their leaves"),
            };
            elements.iter_mut().zip(direction).for_each(|(element, part)| *element += nudge * part);
            case.reference(&case.graph).value(loss)[0]
        };
        (at(NUDGE) - at(-NUDGE)) / (2.0 * NUDGE)
    }

    fn leaf_name(&self, leaf: ValueId) -> String {
        match self.graph.producer(leaf).op {
            Op::Input(id) => format!("input {}", self.graph.inputs()[id.0 as usize].name),
            Op::State(id) => format!("state {}", self.graph.states()[id.0 as usize].name),
            Op::Scalar(id) => format!("scalar {}", self.graph.scalars()[id.0 as usize]),
            _ => unreachable!("cases are differentiated by their leaves"),
        }
    }

    fn failure(&self, why: Why) -> Failure {
        Failure { case: format!("{}, {}, {} rows", self.op, self.name, self.rows), why }
    }
}

/// The tolerance for a device, by the coarsest real type in the graph and its products.
fn allowed(graph: &Graph) -> f64 {
    let products = if graph.tf32() { TF32 } else { SINGLE };
    let values = graph.nodes().flat_map(|(_, node)| &node.outputs);
    values
        .map(|value| graph.ty(*value).dtype)
        .filter(|dtype| dtype.is_half())
        .map(|dtype| ROUNDED * dtype.epsilon())
        .fold(products, f64::max)
}

fn compare_on_device(case: &Case, graph: &Graph, device: &Arc<dyn Device>) -> Result<f64, Why> {
    let (want, allowed) = (case.reference_stored(graph), allowed(graph));
    let plan = layout(&[(Role::Step, graph.clone())], case.rows, &**device)?;
    let mut executor = Executor::new(Arc::clone(device), CheckedPlan::new(plan)?, &Ledger::new("selftest", None))?;
    for (i, (state, elements)) in graph.states().iter().zip(&case.states).enumerate() {
        executor.write_state(StateId(i as u32), &encode(state.ty.dtype, elements))?;
    }
    let columns: Vec<Vec<u8>> = graph.inputs().iter().zip(&case.inputs).map(|(input, elements)| encode(input.ty.dtype, elements)).collect();
    let columns: Vec<&[u8]> = columns.iter().map(Vec::as_slice).collect();
    let scalars: Vec<f32> = case.scalars.iter().map(|x| *x as f32).collect();
    let ticket = executor.run(Role::Step, case.rows, &StepInputs { columns: &columns, scalars: &scalars, random: case.random })?;
    executor.outcome(ticket, &mut [])?;

    let mut worst: f64 = 0.0;
    for ((name, want), (_, value)) in want.outputs().iter().zip(graph.outputs()) {
        let ty = graph.ty(*value);
        let mut bytes = vec![0; ty.bytes(case.rows).get()];
        let place = executor.output(Role::Step, name).expect("the plan has the graph's outputs");
        executor.read(place, &mut bytes)?;
        worst = worst.max(compare_elements(name, ty, &decode(ty.dtype, &bytes), want, allowed)?);
    }
    for (i, (state, want)) in graph.states().iter().zip(want.states()).enumerate() {
        let mut bytes = vec![0; state.ty.bytes(case.rows).get()];
        executor.read_state(StateId(i as u32), &mut bytes)?;
        worst = worst.max(compare_elements(&state.name, &state.ty, &decode(state.ty.dtype, &bytes), want, allowed)?);
    }
    Ok(worst)
}

/// The largest error relative to the tensor's largest magnitude, if within tolerance. Non-finite elements must match
/// exactly.
fn compare_elements(tensor: &str, ty: &TensorType, got: &[f64], want: &[f64], allowed: f64) -> Result<f64, Mismatch> {
    let scale = want.iter().filter(|x| x.is_finite()).fold(1.0, |scale: f64, x| scale.max(x.abs()));
    let errors = got.iter().zip(want).map(|(got, want)| match got.is_finite() && want.is_finite() {
        true => (got - want).abs() / scale,
        false if got.is_nan() && want.is_nan() || got == want => 0.0,
        false => f64::INFINITY,
    });
    let (element, error) = errors.enumerate().fold((0, 0.0), |worst, next| if next.1 > worst.1 { next } else { worst });
    if error <= allowed {
        return Ok(error);
    }
    let (got, want) = (got[element], want[element]);
    Err(Mismatch { tensor: tensor.to_string(), ty: ty.to_string(), element, got, want, error, allowed })
}
