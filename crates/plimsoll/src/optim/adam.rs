//! Adam and AdamW.

use super::{Adam8bit, Optimizer, OptimizerDef, exponent, slot, value_of};
use crate::error::Error;
use crate::reader::Reader;
use plimsoll_core::expr::{Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::{DType, ValueId};
use std::sync::Arc;

/// Adam (Kingma and Ba). The formulas and defaults are Keras'.
///
/// ```
/// use plimsoll::optim::Adam;
/// let usual = Adam::default();
/// let slow = Adam::new(1e-4).betas(0.9, 0.98);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    pub(super) lr: f32,
    pub(super) beta1: f32,
    pub(super) beta2: f32,
    pub(super) epsilon: f32,
}

/// Adam with decoupled weight decay (Loshchilov and Hutter).
#[derive(Clone, Debug, PartialEq)]
pub struct AdamW {
    adam: Adam,
    decay: f32,
}

impl Adam {
    /// With a learning rate.
    pub fn new(lr: f32) -> Adam {
        Adam { lr, beta1: 0.9, beta2: 0.999, epsilon: 1e-7 }
    }

    /// Sets the decay rates of the first and second moment.
    pub fn betas(self, beta1: f32, beta2: f32) -> Adam {
        Adam { beta1, beta2, ..self }
    }

    /// Sets the small constant that is added to the denominator.
    pub fn epsilon(self, epsilon: f32) -> Adam {
        Adam { epsilon, ..self }
    }

    /// With 8-bit moments: a quarter of the memory.
    pub fn eight_bit(self) -> Adam8bit {
        Adam8bit::new(self, 0.0)
    }

    pub(super) fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        let forgotten = |beta: f32| 1.0 - f64::from(beta).powi(exponent(step));
        numbers[0] = (lr * forgotten(self.beta2).sqrt() / forgotten(self.beta1)) as f32;
    }

    /// `decay` is the scalar of the weight decay, if any.
    pub(super) fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId, decay: Option<ValueId>) -> Result<(), GraphError> {
        let (p, rate) = (value_of(g, parameter), g.scalar("adam_rate"));
        let (mean_state, mean) = slot(g, "mean", parameter)?;
        let (square_state, square) = slot(g, "square", parameter)?;
        let shape = g.shape(p).clone();
        let step = Expr::build_many(|e| {
            let (p, gradient, rate) = (e.input(0), e.input(1), e.input(2));
            let (mean, square) = (e.input(3), e.input(4));
            let mean = e.add(mean, e.mul(e.sub(gradient, mean), e.constant(1.0 - self.beta1)));
            let square = e.add(square, e.mul(e.sub(e.mul(gradient, gradient), square), e.constant(1.0 - self.beta2)));
            let change = e.div(e.mul(mean, rate), e.add(e.unary(Unary::Sqrt, square), e.constant(self.epsilon)));
            let decayed = if decay.is_some() { e.sub(p, e.mul(p, e.input(5))) } else { p };
            vec![e.sub(decayed, change), mean, square]
        });
        let inputs: Vec<ValueId> = [p, gradient, rate, mean, square].into_iter().chain(decay).collect();
        let new = g.pointwise_many(step, &inputs, shape, vec![DType::F32; 3])?;
        g.update(parameter, new[0]);
        g.update(mean_state, new[1]);
        g.update(square_state, new[2]);
        Ok(())
    }
}

impl Default for Adam {
    fn default() -> Adam {
        Adam::new(1e-3)
    }
}

impl AdamW {
    /// With a learning rate and a weight decay per unit of learning rate.
    pub fn new(lr: f32, decay: f32) -> AdamW {
        AdamW { adam: Adam::new(lr), decay }
    }

    /// Sets the decay rates of the first and second moment.
    pub fn betas(self, beta1: f32, beta2: f32) -> AdamW {
        AdamW { adam: self.adam.betas(beta1, beta2), ..self }
    }

    /// Sets the small constant that is added to the denominator.
    pub fn epsilon(self, epsilon: f32) -> AdamW {
        AdamW { adam: self.adam.epsilon(epsilon), ..self }
    }

    /// With 8-bit moments: a quarter of the memory.
    pub fn eight_bit(self) -> Adam8bit {
        Adam8bit::new(self.adam, self.decay)
    }
}

impl Default for AdamW {
    fn default() -> AdamW {
        AdamW::new(1e-3, 4e-3)
    }
}

/// Whether `state_bits` asks for moments of 8 bits.
fn eight_bit_state(config: &Reader<'_>) -> crate::error::Result<bool> {
    match config.count_or("state_bits", 32)? {
        32 => Ok(false),
        8 => Ok(true),
        other => Err(Error::Config(format!("`{}` is {other}, but should be 8 or 32", config.name("state_bits")))),
    }
}

/// `type = "adam"`.
pub(super) const ADAM: OptimizerDef = OptimizerDef {
    name: "adam",
    about: "Adam (Kingma and Ba)",
    state: "8 bytes; 2 with `state_bits = 8`",
    from_config: |config| {
        let adam = Adam::new(config.non_negative_or("lr", 1e-3)?);
        let adam = adam.betas(config.fraction_or("beta1", 0.9)?, config.fraction_or("beta2", 0.999)?);
        let adam = adam.epsilon(config.non_negative_or("epsilon", 1e-7)?);
        Ok(if eight_bit_state(config)? { Arc::new(adam.eight_bit()) } else { Arc::new(adam) })
    },
};

impl Optimizer for Adam {
    fn name(&self) -> &'static str {
        ADAM.name
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        &["adam_rate"]
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        self.scalars(step, lr, numbers);
    }

    fn eight_bit_state(&self) -> Option<Arc<dyn Optimizer>> {
        Some(Arc::new(self.clone().eight_bit()))
    }

    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        self.update(graph, parameter, gradient, None)
    }
}

/// `type = "adamw"`.
pub(super) const ADAMW: OptimizerDef = OptimizerDef {
    name: "adamw",
    about: "Adam with decoupled weight decay (Loshchilov and Hutter)",
    state: "8 bytes; 2 with `state_bits = 8`",
    from_config: |config| {
        let adam = AdamW::new(config.non_negative_or("lr", 1e-3)?, config.non_negative_or("weight_decay", 4e-3)?);
        let adam = adam.betas(config.fraction_or("beta1", 0.9)?, config.fraction_or("beta2", 0.999)?);
        let adam = adam.epsilon(config.non_negative_or("epsilon", 1e-7)?);
        Ok(if eight_bit_state(config)? { Arc::new(adam.eight_bit()) } else { Arc::new(adam) })
    },
};

impl Optimizer for AdamW {
    fn name(&self) -> &'static str {
        ADAMW.name
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        &["adam_rate", "adam_decay"]
    }

    fn learning_rate(&self) -> f32 {
        self.adam.lr
    }

    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        self.adam.scalars(step, lr, numbers);
        numbers[1] = (lr * f64::from(self.decay)) as f32;
    }

    fn eight_bit_state(&self) -> Option<Arc<dyn Optimizer>> {
        Some(Arc::new(self.clone().eight_bit()))
    }

    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let decay = graph.scalar("adam_decay");
        self.adam.update(graph, parameter, gradient, Some(decay))
    }
}
