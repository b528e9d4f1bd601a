//! Graph construction: the methods with which layers, losses and gradient rules are written.

use crate::DType;
use crate::base::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{Gather, MatMul, Pointwise, Reduce, Reduction, Reshape};

type Built = Result<ValueId, GraphError>;

impl Graph {
    /// An expression over the broadcast shape of its inputs.
    pub fn pointwise(&mut self, expr: Expr, inputs: &[ValueId]) -> Built {
        let mut shape = Shape::scalar();
        for input in inputs {
            let own = self.shape(*input);
            shape = shape.broadcast(own).ok_or_else(|| self.error(format!("shapes {shape} and {own} do not go together")))?;
        }
        self.pointwise_over(expr, inputs, shape)
    }

    /// An expression over a given shape, in single precision.
    pub fn pointwise_over(&mut self, expr: Expr, inputs: &[ValueId], shape: Shape) -> Built {
        let dtypes = vec![DType::F32; expr.roots().len()];
        self.pointwise_many(expr, inputs, shape, dtypes).map(|outputs| outputs[0])
    }

    /// An expression with several results. Unused inputs are dropped, so that they do not stay live.
    pub fn pointwise_many(&mut self, expr: Expr, inputs: &[ValueId], shape: Shape, dtypes: Vec<DType>) -> Result<Vec<ValueId>, GraphError> {
        let mut read: Vec<ValueId> = Vec::new();
        let expr = Expr::build_many(|e| {
            expr.inline(e, &mut |i| {
                let value = inputs[i as usize];
                let place = read.iter().position(|known| *known == value).unwrap_or_else(|| {
                    read.push(value);
                    read.len() - 1
                });
                e.input(place as u16)
            })
        });
        self.add(Op::Pointwise(Pointwise { expr, shape, dtypes }), &read)
    }

    /// A tensor filled with one number.
    pub fn full(&mut self, value: f32, shape: Shape) -> Built {
        self.pointwise_over(Expr::build(|e| e.constant(value)), &[], shape)
    }

    /// The value in another element type.
    pub fn cast(&mut self, x: ValueId, dtype: DType) -> Built {
        if self.ty(x).dtype == dtype {
            return Ok(x);
        }
        let shape = self.shape(x).clone();
        self.pointwise_many(Expr::identity(), &[x], shape, vec![dtype]).map(|outputs| outputs[0])
    }

    /// The same value, treated as a constant by gradients.
    pub fn stop_gradient(&mut self, x: ValueId) -> Built {
        let ty = self.ty(x).clone();
        let stopped = self.pointwise_many(Expr::identity(), &[x], ty.shape, vec![ty.dtype])?[0];
        self.stopped.push(stopped);
        Ok(stopped)
    }

    /// A function of one tensor.
    pub fn unary(&mut self, op: Unary, x: ValueId) -> Built {
        self.pointwise(Expr::build(|e| e.unary(op, e.input(0))), &[x])
    }

    /// A function of two tensors.
    pub fn binary(&mut self, op: Binary, a: ValueId, b: ValueId) -> Built {
        self.pointwise(Expr::build(|e| e.binary(op, e.input(0), e.input(1))), &[a, b])
    }

    /// A function of one tensor, written as an expression.
    pub fn map(&mut self, x: ValueId, body: impl FnOnce(&ExprBuilder, TermId) -> TermId) -> Built {
        self.pointwise(Expr::build(|e| body(e, e.input(0))), &[x])
    }

    /// `a + b` with broadcasting.
    pub fn plus(&mut self, a: ValueId, b: ValueId) -> Built {
        self.binary(Binary::Add, a, b)
    }

    /// Elementwise `a · b` with broadcasting.
    pub fn times(&mut self, a: ValueId, b: ValueId) -> Built {
        self.binary(Binary::Mul, a, b)
    }

    /// The matrix product.
    pub fn matmul(&mut self, a: ValueId, b: ValueId) -> Built {
        self.add_one(Op::MatMul(MatMul::default()), &[a, b])
    }

    /// Rows of a table by index, in the table's type.
    pub fn gather(&mut self, table: ValueId, indices: ValueId) -> Built {
        let dtype = self.ty(table).dtype;
        self.add_one(Op::Gather(Gather { dtype }), &[table, indices])
    }

    /// A reduction along axes, which remain with extent 1.
    pub fn reduce(&mut self, kind: Reduction, x: ValueId, axes: &[usize]) -> Built {
        let shape = self.shape(x).clone();
        self.add_one(Op::Reduce(Reduce { expr: Expr::identity(), shape, kind, axes: axes.to_vec(), onto: false }), &[x])
    }

    /// The sum of all elements, as a scalar.
    pub fn sum(&mut self, x: ValueId) -> Built {
        let axes: Vec<usize> = (0..self.shape(x).rank()).collect();
        let sum = if axes.is_empty() { x } else { self.reduce(Reduction::Sum, x, &axes)? };
        self.reshape(sum, Shape::scalar())
    }

    /// The same elements under another shape.
    pub fn reshape(&mut self, x: ValueId, shape: Shape) -> Built {
        if *self.shape(x) == shape {
            return Ok(x);
        }
        self.add_one(Op::Reshape(Reshape { shape }), &[x])
    }

    /// Sums the axes along which `shape` was broadcast; the result has that shape.
    pub fn sum_to(&mut self, x: ValueId, shape: &Shape) -> Built {
        let axes = shape.stretched_axes(self.shape(x));
        let summed = if axes.is_empty() { x } else { self.reduce(Reduction::Sum, x, &axes)? };
        self.reshape(summed, shape.clone())
    }

    /// `[B, n]`: all dimensions after the batch merged into one.
    pub fn flatten(&mut self, x: ValueId) -> Built {
        let shape = self.shape(x);
        let [batch, rest @ ..] = shape.dims() else {
            return Err(self.error("cannot flatten a single number"));
        };
        if rest.iter().any(|dim| dim.is_batch()) {
            return Err(self.error(format!("only the first dimension may be the batch, but the shape is {shape}")));
        }
        let rest = rest.iter().map(|dim| dim.factor()).product();
        self.reshape(x, Shape::new([*batch, Dim::fixed(rest)]))
    }
}
