//! The graph: typed values in single-assignment form, the nodes that make them, and the scopes they came from.

use crate::Bytes;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::op::Op;
use crate::ir::ops::SliceWrite;
use serde::{Deserialize, Serialize};
use std::fmt;

/// No tensor takes more than this for a single row: a pebibyte.
const LARGEST: Bytes = Bytes(1 << 50);

/// A value of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

/// A node of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

/// A tensor that lives from step to step. Graphs of the same model number them alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StateId(pub u32);

/// A number the host gives to every step, such as the learning rate.
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

/// What part of a step a node belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Phase {
    /// Computes predictions, loss and metrics.
    Forward,
    /// Computes gradients.
    Backward,
    /// Changes state.
    Update,
}

/// One operation: what it does, to what, and where in the model it came from.
#[derive(Clone, Debug)]
pub struct Node {
    /// What is done.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// What it makes.
    pub outputs: Vec<ValueId>,
    /// The layer it came from, such as `encoder/block3/conv1`.
    pub scope: String,
    /// The part of the step it belongs to.
    pub phase: Phase,
}

/// A value: its type and the node that makes it.
#[derive(Clone, Debug)]
pub struct Value {
    /// Element type and shape.
    pub ty: TensorType,
    /// The node that makes it.
    pub producer: NodeId,
}

/// What a state is for, which is also who owns its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StateKind {
    /// A trained parameter.
    Parameter,
    /// Belongs to the model but is not trained by gradients.
    Statistic,
    /// What an optimiser remembers about a parameter.
    Optimizer,
    /// The gradient summed over micro-batches.
    Accumulator,
    /// What is counted for a metric, read and set to zero by the host.
    Metric,
}

/// How a state starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Every element is this number.
    Constant(f32),
    /// Uniform in [-limit, limit).
    Uniform {
        /// The bound.
        limit: f32,
    },
    /// Normal around zero, cut at two standard deviations.
    TruncatedNormal {
        /// The standard deviation before cutting.
        std: f32,
    },
    /// Zero, but for the elements `from..to`, counted in memory's order.
    Stretch {
        /// The number they are.
        value: f32,
        /// The first of them.
        from: usize,
        /// The first behind them.
        to: usize,
    },
    /// For a matrix: rows, or columns if they are fewer, that are orthogonal to each other and of length one.
    /// They are waves of a cosine transform in random order, with random signs: any element is known without the others.
    Orthogonal,
}

/// A tensor that lives from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// Its name, unique in the model, such as `dense/kernel`.
    pub name: String,
    /// What it is for.
    pub kind: StateKind,
    /// Element type and shape; never depends on the batch.
    pub ty: TensorType,
    /// How it starts.
    pub init: Init,
}

/// A column of the batch that a step reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// The column's name.
    pub name: String,
    /// Element type and shape, `[B, …]`.
    pub ty: TensorType,
}

/// A graph or shape that cannot be, with the layer it happened in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", if .scope.is_empty() { String::new() } else { format!("layer `{scope}`: ") })]
pub struct GraphError {
    /// The layer.
    pub scope: String,
    /// What is wrong, with the shapes.
    pub what: String,
}

/// How the planner writes the concats of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConcatStrategy {
    /// All inputs exist as tensors of their own and are copied.
    #[default]
    #[serde(rename = "copying")]
    Copy,
    /// Each input is written into its slice of the output as soon as it is computed.
    #[serde(rename = "putting")]
    SliceWrite,
    /// As `SliceWrite`, and concats whose outputs extend each other share one buffer, of which channel views are read.
    #[serde(rename = "sharing")]
    SharedBuffer,
}

impl ConcatStrategy {
    /// Whether all inputs are copied.
    pub fn is_copy(&self) -> bool {
        *self == ConcatStrategy::Copy
    }
}

/// A program over tensors in single-assignment form. Nodes are in an order in which they can run.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) values: Vec<Value>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) states: Vec<State>,
    pub(crate) scalars: Vec<String>,
    /// Values the host reads after the step.
    pub(crate) outputs: Vec<(String, ValueId)>,
    /// The value each changed state has after the step.
    pub(crate) updates: Vec<(StateId, ValueId)>,
    pub(crate) streams: u32,
    /// Values that gradients do not pass.
    pub(crate) stopped: Vec<ValueId>,
    /// Into how many row splits the planner cut part of the graph; 0 if it split nothing.
    pub(crate) pieces: usize,
    /// How the planner wrote concats.
    pub(crate) joining: ConcatStrategy,
    /// The concat outputs it rewrote, by their ids before; all if empty.
    pub(crate) joined: Vec<ValueId>,
    /// Whether slice writes are fused with their producers, where the device can.
    pub(crate) concats_fused: bool,
    scope: Vec<String>,
    phase: Option<Phase>,
}

/// What a node computes, apart from where its result is written: what kernels, timers and proofs need.
#[derive(Clone, Debug)]
pub struct EffectiveOp<'a> {
    /// The op; of a fused slice write, its producer.
    pub op: &'a Op,
    /// The inputs of that op.
    pub inputs: &'a [ValueId],
    /// The outputs of the node: for a slice write, the larger tensor.
    pub outputs: &'a [ValueId],
    /// The slice that is written, and its type, if the result goes into a larger tensor.
    pub slice: Option<(&'a SliceWrite, TensorType)>,
}

impl EffectiveOp<'_> {
    /// The type of the first result; of a fused slice write, that of the slice.
    pub fn result<'a>(&'a self, graph: &'a Graph) -> &'a TensorType {
        self.slice.as_ref().map_or_else(|| graph.ty(self.outputs[0]), |(_, part)| part)
    }
}

/// How far an axis can be cut, and what a part of it is as a dimension.
pub(crate) type Extent = (usize, fn(usize) -> Dim);

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }

    /// Appends a node; its outputs' types follow from the op.
    pub fn add(&mut self, op: Op, inputs: &[ValueId]) -> Result<Vec<ValueId>, GraphError> {
        let types: Vec<&TensorType> = inputs.iter().map(|input| self.ty(*input)).collect();
        let outputs = op.rules().infer(self, &types).map_err(|what| self.error(what))?;
        outputs.iter().try_for_each(|ty| self.check_size(ty))?;
        Ok(self.push(op, inputs.to_vec(), outputs))
    }

    /// Appends a node that makes one value.
    pub fn add_one(&mut self, op: Op, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        self.add(op, inputs).map(|outputs| outputs[0])
    }

    /// Refuses tensors so large that sums of their sizes could overflow.
    fn check_size(&self, ty: &TensorType) -> Result<(), GraphError> {
        if ty.bytes(1) <= LARGEST { Ok(()) } else { Err(self.error(format!("a tensor {ty} is larger than any machine's memory"))) }
    }

    pub(crate) fn push(&mut self, op: Op, inputs: Vec<ValueId>, types: Vec<TensorType>) -> Vec<ValueId> {
        let node = NodeId(self.nodes.len() as u32);
        let outputs: Vec<ValueId> = types
            .into_iter()
            .map(|ty| {
                self.values.push(Value { ty, producer: node });
                ValueId(self.values.len() as u32 - 1)
            })
            .collect();
        let phase = self.phase.unwrap_or(Phase::Forward);
        self.nodes.push(Node { op, inputs, outputs: outputs.clone(), scope: self.scope.join("/"), phase });
        outputs
    }

    /// Declares a column of the batch.
    pub fn input(&mut self, name: &str, ty: TensorType) -> ValueId {
        self.inputs.push(Input { name: name.to_string(), ty: ty.clone() });
        self.push(Op::Input(InputId(self.inputs.len() as u32 - 1)), vec![], vec![ty])[0]
    }

    /// Declares a tensor that lives from step to step, named after the current scope.
    pub fn state(&mut self, name: &str, kind: StateKind, ty: TensorType, init: Init) -> Result<ValueId, GraphError> {
        let name = self.scope.iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join("/");
        if self.states.iter().any(|state| state.name == name) {
            return Err(self.error(format!("there are two tensors named `{name}`; give the layers different names")));
        }
        if ty.shape.has_batch() {
            return Err(self.error(format!("`{name}` has the shape {}, but a kept tensor cannot depend on the batch", ty.shape)));
        }
        self.check_size(&ty)?;
        self.states.push(State { name, kind, ty: ty.clone(), init });
        Ok(self.push(Op::State(StateId(self.states.len() as u32 - 1)), vec![], vec![ty])[0])
    }

    /// A number the host gives to every step; asking twice for a name gives the same one.
    pub fn scalar(&mut self, name: &str) -> ValueId {
        if let Some(known) = self.scalars.iter().position(|scalar| scalar == name) {
            let known = ScalarId(known as u32);
            if let Some(node) = self.nodes.iter().find(|node| matches!(node.op, Op::Scalar(id) if id == known)) {
                return node.outputs[0];
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

    /// Says that after the step the state has this value.
    pub fn update(&mut self, state: StateId, value: ValueId) {
        self.updates.push((state, value));
    }

    /// A stream of random numbers nobody else in this graph draws from.
    pub fn stream(&mut self) -> u32 {
        self.streams += 1;
        self.streams - 1
    }

    /// Runs `body` with `name` appended to the scope of everything it adds.
    pub fn in_scope<T>(&mut self, name: &str, body: impl FnOnce(&mut Graph) -> T) -> T {
        self.scope.push(name.to_string());
        let result = body(self);
        self.scope.pop();
        result
    }

    /// Runs `body` with everything it adds belonging to `phase` and to the scope `scope`, whatever the current one.
    pub(crate) fn within<T>(&mut self, scope: &str, phase: Phase, body: impl FnOnce(&mut Graph) -> T) -> T {
        let outer = (std::mem::replace(&mut self.scope, vec![scope.to_string()]), self.phase.replace(phase));
        let result = body(self);
        (self.scope, self.phase) = outer;
        result
    }

    /// An error in the current scope.
    pub fn error(&self, what: impl Into<String>) -> GraphError {
        GraphError { scope: self.scope.join("/"), what: what.into() }
    }

    /// The type of a value.
    pub fn ty(&self, value: ValueId) -> &TensorType {
        &self.values[value.index()].ty
    }

    /// The shape of a value.
    pub fn shape(&self, value: ValueId) -> &Shape {
        &self.values[value.index()].ty.shape
    }

    /// The value whose bytes this one is spread over: itself, except for a channel view.
    pub fn spread(&self, value: ValueId) -> ValueId {
        let producer = self.producer(value);
        if let Op::ChannelView(_) = producer.op { producer.inputs[0] } else { value }
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// The node that makes a value.
    pub fn producer(&self, value: ValueId) -> &Node {
        self.node(self.values[value.index()].producer)
    }

    /// All nodes, in an order in which they can run.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, node)| (NodeId(i as u32), node))
    }

    /// How many values there are.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// The batch's columns.
    pub fn inputs(&self) -> &[Input] {
        &self.inputs
    }

    /// The tensors that live from step to step.
    pub fn states(&self) -> &[State] {
        &self.states
    }

    /// The numbers the host gives to every step.
    pub fn scalars(&self) -> &[String] {
        &self.scalars
    }

    /// The values the host reads after the step.
    pub fn outputs(&self) -> &[(String, ValueId)] {
        &self.outputs
    }

    /// The value each changed state has after the step.
    pub fn updates(&self) -> &[(StateId, ValueId)] {
        &self.updates
    }

    /// The state a value is, if it is one as the step finds it.
    pub fn as_state(&self, value: ValueId) -> Option<StateId> {
        match self.producer(value).op {
            Op::State(state) => Some(state),
            _ => None,
        }
    }

    /// The value by which the graph reads a state.
    pub fn state_value(&self, state: StateId) -> Option<ValueId> {
        self.nodes.iter().find(|node| matches!(node.op, Op::State(id) if id == state)).map(|node| node.outputs[0])
    }

    /// The value by which the graph reads each state, of all states at once.
    pub(crate) fn state_values(&self) -> Vec<Option<ValueId>> {
        let mut values = vec![None; self.states.len()];
        for node in self.nodes.iter().rev() {
            if let Op::State(state) = node.op {
                values[state.0 as usize] = Some(node.outputs[0]);
            }
        }
        values
    }

    /// Into how many row splits the planner cut some layers; 1 if it split nothing.
    pub fn pieces(&self) -> usize {
        self.pieces.max(1)
    }

    /// How the planner wrote concats.
    pub fn joining(&self) -> ConcatStrategy {
        self.joining
    }

    /// The concat outputs that were rewritten, by their ids before; all if empty.
    pub fn joined(&self) -> &[ValueId] {
        &self.joined
    }

    /// Whether slice writes are fused with their producers, where the device can.
    pub fn concats_fused(&self) -> bool {
        self.concats_fused
    }

    /// What a node computes, apart from where its result is written.
    pub fn effective_op<'a>(&self, node: &'a Node) -> EffectiveOp<'a> {
        let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
        let Op::FusedSliceWrite(op) = &node.op else { return EffectiveOp { op: &node.op, inputs, outputs, slice: None } };
        let types: Vec<&TensorType> = inputs.iter().map(|input| self.ty(*input)).collect();
        let part = op.part(self, &types).expect("checked when the node was added");
        EffectiveOp { op: &op.producer, inputs: &inputs[op.before()..], outputs, slice: Some((&op.slice, part)) }
    }

    /// For a (fused) slice write: the concat buffer it continues, if any, and the slice.
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

    /// How far an axis can be cut, and what a part of it is as a dimension. Rows of the batch are cut by the planner alone: elsewhere that would
    /// change what micro-batches compute.
    pub(crate) fn extent(&self, dim: Dim) -> Option<Extent> {
        match dim.as_fixed() {
            Some(extent) => Some((extent, Dim::fixed)),
            None if self.pieces > 1 && dim.part().is_none() => Some((dim.factor(), Dim::times_batch)),
            None => None,
        }
    }

    /// How often each value is read, outputs and updates included.
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
        self.nodes.iter().map(|node| self.node_flops(node, rows)).sum()
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
