//! TFLite models as plain data: tensors, operators, quantization. Constants are streamed when they are written, and
//! read later, piece by piece.
//!
//! ```
//! use plimsoll_formats::source::Region;
//! use plimsoll_formats::tensor::{DType, Tensor};
//! use plimsoll_formats::tflite::{BuiltinOp, Contents, Operator, TfliteModel, TfliteTensor, write};
//!
//! let mut model = TfliteModel::default();
//! model.tensors = vec![TfliteTensor::computed("x", DType::F32, vec![1, 2]), TfliteTensor::computed("y", DType::F32, vec![1, 2])];
//! model.operators = vec![Operator { inputs: vec![0], outputs: vec![1], ..Operator::new(BuiltinOp::Tanh, 1) }];
//! (model.inputs, model.outputs) = (vec![0], vec![1]);
//! let mut file = Vec::new();
//! write(&model, &mut file, |tensor, _| panic!("{} is no streamed tensor", tensor.name))?;
//! let read = TfliteModel::open(Region::bytes(file))?;
//! assert_eq!(read.operators, model.operators);
//! # Ok::<(), plimsoll_formats::FormatError>(())
//! ```

mod read;
mod schema;
mod write;

use crate::tensor::{DType, Tensor};
pub use schema::{BuiltinOp, FusedActivation, OptionValue, WindowPadding};
use std::collections::BTreeMap;
pub use write::write;

/// A model with one graph.
#[derive(Clone, Debug, Default)]
pub struct TfliteModel {
    /// What it is.
    pub description: String,
    /// All tensors of the graph; operators name them by index.
    pub tensors: Vec<TfliteTensor>,
    /// The operators in the order in which they run.
    pub operators: Vec<Operator>,
    /// The tensors that are inputs.
    pub inputs: Vec<i32>,
    /// The tensors that are outputs.
    pub outputs: Vec<i32>,
    /// Names of the inputs and outputs in the signature `serving_default`, in their order; without names there is no
    /// signature.
    pub signature: Option<(Vec<String>, Vec<String>)>,
    /// Free bytes by name.
    pub metadata: BTreeMap<String, Vec<u8>>,
    /// Bytes of the file that were read as metadata.
    pub metadata_bytes: u64,
}

/// A tensor of a graph.
#[derive(Clone, Debug)]
pub struct TfliteTensor {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its dimensions; those that the signature leaves open are 1.
    pub shape: Vec<i32>,
    /// Its dimensions with -1 where they are open; empty if none is.
    pub signature: Vec<i32>,
    /// How integers stand for real numbers.
    pub quantization: Option<Quantization>,
    /// Whether it keeps its elements from one run to the next: the state of a recurrent layer.
    pub variable: bool,
    /// Its elements.
    pub contents: Contents,
}

/// Where the elements of a tensor come from.
#[derive(Clone, Debug)]
pub enum Contents {
    /// An operator or the caller computes them.
    Computed,
    /// A constant.
    Constant(Tensor),
    /// A constant whose bytes are handed over when the model is written.
    Streamed,
}

/// Real numbers as integers: `real = scale · (integer - zero_point)`, per tensor or along one axis.
#[derive(Clone, Debug, PartialEq)]
pub struct Quantization {
    /// One scale, or one for each element of the axis.
    pub scales: Vec<f32>,
    /// As many zero points.
    pub zero_points: Vec<i64>,
    /// The axis of the scales.
    pub axis: i32,
}

impl Quantization {
    /// One scale and zero point for a whole tensor.
    pub fn per_tensor(scale: f32, zero_point: i64) -> Quantization {
        Quantization { scales: vec![scale], zero_points: vec![zero_point], axis: 0 }
    }
}

/// An operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Operator {
    /// Which one.
    pub op: BuiltinOp,
    /// Its version: the features that a runtime must know.
    pub version: i32,
    /// Indices of its inputs; -1 is an optional input that is not given.
    pub inputs: Vec<i32>,
    /// Indices of its outputs.
    pub outputs: Vec<i32>,
    /// Tensors with the ranges inside of a quantized recurrent operator.
    pub intermediates: Vec<i32>,
    /// Its options by name; those that are missing have the default of the schema.
    pub options: BTreeMap<&'static str, OptionValue>,
}

impl Operator {
    /// An operator without inputs, outputs and options.
    pub fn new(op: BuiltinOp, version: i32) -> Operator {
        Operator { op, version, inputs: Vec::new(), outputs: Vec::new(), intermediates: Vec::new(), options: BTreeMap::new() }
    }

    /// An option that is an integer, an enumeration or a flag; its default if it is not there.
    pub fn integer(&self, name: &str) -> i32 {
        match self.options.get(name).cloned().or_else(|| self.op.default_of(name)) {
            Some(OptionValue::Int(value)) => value,
            Some(OptionValue::Byte(value)) => i32::from(value),
            _ => 0,
        }
    }

    /// An option that is a number.
    pub fn number(&self, name: &str) -> f32 {
        match self.options.get(name) {
            Some(OptionValue::Float(value)) => *value,
            _ => 0.0,
        }
    }
}

impl TfliteTensor {
    /// A tensor that is computed.
    pub fn computed(name: &str, dtype: DType, shape: Vec<i32>) -> TfliteTensor {
        TfliteTensor {
            name: name.to_string(),
            dtype,
            shape,
            signature: Vec::new(),
            quantization: None,
            variable: false,
            contents: Contents::Computed,
        }
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|dim| (*dim).max(0) as u64).fold(1, u64::saturating_mul)
    }

    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        self.elements().saturating_mul(self.dtype.size())
    }
}

/// The types of elements with their codes.
const TYPES: [(u8, DType); 13] = [
    (0, DType::F32),
    (1, DType::F16),
    (2, DType::I32),
    (3, DType::U8),
    (4, DType::I64),
    (6, DType::Bool),
    (7, DType::I16),
    (9, DType::I8),
    (10, DType::F64),
    (12, DType::U64),
    (15, DType::U32),
    (16, DType::U16),
    (18, DType::BF16),
];

/// The code of a type, as in the options of `CAST`.
pub fn type_code(dtype: DType) -> u8 {
    TYPES.iter().find(|(_, known)| *known == dtype).expect("all types have a code").0
}

/// The type of a code.
pub fn type_of(code: u8) -> Option<DType> {
    TYPES.iter().find(|(known, _)| *known == code).map(|(_, dtype)| *dtype)
}

#[cfg(test)]
mod tests;
