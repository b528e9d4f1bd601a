//! Operators in int8, computed in integers as LiteRT's kernels do: sums in int32, then one multiplication in fixed
//! point.

mod fixed_point;
mod functions;
mod multiplier;
mod products;
mod recurrent;
mod windows;

use super::{Elements, RowTensor, RunResult, dims, is_int8, movement};
use multiplier::Multiplier;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Operator, TfliteModel, TfliteTensor};
pub(super) use recurrent::is_complete;
pub(crate) use recurrent::{CELL, CELL_BITS, OUTPUT_STATE};

/// The scale and the zero point of a tensor.
#[derive(Clone, Copy)]
struct QuantizationParameters {
    scale: f32,
    zero: i32,
}

impl QuantizationParameters {
    fn of(tensor: &TfliteTensor) -> RunResult<QuantizationParameters> {
        let quantization = tensor.quantization.as_ref().ok_or_else(|| format!("`{}` has no scale", tensor.name))?;
        Ok(QuantizationParameters { scale: quantization.scales[0], zero: quantization.zero_points[0] as i32 })
    }

    /// The integer of a real number, not limited to int8.
    fn integer(self, number: f32) -> i32 {
        self.zero + (number / self.scale).round() as i32
    }
}

/// The result of an int8 operator: its scale, and the integers that its activation allows.
#[derive(Clone, Copy)]
struct Target {
    affine: QuantizationParameters,
    low: i32,
    high: i32,
}

impl Target {
    fn of(operator: &Operator, output: &TfliteTensor) -> RunResult<Target> {
        let affine = QuantizationParameters::of(output)?;
        let (low, high) = match operator.integer("fused_activation_function") {
            1 => (affine.zero.max(-128), 127),
            3 => (affine.zero.max(-128), affine.integer(6.0).min(127)),
            _ => (-128, 127),
        };
        Ok(Target { affine, low, high })
    }

    /// A sum on the scale of the result as int8.
    fn int8(self, sum: i32) -> i8 {
        sum.saturating_add(self.affine.zero).clamp(self.low, self.high) as i8
    }
}

/// Whether an operator is computed in integers: it reads or gives int8.
pub(super) fn computes(model: &TfliteModel, operator: &Operator) -> bool {
    let rounds = operator.op == BuiltinOp::Shape || (operator.op == BuiltinOp::Quantize && !is_tensor_int8(model, operator.inputs[0]));
    let has_int8 = || operator.inputs.iter().chain(&operator.outputs).any(|tensor| is_tensor_int8(model, *tensor));
    !rounds && !widens(model, operator) && has_int8()
}

/// Whether an operator of real numbers takes constants in int8 as real numbers.
pub(super) fn widens(model: &TfliteModel, operator: &Operator) -> bool {
    let is_hybrid = matches!(operator.op, BuiltinOp::UnidirectionalSequenceLstm | BuiltinOp::TransposeConv | BuiltinOp::DepthwiseConv2d);
    is_hybrid && operator.outputs.iter().all(|tensor| !is_tensor_int8(model, *tensor))
}

fn is_tensor_int8(model: &TfliteModel, tensor: i32) -> bool {
    usize::try_from(tensor).is_ok_and(|index| is_int8(&model.tensors[index]))
}

/// What an operator in int8 gives.
pub(super) fn compute(model: &TfliteModel, operator: &Operator, read: &[Option<&RowTensor>]) -> RunResult<Vec<RowTensor>> {
    let value = |i: usize| read.get(i).copied().flatten().ok_or_else(|| format!("input {i} is missing"));
    let tensor = |i: usize| &model.tensors[operator.inputs[i] as usize];
    let output = &model.tensors[operator.outputs[0] as usize];
    let shape = dims(output);
    if operator.op == BuiltinOp::Dequantize {
        return Ok(vec![RowTensor::Real(Elements { shape, numbers: value(0)?.to_real(tensor(0)).into_owned() })]);
    }
    let is_real = output.dtype == DType::F32;
    let bias = |i: usize| read.get(i).copied().flatten();
    let weights = |i: usize| Ok::<_, String>((value(i)?.int8()?, tensor(i)));
    if is_real {
        // Weights in int8 under real numbers: a scale for the input is found when it is known.
        let bias = bias(2).map(RowTensor::real).transpose()?.map(|bias| &bias.numbers[..]);
        let one = match operator.op {
            BuiltinOp::FullyConnected => products::hybrid(value(0)?.real()?, weights(1)?, bias, shape),
            BuiltinOp::Conv2d => windows::hybrid(operator, value(0)?.real()?, weights(1)?, bias, shape),
            op => return Err(format!("{} of int8 does not give real numbers", op.name())),
        };
        return Ok(vec![RowTensor::Real(with_activation(operator, one))]);
    }
    if operator.op == BuiltinOp::UnidirectionalSequenceLstm {
        return Ok(vec![RowTensor::Int8(recurrent::lstm(model, operator, read, shape)?)]);
    }
    let target = Target::of(operator, output)?;
    let bias = |i: usize| bias(i).map(RowTensor::bias).transpose();
    let x = |i: usize| Ok::<_, String>((value(i)?.int8()?, QuantizationParameters::of(tensor(i))?));
    let one = match operator.op {
        BuiltinOp::Quantize => functions::requantize(x(0)?, target),
        BuiltinOp::Conv2d => windows::convolution(operator, x(0)?, weights(1)?, bias(2)?, target, shape),
        BuiltinOp::DepthwiseConv2d => windows::depthwise(operator, x(0)?, weights(1)?, bias(2)?, target, shape),
        BuiltinOp::TransposeConv => windows::transposed(operator, x(2)?, weights(1)?, bias(3)?, target, shape),
        BuiltinOp::MaxPool2d => windows::max_pool(operator, x(0)?.0, target, shape),
        BuiltinOp::AveragePool2d => windows::average_pool(operator, x(0)?.0, target, shape),
        BuiltinOp::FullyConnected => products::fully_connected(x(0)?, weights(1)?, bias(2)?, target, shape),
        BuiltinOp::BatchMatmul => products::batch_matmul(operator, x(0)?, x(1)?, target, shape),
        BuiltinOp::Add | BuiltinOp::Sub => functions::sum(operator.op, x(0)?, x(1)?, target, shape),
        BuiltinOp::Mul => functions::product(x(0)?, x(1)?, target, shape),
        BuiltinOp::Mean => functions::mean(x(0)?, value(1)?.real()?, target, shape),
        BuiltinOp::Softmax => functions::softmax(operator, x(0)?, target),
        BuiltinOp::Relu | BuiltinOp::Relu6 => functions::rectified(operator.op, x(0)?, target),
        BuiltinOp::LeakyRelu => functions::leaky(operator.number("alpha"), x(0)?, target),
        _ => match super::kernels::unary(operator) {
            Some(of) => functions::tabulated(x(0)?, target, &*of),
            None => {
                let data: RunResult<Vec<&Elements<i8>>> = movement::data_inputs(operator).map(|i| value(i)?.int8()).collect();
                let zero = target.affine.zero.clamp(-128, 127) as i8;
                return Ok(movement::moved(model, operator, &data?, read, zero)?.into_iter().map(RowTensor::Int8).collect());
            }
        },
    };
    Ok(vec![RowTensor::Int8(one)])
}

fn with_activation(operator: &Operator, mut one: Elements) -> Elements {
    let limit = match operator.integer("fused_activation_function") {
        1 => f32::INFINITY,
        3 => 6.0,
        _ => return one,
    };
    one.numbers.iter_mut().for_each(|number| *number = number.max(0.0).min(limit));
    one
}

/// The scale of a channel of weights; one scale may serve all.
fn scale_of(weights: &TfliteTensor, channel: usize) -> f64 {
    let scales = weights.quantization.as_ref().map_or(&[][..], |quantization| &quantization.scales);
    f64::from(scales.get(channel).or(scales.first()).copied().unwrap_or(1.0))
}

/// The factors from sums of products to the scale of the result, per channel.
fn multipliers(x: QuantizationParameters, weights: &TfliteTensor, channels: usize, target: Target) -> Vec<Multiplier> {
    let factor = |channel: usize| f64::from(x.scale) * scale_of(weights, channel) / f64::from(target.affine.scale);
    (0..channels).map(|channel| Multiplier::of(factor(channel))).collect()
}
