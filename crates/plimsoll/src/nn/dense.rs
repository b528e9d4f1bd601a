//! The fully connected layer.

use super::conv::{before_activation, bias_and_activation};
use super::keras::{KerasLayer, kernel_and_bias, regularizer};
use super::{Activation, Initializer, Int8, Layer, LayerDef, Lowering, Regularizer, single_input};
use plimsoll_core::shape::Shape;
use plimsoll_core::{Dim, GraphError, ValueId};
use serde_json::json;
use std::sync::Arc;

/// Fully connected layer over the last axis.
///
/// ```
/// use plimsoll::nn::{Dense, Sequential};
/// let model = Sequential::new().add(Dense::new(64).relu()).add(Dense::new(10));
/// ```
#[derive(Clone, Debug)]
pub struct Dense {
    units: usize,
    activation: Activation,
    bias: bool,
    initializer: Initializer,
    regularizer: Regularizer,
}

impl Dense {
    /// `units` outputs, with a bias and no activation.
    pub fn new(units: usize) -> Dense {
        Dense {
            units,
            activation: Activation::Linear,
            bias: true,
            initializer: Initializer::default(),
            regularizer: Regularizer::default(),
        }
    }

    /// Sets the activation function.
    pub fn activation(self, activation: Activation) -> Dense {
        Dense { activation, ..self }
    }

    /// Sets the activation to ReLU.
    pub fn relu(self) -> Dense {
        self.activation(Activation::Relu)
    }

    /// Whether to add a bias.
    pub fn bias(self, bias: bool) -> Dense {
        Dense { bias, ..self }
    }

    /// Sets the kernel initializer.
    pub fn initializer(self, initializer: Initializer) -> Dense {
        Dense { initializer, ..self }
    }

    /// Sets the kernel regularizer.
    pub fn regularizer(self, regularizer: Regularizer) -> Dense {
        Dense { regularizer, ..self }
    }
}

/// `type = "dense"`.
pub(super) const DENSE: LayerDef = LayerDef {
    name: "dense",
    about: "Fully connected layer over the last axis.",
    example: "units = 64",
    from_config: |config| {
        let dense = Dense::new(config.required_count("units", 1, "the number of outputs")?);
        let dense = dense.activation(config.activation()?).bias(config.bias()?);
        Ok(Arc::new(dense.initializer(config.initializer()?).regularizer(config.regularizer()?)))
    },
};

impl Layer for Dense {
    fn kind(&self) -> &'static str {
        DENSE.name
    }

    fn to_keras(&self, _: &[Shape]) -> Option<Vec<KerasLayer>> {
        let config = json!({
            "units": self.units,
            "activation": self.activation.keras_name()?,
            "use_bias": self.bias,
            "kernel_regularizer": regularizer(self.regularizer),
        });
        Some(vec![KerasLayer::new("Dense", config).weights(kernel_and_bias(self.bias))])
    }

    fn int8(&self) -> Int8 {
        Int8::Kernel { linear: self.activation == Activation::Linear }
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = single_input(lowering, inputs)?;
        let shape = lowering.graph.shape(x).clone();
        let Some(width) = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2) else {
            return Err(lowering.graph.error(format!("expects an input of shape [batch, …, features], but received {shape}")));
        };
        if self.units == 0 {
            return Err(lowering.graph.error("needs at least one unit"));
        }
        // All leading axes are the rows of one matrix.
        let leading = Shape::new(shape.dims()[..shape.rank() - 1].iter().copied()).elements();
        let x = lowering.graph.reshape(x, Shape::new([leading, Dim::fixed(width)]))?;
        let kernel = lowering.parameter("kernel", [width, self.units], self.initializer.init(width, self.units))?;
        lowering.regularize(kernel, self.regularizer)?;
        let kernel = lowering.int8_kernel(kernel, 1)?;
        let y = lowering.graph.matmul(x, kernel)?;
        let y = bias_and_activation(lowering, y, self.units, self.bias, Activation::Linear)?;
        let y = lowering.graph.reshape(y, shape.with(shape.rank() - 1, Dim::fixed(self.units)))?;
        let y = before_activation(lowering, y, self.activation)?;
        self.activation.apply(lowering.graph, y)
    }

    fn with_outputs(&self, outputs: usize) -> Option<(Arc<dyn Layer>, bool)> {
        Some((Arc::new(Dense { units: outputs, ..self.clone() }), true))
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}
