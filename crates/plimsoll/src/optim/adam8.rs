//! Adam with 8-bit moments.

use super::{Adam, Optimizer, elements, slot_of_type, value_of};
use plimsoll_core::expr::{Binary, Expr, ExprBuilder, TermId, Unary};
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::op::Op;
use plimsoll_core::ops::{Pad, Reduce, Reduction, Slice};
use plimsoll_core::{DType, Shape, TensorType, ValueId};

/// Adam or AdamW with both moments in 8 bits: blocks of 2,048 elements share one scale, their maximum. Parameters of
/// fewer than 4,096 elements keep 32-bit moments.
///
/// Codes are logarithmic: numbers down to a millionth of the largest (second moment: of its square) have the same
/// relative error of a few per cent. The second moment moves by a thousandth per step, which rounding to nearest would
/// lose, so it is rounded stochastically.
///
/// ```
/// use plimsoll::optim::{Adam, AdamW};
/// let small = Adam::new(1e-3).eight_bit();
/// let decaying = AdamW::new(1e-3, 0.01).eight_bit();
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Adam8bit {
    adam: Adam,
    decay: f32,
}

/// Elements per scale.
const BLOCK: usize = 2048;

/// Smaller parameters keep 32-bit moments.
const LEAST: usize = 4096;

/// The logarithmic step between codes of the first moment: 20 octaves over 126 steps.
const MEAN_STEP: f32 = 20.0 * std::f32::consts::LN_2 / 126.0;

/// The logarithmic step between codes of the second moment: 40 octaves over 254 steps.
const SQUARE_STEP: f32 = 40.0 * std::f32::consts::LN_2 / 254.0;

impl Adam8bit {
    pub(super) fn new(adam: Adam, decay: f32) -> Adam8bit {
        Adam8bit { adam, decay }
    }

    /// The first moment after this step, from the indices of gradient, codes and scale among the inputs.
    fn mean(&self, e: &ExprBuilder, [gradient, codes, scale]: [u16; 3]) -> TermId {
        let mean = e.mul(mean_of(e, e.input(codes)), e.input(scale));
        e.add(mean, e.mul(e.sub(e.input(gradient), mean), e.constant(1.0 - self.adam.beta1)))
    }

    /// The second moment after this step, likewise.
    fn square(&self, e: &ExprBuilder, [gradient, codes, scale]: [u16; 3]) -> TermId {
        let (g, square) = (e.input(gradient), e.mul(square_of(e, e.input(codes)), e.input(scale)));
        e.add(square, e.mul(e.sub(e.mul(g, g), square), e.constant(1.0 - self.adam.beta2)))
    }
}

impl Optimizer for Adam8bit {
    fn name(&self) -> &'static str {
        if self.decay > 0.0 { "adamw8bit" } else { "adam8bit" }
    }

    fn learning_rate(&self) -> f32 {
        self.adam.lr
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        &["adam_rate", "adam_decay"]
    }

    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        self.adam.scalars(step, lr, numbers);
        numbers[1] = (lr * f64::from(self.decay)) as f32;
    }

    fn undivided(&self) -> Option<&'static str> {
        Some("its states of 8 bits have scales for blocks of elements, which do not end where the shards of ranks do")
    }

    fn update(&self, g: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        let p = value_of(g, parameter);
        let count = elements(g, p);
        let (rate, decay) = (g.scalar("adam_rate"), g.scalar("adam_decay"));
        if count < LEAST {
            return self.adam.update(g, parameter, gradient, Some(decay));
        }
        let blocks = count.div_ceil(BLOCK);
        let (shape, cut) = (g.shape(p).clone(), Shape::fixed([blocks, BLOCK]));
        let rest = blocks * BLOCK - count;
        let mut flat = g.reshape(gradient, Shape::fixed([count]))?;
        if rest > 0 {
            flat = g.add_one(Op::Pad(Pad { axis: 0, before: 0, after: rest }), &[flat])?;
        }
        let gradient = g.reshape(flat, cut.clone())?;

        let codes = || TensorType::new(DType::U8, cut.clone());
        let scales = || TensorType::f32(Shape::fixed([blocks, 1]));
        // Zero codes and zero scales decode to zero moments.
        let slots = [
            slot_of_type(g, "mean_codes", codes(), 0.0)?,
            slot_of_type(g, "mean_scales", scales(), 0.0)?,
            slot_of_type(g, "square_codes", codes(), 0.0)?,
            slot_of_type(g, "square_scales", scales(), 0.0)?,
        ];
        let known: Vec<ValueId> = [gradient].into_iter().chain(slots.iter().map(|(_, value)| *value)).collect();
        // The moments are computed twice, for the scale and for the codes, so that they are never stored in 32 bits.
        let mut largest = |of: &dyn Fn(&ExprBuilder) -> TermId, reads: [ValueId; 3]| {
            let expr = Expr::build(of);
            g.add_one(Op::Reduce(Reduce { expr, shape: cut.clone(), kind: Reduction::Max, axes: vec![1], onto: false }), &reads)
        };
        let [_, mean_codes, mean_scales, square_codes, square_scales] = known[..] else { unreachable!("there are five") };
        let mean_scale = largest(&|e| e.unary(Unary::Abs, self.mean(e, [0, 1, 2])), [gradient, mean_codes, mean_scales])?;
        let square_scale = largest(&|e| self.square(e, [0, 1, 2]), [gradient, square_codes, square_scales])?;
        let stream = g.stream();
        let step = Expr::build_many(|e| {
            let (mean, square) = (self.mean(e, [0, 1, 2]), self.square(e, [0, 3, 4]));
            let root = e.unary(Unary::Sqrt, square);
            let change = e.div(e.mul(mean, e.input(7)), e.add(root, e.constant(self.adam.epsilon)));
            vec![change, mean_code(e, mean, e.input(5)), square_code(e, square, e.input(6), e.random(stream))]
        });
        let inputs: Vec<ValueId> = known.iter().copied().chain([mean_scale, square_scale, rate]).collect();
        let new = g.pointwise_many(step, &inputs, cut, vec![DType::F32, DType::U8, DType::U8])?;
        let mut change = g.reshape(new[0], Shape::fixed([blocks * BLOCK]))?;
        if rest > 0 {
            change = g.add_one(Op::Slice(Slice { axis: 0, start: 0, length: count }), &[change])?;
        }
        let change = g.reshape(change, shape)?;
        let descend = Expr::build(|e| e.sub(e.sub(e.input(0), e.mul(e.input(0), e.input(2))), e.input(1)));
        let descended = g.pointwise(descend, &[p, change, decay])?;
        g.update(parameter, descended);
        for ((state, _), new) in slots.into_iter().zip([new[1], mean_scale, new[2], square_scale]) {
            g.update(state, new);
        }
        Ok(())
    }
}

/// Decodes a first moment relative to the scale: 0 is zero, 1 to 127 are positive, 129 to 255 negative.
fn mean_of(e: &ExprBuilder, code: TermId) -> TermId {
    let negative = e.binary(Binary::Less, e.constant(127.5), code);
    let level = e.sub(code, e.mul(negative, e.constant(128.0)));
    let size = e.unary(Unary::Exp, e.mul(e.sub(level, e.constant(127.0)), e.constant(MEAN_STEP)));
    let size = e.select(level, size, e.constant(0.0));
    e.select(negative, e.unary(Unary::Neg, size), size)
}

/// The nearest code of a mean.
fn mean_code(e: &ExprBuilder, mean: TermId, scale: TermId) -> TermId {
    let size = e.unary(Unary::Abs, mean);
    let steps = e.mul(e.unary(Unary::Log, e.div(size, scale)), e.constant(1.0 / MEAN_STEP));
    let level = e.unary(Unary::Floor, e.add(steps, e.constant(127.5)));
    let level = e.binary(Binary::Min, e.binary(Binary::Max, level, e.constant(0.0)), e.constant(127.0));
    let level = e.select(size, level, e.constant(0.0));
    let negative = e.mul(e.binary(Binary::Less, mean, e.constant(0.0)), e.constant(128.0));
    // There is no negative zero: its code would mean a sign without a magnitude.
    e.select(level, e.add(level, negative), e.constant(0.0))
}

/// Decodes a second moment relative to the scale; 0 is zero.
fn square_of(e: &ExprBuilder, code: TermId) -> TermId {
    let size = e.unary(Unary::Exp, e.mul(e.sub(code, e.constant(255.0)), e.constant(SQUARE_STEP)));
    e.select(code, size, e.constant(0.0))
}

/// Stochastic rounding of a second moment to one of the two nearest codes. Non-zero values never round to zero, which
/// would divide by epsilon.
fn square_code(e: &ExprBuilder, square: TermId, scale: TermId, chance: TermId) -> TermId {
    let steps = e.mul(e.unary(Unary::Log, e.div(square, scale)), e.constant(1.0 / SQUARE_STEP));
    let level = e.unary(Unary::Floor, e.add(e.add(steps, e.constant(255.0)), chance));
    let level = e.binary(Binary::Min, e.binary(Binary::Max, level, e.constant(1.0)), e.constant(255.0));
    e.select(square, level, e.constant(0.0))
}
