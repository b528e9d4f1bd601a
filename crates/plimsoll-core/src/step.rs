//! The step: forward, backward and update as one program, and its variants for a batch cut into micro-batches.

use crate::autodiff::gradients;
use crate::graph::{Graph, GraphError, Init, Phase, StateId, StateKind, ValueId};
use serde::{Deserialize, Serialize};

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

/// The training programs of a forward graph.
///
/// `accumulate` adds the variants for several micro-batches per batch. The loss of each is its rows' share of the batch's loss,
/// so the sums are the gradient of the whole batch, whatever the sizes of the pieces.
pub fn training_programs(
    forward: &Graph,
    loss: ValueId,
    accumulate: bool,
    rule: &UpdateRule<'_>,
) -> Result<Vec<(Role, Graph)>, GraphError> {
    let mut backward = forward.clone();
    let parameters: Vec<StateId> =
        (0..forward.states.len() as u32).map(StateId).filter(|id| forward.states[id.0 as usize].kind == StateKind::Parameter).collect();
    let known = forward.state_values();
    let values: Vec<ValueId> = parameters.iter().filter_map(|id| known[id.0 as usize]).collect();
    let found = gradients(&mut backward, loss, &values)?;

    let roles: &[Role] = if accumulate { &[Role::Step, Role::First, Role::Middle, Role::Last] } else { &[Role::Step] };
    roles
        .iter()
        .map(|role| {
            let mut graph = backward.clone();
            let sums = if accumulate { declare_sums(&mut graph, &parameters)? } else { vec![] };
            for (i, (parameter, gradient)) in parameters.iter().zip(&found).enumerate() {
                let name = graph.states[parameter.0 as usize].name.clone();
                graph.within(&name, Phase::Update, |g| match role {
                    Role::First => {
                        g.update(sums[i].0, *gradient);
                        Ok(())
                    }
                    Role::Middle => {
                        let sum = g.plus(sums[i].1, *gradient)?;
                        g.update(sums[i].0, sum);
                        Ok(())
                    }
                    Role::Last => {
                        let sum = g.plus(sums[i].1, *gradient)?;
                        rule(g, *parameter, sum)
                    }
                    _ => rule(g, *parameter, *gradient),
                })?;
            }
            Ok((*role, graph))
        })
        .collect()
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
