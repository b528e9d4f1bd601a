//! Constants and affine maps: batch normalization and biases become part of the weights before them, or one product and
//! one sum.

use crate::error::Result;
use crate::import::ImportedWeights;
use plimsoll_core::expr::{Binary, Element, Expr, ExprBuilder, Term, TermId, Unary};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{Graph, Op, ValueId};
use std::collections::HashMap;

/// The largest constant that is computed in memory: statistics and scales of channels, not kernels.
const LARGEST: usize = 1 << 16;

/// The values of small constants: weights and what follows from weights only.
#[derive(Default)]
pub(super) struct Constants(HashMap<ValueId, Option<Vec<f64>>>);

impl Constants {
    /// The elements of a value that does not depend on inputs, if it is small.
    pub fn of(&mut self, graph: &Graph, weights: &ImportedWeights, value: ValueId) -> Result<Option<Vec<f64>>> {
        if let Some(known) = self.0.get(&value) {
            return Ok(known.clone());
        }
        let found = self.find(graph, weights, value)?;
        self.0.insert(value, found.clone());
        Ok(found)
    }

    fn find(&mut self, graph: &Graph, weights: &ImportedWeights, value: ValueId) -> Result<Option<Vec<f64>>> {
        let ty = graph.ty(value);
        let elements = ty.shape.elements();
        if elements.is_batch() || elements.factor() > LARGEST {
            return Ok(None);
        }
        let node = graph.producer(value);
        match &node.op {
            Op::State(id) => {
                let name = &graph.states()[id.0 as usize].name;
                Ok(Some(weights.read(name)?.into_iter().map(f64::from).collect()))
            }
            Op::Reshape(_) => self.of(graph, weights, node.inputs[0]),
            Op::Pointwise(op) if op.expr.roots().len() == 1 && !op.expr.is_positional() && op.dtypes[0].is_float() => {
                let count = elements.factor();
                let mut inputs = Vec::with_capacity(node.inputs.len());
                for input in &node.inputs {
                    let Some(numbers) = self.of(graph, weights, *input)? else { return Ok(None) };
                    // Only constants that repeat as a whole, or are single numbers.
                    if numbers.len() != count && numbers.len() != 1 {
                        return Ok(None);
                    }
                    inputs.push(numbers);
                }
                let random = StepRandom::default();
                let element = Element { random: &random, index: 0, coordinates: &[] };
                let at = |numbers: &Vec<f64>, i: usize| numbers[if numbers.len() == 1 { 0 } else { i }];
                let one = |i: usize| op.expr.evaluate(&inputs.iter().map(|numbers| at(numbers, i)).collect::<Vec<_>>(), &element)[0];
                Ok(Some((0..count).map(one).collect()))
            }
            _ => Ok(None),
        }
    }
}

/// An expression as `rest(scale · x + offset)`, per channel.
#[derive(Debug)]
pub(super) struct AffinePart {
    pub scale: Vec<f64>,
    pub offset: Vec<f64>,
    /// What remains, of one input; `None` if that is the identity.
    pub rest: Option<Expr>,
}

impl AffinePart {
    pub fn scales(&self) -> bool {
        self.scale.iter().any(|scale| *scale != 1.0)
    }
}

/// A term in terms of the variable input: a constant per channel, affine in it, or anything else.
#[derive(Clone)]
enum Form {
    Constant(Vec<f64>),
    Affine(Vec<f64>, Vec<f64>),
    Other,
}

/// Splits an expression of one variable input, and constants per channel, into an affine map and what remains. None if
/// the map is the identity, or the variable is also read beside it.
pub(super) fn affine(expr: &Expr, variable: usize, constants: &[Option<Vec<f64>>], channels: usize) -> Option<AffinePart> {
    if expr.roots().len() != 1 || expr.is_positional() {
        return None;
    }
    let wide = |numbers: &[f64]| -> Option<Vec<f64>> {
        match numbers.len() {
            1 => Some(vec![numbers[0]; channels]),
            count if count == channels => Some(numbers.to_vec()),
            _ => None,
        }
    };
    let mut forms: Vec<Form> = Vec::with_capacity(expr.terms().len());
    for term in expr.terms() {
        let at = |id: TermId| &forms[id as usize];
        let form = match *term {
            Term::Input(i) if i as usize == variable => Form::Affine(vec![1.0; channels], vec![0.0; channels]),
            Term::Input(i) => Form::Constant(wide(constants.get(i as usize)?.as_ref()?)?),
            Term::Const(bits) => Form::Constant(vec![f64::from(f32::from_bits(bits)); channels]),
            Term::Random(_) | Term::Coordinate(_) => return None,
            Term::Unary(op, a) => match (op, at(a)) {
                (_, Form::Constant(a)) => Form::Constant(a.iter().map(|a| op.evaluate(*a)).collect()),
                (Unary::Neg, Form::Affine(a, b)) => Form::Affine(negative(a), negative(b)),
                _ => Form::Other,
            },
            Term::Binary(op, a, b) => binary(op, at(a), at(b)),
            Term::Select(..) => Form::Other,
        };
        forms.push(form);
    }
    // The last affine term through which everything reads the variable.
    let root = expr.roots()[0];
    let candidates = (0..forms.len() as TermId).rev().filter(|id| matches!(forms[*id as usize], Form::Affine(..)));
    let split = candidates.into_iter().find(|id| !reads_beside(expr, root, *id, variable))?;
    let Form::Affine(scale, offset) = forms[split as usize].clone() else { return None };
    if expr.terms()[split as usize] == Term::Input(variable as u16) {
        return None;
    }
    let rest = if split == root { None } else { Some(remaining(expr, split, &forms)?) };
    Some(AffinePart { scale, offset, rest })
}

fn negative(numbers: &[f64]) -> Vec<f64> {
    numbers.iter().map(|number| -number).collect()
}

fn binary(op: Binary, a: &Form, b: &Form) -> Form {
    let each = |a: &[f64], b: &[f64], of: fn(f64, f64) -> f64| a.iter().zip(b).map(|(a, b)| of(*a, *b)).collect::<Vec<f64>>();
    let (plus, minus, times, over) = (|a: f64, b: f64| a + b, |a: f64, b: f64| a - b, |a: f64, b: f64| a * b, |a: f64, b: f64| a / b);
    match (op, a, b) {
        (_, Form::Constant(a), Form::Constant(b)) => Form::Constant(a.iter().zip(b).map(|(a, b)| op.evaluate(*a, *b)).collect()),
        (Binary::Add, Form::Affine(s, o), Form::Constant(c)) | (Binary::Add, Form::Constant(c), Form::Affine(s, o)) => {
            Form::Affine(s.clone(), each(o, c, plus))
        }
        (Binary::Add, Form::Affine(s, o), Form::Affine(t, p)) => Form::Affine(each(s, t, plus), each(o, p, plus)),
        (Binary::Sub, Form::Affine(s, o), Form::Constant(c)) => Form::Affine(s.clone(), each(o, c, minus)),
        (Binary::Sub, Form::Constant(c), Form::Affine(s, o)) => Form::Affine(negative(s), each(c, o, minus)),
        (Binary::Mul, Form::Affine(s, o), Form::Constant(c)) | (Binary::Mul, Form::Constant(c), Form::Affine(s, o)) => {
            Form::Affine(each(s, c, times), each(o, c, times))
        }
        (Binary::Div, Form::Affine(s, o), Form::Constant(c)) => Form::Affine(each(s, c, over), each(o, c, over)),
        _ => Form::Other,
    }
}

/// Whether the root reads the variable otherwise than through the term `split`.
fn reads_beside(expr: &Expr, root: TermId, split: TermId, variable: usize) -> bool {
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        if id == split {
            continue;
        }
        match expr.terms()[id as usize] {
            Term::Input(i) if i as usize == variable => return true,
            Term::Unary(_, a) => open.push(a),
            Term::Binary(_, a, b) => open.extend([a, b]),
            Term::Select(c, a, b) => open.extend([c, a, b]),
            _ => {}
        }
    }
    false
}

/// The expression with the term `split` as its only input; none if it reads other tensors, or constants that differ by
/// channel.
fn remaining(expr: &Expr, split: TermId, forms: &[Form]) -> Option<Expr> {
    let mut possible = true;
    let rest = Expr::build(|e| {
        let mut known: Vec<Option<TermId>> = vec![None; expr.terms().len()];
        rebuild(expr, expr.roots()[0], split, forms, e, &mut known, &mut possible)
    });
    possible.then_some(rest)
}

fn rebuild(
    expr: &Expr,
    id: TermId,
    split: TermId,
    forms: &[Form],
    e: &ExprBuilder,
    known: &mut [Option<TermId>],
    possible: &mut bool,
) -> TermId {
    if id == split {
        return e.input(0);
    }
    if let Some(done) = known[id as usize] {
        return done;
    }
    let mut of = |id: TermId| rebuild(expr, id, split, forms, e, known, possible);
    let term = match expr.terms()[id as usize] {
        Term::Unary(op, a) => {
            let a = of(a);
            e.unary(op, a)
        }
        Term::Binary(op, a, b) => {
            let (a, b) = (of(a), of(b));
            e.binary(op, a, b)
        }
        Term::Select(c, a, b) => {
            let (c, a, b) = (of(c), of(a), of(b));
            e.select(c, a, b)
        }
        _ => match &forms[id as usize] {
            Form::Constant(numbers) if numbers.iter().all(|number| *number == numbers[0]) => e.constant(numbers[0] as f32),
            _ => {
                *possible = false;
                e.constant(0.0)
            }
        },
    };
    known[id as usize] = Some(term);
    term
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batch_normalization_and_activation_are_an_affine_map_and_the_activation() {
        let expr = Expr::build(|e| {
            let normal = e.mul(e.sub(e.input(0), e.input(1)), e.input(2));
            e.binary(Binary::Max, e.add(normal, e.constant(1.0)), e.constant(0.0))
        });
        let constants = [None, Some(vec![1.0, 2.0]), Some(vec![3.0, 4.0])];
        let found = affine(&expr, 0, &constants, 2).unwrap();
        assert_eq!((found.scale, found.offset), (vec![3.0, 4.0], vec![-2.0, -7.0]));
        assert_eq!(found.rest.unwrap().to_string(), "max(a, 0)");
    }

    #[test]
    fn an_activation_alone_has_no_affine_part() {
        let silu = Expr::build(|e| e.mul(e.input(0), e.unary(Unary::Sigmoid, e.input(0))));
        assert!(affine(&silu, 0, &[None], 2).is_none());
        // A sum of the variable and something of it is not affine in it alone.
        let beside = Expr::build(|e| e.add(e.unary(Unary::Exp, e.add(e.input(0), e.constant(1.0))), e.input(0)));
        assert!(affine(&beside, 0, &[None], 2).is_none());
    }
}
