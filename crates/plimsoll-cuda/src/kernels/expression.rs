//! Generates kernel code for pointwise expressions: one statement per term.

use super::index::{broadcast_index, coordinates, needed_axes};
use super::{Argument, type_name};
use plimsoll_core::DType;
use plimsoll_core::expr::{Binary, Expr, Term, Unary};
use std::fmt::Write;

/// A tensor that an expression reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operand<'a> {
    pub dtype: DType,
    pub dims: &'a [usize],
    /// The first channel and the row stride of a channel view, which has the shape of the expression.
    pub strip: Option<(usize, usize)>,
}

/// An expression over a shape, with operands broadcast to it.
pub(crate) struct FusedExpr<'a> {
    pub expr: &'a Expr,
    pub dims: &'a [usize],
    pub operands: &'a [Operand<'a>],
    /// Elements per row of the batch, if the shape has a batch dimension: random numbers are indexed from the batch's
    /// first row.
    pub row: u64,
    /// Inputs that are in a named register instead of memory.
    pub in_registers: &'a [(usize, &'a str)],
}

impl FusedExpr<'_> {
    /// The parameters of all operands in memory; input `i` of the expression is input `first + i` of the node.
    pub fn parameters(&self, first: usize) -> Vec<(String, Argument)> {
        let read = (0..self.operands.len()).filter(|i| self.expr.reads(*i) && !self.is_in_register(*i));
        let mut all: Vec<(String, Argument)> =
            read.map(|i| (format!("const {}* in{i}", type_name(self.operands[i].dtype)), Argument::Input(first + i))).collect();
        if self.draws() {
            all.push(("const Header* header".to_string(), Argument::Header));
        }
        all
    }

    /// Writes the statements for element `index` of type `kind`. Term `t` is then named `t…`.
    pub fn write(&self, text: &mut String, kind: &str, index: &str) {
        self.write_coordinates(text, kind, index);
        for (id, term) in self.expr.terms().iter().enumerate() {
            let value = self.term(term, index);
            let _ = writeln!(text, "const float t{id} = {value};");
        }
    }

    /// The name of a result.
    pub fn root(&self, result: usize) -> String {
        format!("t{}", self.expr.roots()[result])
    }

    /// Whether the expression reads an operand from memory.
    pub(super) fn is_read(&self, input: usize) -> bool {
        self.expr.reads(input) && !self.is_in_register(input)
    }

    /// As [`is_read`](FusedExpr::is_read), for an input that occurs in a term.
    pub(super) fn is_read_from_memory(&self, input: usize) -> bool {
        !self.is_in_register(input)
    }

    fn is_in_register(&self, input: usize) -> bool {
        self.in_registers.iter().any(|(i, _)| *i == input)
    }

    fn draws(&self) -> bool {
        self.expr.terms().iter().any(|term| matches!(term, Term::Random(_)))
    }

    fn write_coordinates(&self, text: &mut String, kind: &str, index: &str) {
        let mut wanted: Vec<usize> = Vec::new();
        for term in self.expr.terms() {
            match *term {
                Term::Coordinate(axis) => wanted.push(usize::from(axis)),
                Term::Input(i) if !self.is_in_register(usize::from(i)) && self.operands[usize::from(i)].strip.is_none() => {
                    wanted.extend(needed_axes(self.operands[usize::from(i)].dims, self.dims))
                }
                _ => {}
            }
        }
        coordinates(text, kind, "c", index, self.dims, |axis| wanted.contains(&axis));
    }

    /// The index of an operand's element for element `index` of the shape.
    pub(super) fn place(&self, operand: &Operand<'_>, index: &str) -> String {
        let row = self.dims.last().copied().unwrap_or(1);
        match operand.strip {
            Some((start, pitch)) => format!("(unsigned long long)({index} / {row}) * {pitch} + {start} + {index} % {row}"),
            None => broadcast_index(operand.dims, self.dims, index, "c"),
        }
    }

    pub(super) fn term(&self, term: &Term, index: &str) -> String {
        match *term {
            Term::Input(i) => match self.in_registers.iter().find(|(known, _)| *known == usize::from(i)) {
                Some((_, name)) => name.to_string(),
                None => format!("load(in{i}[{}])", self.place(&self.operands[usize::from(i)], index)),
            },
            Term::Const(bits) => constant(f32::from_bits(bits)),
            Term::Random(stream) if self.row == 0 => format!("uniform(header, {stream}, {index})"),
            Term::Random(stream) => format!("uniform(header, {stream}, header->first_row * {} + {index})", self.row),
            Term::Coordinate(axis) => format!("(float)c{axis}"),
            Term::Unary(op, a) => unary(op, a),
            Term::Binary(op, a, b) => binary(op, a, b),
            Term::Select(c, a, b) => format!("t{c} != 0.0f ? t{a} : t{b}"),
        }
    }
}

/// The shortest literal that is exactly this number.
fn constant(x: f32) -> String {
    if x.is_finite() { format!("{x:?}f") } else { format!("number({:#x})", x.to_bits()) }
}

fn unary(op: Unary, a: u16) -> String {
    match op {
        Unary::Neg => format!("-t{a}"),
        Unary::Abs => format!("fabsf(t{a})"),
        Unary::Sign => format!("sign(t{a})"),
        Unary::Floor => format!("floorf(t{a})"),
        Unary::Exp => format!("expf(t{a})"),
        Unary::Log => format!("logf(t{a})"),
        Unary::Sqrt => format!("sqrtf(t{a})"),
        Unary::Recip => format!("1.0f / t{a}"),
        Unary::Tanh => format!("tanhf(t{a})"),
        Unary::Sigmoid => format!("sigmoid(t{a})"),
        Unary::Softplus => format!("softplus(t{a})"),
        Unary::Erf => format!("erff(t{a})"),
    }
}

fn binary(op: Binary, a: u16, b: u16) -> String {
    match op {
        Binary::Add => format!("t{a} + t{b}"),
        Binary::Sub => format!("t{a} - t{b}"),
        Binary::Mul => format!("t{a} * t{b}"),
        Binary::Div => format!("t{a} / t{b}"),
        Binary::Max => format!("larger(t{a}, t{b})"),
        Binary::Min => format!("smaller(t{a}, t{b})"),
        Binary::Pow => format!("powf(t{a}, t{b})"),
        Binary::Less => format!("t{a} < t{b} ? 1.0f : 0.0f"),
        Binary::LessEq => format!("t{a} <= t{b} ? 1.0f : 0.0f"),
        Binary::Equal => format!("t{a} == t{b} ? 1.0f : 0.0f"),
    }
}
