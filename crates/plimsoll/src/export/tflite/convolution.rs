//! Convolutions with the batch normalization, bias and activation behind them, and pooling.

use super::builder::TensorIndex;
use super::{ExportProblem, Recipe, TfliteExporter, with_extent};
use plimsoll_core::expr::{Binary, Term};
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{Conv2d, Conv2dGradInput, Window};
use plimsoll_core::{Op, ValueId};
use plimsoll_formats::tflite::{BuiltinOp, OptionValue, WindowPadding};

/// Filters `[height, width, in, out]` as `[out, height, width, in]`.
const FILTER: [usize; 4] = [3, 0, 1, 2];

/// Filters of transposed convolutions, `[height, width, out, in]`, as `[out, height, width, in]`.
const TRANSPOSED: [usize; 4] = [2, 0, 1, 3];

impl<'a> TfliteExporter<'a> {
    pub(super) fn convolution(&mut self, node: &'a Node, op: &Conv2d) -> Result<(), ExportProblem> {
        let graph = self.builder.graph;
        let filter = graph.shape(node.inputs[1]).bind(1);
        let channels = graph.shape(node.inputs[0]).bind(1)[3];
        let Some(weight) = self.walk.weight_name(node.inputs[1]) else {
            return Err(ExportProblem::unsupported("a convolution whose filter is computed"));
        };
        let input = self.read(node.inputs[0]);
        let (input, padding) = self.padded(input, &op.window, None);
        let followed = self.walk.followed(node.outputs[0], filter[3])?;
        let depthwise = op.groups == channels && filter[2] == 1;
        // A depthwise filter [height, width, 1, out] has its elements in the order of [1, height, width, out].
        let (order, moved) = if depthwise {
            (vec![2, 0, 1, 3], vec![1, filter[0], filter[1], filter[3]])
        } else {
            (FILTER.to_vec(), FILTER.iter().map(|axis| filter[*axis]).collect())
        };
        let recipe = Recipe::Weight { name: weight.clone(), shape: filter.clone(), order, scale: followed.scale };
        let kernel = self.builder.weight(&weight, &moved, recipe);
        // The operator always has a bias.
        let bias = followed.offset.unwrap_or_else(|| vec![0.0; filter[3]]);
        let bias = self.builder.numbers(&format!("{}/bias", self.builder.scope), &[filter[3]], bias);
        let mut options = strides(&op.window, padding);
        options.push(("dilation_w_factor", OptionValue::Int(op.window.dilation.1 as i32)));
        options.push(("dilation_h_factor", OptionValue::Int(op.window.dilation.0 as i32)));
        let builtin = if depthwise {
            options.push(("depth_multiplier", OptionValue::Int((filter[3] / channels) as i32)));
            BuiltinOp::DepthwiseConv2d
        } else {
            BuiltinOp::Conv2d
        };
        let mut result = self.builder.op(builtin, &[input, kernel, bias], &options, graph.shape(node.outputs[0]).clone());
        if let Some(rest) = &followed.rest {
            result = self.expression_of(rest, result)?;
        }
        self.builder.define(followed.value, result);
        Ok(())
    }

    /// The gradient of a convolution with respect to its input is a transposed convolution.
    pub(super) fn transposed_convolution(&mut self, node: &Node, op: &Conv2dGradInput) -> Result<TensorIndex, ExportProblem> {
        let graph = self.builder.graph;
        let (filter, dy) = (node.inputs[0], node.inputs[1]);
        let Some(weight) = self.walk.weight_name(filter).filter(|_| op.groups == 1 && op.window.dilation == (1, 1)) else {
            return Err(ExportProblem::unsupported("a transposed convolution with groups, dilation or a computed filter"));
        };
        let shape = graph.shape(filter).bind(1);
        let moved: Vec<usize> = TRANSPOSED.iter().map(|axis| shape[*axis]).collect();
        let (from, to) = (graph.shape(dy).bind(1), op.input.bind(1));
        let w = &op.window;
        let whole = |axis: usize, size: usize, stride: usize| stride * (from[axis] - 1) + size == to[axis];
        let padding = if (w.pad_rows, w.pad_columns) == ((0, 0), (0, 0)) && whole(1, w.size.0, w.stride.0) && whole(2, w.size.1, w.stride.1)
        {
            WindowPadding::Valid
        } else if *w == Window::same(w.size, w.stride, w.dilation, (to[1], to[2])) {
            WindowPadding::Same
        } else {
            return Err(ExportProblem::unsupported("a transposed convolution whose padding is neither `same` nor `valid`"));
        };
        let input = self.read(dy);
        let recipe = Recipe::Weight { name: weight.clone(), shape, order: TRANSPOSED.to_vec(), scale: None };
        let kernel = self.builder.weight(&weight, &moved, recipe);
        let dims = self.builder.dimensions(op.input.dims());
        Ok(self.builder.op(BuiltinOp::TransposeConv, &[dims, kernel, input], &strides(w, padding), op.input.clone()))
    }

    pub(super) fn max_pool(&mut self, node: &Node, w: &Window) -> Result<TensorIndex, ExportProblem> {
        if self.walk.readers.contains_key(&node.outputs[1]) {
            return Err(ExportProblem::unsupported("the positions of the maxima of a pooling"));
        }
        let input = self.read(node.inputs[0]);
        // Zeros are no maximum where everything else is at least zero.
        let outside = if self.is_rectified(node.inputs[0]) { None } else { Some(f32::MIN) };
        let (input, padding) = self.padded(input, w, Some(outside));
        Ok(self.builder.op(BuiltinOp::MaxPool2d, &[input], &pooling(w, padding), self.builder.graph.shape(node.outputs[0]).clone()))
    }

    pub(super) fn average_pool(&mut self, node: &Node, w: &Window) -> Result<TensorIndex, ExportProblem> {
        let input = self.read(node.inputs[0]);
        let image = self.builder.shape(input).bind(1);
        let Some(padding) = native(w, (image[1], image[2])) else {
            return Err(ExportProblem::unsupported("an average pooling whose padding is neither `same` nor `valid`"));
        };
        Ok(self.builder.op(BuiltinOp::AveragePool2d, &[input], &pooling(w, padding), self.builder.graph.shape(node.outputs[0]).clone()))
    }

    /// An input whose padding the operator can express: where it cannot, the image is padded before. `outside` is what
    /// pads a pooling.
    fn padded(&mut self, input: TensorIndex, w: &Window, outside: Option<Option<f32>>) -> (TensorIndex, WindowPadding) {
        let shape = self.builder.shape(input).clone();
        let image = shape.bind(1);
        if let Some(padding) = native(w, (image[1], image[2])) {
            return (input, padding);
        }
        let pads = [0, 0, w.pad_rows.0, w.pad_rows.1, w.pad_columns.0, w.pad_columns.1, 0, 0].map(|pad| pad as i32);
        let padded = with_extent(&shape, 1, image[1] + w.pad_rows.0 + w.pad_rows.1);
        let padded = with_extent(&padded, 2, image[2] + w.pad_columns.0 + w.pad_columns.1);
        (self.pad(input, &pads, padded, outside.flatten()), WindowPadding::Valid)
    }

    /// Whether a value is the result of a rectifier.
    fn is_rectified(&self, value: ValueId) -> bool {
        let Op::Pointwise(op) = &self.builder.graph.producer(value).op else { return false };
        let terms = op.expr.terms();
        let is_number = |id: u16, at_least: f32| matches!(terms[id as usize], Term::Const(bits) if f32::from_bits(bits) >= at_least);
        let rectifies = |id: u16| matches!(terms[id as usize], Term::Binary(Binary::Max, _, b) if is_number(b, 0.0));
        match op.expr.roots() {
            [root] => match terms[*root as usize] {
                Term::Binary(Binary::Min, a, b) => rectifies(a) && is_number(b, 0.0),
                _ => rectifies(*root),
            },
            _ => false,
        }
    }
}

/// The padding of a window, if TFLite has it.
fn native(w: &Window, image: (usize, usize)) -> Option<WindowPadding> {
    if (w.pad_rows, w.pad_columns) == ((0, 0), (0, 0)) {
        Some(WindowPadding::Valid)
    } else {
        (*w == Window::same(w.size, w.stride, w.dilation, image)).then_some(WindowPadding::Same)
    }
}

fn strides(w: &Window, padding: WindowPadding) -> Vec<(&'static str, OptionValue)> {
    vec![
        ("padding", OptionValue::Byte(padding as u8)),
        ("stride_w", OptionValue::Int(w.stride.1 as i32)),
        ("stride_h", OptionValue::Int(w.stride.0 as i32)),
    ]
}

fn pooling(w: &Window, padding: WindowPadding) -> Vec<(&'static str, OptionValue)> {
    let mut options = strides(w, padding);
    options.push(("filter_width", OptionValue::Int(w.size.1 as i32)));
    options.push(("filter_height", OptionValue::Int(w.size.0 as i32)));
    options
}
