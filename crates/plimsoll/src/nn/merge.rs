//! Layers that merge branches.

use super::{Layer, LayerDef, Lowering};
use plimsoll_core::expr::Binary;
use plimsoll_core::ops::Concat;
use plimsoll_core::{GraphError, Op, ValueId};
use std::sync::Arc;

/// The sum of its inputs, as in residual connections.
#[derive(Clone, Debug, Default)]
pub struct Add;

/// The elementwise product of its inputs, with broadcasting.
#[derive(Clone, Debug, Default)]
pub struct Multiply;

/// The first input minus the second.
#[derive(Clone, Debug, Default)]
pub struct Subtract;

/// The elementwise maximum of its inputs.
#[derive(Clone, Debug, Default)]
pub struct Maximum;

/// The mean of its inputs.
#[derive(Clone, Debug, Default)]
pub struct Average;

/// Concatenates its inputs along the last axis.
#[derive(Clone, Debug, Default)]
pub struct Concatenate;

/// Folds the inputs with an op. Shapes must be equal, or broadcast if `broadcast` is set.
fn fold(lowering: &mut Lowering<'_>, inputs: &[ValueId], op: Binary, broadcast: bool) -> Result<ValueId, GraphError> {
    let g = &mut *lowering.graph;
    let [first, rest @ ..] = inputs else { return Err(g.error("expects at least one input")) };
    let mut result = *first;
    for other in rest {
        if !broadcast && g.shape(result) != g.shape(*other) {
            return Err(g.error(format!("expects inputs of equal shape, but received {} and {}", g.shape(result), g.shape(*other))));
        }
        result = g.binary(op, result, *other)?;
    }
    Ok(result)
}

macro_rules! folding {
    ($layer:ident, $def:ident, $op:expr, $broadcast:literal) => {
        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $def.name
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                fold(lowering, inputs, $op, $broadcast)
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
            return Err(lowering.graph.error(format!("expects two inputs, but received {}", inputs.len())));
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
