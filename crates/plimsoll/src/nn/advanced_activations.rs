//! Activations with parameters of their own, trainable or not.

use super::activation::{elu, leaky};
use super::{Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::Init;
use plimsoll_core::{GraphError, ValueId};
use std::sync::Arc;

/// ReLU with a fixed slope below zero.
#[derive(Clone, Copy, Debug)]
pub struct LeakyRelu {
    slope: f32,
}

impl LeakyRelu {
    /// Sets the slope below zero.
    pub fn new(slope: f32) -> LeakyRelu {
        LeakyRelu { slope }
    }
}

/// `type = "leaky_relu"`.
pub(super) const LEAKY_RELU: LayerDef = LayerDef {
    name: "leaky_relu",
    about: "ReLU with a fixed slope below zero.",
    example: "",
    from_config: |config| Ok(Arc::new(LeakyRelu::new(config.number_or("slope", 0.2)?))),
};

impl Layer for LeakyRelu {
    fn kind(&self) -> &'static str {
        LEAKY_RELU.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        lowering.graph.map(x, |e, x| leaky(e, x, e.constant(self.slope)))
    }
}

/// ELU with the limit `-depth` below zero; Keras calls `depth` alpha.
#[derive(Clone, Copy, Debug)]
pub struct Elu {
    depth: f32,
}

impl Elu {
    /// Sets alpha, the magnitude of the limit below zero.
    pub fn new(depth: f32) -> Elu {
        Elu { depth }
    }
}

/// `type = "elu"`.
pub(super) const ELU: LayerDef = LayerDef {
    name: "elu",
    about: "Exponential linear unit; `depth` is Keras' alpha.",
    example: "",
    from_config: |config| Ok(Arc::new(Elu::new(config.number_or("depth", 1.0)?))),
};

impl Layer for Elu {
    fn kind(&self) -> &'static str {
        ELU.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        lowering.graph.map(x, |e, x| elu(e, x, self.depth))
    }
}

/// ReLU with a trainable slope below zero: one per element, as in Keras, or one per channel.
#[derive(Clone, Copy, Debug)]
pub struct PRelu {
    start: f32,
    per_channel: bool,
}

impl PRelu {
    /// One slope per element, initially zero.
    pub fn new() -> PRelu {
        PRelu { start: 0.0, per_channel: false }
    }

    /// One slope per element of the last axis.
    pub fn per_channel(self) -> PRelu {
        PRelu { per_channel: true, ..self }
    }

    /// Sets the initial slope.
    pub fn start(self, start: f32) -> PRelu {
        PRelu { start, ..self }
    }
}

impl Default for PRelu {
    fn default() -> PRelu {
        PRelu::new()
    }
}

/// `type = "prelu"`.
pub(super) const PRELU: LayerDef = LayerDef {
    name: "prelu",
    about: "ReLU with a trainable slope below zero.",
    example: "",
    from_config: |config| {
        let layer = PRelu::new().start(config.number_or("start", 0.0)?);
        Ok(Arc::new(if config.flag_or("per_channel", false)? { layer.per_channel() } else { layer }))
    },
};

impl Layer for PRelu {
    fn kind(&self) -> &'static str {
        PRELU.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let from = if self.per_channel { shape.rank() - 1 } else { 1 };
        let Some(dims) = shape.dims().get(from..).filter(|dims| !dims.is_empty() && dims.iter().all(|dim| !dim.is_batch())) else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}")));
        };
        let alpha = lowering.parameter("alpha", dims.iter().map(|dim| dim.factor()), Init::Constant(self.start))?;
        lowering.graph.pointwise(Expr::build(|e| leaky(e, e.input(0), e.input(1))), &[x, alpha])
    }
}
