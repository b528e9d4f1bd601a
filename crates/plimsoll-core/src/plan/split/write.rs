//! Writes a split as a graph: for each pass, the unsplit nodes before it, then its pieces in turn; last, the remaining
//! nodes.

use super::{Axis, Cut, RowRule};
use crate::base::shape::{Shape, TensorType};
use crate::ir::graph::{Graph, Node, NodeId, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{BatchSlice, Concat, Slice};
use std::collections::{HashMap, HashSet};

impl Cut {
    pub(super) fn write(&self, old: &Graph) -> Graph {
        let mut new = Graph::new();
        (new.inputs, new.states, new.scalars, new.streams) = (old.inputs.clone(), old.states.clone(), old.scalars.clone(), old.streams);
        (new.pieces, new.tf32, new.logits_in_blocks) = (self.pieces, old.tf32, old.logits_in_blocks);
        let inside: HashSet<NodeId> = self.passes.iter().flatten().copied().collect();
        let kept = self.kept(old, &inside);
        let mut writer = SplitWriter { old, new, whole: vec![None; old.values.len()] };
        for pass in 0..=self.passes.len() {
            for (id, _) in old.nodes().filter(|(id, _)| self.behind[id.index()] == pass && !inside.contains(id)) {
                writer.copy(id);
            }
            if let Some(nodes) = self.passes.get(pass) {
                self.write_pass(&mut writer, nodes, &kept);
            }
        }
        let SplitWriter { mut new, whole, .. } = writer;
        let renamed = |value: &ValueId| whole[value.index()].expect("what is kept is made");
        new.outputs = old.outputs.iter().map(|(name, value)| (name.clone(), renamed(value))).collect();
        new.updates = old.updates.iter().map(|(state, value)| (*state, renamed(value))).collect();
        new
    }

    /// Values that exist as a whole after their pass: read by unsplit nodes, by the host, or by a pass that does not
    /// recompute them.
    fn kept(&self, old: &Graph, inside: &HashSet<NodeId>) -> HashSet<ValueId> {
        let mut kept: HashSet<ValueId> = old.outputs.iter().map(|(_, value)| *value).collect();
        kept.extend(old.updates.iter().map(|(_, value)| *value));
        kept.extend(old.nodes().filter(|(id, _)| !inside.contains(id)).flat_map(|(_, node)| node.inputs.iter().copied()));
        for pass in &self.passes {
            let makes: HashSet<NodeId> = pass.iter().copied().collect();
            let reads = pass.iter().flat_map(|id| &old.node(*id).inputs);
            kept.extend(reads.filter(|input| !makes.contains(&old.values[input.index()].producer)));
        }
        kept
    }

    fn write_pass(&self, writer: &mut SplitWriter<'_>, nodes: &[NodeId], kept: &HashSet<ValueId>) {
        let old = writer.old;
        let mut parts: HashMap<ValueId, Vec<ValueId>> = HashMap::new();
        let mut sums: HashMap<ValueId, ValueId> = HashMap::new();
        for piece in 0..self.pieces {
            let cut = |ty: &TensorType| TensorType::new(ty.dtype, ty.shape.with(0, self.of_piece(ty.shape.dims()[0], piece)));
            let mut here: HashMap<ValueId, ValueId> = HashMap::new();
            for id in nodes {
                let node = old.node(*id);
                let mut inputs = Vec::with_capacity(node.inputs.len() + 1);
                for input in &node.inputs {
                    inputs.push(match here.get(input) {
                        Some(known) => *known,
                        None => {
                            let mut whole = writer.whole[input.index()].expect("what is read inside is made before");
                            if self.has_rows(old, *input) {
                                whole = writer.push(node, self.slice(piece), vec![whole], vec![cut(old.ty(*input))])[0];
                                here.insert(*input, whole);
                            }
                            whole
                        }
                    });
                }
                let part = |shape: &Shape| shape.with(0, self.of_piece(shape.dims()[0], piece));
                let op = |onto: bool| node.op.rules().with_rows(&part, onto).unwrap_or_else(|| node.op.clone());
                if self.row_rule(old, node) == Some(RowRule::Sum) {
                    // A sum that resumes from an earlier micro-batch does so with its first piece.
                    if let Some(sum) = sums.get(&node.outputs[0]) {
                        inputs.truncate(inputs.len() - usize::from(node.op.is_onto()));
                        inputs.push(*sum);
                    }
                    let sum = writer.push(node, op(piece > 0 || node.op.is_onto()), inputs, vec![old.ty(node.outputs[0]).clone()])[0];
                    sums.insert(node.outputs[0], sum);
                    continue;
                }
                let made = writer.push(node, op(false), inputs, node.outputs.iter().map(|output| cut(old.ty(*output))).collect());
                for (output, part) in node.outputs.iter().zip(made) {
                    here.insert(*output, part);
                    parts.entry(*output).or_default().push(part);
                }
            }
        }
        for id in nodes {
            let node = old.node(*id);
            for output in node.outputs.iter().filter(|output| kept.contains(output)) {
                // The value was concatenated by an earlier pass.
                if writer.whole[output.index()].is_none() {
                    let whole = match sums.get(output) {
                        Some(sum) => *sum,
                        None => writer.push(node, Op::Concat(Concat { axis: 0 }), parts[output].clone(), vec![old.ty(*output).clone()])[0],
                    };
                    writer.whole[output.index()] = Some(whole);
                }
            }
        }
    }

    /// The op that slices a piece of a whole tensor.
    fn slice(&self, piece: usize) -> Op {
        let (from, to) = self.range(piece);
        match self.axis {
            Axis::Multiple(_) => Op::Slice(Slice { axis: 0, start: from, length: self.length }),
            Axis::Batch => Op::BatchSlice(BatchSlice { from, to }),
        }
    }
}

struct SplitWriter<'a> {
    old: &'a Graph,
    new: Graph,
    /// For each old value that exists as a whole, the new value.
    whole: Vec<Option<ValueId>>,
}

impl SplitWriter<'_> {
    fn push(&mut self, like: &Node, op: Op, inputs: Vec<ValueId>, types: Vec<TensorType>) -> Vec<ValueId> {
        let outputs = self.new.push(op, inputs, types);
        let node = self.new.nodes_mut().last_mut().expect("just pushed");
        (node.scope, node.phase) = (like.scope.clone(), like.phase);
        outputs
    }

    fn copy(&mut self, id: NodeId) {
        let node = self.old.node(id);
        let inputs = node.inputs.iter().map(|input| self.whole[input.index()].expect("made before")).collect();
        let types = node.outputs.iter().map(|output| self.old.ty(*output).clone()).collect();
        let made = self.push(node, node.op.clone(), inputs, types);
        node.outputs.iter().zip(made).for_each(|(output, new)| self.whole[output.index()] = Some(new));
    }
}
