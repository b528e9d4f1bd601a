//! Adafactor.

use super::{Optimizer, OptimizerDef, exponent, root_mean_square, shrunk, slot, slot_of_type, value_of};
use crate::error::Error;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::ops::Reduction;
use plimsoll_core::{DType, TensorType, ValueId};
use std::sync::Arc;

/// Adafactor (Shazeer and Stern): the second moment of a matrix is factored into row and column means. The formulas and
/// defaults are Keras'; with several axes the last two are factored.
///
/// ```
/// use plimsoll::optim::Adafactor;
/// let usual = Adafactor::default();
/// let cautious = Adafactor::new(1e-2).clip_threshold(0.5);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Adafactor {
    lr: f32,
    decay: f32,
    epsilon: f32,
    least_scale: f32,
    threshold: f32,
}

impl Adafactor {
    /// With a learning rate, relative to the RMS of each parameter and at most `1 / √step`.
    pub fn new(lr: f32) -> Adafactor {
        Adafactor { lr, decay: -0.8, epsilon: 1e-30, least_scale: 1e-3, threshold: 1.0 }
    }

    /// Sets the exponent of the second moment's decay rate; negative.
    pub fn beta2_decay(self, decay: f32) -> Adafactor {
        Adafactor { decay, ..self }
    }

    /// Updates whose root mean square is above this are scaled down to it.
    pub fn clip_threshold(self, threshold: f32) -> Adafactor {
        Adafactor { threshold, ..self }
    }
}

impl Default for Adafactor {
    fn default() -> Adafactor {
        Adafactor::new(1e-3)
    }
}

/// `type = "adafactor"`.
pub(super) const ADAFACTOR: OptimizerDef = OptimizerDef {
    name: "adafactor",
    about: "Adafactor (Shazeer and Stern)",
    state: "a row and a column per matrix",
    from_config: |config| {
        let decay = config.number_or("beta2_decay", -0.8)?;
        if !(-10.0..0.0).contains(&decay) {
            return Err(Error::Config(format!("`{}` is {decay}, but should be below 0, such as -0.8", config.name("beta2_decay"))));
        }
        let adafactor = Adafactor::new(config.non_negative_or("lr", 1e-3)?).beta2_decay(decay);
        Ok(Arc::new(adafactor.clip_threshold(config.non_negative_or("clip_threshold", 1.0)?)))
    },
};

impl Optimizer for Adafactor {
    fn name(&self) -> &'static str {
        ADAFACTOR.name
    }

    fn learning_rate(&self) -> f32 {
        self.lr
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        &["lr", "adafactor_keep"]
    }

    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        let most = 1.0 / f64::from(exponent(step)).sqrt();
        numbers[0] = lr.min(most) as f32;
        numbers[1] = (1.0 - f64::from(exponent(step)).powf(f64::from(self.decay))) as f32;
    }

    fn undivided(&self) -> Option<&'static str> {
        Some("its states are those of rows and columns, which do not end where the shards of ranks do")
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let (p, lr, keep) = (value_of(g, parameter), g.scalar("lr"), g.scalar("adafactor_keep"));
        let shape = g.shape(p).clone();
        let rank = shape.rank();
        let average = |old: usize| {
            Expr::build(|e| {
                let (keep, new) = (e.input(0), e.input(old as u16 + 1));
                e.add(e.mul(keep, e.input(old as u16)), e.mul(e.sub(e.constant(1.0), keep), new))
            })
        };
        let scale = root_mean_square(g, p)?;
        let towards = if rank >= 2 {
            let mean_over = |g: &mut Graph, name: &str, axis: usize| -> Result<ValueId, GraphError> {
                let share = 1.0 / shape.dims()[axis].factor() as f32;
                let squares = g.map(gradient, |e, x| e.mul(e.add(e.mul(x, x), e.constant(self.epsilon)), e.constant(share)))?;
                let mean = g.reduce(Reduction::Sum, squares, &[axis])?;
                let (state, old) = slot_of_type(g, name, TensorType::f32(shrunk(&shape, axis)), 0.0)?;
                let new = g.pointwise(average(1), &[keep, old, mean])?;
                g.update(state, new);
                Ok(new)
            };
            let rows = mean_over(g, "rows", rank - 1)?;
            let columns = mean_over(g, "columns", rank - 2)?;
            let share = 1.0 / shape.dims()[rank - 2].factor() as f32;
            let shares = g.map(rows, |e, x| e.mul(x, e.constant(share)))?;
            let mean_of_rows = g.reduce(Reduction::Sum, shares, &[rank - 2])?;
            // Two square roots instead of one of the product, which overflows single precision sooner.
            let divide = Expr::build(|e| {
                let row = e.unary(Unary::Sqrt, e.div(e.input(1), e.input(2)));
                e.div(e.input(0), e.mul(row, e.unary(Unary::Sqrt, e.input(3))))
            });
            g.pointwise_over(divide, &[gradient, rows, mean_of_rows, columns], shape.clone())?
        } else {
            let (state, old) = slot(g, "square", parameter)?;
            let both = Expr::build_many(|e| {
                let (keep, old, x) = (e.input(0), e.input(1), e.input(2));
                let square = e.add(e.mul(x, x), e.constant(self.epsilon));
                let new = e.add(e.mul(keep, old), e.mul(e.sub(e.constant(1.0), keep), square));
                vec![e.div(x, e.unary(Unary::Sqrt, new)), new]
            });
            let new = g.pointwise_many(both, &[keep, old, gradient], shape.clone(), vec![DType::F32; 2])?;
            g.update(state, new[1]);
            new[0]
        };
        let size = root_mean_square(g, towards)?;
        let descend = Expr::build(|e| {
            let (p, towards, lr, scale, size) = (e.input(0), e.input(1), e.input(2), e.input(3), e.input(4));
            let rate = e.mul(lr, e.binary(Binary::Max, scale, e.constant(self.least_scale)));
            let over = e.binary(Binary::Max, e.div(size, e.constant(self.threshold)), e.constant(1.0));
            e.sub(p, e.mul(rate, e.div(towards, over)))
        });
        let new = g.pointwise_over(descend, &[p, towards, lr, scale, size], shape)?;
        g.update(parameter, new);
        Ok(())
    }
}
