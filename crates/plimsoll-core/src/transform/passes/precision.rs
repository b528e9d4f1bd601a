//! Mixed precision: activations are stored in 16 bits, parameters and statistics in 32 bits. Runs on a forward graph
//! before autodiff; gradients follow, because a gradient has the type of its value.
//!
//! Arithmetic is in single precision everywhere; only storage types change. There are no 16-bit copies of parameters:
//! products read operands of different types.

use super::rewrite::{finish, shell};
use crate::DType;
use crate::base::expr::{Binary, Expr, Term};
use crate::ir::graph::{Graph, GraphError, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Conv2d, Conv2dGradInput, Gather, MatMul, Pointwise};
use crate::ir::rules::Precision;
use crate::verify;
use std::collections::HashMap;

/// The graph with activations stored in the 16-bit type `dtype`. Values without a batch dimension (parameters, moving
/// statistics) and outputs that the host reads retain their types. Values are renumbered; outputs retain their names.
///
/// ```
/// use plimsoll_core::graph::{Init, StateKind};
/// use plimsoll_core::{DType, Graph, Shape, TensorType, passes};
/// let mut g = Graph::new();
/// let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
/// let w = g.state("w", StateKind::Parameter, TensorType::f32(Shape::fixed([4, 2])), Init::Constant(0.0))?;
/// let y = g.matmul(x, w)?;
/// let loss = g.sum(y)?;
/// g.output("loss", loss);
/// let mixed = passes::mixed(&g, DType::BF16)?;
/// assert_eq!(mixed.to_string(), "\
/// %0 = input \"x\" : f32[B, 4]
/// %1 = state \"w\" : f32[4, 2]
/// %2 = pointwise {a} %0 : bf16[B, 4]
/// %3 = matmul %2, %1 : bf16[B, 2]
/// %4 = sum {axes 0,1 of [B, 2]} %3 : f32[1, 1]
/// %5 = reshape %4 : f32[]
/// output loss = %5
/// ");
/// # Ok::<(), plimsoll_core::GraphError>(())
/// ```
///
/// # Errors
/// If `dtype` is not a real type of two bytes, or the graph is not legal.
pub fn mixed(old: &Graph, dtype: DType) -> Result<Graph, GraphError> {
    mixed_with(old, dtype, Columns::Narrowed)
}

/// How products read single-precision columns of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Columns {
    /// As a 16-bit copy, which libraries multiply faster.
    Narrowed,
    /// In place, for a device that multiplies mixed types: the copy would cost more than it saves.
    AsTheyAre,
}

/// [`mixed`], with a choice of how columns are read.
///
/// # Errors
/// Same as [`mixed`].
pub fn mixed_with(old: &Graph, dtype: DType, columns: Columns) -> Result<Graph, GraphError> {
    if !dtype.is_half() {
        return Err(old.error(format!("activations are stored in bf16 or f16 for mixed precision, not in {dtype}")));
    }
    let narrow = narrowed(old);
    let mut new = shell(old);
    let mut renamed: Vec<Option<ValueId>> = vec![None; old.values.len()];
    let mut casts: HashMap<(ValueId, DType), ValueId> = HashMap::new();
    for node in old.nodes.iter() {
        let mut inputs: Vec<ValueId> = node.inputs.iter().map(|input| renamed[input.index()].expect("inputs come first")).collect();
        let outputs = new.within(&node.scope, node.phase, |new| {
            let half = |g: &Graph, value: ValueId| g.ty(value).dtype == DType::F32 && g.shape(value).has_batch();
            let all = match &node.op {
                Op::Concat(_) => inputs.iter().any(|input| new.ty(*input).dtype.is_half()),
                op => matches!(op.rules().precision(), Precision::Product | Precision::Window),
            };
            let reads_columns = columns == Columns::AsTheyAre && matches!(node.op, Op::MatMul(_) | Op::Conv2d(_));
            for input in inputs.iter_mut().filter(|_| all) {
                if half(new, *input) && !(reads_columns && is_column(new, *input)) {
                    *input = cast_once(new, &mut casts, *input, dtype)?;
                }
            }
            new.add(retyped(old, node, &narrow, dtype), &inputs)
        })?;
        node.outputs.iter().zip(outputs).for_each(|(output, new)| renamed[output.index()] = Some(new));
    }
    // Outputs retain the declared types, and so do states.
    let kept = old.outputs.iter().map(|(_, value)| *value).chain(old.updates.iter().map(|(_, value)| *value));
    let mut promised = renamed.clone();
    for value in kept {
        let now = renamed[value.index()].expect("what is kept is made");
        let producer = new.producer(now);
        let (scope, phase) = (producer.scope.clone(), producer.phase);
        let cast = new.within(&scope, phase, |g| cast_once(g, &mut casts, now, old.ty(value).dtype))?;
        promised[value.index()] = Some(cast);
    }
    finish(&mut new, old, &promised);
    // Gradients are taken later.
    new.stopped = old.stopped.iter().filter_map(|value| renamed[value.index()]).collect();
    verify(&new)?;
    Ok(new)
}

/// Whether a value is a column of the batch, possibly reshaped.
fn is_column(graph: &Graph, value: ValueId) -> bool {
    let producer = graph.producer(value);
    match producer.op {
        Op::Input(_) => true,
        Op::Reshape(_) => is_column(graph, producer.inputs[0]),
        _ => false,
    }
}

fn cast_once(
    graph: &mut Graph,
    known: &mut HashMap<(ValueId, DType), ValueId>,
    value: ValueId,
    dtype: DType,
) -> Result<ValueId, GraphError> {
    if let Some(cast) = known.get(&(value, dtype)) {
        return Ok(*cast);
    }
    let cast = graph.cast(value, dtype)?;
    known.insert((value, dtype), cast);
    Ok(cast)
}

/// The node's op with 16-bit results where selected.
fn retyped(old: &Graph, node: &Node, narrow: &[bool], dtype: DType) -> Op {
    let stored = |i: usize| if narrow[node.outputs[i].index()] { dtype } else { old.ty(node.outputs[i]).dtype };
    match node.op.clone() {
        Op::MatMul(op) => Op::MatMul(MatMul { dtype: stored(0), ..op }),
        Op::Conv2d(op) => Op::Conv2d(Conv2d { dtype: stored(0), ..op }),
        Op::Conv2dGradInput(op) => Op::Conv2dGradInput(Conv2dGradInput { dtype: stored(0), ..op }),
        Op::Gather(_) => Op::Gather(Gather { dtype: stored(0) }),
        Op::Pointwise(op) => Op::Pointwise(Pointwise { dtypes: (0..op.dtypes.len()).map(stored).collect(), ..op }),
        op => op,
    }
}

/// Selects the results of products and expressions that are stored in 16 bits. Traverses backwards, so consumers are
/// decided first.
fn narrowed(graph: &Graph) -> Vec<bool> {
    let mut readers: Vec<Vec<&Node>> = vec![Vec::new(); graph.values.len()];
    for node in graph.nodes.iter() {
        node.inputs.iter().for_each(|input| readers[input.index()].push(node));
    }
    let mut host = vec![false; graph.values.len()];
    graph.outputs.iter().for_each(|(_, value)| host[value.index()] = true);
    let mut narrow = vec![false; graph.values.len()];
    // Whether a consumer reads a value in 16 bits.
    let mut wanted = vec![false; graph.values.len()];
    for node in graph.nodes.iter().rev() {
        for output in &node.outputs {
            let ty = graph.ty(*output);
            let readers = &readers[output.index()];
            wanted[output.index()] = readers.iter().any(|reader| match reader.op.rules().precision() {
                Precision::Product | Precision::Window => true,
                Precision::Movement | Precision::Expression => {
                    reader.outputs.iter().any(|made| narrow[made.index()] || wanted[made.index()])
                }
                Precision::Statistic | Precision::Leaf => false,
            });
            let grows = ty.dtype == DType::F32 && ty.shape.has_batch();
            narrow[output.index()] = grows
                && match &node.op {
                    Op::Pointwise(op) => {
                        let only_reduced = readers.iter().all(|reader| reader.op.rules().precision() == Precision::Statistic);
                        wanted[output.index()] || (!host[output.index()] && !only_reduced && ends_layer(graph, node, &op.expr))
                    }
                    op => op.rules().precision() == Precision::Product,
                };
        }
    }
    narrow
}

/// Whether an expression only adds, scales or clips the output of a product, convolution or pooling by parameters:
/// logits, but not the loss.
fn ends_layer(graph: &Graph, node: &Node, expr: &Expr) -> bool {
    let simple = |term: &Term| match term {
        Term::Input(_) | Term::Const(_) => true,
        Term::Binary(op, _, _) => matches!(op, Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min),
        _ => false,
    };
    let made = |mut value: ValueId| {
        while let Op::Reshape(_) = graph.producer(value).op {
            value = graph.producer(value).inputs[0];
        }
        matches!(graph.producer(value).op.rules().precision(), Precision::Product | Precision::Window)
    };
    let parameter = |value: &&ValueId| matches!(graph.producer(**value).op, Op::State(_));
    let mut others = node.inputs.iter().filter(|input| !parameter(input));
    expr.terms().iter().all(simple) && others.next().is_some_and(|first| made(*first)) && others.next().is_none()
}
