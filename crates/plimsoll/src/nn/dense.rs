//! The fully connected layer.

use super::{Activation, Initializer, Layer, Lowering, only};
use plimsoll_core::graph::{Init, StateKind};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{Dim, GraphError, ValueId};

/// Every output sees every number of the last axis of the input.
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
}

impl Dense {
    /// `units` outputs, with a bias and no activation.
    pub fn new(units: usize) -> Dense {
        Dense { units, activation: Activation::Linear, bias: true, initializer: Initializer::default() }
    }

    /// With an activation.
    pub fn activation(self, activation: Activation) -> Dense {
        Dense { activation, ..self }
    }

    /// With ReLU.
    pub fn relu(self) -> Dense {
        self.activation(Activation::Relu)
    }

    /// With or without a bias.
    pub fn bias(self, bias: bool) -> Dense {
        Dense { bias, ..self }
    }

    /// With weights that start otherwise.
    pub fn initializer(self, initializer: Initializer) -> Dense {
        Dense { initializer, ..self }
    }
}

impl Layer for Dense {
    fn kind(&self) -> &'static str {
        "dense"
    }

    fn lower(&self, lowering: &mut Lowering<'_>, inputs: &[ValueId]) -> Result<ValueId, GraphError> {
        let x = only(lowering, inputs)?;
        let g = &mut *lowering.graph;
        let shape = g.shape(x).clone();
        let Some(width) = shape.last().and_then(|dim| dim.as_fixed()).filter(|_| shape.rank() >= 2) else {
            return Err(g.error(format!("takes [batch, …, features], but got the shape {shape}")));
        };
        if self.units == 0 {
            return Err(g.error("needs at least one unit"));
        }
        // Everything in front of the features is rows of one matrix.
        let leading = Shape::new(shape.dims()[..shape.rank() - 1].iter().copied()).elements();
        let x = g.reshape(x, Shape::new([leading, Dim::fixed(width)]))?;
        let kernel = TensorType::f32(Shape::fixed([width, self.units]));
        let kernel = g.state("kernel", StateKind::Parameter, kernel, self.initializer.init(width, self.units))?;
        let mut y = g.matmul(x, kernel)?;
        if self.bias {
            let bias = TensorType::f32(Shape::fixed([self.units]));
            let bias = g.state("bias", StateKind::Parameter, bias, Init::Constant(0.0))?;
            y = g.plus(y, bias)?;
        }
        let y = g.reshape(y, shape.with(shape.rank() - 1, Dim::fixed(self.units)))?;
        self.activation.apply(g, y)
    }

    fn last_activation(&self) -> Option<Activation> {
        Some(self.activation)
    }
}
