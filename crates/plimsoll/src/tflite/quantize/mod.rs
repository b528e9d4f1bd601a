//! Models with smaller numbers: from a TFLite model in single precision to one in half precision, with weights in int8,
//! or in int8 throughout. Weights are converted while they are written; one of them is in memory at a time.

mod int8;
mod parameters;

pub(crate) use int8::{Int8Options, complete_ranges, to_int8};
pub(crate) use parameters::Range;

use super::interpreter::constant;
use parameters::{half_bits, symmetric};
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{self, BuiltinOp, Contents, Operator, OptionValue, Quantization, TfliteModel, TfliteTensor};
use std::collections::HashMap;
use std::io::{self, Write};

/// A model whose constants are converted while it is written.
pub(crate) struct SmallModel {
    pub model: TfliteModel,
    /// By the name of the converted tensor: the tensor in single precision.
    sources: HashMap<String, TfliteTensor>,
    /// Layers whose results stayed in single precision, and why.
    pub float: Vec<(String, String)>,
}

/// Constants below this many elements stay as they are, as in TensorFlow's converter: they save little and lose the
/// same.
const SMALLEST: u64 = 1024;

impl SmallModel {
    fn new(model: &TfliteModel) -> SmallModel {
        let model = TfliteModel { tensors: model.tensors.clone(), operators: Vec::new(), ..model.clone() };
        SmallModel { model, sources: HashMap::new(), float: Vec::new() }
    }

    /// Writes the model.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        tflite::write(&self.model, out, |tensor, out| {
            let source = constant(&self.sources[&tensor.name]).map_err(io::Error::other)?;
            write_as(tensor, &source.numbers, out)
        })
    }

    /// Adds a tensor that is a constant in another type.
    fn converted(&mut self, source: usize, name: String, dtype: DType, quantization: Option<Quantization>) -> i32 {
        let from = self.model.tensors[source].clone();
        let tensor = TfliteTensor { name: name.clone(), dtype, quantization, contents: Contents::Streamed, ..from.clone() };
        self.model.tensors.push(tensor);
        self.sources.insert(name, from);
        self.model.tensors.len() as i32 - 1
    }

    /// Adds a tensor that is computed, of the shape of another.
    fn computed(&mut self, like: usize, suffix: &str, dtype: DType, quantization: Option<Quantization>) -> i32 {
        let from = &self.model.tensors[like];
        let tensor =
            TfliteTensor { name: format!("{}{suffix}", from.name), dtype, quantization, contents: Contents::Computed, ..from.clone() };
        self.model.tensors.push(tensor);
        self.model.tensors.len() as i32 - 1
    }

    /// Adds an operator of one tensor and one result.
    fn change(&mut self, op: BuiltinOp, from: i32, to: i32) {
        self.model.operators.push(Operator { inputs: vec![from], outputs: vec![to], ..Operator::new(op, 1) });
    }

    /// The eight kernels of an LSTM in int8, one scale each: all of them, or the operator stays as it is.
    fn recurrent(&mut self, model: &TfliteModel, operator: &mut Operator, name: &str, keep: bool) -> Result<(), String> {
        let kernels = operator.inputs[1..9].to_vec();
        let large = kernels.iter().all(|kernel| *kernel >= 0 && model.tensors[*kernel as usize].elements() >= SMALLEST);
        if keep || !large {
            let why = if keep { "kept by a pattern" } else { "a kernel with fewer than 1024 weights" };
            self.float.push((name.to_string(), why.to_string()));
            return Ok(());
        }
        for (at, kernel) in kernels.into_iter().enumerate() {
            let tensor = &model.tensors[kernel as usize];
            let name = format!("{}/int8", tensor.name);
            operator.inputs[1 + at] = self.converted(kernel as usize, name, DType::I8, Some(symmetric(tensor, None)?));
        }
        operator.options.insert("asymmetric_quantize_inputs", OptionValue::Byte(1));
        Ok(())
    }

    fn finish(mut self) -> SmallModel {
        super::remove_dead(&mut self.model);
        super::set_versions(&mut self.model);
        self
    }
}

/// Writes numbers as the integers or halves of a tensor.
fn write_as(tensor: &TfliteTensor, numbers: &[f32], out: &mut dyn Write) -> io::Result<()> {
    const PIECE: usize = 4 << 10;
    let inner = tensor.quantization.as_ref().map_or(1, |quantization| {
        let axis = quantization.axis as usize;
        if quantization.scales.len() == 1 {
            numbers.len().max(1)
        } else {
            tensor.shape[axis + 1..].iter().map(|dim| *dim as usize).product()
        }
    });
    let mut bytes = Vec::with_capacity(4 * PIECE);
    for (piece, part) in numbers.chunks(PIECE).enumerate() {
        bytes.clear();
        for (i, number) in part.iter().enumerate() {
            let integer = |low: f64, high: f64| {
                let quantization = tensor.quantization.as_ref().expect("integers have scales");
                let at = ((piece * PIECE + i) / inner) % quantization.scales.len();
                let scaled = (f64::from(*number) / f64::from(quantization.scales[at])).round() + quantization.zero_points[at] as f64;
                scaled.clamp(low, high)
            };
            match tensor.dtype {
                DType::F16 => bytes.extend(half_bits(*number).to_le_bytes()),
                // Weights are symmetric, so that -128 does not occur; constants of activations have all integers.
                DType::I8 if inner == numbers.len() => bytes.extend((integer(-128.0, 127.0) as i8).to_le_bytes()),
                DType::I8 => bytes.extend((integer(-127.0, 127.0) as i8).to_le_bytes()),
                DType::I32 => bytes.extend((integer(f64::from(i32::MIN), f64::from(i32::MAX)) as i32).to_le_bytes()),
                _ => bytes.extend(number.to_le_bytes()),
            }
        }
        out.write_all(&bytes)?;
    }
    Ok(())
}

fn is_float_constant(tensor: &TfliteTensor) -> bool {
    tensor.dtype == DType::F32 && matches!(tensor.contents, Contents::Constant(_))
}

/// Weights in half precision, each with a `DEQUANTIZE` before its readers.
pub(crate) fn to_half(model: &TfliteModel) -> SmallModel {
    let mut small = SmallModel::new(model);
    let mut moved: HashMap<i32, i32> = HashMap::new();
    for index in 0..model.tensors.len() {
        let tensor = &model.tensors[index];
        if is_float_constant(tensor) && !tensor.shape.is_empty() {
            let half = small.converted(index, format!("{}/f16", tensor.name), DType::F16, None);
            let single = small.computed(index, "/f32", DType::F32, None);
            small.change(BuiltinOp::Dequantize, half, single);
            moved.insert(index as i32, single);
        }
    }
    for operator in &model.operators {
        let mut operator = operator.clone();
        operator.inputs.iter_mut().for_each(|input| *input = moved.get(input).copied().unwrap_or(*input));
        small.model.operators.push(operator);
    }
    small.finish()
}

/// Where the weights of an operator are, and the axis of their channels; none is one scale for all.
pub(super) fn weight_of(op: BuiltinOp) -> Option<(usize, i32)> {
    match op {
        BuiltinOp::Conv2d | BuiltinOp::FullyConnected | BuiltinOp::TransposeConv => Some((1, 0)),
        BuiltinOp::DepthwiseConv2d => Some((1, 3)),
        _ => None,
    }
}

/// Weights of convolutions and products in int8, one scale per channel; everything else in single precision.
pub(crate) fn to_dynamic(model: &TfliteModel, keep: &dyn Fn(&str) -> bool) -> Result<SmallModel, String> {
    let mut small = SmallModel::new(model);
    let mut known: HashMap<i32, i32> = HashMap::new();
    let mut tables: HashMap<i32, i32> = HashMap::new();
    let is_table = |tensor: i32| model.operators.iter().any(|operator| operator.op == BuiltinOp::Gather && operator.inputs[0] == tensor);
    for operator in &model.operators {
        let mut operator = operator.clone();
        let name = model.tensors[operator.outputs[0] as usize].name.clone();
        if operator.op == BuiltinOp::UnidirectionalSequenceLstm {
            small.recurrent(model, &mut operator, &name, keep(&name))?;
            small.model.operators.push(operator);
            continue;
        }
        let weight = match (weight_of(operator.op), operator.op) {
            (Some(found), _) => Some(found),
            (None, BuiltinOp::Gather) => Some((0, 0)),
            _ => None,
        };
        let Some((at, axis)) = weight else {
            small.model.operators.push(operator);
            continue;
        };
        let index = operator.inputs[at];
        let tensor = &model.tensors[index as usize];
        if !is_float_constant(tensor) || tensor.elements() < SMALLEST || keep(&name) {
            let why = if keep(&name) { "kept by a pattern" } else { "fewer than 1024 weights" };
            small.float.push((name, why.to_string()));
            small.model.operators.push(operator);
            continue;
        }
        // A table has one scale, also where a product shares it.
        let whole = is_table(index);
        let store = if whole { &mut tables } else { &mut known };
        let quantized = match store.get(&index) {
            Some(found) => *found,
            None => {
                let quantization = symmetric(tensor, (!whole).then_some(axis))?;
                let new = small.converted(index as usize, format!("{}/int8", tensor.name), DType::I8, Some(quantization));
                store.insert(index, new);
                new
            }
        };
        operator.inputs[at] = quantized;
        match operator.op {
            BuiltinOp::Gather => {
                let result = operator.outputs[0];
                let quantization = small.model.tensors[quantized as usize].quantization.clone();
                let rows = small.computed(result as usize, "/int8", DType::I8, quantization);
                operator.outputs[0] = rows;
                small.model.operators.push(operator);
                small.change(BuiltinOp::Dequantize, rows, result);
                continue;
            }
            BuiltinOp::FullyConnected => {
                operator.options.insert("asymmetric_quantize_inputs", OptionValue::Byte(1));
            }
            _ => {}
        }
        small.model.operators.push(operator);
    }
    Ok(small.finish())
}
