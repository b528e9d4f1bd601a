//! What the exporters to graphs of other programs share: who reads a value, which values are constants, and what can be
//! folded into the weights of a convolution or a product.

use super::fold::{self, Constants};
use crate::error::Error;
use crate::import::ImportedWeights;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::Node;
use plimsoll_core::{DType, Graph, Op, ValueId};
use std::collections::{HashMap, HashSet};

/// Why a node has no counterpart, or what failed.
#[derive(Debug)]
pub(super) enum ExportProblem {
    Unsupported(String),
    Failed(Error),
}

impl ExportProblem {
    pub fn unsupported(what: &str) -> ExportProblem {
        ExportProblem::Unsupported(what.to_string())
    }
}

/// The prediction graph of a network while it is walked.
pub(super) struct GraphWalk<'a> {
    pub graph: &'a Graph,
    pub weights: &'a ImportedWeights,
    pub constants: Constants,
    /// How many nodes read a value, outputs of the graph included.
    pub readers: HashMap<ValueId, usize>,
    /// Values inside of folded chains, which nothing else reads.
    pub folded: HashSet<ValueId>,
    /// The node that reads a value, where it is one.
    reader: HashMap<ValueId, &'a Node>,
}

/// What follows a convolution or a product and can be computed with it.
pub(super) struct Followed {
    /// Factors of the output channels, to be multiplied into the weights.
    pub scale: Option<Vec<f32>>,
    /// The bias.
    pub offset: Option<Vec<f32>>,
    /// An expression of the result, such as an activation.
    pub rest: Option<Expr>,
    /// The value that all of it computes.
    pub value: ValueId,
}

/// The position of the only input that is no constant, and the constants of the others.
pub(super) type OneVariable = (usize, Vec<Option<Vec<f64>>>);

impl<'a> GraphWalk<'a> {
    pub fn new(graph: &'a Graph, weights: &'a ImportedWeights) -> GraphWalk<'a> {
        let (mut readers, mut reader): (HashMap<ValueId, usize>, HashMap<ValueId, &Node>) = (HashMap::new(), HashMap::new());
        for (_, node) in graph.nodes() {
            for value in &node.inputs {
                *readers.entry(*value).or_default() += 1;
                reader.insert(*value, node);
            }
        }
        graph.outputs().iter().for_each(|(_, value)| *readers.entry(*value).or_default() += 1);
        GraphWalk { graph, weights, constants: Constants::default(), folded: HashSet::new(), readers, reader }
    }

    /// The only node that reads a value, if it is one.
    pub fn only_reader(&self, value: ValueId) -> Option<&'a Node> {
        self.reader.get(&value).copied().filter(|_| self.readers.get(&value) == Some(&1))
    }

    pub fn is_state(&self, value: ValueId) -> bool {
        self.graph.as_state(value).is_some()
    }

    /// The name of the weight that a value is.
    pub fn weight_name(&self, value: ValueId) -> Option<String> {
        self.graph.as_state(value).map(|id| self.graph.states()[id.0 as usize].name.clone())
    }

    /// Constants of all inputs but one, which is given by its position. Constants vary along the last axis only.
    pub fn one_variable(&mut self, node: &Node) -> Result<Option<OneVariable>, ExportProblem> {
        let mut variable = None;
        let mut constants = Vec::with_capacity(node.inputs.len());
        for (i, input) in node.inputs.iter().enumerate() {
            let dims = self.graph.shape(*input).dims();
            let by_channel = dims.iter().rev().skip(1).all(|dim| dim.as_fixed() == Some(1));
            let found = if by_channel { self.constants.of(self.graph, self.weights, *input).map_err(ExportProblem::Failed)? } else { None };
            if found.is_none() && variable.replace(i).is_some() {
                return Ok(None);
            }
            constants.push(found);
        }
        Ok(variable.map(|at| (at, constants)))
    }

    /// Follows a value through biases, batch normalizations and an activation that only it reads.
    pub fn followed(&mut self, mut value: ValueId, channels: usize) -> Result<Followed, ExportProblem> {
        let graph = self.graph;
        let (mut scale, mut offset) = (vec![1.0; channels], vec![0.0; channels]);
        let mut rest = None;
        while rest.is_none() {
            let Some(node) = self.only_reader(value) else { break };
            let Op::Pointwise(op) = &node.op else { break };
            let same = op.shape == *graph.shape(value) && op.dtypes == [DType::F32] && node.inputs.len() > 1;
            let Some((at, constants)) = self.one_variable(node)?.filter(|(at, _)| same && node.inputs[*at] == value) else { break };
            let Some(affine) = fold::affine(&op.expr, at, &constants, channels) else { break };
            for (i, (scale, offset)) in scale.iter_mut().zip(&mut offset).enumerate() {
                *scale *= affine.scale[i];
                *offset = *offset * affine.scale[i] + affine.offset[i];
            }
            self.folded.insert(value);
            (value, rest) = (node.outputs[0], affine.rest);
        }
        let narrow = |numbers: Vec<f64>| numbers.into_iter().map(|number| number as f32).collect::<Vec<f32>>();
        let scaled = scale.iter().any(|scale| *scale != 1.0);
        let shifted = offset.iter().any(|offset| *offset != 0.0);
        Ok(Followed { scale: scaled.then(|| narrow(scale)), offset: shifted.then(|| narrow(offset)), rest, value })
    }
}
