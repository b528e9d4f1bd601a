//! Activations with parameters of their own, trainable or not.

use super::activation::{elu, leaky};
use super::{Int8, Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Binary, Expr};
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

    fn int8(&self) -> Int8 {
        Int8::Function
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        lowering.graph.map(x, |e, x| leaky(e, x, e.constant(self.slope)))
    }
}

/// ReLU with an upper bound, a slope below its threshold, or another threshold than zero; Keras' layer `ReLU`.
///
/// `max_value` where `x` is above it, `x` from the threshold on, `slope·(x - threshold)` below.
#[derive(Clone, Copy, Debug)]
pub struct ReLu {
    max_value: Option<f32>,
    slope: f32,
    threshold: f32,
}

impl ReLu {
    /// `max(x, 0)`.
    pub fn new() -> ReLu {
        ReLu { max_value: None, slope: 0.0, threshold: 0.0 }
    }

    /// Sets the upper bound.
    pub fn max_value(self, max: f32) -> ReLu {
        ReLu { max_value: Some(max), ..self }
    }

    /// Sets the slope below the threshold.
    pub fn slope(self, slope: f32) -> ReLu {
        ReLu { slope, ..self }
    }

    /// Sets the threshold.
    pub fn threshold(self, threshold: f32) -> ReLu {
        ReLu { threshold, ..self }
    }
}

impl Default for ReLu {
    fn default() -> ReLu {
        ReLu::new()
    }
}

/// `type = "re_lu"`.
pub(super) const RE_LU: LayerDef = LayerDef {
    name: "re_lu",
    about: "ReLU with `max_value`, a `slope` below `threshold`.",
    example: "",
    from_config: |config| {
        let layer = ReLu::new().slope(config.number_or("slope", 0.0)?).threshold(config.number_or("threshold", 0.0)?);
        Ok(Arc::new(match config.number("max_value")? {
            Some(max) => layer.max_value(max as f32),
            None => layer,
        }))
    },
};

impl Layer for ReLu {
    fn kind(&self) -> &'static str {
        RE_LU.name
    }

    fn int8(&self) -> Int8 {
        match (self.slope, self.threshold, self.max_value) {
            (0.0, 0.0, None | Some(6.0)) => Int8::Rectifier,
            _ => Int8::Function,
        }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        lowering.graph.map(x, |e, x| {
            let threshold = e.constant(self.threshold);
            // The plain rectifier has operators of its own in files of other programs.
            let y = if (self.slope, self.threshold) == (0.0, 0.0) {
                e.binary(Binary::Max, x, threshold)
            } else {
                let below = e.mul(e.constant(self.slope), e.sub(x, threshold));
                e.select(e.binary(Binary::Less, x, threshold), below, x)
            };
            self.max_value.map_or(y, |max| e.binary(Binary::Min, y, e.constant(max)))
        })
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
        let from = if self.per_channel { shape.rank().saturating_sub(1) } else { 1 };
        let Some(dims) = shape.dims().get(from..).filter(|dims| !dims.is_empty() && dims.iter().all(|dim| !dim.is_batch())) else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}")));
        };
        let alpha = lowering.parameter("alpha", dims.iter().map(|dim| dim.factor()), Init::Constant(self.start))?;
        lowering.graph.pointwise(Expr::build(|e| leaky(e, e.input(0), e.input(1))), &[x, alpha])
    }
}
