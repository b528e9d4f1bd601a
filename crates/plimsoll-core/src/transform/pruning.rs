//! Pruned weights: the new value of a state is zero where its mask says so.

use crate::base::expr::{Expr, ExprBuilder, TermId};
use crate::ir::graph::{Graph, GraphError, NodeId, StateId, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::Pointwise;

/// Makes the new value of a state zero where `pruned` is nonzero; the mask has the state's shape. Declare the mask
/// before the update is added: the choice is then part of the expression that computes the new value, which is never
/// stored without it. A state that is not updated stays as it is.
pub fn zero_where_pruned(graph: &mut Graph, state: StateId, pruned: ValueId) -> Result<(), GraphError> {
    let Some(at) = graph.updates.iter().rposition(|(updated, _)| *updated == state) else { return Ok(()) };
    let new = graph.updates[at].1;
    let zeroed = |e: &ExprBuilder, pruned: TermId, new: TermId| e.select(pruned, e.constant(0.0), new);
    let NodeId(made) = graph.values[new.index()].producer;
    let declared = graph.values[pruned.index()].producer.0 < made;
    let expression = matches!(&graph.nodes[made as usize].op, Op::Pointwise(op) if op.shape == *graph.shape(pruned));
    let own = graph.use_counts()[new.index()] == 1;
    if declared && expression && own {
        let node = &mut graph.nodes_mut()[made as usize];
        let root = node.outputs.iter().position(|output| *output == new).expect("a value is among its producer's outputs");
        let mask = node.inputs.len() as u16;
        node.inputs.push(pruned);
        let Op::Pointwise(Pointwise { expr, .. }) = &mut node.op else { unreachable!("only expressions get here") };
        *expr = Expr::build_many(|e| {
            let mut results = expr.inline(e, &mut |i| e.input(i));
            results[root] = zeroed(e, e.input(mask), results[root]);
            results
        });
        return Ok(());
    }
    let ty = graph.ty(new).clone();
    let select = Expr::build(|e| zeroed(e, e.input(0), e.input(1)));
    graph.updates[at].1 = graph.pointwise_many(select, &[pruned, new], ty.shape, vec![ty.dtype])?[0];
    Ok(())
}
