//! Eager ops as pieces of a graph: each adds the nodes that a model with this op would have.

use super::composite::Composite;
use super::error::BuiltValues;
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::function::Function;
use plimsoll_core::graph::GraphError;
use plimsoll_core::ops::{Reduce, Reduction};
use plimsoll_core::{DType, Graph, Op, Shape, TensorType, ValueId};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// An op with its attributes: what a compiled program depends on, besides the types of its operands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Call {
    /// A function of every element.
    Unary(Unary),
    /// A function of pairs of elements, with broadcasting.
    Binary(Binary),
    /// A function of every element and a number that may differ between calls.
    WithScalar(Binary),
    /// The same, with the number first.
    ScalarWith(Binary),
    /// The first plus the second times a number.
    AddScaled,
    /// A comparison, with a mask as the result.
    Compare(Binary),
    /// A comparison with a number.
    CompareScalar(Binary),
    /// The same, with the number first.
    ScalarCompare(Binary),
    /// The second where the first is not zero, otherwise the third.
    Select,
    /// An expression of every element.
    Map(&'static str, Expr),
    /// An expression of every element, with a mask as the result.
    Mask(&'static str, Expr),
    /// Another element type.
    Cast(DType),
    /// A tensor of one number.
    Fill(TensorType),
    /// Uniform random numbers in [0, 1).
    Uniform(Shape),
    /// `0, 1, 2, …` along the only axis.
    Range(usize),
    /// A reduction along axes, which remain with extent 1.
    Reduce(Reduction, Vec<usize>),
    /// The same elements under another shape.
    Reshape(Shape),
    /// Broadcasts to a shape.
    Broadcast(Shape),
    /// A single node.
    Node(Op),
    /// Several nodes.
    Composite(Composite),
    /// A function, such as the gradient of another call.
    Function(&'static str, Identical),
}

/// A function that equals only itself.
#[derive(Clone, Debug)]
pub(super) struct Identical(pub Arc<Function>);

impl PartialEq for Identical {
    fn eq(&self, other: &Identical) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Identical {}

impl Hash for Identical {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl Call {
    /// The name in messages and accounting.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Unary(op) => unary_name(*op),
            Call::Binary(op) | Call::WithScalar(op) | Call::ScalarWith(op) | Call::Compare(op) | Call::CompareScalar(op) => {
                binary_name(*op)
            }
            Call::ScalarCompare(Binary::Less) => "gt",
            Call::ScalarCompare(_) => "ge",
            Call::AddScaled => "add_scaled",
            Call::Select => "where",
            Call::Map(name, _) | Call::Mask(name, _) | Call::Function(name, _) => name,
            Call::Cast(_) => "to_dtype",
            Call::Fill(_) => "full",
            Call::Uniform(_) => "uniform",
            Call::Range(_) => "arange",
            Call::Reduce(Reduction::Sum, _) => "sum",
            Call::Reduce(Reduction::Max, _) => "max",
            Call::Reduce(Reduction::LogSumExp, _) => "logsumexp",
            Call::Reduce(Reduction::ArgMax, _) => "argmax",
            Call::Reshape(_) => "reshape",
            Call::Broadcast(_) => "broadcast_to",
            Call::Node(op) => op.rules().name(),
            Call::Composite(op) => op.name(),
        }
    }

    /// Results that are kept for the gradient and that no loss may depend on.
    pub fn statistics(&self) -> &'static [usize] {
        if let Call::Node(Op::Attention(_)) = self { &[1] } else { &[] }
    }

    /// Adds its nodes to a graph.
    pub fn build(&self, g: &mut Graph, inputs: &[ValueId], scalars: &[ValueId]) -> BuiltValues {
        let one = |value: Result<ValueId, GraphError>| value.map(|value| vec![value]);
        match self {
            Call::Unary(op) => one(elementwise(g, inputs, |e| e.unary(*op, e.input(0)))),
            Call::Binary(op) => one(elementwise(g, inputs, |e| e.binary(*op, e.input(0), e.input(1)))),
            Call::WithScalar(op) => one(with_number(g, inputs[0], scalars[0], |e| e.binary(*op, e.input(0), e.input(1)))),
            Call::ScalarWith(op) => one(with_number(g, inputs[0], scalars[0], |e| e.binary(*op, e.input(1), e.input(0)))),
            Call::AddScaled => {
                let dtype = promoted(&inputs.iter().map(|value| g.ty(*value).dtype).collect::<Vec<_>>());
                let expr = Expr::build(|e| e.add(e.input(0), e.mul(e.input(1), e.input(2))));
                one(over_broadcast(g, expr, &[inputs[0], inputs[1], scalars[0]], dtype))
            }
            Call::Compare(op) => one(over_broadcast(g, Expr::build(|e| e.binary(*op, e.input(0), e.input(1))), inputs, MASK)),
            Call::CompareScalar(op) => {
                one(over_broadcast(g, Expr::build(|e| e.binary(*op, e.input(0), e.input(1))), &[inputs[0], scalars[0]], MASK))
            }
            Call::ScalarCompare(op) => {
                one(over_broadcast(g, Expr::build(|e| e.binary(*op, e.input(1), e.input(0))), &[inputs[0], scalars[0]], MASK))
            }
            Call::Select => {
                let dtype = promoted(&inputs[1..].iter().map(|value| g.ty(*value).dtype).collect::<Vec<_>>());
                one(over_broadcast(g, Expr::build(|e| e.select(e.input(0), e.input(1), e.input(2))), inputs, dtype))
            }
            Call::Map(_, expr) => {
                let dtype = promoted(&inputs.iter().map(|value| g.ty(*value).dtype).collect::<Vec<_>>());
                one(over_broadcast(g, expr.clone(), inputs, dtype))
            }
            Call::Mask(_, expr) => one(over_broadcast(g, expr.clone(), inputs, MASK)),
            Call::Cast(dtype) => one(g.cast(inputs[0], *dtype)),
            Call::Fill(ty) => g.pointwise_many(Expr::identity(), &[scalars[0]], ty.shape.clone(), vec![ty.dtype]),
            Call::Uniform(shape) => {
                let stream = g.stream();
                one(g.pointwise_over(Expr::build(|e| e.random(stream)), &[], shape.clone()))
            }
            Call::Range(length) => one(g.pointwise_over(Expr::build(|e| e.coordinate(0)), &[], Shape::fixed([*length]))),
            Call::Reduce(kind, axes) => {
                let shape = g.shape(inputs[0]).clone();
                g.add(Op::Reduce(Reduce { expr: Expr::identity(), shape, kind: *kind, axes: axes.clone(), onto: false }), inputs)
            }
            Call::Reshape(shape) => one(g.reshape(inputs[0], shape.clone())),
            Call::Broadcast(shape) => {
                let dtype = g.ty(inputs[0]).dtype;
                g.pointwise_many(Expr::identity(), inputs, shape.clone(), vec![dtype])
            }
            Call::Node(op) => g.add(op.clone(), inputs),
            Call::Composite(op) => op.build(g, inputs),
            Call::Function(_, function) => function.0.call(g, inputs, scalars),
        }
    }
}

/// The type of masks.
pub(super) const MASK: DType = DType::Bool;

/// The type of a result of real operands: theirs, or single precision if they differ.
pub(super) fn promoted(dtypes: &[DType]) -> DType {
    let mut real = dtypes.iter().copied().filter(|dtype| dtype.is_float());
    match real.next() {
        Some(first) if real.all(|dtype| dtype == first) => first,
        Some(_) => DType::F32,
        None => dtypes.first().copied().unwrap_or_default(),
    }
}

/// An expression over the broadcast shape of its inputs, stored in a type.
pub(super) fn over_broadcast(g: &mut Graph, expr: Expr, inputs: &[ValueId], dtype: DType) -> Result<ValueId, GraphError> {
    let mut shape = Shape::scalar();
    for input in inputs {
        let own = g.shape(*input);
        shape = shape.broadcast(own).ok_or_else(|| g.error(format!("shapes {shape} and {own} do not go together")))?;
    }
    g.pointwise_many(expr, inputs, shape, vec![dtype]).map(|outputs| outputs[0])
}

fn elementwise(g: &mut Graph, inputs: &[ValueId], body: impl FnOnce(&ExprBuilder) -> TermId) -> Result<ValueId, GraphError> {
    let dtype = promoted(&inputs.iter().map(|value| g.ty(*value).dtype).collect::<Vec<_>>());
    over_broadcast(g, Expr::build(body), inputs, dtype)
}

fn with_number(g: &mut Graph, x: ValueId, number: ValueId, body: impl FnOnce(&ExprBuilder) -> TermId) -> Result<ValueId, GraphError> {
    let dtype = g.ty(x).dtype;
    over_broadcast(g, Expr::build(body), &[x, number], dtype)
}

fn unary_name(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "neg",
        Unary::Abs => "abs",
        Unary::Sign => "sign",
        Unary::Floor => "floor",
        Unary::Exp => "exp",
        Unary::Log => "log",
        Unary::Sqrt => "sqrt",
        Unary::Recip => "reciprocal",
        Unary::Tanh => "tanh",
        Unary::Sigmoid => "sigmoid",
        Unary::Softplus => "softplus",
        Unary::Erf => "erf",
    }
}

fn binary_name(op: Binary) -> &'static str {
    match op {
        Binary::Add => "add",
        Binary::Sub => "sub",
        Binary::Mul => "mul",
        Binary::Div => "div",
        Binary::Max => "maximum",
        Binary::Min => "minimum",
        Binary::Pow => "pow",
        Binary::Less => "lt",
        Binary::LessEq => "le",
        Binary::Equal => "eq",
    }
}
