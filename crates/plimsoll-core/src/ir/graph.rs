//! The graph: typed values in single-assignment form, their producers, and scopes.

use crate::Bytes;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::op::Op;
use crate::ir::ops::{AllReduce, SliceWrite};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

pub use super::scope::Scope;

/// Maximum size of a tensor for a single row: a pebibyte.
const LARGEST: Bytes = Bytes(1 << 50);

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A tensor that persists across steps. Graphs of the same model number states identically.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// A number that the host supplies for every step, such as the learning rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScalarId(pub u32);

/// A column of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InputId(pub u32);

impl NodeId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for ValueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

/// The phase of a step that a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Computes predictions, loss and metrics.
    Forward,
    /// Computes gradients.
    Backward,
    /// Updates states.
    Update,
}

/// One operation: its op, operands, and scope in the model.
#[derive(Clone, Debug)]
pub struct Node {
    /// The op.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<ValueId>,
    /// Its results.
    pub outputs: Vec<ValueId>,
    /// The layer it came from, such as `encoder/block3/conv1`. Nodes of a layer share it.
    pub scope: Scope,
    /// The phase it belongs to.
    pub phase: Phase,
}

/// A value: its type and its producer.
#[derive(Clone, Debug)]
pub struct Value {
    /// Element type and shape.
    pub ty: TensorType,
    /// Its producer.
    pub producer: NodeId,
}

/// Kind of a state, which also determines the owner of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// A trained parameter.
    Parameter,
    /// Belongs to the model but is not trained by gradients.
    Statistic,
    /// Optimizer state of a parameter.
    Optimizer,
    /// The gradient summed over micro-batches.
    Accumulator,
    /// Counts of a metric, which the host reads and resets.
    Metric,
    /// Which elements of a parameter are pruned; the host updates it between steps.
    Mask,
    /// A weight of the teacher that a student is distilled from.
    Teacher,
}

/// Initializer of a state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element is this number.
    Constant(f32),
    /// Uniform in [-limit, limit).
    Uniform {
        /// The bound.
        limit: f32,
    },
    /// Normal with mean zero, truncated at two standard deviations.
    TruncatedNormal {
        /// Standard deviation before truncation.
        std: f32,
    },
    /// Zero, except for the elements `from..to` in memory order.
    Stretch {
        /// Value of these elements.
        value: f32,
        /// The first element.
        from: usize,
        /// The end, exclusive.
        to: usize,
    },
    /// For a matrix: orthonormal rows, or columns if they are fewer. They are basis vectors of a cosine transform in
    /// random order with random signs, so each element is computed independently.
    Orthogonal,
}

/// A tensor that persists across steps.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Its name, unique in the model, such as `dense/kernel`.
    pub name: String,
    /// Its kind.
    pub kind: StateKind,
    /// Element type and shape; independent of the batch.
    pub ty: TensorType,
    /// Its initializer.
    pub init: Init,
    /// The tensor that it is a rank's shard of, if it is one.
    pub shard: Option<ShardOf>,
}

/// The tensor that a state is a rank's [shard](crate::shard) of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardOf {
    /// The shape of the tensor.
    pub shape: Shape,
    /// The ranks that it is divided over.
    pub ranks: u32,
}

/// What updates change while they are added to a graph whose optimizer states are divided over ranks.
#[derive(Clone, Debug)]
pub(crate) struct ShardedUpdates {
    pub ranks: u32,
    /// The parameter that is updated, and this rank's shard of it.
    pub parameter: Option<(StateId, ValueId)>,
}

/// A column of the batch that a step reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The column's name.
    pub name: String,
    /// Element type and shape, `[B, …]`.
    pub ty: TensorType,
}

/// An invalid graph or shape, with the layer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", if .scope.is_empty() { String::new() } else { format!("layer `{scope}`: ") })]
pub struct GraphError {
    /// The layer.
    pub scope: String,
    /// The violation, with the shapes.
    pub what: String,
}

/// How the planner computes the concats of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConcatStrategy {
    /// All inputs are separate tensors and are copied.
    #[default]
    #[serde(rename = "copying")]
    Copy,
    /// Each input is written into its slice of the output as soon as it is computed.
    #[serde(rename = "putting")]
    SliceWrite,
    /// Like `SliceWrite`; concats whose outputs extend each other also share one buffer, which is read through channel
    /// views.
    #[serde(rename = "sharing")]
    SharedBuffer,
}

impl ConcatStrategy {
    /// Whether all inputs are copied.
    pub fn is_copy(&self) -> bool {
        *self == ConcatStrategy::Copy
    }
}

/// A program over tensors in single-assignment form. Nodes are in topological order. Clones share nodes, values and
/// states until one is changed: planning holds many plans of the same graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Arc<Vec<Node>>,
    pub(crate) values: Arc<Vec<Value>>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) states: Arc<Vec<State>>,
    pub(crate) scalars: Vec<String>,
    /// Values the host reads after the step.
    pub(crate) outputs: Vec<(String, ValueId)>,
    /// The new value of each updated state.
    pub(crate) updates: Vec<(StateId, ValueId)>,
    pub(crate) streams: u32,
    /// Values that block gradients.
    pub(crate) stopped: Vec<ValueId>,
    /// Whether products of single-precision operands may round them to TF32.
    pub(crate) tf32: bool,
    /// Whether logits are computed in blocks of rows, whatever the budget.
    pub(crate) logits_in_blocks: bool,
    /// Number of row splits that the planner created; 0 if none.
    pub(crate) pieces: usize,
    /// While updates of shards are added.
    pub(crate) sharded: Option<ShardedUpdates>,
    /// How the planner computes concats.
    pub(crate) joining: ConcatStrategy,
    /// The rewritten concat outputs, by their original ids; all if empty.
    pub(crate) joined: Vec<ValueId>,
    /// Whether slice writes are fused into their producers where the device supports it.
    pub(crate) concats_fused: bool,
    scope: Vec<Scope>,
    phase: Option<Phase>,
    /// Hashes of the names of the states, so that a network of many layers is built in linear time.
    names: HashSet<u64>,
    /// For each state, the value that denotes it, as far as it was pushed here.
    pushed_states: Vec<Option<ValueId>>,
    /// The same for each scalar.
    pushed_scalars: Vec<Option<ValueId>>,
}

/// The computation of a node without a fused slice write, for kernels, timers and proofs.
#[derive(Clone, Debug)]
pub struct EffectiveOp<'a> {
    /// The op; for a fused slice write, its producer.
    pub op: &'a Op,
    /// The inputs of that op.
    pub inputs: &'a [ValueId],
    /// The outputs of the node: for a slice write, the larger tensor.
    pub outputs: &'a [ValueId],
    /// The slice and its type, if the result is written into a larger tensor.
    pub slice: Option<(&'a SliceWrite, TensorType)>,
}

impl EffectiveOp<'_> {
    /// The type of the first result; for a fused slice write, that of the slice.
    pub fn result<'a>(&'a self, graph: &'a Graph) -> &'a TensorType {
        self.slice.as_ref().map_or_else(|| graph.ty(self.outputs[0]), |(_, part)| part)
    }
}

/// The extent of an axis, and the dimension of a part of it.
pub(crate) type Extent = (usize, fn(usize) -> Dim);

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Whether matrix products and convolutions of single-precision operands may round these to TF32 (10 bits of
    /// mantissa), on devices whose tensor cores do. Sums are in single precision, and so is everything else.
    pub fn tf32(&self) -> bool {
        self.tf32
    }

    /// Allows or forbids [TF32](Graph::tf32) products.
    ///
    /// ```
    /// let graph = plimsoll_core::Graph::new().with_tf32(true);
    /// assert!(graph.tf32());
    /// ```
    pub fn with_tf32(mut self, tf32: bool) -> Graph {
        self.tf32 = tf32;
        self
    }

    /// Appends a node; the op infers the types of its outputs.
    pub fn add(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let types: Vec<&TensorType> = inputs.iter().map(|input| self.ty(*input)).collect();
        let outputs = op.rules().infer(self, &types).map_err(|what| self.error(what))?;
        outputs.iter().try_for_each(|ty| self.check_size(ty))?;
        Ok(self.push(op, inputs.to_vec(), outputs))
    }

    /// Appends a node with one output.
    pub fn add_one(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        self.add(op, inputs).map(|outputs| outputs[0])
    }

    /// Rejects tensors so large that sums of sizes could overflow.
    fn check_size(&self, ty: &TensorType) -> Result<(), GraphError> {
        if ty.bytes(1) <= LARGEST { Ok(()) } else { Err(self.error(format!("a tensor {ty} is larger than any machine's memory"))) }
    }

    pub(crate) fn push(&mut self, op: Op, inputs: Vec<ValueId>, types: Vec<TensorType>) -> Vec<ValueId> {
        let node = NodeId(self.nodes.len() as u32);
        let outputs: Vec<ValueId> = types
            .into_iter()
            .map(|ty| {
                Arc::make_mut(&mut self.values).push(Value { ty, producer: node });
                ValueId(self.values.len() as u32 - 1)
            })
            .collect();
        let pushed = match op {
            Op::State(state) => Some((&mut self.pushed_states, state.0 as usize)),
            Op::Scalar(scalar) => Some((&mut self.pushed_scalars, scalar.0 as usize)),
            _ => None,
        };
        if let Some((pushed, id)) = pushed {
            pushed.resize(pushed.len().max(id + 1), None);
            pushed[id].get_or_insert(outputs[0]);
        }
        let (scope, phase) = (self.scope(), self.phase.unwrap_or(Phase::Forward));
        Arc::make_mut(&mut self.nodes).push(Node { op, inputs, outputs: outputs.clone(), scope, phase });
        outputs
    }

    /// The nodes, no longer shared with clones.
    /// Frees the capacity that a complete graph does not use: planning holds many graphs.
    pub(crate) fn shrink(&mut self) {
        Arc::make_mut(&mut self.nodes).shrink_to_fit();
        Arc::make_mut(&mut self.values).shrink_to_fit();
    }

    pub(crate) fn nodes_mut(&mut self) -> &mut Vec<Node> {
        Arc::make_mut(&mut self.nodes)
    }

    /// Declares a column of the batch.
    pub fn input(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.inputs.push(Input { name: name.to_string(), ty: ty.clone() });
        self.push(Op::Input(InputId(self.inputs.len() as u32 - 1)), vec![], vec![ty])[0]
    }

    /// Declares a tensor that persists across steps, named after the current scope.
    pub fn state(&mut self, name: &str, kind: StateKind, ty: TensorType, init: Init) -> Result<ValueId, GraphError> {
        let name = self.scope.iter().map(|scope| &**scope).chain([name]).collect::<Vec<_>>().join("/");
        let hash = |name: &str| BuildHasherDefault::<DefaultHasher>::default().hash_one(name);
        if self.names.len() < self.states.len() {
            self.names = self.states.iter().map(|state| hash(&state.name)).collect();
        }
        if !self.names.insert(hash(&name)) && self.states.iter().any(|state| state.name == name) {
            return Err(self.error(format!("there are two tensors named `{name}`; give the layers different names")));
        }
        if ty.shape.has_batch() {
            return Err(self.error(format!("`{name}` has the shape {}, but a kept tensor cannot depend on the batch", ty.shape)));
        }
        self.check_size(&ty)?;
        let shard = self.shard_in_update(kind, &ty);
        Arc::make_mut(&mut self.states).push(State { name, kind, ty: ty.clone(), init, shard });
        Ok(self.push(Op::State(StateId(self.states.len() as u32 - 1)), vec![], vec![ty])[0])
    }

    /// The tensor that a state of an update is a shard of: one of the shape of the shard that is updated.
    fn shard_in_update(&self, kind: StateKind, ty: &TensorType) -> Option<ShardOf> {
        let sharded = self.sharded.as_ref()?;
        let (parameter, shard) = sharded.parameter?;
        let shape = &self.states[parameter.0 as usize].ty.shape;
        let is_shard = kind == StateKind::Optimizer && ty.shape == *self.shape(shard);
        is_shard.then(|| ShardOf { shape: shape.clone(), ranks: sharded.ranks })
    }

    /// What an update rule changes: the parameter, or this rank's shard of it where optimizer states are divided over
    /// ranks. Slots have its shape.
    pub fn updated_value(&self, parameter: StateId) -> Option<ValueId> {
        let shard = self.sharded.as_ref().and_then(|sharded| sharded.parameter).filter(|(state, _)| *state == parameter);
        shard.map(|(_, shard)| shard).or_else(|| self.state_value(parameter))
    }

    /// A scalar that sums over what an update rule changes: where that is a shard, the sum over the shards of all
    /// ranks.
    ///
    /// # Errors
    /// If it is no scalar of single precision.
    pub fn sum_of_shards(&mut self, sum: ValueId) -> Result<ValueId, GraphError> {
        let Some(ranks) = self.sharded.as_ref().map(|sharded| sharded.ranks) else { return Ok(sum) };
        let token = self.collective_token();
        let inputs: Vec<ValueId> = [sum].into_iter().chain(token).collect();
        Ok(self.add(Op::AllReduce(AllReduce { ranks, has_token: token.is_some(), order: None }), &inputs)?[0])
    }

    /// The token of the last collective that was added, which the next one reads.
    pub fn collective_token(&self) -> Option<ValueId> {
        let last = self.nodes.iter().rev().find(|node| node.op.is_collective());
        last.and_then(|node| node.outputs.last().copied())
    }

    /// A number that the host supplies for every step. The same name returns the same scalar.
    pub fn scalar(&mut self, name: &str) -> ValueId {
        if let Some(known) = self.scalars.iter().position(|scalar| scalar == name) {
            let known = ScalarId(known as u32);
            let is_known = |node: &&Node| matches!(node.op, Op::Scalar(id) if id == known);
            let denotes = |value: &ValueId| {
                let producer = self.values.get(value.index()).and_then(|value| self.nodes.get(value.producer.index()));
                producer.filter(is_known).is_some()
            };
            let pushed = self.pushed_scalars.get(known.0 as usize).copied().flatten().filter(denotes);
            if let Some(value) = pushed.or_else(|| self.nodes.iter().find(is_known).map(|node| node.outputs[0])) {
                self.pushed_scalars.resize(self.pushed_scalars.len().max(known.0 as usize + 1), None);
                self.pushed_scalars[known.0 as usize] = Some(value);
                return value;
            }
        } else {
            self.scalars.push(name.to_string());
        }
        let id = self.scalars.iter().position(|scalar| scalar == name).expect("just made sure of");
        self.push(Op::Scalar(ScalarId(id as u32)), vec![], vec![TensorType::f32(Shape::scalar())])[0]
    }

    /// Marks a value to be read by the host after the step.
    pub fn output(&mut self, name: &str, value: ValueId) {
        self.outputs.push((name.to_string(), value));
    }

    /// Sets the new value of a state.
    pub fn update(&mut self, state: StateId, value: ValueId) {
        self.updates.push((state, value));
    }

    /// A random stream that is unique in this graph.
    pub fn stream(&mut self) -> u32 {
        self.streams += 1;
        self.streams - 1
    }

    /// Runs `body` with `name` appended to the scope of all nodes it adds.
    pub fn in_scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.scope.push(name.into());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// Runs `body` with the scope and phase of all nodes it adds set to `scope` and `phase`.
    pub(crate) fn within<T>(&mut self, scope: impl Into<Scope>, phase: Phase, body: impl FnOnce(&mut Graph) -> T) -> T {
        let outer = (std::mem::replace(&mut self.scope, vec![scope.into()]), self.phase.replace(phase));
        let result = body(self);
        (self.scope, self.phase) = outer;
        result
    }

    /// The current scope, shared where it has one part.
    fn scope(&self) -> Scope {
        match &self.scope[..] {
            [] => Scope::default(),
            [only] => only.clone(),
            parts => parts.iter().map(|part| &**part).collect::<Vec<_>>().join("/").into(),
        }
    }

    /// An error in the current scope.
    pub fn error(&self, what: impl Into<String>) -> GraphError {
        GraphError { scope: self.scope().to_string(), what: what.into() }
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value.index()].ty
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> &Shape {
        &self.values[value.index()].ty.shape
    }

    /// The value that contains this one's bytes: itself, except for a channel view.
    pub fn spread(&self, value: ValueId) -> ValueId {
        let producer = self.producer(value);
        if let Op::ChannelView(_) = producer.op { producer.inputs[0] } else { value }
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// The producer of a value.
    pub fn producer(&self, value: ValueId) -> &Node {
        self.node(self.values[value.index()].producer)
    }

    /// All nodes in topological order.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i as u32), node))
    }

    /// Number of values.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The batch's columns.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The tensors that persist across steps.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The scalars that the host supplies for every step.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// The values the host reads after the step.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// The new value of each updated state.
    pub fn updates(&self) -> &[(StateId, ValueId)] {
        &self.updates
    }

    /// The state whose initial value this is, if any.
    pub fn as_state(&self, value: ValueId) -> Option<StateId> {
        match self.producer(value).op {
            Op::State(state) => Some(state),
            _ => None,
        }
    }

    /// The value that denotes a state before the step.
    pub fn state_value(&self, state: StateId) -> Option<ValueId> {
        let denotes = |value: &ValueId| {
            let producer = self.values.get(value.index()).and_then(|value| self.nodes.get(value.producer.index()));
            producer.is_some_and(|node| matches!(node.op, Op::State(id) if id == state))
        };
        let pushed = self.pushed_states.get(state.0 as usize).copied().flatten().filter(denotes);
        pushed.or_else(|| self.nodes.iter().find(|node| matches!(node.op, Op::State(id) if id == state)).map(|node| node.outputs[0]))
    }

    /// For each state, the value that denotes it before the step.
    pub(crate) fn state_values(&self) -> Vec<Option<ValueId>> {
        let mut values = vec![None; self.states.len()];
        for node in self.nodes.iter().rev() {
            if let Op::State(state) = node.op {
                values[state.0 as usize] = Some(node.outputs[0]);
            }
        }
        values
    }

    /// Number of row splits of some layers; 1 if nothing is split.
    pub fn pieces(&self) -> usize {
        self.pieces.max(1)
    }

    /// How the planner computes concats.
    pub fn joining(&self) -> ConcatStrategy {
        self.joining
    }

    /// The rewritten concat outputs, by their original ids; all if empty.
    pub fn joined(&self) -> &[ValueId] {
        &self.joined
    }

    /// Whether slice writes are fused with their producers, where the device can.
    pub fn concats_fused(&self) -> bool {
        self.concats_fused
    }

    /// The computation of a node, without a fused slice write.
    pub fn effective_op<'a>(&self, node: &'a Node) -> EffectiveOp<'a> {
        let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
        let Op::FusedSliceWrite(op) = &node.op else { return EffectiveOp { op: &node.op, inputs, outputs, slice: None } };
        let types: Vec<&TensorType> = inputs.iter().map(|input| self.ty(*input)).collect();
        let part = op.part(self, &types).expect("checked when the node was added");
        EffectiveOp { op: &op.producer, inputs: &inputs[op.before()..], outputs, slice: Some((&op.slice, part)) }
    }

    /// For a (fused) slice write: the concat buffer it extends, if any, and the slice.
    pub(crate) fn slice_write<'a>(&self, node: &'a Node) -> Option<(Option<ValueId>, &'a SliceWrite, Dim)> {
        match &node.op {
            Op::SliceWrite(op) => Some((node.inputs.get(1).copied(), op, self.shape(node.inputs[0]).dims()[op.axis])),
            Op::FusedSliceWrite(op) => {
                let (_, part) = self.effective_op(node).slice?;
                Some((node.inputs.first().copied().filter(|_| op.has_base), &op.slice, part.shape.dims()[op.slice.axis]))
            }
            _ => None,
        }
    }

    /// The extent of an axis, and the dimension of a part of it. Only the planner splits the batch: elsewhere it would
    /// change the semantics of micro-batches.
    pub(crate) fn extent(&self, dim: Dim) -> Option<Extent> {
        match dim.as_fixed() {
            Some(extent) => Some((extent, Dim::fixed)),
            None if (self.pieces > 1 || self.logits_in_blocks) && dim.part().is_none() => Some((dim.factor(), Dim::times_batch)),
            None => None,
        }
    }

    /// Number of uses of each value, including outputs and updates.
    pub(crate) fn use_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.values.len()];
        let kept = self.outputs.iter().map(|(_, value)| value).chain(self.updates.iter().map(|(_, value)| value));
        for value in self.nodes.iter().flat_map(|node| &node.inputs).chain(kept) {
            counts[value.index()] += 1;
        }
        counts
    }

    /// Floating-point operations of one run over `rows` rows.
    pub fn flops(&self, rows: usize) -> u64 {
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(self.node_flops(node, rows)))
    }

    /// Bytes that one node reads and writes over `rows` rows. A slice write counts its slice only.
    pub fn moved(&self, node: &Node, rows: usize) -> u64 {
        let bytes = |value: &ValueId| self.ty(*value).bytes(rows).0;
        match node.op {
            Op::SliceWrite(_) => 2 * bytes(&node.inputs[0]),
            Op::FusedSliceWrite(_) => {
                let effective_op = self.effective_op(node);
                effective_op.inputs.iter().map(bytes).sum::<u64>() + effective_op.result(self).bytes(rows).0
            }
            _ => node.inputs.iter().chain(&node.outputs).map(bytes).sum(),
        }
    }

    /// Floating-point operations of one node over `rows` rows.
    pub fn node_flops(&self, node: &Node, rows: usize) -> u64 {
        let inputs: Vec<&TensorType> = node.inputs.iter().map(|value| self.ty(*value)).collect();
        let outputs: Vec<&TensorType> = node.outputs.iter().map(|value| self.ty(*value)).collect();
        node.op.rules().flops(&inputs, &outputs, rows)
    }
}
