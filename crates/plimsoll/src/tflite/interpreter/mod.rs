//! Runs TFLite models row by row, in single precision: what calibration observes, and the comparison of a file with its network.
//!
//! A quantized tensor is rounded to its integers after the operator that computes it, so that a model in int8 loses what it loses on a
//! device. Constants are read when their operator runs; results are dropped behind their last reader.

mod kernels;
mod movement;
mod windows;

use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Contents, Operator, Quantization, TfliteModel, TfliteTensor};

/// The elements of a tensor while a model runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elements {
    pub shape: Vec<usize>,
    pub numbers: Vec<f32>,
}

/// What happened instead of a result.
pub(crate) type RunResult<T> = std::result::Result<T, String>;

/// A model that is run.
pub(crate) struct Interpreter<'a> {
    model: &'a TfliteModel,
    /// The operator that reads a tensor last; none for outputs.
    last: Vec<Option<usize>>,
}

impl<'a> Interpreter<'a> {
    pub fn new(model: &'a TfliteModel) -> Interpreter<'a> {
        let mut last = vec![Some(0); model.tensors.len()];
        for (i, operator) in model.operators.iter().enumerate() {
            operator.inputs.iter().filter(|tensor| **tensor >= 0).for_each(|tensor| last[*tensor as usize] = Some(i));
            operator.outputs.iter().for_each(|tensor| last[*tensor as usize] = Some(i));
        }
        model.outputs.iter().for_each(|tensor| last[*tensor as usize] = None);
        Interpreter { model, last }
    }

    /// The most bytes that a run holds at once: live results, and the constants of one operator.
    pub fn bytes(&self) -> u64 {
        let size = |tensor: &TfliteTensor| 4 * tensor.elements();
        let mut live: u64 = self.model.inputs.iter().map(|input| size(&self.model.tensors[*input as usize])).sum();
        let mut most = live;
        for (i, operator) in self.model.operators.iter().enumerate() {
            let inputs = operator.inputs.iter().filter(|tensor| **tensor >= 0).map(|tensor| &self.model.tensors[*tensor as usize]);
            let constants: u64 = inputs.filter(|tensor| matches!(tensor.contents, Contents::Constant(_))).map(size).sum();
            live += operator.outputs.iter().map(|tensor| size(&self.model.tensors[*tensor as usize])).sum::<u64>();
            // Constants are read as bytes and held as numbers.
            most = most.max(live + 2 * constants);
            live -= self.dropped(operator, i).map(|tensor| size(&self.model.tensors[tensor])).sum::<u64>();
        }
        most
    }

    /// Results that nothing reads behind this operator.
    fn dropped(&self, operator: &'a Operator, i: usize) -> impl Iterator<Item = usize> + '_ {
        let mut named: Vec<usize> =
            operator.inputs.iter().chain(&operator.outputs).filter(|tensor| **tensor >= 0).map(|tensor| *tensor as usize).collect();
        named.sort_unstable();
        named.dedup();
        let computed =
            |tensor: &usize| matches!(self.model.tensors[*tensor].contents, Contents::Computed) && !self.model.tensors[*tensor].variable;
        named.into_iter().filter(computed).filter(move |tensor| self.last[*tensor] == Some(i))
    }

    /// Runs one row. `observe` gets every tensor that is computed, inputs included.
    pub fn run(&self, inputs: &[Vec<f32>], mut observe: impl FnMut(usize, &[f32])) -> RunResult<Vec<Elements>> {
        let model = self.model;
        let mut results: Vec<Option<Elements>> = vec![None; model.tensors.len()];
        for (numbers, index) in inputs.iter().zip(&model.inputs) {
            let tensor = &model.tensors[*index as usize];
            if numbers.len() as u64 != tensor.elements() {
                return Err(format!("`{}` has {} numbers, but a row has {}", tensor.name, tensor.elements(), numbers.len()));
            }
            let mut elements = Elements { shape: dims(tensor), numbers: numbers.clone() };
            round(tensor, &mut elements.numbers);
            observe(*index as usize, &elements.numbers);
            results[*index as usize] = Some(elements);
        }
        for (i, operator) in model.operators.iter().enumerate() {
            let mut read = Vec::with_capacity(operator.inputs.len());
            for input in &operator.inputs {
                read.push(match usize::try_from(*input).ok() {
                    None => None,
                    Some(index) => match (&model.tensors[index].contents, &mut results[index]) {
                        (_, Some(elements)) => Some(std::mem::take(elements)),
                        (Contents::Constant(_), None) => Some(constant(&model.tensors[index])?),
                        (_, None) if model.tensors[index].variable => None,
                        (_, None) => return Err(format!("`{}` is read before it is computed", model.tensors[index].name)),
                    },
                });
            }
            // An operator that reads a tensor twice took it the first time.
            for at in 0..read.len() {
                if let Some(first) = operator.inputs[..at].iter().position(|input| *input >= 0 && *input == operator.inputs[at]) {
                    read[at] = read[first].clone();
                }
            }
            let about = |what: String| format!("{}: {what}", operator.op.name());
            let outputs = compute(model, operator, &read).map_err(about)?;
            for (input, elements) in operator.inputs.iter().zip(read) {
                if let (Ok(index), Some(elements)) = (usize::try_from(*input), elements)
                    && matches!(model.tensors[index].contents, Contents::Computed)
                {
                    results[index] = Some(elements);
                }
            }
            for (index, mut elements) in operator.outputs.iter().zip(outputs) {
                let tensor = &model.tensors[*index as usize];
                round(tensor, &mut elements.numbers);
                observe(*index as usize, &elements.numbers);
                results[*index as usize] = Some(elements);
            }
            for tensor in self.dropped(operator, i) {
                results[tensor] = None;
            }
        }
        model.outputs.iter().map(|index| results[*index as usize].clone().ok_or_else(|| "an output is not computed".to_string())).collect()
    }
}

fn dims(tensor: &TfliteTensor) -> Vec<usize> {
    tensor.shape.iter().map(|dim| *dim as usize).collect()
}

/// The most elements of a constant.
const MOST: u64 = 1 << 31;

/// The elements of a constant as real numbers.
pub(crate) fn constant(tensor: &TfliteTensor) -> RunResult<Elements> {
    let Contents::Constant(stored) = &tensor.contents else { return Err(format!("`{}` is no constant", tensor.name)) };
    if stored.elements() > MOST {
        return Err(format!("`{}` is too large", tensor.name));
    }
    let mut numbers = vec![0.0; stored.elements() as usize];
    stored.reader().f32s(0, &mut numbers).map_err(|error| format!("`{}`: {error}", tensor.name))?;
    if let (Some(quantization), true) = (&tensor.quantization, matches!(tensor.dtype, DType::I8 | DType::I32)) {
        dequantize(quantization, &tensor.shape, &mut numbers);
    }
    Ok(Elements { shape: dims(tensor), numbers })
}

fn dequantize(quantization: &Quantization, shape: &[i32], numbers: &mut [f32]) {
    let (scales, zeros) = (&quantization.scales, &quantization.zero_points);
    let axis = quantization.axis as usize;
    let inner: usize = if scales.len() == 1 { numbers.len() } else { shape[axis + 1..].iter().map(|dim| *dim as usize).product() };
    for (i, number) in numbers.iter_mut().enumerate() {
        let at = (i / inner.max(1)) % scales.len();
        *number = scales[at] * (*number - zeros[at] as f32);
    }
}

/// Rounds real numbers to those that the integers of a tensor can stand for.
fn round(tensor: &TfliteTensor, numbers: &mut [f32]) {
    let (DType::I8, Some(quantization)) = (tensor.dtype, &tensor.quantization) else { return };
    let (scale, zero) = (quantization.scales[0], quantization.zero_points[0] as f32);
    for number in numbers {
        *number = ((*number / scale).round() + zero).clamp(-128.0, 127.0);
        *number = scale * (*number - zero);
    }
}

fn compute(model: &TfliteModel, operator: &Operator, read: &[Option<Elements>]) -> RunResult<Vec<Elements>> {
    let input = |i: usize| read.get(i).and_then(Option::as_ref).ok_or_else(|| format!("input {i} is missing"));
    let output = &model.tensors[operator.outputs[0] as usize];
    let shape = dims(output);
    let mut one = match operator.op {
        BuiltinOp::Conv2d => windows::convolution(operator, input(0)?, input(1)?, read.get(2).and_then(Option::as_ref), shape),
        BuiltinOp::DepthwiseConv2d => windows::depthwise(operator, input(0)?, input(1)?, read.get(2).and_then(Option::as_ref), shape),
        BuiltinOp::TransposeConv => windows::transposed(operator, input(1)?, input(2)?, read.get(3).and_then(Option::as_ref), shape),
        BuiltinOp::MaxPool2d | BuiltinOp::AveragePool2d => windows::pool(operator, input(0)?, shape),
        BuiltinOp::FullyConnected => kernels::fully_connected(input(0)?, input(1)?, read.get(2).and_then(Option::as_ref), shape),
        BuiltinOp::BatchMatmul => kernels::batch_matmul(operator, input(0)?, input(1)?, shape),
        BuiltinOp::Softmax | BuiltinOp::LogSoftmax => kernels::softmax(input(0)?, operator.op == BuiltinOp::LogSoftmax),
        BuiltinOp::Mean | BuiltinOp::Sum | BuiltinOp::ReduceMax => kernels::reduce(operator.op, input(0)?, input(1)?, shape),
        BuiltinOp::ArgMax => kernels::arg_max(input(0)?, input(1)?, shape),
        BuiltinOp::UnidirectionalSequenceLstm => kernels::lstm(read, shape)?,
        BuiltinOp::Split | BuiltinOp::Unpack => return movement::parts(operator, read, model),
        BuiltinOp::SelectV2 => kernels::select(input(0)?, input(1)?, input(2)?, shape),
        BuiltinOp::Reshape | BuiltinOp::Dequantize | BuiltinOp::Quantize => Elements { shape, numbers: input(0)?.numbers.clone() },
        BuiltinOp::Cast => {
            let whole = |number: &f32| match output.dtype {
                DType::Bool => f32::from(u8::from(*number != 0.0)),
                DType::F32 => *number,
                _ => number.trunc(),
            };
            Elements { shape, numbers: input(0)?.numbers.iter().map(whole).collect() }
        }
        BuiltinOp::Shape => {
            let numbers: Vec<f32> = input(0)?.shape.iter().map(|dim| *dim as f32).collect();
            Elements { shape, numbers }
        }
        BuiltinOp::Transpose
        | BuiltinOp::Pad
        | BuiltinOp::PadV2
        | BuiltinOp::StridedSlice
        | BuiltinOp::BroadcastTo
        | BuiltinOp::ReverseV2
        | BuiltinOp::ResizeNearestNeighbor => movement::moved(operator, read, shape)?,
        BuiltinOp::Gather => movement::gather(input(0)?, input(1)?, shape)?,
        BuiltinOp::Concatenation | BuiltinOp::Pack => movement::concat(operator, read, shape)?,
        op => match (kernels::unary(operator), kernels::binary(op)) {
            (Some(of), _) => {
                let x = input(0)?;
                Elements { shape, numbers: x.numbers.iter().map(|x| of(*x)).collect() }
            }
            (None, Some(of)) => kernels::broadcast(input(0)?, input(1)?, shape, of),
            (None, None) => return Err("this operator is not run here".to_string()),
        },
    };
    if let Some(limit) = match operator.integer("fused_activation_function") {
        1 => Some(f32::INFINITY),
        3 => Some(6.0),
        _ => None,
    } {
        one.numbers.iter_mut().for_each(|number| *number = number.max(0.0).min(limit));
    }
    Ok(vec![one])
}
