//! The sums over rows that gradients consist of.
//!
//! A gradient is a linear function, free of rows, of sums over rows: usually one sum itself, seen through a view; two
//! for a tensor that is used twice. Micro-batches that accumulate these sums, each resuming where the last one stopped,
//! and apply the function once, perform the additions of the whole batch in the same order.

use crate::DType;
use crate::base::expr::{Binary, Expr, Term, Unary};
use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, GraphError, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{MatMul, Reduction};
use std::collections::{HashMap, HashSet};

/// The sums over rows behind some values of a graph.
pub(super) struct RowSums {
    /// Each with the index of the first value that depends on it.
    pub sums: Vec<(ValueId, usize)>,
    /// Whether each value is a linear function of these sums and of values that do not depend on rows.
    pub resumes: Vec<bool>,
    /// Values that depend on a sum.
    dependent: HashSet<ValueId>,
}

impl RowSums {
    /// As if none of the values were a function of sums over rows.
    pub fn none(values: usize) -> RowSums {
        RowSums { sums: vec![], resumes: vec![false; values], dependent: HashSet::new() }
    }

    pub fn of(graph: &Graph, values: &[ValueId]) -> RowSums {
        let mut found = RowSums { sums: vec![], resumes: vec![], dependent: HashSet::new() };
        for (i, value) in values.iter().enumerate() {
            let mut search = RowSumSearch { graph, sums: vec![], known: HashMap::new() };
            let resumes = search.depends(*value).is_some();
            if resumes {
                let new = search.sums.iter().filter(|sum| found.sums.iter().all(|(known, _)| known != *sum));
                let new: Vec<_> = new.map(|sum| (*sum, i)).collect();
                found.sums.extend(new);
                found.dependent.extend(search.known.iter().filter(|(_, depends)| **depends == Some(true)).map(|(value, _)| *value));
            }
            found.resumes.push(resumes);
        }
        found
    }

    /// The type of a sum's accumulator: single precision, also if the sum is rounded to 16 bits when complete.
    pub fn accumulator(graph: &Graph, sum: ValueId) -> TensorType {
        TensorType::f32(graph.shape(sum).clone())
    }

    /// Adds a sum over the rows of this micro-batch to the graph, which resumes from `before`.
    pub fn accumulate(graph: &mut Graph, sum: ValueId, before: Option<ValueId>) -> Result<ValueId, GraphError> {
        let node = graph.producer(sum).clone();
        if before.is_none() && graph.ty(sum).dtype == DType::F32 {
            return Ok(sum);
        }
        let op = node.op.rules().with_rows(&|shape| shape.clone(), before.is_some()).expect("sums over rows accumulate");
        let op = match op {
            Op::MatMul(op) => Op::MatMul(MatMul { dtype: DType::F32, ..op }),
            op => op,
        };
        let inputs: Vec<ValueId> = node.inputs.iter().copied().chain(before).collect();
        graph.within(&node.scope, node.phase, |g| g.add_one(op, &inputs))
    }

    /// Adds `value` to the graph as a function of other sums, given those for each sum.
    pub fn substitute(&self, graph: &mut Graph, value: ValueId, sums: &mut HashMap<ValueId, ValueId>) -> Result<ValueId, GraphError> {
        if let Some(known) = sums.get(&value) {
            return Ok(*known);
        }
        if !self.dependent.contains(&value) {
            return Ok(value);
        }
        let node = graph.producer(value).clone();
        let inputs = node.inputs.iter().map(|input| self.substitute(graph, *input, sums)).collect::<Result<Vec<_>, _>>()?;
        let outputs = graph.within(&node.scope, node.phase, |g| g.add(node.op.clone(), &inputs))?;
        sums.extend(node.outputs.iter().copied().zip(outputs));
        Ok(sums[&value])
    }
}

struct RowSumSearch<'a> {
    graph: &'a Graph,
    sums: Vec<ValueId>,
    known: HashMap<ValueId, Option<bool>>,
}

impl RowSumSearch<'_> {
    /// Whether a value depends on a sum over rows; none if it is not a linear function of such sums.
    fn depends(&mut self, value: ValueId) -> Option<bool> {
        if let Some(known) = self.known.get(&value) {
            return *known;
        }
        let node = self.graph.producer(value);
        let depends = if node.op.is_leaf() {
            Some(false)
        } else if node.inputs.iter().any(|input| self.graph.shape(*input).has_batch()) {
            sums_rows(self.graph, node).then(|| {
                self.sums.push(value);
                true
            })
        } else {
            let inputs: Option<Vec<bool>> = node.inputs.iter().map(|input| self.depends(*input)).collect();
            inputs.and_then(|inputs| if inputs.contains(&true) { is_linear(&node.op, &inputs).then_some(true) } else { Some(false) })
        };
        self.known.insert(value, depends);
        depends
    }
}

/// Whether a node is a sum over the rows of the batch that can resume from another one.
fn sums_rows(graph: &Graph, node: &Node) -> bool {
    let rows_first = |value: ValueId| graph.shape(value).dims().first().is_some_and(|first| first.is_batch());
    match &node.op {
        Op::MatMul(op) => {
            let k = op.dims(graph.shape(node.inputs[0]), graph.shape(node.inputs[1])).map(|(_, _, k)| k.is_batch());
            k == Ok(true) && op.epilogue.is_none() && !op.onto
        }
        Op::Reduce(op) => {
            let over_rows = op.axes.first() == Some(&0) && op.shape.dims().first().is_some_and(|first| first.is_batch());
            op.kind == Reduction::Sum && over_rows && op.expr.arity() == node.inputs.len() && !op.onto
        }
        Op::Conv2dGradFilter(op) => !op.onto,
        Op::ScatterAdd(op) => rows_first(node.inputs[0]) && !op.onto,
        _ => false,
    }
}

/// Whether the result is a linear function of the inputs that depend on sums, up to a constant and rounding.
fn is_linear(op: &Op, depends: &[bool]) -> bool {
    match op {
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Pad(_) | Op::Concat(_) => true,
        Op::Pointwise(op) => is_linear_expr(&op.expr, depends),
        Op::Reduce(op) => op.kind == Reduction::Sum && is_linear_expr(&op.expr, depends) && !op.onto,
        Op::MatMul(op) => op.epilogue.is_none() && !op.onto && !(depends[0] && depends[1]),
        _ => false,
    }
}

fn is_linear_expr(expr: &Expr, depends: &[bool]) -> bool {
    let mut known: Vec<bool> = Vec::with_capacity(expr.terms().len());
    for term in expr.terms() {
        let depends = match term {
            Term::Input(i) => depends[*i as usize],
            Term::Const(_) | Term::Random(_) | Term::Coordinate(_) => false,
            Term::Unary(unary, x) => match known[*x as usize] {
                true if *unary == Unary::Neg => true,
                true => return false,
                false => false,
            },
            Term::Binary(binary, x, y) => match (binary, known[*x as usize], known[*y as usize]) {
                (_, false, false) => false,
                (Binary::Add | Binary::Sub, ..) | (Binary::Mul, true, false) | (Binary::Mul, false, true) => true,
                (Binary::Div, true, false) => true,
                _ => return false,
            },
            Term::Select(when, x, y) => match known[*when as usize] {
                true => return false,
                false => known[*x as usize] || known[*y as usize],
            },
        };
        known.push(depends);
    }
    true
}
