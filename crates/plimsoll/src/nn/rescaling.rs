//! Layers that rescale their input: by constants, by statistics of the data, or by trainable factors.

use super::keras::KerasLayer;
use super::{Layer, LayerDef, Lowering, single_input};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::Init;
use plimsoll_core::shape::Shape;
use plimsoll_core::{GraphError, ValueId};
use serde_json::json;
use std::sync::Arc;

/// `x · scale + offset`, with one number for all elements or one per channel.
///
/// ```
/// use plimsoll::nn::Rescaling;
/// let layer = Rescaling::new(1.0 / 255.0);
/// ```
#[derive(Clone, Debug)]
pub struct Rescaling {
    scale: Vec<f32>,
    offset: Vec<f32>,
}

impl Rescaling {
    /// Multiplies by `scale`.
    pub fn new(scale: f32) -> Rescaling {
        Rescaling::per_channel([scale], [0.0])
    }

    /// Sets the offset, which is added after scaling.
    pub fn offset(self, offset: f32) -> Rescaling {
        Rescaling { offset: vec![offset], ..self }
    }

    /// One scale and one offset per channel; a single number holds for all.
    pub fn per_channel(scale: impl Into<Vec<f32>>, offset: impl Into<Vec<f32>>) -> Rescaling {
        Rescaling { scale: scale.into(), offset: offset.into() }
    }
}

/// `type = "rescaling"`.
pub(super) const RESCALING: LayerDef = LayerDef {
    name: "rescaling",
    about: "Multiplies by `scale` and adds `offset`.",
    example: "scale = 0.00392156862745098",
    from_config: |config| {
        let scale = config.required_number("scale", "the factor, such as 0.00392156862745098 for 1/255")?;
        Ok(Arc::new(Rescaling::new(scale).offset(config.number_or("offset", 0.0)?)))
    },
};

impl Layer for Rescaling {
    fn kind(&self) -> &'static str {
        RESCALING.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let number = |list: &[f32]| if let [only] = list { json!(only) } else { json!(list) };
        Some(vec![KerasLayer::new("Rescaling", json!({ "scale": number(&self.scale), "offset": number(&self.offset) }))])
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let (last, channels) = (shape.rank().saturating_sub(1), shape.last().and_then(|dim| dim.as_fixed()).unwrap_or(1));
        for list in [&self.scale, &self.offset] {
            if list.len() != 1 && list.len() != channels {
                return Err(lowering.graph.error(format!("has {} factors or offsets, but the input is {shape}", list.len())));
            }
        }
        lowering.graph.map(x, |e, x| {
            // One of several numbers, by the channel.
            let number = |list: &[f32]| {
                let mut all = list.iter().enumerate().rev();
                let (_, last_one) = all.next().expect("at least one number");
                all.fold(e.constant(*last_one), |rest, (index, value)| {
                    let before = e.binary(Binary::Less, e.coordinate(last as u8), e.constant(index as f32 + 0.5));
                    e.select(before, e.constant(*value), rest)
                })
            };
            let scaled = if self.scale == [1.0] { x } else { e.mul(x, number(&self.scale)) };
            if self.offset.iter().all(|offset| *offset == 0.0) { scaled } else { e.add(scaled, number(&self.offset)) }
        })
    }
}

/// Standardizes features with a stored mean and variance per channel: `(x - mean) / max(√variance, 1e-7)`, as in Keras.
/// Both are weights that are not trained; they come with an imported model.
#[derive(Clone, Debug, Default)]
pub struct Normalization {
    single: bool,
    invert: bool,
}

impl Normalization {
    /// One mean and variance per channel.
    pub fn new() -> Normalization {
        Normalization::default()
    }

    /// One mean and variance for all elements.
    pub fn single(self) -> Normalization {
        Normalization { single: true, ..self }
    }

    /// The inverse: multiplies by the standard deviation and adds the mean.
    pub fn invert(self) -> Normalization {
        Normalization { invert: true, ..self }
    }
}

/// `type = "normalization"`.
pub(super) const NORMALIZATION: LayerDef = LayerDef {
    name: "normalization",
    about: "Standardizes with a stored mean and variance per channel, or one of each if `single`.",
    example: "",
    from_config: |config| {
        let layer = Normalization { single: config.flag_or("single", false)?, invert: config.flag_or("invert", false)? };
        Ok(Arc::new(layer))
    },
};

impl Layer for Normalization {
    fn kind(&self) -> &'static str {
        NORMALIZATION.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let channels = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2);
        let Some(channels) = channels else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}")));
        };
        let count = if self.single { 1 } else { channels };
        let mean = lowering.statistic("mean", [count], Init::Constant(0.0))?;
        let variance = lowering.statistic("variance", [count], Init::Constant(1.0))?;
        let expr = Expr::build(|e| {
            let (x, mean) = (e.input(0), e.input(1));
            let deviation = e.binary(Binary::Max, e.unary(Unary::Sqrt, e.input(2)), e.constant(1e-7));
            if self.invert { e.add(mean, e.mul(x, deviation)) } else { e.div(e.sub(x, mean), deviation) }
        });
        lowering.graph.pointwise(expr, &[x, mean, variance])
    }
}

/// Multiplies every channel by a trainable factor, small at first, as in ConvNeXt.
#[derive(Clone, Copy, Debug)]
pub struct LayerScale {
    start: f32,
}

impl LayerScale {
    /// Factors that begin at `start`.
    pub fn new(start: f32) -> LayerScale {
        LayerScale { start }
    }
}

/// `type = "layer_scale"`.
pub(super) const LAYER_SCALE: LayerDef = LayerDef {
    name: "layer_scale",
    about: "Multiplies every channel by a trainable factor that begins at `start`.",
    example: "",
    from_config: |config| Ok(Arc::new(LayerScale::new(config.number_or("start", 1e-6)?))),
};

impl Layer for LayerScale {
    fn kind(&self) -> &'static str {
        LAYER_SCALE.name
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let Some(channels) = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2) else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}")));
        };
        let gamma = lowering.parameter("gamma", [channels], Init::Constant(self.start))?;
        lowering.graph.times(x, gamma)
    }
}
