//! Elementwise expressions and reductions of them as nodes.

use super::builder::{FIRST_AXIS, GraphBuilder, ImageLayout, TO_FIRST, stored};
use super::{ExportProblem, Exporter, Recipe, fold};
use plimsoll_core::expr::{Binary, Expr, Term, TermId, Unary};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Pointwise, Reduce, Reduction};
use plimsoll_core::{DType, Dim, Op, Shape, ValueId};
use plimsoll_formats::onnx::Attribute;
use plimsoll_formats::tensor::DType as Stored;

/// A term while nodes are added.
#[derive(Clone)]
struct Emitted {
    name: String,
    /// Whether it is a condition rather than a number.
    is_bool: bool,
}

impl Exporter<'_> {
    /// An elementwise expression.
    pub(super) fn pointwise(&mut self, node: &Node, op: &Pointwise) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let only = [op.expr.roots().len() == 1 && op.dtypes[0] == DType::F32, node.outputs.len() == 1];
        if op.expr.is_identity() && op.dtypes[0] == graph.ty(node.inputs[0]).dtype && op.shape == *graph.shape(node.inputs[0]) {
            self.builder.alias(node.outputs[0], node.inputs[0]);
            return Ok(());
        }
        if only == [true; 2]
            && let Some((at, affine)) = self.affine_part(node, op)?
        {
            let layout = self.builder.layout_of(node.inputs[at]);
            // One product and one sum of constants, whatever the layers were.
            let (wanted, channels) = (self.builder.scope.clone(), affine.scale.len());
            let constant = |numbers: &[f64]| numbers.iter().map(|number| *number as f32).collect::<Vec<f32>>();
            let shape: Vec<usize> = if layout == ImageLayout::First { vec![channels, 1, 1] } else { vec![channels] };
            let mut name = self.builder.read(node.inputs[at], layout);
            if affine.scales() {
                let scale = self.builder.numbers(&format!("{wanted}/scale"), &shape, constant(&affine.scale));
                name = self.builder.node("Mul", &[&name, &scale], &[]);
            }
            if affine.offset.iter().any(|number| *number != 0.0) {
                let offset = self.builder.numbers(&format!("{wanted}/offset"), &shape, constant(&affine.offset));
                name = self.builder.node("Add", &[&name, &offset], &[]);
            }
            if let Some(rest) = &affine.rest {
                name = self.expression_of(rest, &name);
            }
            self.builder.define(node.outputs[0], layout, name);
            return Ok(());
        }
        let layout = self.layout(&node.inputs, &op.shape);
        let inputs = self.operands(&node.inputs, layout, op.shape.rank());
        let shapes: Vec<Shape> = node.inputs.iter().map(|input| graph.shape(*input).clone()).collect();
        let roots = self.expression(&op.expr, &inputs, &op.shape, layout)?;
        let natural = natural_shape(&op.expr, &shapes, &op.shape);
        for ((root, dtype), value) in roots.into_iter().zip(&op.dtypes).zip(&node.outputs) {
            let mut name = self.typed(root, *dtype);
            if natural != op.shape {
                let (from, to) = (arranged(&natural, op.shape.rank(), layout), arranged(&op.shape, op.shape.rank(), layout));
                name = self.builder.expand(&name, &from, &to);
            }
            self.builder.define(*value, layout, name);
        }
        Ok(())
    }

    /// A reduction of an elementwise expression.
    pub(super) fn reduce(&mut self, node: &Node, op: &Reduce) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let layout = self.layout(&node.inputs, &op.shape);
        let rank = op.shape.rank();
        let inputs = self.operands(&node.inputs, layout, rank);
        let shapes: Vec<Shape> = node.inputs.iter().map(|input| graph.shape(*input).clone()).collect();
        let root = self.expression(&op.expr, &inputs, &op.shape, layout)?.remove(0);
        let mut name = self.as_number(root);
        let natural = natural_shape(&op.expr, &shapes, &op.shape);
        if natural != op.shape {
            let (from, to) = (arranged(&natural, rank, layout), arranged(&op.shape, rank, layout));
            name = self.builder.expand(&name, &from, &to);
        }
        let axes: Vec<i64> =
            op.axes.iter().map(|axis| if layout == ImageLayout::First { FIRST_AXIS[*axis] } else { *axis } as i64).collect();
        let reduced = match op.kind {
            Reduction::ArgMax => {
                let attributes = [("axis", Attribute::Int(axes[0])), ("keepdims", Attribute::Int(1))];
                let index = self.builder.node("ArgMax", &[&name], &attributes);
                self.builder.cast(&index, Stored::I32)
            }
            kind => {
                let op = match kind {
                    Reduction::Sum => "ReduceSum",
                    Reduction::Max => "ReduceMax",
                    _ => "ReduceLogSumExp",
                };
                let axes = self.builder.integers(&axes);
                self.builder.node(op, &[&name, &axes], &[("keepdims", Attribute::Int(1))])
            }
        };
        self.builder.define(node.outputs[0], layout, reduced);
        Ok(())
    }

    /// Channels first, if a large operand exists only so, and all others can be.
    fn layout(&self, inputs: &[ValueId], shape: &Shape) -> ImageLayout {
        let graph = self.builder.graph;
        let image = |value: &ValueId| graph.shape(*value).rank() == 4;
        let first = shape.rank() == 4 && inputs.iter().any(|value| image(value) && self.builder.layout_of(*value) == ImageLayout::First);
        let movable =
            |value: &ValueId| image(value) || graph.shape(*value).rank() == 0 || matches!(graph.producer(*value).op, Op::State(_));
        if first && inputs.iter().all(movable) { ImageLayout::First } else { ImageLayout::Plain }
    }

    /// The names of operands in a layout.
    fn operands(&mut self, inputs: &[ValueId], layout: ImageLayout, rank: usize) -> Vec<String> {
        inputs.iter().map(|value| self.operand(*value, layout, rank)).collect()
    }

    fn operand(&mut self, value: ValueId, layout: ImageLayout, rank: usize) -> String {
        let graph = self.builder.graph;
        let shape = graph.shape(value);
        let Op::State(id) = graph.producer(value).op else {
            let name = self.builder.read(value, if shape.rank() == 4 { layout } else { ImageLayout::Plain });
            // Arithmetic is in single precision, whatever the types of the operands.
            return if graph.ty(value).dtype == DType::F32 { name } else { self.builder.cast(&name, Stored::F32) };
        };
        if layout == ImageLayout::Plain || shape.rank() == 0 {
            return self.state(value);
        }
        // A weight per channel, or of fewer axes than the image, with channels first.
        let mut whole = vec![1; rank - shape.rank()];
        whole.extend(shape.bind(1));
        let moved: Vec<usize> = TO_FIRST.iter().map(|axis| whole[*axis]).collect();
        let name = graph.states()[id.0 as usize].name.clone();
        let recipe = Recipe::Weight { name: name.clone(), shape: whole, order: TO_FIRST.to_vec(), scale: None };
        self.builder.weight(&name, &moved, recipe)
    }

    /// The affine part of an expression of one input that is no constant, and the position of that input.
    fn affine_part(&mut self, node: &Node, op: &Pointwise) -> Result<Option<(usize, fold::AffinePart)>, ExportProblem> {
        let graph = self.builder.graph;
        let Some(channels) = op.shape.last().and_then(|dim| dim.as_fixed()) else { return Ok(None) };
        let Some((at, constants)) = self.walk.one_variable(node)? else { return Ok(None) };
        if *graph.shape(node.inputs[at]) != op.shape || graph.ty(node.inputs[at]).dtype != DType::F32 || node.inputs.len() == 1 {
            return Ok(None);
        }
        let affine = fold::affine(&op.expr, at, &constants, channels);
        Ok(affine.map(|affine| (at, affine)))
    }

    /// An expression of one tensor, without coordinates.
    pub(super) fn expression_of(&mut self, expr: &Expr, input: &str) -> String {
        let input = Emitted { name: input.to_string(), is_bool: false };
        let emitted = self.terms(expr, &[input], None).expect("it has no coordinates");
        self.as_number(emitted[0].clone())
    }

    fn expression(&mut self, expr: &Expr, inputs: &[String], shape: &Shape, layout: ImageLayout) -> Result<Vec<Emitted>, ExportProblem> {
        let named: Vec<Emitted> = inputs.iter().map(|name| Emitted { name: name.clone(), is_bool: false }).collect();
        self.terms(expr, &named, Some((shape, layout)))
    }

    /// Adds the nodes of an expression. `over` is the shape whose coordinates it may read.
    fn terms(&mut self, expr: &Expr, inputs: &[Emitted], over: Option<(&Shape, ImageLayout)>) -> Result<Vec<Emitted>, ExportProblem> {
        let mut emitted: Vec<Option<Emitted>> = vec![None; expr.terms().len()];
        let live = live_terms(expr);
        for (id, term) in expr.terms().iter().enumerate().filter(|(id, _)| live[*id]) {
            let at = |id: TermId| emitted[id as usize].clone().expect("terms refer to earlier ones");
            let number = |name: String| Emitted { name, is_bool: false };
            let value = match *term {
                Term::Input(i) => number(inputs[i as usize].name.clone()),
                Term::Const(bits) => number(self.builder.number(f32::from_bits(bits))),
                Term::Random(_) => return Err(ExportProblem::unsupported("random numbers in a prediction")),
                Term::Coordinate(axis) => number(coordinate(&mut self.builder, axis as usize, over)?),
                Term::Unary(op, a) => {
                    let a = self.as_number(at(a));
                    number(self.builder.node(unary(op), &[&a], &[]))
                }
                Term::Binary(Binary::Max, a, b) if is_zero(expr, b) => {
                    let a = self.as_number(at(a));
                    number(self.builder.node("Relu", &[&a], &[]))
                }
                Term::Binary(op, a, b) => {
                    let (a, b) = (self.as_number(at(a)), self.as_number(at(b)));
                    let (op, is_bool) = binary(op);
                    Emitted { name: self.builder.node(op, &[&a, &b], &[]), is_bool }
                }
                Term::Select(c, a, b) => {
                    let condition = at(c);
                    let condition = if condition.is_bool { condition.name } else { self.builder.cast(&condition.name, Stored::Bool) };
                    let (a, b) = (self.as_number(at(a)), self.as_number(at(b)));
                    number(self.builder.node("Where", &[&condition, &a, &b], &[]))
                }
            };
            emitted[id] = Some(value);
        }
        Ok(expr.roots().iter().map(|root| emitted[*root as usize].clone().expect("roots are live")).collect())
    }

    fn as_number(&mut self, term: Emitted) -> String {
        if term.is_bool { self.builder.cast(&term.name, Stored::F32) } else { term.name }
    }

    fn typed(&mut self, term: Emitted, dtype: DType) -> String {
        match dtype {
            DType::F32 => self.as_number(term),
            _ => self.builder.cast(&term.name, stored(dtype)),
        }
    }
}

/// The terms that a result depends on.
fn live_terms(expr: &Expr) -> Vec<bool> {
    let mut live = vec![false; expr.terms().len()];
    let mut open = expr.roots().to_vec();
    while let Some(id) = open.pop() {
        if std::mem::replace(&mut live[id as usize], true) {
            continue;
        }
        match expr.terms()[id as usize] {
            Term::Unary(_, a) => open.push(a),
            // The zero of a rectifier is no operand.
            Term::Binary(Binary::Max, a, b) if is_zero(expr, b) => open.push(a),
            Term::Binary(_, a, b) => open.extend([a, b]),
            Term::Select(c, a, b) => open.extend([c, a, b]),
            _ => {}
        }
    }
    live
}

fn is_zero(expr: &Expr, id: TermId) -> bool {
    matches!(expr.terms()[id as usize], Term::Const(bits) if f32::from_bits(bits) == 0.0)
}

/// Coordinates along an axis as a constant.
fn coordinate(builder: &mut GraphBuilder<'_>, axis: usize, over: Option<(&Shape, ImageLayout)>) -> Result<String, ExportProblem> {
    let Some((shape, layout)) = over else { return Err(ExportProblem::unsupported("coordinates outside of a shape")) };
    let Some(extent) = shape.dims()[axis].as_fixed() else {
        return Err(ExportProblem::unsupported("an expression of the position of a row in its batch"));
    };
    let at = if layout == ImageLayout::First { FIRST_AXIS[axis] } else { axis };
    let dims: Vec<usize> = (0..shape.rank()).map(|axis| if axis == at { extent } else { 1 }).collect();
    let bytes = (0..extent).flat_map(|place| (place as f32).to_le_bytes()).collect();
    Ok(builder.constant(Stored::F32, &dims.iter().map(|dim| *dim as u64).collect::<Vec<_>>(), bytes))
}

/// The shape that an expression has from its inputs and coordinates alone.
fn natural_shape(expr: &Expr, inputs: &[Shape], shape: &Shape) -> Shape {
    let one = Dim::fixed(1);
    expr.terms().iter().zip(live_terms(expr)).filter(|(_, live)| *live).fold(Shape::scalar(), |natural, (term, _)| {
        let own = match term {
            Term::Input(i) => inputs[*i as usize].clone(),
            Term::Coordinate(axis) => {
                let dims = shape.dims().iter().enumerate();
                Shape::new(dims.map(|(i, dim)| if i == *axis as usize { *dim } else { one }))
            }
            _ => return natural,
        };
        natural.broadcast(&own).unwrap_or(natural)
    })
}

/// The dimensions of a shape in a layout, with as many axes as `rank` where channels come first.
fn arranged(shape: &Shape, rank: usize, layout: ImageLayout) -> Vec<Dim> {
    if layout == ImageLayout::Plain {
        return shape.dims().to_vec();
    }
    let mut whole = vec![Dim::fixed(1); rank - shape.rank()];
    whole.extend(shape.dims());
    TO_FIRST.iter().map(|axis| whole[*axis]).collect()
}

fn unary(op: Unary) -> &'static str {
    match op {
        Unary::Neg => "Neg",
        Unary::Abs => "Abs",
        Unary::Sign => "Sign",
        Unary::Floor => "Floor",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sqrt => "Sqrt",
        Unary::Recip => "Reciprocal",
        Unary::Tanh => "Tanh",
        Unary::Sigmoid => "Sigmoid",
        Unary::Softplus => "Softplus",
        Unary::Erf => "Erf",
    }
}

/// The operator, and whether its result is a condition.
fn binary(op: Binary) -> (&'static str, bool) {
    match op {
        Binary::Add => ("Add", false),
        Binary::Sub => ("Sub", false),
        Binary::Mul => ("Mul", false),
        Binary::Div => ("Div", false),
        Binary::Max => ("Max", false),
        Binary::Min => ("Min", false),
        Binary::Pow => ("Pow", false),
        Binary::Less => ("Less", true),
        Binary::LessEq => ("LessOrEqual", true),
        Binary::Equal => ("Equal", true),
    }
}
