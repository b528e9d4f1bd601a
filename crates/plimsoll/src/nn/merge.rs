//! Layers that bring branches together.

use super::{Layer, LayerDef, Lowering};
use plimsoll_core::expr::Binary;
use plimsoll_core::ops::Concat;
use plimsoll_core::{GraphError, Op, ValueId};
use std::sync::Arc;

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
    ($layer:ident, $def:ident, $op:expr, $stretch:literal) => {
        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $def.name
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                fold(lowering, inputs, $op, $stretch)
            }
        }
    };
}

/// `type = "add"`.
pub(super) const ADD: LayerDef = LayerDef { name: "add", about: "Sum of its inputs.", example: "", from_config: |_| Ok(Arc::new(Add)) };

/// `type = "multiply"`.
pub(super) const MULTIPLY: LayerDef = LayerDef {
    name: "multiply",
    about: "Elementwise product of its inputs, with broadcasting.",
    example: "",
    from_config: |_| Ok(Arc::new(Multiply)),
};

/// `type = "maximum"`.
pub(super) const MAXIMUM: LayerDef =
    LayerDef { name: "maximum", about: "Elementwise maximum of its inputs.", example: "", from_config: |_| Ok(Arc::new(Maximum)) };

folding!(Add, ADD, Binary::Add, false);
folding!(Multiply, MULTIPLY, Binary::Mul, true);
folding!(Maximum, MAXIMUM, Binary::Max, false);

/// `type = "subtract"`.
pub(super) const SUBTRACT: LayerDef =
    LayerDef { name: "subtract", about: "First input minus the second.", example: "", from_config: |_| Ok(Arc::new(Subtract)) };

impl Layer for Subtract {
    fn kind(&self) -> &'static str {
        SUBTRACT.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        if inputs.len() != 2 {
            return Err(lowering.graph.error(format!("reads two tensors, but is connected to {}", inputs.len())));
        }
        fold(lowering, inputs, Binary::Sub, false)
    }
}

/// `type = "average"`.
pub(super) const AVERAGE: LayerDef =
    LayerDef { name: "average", about: "Elementwise mean of its inputs.", example: "", from_config: |_| Ok(Arc::new(Average)) };

impl Layer for Average {
    fn kind(&self) -> &'static str {
        AVERAGE.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let sum = fold(lowering, inputs, Binary::Add, false)?;
        lowering.graph.map(sum, |e, x| e.mul(x, e.constant(1.0 / inputs.len() as f32)))
    }
}

/// `type = "concatenate"`.
pub(super) const CONCATENATE: LayerDef = LayerDef {
    name: "concatenate",
    about: "Concatenates its inputs along the last axis.",
    example: "",
    from_config: |_| Ok(Arc::new(Concatenate)),
};

impl Layer for Concatenate {
    fn kind(&self) -> &'static str {
        CONCATENATE.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let rank = inputs.first().map_or(0, |input| g.shape(*input).rank());
        g.add_one(Op::Concat(Concat { axis: rank.saturating_sub(1) }), inputs)
    }
}
