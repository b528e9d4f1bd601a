//! The training step: forward, backward and update as one program, and its variants for micro-batches.

use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, GraphError, Init, Node, Phase, ShardedUpdates, StateId, StateKind, ValueId};
use crate::ir::ops::shard_of;
use crate::transform::autodiff::gradients;
use crate::transform::data_parallel::DataParallel;
use crate::transform::fixed_order::FixedOrder;
use crate::transform::loss_scale::{LossScaling, Scale, only_if};
use crate::transform::passes::remove_dead;
use crate::transform::row_sums::RowSums;
use crate::transform::sharding::Sharding;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

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
    /// Whether sums over rows resume from those of earlier micro-batches, as devices can whose capabilities say so
    /// ([`Capabilities::resumes_sums`](crate::plan::Capabilities::resumes_sums)). Otherwise the gradients of each
    /// micro-batch are complete before they are added.
    pub resumes: bool,
    /// The ranks that train together, if there are several: gradients are summed over them when those of all
    /// micro-batches are complete.
    pub data_parallel: Option<DataParallel>,
    /// The order of sums over micro-batches and ranks, if it is fixed. Gradients of each micro-batch are then complete,
    /// whatever `resumes` says.
    pub order: Option<FixedOrder>,
    /// What is divided over the ranks, if anything. Rules then update [a shard](Graph::updated_value) of each
    /// parameter. With [`Sharding::Gradients`], those of each micro-batch are complete, whatever `resumes` says. Not
    /// with an `order`.
    pub sharding: Option<Sharding>,
}

impl<'a> Training<'a> {
    /// Updates every parameter with its own rule, and nothing else.
    pub fn new(rule: &'a UpdateRule<'a>) -> Training<'a> {
        Training { rule, gradients: None, divisor: None, scaling: None, resumes: false, data_parallel: None, order: None, sharding: None }
    }

    /// The ranks that have shards of accumulated gradients, if they do.
    fn scatters_early(&self) -> Option<&DataParallel> {
        self.data_parallel.as_ref().filter(|_| self.sharding == Some(Sharding::Gradients))
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
/// the batch's loss, so accumulated gradients equal those of the whole batch for any micro-batch sizes; bit for bit if
/// [`Training::resumes`]. Rules over all gradients and the overflow check use the complete sums.
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

    // What micro-batches accumulate: the gradients, and the divisor.
    let accumulated: Vec<ValueId> = found.iter().copied().chain(training.divisor).collect();
    let early = training.scatters_early();
    let sums = match training.resumes && training.order.is_none() && early.is_none() {
        true => RowSums::of(&backward, &accumulated),
        false => RowSums::none(accumulated.len()),
    };

    let roles: &[Role] = if accumulate { &[Role::Step, Role::First, Role::Middle, Role::Last] } else { &[Role::Step] };
    let variant = |role: &Role| {
        let mut graph = backward.clone();
        let states = if accumulate { declare(&mut graph, &parameters, &accumulated, &sums, training)? } else { Accumulators::default() };
        let mut accumulated = accumulated.clone();
        if let Some(ranks) = early.filter(|_| *role != Role::Step) {
            ranks.reduce_scatter_all(&mut graph, &mut accumulated[..found.len()])?;
        }
        if matches!(role, Role::First | Role::Middle) {
            let resumes = *role == Role::Middle;
            for ((sum, _), (state, before)) in sums.sums.iter().zip(&states.sums) {
                let new = RowSums::accumulate(&mut graph, *sum, resumes.then_some(*before))?;
                graph.update(*state, new);
            }
            for (value, state) in accumulated.iter().zip(&states.wholes) {
                if let Some((state, before)) = state {
                    let new = match (training.order, resumes) {
                        (Some(_), _) => FixedOrder::add(&mut graph, *value, *before, false)?,
                        (None, true) => plus(&mut graph, *before, *value)?,
                        (None, false) => *value,
                    };
                    graph.update(*state, new);
                }
            }
            return Ok((*role, graph));
        }
        // The gradients of the batch's loss and the divisor, of all micro-batches.
        let mut totals = accumulated.clone();
        if *role == Role::Last {
            let mut complete = HashMap::new();
            for ((sum, _), (state, before)) in sums.sums.iter().zip(&states.sums) {
                let (dtype, total) = (graph.ty(*sum).dtype, RowSums::accumulate(&mut graph, *sum, Some(*before))?);
                // Where all gradients are live together, they take the place of their accumulators.
                if training.sees_all() {
                    graph.update(*state, total);
                }
                let Node { scope, phase, .. } = graph.producer(*sum).clone();
                complete.insert(*sum, graph.within(&scope, phase, |g| g.cast(total, dtype))?);
            }
            for (i, value) in accumulated.iter().enumerate() {
                totals[i] = match &states.wholes[i] {
                    Some((_, before)) if training.order.is_some() => FixedOrder::add(&mut graph, *value, *before, true)?,
                    Some((_, before)) => plus(&mut graph, *before, *value)?,
                    None => sums.substitute(&mut graph, *value, &mut complete)?,
                };
            }
        }
        if training.order.is_some() {
            // Those of one micro-batch are rounded to the same bits as those of several.
            for total in &mut totals {
                *total = graph.cast(*total, DType::F32)?;
            }
        }
        let shards = training.data_parallel.as_ref().filter(|_| training.sharding.is_some());
        if let Some(ranks) = &training.data_parallel {
            let (gradients, divisor) = totals.split_at_mut(found.len());
            let gradients = if shards.is_some() { &mut [] } else { gradients };
            ranks.sum(&mut graph, gradients, divisor.first_mut(), training.order)?;
        }
        let divisor = training.divisor.map(|_| totals[found.len()]);
        let complete = |g: &mut Graph, total: ValueId| -> Result<ValueId, GraphError> {
            let unscaled = scale.as_ref().map_or(Ok(total), |scale| scale.divide(g, total))?;
            divisor.map_or(Ok(unscaled), |divisor| divided(g, unscaled, divisor))
        };
        if let Some(ranks) = shards {
            let scattered = early.is_some() && *role != Role::Step;
            let updates = ShardUpdates { ranks, training, scale: scale.as_ref(), parameters: &parameters, scattered };
            updates.add(&mut graph, &totals[..found.len()], &complete)?;
            return Ok((*role, graph));
        }
        let names: Vec<String> = parameters.iter().map(|id| graph.states[id.0 as usize].name.clone()).collect();
        if !training.sees_all() {
            for (i, (parameter, name)) in parameters.iter().zip(&names).enumerate() {
                graph.within(name, Phase::Update, |g| {
                    let gradient = complete(g, totals[i])?;
                    (training.rule)(g, *parameter, gradient)
                })?;
            }
            return Ok((*role, graph));
        }
        let mut all = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            all.push(graph.within(name, Phase::Update, |g| complete(g, totals[i]))?);
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
    // Sums that resume replace those of a micro-batch alone.
    let tidy = |(role, graph): (Role, Graph)| (role, if training.resumes && accumulate { remove_dead(&graph) } else { graph });
    roles.iter().map(|role| variant(role).map(tidy)).collect()
}

/// The updates of a step whose optimizer states are divided over ranks.
struct ShardUpdates<'a> {
    ranks: &'a DataParallel,
    training: &'a Training<'a>,
    scale: Option<&'a Scale>,
    parameters: &'a [StateId],
    /// Whether gradients are those of shards already.
    scattered: bool,
}

impl ShardUpdates<'_> {
    /// Sums the gradients of each bucket over ranks, updates this rank's shards of its parameters, and gathers them,
    /// bucket by bucket: neither gradients nor new values are all live together. Where updates wait for all gradients,
    /// these are summed first. `complete` gives the gradient of the batch's loss.
    fn add(
        &self,
        graph: &mut Graph,
        gradients: &[ValueId],
        complete: &dyn Fn(&mut Graph, ValueId) -> Result<ValueId, GraphError>,
    ) -> Result<(), GraphError> {
        let ShardUpdates { ranks, training, scale, parameters, scattered } = *self;
        let types: Vec<ValueId> = parameters.iter().map(|id| graph.state_value(*id).expect("read by the step")).collect();
        let buckets = ranks.buckets(graph, if scattered { &types } else { gradients });
        let mut shards = gradients.to_vec();
        let scatter = |graph: &mut Graph, shards: &mut [ValueId], number: usize| -> Result<(), GraphError> {
            if !scattered {
                let whole: Vec<ValueId> = buckets[number].iter().map(|i| gradients[*i]).collect();
                for (i, shard) in buckets[number].iter().zip(ranks.reduce_scatter(graph, number, &whole)?) {
                    shards[*i] = shard;
                }
            }
            for i in &buckets[number] {
                let name = graph.states[parameters[*i].0 as usize].name.clone();
                shards[*i] = graph.within(&name, Phase::Update, |g| complete(g, shards[*i]))?;
            }
            Ok(())
        };
        let mut gate = None;
        if training.sees_all() {
            (0..buckets.len()).try_for_each(|number| scatter(graph, &mut shards, number))?;
            graph.sharded = Some(ShardedUpdates { ranks: ranks.ranks, parameter: None });
            gate = scale.map(|scale| scale.gate(graph, &shards)).transpose()?;
            if let Some(rule) = training.gradients {
                shards = graph.within(SCOPE, Phase::Update, |g| rule(g, &shards))?;
            }
        }
        for (number, bucket) in buckets.iter().enumerate() {
            if !training.sees_all() {
                scatter(graph, &mut shards, number)?;
            }
            let mut new = Vec::with_capacity(bucket.len());
            for i in bucket {
                let value = ranks.update_shard(graph, (parameters[*i], shards[*i]), training.rule, gate)?;
                new.extend(value.map(|value| (parameters[*i], value)));
            }
            ranks.all_gather(graph, number, &new)?;
        }
        graph.sharded = None;
        if let (Some(scale), Some(gate)) = (scale, gate) {
            scale.adapt(graph, gate)?;
        }
        Ok(())
    }
}

/// Whether every accumulator of a middle micro-batch resumes where the previous micro-batch stopped.
pub fn accumulators_resume(graph: &Graph) -> bool {
    let accumulates = |state: StateId| graph.states[state.0 as usize].kind == StateKind::Accumulator;
    graph.updates.iter().filter(|(state, _)| accumulates(*state)).all(|(_, value)| graph.producer(*value).op.is_onto())
}

/// The sum of an accumulator and the value of this micro-batch.
fn plus(graph: &mut Graph, before: ValueId, value: ValueId) -> Result<ValueId, GraphError> {
    let scope = graph.producer(before).scope.clone();
    graph.within(&scope, Phase::Update, |g| g.plus(before, value))
}

/// A gradient divided by the batch's divisor; zero if the divisor is zero.
fn divided(g: &mut Graph, gradient: ValueId, divisor: ValueId) -> Result<ValueId, GraphError> {
    let shape = g.shape(gradient).clone();
    let share = Expr::build(|e| e.select(e.input(1), e.div(e.input(0), e.input(1)), e.constant(0.0)));
    g.pointwise_over(share, &[gradient, divisor], shape)
}

/// The accumulators of a step: states and their values before this micro-batch.
#[derive(Default)]
struct Accumulators {
    /// Of each sum over rows.
    sums: Vec<(StateId, ValueId)>,
    /// Of each accumulated value that is not a function of such sums.
    wholes: Vec<Option<(StateId, ValueId)>>,
}

/// Declares the accumulators. Every variant declares all of them, so that state ids agree.
fn declare(
    graph: &mut Graph,
    parameters: &[StateId],
    accumulated: &[ValueId],
    sums: &RowSums,
    training: &Training<'_>,
) -> Result<Accumulators, GraphError> {
    let mut counts = vec![0; accumulated.len()];
    let mut state = |graph: &mut Graph, i: usize, ty: TensorType| {
        counts[i] += 1;
        let number = if counts[i] > 1 { format!("_{}", counts[i]) } else { String::new() };
        let (scope, name) = match parameters.get(i) {
            Some(parameter) => (graph.states[parameter.0 as usize].name.clone(), "gradient_sum"),
            None => (SCOPE.to_string(), "divisor_sum"),
        };
        let name = format!("{name}{number}");
        if let Some(order) = training.order {
            return graph.within(&scope, Phase::Update, |g| order.declare(g, &name, &ty));
        }
        let value = graph.within(&scope, Phase::Update, |g| g.state(&name, StateKind::Accumulator, ty, Init::Constant(0.0)))?;
        Ok((StateId(graph.states.len() as u32 - 1), value))
    };
    let mut accumulators = Accumulators::default();
    for (sum, first) in &sums.sums {
        let ty = RowSums::accumulator(graph, *sum);
        accumulators.sums.push(state(graph, *first, ty)?);
    }
    for (i, value) in accumulated.iter().enumerate() {
        let ty = match parameters.get(i) {
            Some(parameter) => {
                let whole = graph.states[parameter.0 as usize].ty.clone();
                training.scatters_early().map_or(whole.clone(), |ranks| shard_of(&whole.shape, ranks.ranks))
            }
            None => graph.ty(*value).clone(),
        };
        accumulators.wholes.push(if sums.resumes[i] { None } else { Some(state(graph, i, ty)?) });
    }
    Ok(accumulators)
}
