//! Pointwise expressions: small arithmetic programs applied to every element of a tensor.

mod derivative;

use crate::base::random::StepRandom;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A unary function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum Unary {
    Neg,
    Abs,
    Sign,
    Floor,
    Exp,
    Log,
    Sqrt,
    Recip,
    Tanh,
    Sigmoid,
    Softplus,
    Erf,
}

/// A binary function. Comparisons yield 1 or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the functions")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    Div,
    Max,
    Min,
    Pow,
    Less,
    LessEq,
    Equal,
}

/// The index of a term in its expression.
pub type TermId = u16;

/// One term of an expression. Terms refer only to earlier ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Term {
    /// The element of an input tensor.
    Input(u16),
    /// A constant, by its bits.
    Const(u32),
    /// A uniform random number in [0, 1) per element, from the given stream.
    Random(u32),
    /// The element's coordinate along an axis of the iteration shape.
    Coordinate(u8),
    /// A unary function of a term.
    Unary(Unary, TermId),
    /// A binary function of two terms.
    Binary(Binary, TermId, TermId),
    /// The second term where the first is nonzero, otherwise the third.
    Select(TermId, TermId, TermId),
}

/// A pointwise expression: terms in order, and which of them are results.
///
/// ```
/// use plimsoll_core::expr::{Expr, Binary};
/// let relu_of_sum = Expr::build(|e| {
///     let sum = e.binary(Binary::Add, e.input(0), e.input(1));
///     e.binary(Binary::Max, sum, e.constant(0.0))
/// });
/// assert_eq!(relu_of_sum.to_string(), "max(a + b, 0)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Expr {
    /// Clones share them: planning holds many graphs of the same expressions.
    terms: Arc<[Term]>,
    roots: Arc<[TermId]>,
}

impl Expr {
    /// An expression with one result.
    pub fn build(body: impl FnOnce(&ExprBuilder) -> TermId) -> Expr {
        Expr::build_many(|e| vec![body(e)])
    }

    /// An expression with several results.
    pub fn build_many(body: impl FnOnce(&ExprBuilder) -> Vec<TermId>) -> Expr {
        let builder = ExprBuilder::default();
        let roots = body(&builder);
        builder.finish(&roots)
    }

    /// The expression that is its only input.
    pub fn identity() -> Expr {
        Expr::build(|e| e.input(0))
    }

    /// All terms in order.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Which terms are results.
    pub fn roots(&self) -> &[TermId] {
        &self.roots
    }

    /// One more than the highest input read.
    pub fn arity(&self) -> usize {
        self.terms.iter().map(|term| if let Term::Input(i) = term { *i as usize + 1 } else { 0 }).max().unwrap_or(0)
    }

    /// Whether it returns its first input unchanged.
    pub fn is_identity(&self) -> bool {
        self.roots.len() == 1 && *self.terms == [Term::Input(0)]
    }

    /// The value of a constant expression.
    pub fn as_constant(&self) -> Option<f32> {
        match (&self.terms[..], &self.roots[..]) {
            ([Term::Const(bits)], [0]) => Some(f32::from_bits(*bits)),
            _ => None,
        }
    }

    /// Whether it depends on coordinates or random numbers: such an expression cannot be moved to another shape.
    pub fn is_positional(&self) -> bool {
        self.terms.iter().any(|term| matches!(term, Term::Random(_) | Term::Coordinate(_)))
    }

    /// Floating-point operations per element.
    pub fn flops(&self) -> u64 {
        self.terms.iter().filter(|term| matches!(term, Term::Unary(..) | Term::Binary(..) | Term::Select(..))).count() as u64
    }

    /// Whether input `i` is read.
    pub fn reads(&self, i: usize) -> bool {
        self.terms.contains(&Term::Input(i as u16))
    }

    /// The value of every result for one element, in double precision.
    pub fn evaluate(&self, inputs: &[f64], element: &Element<'_>) -> Vec<f64> {
        let mut values: Vec<f64> = Vec::with_capacity(self.terms.len());
        for term in self.terms.iter() {
            let at = |id: TermId| values[id as usize];
            let value = match *term {
                Term::Input(i) => inputs[i as usize],
                Term::Const(bits) => f64::from(f32::from_bits(bits)),
                Term::Random(stream) => f64::from(element.random.uniform(stream, element.index)),
                Term::Coordinate(axis) => element.coordinates[axis as usize] as f64,
                Term::Unary(op, a) => op.evaluate(at(a)),
                Term::Binary(op, a, b) => op.evaluate(at(a), at(b)),
                Term::Select(c, a, b) => at(if at(c) != 0.0 { a } else { b }),
            };
            values.push(value);
        }
        self.roots.iter().map(|root| values[*root as usize]).collect()
    }

    /// Inlines this expression into another one; `input` maps each input to a term.
    pub fn inline(&self, e: &ExprBuilder, input: &mut dyn FnMut(u16) -> TermId) -> Vec<TermId> {
        let values = self.inline_terms(e, input);
        self.roots.iter().map(|root| values[*root as usize]).collect()
    }

    /// Inlines every term of this expression, over the same inputs, into another one.
    pub(crate) fn inline_all(&self, e: &ExprBuilder) -> Vec<TermId> {
        self.inline_terms(e, &mut |i| e.input(i))
    }

    fn inline_terms(&self, e: &ExprBuilder, input: &mut dyn FnMut(u16) -> TermId) -> Vec<TermId> {
        let mut values: Vec<TermId> = Vec::with_capacity(self.terms.len());
        for term in self.terms.iter() {
            let at = |id: TermId| values[id as usize];
            let value = match *term {
                Term::Input(i) => input(i),
                Term::Const(bits) => e.constant(f32::from_bits(bits)),
                Term::Random(stream) => e.random(stream),
                Term::Coordinate(axis) => e.coordinate(axis),
                Term::Unary(op, a) => e.unary(op, at(a)),
                Term::Binary(op, a, b) => e.binary(op, at(a), at(b)),
                Term::Select(c, a, b) => e.select(at(c), at(a), at(b)),
            };
            values.push(value);
        }
        values
    }
}

/// The position of an element, for coordinate and random terms.
pub struct Element<'a> {
    /// The random numbers of the step.
    pub random: &'a StepRandom,
    /// The element's index within its tensor over the whole batch.
    pub index: u64,
    /// Its coordinates.
    pub coordinates: &'a [usize],
}

/// Builds expressions term by term; shares equal terms and folds constants.
#[derive(Default)]
pub struct ExprBuilder {
    terms: std::cell::RefCell<(Vec<Term>, HashMap<Term, TermId>)>,
}

impl ExprBuilder {
    /// Input tensor `i`.
    pub fn input(&self, i: u16) -> TermId {
        self.push(Term::Input(i))
    }

    /// A number.
    pub fn constant(&self, value: f32) -> TermId {
        self.push(Term::Const(value.to_bits()))
    }

    /// A uniform random number in [0, 1).
    pub fn random(&self, stream: u32) -> TermId {
        self.push(Term::Random(stream))
    }

    /// The coordinate along an axis.
    pub fn coordinate(&self, axis: u8) -> TermId {
        self.push(Term::Coordinate(axis))
    }

    /// A function of one term.
    pub fn unary(&self, op: Unary, a: TermId) -> TermId {
        match (self.number(a), op) {
            (Some(a), _) => self.constant(op.evaluate(f64::from(a)) as f32),
            _ => self.push(Term::Unary(op, a)),
        }
    }

    /// A function of two terms.
    pub fn binary(&self, op: Binary, a: TermId, b: TermId) -> TermId {
        use Binary::*;
        match (op, self.number(a), self.number(b)) {
            (_, Some(a), Some(b)) => self.constant(op.evaluate(f64::from(a), f64::from(b)) as f32),
            (Add, Some(0.0), _) => b,
            (Add | Sub, _, Some(0.0)) => a,
            (Sub, Some(0.0), _) => self.unary(Unary::Neg, b),
            (Mul, Some(1.0), _) => b,
            (Mul | Div | Pow, _, Some(1.0)) => a,
            (Mul, Some(-1.0), _) => self.unary(Unary::Neg, b),
            (Mul, _, Some(-1.0)) => self.unary(Unary::Neg, a),
            (Pow, _, Some(0.0)) => self.constant(1.0),
            (Pow, _, Some(2.0)) => self.push(Term::Binary(Mul, a, a)),
            _ => self.push(Term::Binary(op, a, b)),
        }
    }

    /// `a` where `condition` is nonzero, otherwise `b`.
    pub fn select(&self, condition: TermId, a: TermId, b: TermId) -> TermId {
        match self.number(condition) {
            _ if a == b => a,
            Some(number) => {
                if number != 0.0 {
                    a
                } else {
                    b
                }
            }
            None => self.push(Term::Select(condition, a, b)),
        }
    }

    /// `a + b`.
    pub fn add(&self, a: TermId, b: TermId) -> TermId {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&self, a: TermId, b: TermId) -> TermId {
        self.binary(Binary::Sub, a, b)
    }

    /// `a · b`.
    pub fn mul(&self, a: TermId, b: TermId) -> TermId {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b`.
    pub fn div(&self, a: TermId, b: TermId) -> TermId {
        self.binary(Binary::Div, a, b)
    }

    fn number(&self, id: TermId) -> Option<f32> {
        match self.terms.borrow().0[id as usize] {
            Term::Const(bits) => Some(f32::from_bits(bits)),
            _ => None,
        }
    }

    fn push(&self, term: Term) -> TermId {
        let (terms, known) = &mut *self.terms.borrow_mut();
        *known.entry(term).or_insert_with(|| {
            terms.push(term);
            TermId::try_from(terms.len() - 1).expect("fusion keeps expressions far below 65,536 terms")
        })
    }

    /// Drops unused terms and normalizes the order to first use, so that equal expressions compare equal.
    pub(crate) fn finish(self, roots: &[TermId]) -> Expr {
        let (all, _) = self.terms.into_inner();
        let mut needed = vec![false; all.len()];
        roots.iter().for_each(|root| needed[*root as usize] = true);
        for id in (0..all.len()).rev() {
            if needed[id] {
                all[id].operands().for_each(|operand| needed[operand as usize] = true);
            }
        }
        let mut renamed = vec![0; all.len()];
        let mut terms = Vec::new();
        for (id, term) in all.iter().enumerate().filter(|(id, _)| needed[*id]) {
            renamed[id] = terms.len() as TermId;
            terms.push(term.rename(|operand| renamed[operand as usize]));
        }
        Expr { terms: terms.into(), roots: roots.iter().map(|root| renamed[*root as usize]).collect() }
    }
}

impl Term {
    /// The terms this one reads.
    pub fn operands(&self) -> impl Iterator<Item = TermId> + use<> {
        let operands = match *self {
            Term::Unary(_, a) => [Some(a), None, None],
            Term::Binary(_, a, b) => [Some(a), Some(b), None],
            Term::Select(c, a, b) => [Some(c), Some(a), Some(b)],
            _ => [None; 3],
        };
        operands.into_iter().flatten()
    }

    fn rename(&self, name: impl Fn(TermId) -> TermId) -> Term {
        match *self {
            Term::Unary(op, a) => Term::Unary(op, name(a)),
            Term::Binary(op, a, b) => Term::Binary(op, name(a), name(b)),
            Term::Select(c, a, b) => Term::Select(name(c), name(a), name(b)),
            leaf => leaf,
        }
    }
}

impl Unary {
    /// Its value in double precision.
    pub fn evaluate(self, x: f64) -> f64 {
        match self {
            Unary::Neg => -x,
            Unary::Abs => x.abs(),
            Unary::Sign if x == 0.0 || x.is_nan() => x,
            Unary::Sign => x.signum(),
            Unary::Floor => x.floor(),
            Unary::Exp => x.exp(),
            Unary::Log => x.ln(),
            Unary::Sqrt => x.sqrt(),
            Unary::Recip => 1.0 / x,
            Unary::Tanh => x.tanh(),
            Unary::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Unary::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
            Unary::Erf => erf(x),
        }
    }
}

impl Binary {
    /// Its value in double precision.
    pub fn evaluate(self, a: f64, b: f64) -> f64 {
        let truth = |holds: bool| f64::from(u8::from(holds));
        match self {
            Binary::Add => a + b,
            Binary::Sub => a - b,
            Binary::Mul => a * b,
            Binary::Div => a / b,
            // NaN propagates: an invalid value must stay visible.
            Binary::Max if a.is_nan() || b.is_nan() => f64::NAN,
            Binary::Min if a.is_nan() || b.is_nan() => f64::NAN,
            Binary::Max => a.max(b),
            Binary::Min => a.min(b),
            Binary::Pow => a.powf(b),
            Binary::Less => truth(a < b),
            Binary::LessEq => truth(a <= b),
            Binary::Equal => truth(a == b),
        }
    }
}

/// The error function to double precision: a power series near zero, a continued fraction in the tails.
pub(crate) fn erf(x: f64) -> f64 {
    let magnitude = x.abs();
    if magnitude.is_nan() {
        return x;
    }
    if magnitude > 6.0 {
        return x.signum();
    }
    let value = if magnitude < 2.5 {
        let (mut term, mut sum) = (magnitude, magnitude);
        for n in 1..200 {
            term *= -magnitude * magnitude / f64::from(n);
            let part = term / f64::from(2 * n + 1);
            sum += part;
            if part.abs() < 1e-18 * sum.abs() {
                break;
            }
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let mut fraction = magnitude;
        for n in (1..=120).rev() {
            fraction = magnitude + f64::from(n) / 2.0 / fraction;
        }
        1.0 - (-magnitude * magnitude).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    value.copysign(x)
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let roots: Vec<String> = self.roots.iter().map(|root| self.text(*root, 0)).collect();
        f.pad(&roots.join("; "))
    }
}

impl Expr {
    /// The text of a term; `binding` is the precedence of its context (0 none, 1 sums, 2 products).
    fn text(&self, id: TermId, binding: u8) -> String {
        let infix = |a, sign, b, own: u8| {
            let text = format!("{} {sign} {}", self.text(a, own), self.text(b, own + 1));
            if own < binding { format!("({text})") } else { text }
        };
        let call = |name: &str, operands: &[TermId]| {
            let operands: Vec<String> = operands.iter().map(|operand| self.text(*operand, 0)).collect();
            format!("{name}({})", operands.join(", "))
        };
        match self.terms[id as usize] {
            Term::Input(i) if i < 26 => char::from(b'a' + i as u8).to_string(),
            Term::Input(i) => format!("in{i}"),
            Term::Const(bits) => f32::from_bits(bits).to_string(),
            Term::Random(stream) => format!("random#{stream}"),
            Term::Coordinate(axis) => format!("axis{axis}"),
            Term::Unary(op, a) => call(&format!("{op:?}").to_lowercase(), &[a]),
            Term::Binary(Binary::Add, a, b) => infix(a, '+', b, 1),
            Term::Binary(Binary::Sub, a, b) => infix(a, '-', b, 1),
            Term::Binary(Binary::Mul, a, b) => infix(a, '·', b, 2),
            Term::Binary(Binary::Div, a, b) => infix(a, '/', b, 2),
            Term::Binary(op, a, b) => call(&format!("{op:?}").to_lowercase(), &[a, b]),
            Term::Select(c, a, b) => call("select", &[c, a, b]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn building_folds_and_shares() {
        let expr = Expr::build(|e| {
            let twice = e.add(e.input(0), e.input(0));
            let again = e.add(e.input(0), e.input(0));
            let ignored = e.mul(e.constant(3.0), e.constant(2.0));
            e.mul(e.mul(twice, e.constant(1.0)), e.sub(again, e.sub(ignored, e.constant(6.0))))
        });
        assert_eq!(expr.to_string(), "(a + a) · (a + a)");
        assert_eq!(expr.terms().len(), 3);
    }

    #[test]
    fn the_slope_of_relu_and_sigmoid_needs_only_the_result() {
        let relu = Expr::build(|e| e.binary(Binary::Max, e.input(0), e.constant(0.0)));
        assert_eq!(relu.derivative(1, &[0], &[true]).to_string(), "select(less(0, b), c, 0)");
        assert_eq!(relu.derivative(1, &[0], &[false]).to_string(), "select(less(0, max(a, 0)), c, 0)", "a rounded result is not read");
        let sigmoid = Expr::build(|e| e.unary(Unary::Sigmoid, e.input(0)));
        assert_eq!(sigmoid.derivative(1, &[0], &[true]).to_string(), "c · (b · (1 - b))");
    }

    #[test]
    fn erf_matches_known_values() {
        for (x, y) in [
            (0.0, 0.0),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.5, 0.999_593_047_982_555),
            (3.0, 0.999_977_909_503_001_4),
        ] {
            assert!((erf(x) - y).abs() < 1e-14 && (erf(-x) + y).abs() < 1e-14, "{x}");
        }
    }
}
