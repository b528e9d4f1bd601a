//! An LSTM in integers, as LiteRT's kernel for int8 with a 16-bit cell computes it.
//!
//! Gates have 16 bits with three integer bits, results of sigmoid and tanh have none. The scale of the cell is a power
//! of two, so that its products are shifts.

use super::fixed_point::{divided, sigmoid, tanh};
use super::products::{centred, dot, widened};
use super::{Elements, Multiplier, QuantizationParameters, RowTensor, RunResult};
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{Operator, TfliteModel};

/// The input that is the state of the output, and that which is the cell.
pub(crate) const OUTPUT_STATE: usize = 18;
pub(crate) const CELL: usize = 19;

/// The intermediate tensor whose scale the output has before a projection.
const HIDDEN: usize = 4;

/// The most integer bits of a cell whose hyperbolic tangent is computed.
pub(crate) const CELL_BITS: i32 = 4;

/// The operands of a gate.
struct Gate {
    kernel: Vec<i16>,
    recurrent: Vec<i16>,
    bias: Vec<i32>,
    of_input: Multiplier,
    of_state: Multiplier,
}

impl Gate {
    /// The sums of a gate before its activation.
    fn sums(&self, input: &[i16], state: &[i16]) -> Vec<i16> {
        let rows = self.kernel.chunks_exact(input.len()).zip(self.recurrent.chunks_exact(state.len()));
        let sum = |((kernel, recurrent), bias): ((&[i16], &[i16]), &i32)| {
            let own = clamped(self.of_input.times(dot(kernel, input).wrapping_add(*bias)));
            clamped(self.of_state.times(dot(recurrent, state)).saturating_add(i32::from(own)))
        };
        rows.zip(&self.bias).map(sum).collect()
    }
}

fn clamped(x: i32) -> i16 {
    x.clamp(i32::from(i16::MIN), i32::from(i16::MAX)) as i16
}

/// The integer bits of the cell, if its scale is a power of two that is computed here.
pub(super) fn cell_bits(model: &TfliteModel, operator: &Operator) -> Option<i32> {
    let cell = &model.tensors[usize::try_from(*operator.inputs.get(CELL)?).ok()?];
    let scale = *cell.quantization.as_ref()?.scales.first()?;
    let exponent = f64::from(scale).log2();
    let bits = exponent as i32 + 15;
    (cell.dtype == DType::I16 && exponent.fract() == 0.0 && (0..=CELL_BITS).contains(&bits)).then_some(bits)
}

/// Whether all that the integers need is there: scales of states, and of the output before a projection.
pub(in super::super) fn is_complete(model: &TfliteModel, operator: &Operator) -> bool {
    let scaled = |tensors: &[i32], at: usize| {
        let tensor = tensors.get(at).and_then(|tensor| usize::try_from(*tensor).ok());
        let quantization = tensor.and_then(|tensor| model.tensors[tensor].quantization.as_ref());
        quantization.is_some_and(|found| found.scales.len() == 1 && found.zero_points.len() == 1)
    };
    let operands = [0].into_iter().chain(1..=8).chain(12..16).chain([OUTPUT_STATE]).all(|at| scaled(&operator.inputs, at));
    operands && scaled(&operator.intermediates, HIDDEN) && scaled(&operator.outputs, 0) && cell_bits(model, operator).is_some()
}

/// The outputs of all steps of a row; states begin with zero.
pub(super) fn lstm(model: &TfliteModel, operator: &Operator, read: &[Option<&RowTensor>], shape: Vec<usize>) -> RunResult<Elements<i8>> {
    let value = |i: usize| read.get(i).copied().flatten().ok_or_else(|| format!("input {i} is missing"));
    let tensor = |index: i32| &model.tensors[index as usize];
    let affine = |i: usize| QuantizationParameters::of(tensor(operator.inputs[i]));
    let (input, state) = (affine(0)?, affine(OUTPUT_STATE)?);
    let hidden = QuantizationParameters::of(tensor(operator.intermediates[HIDDEN]))?;
    let integer_bits = cell_bits(model, operator).ok_or("the scale of the cell is no power of two")?;
    let wide = |i: usize| {
        let kernel = value(i)?.int8()?;
        let mut numbers = vec![0; kernel.numbers.len()];
        widened(&kernel.numbers, &mut numbers);
        Ok::<_, String>(numbers)
    };
    let mut gates = Vec::with_capacity(4);
    for gate in 0..4 {
        // Gates have twelve fractional bits.
        let factor = |i: usize, of: f32| Ok::<_, String>(Multiplier::of(f64::from(affine(i)?.scale * of * 4096.0)));
        gates.push(Gate {
            kernel: wide(1 + gate)?,
            recurrent: wide(5 + gate)?,
            bias: value(12 + gate)?.bias()?.to_vec(),
            of_input: factor(1 + gate, input.scale)?,
            of_state: factor(5 + gate, state.scale)?,
        });
    }
    let to_hidden = Multiplier::of(f64::from((2.0_f64.powi(-30) / f64::from(hidden.scale)) as f32));
    let x = value(0)?.int8()?;
    let (features, units) = (x.shape[2], shape[2]);
    let rows = centred(&x.numbers, input.zero);
    let (mut output, mut cell) = (vec![0_i16; units], vec![0_i16; units]);
    let mut numbers = Vec::with_capacity(shape.iter().product());
    for step in rows.chunks_exact(features) {
        let sums: Vec<Vec<i16>> = gates.iter().map(|gate| gate.sums(step, &output)).collect();
        for (unit, (cell, output)) in cell.iter_mut().zip(&mut output).enumerate() {
            let [input, forget, candidate, shown] = [0, 1, 2, 3].map(|gate: usize| sums[gate][unit]);
            let kept = divided(i32::from(sigmoid(forget)) * i32::from(*cell), 15);
            // Both factors have 15 fractional bits, the cell has 15 less its integer bits.
            let new = divided(i32::from(sigmoid(input)) * i32::from(tanh(candidate, 3)), (15 + integer_bits) as u32);
            *cell = clamped(kept + new);
            let factors = i32::from(sigmoid(shown)) * i32::from(tanh(*cell, integer_bits));
            let result = to_hidden.times(factors).saturating_add(hidden.zero).clamp(-128, 127);
            *output = result.wrapping_sub(state.zero) as i16;
            numbers.push(result as i8);
        }
    }
    Ok(Elements { shape, numbers })
}
