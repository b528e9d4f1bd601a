//! Sine and cosine as expressions, to single precision.

use plimsoll_core::expr::{ExprBuilder, TermId, Unary};

/// The coefficients of cos(2πv) as a power series in v², for |v| ≤ ½.
const COSINE: [f64; 9] = {
    let tau = std::f64::consts::TAU;
    let mut series = [1.0; 9];
    let mut n = 1;
    while n < 9 {
        let k = 2.0 * n as f64;
        series[n] = -series[n - 1] * tau * tau / (k * (k - 1.0));
        n += 1;
    }
    series
};

/// The cosine of an angle in turns.
pub(crate) fn cosine(e: &ExprBuilder, turns: TermId) -> TermId {
    // Reduce to the nearest whole turn, then evaluate the series.
    let nearest = e.unary(Unary::Floor, e.add(turns, e.constant(0.5)));
    let v = e.sub(turns, nearest);
    // Cosine is even and its middle lies at a quarter turn: cos(2πv) = -cos(2π(½ - |v|)), so that |v| ≤ ¼ suffices.
    let away = e.unary(Unary::Abs, v);
    let far = e.binary(plimsoll_core::expr::Binary::Less, e.constant(0.25), away);
    let near = e.select(far, e.sub(e.constant(0.5), away), away);
    let square = e.mul(near, near);
    let series = COSINE.iter().rev().fold(e.constant(0.0), |sum, c| e.add(e.mul(sum, square), e.constant(*c as f32)));
    e.select(far, e.unary(Unary::Neg, series), series)
}

/// The sine of an angle in turns: the cosine a quarter turn earlier.
pub(crate) fn sine(e: &ExprBuilder, turns: TermId) -> TermId {
    cosine(e, e.sub(turns, e.constant(0.25)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::expr::{Element, Expr};
    use plimsoll_core::random::StepRandom;

    #[test]
    fn sine_and_cosine_match_the_standard_library() {
        let expr = Expr::build_many(|e| vec![sine(e, e.input(0)), cosine(e, e.input(0))]);
        let random = StepRandom { seed: 0, step: 0, first_row: 0 };
        for i in -4000..4000 {
            let turns = f64::from(i) / 997.0;
            let got = expr.evaluate(&[turns], &Element { random: &random, index: 0, coordinates: &[] });
            let angle = turns * std::f64::consts::TAU;
            assert!((got[0] - angle.sin()).abs() < 1e-6 && (got[1] - angle.cos()).abs() < 1e-6, "{turns}: {got:?}");
        }
    }
}
