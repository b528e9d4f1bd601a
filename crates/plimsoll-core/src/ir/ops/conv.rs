//! Two-dimensional convolution and its two gradients. Images are `[n, h, w, c]`, filters `[kh, kw, c / groups, out]`.

use super::matmul::check_epilogue;
use crate::DType;
use crate::base::expr::Expr;
use crate::base::shape::{Dim, Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect, expect_real, expect_real_result};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// Window of a convolution or pooling. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Window {
    /// Height and width.
    pub size: (usize, usize),
    /// Stride.
    pub stride: (usize, usize),
    /// Dilation.
    pub dilation: (usize, usize),
    /// Rows added above and below.
    pub pad_rows: (usize, usize),
    /// Columns added left and right.
    pub pad_columns: (usize, usize),
}

impl Window {
    /// A window without padding or dilation that moves by `stride`.
    pub fn valid(size: (usize, usize), stride: (usize, usize)) -> Window {
        Window { size, stride, dilation: (1, 1), pad_rows: (0, 0), pad_columns: (0, 0) }
    }

    /// A window with Keras' `same` padding: the output is the input divided by the stride, rounded up; odd padding goes
    /// at the end.
    pub fn same(size: (usize, usize), stride: (usize, usize), dilation: (usize, usize), image: (usize, usize)) -> Window {
        let pad = |size: usize, stride: usize, dilation: usize, length: usize| {
            // `output` rejects sizes and strides of zero, with the layer's name.
            let reach = size.saturating_sub(1).saturating_mul(dilation).saturating_add(1);
            let moved = length.div_ceil(stride.max(1)).saturating_sub(1).saturating_mul(stride);
            let total = moved.saturating_add(reach).saturating_sub(length);
            (total / 2, total - total / 2)
        };
        Window {
            size,
            stride,
            dilation,
            pad_rows: pad(size.0, stride.0, dilation.0, image.0),
            pad_columns: pad(size.1, stride.1, dilation.1, image.1),
        }
    }

    /// Output height and width for an image of this height and width.
    pub fn output(&self, image: (usize, usize)) -> Result<(usize, usize), String> {
        let along = |length: usize, pad: (usize, usize), size: usize, stride: usize, dilation: usize| {
            let reach = size.checked_sub(1)?.checked_mul(dilation)?.checked_add(1)?;
            Some(length.saturating_add(pad.0).saturating_add(pad.1).checked_sub(reach)? / stride + 1)
        };
        if self.stride.0 == 0 || self.stride.1 == 0 || self.dilation.0 == 0 || self.dilation.1 == 0 {
            return Err(format!("strides and dilations are at least 1, but are {:?} and {:?}", self.stride, self.dilation));
        }
        let rows = along(image.0, self.pad_rows, self.size.0, self.stride.0, self.dilation.0);
        let columns = along(image.1, self.pad_columns, self.size.1, self.stride.1, self.dilation.1);
        rows.zip(columns).ok_or_else(|| {
            let (h, w) = self.size;
            format!("a {h}×{w} window does not fit into an image of {}×{}", image.0, image.1)
        })
    }

    fn text(&self) -> String {
        let pair = |name: &str, pair: (usize, usize), usual: (usize, usize)| {
            if pair == usual { String::new() } else { format!(", {name} {}×{}", pair.0, pair.1) }
        };
        let pad = (self.pad_rows, self.pad_columns);
        let padding =
            if pad == ((0, 0), (0, 0)) { String::new() } else { format!(", pad {}+{} {}+{}", pad.0.0, pad.0.1, pad.1.0, pad.1.1) };
        let stride = pair("stride", self.stride, (1, 1));
        format!("{}×{}{stride}{}{padding}", self.size.0, self.size.1, pair("dilation", self.dilation, (1, 1)))
    }
}

impl std::fmt::Display for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text())
    }
}

/// The four dimensions of a batch of images with static height, width and channels.
pub(super) fn image_dims(shape: &Shape) -> Result<(Dim, usize, usize, usize), String> {
    match shape.dims() {
        &[n, h, w, c] => match (h.as_fixed(), w.as_fixed(), c.as_fixed()) {
            (Some(h), Some(w), Some(c)) => Ok((n, h, w, c)),
            _ => Err(format!("only the first dimension of images may be the batch, but the shape is {shape}")),
        },
        _ => Err(format!("takes images [batch, height, width, channels], but got the shape {shape}")),
    }
}

/// Convolution with an optional fused epilogue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv2d {
    /// Filter size, stride, dilation and padding.
    pub window: Window,
    /// Number of groups (grouped convolution).
    pub groups: usize,
    /// Applied to the result (its input 0) and any further inputs, which broadcast to the result's shape.
    pub epilogue: Option<Expr>,
    /// Element type of the result. Accumulation is always in single precision.
    pub dtype: DType,
}

/// Gradient of a convolution with respect to its input, from the filter and the output's gradient.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dGradInput {
    /// As in the convolution.
    pub window: Window,
    /// As in the convolution.
    pub groups: usize,
    /// The convolution's input shape.
    pub input: Shape,
    /// The element type of the result.
    pub dtype: DType,
}

/// Gradient of a convolution with respect to its filter, from the input and the output's gradient. Filters are
/// parameters in single precision.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Conv2dGradFilter {
    /// As in the convolution.
    pub window: Window,
    /// As in the convolution.
    pub groups: usize,
    /// The convolution's filter shape.
    pub filter: Shape,
    /// Accumulates onto a third input, of the filter's type, instead of zero: the sum of the earlier rows of a split,
    /// or of earlier micro-batches. The planner sets it where
    /// [`Device::can_split_rows`](crate::plan::Target::can_split_rows) says that the result is bit-identical.
    pub onto: bool,
}

fn text(window: &Window, groups: usize) -> String {
    if groups == 1 { window.text() } else { format!("{}, {groups} groups", window.text()) }
}

/// Output shape of a convolution, or why it is invalid.
fn convolved(window: &Window, groups: usize, image: &Shape, filter: &Shape) -> Result<Shape, String> {
    let (n, h, w, c) = image_dims(image)?;
    let (kh, kw, inner, out) = match filter.bind(1)[..] {
        [kh, kw, inner, out] if !filter.has_batch() => (kh, kw, inner, out),
        _ => return Err(format!("takes a filter [height, width, channels, filters], but got the shape {filter}")),
    };
    if (kh, kw) != window.size || groups == 0 || inner.saturating_mul(groups) != c || out % groups != 0 {
        return Err(format!("shapes {image} and {filter} do not go together ({groups} groups)"));
    }
    let (oh, ow) = window.output((h, w))?;
    Ok(Shape::new([n, oh.into(), ow.into(), out.into()]))
}

/// Checks that a gradient has the output shape of its convolution.
fn check_gradient(window: &Window, groups: usize, image: &Shape, filter: &Shape, dy: &Shape) -> Result<(), String> {
    if *dy == convolved(window, groups, image, filter)? {
        return Ok(());
    }
    Err(format!("a gradient of {dy} does not belong to an image of {image} and a filter of {filter}"))
}

/// Twice the multiply-adds per output element, times the output elements.
fn conv_flops(filter: &Shape, output: &Shape, rows: usize) -> u64 {
    let taps = filter.dims()[..3].iter().fold(1usize, |taps, dim| taps.saturating_mul(dim.factor()));
    (taps as u64).saturating_mul(2).saturating_mul(output.elements().bind(rows) as u64)
}

impl OpRules for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        (rows.input(0) && rows.is_fixed(1) && rows.aligned(rows.result(), 2)).then_some(RowRule::Independent)
    }

    fn attributes(&self) -> String {
        let epilogue = self.epilogue.as_ref().map_or(String::new(), |expr| format!(", then {expr}"));
        text(&self.window, self.groups) + &epilogue
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x, filter, rest @ ..] = inputs else {
            return Err(format!("takes an image and a filter, but got {} tensors", inputs.len()));
        };
        expect_real(&inputs[..2])?;
        expect_real_result(self.dtype)?;
        let shape = convolved(&self.window, self.groups, &x.shape, &filter.shape)?;
        check_epilogue(self.epilogue.as_ref(), &shape, rest)?;
        Ok(vec![TensorType::new(self.dtype, shape)])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        assert!(self.epilogue.is_none(), "gradients are taken before expressions are fused into convolutions");
        let (x, filter, dy) = (adjoint.inputs[0], adjoint.inputs[1], adjoint.output_gradient(0)?);
        let (window, groups) = (self.window, self.groups);
        let g = &mut *adjoint.graph;
        let for_filter = Conv2dGradFilter { window, groups, filter: g.shape(filter).clone(), onto: false };
        let for_input = Conv2dGradInput { window, groups, input: g.shape(x).clone(), dtype: g.ty(x).dtype };
        let d_filter = adjoint.wants[1].then(|| g.add_one(Op::Conv2dGradFilter(for_filter), &[x, dy])).transpose()?;
        let d_input = adjoint.wants[0].then(|| g.add_one(Op::Conv2dGradInput(for_input), &[filter, dy])).transpose()?;
        Ok(vec![d_input, d_filter])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64 {
        let epilogue = self.epilogue.as_ref().map_or(0, Expr::flops).saturating_mul(outputs[0].shape.elements().bind(rows) as u64);
        conv_flops(&inputs[1].shape, &outputs[0].shape, rows) + epilogue
    }
}

impl OpRules for Conv2dGradInput {
    fn name(&self) -> &'static str {
        "conv2d_grad_input"
    }

    fn precision(&self) -> Precision {
        Precision::Product
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        (rows.is_fixed(0) && rows.input(1)).then_some(RowRule::Independent)
    }

    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, _: bool) -> Option<Op> {
        Some(Op::Conv2dGradInput(Conv2dGradInput { input: part(&self.input), ..self.clone() }))
    }

    fn attributes(&self) -> String {
        text(&self.window, self.groups)
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [filter, dy] = expect(inputs)?;
        expect_real(inputs)?;
        expect_real_result(self.dtype)?;
        check_gradient(&self.window, self.groups, &self.input, &filter.shape, &dy.shape)?;
        Ok(vec![TensorType::new(self.dtype, self.input.clone())])
    }

    /// Linear in both: the gradients are the convolution itself and the filter gradient.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let (filter, dy, dx) = (adjoint.inputs[0], adjoint.inputs[1], adjoint.output_gradient(0)?);
        let (window, groups) = (self.window, self.groups);
        let g = &mut *adjoint.graph;
        let for_filter = Conv2dGradFilter { window, groups, filter: g.shape(filter).clone(), onto: false };
        let d_filter = adjoint.wants[0].then(|| g.add_one(Op::Conv2dGradFilter(for_filter), &[dx, dy])).transpose()?;
        let forward = Conv2d { window, groups, epilogue: None, dtype: g.ty(dy).dtype };
        let d_dy = adjoint.wants[1].then(|| g.add_one(Op::Conv2d(forward), &[dx, filter])).transpose()?;
        Ok(vec![d_filter, d_dy])
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        conv_flops(&inputs[0].shape, &inputs[1].shape, rows)
    }
}

impl OpRules for Conv2dGradFilter {
    fn name(&self) -> &'static str {
        "conv2d_grad_filter"
    }

    fn precision(&self) -> Precision {
        Precision::Statistic
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        (rows.input(0) && rows.input(1)).then_some(RowRule::Sum)
    }

    fn with_rows(&self, _: &dyn Fn(&Shape) -> Shape, onto: bool) -> Option<Op> {
        Some(Op::Conv2dGradFilter(Conv2dGradFilter { onto, ..self.clone() }))
    }

    fn attributes(&self) -> String {
        let onto = if self.onto { ", onto the last" } else { "" };
        text(&self.window, self.groups) + onto
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let result = TensorType::f32(self.filter.clone());
        let inputs = match inputs {
            [inputs @ .., before] if self.onto && **before == result => inputs,
            _ if self.onto => return Err(format!("accumulates onto a sum of the type {result}, which is its last input")),
            _ => inputs,
        };
        let [x, dy] = expect(inputs)?;
        expect_real(inputs)?;
        check_gradient(&self.window, self.groups, &x.shape, &self.filter, &dy.shape)?;
        Ok(vec![result])
    }

    /// Linear in both: the gradients are the input gradient and the convolution itself.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        assert!(!self.onto, "gradients are taken before batches are cut");
        let (x, dy, d_filter) = (adjoint.inputs[0], adjoint.inputs[1], adjoint.output_gradient(0)?);
        let (window, groups) = (self.window, self.groups);
        let g = &mut *adjoint.graph;
        let for_input = Conv2dGradInput { window, groups, input: g.shape(x).clone(), dtype: g.ty(x).dtype };
        let d_x = adjoint.wants[0].then(|| g.add_one(Op::Conv2dGradInput(for_input), &[d_filter, dy])).transpose()?;
        let forward = Conv2d { window, groups, epilogue: None, dtype: g.ty(dy).dtype };
        let d_dy = adjoint.wants[1].then(|| g.add_one(Op::Conv2d(forward), &[x, d_filter])).transpose()?;
        Ok(vec![d_x, d_dy])
    }

    fn flops(&self, inputs: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64 {
        conv_flops(&outputs[0].shape, &inputs[1].shape, rows)
    }

    /// The accumulator may be updated in place.
    fn in_place(&self, input: usize, _: usize) -> bool {
        self.onto && input == 2
    }
}
