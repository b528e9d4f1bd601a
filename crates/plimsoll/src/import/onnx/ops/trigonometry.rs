//! Trigonometric and hyperbolic functions, as expressions of the functions that devices have.

use super::Mapping;
use crate::nn::trigonometry::{cosine, sine};
use plimsoll_core::expr::{Binary, ExprBuilder, TermId, Unary};
use std::f32::consts::{FRAC_1_PI, FRAC_PI_2, FRAC_PI_4};

pub(super) const OPERATORS: &[(&str, Mapping)] = &[
    ("Sin", |i, c| i.unary(c, |e, x| sine(e, turns(e, x)))),
    ("Cos", |i, c| i.unary(c, |e, x| cosine(e, turns(e, x)))),
    ("Tan", |i, c| i.unary(c, |e, x| e.div(sine(e, turns(e, x)), cosine(e, turns(e, x))))),
    ("Atan", |i, c| i.unary(c, arctangent)),
    // asin(x) = atan(x / √(1 - x²)); at ±1 the quotient is infinite, and the arctangent of it a quarter turn.
    ("Asin", |i, c| i.unary(c, |e, x| arctangent(e, e.div(x, cathetus(e, x))))),
    ("Acos", |i, c| i.unary(c, |e, x| e.sub(e.constant(FRAC_PI_2), arctangent(e, e.div(x, cathetus(e, x)))))),
    ("Sinh", |i, c| i.unary(c, |e, x| e.mul(e.constant(0.5), e.sub(exp(e, x), exp(e, neg(e, x)))))),
    ("Cosh", |i, c| i.unary(c, |e, x| e.mul(e.constant(0.5), e.add(exp(e, x), exp(e, neg(e, x)))))),
    // asinh(x) = sign(x)·ln(|x| + √(x² + 1)).
    ("Asinh", |i, c| {
        i.unary(c, |e, x| {
            let root = e.unary(Unary::Sqrt, e.add(e.mul(x, x), e.constant(1.0)));
            e.mul(e.unary(Unary::Sign, x), e.unary(Unary::Log, e.add(e.unary(Unary::Abs, x), root)))
        })
    }),
    ("Acosh", |i, c| i.unary(c, |e, x| e.unary(Unary::Log, e.add(x, e.unary(Unary::Sqrt, e.sub(e.mul(x, x), e.constant(1.0))))))),
    ("Atanh", |i, c| {
        i.unary(c, |e, x| {
            let one = e.constant(1.0);
            e.mul(e.constant(0.5), e.unary(Unary::Log, e.div(e.add(one, x), e.sub(one, x))))
        })
    }),
];

fn turns(e: &ExprBuilder, x: TermId) -> TermId {
    e.mul(x, e.constant(FRAC_1_PI / 2.0))
}

fn exp(e: &ExprBuilder, x: TermId) -> TermId {
    e.unary(Unary::Exp, x)
}

fn neg(e: &ExprBuilder, x: TermId) -> TermId {
    e.unary(Unary::Neg, x)
}

/// `√(1 - x²)`, written so that nothing cancels near ±1.
fn cathetus(e: &ExprBuilder, x: TermId) -> TermId {
    let one = e.constant(1.0);
    e.unary(Unary::Sqrt, e.mul(e.sub(one, x), e.add(one, x)))
}

/// The arctangent: reduced to |t| ≤ tan(π/8), then a series to single precision.
fn arctangent(e: &ExprBuilder, x: TermId) -> TermId {
    let (one, size) = (e.constant(1.0), e.unary(Unary::Abs, x));
    let above = e.binary(Binary::Less, e.constant(2.414_213_5), size);
    let middle = e.binary(Binary::Less, e.constant(0.414_213_57), size);
    let reduced = e.select(above, neg(e, e.unary(Unary::Recip, size)), e.div(e.sub(size, one), e.add(size, one)));
    let t = e.select(middle, reduced, size);
    let offset = e.select(above, e.constant(FRAC_PI_2), e.select(middle, e.constant(FRAC_PI_4), e.constant(0.0)));
    let square = e.mul(t, t);
    // t - t³/3 + t⁵/5 - …
    let series = (0..12).rev().fold(e.constant(0.0), |sum, n| {
        let sign = if n % 2 == 0 { 1.0 } else { -1.0 };
        e.add(e.mul(sum, square), e.constant(sign / (2 * n + 1) as f32))
    });
    e.mul(e.unary(Unary::Sign, x), e.add(offset, e.mul(t, series)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::expr::{Element, Expr};
    use plimsoll_core::random::StepRandom;

    #[test]
    fn the_arctangent_is_that_of_the_standard_library() {
        let expr = Expr::build(|e| arctangent(e, e.input(0)));
        for i in -3000..3000 {
            let x = f64::from(i) / 211.0;
            let got = expr.evaluate(&[x], &Element { random: &StepRandom::default(), index: 0, coordinates: &[] })[0];
            assert!((got - x.atan()).abs() < 1e-6, "{x}: {got}");
        }
    }
}
