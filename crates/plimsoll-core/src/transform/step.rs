//! The training step: forward, backward and update as one program, and its variants for micro-batches.

use crate::base::expr::Expr;
use crate::base::shape::{Shape, TensorType};
use crate::ir::graph::{Graph, GraphError, Init, Phase, StateId, StateKind, ValueId};
use crate::transform::autodiff::gradients;
use crate::transform::loss_scale::{LossScaling, Scale, only_if};
use serde::{Deserialize, Serialize};

/// Scope of nodes that belong to the step as a whole.
const SCOPE: &str = "step";

/// Role of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A whole batch at once: gradients are consumed as soon as they are complete and are never all live together.
    Step,
    /// The first of several micro-batches: initializes the accumulators.
    First,
    /// A middle micro-batch: adds gradients to the accumulators.
    Middle,
    /// The last micro-batch: applies the accumulated gradients to the parameters.
    Last,
    /// Loss and metrics without training.
    Evaluate,
    /// Predictions only.
    Predict,
}

impl Role {
    /// The name in print-outs.
    pub fn name(self) -> &'static str {
        match self {
            Role::Step => "step",
            Role::First => "first",
            Role::Middle => "middle",
            Role::Last => "last",
            Role::Evaluate => "evaluate",
            Role::Predict => "predict",
        }
    }
}

/// Adds the update of one parameter from its gradient to a graph. Declares the optimizer state it needs.
pub type UpdateRule<'a> = dyn Fn(&mut Graph, StateId, ValueId) -> Result<(), GraphError> + 'a;

/// Maps the complete gradients of all parameters to those the update rule uses, such as clipped ones.
pub type GradientsRule<'a> = dyn Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, GraphError> + 'a;

/// How gradients update parameters.
pub struct Training<'a> {
    /// The update rule of one parameter.
    pub rule: &'a UpdateRule<'a>,
    /// A transformation of all gradients before the update. With `None`, a parameter is updated as soon as its own
    /// gradient is complete.
    pub gradients: Option<&'a GradientsRule<'a>>,
    /// The divisor of the batch's loss, if it is only known after all micro-batches: a scalar of the forward graph to
    /// which each micro-batch contributes.
    pub divisor: Option<ValueId>,
    /// Loss scaling, for 16-bit gradients.
    pub scaling: Option<LossScaling>,
}

impl<'a> Training<'a> {
    /// Updates every parameter with its own rule, and nothing else.
    pub fn new(rule: &'a UpdateRule<'a>) -> Training<'a> {
        Training { rule, gradients: None, divisor: None, scaling: None }
    }

    /// Whether updates must wait for all gradients.
    fn sees_all(&self) -> bool {
        self.gradients.is_some() || self.scaling.is_some()
    }
}

/// The training programs of a forward graph with one rule per parameter; see [`training_programs_with`].
pub fn training_programs(
    forward: &Graph,
    loss: ValueId,
    accumulate: bool,
    rule: &UpdateRule<'_>,
) -> Result<Vec<(Role, Graph)>, GraphError> {
    training_programs_with(forward, loss, accumulate, &Training::new(rule))
}

/// The training programs of a forward graph.
///
/// `accumulate` adds the variants for several micro-batches per batch. The loss of a micro-batch is its rows' share of
/// the batch's loss, so accumulated gradients equal those of the whole batch for any micro-batch sizes. Rules over all
/// gradients and the overflow check use the complete sums.
pub fn training_programs_with(
    forward: &Graph,
    loss: ValueId,
    accumulate: bool,
    training: &Training<'_>,
) -> Result<Vec<(Role, Graph)>, GraphError> {
    let mut backward = forward.clone();
    let parameters: Vec<StateId> =
        (0..forward.states.len() as u32).map(StateId).filter(|id| forward.states[id.0 as usize].kind == StateKind::Parameter).collect();
    let known = forward.state_values();
    let values: Vec<ValueId> = parameters.iter().filter_map(|id| known[id.0 as usize]).collect();
    let scale = training.scaling.map(|scaling| Scale::declare(&mut backward, scaling)).transpose()?;
    let seen = match &scale {
        Some(scale) => scale.times(&mut backward, loss)?,
        None => loss,
    };
    let found = gradients(&mut backward, seen, &values)?;

    let roles: &[Role] = if accumulate { &[Role::Step, Role::First, Role::Middle, Role::Last] } else { &[Role::Step] };
    let variant = |role: &Role| {
        let mut graph = backward.clone();
        let sums = if accumulate { declare_sums(&mut graph, &parameters)? } else { vec![] };
        let divisor_sum = training.divisor.filter(|_| accumulate).map(|_| declare_divisor_sum(&mut graph)).transpose()?;
        if matches!(role, Role::First | Role::Middle) {
            for (i, gradient) in found.iter().enumerate() {
                accumulate_into(&mut graph, *role, sums[i], *gradient)?;
            }
            if let (Some(sum), Some(part)) = (divisor_sum, training.divisor) {
                accumulate_into(&mut graph, *role, sum, part)?;
            }
            return Ok((*role, graph));
        }
        let divisor = match (role, training.divisor, divisor_sum) {
            (Role::Last, Some(part), Some((_, sum))) => Some(graph.within(SCOPE, Phase::Update, |g| g.plus(sum, part))?),
            (_, part, _) => part,
        };
        // The gradient of the batch's loss.
        let complete = |g: &mut Graph, i: usize| -> Result<ValueId, GraphError> {
            let sum = if *role == Role::Last { g.plus(sums[i].1, found[i])? } else { found[i] };
            let unscaled = scale.as_ref().map_or(Ok(sum), |scale| scale.divide(g, sum))?;
            divisor.map_or(Ok(unscaled), |divisor| divided(g, unscaled, divisor))
        };
        let names: Vec<String> = parameters.iter().map(|id| graph.states[id.0 as usize].name.clone()).collect();
        if !training.sees_all() {
            for (i, (parameter, name)) in parameters.iter().zip(&names).enumerate() {
                graph.within(name, Phase::Update, |g| {
                    let gradient = complete(g, i)?;
                    (training.rule)(g, *parameter, gradient)
                })?;
            }
            return Ok((*role, graph));
        }
        let mut all = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            all.push(graph.within(name, Phase::Update, |g| complete(g, i))?);
        }
        let gate = scale.as_ref().map(|scale| scale.gate(&mut graph, &all)).transpose()?;
        if let Some(rule) = training.gradients {
            all = graph.within(SCOPE, Phase::Update, |g| rule(g, &all))?;
        }
        for ((parameter, name), gradient) in parameters.iter().zip(&names).zip(&all) {
            let (nodes, updates) = (graph.nodes.len(), graph.updates.len());
            graph.within(name, Phase::Update, |g| (training.rule)(g, *parameter, *gradient))?;
            if let Some(gate) = gate {
                graph.within(name, Phase::Update, |g| only_if(g, gate, nodes, updates))?;
            }
        }
        if let (Some(scale), Some(gate)) = (&scale, gate) {
            scale.adapt(&mut graph, gate)?;
        }
        Ok((*role, graph))
    };
    roles.iter().map(variant).collect()
}

/// Initializes or continues an accumulator.
fn accumulate_into(graph: &mut Graph, role: Role, (state, before): (StateId, ValueId), part: ValueId) -> Result<(), GraphError> {
    let scope = graph.producer(before).scope.clone();
    graph.within(&scope, Phase::Update, |g| {
        let sum = if role == Role::First { part } else { g.plus(before, part)? };
        g.update(state, sum);
        Ok(())
    })
}

/// A gradient divided by the batch's divisor; zero if the divisor is zero.
fn divided(g: &mut Graph, gradient: ValueId, divisor: ValueId) -> Result<ValueId, GraphError> {
    let shape = g.shape(gradient).clone();
    let share = Expr::build(|e| e.select(e.input(1), e.div(e.input(0), e.input(1)), e.constant(0.0)));
    g.pointwise_over(share, &[gradient, divisor], shape)
}

/// One gradient accumulator per parameter. Every variant declares all of them, so that state ids agree.
fn declare_sums(graph: &mut Graph, parameters: &[StateId]) -> Result<Vec<(StateId, ValueId)>, GraphError> {
    let mut sums = Vec::new();
    for parameter in parameters {
        let state = graph.states[parameter.0 as usize].clone();
        let value =
            graph.within(&state.name, Phase::Update, |g| g.state("gradient_sum", StateKind::Accumulator, state.ty, Init::Constant(0.0)))?;
        sums.push((StateId(graph.states.len() as u32 - 1), value));
    }
    Ok(sums)
}

fn declare_divisor_sum(graph: &mut Graph) -> Result<(StateId, ValueId), GraphError> {
    let ty = TensorType::f32(Shape::scalar());
    let value = graph.within(SCOPE, Phase::Update, |g| g.state("divisor_sum", StateKind::Accumulator, ty, Init::Constant(0.0)))?;
    Ok((StateId(graph.states.len() as u32 - 1), value))
}
