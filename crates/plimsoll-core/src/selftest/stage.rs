//! The surroundings of an op under test: leaves and a nonlinear function before it, a weighted sum after it, and inputs
//! away from kinks.

use super::Case;
use super::draw::Draw;
use crate::DType;
use crate::base::expr::{Binary, Expr, Unary};
use crate::base::random::StepRandom;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::graph::{Graph, GraphError, Init, StateKind, ValueId};
use crate::ir::op::Op;

/// Domain of an operand's elements.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Domain {
    Any,
    /// Above one half, for functions with restricted domains.
    Positive,
}

impl Case {
    /// The same with TF32 products.
    pub(super) fn in_tf32(self) -> Case {
        Case { name: format!("{}, in TF32", self.name), graph: self.graph.with_tf32(true), ..self }
    }

    /// Whether any value is stored in 16 bits.
    pub(super) fn stores_halves(&self) -> bool {
        self.graph.nodes().flat_map(|(_, node)| &node.outputs).any(|value| self.graph.ty(*value).dtype.is_half())
    }
}

/// A case under construction.
pub(super) struct Stage<'a> {
    pub graph: Graph,
    pub draw: &'a mut Draw,
    pub rows: usize,
    /// Values to differentiate with respect to.
    wrt: Vec<ValueId>,
    /// For integer leaves, the exclusive upper bound.
    ends: Vec<(ValueId, usize)>,
    /// Whether some elements are NaN.
    pub with_nan: bool,
}

impl<'a> Stage<'a> {
    pub fn new(draw: &'a mut Draw) -> Stage<'a> {
        let rows = draw.pick(&[1, 2, 3, 5]);
        Stage { graph: Graph::new(), draw, rows, wrt: Vec::new(), ends: Vec::new(), with_nan: false }
    }

    /// A shape of this rank whose first dimension is a multiple of the batch.
    pub fn batch_shape(&mut self, rank: usize) -> Shape {
        let batch = self.batch();
        let extents = self.draw.extents(rank - 1);
        Shape::new(std::iter::once(batch).chain(extents.into_iter().map(Dim::fixed)))
    }

    /// The batch, or a multiple of it.
    pub fn batch(&mut self) -> Dim {
        Dim::times_batch(self.draw.pick(&[1, 1, 2, 3]))
    }

    /// A leaf of real numbers, transformed by a monotone function so that the op does not read a leaf directly.
    /// Elements of all operands of a domain are distinct, so that no maximum is tied and no comparison is close.
    ///
    /// In 16 bits some elements are equal, and a transformed one may round either way. A leaf is rounded identically
    /// everywhere, so that ties and comparisons agree.
    pub fn operand(&mut self, shape: Shape, domain: Domain) -> Result<ValueId, GraphError> {
        let dtype = self.draw.dtype();
        self.operand_in(dtype, shape, domain)
    }

    /// [`Stage::operand`] of a given type.
    pub fn operand_in(&mut self, dtype: DType, shape: Shape, domain: Domain) -> Result<ValueId, GraphError> {
        let leaf = self.leaf(shape)?;
        if dtype.is_half() && domain == Domain::Any {
            return self.graph.cast(leaf, dtype);
        }
        let bent = self.graph.map(leaf, |e, x| match domain {
            Domain::Any => e.add(x, e.mul(e.constant(0.5), e.unary(Unary::Tanh, x))),
            Domain::Positive => e.add(e.unary(Unary::Softplus, x), e.constant(0.5)),
        })?;
        self.graph.cast(bent, dtype)
    }

    /// A scalar of this value.
    pub fn number(&mut self, number: f32) -> Result<ValueId, GraphError> {
        Ok(self.graph.pointwise_many(Expr::build(|e| e.constant(number)), &[], Shape::scalar(), vec![DType::F32])?[0])
    }

    /// An expression over the broadcast shape of its inputs, stored in a random type.
    pub fn expression(&mut self, expr: Expr, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let mut shape = Shape::scalar();
        for input in inputs {
            shape = shape.broadcast(self.graph.shape(*input)).expect("the table's shapes go together");
        }
        let dtype = self.draw.dtype();
        Ok(self.graph.pointwise_many(expr, inputs, shape, vec![dtype])?[0])
    }

    /// A column of real numbers in a random type.
    pub fn column(&mut self, shape: Shape) -> ValueId {
        let dtype = self.draw.dtype();
        let value = self.graph.input(&format!("x{}", self.wrt.len()), TensorType::new(dtype, shape));
        self.wrt.push(value);
        value
    }

    /// A leaf of real numbers: a column if it depends on the batch, otherwise a state or a scalar.
    pub fn leaf(&mut self, shape: Shape) -> Result<ValueId, GraphError> {
        let number = self.wrt.len();
        let value = if shape.has_batch() {
            self.graph.input(&format!("x{number}"), TensorType::f32(shape))
        } else if shape.rank() == 0 && self.draw.flip() {
            self.graph.scalar(&format!("s{number}"))
        } else {
            self.graph.state(&format!("w{number}"), StateKind::Parameter, TensorType::f32(shape), Init::Constant(0.0))?
        };
        self.wrt.push(value);
        Ok(value)
    }

    /// A column of integers below `end`.
    pub fn integers(&mut self, dtype: DType, shape: Shape, end: usize) -> ValueId {
        let value = self.graph.input(&format!("n{}", self.ends.len()), TensorType::new(dtype, shape));
        self.ends.push((value, end));
        value
    }

    /// Finishes a case whose gradient is checked too.
    pub fn finish(mut self, name: impl Into<String>, results: &[ValueId]) -> Result<Case, GraphError> {
        let mut loss = self.graph.full(0.0, Shape::scalar())?;
        for (i, result) in results.iter().enumerate() {
            let weighted = self.weigh(i, *result)?;
            let sum = self.graph.sum(weighted)?;
            loss = self.graph.plus(loss, sum)?;
        }
        Ok(self.fill(name.into(), Some(loss)))
    }

    /// Finishes a case whose op has no gradient, or none at this stage of the graph.
    pub fn finish_forward(mut self, name: impl Into<String>, results: &[ValueId]) -> Result<Case, GraphError> {
        for (i, result) in results.iter().enumerate() {
            if !self.graph.ty(*result).dtype.is_float() {
                self.graph.output(&format!("whole{i}"), *result);
            }
            self.weigh(i, *result)?;
        }
        Ok(self.fill(name.into(), None))
    }

    fn weigh(&mut self, i: usize, result: ValueId) -> Result<ValueId, GraphError> {
        let shape = self.graph.shape(result).clone();
        let weight = self.leaf(shape)?;
        let weighted = self.graph.binary(Binary::Mul, result, weight)?;
        self.graph.output(&format!("y{i}"), weighted);
        Ok(weighted)
    }

    /// Assigns every real leaf its share of one shuffled grid around zero that excludes zero.
    fn fill(self, name: String, loss: Option<ValueId>) -> Case {
        let Stage { graph, draw, rows, wrt, ends, with_nan } = self;
        let count = |ty: &TensorType| ty.shape.elements().bind(rows);
        let reals = graph.inputs().iter().map(|input| &input.ty).chain(graph.states().iter().map(|state| &state.ty));
        let points = reals.filter(|ty| ty.dtype.is_float()).map(count).sum::<usize>() + graph.scalars().len();
        let mut grid = draw.permutation(points).into_iter().map(|k| f64::from((4.0 * (k as f64 + 0.25) / points as f64 - 2.0) as f32));
        let mut real = |draw: &mut Draw| match with_nan && draw.below(8) == 0 {
            true => f64::NAN,
            false => grid.next().expect("the grid has a point for every element"),
        };
        let mut inputs = Vec::new();
        for (i, input) in graph.inputs().iter().enumerate() {
            let is_this = |value: &ValueId| matches!(graph.producer(*value).op, Op::Input(id) if id.0 as usize == i);
            let end = ends.iter().find(|(value, _)| is_this(value)).map(|(_, end)| *end);
            let elements = (0..count(&input.ty)).map(|_| match end {
                Some(end) => draw.below(end) as f64,
                None => input.ty.dtype.stored(real(draw)),
            });
            inputs.push(elements.collect());
        }
        let states = graph.states().iter().map(|state| (0..count(&state.ty)).map(|_| real(draw)).collect()).collect();
        let scalars = graph.scalars().iter().map(|_| real(draw)).collect();
        let random = StepRandom { seed: draw.below(1 << 20) as u64, step: 3, first_row: draw.below(9) as u64 };
        Case { op: "", name, graph, rows, inputs, states, scalars, random, loss, wrt }
    }
}
