//! Cases for expressions: every function, broadcasting on either side, random numbers, coordinates, several results,
//! every type.

use super::Case;
use super::draw::Draw;
use super::stage::{Domain, Stage};
use crate::DType;
use crate::base::expr::{Binary, Expr, Unary};
use crate::base::shape::{Dim, Shape};
use crate::ir::graph::GraphError;

/// Expands a list of functions to a list and to a `match`: a function without a case does not compile.
macro_rules! every {
    ($list:ident: [$($op:path => $domain:expr;)*] as $function:ty, $domains:ty) => {
        const $list: &[($function, $domains)] = &[$(($op, $domain)),*];
        const _: fn($function) = |op| match op {
            $($op => (),)*
        };
    };
}

every! {
    UNARIES: [
        Unary::Neg => Domain::Any;
        Unary::Abs => Domain::Any;
        Unary::Sign => Domain::Any;
        Unary::Floor => Domain::Any;
        Unary::Exp => Domain::Any;
        Unary::Log => Domain::Positive;
        Unary::Sqrt => Domain::Positive;
        Unary::Recip => Domain::Positive;
        Unary::Tanh => Domain::Any;
        Unary::Sigmoid => Domain::Any;
        Unary::Softplus => Domain::Any;
        Unary::Erf => Domain::Any;
    ] as Unary, Domain
}

every! {
    BINARIES: [
        Binary::Add => [Domain::Any, Domain::Any];
        Binary::Sub => [Domain::Any, Domain::Any];
        Binary::Mul => [Domain::Any, Domain::Any];
        Binary::Div => [Domain::Any, Domain::Positive];
        Binary::Max => [Domain::Any, Domain::Any];
        Binary::Min => [Domain::Any, Domain::Any];
        Binary::Pow => [Domain::Positive, Domain::Any];
        Binary::Less => [Domain::Any, Domain::Any];
        Binary::LessEq => [Domain::Any, Domain::Any];
        Binary::Equal => [Domain::Any, Domain::Any];
    ] as Binary, [Domain; 2]
}

pub(super) fn cases(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (op, domain) in UNARIES {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(3);
        let x = s.operand(shape, *domain)?;
        let y = s.expression(Expr::build(|e| e.unary(*op, e.input(0))), &[x])?;
        cases.push(s.finish(format!("{op:?}").to_lowercase(), &[y])?);
    }
    for (op, domains) in BINARIES {
        let mask = draw.below(8);
        cases.push(stretched(draw, *op, *domains, mask)?);
    }
    for mask in 0..8 {
        cases.push(stretched(draw, Binary::Mul, [Domain::Any; 2], mask)?);
    }
    cases.append(&mut against_constants(draw)?);
    cases.append(&mut positional(draw)?);
    cases.append(&mut shapes_of_results(draw)?);
    cases.append(&mut roundings(draw)?);
    Ok(cases)
}

/// Rounding to 16 bits, amplified to be visible, and sums of gradients that are stored in 16 bits.
fn roundings(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    let mut s = Stage::new(draw);
    let (shape, dtype) = (s.batch_shape(2), s.draw.dtype());
    let x = s.leaf(shape)?;
    let rounded = s.graph.cast(x, dtype)?;
    let off = Expr::build(|e| e.mul(e.sub(e.input(0), e.input(1)), e.constant(256.0)));
    let y = s.graph.pointwise(off, &[rounded, x])?;
    cases.push(s.finish_forward(format!("rounded to {dtype}"), &[y, rounded])?);

    let mut s = Stage::new(draw);
    let (shape, dtype) = (s.batch_shape(2), s.draw.dtype());
    let x = s.leaf(shape)?;
    let large = s.graph.map(x, |e, x| e.mul(x, e.constant(60_000.0)))?;
    let y = s.graph.cast(large, dtype)?;
    let small = s.graph.map(x, |e, x| e.mul(x, e.constant(1e-6)))?;
    let small = s.graph.cast(small, dtype)?;
    let seen = s.graph.map(small, |e, x| e.mul(x, e.constant(1e6)))?;
    cases.push(s.finish_forward(format!("the ends of {dtype}"), &[y, small, seen])?);

    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let x = s.operand(shape, Domain::Any)?;
    let squared = s.expression(Expr::build(|e| e.mul(e.input(0), e.input(0))), &[x])?;
    let bent = s.expression(Expr::build(|e| e.unary(Unary::Tanh, e.input(0))), &[x])?;
    let all = s.expression(Expr::build(|e| e.sub(e.mul(e.input(0), e.input(1)), e.input(2))), &[squared, bent, x])?;
    cases.push(s.finish("used three times", &[all])?);
    Ok(cases)
}

/// A function of two tensors. The first is broadcast along the axes in `mask`, the second randomly along others;
/// leading dimensions of 1 may be omitted.
fn stretched(draw: &mut Draw, op: Binary, domains: [Domain; 2], mask: usize) -> Result<Case, GraphError> {
    let mut s = Stage::new(draw);
    let full = s.batch_shape(3);
    let (mut first, mut second) = (full.dims().to_vec(), full.dims().to_vec());
    for axis in 0..3 {
        if mask & (1 << axis) != 0 {
            first[axis] = Dim::fixed(1);
        } else if s.draw.flip() {
            second[axis] = Dim::fixed(1);
        }
    }
    let outer_ones = |dims: &[Dim]| dims.iter().take_while(|dim| **dim == Dim::fixed(1)).count();
    let kept = first.split_off(s.draw.below(outer_ones(&first) + 1));
    let (a, b) = (s.operand(Shape::new(kept), domains[0])?, s.operand(Shape::new(second), domains[1])?);
    let name = format!("{op:?} of {} and {}", s.graph.shape(a), s.graph.shape(b)).to_lowercase();
    let y = s.expression(Expr::build(|e| e.binary(op, e.input(0), e.input(1))), &[a, b])?;
    s.finish(name, &[y])
}

/// Functions with a constant operand, whose gradient rules differ.
fn against_constants(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for (op, constant) in
        [(Binary::Max, 0.0), (Binary::Min, 0.3), (Binary::Pow, 3.0), (Binary::Pow, 2.0), (Binary::Pow, 0.0), (Binary::Div, 0.7)]
    {
        for constant_first in [false, true] {
            let mut s = Stage::new(draw);
            let shape = s.batch_shape(2);
            let positive = constant_first || op == Binary::Pow && constant != 3.0;
            let x = s.operand(shape, if positive { Domain::Positive } else { Domain::Any })?;
            let base = if op == Binary::Pow && constant_first { constant + 0.5 } else { constant };
            let expr = Expr::build(|e| match constant_first {
                true => e.binary(op, e.constant(base), e.input(0)),
                false => e.binary(op, e.input(0), e.constant(constant)),
            });
            let y = s.expression(expr, &[x])?;
            let name = if constant_first { format!("{op:?}({base}, x)") } else { format!("{op:?}(x, {constant})") };
            cases.push(s.finish(name.to_lowercase(), &[y])?);
        }
    }
    Ok(cases)
}

/// Expressions that read coordinates.
fn positional(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    for rank in [1, 3] {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(rank);
        let x = s.operand(shape, Domain::Any)?;
        let stream = s.graph.stream() + 1;
        let y = s.graph.map(x, |e, x| {
            let dropped = e.binary(Binary::Less, e.random(stream), e.constant(0.4));
            e.select(dropped, e.constant(0.0), e.mul(x, e.constant(1.0 / 0.6)))
        })?;
        cases.push(s.finish(format!("dropout of rank {rank}"), &[y])?);
    }
    for axis in 1..3 {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(3);
        let x = s.operand(shape, Domain::Any)?;
        let y = s.graph.map(x, |e, x| e.mul(x, e.add(e.coordinate(axis), e.constant(0.5))))?;
        cases.push(s.finish(format!("coordinate {axis}"), &[y])?);
    }
    for dtype in [DType::I32, DType::U8] {
        let mut s = Stage::new(draw);
        let (batch, classes) = (s.batch(), s.draw.between(2, 9));
        let labels = s.integers(dtype, Shape::new([batch, Dim::fixed(1)]), classes);
        let logits = s.operand(Shape::new([batch, Dim::fixed(classes)]), Domain::Any)?;
        let picked = Expr::build(|e| e.mul(e.input(1), e.binary(Binary::Equal, e.input(0), e.coordinate(1))));
        let y = s.graph.pointwise(picked, &[labels, logits])?;
        cases.push(s.finish(format!("the label's class, labels in {dtype}"), &[y])?);
    }
    Ok(cases)
}

/// Selects, several results, casts, and NaN.
fn shapes_of_results(draw: &mut Draw) -> Result<Vec<Case>, GraphError> {
    let mut cases = Vec::new();
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let (a, b) = (s.operand(shape.clone(), Domain::Any)?, s.operand(Shape::fixed([]), Domain::Any)?);
    let choice = Expr::build(|e| {
        let (a, b) = (e.input(0), e.input(1));
        e.select(e.binary(Binary::Less, a, b), e.mul(a, e.mul(a, b)), e.unary(Unary::Tanh, e.sub(a, b)))
    });
    let y = s.graph.pointwise(choice, &[a, b])?;
    cases.push(s.finish("a choice between two expressions", &[y])?);

    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let (a, b) = (s.operand(shape.clone(), Domain::Any)?, s.operand(shape.clone(), Domain::Any)?);
    let several = Expr::build_many(|e| {
        let product = e.mul(e.input(0), e.input(1));
        vec![product, e.unary(Unary::Exp, product), e.input(0), e.constant(2.0)]
    });
    let ys = s.graph.pointwise_many(several, &[a, b], shape, vec![DType::F32; 4])?;
    cases.push(s.finish("several results", &ys)?);

    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let a = s.operand(shape.clone(), Domain::Any)?;
    let stored = Expr::build_many(|e| {
        let coarse = e.mul(e.input(0), e.constant(200.0));
        vec![coarse, e.mul(coarse, coarse), coarse]
    });
    let ys = s.graph.pointwise_many(stored, &[a], shape, vec![DType::I32, DType::F32, DType::U8])?;
    cases.push(s.finish("results in other types beside a real one", &ys[1..2])?);

    for dtype in [DType::I32, DType::U8] {
        let mut s = Stage::new(draw);
        let shape = s.batch_shape(2);
        // Transformed, so that no element is close to an integer.
        let a = s.operand_in(DType::F32, shape, Domain::Any)?;
        let scaled = s.graph.map(a, |e, x| e.mul(x, e.constant(300.0)))?;
        let whole = s.graph.cast(scaled, dtype)?;
        cases.push(s.finish_forward(format!("cast to {dtype}"), &[whole])?);
    }
    let mut s = Stage::new(draw);
    let shape = s.batch_shape(2);
    let mask = s.integers(DType::Bool, shape.clone(), 2);
    let a = s.operand(shape.clone(), Domain::Any)?;
    let masked = Expr::build(|e| e.select(e.input(0), e.input(1), e.constant(-1.0)));
    let y = s.graph.pointwise(masked, &[mask, a])?;
    cases.push(s.finish("select by a mask in bool", &[y])?);

    let mut s = Stage::new(draw);
    let other = s.integers(DType::Bool, shape.clone(), 2);
    let bytes = s.integers(DType::U8, shape.clone(), 3);
    let set = Expr::build(|e| e.binary(Binary::Max, e.input(0), e.mul(e.input(1), e.constant(-0.25))));
    let either = s.graph.pointwise_many(set, &[other, bytes], shape, vec![DType::Bool])?;
    cases.push(s.finish_forward("masks in bool from bool and bytes", &either)?);
    for op in [Binary::Max, Binary::Min, Binary::Less, Binary::Equal] {
        let mut s = Stage::new(draw);
        s.with_nan = true;
        let shape = s.batch_shape(2);
        let (a, b) = (s.operand(shape.clone(), Domain::Any)?, s.operand(shape, Domain::Any)?);
        let y = s.graph.binary(op, a, b)?;
        cases.push(s.finish_forward(format!("{op:?} with NaN").to_lowercase(), &[y])?);
    }
    Ok(cases)
}
