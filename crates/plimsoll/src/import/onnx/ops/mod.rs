//! The operators that are imported: a table of names and mappings.

mod attention;
mod conv;
mod elementwise;
mod index;
mod losses;
mod matrix;
mod movement;
mod norm;
mod pool;
mod recurrent;
mod reduce;
mod resize;
mod scatter;
mod shapes;
mod trigonometry;

use super::OnnxImporter;
use super::call::NodeCall;
use super::values::{Found, Value};
pub(super) use attention::attended;
use plimsoll_formats::onnx::{Node, OnnxModel};

/// Adds a node to the model and gives its outputs.
pub(super) type Mapping = fn(&mut OnnxImporter, &NodeCall<'_>) -> Found<Vec<Value>>;

/// The operators of a file, by group.
const GROUPS: [&[(&str, Mapping)]; 15] = [
    elementwise::OPERATORS,
    trigonometry::OPERATORS,
    reduce::OPERATORS,
    matrix::OPERATORS,
    conv::OPERATORS,
    pool::OPERATORS,
    norm::OPERATORS,
    recurrent::OPERATORS,
    attention::OPERATORS,
    shapes::OPERATORS,
    movement::OPERATORS,
    index::OPERATORS,
    scatter::OPERATORS,
    resize::OPERATORS,
    losses::OPERATORS,
];

/// The mapping of a node's operator.
pub(super) fn find(node: &Node) -> Option<Mapping> {
    if !node.domain.is_empty() {
        return None;
    }
    GROUPS.iter().flat_map(|group| group.iter()).find(|(name, _)| *name == node.op).map(|(_, mapping)| *mapping)
}

/// All operators by name, sorted.
#[cfg(test)]
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = GROUPS.iter().flat_map(|group| group.iter().map(|(name, _)| *name)).collect();
    names.sort_unstable();
    names
}

/// Why an operator is not imported.
pub(super) fn why_not(node: &Node, saved: &OnnxModel) -> String {
    let op = node.op.as_str();
    if saved.functions.contains(&node.op) {
        return "functions that a model defines itself are not imported; export it with them inlined".to_string();
    }
    if !node.domain.is_empty() {
        return format!("operators of the domain `{}` are not imported", node.domain);
    }
    match op {
        "If" | "Loop" | "Scan" => "control flow is not imported",
        "SequenceAt" | "SequenceConstruct" | "SequenceEmpty" | "SequenceErase" | "SequenceInsert" | "SequenceLength" | "SequenceMap"
        | "SplitToSequence" | "ConcatFromSequence" | "Optional" | "OptionalGetElement" | "OptionalHasElement" => {
            "sequences and optionals are not imported"
        }
        "StringConcat" | "StringNormalizer" | "StringSplit" | "RegexFullMatch" | "TfIdfVectorizer" => "strings are not imported",
        "NonZero" | "Unique" | "NonMaxSuppression" => "the shape of its output depends on the data",
        "QuantizeLinear"
        | "DequantizeLinear"
        | "DynamicQuantizeLinear"
        | "QLinearConv"
        | "QLinearMatMul"
        | "ConvInteger"
        | "MatMulInteger" => "quantized arithmetic is not imported",
        "RandomNormal" | "RandomNormalLike" | "RandomUniform" | "RandomUniformLike" | "Bernoulli" | "Multinomial" => {
            "random numbers are not imported"
        }
        _ => "there is no such operator here",
    }
    .to_string()
}

/// Whether results of an operator on constants are computed at import. The others give constants themselves, or are not
/// deterministic.
pub(super) fn is_folded(op: &str) -> bool {
    !matches!(op, "Shape" | "Size" | "ConstantOfShape" | "Dropout" | "Range" | "EyeLike")
}
