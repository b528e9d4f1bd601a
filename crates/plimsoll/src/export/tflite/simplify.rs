//! What TensorFlow's converter also does to a graph: activations become part of the operator before them, the bias part
//! of a transposed convolution, and products keep the dimensions of their input; what nothing reads is removed.

use crate::tflite::remove_dead;
use plimsoll_formats::tflite::{BuiltinOp, Contents, FusedActivation, OptionValue, TfliteModel};
use std::collections::HashMap;

pub(super) fn simplify(model: &mut TfliteModel) {
    remove_dead(model);
    keep_dimensions(model);
    add_biases(model);
    fuse_activations(model);
    remove_dead(model);
}

/// How often a tensor is read, outputs of the graph included.
fn readers(model: &TfliteModel) -> Vec<usize> {
    let mut readers = vec![0; model.tensors.len()];
    let read = model.operators.iter().flat_map(|operator| &operator.inputs).chain(&model.outputs);
    read.filter(|tensor| **tensor >= 0).for_each(|tensor| readers[*tensor as usize] += 1);
    readers
}

/// The operator that computes a tensor.
fn producers(model: &TfliteModel) -> HashMap<i32, usize> {
    model.operators.iter().enumerate().flat_map(|(i, operator)| operator.outputs.iter().map(move |tensor| (*tensor, i))).collect()
}

/// `FULLY_CONNECTED` between two reshapes that fold all but the last axis into rows.
fn keep_dimensions(model: &mut TfliteModel) {
    let (readers, producers) = (readers(model), producers(model));
    let constant = |model: &TfliteModel, tensor: i32| matches!(model.tensors[tensor as usize].contents, Contents::Constant(_));
    for i in 0..model.operators.len() {
        let after = &model.operators[i];
        if after.op != BuiltinOp::Reshape || !constant(model, after.inputs[1]) {
            continue;
        }
        let (middle, result) = (after.inputs[0], after.outputs[0]);
        let Some(product) = producers.get(&middle).copied().filter(|at| model.operators[*at].op == BuiltinOp::FullyConnected) else {
            continue;
        };
        let rows = model.operators[product].inputs[0];
        let Some(before) = producers.get(&rows).copied().filter(|at| model.operators[*at].op == BuiltinOp::Reshape) else { continue };
        let input = model.operators[before].inputs[0];
        let (from, to) = (&model.tensors[input as usize], &model.tensors[result as usize]);
        let same = from.shape.len() == to.shape.len()
            && from.shape.len() > 2
            && from.shape[..from.shape.len() - 1] == to.shape[..to.shape.len() - 1];
        let whole = model.tensors[rows as usize].shape.last() == from.shape.last()
            && model.tensors[middle as usize].shape.last() == to.shape.last();
        if !same || !whole || readers[middle as usize] != 1 {
            continue;
        }
        let product = &mut model.operators[product];
        (product.inputs[0], product.outputs[0]) = (input, result);
        product.options.insert("keep_num_dims", OptionValue::Byte(1));
        // The reshape now computes what nothing reads.
        model.operators[i].outputs[0] = middle;
        model.operators[i].inputs[0] = input;
    }
}

/// `TRANSPOSE_CONV` and the bias per channel that follows it.
fn add_biases(model: &mut TfliteModel) {
    let (readers, producers) = (readers(model), producers(model));
    for i in 0..model.operators.len() {
        let sum = &model.operators[i];
        if sum.op != BuiltinOp::Add {
            continue;
        }
        let (middle, bias, result) = (sum.inputs[0], sum.inputs[1], sum.outputs[0]);
        let Some(at) = producers.get(&middle).copied().filter(|at| model.operators[*at].op == BuiltinOp::TransposeConv) else { continue };
        let per_channel = matches!(model.tensors[bias as usize].contents, Contents::Streamed)
            && model.tensors[bias as usize].shape == model.tensors[middle as usize].shape[3..];
        if !per_channel || readers[middle as usize] != 1 || model.operators[at].inputs.len() != 3 {
            continue;
        }
        let convolution = &mut model.operators[at];
        convolution.inputs.push(bias);
        convolution.outputs[0] = result;
        model.operators[i].outputs[0] = middle;
        model.operators[i].inputs = vec![bias, bias];
    }
}

/// `RELU` and `RELU6` behind an operator that has an activation of its own.
fn fuse_activations(model: &mut TfliteModel) {
    let (readers, producers) = (readers(model), producers(model));
    for i in 0..model.operators.len() {
        let activation = match model.operators[i].op {
            BuiltinOp::Relu => FusedActivation::Relu,
            BuiltinOp::Relu6 => FusedActivation::Relu6,
            _ => continue,
        };
        let (middle, result) = (model.operators[i].inputs[0], model.operators[i].outputs[0]);
        let Some(at) = producers.get(&middle).copied() else { continue };
        let before = &mut model.operators[at];
        let has_one =
            matches!(
                before.op,
                BuiltinOp::Conv2d | BuiltinOp::DepthwiseConv2d | BuiltinOp::TransposeConv | BuiltinOp::FullyConnected | BuiltinOp::Add
            ) || matches!(before.op, BuiltinOp::Sub | BuiltinOp::Mul | BuiltinOp::Div | BuiltinOp::AveragePool2d | BuiltinOp::MaxPool2d);
        if !has_one || readers[middle as usize] != 1 || before.integer("fused_activation_function") != 0 || before.outputs != [middle] {
            continue;
        }
        before.options.insert("fused_activation_function", OptionValue::Byte(activation as u8));
        before.outputs[0] = result;
        model.operators[i].outputs[0] = middle;
        model.operators[i].inputs[0] = result;
    }
}
