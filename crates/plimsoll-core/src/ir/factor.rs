//! Factors constants out of sums: `Σ a·s` becomes `s · Σ a`. Gradients of normalization layers sum the same products
//! several times with different factors; after factoring, the sums are common subexpressions.

use crate::base::expr::{Binary, Expr, ExprBuilder, Term, TermId, Unary};

/// An expression split at a sum.
pub(crate) struct Factored {
    /// The summand, over the expression's inputs.
    pub inside: Expr,
    /// The expression after the sum, over the expression's inputs followed by the sum.
    pub outside: Expr,
}

/// Splits an expression with one result, if it has a `steady` factor, which depends only on terms that are constant
/// along the sum.
pub(crate) fn factor(expr: &Expr, inputs: usize, steady: impl Fn(&Term) -> bool) -> Option<Factored> {
    let &[root] = expr.roots() else { return None };
    let mut constant: Vec<bool> = Vec::with_capacity(expr.terms().len());
    for term in expr.terms() {
        let is = steady(term) && term.operands().all(|operand| constant[operand as usize]);
        constant.push(is);
    }
    if constant[root as usize] {
        return None;
    }
    let mut parts = Parts { expr, constant: &constant, inside: Vec::new(), outside: Vec::new() };
    parts.split(root, false);
    if parts.outside.is_empty() {
        return None;
    }
    let Parts { inside, outside, .. } = parts;
    let inside = Expr::build(|e| {
        let values = expr.inline_all(e);
        product(e, &values, &inside)
    });
    let outside = Expr::build(|e| {
        let values = expr.inline_all(e);
        e.mul(e.input(inputs as u16), product(e, &values, &outside))
    });
    Some(Factored { inside, outside })
}

/// A factor: a term, or minus one.
enum Factor {
    Term { id: TermId, below: bool },
    Minus,
}

struct Parts<'a> {
    expr: &'a Expr,
    constant: &'a [bool],
    inside: Vec<Factor>,
    outside: Vec<Factor>,
}

impl Parts<'_> {
    fn split(&mut self, id: TermId, below: bool) {
        match self.expr.terms()[id as usize] {
            _ if self.constant[id as usize] => self.outside.push(Factor::Term { id, below }),
            Term::Binary(Binary::Mul, a, b) => {
                self.split(a, below);
                self.split(b, below);
            }
            Term::Binary(Binary::Div, a, b) => {
                self.split(a, below);
                self.split(b, !below);
            }
            Term::Unary(Unary::Neg, a) => {
                self.outside.push(Factor::Minus);
                self.split(a, below);
            }
            _ => self.inside.push(Factor::Term { id, below }),
        }
    }
}

fn product(e: &ExprBuilder, values: &[TermId], factors: &[Factor]) -> TermId {
    factors.iter().fold(e.constant(1.0), |product, factor| match factor {
        Factor::Term { id, below: false } => e.mul(product, values[*id as usize]),
        Factor::Term { id, below: true } => e.div(product, values[*id as usize]),
        Factor::Minus => e.unary(Unary::Neg, product),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_steady_waits_until_after_the_sum() {
        // a and d vary along the sum, b and c do not.
        let steady = |term: &Term| !matches!(term, Term::Input(0 | 3));
        let expr = Expr::build(|e| e.unary(Unary::Neg, e.div(e.mul(e.mul(e.input(0), e.input(1)), e.input(3)), e.input(2))));
        let cut = factor(&expr, 4, steady).expect("b and c are factors");
        assert_eq!((cut.inside.to_string(), cut.outside.to_string()), ("a · d".to_string(), "e · (neg(b) / c)".to_string()));
        let sum = Expr::build(|e| e.add(e.mul(e.input(0), e.input(1)), e.input(3)));
        assert!(factor(&sum, 4, steady).is_none(), "a sum has no factors");
        let still = Expr::build(|e| e.mul(e.input(1), e.input(2)));
        assert!(factor(&still, 4, steady).is_none(), "nothing would be left to sum");
    }
}
