//! Layers that bring branches together.

use super::{Layer, Lowering};
use plimsoll_core::expr::Binary;
use plimsoll_core::ops::Concat;
use plimsoll_core::{GraphError, Op, ValueId};

/// The sum of its inputs: residual connections.
#[derive(Clone, Debug, Default)]
pub struct Add;

/// The product of its inputs, element by element; a dimension of 1 is stretched, as for gates.
#[derive(Clone, Debug, Default)]
pub struct Multiply;

/// Its first input less the second.
#[derive(Clone, Debug, Default)]
pub struct Subtract;

/// The largest of its inputs, element by element.
#[derive(Clone, Debug, Default)]
pub struct Maximum;

/// The mean of its inputs.
#[derive(Clone, Debug, Default)]
pub struct Average;

/// Its inputs one after another along the last axis.
#[derive(Clone, Debug, Default)]
pub struct Concatenate;

/// Brings all inputs together two by two. Shapes must be equal, or stretch where `stretch` says so.
fn fold(lowering: &mut Lowering<'_>, inputs: &[ValueId], op: Binary, stretch: bool) -> Result<ValueId, GraphError> {
    let g = &mut *lowering.graph;
    let [first, rest @ ..] = inputs else { return Err(g.error("brings at least one tensor together")) };
    let mut result = *first;
    for other in rest {
        if !stretch && g.shape(result) != g.shape(*other) {
            return Err(g.error(format!("shapes {} and {} do not go together", g.shape(result), g.shape(*other))));
        }
        result = g.binary(op, result, *other)?;
    }
    Ok(result)
}

macro_rules! folding {
    ($layer:ident, $kind:literal, $op:expr, $stretch:literal) => {
        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                fold(lowering, inputs, $op, $stretch)
            }
        }
    };
}

folding!(Add, "add", Binary::Add, false);
folding!(Multiply, "multiply", Binary::Mul, true);
folding!(Maximum, "maximum", Binary::Max, false);

impl Layer for Subtract {
    fn kind(&self) -> &'static str {
        "subtract"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        if inputs.len() != 2 {
            return Err(lowering.graph.error(format!("reads two tensors, but is connected to {}", inputs.len())));
        }
        fold(lowering, inputs, Binary::Sub, false)
    }
}

impl Layer for Average {
    fn kind(&self) -> &'static str {
        "average"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let sum = fold(lowering, inputs, Binary::Add, false)?;
        lowering.graph.map(sum, |e, x| e.mul(x, e.constant(1.0 / inputs.len() as f32)))
    }
}

impl Layer for Concatenate {
    fn kind(&self) -> &'static str {
        "concatenate"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let rank = inputs.first().map_or(0, |input| g.shape(*input).rank());
        g.add_one(Op::Concat(Concat { axis: rank.saturating_sub(1) }), inputs)
    }
}
