//! Logits of a vocabulary whose size is no multiple of a vector: tensor cores need rows of whole vectors, so the
//! product gets columns of −∞ appended. Their probabilities and gradients are zero, and no result changes.

use super::rewrite::{Rewrite, rewrite};
use crate::DType;
use crate::base::expr::{Binary, Expr, Term, Unary};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::{Graph, GraphError, Node, ValueId};
use crate::ir::op::Op;
use crate::ir::ops::{MatMul, Pad, Reduce, Reduction, Slice};
use std::collections::HashMap;

/// Fewer classes are not worth the copy of the weights.
const MANY: usize = 4096;

/// Elements of a vector: 16 bytes of a 16-bit type.
const VECTOR: usize = 8;

/// Pads 16-bit logits to whole vectors of classes, if all of their consumers ignore the additional ones: the reductions
/// of a softmax cross-entropy and of an accuracy, and a gradient that only products read.
pub fn pad_classes(old: &Graph) -> Graph {
    let Some(logits) = old.nodes().find_map(|(_, node)| Logits::of(old, node)) else { return old.clone() };
    let mut weights = None;
    rewrite(old, |new, node, inputs| {
        let mut replaced = None;
        if node.outputs[..] == [logits.value] {
            replaced = Some(logits.product(new, node, inputs).map(|(product, copy)| {
                weights = Some(copy);
                product
            }));
        } else if logits.reads(node) {
            match &node.op {
                Op::Reduce(op) => {
                    let shape = logits.padded(&op.shape);
                    return Rewrite::With(Op::Reduce(Reduce { shape, ..op.clone() }), inputs.to_vec());
                }
                Op::Pointwise(op) => {
                    let shape = logits.padded(&op.shape);
                    let write = |g: &mut Graph| g.pointwise_many(op.expr.clone(), inputs, shape, op.dtypes.clone());
                    replaced = Some(new.within(&node.scope, node.phase, write).map(|outputs| outputs[0]));
                }
                _ => unreachable!("checked when the logits were chosen"),
            }
        } else if let (Some(reader), Some(copy)) = (logits.gradients.get(&node.outputs[0]), weights) {
            match reader {
                GradientReader::Hidden => return Rewrite::With(node.op.clone(), [&[inputs[0], copy], &inputs[2..]].concat()),
                GradientReader::Weights { axis } => {
                    let write = |g: &mut Graph| {
                        let whole = g.add_one(node.op.clone(), inputs)?;
                        g.add_one(Op::Slice(Slice { axis: *axis, start: 0, length: logits.classes }), &[whole])
                    };
                    replaced = Some(new.within(&node.scope, node.phase, write));
                }
            }
        }
        match replaced {
            Some(value) => Rewrite::Replace(vec![value.expect("only the number of classes differs")]),
            None => Rewrite::Keep,
        }
    })
}

/// Logits that can be padded.
struct Logits {
    value: ValueId,
    classes: usize,
    /// Whether the classes are the rows of the weights, as of a tied embedding.
    transposed: bool,
    dtype: DType,
    /// The products that read the gradient of the logits, by their results.
    gradients: HashMap<ValueId, GradientReader>,
}

/// A product that reads the gradient of the logits.
enum GradientReader {
    /// The gradient of the hidden state, with the weights.
    Hidden,
    /// The gradient of the weights, with the classes along this axis.
    Weights { axis: usize },
}

impl Logits {
    fn of(graph: &Graph, node: &Node) -> Option<Logits> {
        let Op::MatMul(MatMul { transpose_a: false, transpose_b, epilogue: None, onto: false, dtype }) = node.op else { return None };
        let (value, weights) = (node.outputs[0], node.inputs[1]);
        let classes = graph.shape(value).last()?.as_fixed()?;
        let fits = dtype.is_half() && classes >= MANY && !classes.is_multiple_of(VECTOR) && !graph.shape(weights).has_batch();
        let kept =
            |value: ValueId| graph.outputs.iter().any(|(_, output)| *output == value) || graph.updates.iter().any(|(_, new)| *new == value);
        if !fits || kept(value) || graph.ty(node.inputs[0]).dtype != dtype {
            return None;
        }
        let mut logits = Logits { value, classes, transposed: transpose_b, dtype, gradients: HashMap::new() };
        for (_, reader) in graph.nodes().filter(|(_, reader)| reader.inputs.contains(&value)) {
            if !logits.ignores_padding(graph, reader) {
                return None;
            }
            // A gradient: all of its readers must be products.
            if let Op::Pointwise(_) = reader.op {
                let [gradient] = reader.outputs[..] else { return None };
                if kept(gradient) {
                    return None;
                }
                for (_, product) in graph.nodes().filter(|(_, product)| product.inputs.contains(&gradient)) {
                    let known = logits.gradient_reader(product, gradient, weights)?;
                    logits.gradients.insert(product.outputs[0], known);
                }
            }
        }
        Some(logits)
    }

    /// The role of a product that reads the gradient of the logits.
    fn gradient_reader(&self, node: &Node, gradient: ValueId, weights: ValueId) -> Option<GradientReader> {
        let Op::MatMul(op) = &node.op else { return None };
        let reads: Vec<bool> = node.inputs.iter().map(|input| *input == gradient).collect();
        match (op.transpose_a, op.transpose_b, &reads[..]) {
            (false, transpose_b, [true, false, ..]) if node.inputs[1] == weights && transpose_b != self.transposed => {
                (!reads[1..].contains(&true)).then_some(GradientReader::Hidden)
            }
            (true, false, [true, false]) if op.epilogue.is_none() && !op.onto => Some(GradientReader::Weights { axis: 0 }),
            (true, false, [false, true]) if op.epilogue.is_none() && !op.onto => Some(GradientReader::Weights { axis: 1 }),
            _ => None,
        }
    }

    fn reads(&self, node: &Node) -> bool {
        node.inputs.contains(&self.value)
    }

    /// The padded number of classes.
    fn whole(&self) -> usize {
        self.classes.next_multiple_of(VECTOR)
    }

    /// A shape of logits with the padded number of classes.
    fn padded(&self, shape: &Shape) -> Shape {
        shape.with(shape.rank() - 1, Dim::fixed(self.whole()))
    }

    /// The padded product, and the copy of the weights that it reads.
    fn product(&self, new: &mut Graph, node: &Node, inputs: &[ValueId]) -> Result<(ValueId, ValueId), GraphError> {
        let (classes, after) = (self.classes, self.whole() - self.classes);
        new.within(&node.scope, node.phase, |g| {
            let narrow = g.cast(inputs[1], self.dtype)?;
            let copy = g.add_one(Op::Pad(Pad { axis: usize::from(!self.transposed), before: 0, after }), &[narrow])?;
            let nothing = Expr::build(|e| {
                let is_class = e.binary(Binary::Less, e.coordinate(0), e.constant(classes as f32));
                e.select(is_class, e.constant(0.0), e.constant(f32::NEG_INFINITY))
            });
            let bias = g.pointwise_over(nothing, &[], Shape::fixed([self.whole()]))?;
            let add = Expr::build(|e| e.add(e.input(0), e.input(1)));
            let Op::MatMul(op) = &node.op else { unreachable!("logits are a product") };
            let product = g.add_one(Op::MatMul(MatMul { epilogue: Some(add), ..op.clone() }), &[inputs[0], copy, bias])?;
            Ok((product, copy))
        })
    }

    /// Whether a consumer gives the same results with classes whose logits are −∞.
    fn ignores_padding(&self, graph: &Graph, node: &Node) -> bool {
        let (expr, shape, wanted) = match &node.op {
            Op::Reduce(op) if op.axes == [1] && !op.onto => {
                (&op.expr, &op.shape, if op.kind == Reduction::Sum { Padding::Zero } else { Padding::NegativeInfinity })
            }
            Op::Pointwise(op) if op.expr.roots().len() == 1 => (&op.expr, &op.shape, Padding::Zero),
            _ => return false,
        };
        // Other inputs have a number per row, or are single numbers.
        let per_row = |input: &ValueId| {
            let own = graph.shape(*input);
            *input == self.value || own.last().is_none_or(|last| last == Dim::fixed(1))
        };
        let whole = |i: u16| graph.ty(node.inputs[usize::from(i)]).dtype == DType::I32;
        shape.rank() == 2
            && *shape == *graph.shape(self.value)
            && node.inputs.iter().all(per_row)
            && value_of_padding(expr, &|i| node.inputs[usize::from(i)] == self.value, &whole) == wanted
    }
}

/// What is known of a term in the additional columns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zero,
    NegativeInfinity,
    /// A number that is finite in every step with a finite loss.
    Finite,
    /// The number of the column, which is no class.
    Column,
    /// An integer per row, such as a label.
    Label,
    Unknown,
}

/// The value of an expression in the additional columns, where `is_logit` inputs are −∞ and labels are no such column.
fn value_of_padding(expr: &Expr, is_logit: &dyn Fn(u16) -> bool, is_label: &dyn Fn(u16) -> bool) -> Padding {
    use Padding::*;
    let mut values: Vec<Padding> = Vec::with_capacity(expr.terms().len());
    for term in expr.terms() {
        let at = |id: u16| values[usize::from(id)];
        values.push(match *term {
            Term::Input(i) if is_logit(i) => NegativeInfinity,
            Term::Input(i) if is_label(i) => Label,
            Term::Input(_) => Finite,
            Term::Const(bits) if f32::from_bits(bits) == 0.0 => Zero,
            Term::Const(bits) if f32::from_bits(bits).is_finite() => Finite,
            Term::Coordinate(1) => Column,
            Term::Binary(Binary::Equal, a, b) if matches!((at(a), at(b)), (Column, Label) | (Label, Column)) => Zero,
            Term::Unary(Unary::Neg, a) if at(a) == Zero => Zero,
            Term::Unary(Unary::Exp, a) if at(a) == NegativeInfinity => Zero,
            Term::Binary(Binary::Sub | Binary::Add, a, b) if (at(a), at(b)) == (NegativeInfinity, Finite) => NegativeInfinity,
            Term::Binary(Binary::Sub | Binary::Add, a, b) if (at(a), at(b)) == (Zero, Zero) => Zero,
            Term::Binary(Binary::Mul, a, b) if matches!((at(a), at(b)), (Zero, Finite | Zero) | (Finite, Zero)) => Zero,
            Term::Binary(Binary::Mul | Binary::Add | Binary::Sub, a, b) if (at(a), at(b)) == (Finite, Finite) => Finite,
            Term::Select(condition, _, otherwise) if at(condition) == Zero => at(otherwise),
            _ => Unknown,
        });
    }
    values[usize::from(expr.roots()[0])]
}
