//! Layers that merge branches.

use super::keras::KerasLayer;
use super::{Int8, Layer, LayerDef, Lowering};
use plimsoll_core::expr::Binary;
use plimsoll_core::ops::Concat;
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, Op, ValueId};
use serde_json::json;
use std::sync::Arc;

/// The sum of its inputs, as in residual connections, with broadcasting.
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

/// The elementwise minimum of its inputs.
#[derive(Clone, Debug, Default)]
pub struct Minimum;

/// The mean of its inputs.
#[derive(Clone, Debug, Default)]
pub struct Average;

/// Concatenates its inputs along the last axis.
#[derive(Clone, Debug, Default)]
pub struct Concatenate;

/// Concatenates its inputs along an axis, counted as in Keras: 0 is the batch, -1 the last.
#[derive(Clone, Debug)]
pub struct ConcatenateAlong {
    axis: i64,
}

impl ConcatenateAlong {
    /// Along this axis; not the batch.
    pub fn new(axis: i64) -> ConcatenateAlong {
        ConcatenateAlong { axis }
    }
}

/// Folds the inputs with an op, with broadcasting.
fn fold(lowering: &mut Lowering<'_>, inputs: &[ValueId], op: Binary) -> Result<ValueId, GraphError> {
    let g = &mut *lowering.graph;
    let [first, rest @ ..] = inputs else { return Err(g.error("expects at least one input")) };
    let mut result = *first;
    for other in rest {
        if g.shape(result).broadcast(g.shape(*other)).is_none() {
            return Err(g.error(format!("expects inputs of equal shape, but received {} and {}", g.shape(result), g.shape(*other))));
        }
        result = g.binary(op, result, *other)?;
    }
    Ok(result)
}

macro_rules! folding {
    ($layer:ident, $def:ident, $op:expr) => {
        impl Layer for $layer {
            fn kind(&self) -> &'static str {
                $def.name
            }

            fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
                Some(vec![KerasLayer::new(stringify!($layer), json!({}))])
            }

            fn keeps_sign(&self) -> bool {
                true
            }

            fn int8(&self) -> Int8 {
                match $op {
                    Binary::Add | Binary::Mul => Int8::Operator,
                    _ => Int8::Float("it has no int8 operator"),
                }
            }

            fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
                fold(lowering, inputs, $op)
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

/// `type = "minimum"`.
pub(super) const MINIMUM: LayerDef =
    LayerDef { name: "minimum", about: "Elementwise minimum of its inputs.", example: "", from_config: |_| Ok(Arc::new(Minimum)) };

folding!(Add, ADD, Binary::Add);
folding!(Multiply, MULTIPLY, Binary::Mul);
folding!(Maximum, MAXIMUM, Binary::Max);
folding!(Minimum, MINIMUM, Binary::Min);

/// `type = "subtract"`.
pub(super) const SUBTRACT: LayerDef =
    LayerDef { name: "subtract", about: "First input minus the second.", example: "", from_config: |_| Ok(Arc::new(Subtract)) };

impl Layer for Subtract {
    fn kind(&self) -> &'static str {
        SUBTRACT.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Subtract", json!({}))])
    }

    fn int8(&self) -> Int8 {
        Int8::Operator
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        if inputs.len() != 2 {
            return Err(lowering.graph.error(format!("expects two inputs, but received {}", inputs.len())));
        }
        fold(lowering, inputs, Binary::Sub)
    }
}

/// `type = "average"`.
pub(super) const AVERAGE: LayerDef =
    LayerDef { name: "average", about: "Elementwise mean of its inputs.", example: "", from_config: |_| Ok(Arc::new(Average)) };

impl Layer for Average {
    fn kind(&self) -> &'static str {
        AVERAGE.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Average", json!({}))])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let sum = fold(lowering, inputs, Binary::Add)?;
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

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Concatenate", json!({ "axis": -1 }))])
    }

    fn keeps_sign(&self) -> bool {
        true
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let rank = inputs.first().map_or(0, |input| g.shape(*input).rank());
        g.add_one(Op::Concat(Concat { axis: rank.saturating_sub(1) }), inputs)
    }
}

/// `type = "concatenate_along"`.
pub(super) const CONCATENATE_ALONG: LayerDef = LayerDef {
    name: "concatenate_along",
    about: "Concatenates its inputs along the axis `axis`, counted from the batch at 0.",
    example: "axis = 1",
    from_config: |config| {
        Ok(Arc::new(ConcatenateAlong::new(config.required_count("axis", 1, "the axis, 1 is that behind the batch")? as i64)))
    },
};

impl Layer for ConcatenateAlong {
    fn kind(&self) -> &'static str {
        CONCATENATE_ALONG.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        Some(vec![KerasLayer::new("Concatenate", json!({ "axis": self.axis }))])
    }

    fn int8(&self) -> Int8 {
        Int8::SameScale
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let g = &mut *lowering.graph;
        let rank = inputs.first().map_or(0, |input| g.shape(*input).rank());
        match super::slicing::axis_of(self.axis, rank) {
            Some(axis) if axis > 0 => g.add_one(Op::Concat(Concat { axis }), inputs),
            _ => Err(g.error(format!("cannot concatenate tensors of rank {rank} along the axis {}", self.axis))),
        }
    }
}
