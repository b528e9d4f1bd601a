//! Symbolic derivatives of expressions.

use super::{Binary, Expr, ExprBuilder, Term, TermId, Unary};

impl Expr {
    /// The derivative: an expression whose result `i` is the derivative with respect to input `wanted[i]`.
    ///
    /// Its inputs are this expression's `arity` inputs, then its results, then the gradient of each result. A result is
    /// read instead of recomputed, so that a function whose slope follows from its value (ReLU, sigmoid, …) needs no
    /// input; except if `faithful` is false because its type cannot represent the computed value.
    pub fn derivative(&self, arity: usize, wanted: &[usize], faithful: &[bool]) -> Expr {
        let outputs = self.roots.len();
        Expr::build_many(|e| {
            let mut values: Vec<TermId> = Vec::with_capacity(self.terms.len());
            for (id, term) in self.terms.iter().enumerate() {
                let result = (0..outputs).find(|result| self.roots[*result] as usize == id && faithful[*result]);
                let value = match (result, *term) {
                    (_, Term::Input(i)) => e.input(i),
                    (_, Term::Const(bits)) => e.constant(f32::from_bits(bits)),
                    (Some(result), _) => e.input((arity + result) as u16),
                    (_, Term::Random(stream)) => e.random(stream),
                    (_, Term::Coordinate(axis)) => e.coordinate(axis),
                    (_, Term::Unary(op, a)) => e.unary(op, values[a as usize]),
                    (_, Term::Binary(op, a, b)) => e.binary(op, values[a as usize], values[b as usize]),
                    (_, Term::Select(c, a, b)) => e.select(values[c as usize], values[a as usize], values[b as usize]),
                };
                values.push(value);
            }
            let zero = e.constant(0.0);
            let clamped = self.clamped();
            let mut slopes: Vec<TermId> = vec![zero; self.terms.len()];
            for (result, root) in self.roots.iter().enumerate() {
                let gradient = e.input((arity + outputs + result) as u16);
                slopes[*root as usize] = e.binary(Binary::Add, slopes[*root as usize], gradient);
            }
            for (id, term) in self.terms.iter().enumerate().rev() {
                let slope = slopes[id];
                if slope == zero {
                    continue;
                }
                let mut add = |target: TermId, amount: TermId| {
                    slopes[target as usize] = e.binary(Binary::Add, slopes[target as usize], amount);
                };
                match *term {
                    Term::Unary(op, a) => add(a, op.slope(e, values[a as usize], values[id], slope)),
                    Term::Binary(op, a, b) => {
                        let y = values[clamped[id].map_or(id, usize::from)];
                        let (for_a, for_b) = op.slopes(e, values[a as usize], values[b as usize], y, slope);
                        add(a, for_a);
                        add(b, for_b);
                    }
                    Term::Select(c, a, b) => {
                        add(a, e.select(values[c as usize], slope, zero));
                        add(b, e.select(values[c as usize], zero, slope));
                    }
                    Term::Input(_) | Term::Const(_) | Term::Random(_) | Term::Coordinate(_) => {}
                }
            }
            wanted
                .iter()
                .map(|i| self.terms.iter().position(|term| *term == Term::Input(*i as u16)).map_or(zero, |term| slopes[term]))
                .collect()
        })
    }
}

impl Expr {
    /// For the inner bound of a clamp, such as `max(x, 0)` in `min(max(x, 0), 6)`, the term of the clamp. The clamped
    /// value tells as well whether the inner bound was selected, so that it need not be recomputed from the input.
    fn clamped(&self) -> Vec<Option<TermId>> {
        let number = |id: TermId| match self.terms[id as usize] {
            Term::Const(bits) => Some(f32::from_bits(bits)),
            _ => None,
        };
        let mut clamped = vec![None; self.terms.len()];
        for (id, term) in self.terms.iter().enumerate() {
            let Term::Binary(outer, inside, bound) = *term else { continue };
            let Term::Binary(inner, _, other) = self.terms[inside as usize] else { continue };
            let (Some(bound), Some(other)) = (number(bound), number(other)) else { continue };
            let nested = match (outer, inner) {
                (Binary::Min, Binary::Max) => other < bound,
                (Binary::Max, Binary::Min) => other > bound,
                _ => false,
            };
            if nested {
                clamped[inside as usize] = Some(id as TermId);
            }
        }
        clamped
    }
}

impl Unary {
    /// `slope` times the derivative at `x`, given the function value `y`.
    fn slope(self, e: &ExprBuilder, x: TermId, y: TermId, slope: TermId) -> TermId {
        let one = e.constant(1.0);
        match self {
            Unary::Neg => e.unary(Unary::Neg, slope),
            Unary::Abs => e.mul(slope, e.unary(Unary::Sign, x)),
            Unary::Sign | Unary::Floor => e.constant(0.0),
            Unary::Exp => e.mul(slope, y),
            Unary::Log => e.div(slope, x),
            Unary::Sqrt => e.div(e.mul(slope, e.constant(0.5)), y),
            Unary::Recip => e.unary(Unary::Neg, e.mul(slope, e.mul(y, y))),
            Unary::Tanh => e.mul(slope, e.sub(one, e.mul(y, y))),
            Unary::Sigmoid => e.mul(slope, e.mul(y, e.sub(one, y))),
            Unary::Softplus => e.mul(slope, e.unary(Unary::Sigmoid, x)),
            Unary::Erf => {
                let bell = e.unary(Unary::Exp, e.unary(Unary::Neg, e.mul(x, x)));
                e.mul(slope, e.mul(e.constant(std::f32::consts::FRAC_2_SQRT_PI), bell))
            }
        }
    }
}

impl Binary {
    /// `slope` times the two partial derivatives at (`a`, `b`), given the function value `y`.
    fn slopes(self, e: &ExprBuilder, a: TermId, b: TermId, y: TermId, slope: TermId) -> (TermId, TermId) {
        let zero = e.constant(0.0);
        match self {
            Binary::Add => (slope, slope),
            Binary::Sub => (slope, e.unary(Unary::Neg, slope)),
            Binary::Mul => (e.mul(slope, b), e.mul(slope, a)),
            Binary::Div => (e.div(slope, b), e.unary(Unary::Neg, e.div(e.mul(slope, y), b))),
            // With a constant operand the result alone determines which side was selected, so the input need not stay
            // live.
            Binary::Max if e.number(b).is_some() => (e.select(e.binary(Binary::Less, b, y), slope, zero), zero),
            Binary::Min if e.number(b).is_some() => (e.select(e.binary(Binary::Less, y, b), slope, zero), zero),
            Binary::Max => {
                let second = e.binary(Binary::Less, a, b);
                (e.select(second, zero, slope), e.select(second, slope, zero))
            }
            Binary::Min => {
                let second = e.binary(Binary::Less, b, a);
                (e.select(second, zero, slope), e.select(second, slope, zero))
            }
            Binary::Pow => {
                let lower = e.binary(Binary::Pow, a, e.sub(b, e.constant(1.0)));
                let for_a = e.mul(slope, e.mul(b, lower));
                if e.number(b).is_some() {
                    return (for_a, zero);
                }
                // For an exponent or a base of zero the formulas yield NaN, although the slopes are zero.
                let for_b = e.mul(slope, e.mul(y, e.unary(Unary::Log, a)));
                (e.select(b, for_a, zero), e.select(a, for_b, zero))
            }
            Binary::Less | Binary::LessEq | Binary::Equal => (zero, zero),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clamp_needs_only_its_result() {
        let relu6 = Expr::build(|e| e.binary(Binary::Min, e.binary(Binary::Max, e.input(0), e.constant(0.0)), e.constant(6.0)));
        let slope = relu6.derivative(1, &[0], &[true]);
        assert_eq!((slope.reads(0), slope.reads(1), slope.reads(2)), (false, true, true), "{slope}");
        let other = Expr::build(|e| e.binary(Binary::Max, e.binary(Binary::Min, e.input(0), e.constant(1.0)), e.constant(-1.0)));
        assert!(!other.derivative(1, &[0], &[true]).reads(0));
        // An empty range always gives the outer bound, so its result tells nothing about the inner one.
        let empty = Expr::build(|e| e.binary(Binary::Min, e.binary(Binary::Max, e.input(0), e.constant(6.0)), e.constant(0.0)));
        assert!(empty.derivative(1, &[0], &[true]).reads(0));
    }
}
