//! Operator versions: the same numbers that TensorFlow's converter writes, so that runtimes refuse what they do not
//! know.

use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Operator, TfliteModel};
use std::collections::HashMap;

/// Sets the version of every operator. All operators of one kind have the highest version that one of them needs, as in
/// files of TensorFlow's converter.
pub(crate) fn set_versions(model: &mut TfliteModel) {
    let mut highest: HashMap<BuiltinOp, i32> = HashMap::new();
    for operator in &model.operators {
        let version = highest.entry(operator.op).or_insert(1);
        *version = (*version).max(version_of(operator, model));
    }
    model.operators.iter_mut().for_each(|operator| operator.version = highest[&operator.op]);
}

fn version_of(operator: &Operator, model: &TfliteModel) -> i32 {
    let dtype = |i: usize| operator.inputs.get(i).filter(|tensor| **tensor >= 0).map(|tensor| model.tensors[*tensor as usize].dtype);
    let int8 = dtype(0) == Some(DType::I8);
    let weights = dtype(1) == Some(DType::I8);
    let pick = |quantized: bool, version: i32| if quantized { version } else { 1 };
    match operator.op {
        BuiltinOp::Conv2d => match (int8, weights) {
            (true, _) => 3,
            (false, true) => 5,
            _ if is_grouped(operator, model) => 6,
            _ => 1,
        },
        BuiltinOp::DepthwiseConv2d => match (int8, weights) {
            (true, _) => 3,
            (false, true) => 6,
            _ if operator.integer("dilation_w_factor").max(operator.integer("dilation_h_factor")) > 1 => 2,
            _ => 1,
        },
        BuiltinOp::FullyConnected => match (int8, weights) {
            (false, true) => 12,
            _ if operator.integer("keep_num_dims") != 0 => 5,
            (true, _) => 4,
            _ => 1,
        },
        BuiltinOp::TransposeConv => {
            let bias = operator.inputs.len() == 4;
            if bias { 3 } else { pick(weights, 2) }
        }
        BuiltinOp::UnidirectionalSequenceLstm => pick(weights && !int8, 3),
        BuiltinOp::BatchMatmul => pick(int8, 2),
        BuiltinOp::Dequantize => match dtype(0) {
            Some(DType::F16) => 3,
            _ => 2,
        },
        BuiltinOp::Gather => pick(int8, 2),
        BuiltinOp::BroadcastTo => 2,
        BuiltinOp::ResizeNearestNeighbor | BuiltinOp::ResizeBilinear => {
            if operator.integer("half_pixel_centers") != 0 {
                3
            } else {
                pick(int8, 2)
            }
        }
        BuiltinOp::Add
        | BuiltinOp::Sub
        | BuiltinOp::Mul
        | BuiltinOp::AveragePool2d
        | BuiltinOp::MaxPool2d
        | BuiltinOp::Concatenation
        | BuiltinOp::Softmax
        | BuiltinOp::Logistic
        | BuiltinOp::Tanh
        | BuiltinOp::Pad
        | BuiltinOp::PadV2
        | BuiltinOp::Mean
        | BuiltinOp::Transpose
        | BuiltinOp::StridedSlice
        | BuiltinOp::Gelu
        | BuiltinOp::Maximum
        | BuiltinOp::Minimum
        | BuiltinOp::Pack
        | BuiltinOp::Unpack
        | BuiltinOp::Relu
        | BuiltinOp::Relu6
        | BuiltinOp::LeakyRelu
        | BuiltinOp::SquaredDifference
        | BuiltinOp::Rsqrt => pick(int8, 2),
        BuiltinOp::Split => pick(dtype(1) == Some(DType::I8), 2),
        _ => 1,
    }
}

/// Whether a convolution has fewer input channels per filter than the image has.
fn is_grouped(operator: &Operator, model: &TfliteModel) -> bool {
    let channels = |i: usize| model.tensors[operator.inputs[i] as usize].shape.last().copied();
    channels(0) != channels(1)
}
