//! The float64 reference: every op as the simplest possible loop. Slow on purpose; devices and passes are compared with
//! it.

mod attention;
mod movement;
mod recurrent;
mod tensor;
mod windows;

use crate::DType;
use crate::base::expr::{Element, Expr};
use crate::base::pairwise::PairwiseTree;
use crate::base::random::StepRandom;
use crate::base::shape::Shape;
use crate::base::shard;
use crate::ir::graph::{Graph, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{AllGather, AllReduce, MatMul, PairwiseSum, Reduce, ReduceScatter, Reduction, Slice};
use std::collections::BTreeMap;
use tensor::{Tensor, coordinates};

/// The result of one run of a graph.
#[derive(Clone, Debug)]
pub struct Outcome {
    values: Vec<Vec<f64>>,
    outputs: Vec<(String, Vec<f64>)>,
    states: Vec<Vec<f64>>,
}

impl Outcome {
    /// The elements of any value of the graph.
    pub fn value(&self, value: ValueId) -> &[f64] {
        &self.values[value.index()]
    }

    /// The outputs by name, in the graph's order.
    pub fn outputs(&self) -> &[(String, Vec<f64>)] {
        &self.outputs
    }

    /// The output of this name.
    pub fn output(&self, name: &str) -> Option<&[f64]> {
        self.outputs.iter().find(|(known, _)| known == name).map(|(_, elements)| &elements[..])
    }

    /// The states after the step, in their order.
    pub fn states(&self) -> &[Vec<f64>] {
        &self.states
    }
}

/// Runs a graph over `rows` rows in double precision. Real numbers are not rounded to the graph's types; integers
/// truncate toward zero and saturate, as a store would.
///
/// ```
/// use plimsoll_core::{Graph, Shape, TensorType, random::StepRandom, reference};
/// let mut graph = Graph::new();
/// let x = graph.input("x", TensorType::f32(Shape::batch_of([2])));
/// let sum = graph.sum(x)?;
/// graph.output("sum", sum);
/// let outcome = reference::run(&graph, 2, &[vec![1.0, 2.0, 3.0, 4.0]], &[], &[], &StepRandom::default());
/// assert_eq!(outcome.output("sum"), Some(&[10.0][..]));
/// # Ok::<(), plimsoll_core::GraphError>(())
/// ```
pub fn run(graph: &Graph, rows: usize, inputs: &[Vec<f64>], states: &[Vec<f64>], scalars: &[f64], random: &StepRandom) -> Outcome {
    let exact = |dtype: DType, x: f64| if dtype.is_float() { x } else { dtype.stored(x) };
    run_with(exact, graph, &[RankInputs { rows, inputs, states, scalars, random: *random }]).remove(0)
}

/// Like [`run`], but rounds values that are stored in 16 bits; for comparison with devices that store them so.
pub fn run_stored(graph: &Graph, rows: usize, inputs: &[Vec<f64>], states: &[Vec<f64>], scalars: &[f64], random: &StepRandom) -> Outcome {
    let rounded = |dtype: DType, x: f64| if matches!(dtype, DType::F32 | DType::F64) { x } else { dtype.stored(x) };
    run_with(rounded, graph, &[RankInputs { rows, inputs, states, scalars, random: *random }]).remove(0)
}

/// What one rank of a job runs a graph with.
#[derive(Clone, Copy, Debug)]
pub struct RankInputs<'a> {
    /// Its rows.
    pub rows: usize,
    /// Columns of its rows.
    pub inputs: &'a [Vec<f64>],
    /// States before the step.
    pub states: &'a [Vec<f64>],
    /// Scalars from the host.
    pub scalars: &'a [f64],
    /// State of the random streams.
    pub random: StepRandom,
}

/// Like [`run`], on several ranks at the same time: collectives are sums over all of them.
pub fn run_on_ranks(graph: &Graph, ranks: &[RankInputs<'_>]) -> Vec<Outcome> {
    let exact = |dtype: DType, x: f64| if dtype.is_float() { x } else { dtype.stored(x) };
    run_with(exact, graph, ranks)
}

fn run_with(stored: fn(DType, f64) -> f64, graph: &Graph, ranks: &[RankInputs<'_>]) -> Vec<Outcome> {
    let mut values: Vec<Vec<Tensor>> = vec![vec![Tensor::default(); graph.value_count()]; ranks.len()];
    for (_, node) in graph.nodes() {
        // The results of a collective on each rank.
        let mut exchanged = match &node.op {
            Op::AllReduce(op) => vec![all_reduce(*op, node, &values); ranks.len()],
            Op::ReduceScatter(op) => reduce_scatter(*op, node, &values),
            Op::AllGather(op) => vec![all_gather(op, node, &values); ranks.len()],
            _ => Vec::new(),
        };
        for (number, (rank, values)) in ranks.iter().zip(&mut values).enumerate() {
            let results = match &node.op {
                Op::Input(id) => vec![rank.inputs[id.0 as usize].clone()],
                Op::State(id) => vec![rank.states[id.0 as usize].clone()],
                Op::Scalar(id) => vec![vec![rank.scalars[id.0 as usize]]],
                op if op.is_collective() => std::mem::take(&mut exchanged[number]),
                Op::Shard(op) => {
                    assert_eq!(op.ranks as usize, ranks.len(), "the graph is for as many ranks as run it");
                    vec![shard_of(&values[node.inputs[0].index()].elements, ranks.len(), number)]
                }
                _ => {
                    let operands: Vec<&Tensor> = node.inputs.iter().map(|input| &values[input.index()]).collect();
                    compute(node, &operands, &Setting { graph, rows: rank.rows, random: &rank.random })
                }
            };
            for (output, elements) in node.outputs.iter().zip(results) {
                let ty = graph.ty(*output);
                let dims = ty.shape.bind(rank.rows);
                assert_eq!(elements.len(), dims.iter().product::<usize>(), "{output} has the type {ty} for {} rows", rank.rows);
                values[output.index()] = Tensor { dims, elements: elements.into_iter().map(|x| stored(ty.dtype, x)).collect() };
            }
        }
    }
    let outcome = |(rank, values): (&RankInputs<'_>, Vec<Tensor>)| {
        let elements = |value: &ValueId| values[value.index()].elements.clone();
        let mut after = rank.states.to_vec();
        for (state, value) in graph.updates() {
            after[state.0 as usize] = elements(value);
        }
        let outputs = graph.outputs().iter().map(|(name, value)| (name.clone(), elements(value))).collect();
        Outcome { outputs, states: after, values: values.into_iter().map(|tensor| tensor.elements).collect() }
    };
    ranks.iter().zip(values).map(outcome).collect()
}

/// The sums of a collective over all ranks, and its token.
fn all_reduce(op: AllReduce, node: &Node, values: &[Vec<Tensor>]) -> Vec<Vec<f64>> {
    assert_eq!(op.ranks as usize, values.len(), "the graph is for as many ranks as run it");
    let (tensors, present, token) = op.operands(&node.inputs);
    let sum = |input: &ValueId| {
        let of = |rank: usize| &values[rank][input.index()].elements;
        let (Some(micro_batches), Some(present)) = (op.order, present) else {
            let mut sum = of(0).clone();
            (1..values.len()).for_each(|rank| add(&mut sum, of(rank)));
            return sum;
        };
        let tree = PairwiseTree::new(micro_batches.get());
        let mut sums: Vec<Vec<f64>> = (0..values.len()).map(|rank| of(rank).clone()).collect();
        for pair in tree.exchanges(op.ranks) {
            if f64::from(pair.from) < values[0][present.index()].elements[0] {
                let right = std::mem::take(&mut sums[pair.right as usize]);
                add(&mut sums[pair.left as usize], &right);
            }
        }
        sums.swap_remove(tree.root(op.ranks) as usize)
    };
    let before = token.map_or(0.0, |token| values[0][token.index()].elements[0]);
    tensors.iter().map(sum).chain([vec![before + 1.0]]).collect()
}

/// A rank's shard of a tensor.
fn shard_of(elements: &[f64], ranks: usize, rank: usize) -> Vec<f64> {
    let mut own = elements[shard::range(elements.len(), ranks, rank)].to_vec();
    own.resize(shard::length(elements.len(), ranks), 0.0);
    own
}

/// For every rank, its shards of the sums over all ranks, and the token.
fn reduce_scatter(op: ReduceScatter, node: &Node, values: &[Vec<Tensor>]) -> Vec<Vec<Vec<f64>>> {
    assert_eq!(op.ranks as usize, values.len(), "the graph is for as many ranks as run it");
    let (tensors, token) = op.operands(&node.inputs);
    let sum = |input: &ValueId| {
        let mut sum = values[0][input.index()].elements.clone();
        values[1..].iter().for_each(|values| add(&mut sum, &values[input.index()].elements));
        sum
    };
    let sums: Vec<Vec<f64>> = tensors.iter().map(sum).collect();
    let count = token.map_or(0.0, |token| values[0][token.index()].elements[0]) + 1.0;
    let of_rank = |rank| sums.iter().map(|sum| shard_of(sum, values.len(), rank)).chain([vec![count]]).collect();
    (0..values.len()).map(of_rank).collect()
}

/// The tensors that the shards of all ranks are those of, and the token.
fn all_gather(op: &AllGather, node: &Node, values: &[Vec<Tensor>]) -> Vec<Vec<f64>> {
    assert_eq!(op.ranks as usize, values.len(), "the graph is for as many ranks as run it");
    let (shards, token) = op.operands(&node.inputs);
    let whole = |(input, shape): (&ValueId, &Shape)| {
        let mut whole: Vec<f64> = values.iter().flat_map(|values| values[input.index()].elements.iter().copied()).collect();
        whole.truncate(shape.elements().factor());
        whole
    };
    let count = token.map_or(0.0, |token| values[0][token.index()].elements[0]) + 1.0;
    shards.iter().zip(&op.shapes).map(whole).chain([vec![count]]).collect()
}

/// Inputs of a step other than tensors.
struct Setting<'a> {
    graph: &'a Graph,
    rows: usize,
    random: &'a StepRandom,
}

fn compute(node: &Node, operands: &[&Tensor], setting: &Setting<'_>) -> Vec<Vec<f64>> {
    match &node.op {
        Op::Input(_) | Op::State(_) | Op::Scalar(_) => unreachable!("leaves are given, not computed"),
        Op::AllReduce(_) | Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => {
            unreachable!("collectives are computed for all ranks at once")
        }
        Op::PairwiseSum(op) => vec![pairwise_sum(*op, operands)],
        Op::Pointwise(op) => pointwise(&op.expr, &op.shape, operands, setting),
        Op::Reduce(op) => vec![reduce(op, operands, setting)],
        Op::MatMul(op) => {
            let mut product = matmul(op, operands[0], operands[1]);
            if op.onto {
                add(&mut product.elements, &operands[2].elements);
                return vec![product.elements];
            }
            vec![epilogue(op.epilogue.as_ref(), product, &operands[2..], setting)]
        }
        Op::Conv2d(op) => {
            let result = windows::conv2d(&op.window, op.groups, operands[0], operands[1]);
            vec![epilogue(op.epilogue.as_ref(), result, &operands[2..], setting)]
        }
        Op::Conv2dGradInput(op) => {
            let dims = op.input.bind(setting.rows);
            vec![windows::conv2d_grad_input(&op.window, op.groups, &dims, operands[0], operands[1]).elements]
        }
        Op::Conv2dGradFilter(op) => {
            let dims = op.filter.bind(setting.rows);
            let mut sum = windows::conv2d_grad_filter(&op.window, op.groups, &dims, operands[0], operands[1]).elements;
            if op.onto {
                add(&mut sum, &operands[2].elements);
            }
            vec![sum]
        }
        Op::MaxPool(op) => windows::max_pool(&op.window, operands[0]).into(),
        Op::MaxPoolGrad(op) => vec![windows::max_pool_grad(&op.window, &op.input.bind(setting.rows), operands[0], operands[1]).elements],
        Op::AvgPool(op) => vec![windows::avg_pool(&op.window, operands[0])],
        Op::AvgPoolGrad(op) => vec![windows::avg_pool_grad(&op.window, &op.input.bind(setting.rows), operands[0]).elements],
        Op::Reshape(_) | Op::Store(_) | Op::Load(_) => vec![operands[0].elements.clone()],
        Op::Recurrent(op) => recurrent::walk(op, operands),
        Op::RecurrentGrad(op) => recurrent::walk_back(op, operands),
        Op::Transpose(op) => vec![movement::transpose(&op.order, operands[0])],
        Op::Slice(op) => {
            let rows = setting.graph.shape(node.inputs[0]).dims()[op.axis].is_batch();
            vec![movement::slice(op, if rows { setting.rows } else { 1 }, operands[0])]
        }
        Op::BatchSlice(op) => {
            let unit = setting.graph.shape(node.inputs[0]).dims()[0].factor();
            vec![movement::batch_slice(op, unit, operands[0])]
        }
        Op::Concat(op) => vec![movement::concat(op.axis, operands)],
        Op::SliceWrite(op) => {
            let (whole, part) = (setting.graph.shape(node.outputs[0]), setting.graph.shape(node.inputs[0]).dims()[op.axis]);
            vec![movement::put(op.axis, op.first(part, setting.rows), &whole.bind(setting.rows), operands)]
        }
        Op::FusedSliceWrite(op) => {
            let (base, read) = operands.split_at(op.before());
            let (_, ty) = setting.graph.effective_op(node).slice.expect("a fused slice write has a slice");
            let maker = Node { op: (*op.producer).clone(), inputs: node.inputs[op.before()..].to_vec(), ..node.clone() };
            let part = Tensor { dims: ty.shape.bind(setting.rows), elements: compute(&maker, read, setting).remove(0) };
            let (place, whole) = (&op.slice, setting.graph.shape(node.outputs[0]).bind(setting.rows));
            let start = place.first(ty.shape.dims()[place.axis], setting.rows);
            let put: Vec<&Tensor> = [&part].into_iter().chain(base.iter().copied()).collect();
            vec![movement::put(place.axis, start, &whole, &put)]
        }
        Op::ChannelView(op) => {
            let axis = operands[0].dims.len() - 1;
            vec![movement::slice(&Slice { axis, start: op.start, length: op.length }, 1, operands[0])]
        }
        Op::Pad(op) => vec![movement::pad(op, operands[0])],
        Op::Gather(_) => vec![movement::gather(operands[0], operands[1])],
        Op::ScatterAdd(op) => {
            let mut sum = movement::scatter_add(&op.table.bind(setting.rows), operands[0], operands[1]);
            if op.onto {
                add(&mut sum, &operands[2].elements);
            }
            vec![sum]
        }
        Op::Attention(op) => attention::forward(op, operands, setting).into(),
        Op::AttentionGrad(op) => attention::gradient(&op.attention, operands, setting),
    }
}

/// Every result of the expression, element by element.
fn pointwise(expr: &Expr, shape: &Shape, operands: &[&Tensor], setting: &Setting<'_>) -> Vec<Vec<f64>> {
    // A micro-batch uses the same random numbers as the whole batch: elements are counted from the batch's first row.
    let before = if shape.has_batch() { setting.random.first_row * shape.elements().factor() as u64 } else { 0 };
    let mut results = vec![Vec::new(); expr.roots().len()];
    for (index, at) in coordinates(&shape.bind(setting.rows)).enumerate() {
        let inputs: Vec<f64> = operands.iter().map(|operand| operand.stretched(&at)).collect();
        let element = Element { random: setting.random, index: before + index as u64, coordinates: &at };
        for (result, value) in results.iter_mut().zip(expr.evaluate(&inputs, &element)) {
            result.push(value);
        }
    }
    results
}

fn epilogue(expr: Option<&Expr>, result: Tensor, rest: &[&Tensor], setting: &Setting<'_>) -> Vec<f64> {
    let Some(expr) = expr else { return result.elements };
    let shape = Shape::fixed(result.dims.clone());
    let operands: Vec<&Tensor> = std::iter::once(&result).chain(rest.iter().copied()).collect();
    pointwise(expr, &shape, &operands, setting).remove(0)
}

fn reduce(op: &Reduce, operands: &[&Tensor], setting: &Setting<'_>) -> Vec<f64> {
    let dims = op.shape.bind(setting.rows);
    let elements = pointwise(&op.expr, &op.shape, operands, setting).remove(0);
    let mut groups: BTreeMap<Vec<usize>, Vec<f64>> = BTreeMap::new();
    for (mut at, element) in coordinates(&dims).zip(elements) {
        op.axes.iter().for_each(|axis| at[*axis] = 0);
        groups.entry(at).or_default().push(element);
    }
    let mut results: Vec<f64> = groups.values().map(|group| bring_together(op.kind, group)).collect();
    if op.onto {
        let before = &operands[operands.len() - 1].elements;
        // An empty piece has nothing to reduce.
        results.resize(before.len(), 0.0);
        add(&mut results, before);
    }
    results
}

/// The new partial sums over micro-batches, or the last sum.
fn pairwise_sum(op: PairwiseSum, operands: &[&Tensor]) -> Vec<f64> {
    let (mut sum, mut sums) = (operands[0].elements.clone(), operands[1].elements.clone());
    let (levels, count) = (operands[1].dims[0], sum.len());
    let (kept, before) = PairwiseSum::range(levels, operands[2].elements[0] as f32, operands[3].elements[0] as f32);
    (kept..before).rev().for_each(|level| add(&mut sum, &sums[level * count..][..count]));
    if op.last {
        return sum;
    }
    sums[kept.min(levels - 1) * count..][..count].copy_from_slice(&sum);
    sums
}

/// Adds the accumulator.
fn add(sums: &mut [f64], before: &[f64]) {
    sums.iter_mut().zip(before).for_each(|(sum, before)| *sum += before);
}

fn bring_together(kind: Reduction, group: &[f64]) -> f64 {
    let larger = |a: f64, b: f64| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) };
    let largest = group.iter().copied().fold(f64::NEG_INFINITY, larger);
    match kind {
        Reduction::Sum => group.iter().sum(),
        Reduction::Max => largest,
        Reduction::LogSumExp if largest.is_infinite() => largest,
        Reduction::LogSumExp => largest + group.iter().map(|x| (x - largest).exp()).sum::<f64>().ln(),
        // NaN counts as the maximum, as in the max reduction.
        Reduction::ArgMax => group.iter().position(|x| *x == largest || x.is_nan()).unwrap_or(0) as f64,
    }
}

fn matmul(op: &MatMul, a: &Tensor, b: &Tensor) -> Tensor {
    let left = |i: usize, k: usize| if op.transpose_a { a.at(&[k, i]) } else { a.at(&[i, k]) };
    let right = |k: usize, j: usize| if op.transpose_b { b.at(&[j, k]) } else { b.at(&[k, j]) };
    let (m, inner) = if op.transpose_a { (a.dims[1], a.dims[0]) } else { (a.dims[0], a.dims[1]) };
    let n = if op.transpose_b { b.dims[0] } else { b.dims[1] };
    Tensor::from_fn(&[m, n], |at| (0..inner).map(|k| left(at[0], k) * right(k, at[1])).sum())
}
