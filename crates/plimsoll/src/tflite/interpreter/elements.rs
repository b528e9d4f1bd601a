//! What a model holds while it runs: real numbers, int8 with a scale, and biases in int32.

use super::RunResult;
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{Contents, Quantization, TfliteTensor};
use std::borrow::Cow;

/// The elements of a tensor while a model runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Elements<T = f32> {
    pub shape: Vec<usize>,
    pub numbers: Vec<T>,
}

/// A tensor while a model runs. Indices, shapes and truth values are real numbers too.
#[derive(Clone, Debug)]
pub(crate) enum RowTensor {
    Real(Elements),
    Int8(Elements<i8>),
    Bias(Elements<i32>),
}

impl RowTensor {
    pub fn real(&self) -> RunResult<&Elements> {
        match self {
            RowTensor::Real(elements) => Ok(elements),
            _ => Err("an input has integers where real numbers are expected".to_string()),
        }
    }

    pub fn int8(&self) -> RunResult<&Elements<i8>> {
        match self {
            RowTensor::Int8(elements) => Ok(elements),
            _ => Err("an input is not int8".to_string()),
        }
    }

    pub fn bias(&self) -> RunResult<&[i32]> {
        match self {
            RowTensor::Bias(elements) => Ok(&elements.numbers),
            _ => Err("a bias is not int32".to_string()),
        }
    }

    pub fn shape(&self) -> &[usize] {
        match self {
            RowTensor::Real(elements) => &elements.shape,
            RowTensor::Int8(elements) => &elements.shape,
            RowTensor::Bias(elements) => &elements.shape,
        }
    }

    /// The real numbers that it stands for.
    pub fn to_real(&self, tensor: &TfliteTensor) -> Cow<'_, [f32]> {
        match (self, &tensor.quantization) {
            (RowTensor::Real(elements), _) => Cow::Borrowed(&elements.numbers),
            (RowTensor::Int8(elements), Some(Quantization { scales, zero_points, .. })) => {
                let (scale, zero) = (scales[0], zero_points[0] as i32);
                Cow::Owned(elements.numbers.iter().map(|integer| scale * (i32::from(*integer) - zero) as f32).collect())
            }
            (RowTensor::Int8(elements), None) => Cow::Owned(elements.numbers.iter().map(|integer| f32::from(*integer)).collect()),
            (RowTensor::Bias(elements), _) => Cow::Owned(elements.numbers.iter().map(|integer| *integer as f32).collect()),
        }
    }
}

/// Whether a tensor is held as int8.
pub(super) fn is_int8(tensor: &TfliteTensor) -> bool {
    tensor.dtype == DType::I8 && tensor.quantization.is_some()
}

/// The bytes of a tensor while a model runs.
pub(super) fn held_bytes(tensor: &TfliteTensor) -> u64 {
    if is_int8(tensor) { tensor.elements() } else { 4 * tensor.elements() }
}

pub(super) fn dims(tensor: &TfliteTensor) -> Vec<usize> {
    tensor.shape.iter().map(|dim| *dim as usize).collect()
}

/// The most elements of a constant.
const MOST: u64 = 1 << 31;

/// A constant as it is held: int8 and biases as integers, everything else as real numbers.
pub(super) fn stored(tensor: &TfliteTensor) -> RunResult<RowTensor> {
    let Contents::Constant(found) = &tensor.contents else { return Err(format!("`{}` is no constant", tensor.name)) };
    let about = |error| format!("`{}`: {error}", tensor.name);
    let is_bias = tensor.dtype == DType::I32 && tensor.quantization.is_some();
    if found.elements() > MOST {
        return Err(format!("`{}` is too large", tensor.name));
    }
    if !is_int8(tensor) && !is_bias {
        return constant(tensor).map(RowTensor::Real);
    }
    let mut bytes = vec![0; (found.elements() * tensor.dtype.size()) as usize];
    found.reader().bytes(0, &mut bytes).map_err(about)?;
    let shape = dims(tensor);
    Ok(if is_bias {
        let integer = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().expect("four bytes"));
        RowTensor::Bias(Elements { shape, numbers: bytes.chunks_exact(4).map(integer).collect() })
    } else {
        RowTensor::Int8(Elements { shape, numbers: bytes.into_iter().map(|byte| byte as i8).collect() })
    })
}

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

/// Real numbers as a tensor holds them: rounded to its integers, if it has some.
pub(super) fn held(tensor: &TfliteTensor, numbers: Vec<f32>) -> RowTensor {
    let shape = dims(tensor);
    match (&tensor.quantization, tensor.dtype) {
        (Some(quantization), DType::I8) => {
            let (scale, zero) = (quantization.scales[0], quantization.zero_points[0] as f32);
            let integer = |number: f32| ((number / scale).round() + zero).clamp(-128.0, 127.0) as i8;
            RowTensor::Int8(Elements { shape, numbers: numbers.into_iter().map(integer).collect() })
        }
        _ => RowTensor::Real(Elements { shape, numbers }),
    }
}
