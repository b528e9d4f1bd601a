//! Elementwise expressions and reductions of them as operators.

use super::builder::{TensorIndex, stored};
use super::{ExportProblem, TfliteExporter, fold};
use plimsoll_core::expr::{Binary, Expr, Term, TermId, Unary};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Pointwise, Reduce, Reduction};
use plimsoll_core::{DType, Dim, Op, Shape};
use plimsoll_formats::tensor::DType as Stored;
use plimsoll_formats::tflite::{BuiltinOp, OptionValue};

/// Expressions of one tensor that are one operator, as they are printed; the flag is the option `approximate` of
/// `GELU`.
const FUNCTIONS: [(&str, BuiltinOp, Option<u8>); 9] = [
    ("max(a, 0)", BuiltinOp::Relu, None),
    ("min(max(a, 0), 6)", BuiltinOp::Relu6, None),
    ("sigmoid(a)", BuiltinOp::Logistic, None),
    ("tanh(a)", BuiltinOp::Tanh, None),
    ("0.5 · a · (1 + erf(a · 0.70710677))", BuiltinOp::Gelu, Some(0)),
    ("0.5 · a · (1 + tanh(0.7978846 · (a + 0.044715 · (a · a · a))))", BuiltinOp::Gelu, Some(1)),
    ("a · (min(max(a + 3, 0), 6) · 0.16666667)", BuiltinOp::HardSwish, None),
    ("recip(sqrt(a))", BuiltinOp::Rsqrt, None),
    ("a · a", BuiltinOp::Square, None),
];

/// A term while operators are added.
#[derive(Clone, Copy)]
struct EmittedTerm {
    tensor: TensorIndex,
    /// Whether it is a condition rather than a number.
    is_bool: bool,
}

impl<'a> TfliteExporter<'a> {
    /// An elementwise expression.
    pub(super) fn pointwise(&mut self, node: &'a Node, op: &Pointwise) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let one = node.outputs.len() == 1 && op.dtypes[0] == DType::F32;
        if one && op.expr.is_identity() {
            if let Some(done) = self.upsampled(node, op) {
                return done;
            }
            let tensor = self.operand(node, 0);
            let tensor = self.builder.expand(tensor, &op.shape);
            self.builder.define(node.outputs[0], tensor);
            return Ok(());
        }
        if one && let Some((at, affine)) = self.affine_part(node, op)? {
            let tensor = self.read(node.inputs[at]);
            let narrow = |numbers: &[f64]| numbers.iter().map(|number| *number as f32).collect::<Vec<f32>>();
            let mut tensor = self.affine(tensor, &narrow(&affine.scale), Some(&narrow(&affine.offset)));
            if let Some(rest) = &affine.rest {
                tensor = self.expression_of(rest, tensor)?;
            }
            self.builder.define(node.outputs[0], tensor);
            return Ok(());
        }
        let inputs: Vec<TensorIndex> = (0..node.inputs.len()).map(|i| self.operand(node, i)).collect();
        let roots = self.expression(&op.expr, &inputs, Some(&op.shape))?;
        for ((root, dtype), value) in roots.into_iter().zip(&op.dtypes).zip(&node.outputs) {
            let Some(dtype) = stored(*dtype) else {
                return Err(ExportProblem::Unsupported(format!("elements of {dtype}")));
            };
            let tensor = match dtype {
                Stored::F32 => self.as_number(root),
                _ => self.builder.cast(root.tensor, dtype),
            };
            let tensor = self.builder.expand(tensor, graph.shape(*value));
            self.builder.define(*value, tensor);
        }
        Ok(())
    }

    /// Nearest-neighbour upsampling: an image with new axes behind its rows and columns, broadcast along them and
    /// reshaped back.
    fn upsampled(&mut self, node: &'a Node, op: &Pointwise) -> Option<Result<(), ExportProblem>> {
        let graph = self.builder.graph;
        let (from, to) = (graph.shape(node.inputs[0]).dims(), op.shape.dims());
        let &[_, rows, down, columns, across, _] = to else { return None };
        let image = graph.producer(node.inputs[0]);
        let back = self.walk.only_reader(node.outputs[0])?;
        let reshapes = matches!((&image.op, &back.op), (Op::Reshape(_), Op::Reshape(_)));
        let one = Dim::fixed(1);
        if !reshapes || from[2] != one || from[4] != one || graph.shape(image.inputs[0]).rank() != 4 {
            return None;
        }
        let shape = graph.shape(back.outputs[0]).clone();
        let (height, width) = (rows.factor() * down.factor(), columns.factor() * across.factor());
        if shape.rank() != 4 || shape.dims()[1] != Dim::fixed(height) || shape.dims()[2] != Dim::fixed(width) {
            return None;
        }
        let tensor = self.read(image.inputs[0]);
        let size = self.builder.integers(&[height as i32, width as i32]);
        let result = self.builder.op(BuiltinOp::ResizeNearestNeighbor, &[tensor, size], &[], shape);
        self.builder.define(back.outputs[0], result);
        self.builder.define(node.outputs[0], result);
        Some(Ok(()))
    }

    /// A reduction of an elementwise expression.
    pub(super) fn reduce(&mut self, node: &'a Node, op: &Reduce) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        if op.kind == Reduction::LogSumExp {
            return self.softmax(node, op);
        }
        let inputs: Vec<TensorIndex> = (0..node.inputs.len()).map(|i| self.operand(node, i)).collect();
        let root = self.expression(&op.expr, &inputs, Some(&op.shape))?.remove(0);
        let tensor = self.as_number(root);
        let tensor = self.builder.expand(tensor, &op.shape);
        let axes: Vec<i32> = op.axes.iter().map(|axis| *axis as i32).collect();
        let shape = graph.shape(node.outputs[0]).clone();
        let keep = |keep: bool| [("keep_dims", OptionValue::Byte(keep.into()))];
        match op.kind {
            Reduction::Sum => {
                if let Some((value, keeps)) = self.mean_of(node, op) {
                    let axes = self.builder.integers(&axes);
                    let result = self.builder.op(BuiltinOp::Mean, &[tensor, axes], &keep(keeps), graph.shape(value).clone());
                    self.builder.define(value, result);
                    return Ok(());
                }
                let axes = self.builder.integers(&axes);
                let result = self.builder.op(BuiltinOp::Sum, &[tensor, axes], &keep(true), shape);
                self.builder.define(node.outputs[0], result);
            }
            Reduction::Max => {
                let axes = self.builder.integers(&axes);
                let result = self.builder.op(BuiltinOp::ReduceMax, &[tensor, axes], &keep(true), shape);
                self.builder.define(node.outputs[0], result);
            }
            Reduction::ArgMax => {
                let axis = self.builder.integers_of(&axes[..1], &[]);
                let dims = op.shape.dims().iter().enumerate().filter(|(i, _)| *i != op.axes[0]).map(|(_, dim)| *dim);
                let code = plimsoll_formats::tflite::type_code(Stored::I32);
                let options = [("output_type", OptionValue::Byte(code))];
                let index = self.builder.op_of(BuiltinOp::ArgMax, &[tensor, axis], &options, &[(Stored::I32, Shape::new(dims))]).remove(0);
                let index = self.builder.reshape(index, shape);
                self.builder.define(node.outputs[0], index);
            }
            Reduction::LogSumExp => unreachable!("handled before"),
        }
        Ok(())
    }

    /// Whether a sum is a mean: the value of the mean, and whether it keeps the reduced axes.
    fn mean_of(&mut self, node: &'a Node, op: &Reduce) -> Option<(plimsoll_core::ValueId, bool)> {
        let graph = self.builder.graph;
        let count: usize = op.axes.iter().map(|axis| op.shape.dims()[*axis].as_fixed()).product::<Option<usize>>()?;
        let mut between = Vec::new();
        let mut reader = self.walk.only_reader(node.outputs[0])?;
        if matches!(reader.op, Op::Reshape(_)) {
            let kept = op.shape.dims().iter().enumerate().filter(|(i, _)| !op.axes.contains(i)).map(|(_, dim)| *dim);
            if *graph.shape(reader.outputs[0]) != Shape::new(kept) {
                return None;
            }
            between.push(reader.outputs[0]);
            reader = self.walk.only_reader(reader.outputs[0])?;
        }
        let Op::Pointwise(scaled) = &reader.op else { return None };
        let share = match scaled.expr.terms() {
            [Term::Input(0), Term::Const(bits), Term::Binary(Binary::Mul, 0, 1)] => f32::from_bits(*bits),
            _ => return None,
        };
        if share != 1.0 / count as f32 || scaled.shape != *graph.shape(reader.inputs[0]) || scaled.dtypes != [DType::F32] {
            return None;
        }
        let keeps = between.is_empty();
        self.walk.folded.insert(node.outputs[0]);
        self.walk.folded.extend(between);
        Some((reader.outputs[0], keeps))
    }

    /// `x - logsumexp(x)` along the last axis, and its exponential.
    fn softmax(&mut self, node: &'a Node, op: &Reduce) -> Result<(), ExportProblem> {
        let other = || ExportProblem::unsupported("a log-sum-exp that is no softmax");
        let last = op.shape.rank() - 1;
        let shifted = self.walk.only_reader(node.outputs[0]).ok_or_else(other)?;
        let subtracts = matches!(&shifted.op, Op::Pointwise(minus) if minus.expr.to_string() == "a - b" && minus.shape == op.shape);
        if !op.expr.is_identity() || op.axes != [last] || !subtracts || shifted.inputs != [node.inputs[0], node.outputs[0]] {
            return Err(other());
        }
        self.walk.folded.insert(node.outputs[0]);
        let input = self.operand(node, 0);
        let exponential = self
            .walk
            .only_reader(shifted.outputs[0])
            .filter(|reader| matches!(&reader.op, Op::Pointwise(exp) if exp.expr.to_string() == "exp(a)" && exp.dtypes == [DType::F32]));
        let (value, result) = match exponential {
            Some(reader) => {
                self.walk.folded.insert(shifted.outputs[0]);
                let options = [("beta", OptionValue::Float(1.0))];
                (reader.outputs[0], self.builder.op(BuiltinOp::Softmax, &[input], &options, op.shape.clone()))
            }
            None => (shifted.outputs[0], self.builder.op(BuiltinOp::LogSoftmax, &[input], &[], op.shape.clone())),
        };
        self.builder.define(value, result);
        Ok(())
    }

    /// An input of a node in single precision.
    fn operand(&mut self, node: &Node, i: usize) -> TensorIndex {
        let tensor = self.read(node.inputs[i]);
        self.builder.cast(tensor, Stored::F32)
    }

    /// The affine part of an expression of one input that is no constant, and the position of that input.
    fn affine_part(&mut self, node: &Node, op: &Pointwise) -> Result<Option<(usize, fold::AffinePart)>, ExportProblem> {
        let graph = self.builder.graph;
        let Some(channels) = op.shape.last().and_then(|dim| dim.as_fixed()) else { return Ok(None) };
        let Some((at, constants)) = self.walk.one_variable(node)? else { return Ok(None) };
        if *graph.shape(node.inputs[at]) != op.shape || graph.ty(node.inputs[at]).dtype != DType::F32 || node.inputs.len() == 1 {
            return Ok(None);
        }
        Ok(fold::affine(&op.expr, at, &constants, channels).map(|affine| (at, affine)))
    }

    /// An expression of one tensor, without coordinates.
    pub(super) fn expression_of(&mut self, expr: &Expr, input: TensorIndex) -> Result<TensorIndex, ExportProblem> {
        let root = self.expression(expr, &[input], None)?.remove(0);
        Ok(self.as_number(root))
    }

    /// Adds the operators of an expression. `over` is the shape whose coordinates it may read.
    fn expression(&mut self, expr: &Expr, inputs: &[TensorIndex], over: Option<&Shape>) -> Result<Vec<EmittedTerm>, ExportProblem> {
        let text = expr.to_string();
        if let ([input], Some((_, op, approximate))) = (inputs, FUNCTIONS.iter().find(|(known, ..)| *known == text)) {
            let shape = self.builder.shape(*input).clone();
            let options: Vec<_> = approximate.iter().map(|flag| ("approximate", OptionValue::Byte(*flag))).collect();
            return Ok(vec![EmittedTerm { tensor: self.builder.op(*op, &[*input], &options, shape), is_bool: false }]);
        }
        if let ([a, b], "(a - b) · (a - b)") = (inputs, text.as_str()) {
            return Ok(vec![EmittedTerm { tensor: self.combined(BuiltinOp::SquaredDifference, *a, *b), is_bool: false }]);
        }
        let live = live_terms(expr);
        let mut emitted: Vec<Option<EmittedTerm>> = vec![None; expr.terms().len()];
        for (id, term) in expr.terms().iter().enumerate().filter(|(id, _)| live[*id]) {
            let at = |id: TermId| emitted[id as usize].expect("terms refer to earlier ones");
            let number = |tensor: TensorIndex| EmittedTerm { tensor, is_bool: false };
            let value = match *term {
                Term::Input(i) => number(inputs[i as usize]),
                Term::Const(bits) => number(self.builder.number(f32::from_bits(bits))),
                Term::Random(_) => return Err(ExportProblem::unsupported("random numbers in a prediction")),
                Term::Coordinate(axis) => number(self.coordinate(axis as usize, over)?),
                Term::Unary(op, a) => {
                    let a = self.as_number(at(a));
                    number(self.unary(op, a)?)
                }
                Term::Binary(Binary::Max, a, b) if is_zero(expr, b) => {
                    let a = self.as_number(at(a));
                    let shape = self.builder.shape(a).clone();
                    number(self.builder.op(BuiltinOp::Relu, &[a], &[], shape))
                }
                Term::Binary(op, a, b) => {
                    let (a, b) = (self.as_number(at(a)), self.as_number(at(b)));
                    match binary(op) {
                        (op, false) => number(self.combined(op, a, b)),
                        (op, true) => {
                            let shape = self.broadcast(a, b);
                            EmittedTerm { tensor: self.builder.op_of(op, &[a, b], &[], &[(Stored::Bool, shape)]).remove(0), is_bool: true }
                        }
                    }
                }
                Term::Select(c, a, b) => {
                    let condition = at(c);
                    let condition = if condition.is_bool { condition.tensor } else { self.builder.cast(condition.tensor, Stored::Bool) };
                    let (a, b) = (self.as_number(at(a)), self.as_number(at(b)));
                    let shape = self.broadcast(a, b);
                    let shape = self.builder.shape(condition).broadcast(&shape).unwrap_or(shape);
                    number(self.builder.op(BuiltinOp::SelectV2, &[condition, a, b], &[], shape))
                }
            };
            emitted[id] = Some(value);
        }
        Ok(expr.roots().iter().map(|root| emitted[*root as usize].expect("roots are live")).collect())
    }

    /// An operator of two tensors that broadcast.
    pub(super) fn combined(&mut self, op: BuiltinOp, a: TensorIndex, b: TensorIndex) -> TensorIndex {
        let shape = self.broadcast(a, b);
        self.builder.op(op, &[a, b], &[], shape)
    }

    fn broadcast(&self, a: TensorIndex, b: TensorIndex) -> Shape {
        let (a, b) = (self.builder.shape(a), self.builder.shape(b));
        a.broadcast(b).unwrap_or_else(|| a.clone())
    }

    fn unary(&mut self, op: Unary, a: TensorIndex) -> Result<TensorIndex, ExportProblem> {
        let shape = self.builder.shape(a).clone();
        let builtin = match op {
            Unary::Neg => BuiltinOp::Neg,
            Unary::Abs => BuiltinOp::Abs,
            Unary::Sign => BuiltinOp::Sign,
            Unary::Floor => BuiltinOp::Floor,
            Unary::Exp => BuiltinOp::Exp,
            Unary::Log => BuiltinOp::Log,
            Unary::Sqrt => BuiltinOp::Sqrt,
            Unary::Tanh => BuiltinOp::Tanh,
            Unary::Sigmoid => BuiltinOp::Logistic,
            Unary::Recip => {
                // The root before it is part of the operator.
                if let Some(root) = self.builder.operators.last().filter(|last| last.op == BuiltinOp::Sqrt && last.outputs == [a as i32]) {
                    let input = root.inputs[0] as TensorIndex;
                    return Ok(self.builder.op(BuiltinOp::Rsqrt, &[input], &[], shape));
                }
                let one = self.builder.number(1.0);
                return Ok(self.builder.op(BuiltinOp::Div, &[one, a], &[], shape));
            }
            Unary::Softplus => {
                // max(x, 0) + log(1 + exp(-|x|)), which cannot overflow.
                let one = self.builder.number(1.0);
                let mut small = a;
                for op in [BuiltinOp::Abs, BuiltinOp::Neg, BuiltinOp::Exp] {
                    small = self.builder.op(op, &[small], &[], shape.clone());
                }
                let small = self.builder.op(BuiltinOp::Add, &[small, one], &[], shape.clone());
                let small = self.builder.op(BuiltinOp::Log, &[small], &[], shape.clone());
                let large = self.builder.op(BuiltinOp::Relu, &[a], &[], shape.clone());
                return Ok(self.builder.op(BuiltinOp::Add, &[large, small], &[], shape));
            }
            Unary::Erf => return Err(ExportProblem::unsupported("the error function, other than in GELU")),
        };
        Ok(self.builder.op(builtin, &[a], &[], shape))
    }

    /// Coordinates along an axis as a constant.
    fn coordinate(&mut self, axis: usize, over: Option<&Shape>) -> Result<TensorIndex, ExportProblem> {
        let Some(extent) = over.and_then(|shape| shape.dims()[axis].as_fixed()) else {
            return Err(ExportProblem::unsupported("an expression of the position of a row in its batch"));
        };
        let rank = over.map_or(0, Shape::rank);
        let dims: Vec<usize> = (0..rank).map(|at| if at == axis { extent } else { 1 }).collect();
        let bytes = (0..extent).flat_map(|place| (place as f32).to_le_bytes()).collect();
        Ok(self.builder.constant(Stored::F32, &dims, bytes))
    }

    fn as_number(&mut self, term: EmittedTerm) -> TensorIndex {
        if term.is_bool { self.builder.cast(term.tensor, Stored::F32) } else { term.tensor }
    }
}

/// The terms that a result depends on.
fn live_terms(expr: &Expr) -> Vec<bool> {
    let mut live = vec![false; expr.terms().len()];
    let mut open = expr.roots().to_vec();
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut live[id as usize], true) {
            continue;
        }
        match expr.terms()[id as usize] {
            // The zero of a rectifier is no operand.
            Term::Binary(Binary::Max, a, b) if is_zero(expr, b) => open.push(a),
            term => open.extend(term.operands()),
        }
    }
    live
}

fn is_zero(expr: &Expr, id: TermId) -> bool {
    matches!(expr.terms()[id as usize], Term::Const(bits) if f32::from_bits(bits) == 0.0)
}

/// The operator, and whether its result is a condition.
fn binary(op: Binary) -> (BuiltinOp, bool) {
    match op {
        Binary::Add => (BuiltinOp::Add, false),
        Binary::Sub => (BuiltinOp::Sub, false),
        Binary::Mul => (BuiltinOp::Mul, false),
        Binary::Div => (BuiltinOp::Div, false),
        Binary::Max => (BuiltinOp::Maximum, false),
        Binary::Min => (BuiltinOp::Minimum, false),
        Binary::Pow => (BuiltinOp::Pow, false),
        Binary::Less => (BuiltinOp::Less, true),
        Binary::LessEq => (BuiltinOp::LessEqual, true),
        Binary::Equal => (BuiltinOp::Equal, true),
    }
}
