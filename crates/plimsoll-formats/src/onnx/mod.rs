//! ONNX models as plain data: graph, nodes, attributes, initializers. Tensors are read later, piece by piece; those in
//! other files only from the model's own folder.

mod read;
mod write;

use crate::tensor::{DType, Tensor};
use std::collections::BTreeMap;
pub use write::{WriteOptions, WrittenTensor, external_file, write};

/// A model: its graph, and the operator sets that the nodes mean.
#[derive(Debug, Default)]
pub struct OnnxModel {
    /// The version of the format.
    pub ir_version: i64,
    /// The program that wrote it.
    pub producer: String,
    /// Versions of operator sets by domain; ONNX' own domain is the empty one.
    pub opsets: BTreeMap<String, i64>,
    /// Free text by key.
    pub metadata: BTreeMap<String, String>,
    /// The graph.
    pub graph: Graph,
    /// Functions that the model defines itself, by name.
    pub functions: Vec<String>,
    /// Bytes of the file that were read as metadata: nodes, names, attributes, and tensors that are not stored as
    /// bytes.
    pub metadata_bytes: u64,
}

/// The graph of a model.
#[derive(Debug, Default)]
pub struct Graph {
    /// Its name.
    pub name: String,
    /// The nodes in topological order.
    pub nodes: Vec<Node>,
    /// Weights and constants by name.
    pub initializers: BTreeMap<String, Tensor>,
    /// Inputs; some writers list the initializers here too.
    pub inputs: Vec<ValueInfo>,
    /// Outputs.
    pub outputs: Vec<ValueInfo>,
}

/// A node.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Its name, often empty.
    pub name: String,
    /// The operator, such as `Conv`.
    pub op: String,
    /// The domain of the operator.
    pub domain: String,
    /// Names of its inputs; an empty one is an optional input that is not given.
    pub inputs: Vec<String>,
    /// Names of its outputs.
    pub outputs: Vec<String>,
    /// Its attributes by name.
    pub attributes: BTreeMap<String, Attribute>,
}

/// The value of an attribute.
#[derive(Clone, Debug)]
pub enum Attribute {
    /// A number.
    Float(f32),
    /// An integer.
    Int(i64),
    /// Text.
    Text(String),
    /// A tensor.
    Tensor(Tensor),
    /// Numbers.
    Floats(Vec<f32>),
    /// Integers.
    Ints(Vec<i64>),
    /// Strings.
    Strings(Vec<String>),
    /// Something that only control flow, sequences and sparse tensors have; not kept.
    Other,
}

/// An input or output of a graph.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ValueInfo {
    /// Its name.
    pub name: String,
    /// The type of its elements; none for sequences, strings and others that are not tensors of numbers.
    pub dtype: Option<DType>,
    /// Its dimensions; none if the rank is unknown.
    pub shape: Option<Vec<Dim>>,
}

/// A dimension.
#[derive(Clone, Debug, PartialEq)]
pub enum Dim {
    /// A known size.
    Fixed(i64),
    /// A symbolic one, such as `batch`; an empty name is unknown.
    Symbolic(String),
}

/// The types of numbers with their codes.
const TYPES: [(u64, DType); 13] = [
    (1, DType::F32),
    (2, DType::U8),
    (3, DType::I8),
    (4, DType::U16),
    (5, DType::I16),
    (6, DType::I32),
    (7, DType::I64),
    (9, DType::Bool),
    (10, DType::F16),
    (11, DType::F64),
    (12, DType::U32),
    (13, DType::U64),
    (16, DType::BF16),
];

/// The type of a code of ONNX, as in the attribute `to` of `Cast`.
pub fn dtype_of(code: i64) -> Option<DType> {
    TYPES.iter().find(|(known, _)| *known as i64 == code).map(|(_, dtype)| *dtype)
}

/// The code of a type.
pub fn code_of(dtype: DType) -> i64 {
    TYPES.iter().find(|(_, known)| *known == dtype).expect("all types have a code").0 as i64
}
