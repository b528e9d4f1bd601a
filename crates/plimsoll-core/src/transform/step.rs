//! The step: forward, backward and update as one program, and its variants for a batch cut into micro-batches.

use crate::base::expr::Expr;
use crate::base::shape::{Shape, TensorType};
use crate::ir::graph::{Graph, GraphError, Init, Phase, StateId, StateKind, ValueId};
use crate::transform::autodiff::gradients;
use crate::transform::loss_scale::{LossScaling, Scale, only_if};
use serde::{Deserialize, Serialize};

/// The scope of what belongs to the step as a whole.
const SCOPE: &str = "step";

/// What a program is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A whole batch at once: gradients are used as soon as they are complete and never all live together.
    Step,
    /// The first of several micro-batches: gradients start the sums.
    First,
    /// One in the middle: gradients are added to the sums.
    Middle,
    /// The last one: the completed sums change the parameters.
    Last,
    /// Loss and metrics without learning.
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

/// Adds to a graph how one parameter changes with its gradient. Declares what it remembers as states of its own.
pub type UpdateRule<'a> = dyn Fn(&mut Graph, StateId, ValueId) -> Result<(), GraphError> + 'a;

/// Sees the completed gradients of all parameters at once and gives what the update rule is given instead, such as clipped ones.
pub type GradientsRule<'a> = dyn Fn(&mut Graph, &[ValueId]) -> Result<Vec<ValueId>, GraphError> + 'a;

/// How gradients become changes of parameters.
pub struct Training<'a> {
    /// How one parameter changes with its gradient.
    pub rule: &'a UpdateRule<'a>,
    /// What happens to all gradients before. None keeps the promise that a parameter changes as soon as its own gradient is complete.
    pub gradients: Option<&'a GradientsRule<'a>>,
    /// What the loss of a whole batch is divided by, where that is known only when all of its pieces have been seen: a single number of
    /// the forward graph, of which each piece has its part.
    pub divisor: Option<ValueId>,
    /// Scales the loss while gradients are computed, for numbers of 16 bits.
    pub scaling: Option<LossScaling>,
}

impl<'a> Training<'a> {
    /// Every parameter by its own rule, and nothing else.
    pub fn new(rule: &'a UpdateRule<'a>) -> Training<'a> {
        Training { rule, gradients: None, divisor: None, scaling: None }
    }

    /// Whether no parameter can change before all gradients are there.
    fn sees_all(&self) -> bool {
        self.gradients.is_some() || self.scaling.is_some()
    }
}

/// The training programs of a forward graph in which every parameter changes by its own rule; see [`training_programs_with`].
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
/// `accumulate` adds the variants for several micro-batches per batch. The loss of each is its rows' share of the batch's loss,
/// so the sums are the gradient of the whole batch, whatever the sizes of the pieces. What looks at gradients (rules for all of them,
/// the search for overflows) looks at the completed sums.
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
        // The gradient of the whole batch's loss.
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

/// Starts a sum over micro-batches, or continues it.
fn accumulate_into(graph: &mut Graph, role: Role, (state, before): (StateId, ValueId), part: ValueId) -> Result<(), GraphError> {
    let scope = graph.producer(before).scope.clone();
    graph.within(&scope, Phase::Update, |g| {
        let sum = if role == Role::First { part } else { g.plus(before, part)? };
        g.update(state, sum);
        Ok(())
    })
}

/// A gradient over the whole batch's divisor; of a batch in which nothing counts, zero.
fn divided(g: &mut Graph, gradient: ValueId, divisor: ValueId) -> Result<ValueId, GraphError> {
    let shape = g.shape(gradient).clone();
    let share = Expr::build(|e| e.select(e.input(1), e.div(e.input(0), e.input(1)), e.constant(0.0)));
    g.pointwise_over(share, &[gradient, divisor], shape)
}

/// One sum of gradients per parameter. Every variant declares all of them, so that states are numbered alike.
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
