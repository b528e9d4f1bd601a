//! Optimizer states and gradients that are divided over ranks (ZeRO): each rank updates its shard of every parameter,
//! and all ranks gather the new values.

use crate::DType;
use crate::base::expr::Term;
use crate::ir::graph::{Graph, GraphError, NodeId, Phase, ShardedUpdates, StateId, StateKind, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{AllGather, ReduceScatter, Reduction, Shard};
use crate::transform::data_parallel::DataParallel;
use crate::transform::loss_scale::only_if;
use crate::transform::step::UpdateRule;

/// What is divided over ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharding {
    /// The states of the optimizer (ZeRO 1).
    Optimizer,
    /// Accumulated gradients too (ZeRO 2): those of every micro-batch are summed over ranks.
    Gradients,
}

impl DataParallel {
    /// Sums the gradients of a bucket over ranks, of which this one gets its shards.
    pub(super) fn reduce_scatter(&self, graph: &mut Graph, number: usize, gradients: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let token = graph.collective_token();
        graph.within(format!("reduce_scatter/{number}"), Phase::Update, |g| {
            let mut inputs = gradients.iter().map(|value| g.cast(*value, DType::F32)).collect::<Result<Vec<_>, _>>()?;
            inputs.extend(token);
            let mut shards = g.add(Op::ReduceScatter(ReduceScatter { ranks: self.ranks, has_token: token.is_some() }), &inputs)?;
            shards.truncate(gradients.len());
            Ok(shards)
        })
    }

    /// Replaces all gradients by this rank's shards of their sums.
    pub(super) fn reduce_scatter_all(&self, graph: &mut Graph, gradients: &mut [ValueId]) -> Result<(), GraphError> {
        for (number, bucket) in self.buckets(graph, gradients).into_iter().enumerate() {
            let whole: Vec<ValueId> = bucket.iter().map(|i| gradients[*i]).collect();
            for (i, shard) in bucket.iter().zip(self.reduce_scatter(graph, number, &whole)?) {
                gradients[*i] = shard;
            }
        }
        Ok(())
    }

    /// Gathers the new values of some parameters from the shards of all ranks.
    pub(super) fn all_gather(&self, graph: &mut Graph, number: usize, shards: &[(StateId, ValueId)]) -> Result<(), GraphError> {
        if shards.is_empty() {
            return Ok(());
        }
        let token = graph.collective_token();
        let shapes = shards.iter().map(|(parameter, _)| graph.states[parameter.0 as usize].ty.shape.clone()).collect();
        let inputs: Vec<ValueId> = shards.iter().map(|(_, shard)| *shard).chain(token).collect();
        let op = Op::AllGather(AllGather { ranks: self.ranks, has_token: token.is_some(), shapes });
        let whole = graph.within(format!("all_gather/{number}"), Phase::Update, |g| g.add(op, &inputs))?;
        for ((parameter, _), value) in shards.iter().zip(whole) {
            graph.update(*parameter, value);
        }
        Ok(())
    }

    /// Adds the update of this rank's shard of a parameter; gives its new value, if the rule changes it. With a `gate`,
    /// nothing changes where that is zero.
    pub(super) fn update_shard(
        &self,
        graph: &mut Graph,
        (parameter, gradient): (StateId, ValueId),
        rule: &UpdateRule<'_>,
        gate: Option<ValueId>,
    ) -> Result<Option<ValueId>, GraphError> {
        let name = graph.states[parameter.0 as usize].name.clone();
        graph.within(&name, Phase::Update, |g| {
            let whole = g.state_value(parameter).ok_or_else(|| g.error("a parameter that the step does not read cannot be updated"))?;
            let shard = g.add_one(Op::Shard(Shard { ranks: self.ranks }), &[whole])?;
            g.sharded = Some(ShardedUpdates { ranks: self.ranks, parameter: Some((parameter, shard)) });
            let (nodes, updates) = (g.nodes.len(), g.updates.len());
            rule(g, parameter, gradient)?;
            check_element_wise(g, nodes, shard)?;
            if let Some(gate) = gate {
                only_if(g, gate, nodes, updates)?;
            }
            g.sharded = Some(ShardedUpdates { ranks: self.ranks, parameter: None });
            let own = g.updates[updates..].iter().position(|(state, _)| *state == parameter);
            Ok(own.map(|at| g.updates.remove(updates + at).1))
        })
    }
}

/// Checks that the nodes of an update, from `nodes` on, give the shard the values that it would have within the whole
/// tensor: they are element-wise, or sums that are added up over ranks.
fn check_element_wise(graph: &Graph, nodes: usize, shard: ValueId) -> Result<(), GraphError> {
    let shape = graph.shape(shard);
    let own = |value: &ValueId| graph.shape(*value) == shape || graph.shape(*value).rank() == 0;
    let refused = |what: &str| {
        Err(graph.error(format!(
            "its update has {what}, which the shard of a rank does not give, so its optimizer state cannot be divided over ranks; \
             choose another optimizer, or leave `parallel.shard` out"
        )))
    };
    let placed = |term: &Term| matches!(term, Term::Random(_) | Term::Coordinate(_));
    for (id, node) in graph.nodes().skip(nodes) {
        match &node.op {
            Op::State(state) => {
                let state = &graph.states[state.0 as usize];
                if state.kind == StateKind::Optimizer && state.shard.is_none() && state.ty.shape.rank() > 0 {
                    return refused(&format!("a state `{}` of the shape {}", state.name, state.ty.shape));
                }
            }
            Op::Scalar(_) | Op::AllReduce(_) => {}
            Op::Pointwise(op) if op.expr.terms().iter().any(placed) => return refused("numbers that depend on the place of an element"),
            Op::Pointwise(_) if node.outputs.iter().all(own) => {}
            Op::Reduce(op) if op.kind == Reduction::Sum && is_summed_over_ranks(graph, id) => {}
            Op::Reshape(_) if node.outputs.iter().all(|output| graph.shape(*output).rank() == 0) => {}
            op => return refused(&format!("the op {}", op.rules().name())),
        }
    }
    Ok(())
}

/// Whether only sums over ranks read the result of a node.
fn is_summed_over_ranks(graph: &Graph, id: NodeId) -> bool {
    let outputs = &graph.node(id).outputs;
    let mut readers = graph.nodes().filter(|(_, node)| node.inputs.iter().any(|input| outputs.contains(input))).peekable();
    readers.peek().is_some()
        && readers.all(|(reader, node)| match node.op {
            Op::AllReduce(_) => true,
            Op::Reshape(_) => is_summed_over_ranks(graph, reader),
            _ => false,
        })
}
