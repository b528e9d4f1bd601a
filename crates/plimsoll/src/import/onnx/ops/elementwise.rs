//! Operators on every element by itself, with broadcasting.

use super::super::OnnxImporter;
use super::super::call::NodeCall;
use super::super::layer::NodeLayer;
use super::super::values::{Computed, ElementKind, Found, Value, Weight};
use super::Mapping;
use crate::nn::{Activation, Dropout, Lowering};
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::shape::Shape;
use plimsoll_core::{Graph, GraphError, ValueId};
use std::sync::Arc;

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("Abs", |i, c| i.unary(c, |e, x| e.unary(Unary::Abs, x))),
    ("Neg", |i, c| i.unary(c, |e, x| e.unary(Unary::Neg, x))),
    ("Exp", |i, c| i.unary(c, |e, x| e.unary(Unary::Exp, x))),
    ("Log", |i, c| i.unary(c, |e, x| e.unary(Unary::Log, x))),
    ("Sqrt", |i, c| i.unary(c, |e, x| e.unary(Unary::Sqrt, x))),
    ("Reciprocal", |i, c| i.unary(c, |e, x| e.unary(Unary::Recip, x))),
    ("Floor", |i, c| i.unary(c, |e, x| e.unary(Unary::Floor, x))),
    ("Ceil", |i, c| i.unary(c, ceil)),
    ("Round", |i, c| i.unary(c, round)),
    ("Sign", |i, c| i.unary(c, |e, x| e.unary(Unary::Sign, x))),
    ("Erf", |i, c| i.unary(c, |e, x| e.unary(Unary::Erf, x))),
    ("Relu", |i, c| i.activation(c, Activation::Relu)),
    ("Sigmoid", |i, c| i.activation(c, Activation::Sigmoid)),
    ("Tanh", |i, c| i.activation(c, Activation::Tanh)),
    ("Softplus", |i, c| i.activation(c, Activation::Softplus)),
    ("Softsign", |i, c| i.activation(c, Activation::Softsign)),
    ("HardSwish", |i, c| i.activation(c, Activation::HardSwish)),
    ("Mish", |i, c| i.activation(c, Activation::Mish)),
    ("Gelu", |i, c| {
        let tanh = c.text("approximate", "none")? == "tanh";
        i.activation(c, if tanh { Activation::GeluTanh } else { Activation::Gelu })
    }),
    ("Swish", |i, c| {
        let alpha = c.float("alpha", 1.0)?;
        i.unary(c, move |e, x| e.mul(x, e.unary(Unary::Sigmoid, e.mul(e.constant(alpha), x))))
    }),
    ("Elu", |i, c| {
        let alpha = c.float("alpha", 1.0)?;
        i.unary(c, move |e, x| exponential_below(e, x, alpha, 1.0))
    }),
    ("Celu", |i, c| {
        let alpha = c.float("alpha", 1.0)?;
        i.unary(c, move |e, x| exponential_below(e, x, alpha, 1.0 / alpha))
    }),
    ("Selu", |i, c| {
        let (alpha, gamma) = (c.float("alpha", 1.673_263_2)?, c.float("gamma", 1.050_701)?);
        i.unary(c, move |e, x| e.mul(e.constant(gamma), exponential_below(e, x, alpha, 1.0)))
    }),
    ("LeakyRelu", |i, c| {
        let alpha = c.float("alpha", 0.01)?;
        i.unary(c, move |e, x| e.select(e.binary(Binary::Less, x, e.constant(0.0)), e.mul(e.constant(alpha), x), x))
    }),
    ("ThresholdedRelu", |i, c| {
        let alpha = c.float("alpha", 1.0)?;
        i.unary(c, move |e, x| e.select(e.binary(Binary::Less, e.constant(alpha), x), x, e.constant(0.0)))
    }),
    ("HardSigmoid", |i, c| {
        let (alpha, beta) = (c.float("alpha", 0.2)?, c.float("beta", 0.5)?);
        i.unary(c, move |e, x| {
            let line = e.add(e.mul(e.constant(alpha), x), e.constant(beta));
            e.binary(Binary::Max, e.constant(0.0), e.binary(Binary::Min, e.constant(1.0), line))
        })
    }),
    ("Shrink", |i, c| {
        let (lambda, bias) = (c.float("lambd", 0.5)?, c.float("bias", 0.0)?);
        i.unary(c, move |e, x| {
            let above = e.binary(Binary::Less, e.constant(lambda), x);
            let below = e.binary(Binary::Less, x, e.constant(-lambda));
            let rest = e.select(below, e.add(x, e.constant(bias)), e.constant(0.0));
            e.select(above, e.sub(x, e.constant(bias)), rest)
        })
    }),
    ("PRelu", |i, c| {
        let slope = |e: &ExprBuilder, t: &[TermId]| e.select(e.binary(Binary::Less, t[0], e.constant(0.0)), e.mul(t[0], t[1]), t[0]);
        i.elementwise("prelu", &c.exactly(2)?, None, slope)
    }),
    ("Clip", clip),
    ("Identity", |_, c| {
        Ok(vec![match (c.input(0)?, c.node.outputs.first()) {
            (Value::Weight(weight), Some(name)) => Value::Weight(Weight { name: name.clone(), ..weight }),
            (value, _) => value,
        }])
    }),
    ("Dropout", dropout),
    ("Cast", |i, c| {
        let code = c.int("to", 1)?;
        let Some(to) = plimsoll_formats::onnx::dtype_of(code) else { return Err(format!("it casts to the type {code} of ONNX")) };
        i.cast(&c.input(0)?, ElementKind::of(to))
    }),
    ("CastLike", |i, c| i.cast(&c.input(0)?, c.input(1)?.kind())),
    ("Not", |i, c| i.logical(c, 1, |e, t| e.sub(e.constant(1.0), t[0]))),
    ("IsNaN", |i, c| i.logical(c, 1, |e, t| e.sub(e.constant(1.0), e.binary(Binary::Equal, t[0], t[0])))),
    ("IsInf", |i, c| {
        let (low, high) = (c.flag("detect_negative", true)?, c.flag("detect_positive", true)?);
        i.logical(c, 1, move |e, t| {
            let is = |number: f32| e.binary(Binary::Equal, t[0], e.constant(number));
            let none = e.constant(0.0);
            e.add(if high { is(f32::INFINITY) } else { none }, if low { is(f32::NEG_INFINITY) } else { none })
        })
    }),
    ("And", |i, c| i.logical(c, 2, |e, t| e.mul(t[0], t[1]))),
    ("Or", |i, c| i.logical(c, 2, |e, t| e.binary(Binary::Max, t[0], t[1]))),
    ("Xor", |i, c| i.logical(c, 2, |e, t| e.unary(Unary::Abs, e.sub(t[0], t[1])))),
    ("Equal", |i, c| i.logical(c, 2, |e, t| e.binary(Binary::Equal, t[0], t[1]))),
    ("Less", |i, c| i.logical(c, 2, |e, t| e.binary(Binary::Less, t[0], t[1]))),
    ("LessOrEqual", |i, c| i.logical(c, 2, |e, t| e.binary(Binary::LessEq, t[0], t[1]))),
    ("Greater", |i, c| i.logical(c, 2, |e, t| e.binary(Binary::Less, t[1], t[0]))),
    ("GreaterOrEqual", |i, c| i.logical(c, 2, |e, t| e.binary(Binary::LessEq, t[1], t[0]))),
    ("Add", |i, c| i.binary(c, |e, a, b| e.add(a, b))),
    ("Sub", |i, c| i.binary(c, |e, a, b| e.sub(a, b))),
    ("Mul", |i, c| i.binary(c, |e, a, b| e.mul(a, b))),
    ("Div", |i, c| {
        let whole = c.input(0)?.kind() == ElementKind::Int;
        i.binary(c, move |e, a, b| if whole { truncated(e, e.div(a, b)) } else { e.div(a, b) })
    }),
    ("Pow", |i, c| {
        // A power of a negative number is real for whole exponents.
        let whole = c.given(1).and_then(|value| match value {
            Value::Constant(constant) => constant.uniform(),
            _ => None,
        });
        match whole {
            Some(number) if number.fract() == 0.0 && (0.0..=8.0).contains(&number) => {
                let times = number as usize;
                i.elementwise("pow", &c.exactly(2)?[..1], None, move |e, t| (0..times).fold(e.constant(1.0), |all, _| e.mul(all, t[0])))
            }
            _ => i.binary(c, power),
        }
    }),
    ("Mod", |i, c| {
        let truncating = c.flag("fmod", false)?;
        i.binary(c, move |e, a, b| {
            let quotient = e.div(a, b);
            let whole = if truncating { truncated(e, quotient) } else { e.unary(Unary::Floor, quotient) };
            e.sub(a, e.mul(whole, b))
        })
    }),
    ("Max", |i, c| i.variadic(c, |e, a, b| e.binary(Binary::Max, a, b))),
    ("Min", |i, c| i.variadic(c, |e, a, b| e.binary(Binary::Min, a, b))),
    ("Sum", |i, c| i.variadic(c, |e, a, b| e.add(a, b))),
    ("Mean", |i, c| {
        let share = 1.0 / c.inputs.len().max(1) as f32;
        let mean = move |e: &ExprBuilder, t: &[TermId]| e.mul(e.constant(share), t[1..].iter().fold(t[0], |sum, next| e.add(sum, *next)));
        i.elementwise("mean", &c.all()?, None, mean)
    }),
    ("Where", |i, c| {
        let all = c.exactly(3)?;
        let kind = all.get(1).map(Value::kind);
        i.elementwise("where", &all, kind, |e, t| e.select(t[0], t[1], t[2]))
    }),
];

/// `alpha·(e^(rate·x) - 1)` below zero, `x` above.
fn exponential_below(e: &ExprBuilder, x: TermId, alpha: f32, rate: f32) -> TermId {
    let zero = e.constant(0.0);
    let below = e.unary(Unary::Exp, e.mul(e.constant(rate), e.binary(Binary::Min, x, zero)));
    e.add(e.binary(Binary::Max, x, zero), e.mul(e.constant(alpha), e.sub(below, e.constant(1.0))))
}

pub(super) fn ceil(e: &ExprBuilder, x: TermId) -> TermId {
    e.unary(Unary::Neg, e.unary(Unary::Floor, e.unary(Unary::Neg, x)))
}

/// To the nearest integer, halves to the even one.
fn round(e: &ExprBuilder, x: TermId) -> TermId {
    let half = e.constant(0.5);
    let up = e.unary(Unary::Floor, e.add(x, half));
    let down = e.sub(up, e.constant(1.0));
    let is_half = e.binary(Binary::Equal, e.sub(up, x), half);
    let halved = e.mul(up, half);
    let even = e.binary(Binary::Equal, e.unary(Unary::Floor, halved), halved);
    e.select(is_half, e.select(even, up, down), up)
}

/// Toward zero.
pub(super) fn truncated(e: &ExprBuilder, x: TermId) -> TermId {
    e.mul(e.unary(Unary::Sign, x), e.unary(Unary::Floor, e.unary(Unary::Abs, x)))
}

/// A power whose base may be negative where the exponent is whole.
fn power(e: &ExprBuilder, a: TermId, b: TermId) -> TermId {
    let size = e.binary(Binary::Pow, e.unary(Unary::Abs, a), b);
    let halved = e.mul(b, e.constant(0.5));
    let even = e.binary(Binary::Equal, e.unary(Unary::Floor, halved), halved);
    let whole = e.binary(Binary::Equal, e.unary(Unary::Floor, b), b);
    let negative = e.select(whole, e.select(even, size, e.unary(Unary::Neg, size)), e.constant(f32::NAN));
    e.select(e.binary(Binary::Less, a, e.constant(0.0)), negative, size)
}

fn clip(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let x = c.input(0)?;
    if c.has("min") || c.has("max") || c.inputs.len() == 1 {
        let (low, high) = (c.float("min", f32::MIN)?, c.float("max", f32::MAX)?);
        return i.elementwise("clip", &[x], None, move |e, t| {
            e.binary(Binary::Min, e.binary(Binary::Max, t[0], e.constant(low)), e.constant(high))
        });
    }
    let (low, high) = (c.given(1), c.given(2));
    let (has_low, has_high) = (low.is_some(), high.is_some());
    let all: Vec<Value> = [Some(x), low, high].into_iter().flatten().collect();
    i.elementwise("clip", &all, None, move |e, t| {
        let mut y = t[0];
        if has_low {
            y = e.binary(Binary::Max, y, t[1]);
        }
        if has_high {
            y = e.binary(Binary::Min, y, t[t.len() - 1]);
        }
        y
    })
}

fn dropout(i: &mut OnnxImporter, c: &NodeCall<'_>) -> Found<Vec<Value>> {
    let ratio = match c.constant(1)? {
        Some(ratio) => ratio.fixed()?.first().copied().unwrap_or(0.5) as f32,
        None => c.float("ratio", 0.5)?,
    };
    if c.constant(2)?.is_some_and(|training| training.numbers.first() == Some(&1.0)) && ratio != 0.0 {
        return Err("random numbers are not imported; export the model for inference (training_mode = false)".to_string());
    }
    let x = c.input(0)?;
    if i.net.is_none() || !(0.0..1.0).contains(&ratio) {
        return Ok(vec![x]);
    }
    let tensor = i.computed(&x)?;
    let name = i.current.clone();
    let y = i.layer(&name, Arc::new(Dropout::new(ratio)), &[&tensor])?;
    let mut outputs = vec![Value::from(y.laid_out(tensor.order.clone()))];
    if c.wants(1) {
        let shape = i.graph.shape(tensor.value).clone();
        let mask = i.node("mask", &[], move |g, _| g.full(1.0, shape.clone()))?;
        outputs.push(mask.laid_out(tensor.order).of(ElementKind::Bool).into());
    }
    Ok(outputs)
}

impl OnnxImporter {
    /// A function of one tensor.
    pub(super) fn unary(&mut self, c: &NodeCall<'_>, f: impl Fn(&ExprBuilder, TermId) -> TermId) -> Found<Vec<Value>> {
        self.elementwise("pointwise", &c.all()?[..1.min(c.inputs.len())], None, |e, t| f(e, t[0]))
    }

    fn binary(&mut self, c: &NodeCall<'_>, f: impl Fn(&ExprBuilder, TermId, TermId) -> TermId) -> Found<Vec<Value>> {
        let all = c.exactly(2)?;
        // Up to version 6 a vector was laid along any axis; the importer begins at version 7.
        self.elementwise("pointwise", &all, None, |e, t| f(e, t[0], t[1]))
    }

    fn variadic(&mut self, c: &NodeCall<'_>, f: impl Fn(&ExprBuilder, TermId, TermId) -> TermId) -> Found<Vec<Value>> {
        self.elementwise("pointwise", &c.all()?, None, |e, t| t[1..].iter().fold(t[0], |all, next| f(e, all, *next)))
    }

    fn logical(&mut self, c: &NodeCall<'_>, inputs: usize, f: impl Fn(&ExprBuilder, &[TermId]) -> TermId) -> Found<Vec<Value>> {
        self.elementwise("pointwise", &c.exactly(inputs)?, Some(ElementKind::Bool), f)
    }

    /// An activation as the layer that losses know.
    fn activation(&mut self, c: &NodeCall<'_>, activation: Activation) -> Found<Vec<Value>> {
        let x = self.computed(&c.input(0)?)?;
        let name = self.current.clone();
        Ok(vec![self.layer(&name, Arc::new(activation), &[&x])?.laid_out(x.order).into()])
    }

    /// An expression over values with broadcasting. Its result has the kind of the first value, unless it is given.
    pub(super) fn elementwise(
        &mut self,
        kind: &'static str,
        values: &[Value],
        result: Option<ElementKind>,
        f: impl Fn(&ExprBuilder, &[TermId]) -> TermId,
    ) -> Found<Vec<Value>> {
        let Some(first) = values.first() else { return Err("it has no inputs".to_string()) };
        let result = result.unwrap_or(first.kind());
        let rank = values.iter().filter(|value| matches!(value, Value::Tensor(_))).map(Value::rank).max();
        // Single numbers are part of the expression.
        let number = |value: &Value| match value {
            Value::Constant(constant) if rank.is_some_and(|rank| constant.dims.len() <= rank) && constant.numbers.len() == 1 => {
                constant.uniform()
            }
            _ => None,
        };
        let numbers: Vec<Option<f64>> = values.iter().map(number).collect();
        let mut tensors = Vec::new();
        for (value, number) in values.iter().zip(&numbers) {
            if number.is_none() {
                tensors.push(self.computed(value)?);
            }
        }
        let (tensors, order) = self.aligned(&tensors)?;
        let expr = Expr::build(|e| {
            let mut next = 0;
            let terms: Vec<TermId> = numbers
                .iter()
                .map(|number| match number {
                    Some(number) => e.constant(*number as f32),
                    None => {
                        next += 1;
                        e.input(next - 1)
                    }
                })
                .collect();
            f(e, &terms)
        });
        let read: Vec<&Computed> = tensors.iter().collect();
        let lower = move |lowering: &mut Lowering<'_>, x: &[ValueId]| pointwise(lowering.graph, &expr, x);
        let layer = NodeLayer { elementwise: tensors.len() == 1, ..NodeLayer::new(kind, lower) };
        let name = self.current.clone();
        Ok(vec![self.layer(&name, Arc::new(layer), &read)?.laid_out(order).of(result).into()])
    }

    /// The value as another kind of numbers.
    pub(super) fn cast(&mut self, value: &Value, to: ElementKind) -> Found<Vec<Value>> {
        match (value.kind(), to) {
            (ElementKind::Float, ElementKind::Int) => {
                self.elementwise("cast", std::slice::from_ref(value), Some(to), |e, t| truncated(e, t[0]))
            }
            (ElementKind::Float | ElementKind::Int, ElementKind::Bool) => {
                let is_true = |e: &ExprBuilder, t: &[TermId]| e.select(t[0], e.constant(1.0), e.constant(0.0));
                self.elementwise("cast", std::slice::from_ref(value), Some(to), is_true)
            }
            _ => Ok(vec![match value {
                Value::Tensor(tensor) => Value::Tensor(tensor.clone().of(to)),
                Value::Constant(constant) => {
                    let mut constant = constant.clone();
                    constant.kind = to;
                    Value::Constant(constant)
                }
                Value::Weight(weight) => Value::Weight(weight.clone()),
            }]),
        }
    }
}

/// An expression over the broadcast shape of its inputs, all of which count, whether the expression reads them or not.
fn pointwise(g: &mut Graph, expr: &Expr, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
    let mut shape = Shape::scalar();
    for input in inputs {
        let own = g.shape(*input).clone();
        shape = shape.broadcast(&own).ok_or_else(|| g.error(format!("shapes {shape} and {own} do not go together")))?;
    }
    g.pointwise_over(expr.clone(), inputs, shape)
}
