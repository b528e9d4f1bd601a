//! Compiled functions: a closure traced once, planned under a budget, and run as one program.

use super::context::{Allocated, Context, blocks};
use super::error::{Error, Result};
use super::placement;
use super::programs::{Program, write_results};
use super::tensor::{Data, Tensor};
use super::trace::{self, Gradients};
use plimsoll_core::allocator::OwnerId;
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::passes::optimize;
use plimsoll_core::plan::recompute::{Effort, FitError, fit};
use plimsoll_core::plan::{CheckedPlan, Plan, layout, layout_sequenced};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Graph, TensorType};
use std::panic::Location;

/// A function that was traced, planned and loaded.
///
/// Its arena is planned: [`peak`](Compiled::peak) is exact. Results are new tensors.
pub struct Compiled {
    context: Context,
    program: Program,
    plan: CheckedPlan,
    arguments: Vec<TensorType>,
    captured: Vec<Tensor>,
    states: Vec<Allocated>,
    state_types: Vec<TensorType>,
    made: &'static Location<'static>,
}

/// Traces a function of tensors like `examples`, and plans it within `budget`. The function runs once, with tensors
/// that have shapes but no values; tensors that it captures are read by every run.
///
/// Ops, gradients included, are the same as without compiling, so results have the same bits on the CPU, except in 16
/// bits: there, ops that are fused round once instead of after each.
///
/// ```
/// use plimsoll::Bytes;
/// use plimsoll::eager::{Tensor, compile};
/// let (x, y) = (Tensor::ones([64, 64])?, Tensor::arange(64)?);
/// let layer = compile(|t| Ok(vec![t[0].matmul(&t[0])?.add(&t[1])?.relu()?]), &[&x, &y], Bytes::mib(1))?;
/// let result = layer.run(&[&x, &y])?;
/// assert_eq!(result[0].to_vec::<f32>()?[..3], [64.0, 65.0, 66.0]);
/// assert!(layer.peak() >= Bytes::kib(16) && layer.peak() <= Bytes::mib(1), "the result, and workspace of the product");
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
///
/// # Errors
/// Those of the closure; or if no plan fits the budget.
#[track_caller]
pub fn compile(f: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>, examples: &[&Tensor], budget: Bytes) -> Result<Compiled> {
    compile_with_state(|_, inputs| Ok((Vec::new(), f(inputs)?)), &[], examples, budget)
}

/// As [`compile`], for a function with state, such as a training step: it maps the state and its inputs to the new
/// state, of the same types, and results. The state lives inside of the compiled function and is updated in place.
///
/// ```
/// use plimsoll::Bytes;
/// use plimsoll::eager::{Tensor, compile_with_state, value_and_grad};
/// let (w, x) = (Tensor::zeros([1])?, Tensor::from_slice(&[1.0, 2.0], [2])?);
/// let step = compile_with_state(
///     |w, x| {
///         let loss = |w: &[Tensor]| (&x[0] * &w[0])?.sub_scalar(1.0)?.square()?.mean();
///         let (loss, gradients) = value_and_grad(loss)(w)?;
///         Ok((vec![(&w[0] - &(&gradients[0] * 0.1)?)?], vec![loss]))
///     },
///     &[&w],
///     &[&x],
///     Bytes::mib(1),
/// )?;
/// let first: f32 = step.run(&[&x])?[0].item()?;
/// let second: f32 = step.run(&[&x])?[0].item()?;
/// assert!(second < first);
/// assert_eq!(step.state()?[0].dims(), [1]);
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
///
/// # Errors
/// As [`compile`], or if the new state has other types than the old one.
#[track_caller]
pub fn compile_with_state(
    f: impl FnOnce(&[Tensor], &[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)>,
    state: &[&Tensor],
    examples: &[&Tensor],
    budget: Bytes,
) -> Result<Compiled> {
    let made = Location::caller();
    let context = match state.iter().chain(examples).next() {
        Some(first) => first.context()?.clone(),
        None => Context::current()?,
    };
    let mut results = 0;
    let mut graph = Graph::new();
    let captured = trace::trace(
        &mut graph,
        Gradients::OfTapes,
        |graph| {
            let mut values = Vec::new();
            for (i, tensor) in state.iter().enumerate() {
                values.push(graph.state(&format!("state {i}"), StateKind::Parameter, tensor.ty().clone(), Init::Constant(0.0))?);
            }
            values.extend(examples.iter().enumerate().map(|(i, tensor)| graph.input(&format!("argument {i}"), tensor.ty().clone())));
            Ok(values)
        },
        |tensors| {
            let (new, returned) = f(&tensors[..state.len()], &tensors[state.len()..])?;
            // A result that is no value of the trace was made outside of it.
            let own = |tensor: Tensor| trace::captured(&tensor, made);
            Ok((new.into_iter().map(own).collect::<Result<Vec<_>>>()?, returned.into_iter().map(own).collect::<Result<Vec<_>>>()?))
        },
        |graph, (new, returned), value_of| {
            let value = |tensor: &Tensor| value_of(tensor).ok_or(Error::Escaped("compile"));
            if new.len() != state.len() {
                let what = format!("the closure returned a state of {} tensors instead of {}", new.len(), state.len());
                return Err(Error::Invalid { op: "compile", what });
            }
            for (i, (new, old)) in new.iter().zip(state).enumerate() {
                if new.ty() != old.ty() {
                    let what = format!("the closure returned {} for state {i}, which is {}", new.ty(), old.ty());
                    return Err(Error::Invalid { op: "compile", what });
                }
                graph.update(StateId(i as u32), value(new)?);
            }
            let values = returned.iter().map(value).collect::<Result<Vec<_>>>()?;
            results = values.len();
            Ok(write_results(graph, &values)?)
        },
    )?;
    let types: Vec<TensorType> = graph.states()[state.len()..].iter().map(|state| state.ty.clone()).collect();
    debug_assert_eq!(types.len(), results);
    let plan = planned(graph, &context, budget)?;
    let program = Program::of(&plan, types, OwnerId::named("compiled function"), context.device())?;
    let state_types: Vec<TensorType> = state.iter().map(|tensor| tensor.ty().clone()).collect();
    let states = blocks(&context, &state_types, OwnerId::named("state"), made)?;
    for (block, tensor) in states.iter().zip(state) {
        block.write(&tensor.to_bytes("compile")?)?;
    }
    let arguments = examples.iter().map(|tensor| tensor.ty().clone()).collect();
    Ok(Compiled { context, program, plan, arguments, captured, states, state_types, made })
}

/// Plans a graph within a budget, with recomputation if it needs it.
fn planned(graph: Graph, context: &Context, budget: Bytes) -> Result<CheckedPlan> {
    let device = context.device();
    let graph = optimize(&graph)?;
    let plan = layout(&[(Role::Step, graph.clone())], 1, device)?;
    if bytes_of_run(&plan) <= budget {
        return Ok(CheckedPlan::new(plan)?);
    }
    let states = Bytes(bytes_of_run(&plan).0 - plan.arena.0);
    let limit = Bytes(budget.0.saturating_sub(states.0));
    match fit(&graph, 1, device, limit, &*device.cost_model(), Effort::default()) {
        Ok(sequenced) if states <= budget => Ok(CheckedPlan::new(layout_sequenced(vec![(Role::Step, sequenced)], 1, device)?)?),
        Ok(_) => Err(Error::Infeasible { budget, least: states, states, arena: Bytes::ZERO }),
        Err(FitError::TooSmall { least, .. }) => Err(Error::Infeasible { budget, least: states + least, states, arena: least }),
        Err(FitError::Graph(error)) => Err(error.into()),
    }
}

/// Bytes of state, results and arena. A staging ring, which plans for a GPU have behind the states, is not used:
/// arguments are on the device.
fn bytes_of_run(plan: &Plan) -> Bytes {
    plan.staging.map_or(plan.resident, |staging| staging.offset) + plan.arena
}

impl Compiled {
    /// Runs it on tensors of the types that it was compiled for, and returns its results.
    ///
    /// # Errors
    /// If the arguments have other types, or the memory does not suffice.
    #[track_caller]
    pub fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let made = Location::caller();
        if inputs.len() != self.arguments.len() {
            let what = format!("the function takes {} tensors, but got {}", self.arguments.len(), inputs.len());
            return Err(Error::Invalid { op: "compiled function", what });
        }
        if trace::is_active() {
            return Err(Error::Traced("compiled function"));
        }
        for (position, (expected, given)) in self.arguments.iter().zip(inputs).enumerate() {
            if expected != given.ty() {
                return Err(Error::Argument { position, expected: expected.clone(), given: given.ty().clone() });
            }
        }
        let mut arguments = Vec::with_capacity(inputs.len() + self.captured.len());
        for input in inputs.iter().copied().chain(&self.captured) {
            let block = input.allocated("compiled function")?;
            if !block.context.is(&self.context) {
                let (first, second) = (self.context.name().to_string(), block.context.name().to_string());
                return Err(Error::Devices { op: "compiled function", first, second });
            }
            arguments.push(block);
        }
        let results = blocks(&self.context, self.program.results(), self.program.owner(), made)?;
        let states: Vec<&Allocated> = self.states.iter().chain(&results).collect();
        self.context.run(&self.program, &arguments, &states, &[], self.context.draw(), made)?;
        placement::ran(&self.context, "compiled function");
        let types = self.program.results().iter();
        Ok(results.into_iter().zip(types).map(|(block, ty)| Tensor::new(ty.clone(), Data::Own(block), made)).collect())
    }

    /// The current state, copied.
    ///
    /// # Errors
    /// If the memory does not suffice.
    pub fn state(&self) -> Result<Vec<Tensor>> {
        let copy = |(block, ty): (&Allocated, &TensorType)| {
            let mut bytes = vec![0; ty.bytes(1).get()];
            block.read(&mut bytes)?;
            self.context.scope(|| Tensor::from_bytes(ty.clone(), &bytes, self.made))
        };
        self.states.iter().zip(&self.state_types).map(copy).collect()
    }

    /// Bytes of a run, exactly: state, results and arena. Arguments and captured tensors come on top; they are the
    /// caller's.
    pub fn peak(&self) -> Bytes {
        bytes_of_run(&self.plan)
    }

    /// The plan, which passed the checker.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }
}
