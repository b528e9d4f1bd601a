//! Max and average pooling, and their gradients. Results have the input's type; sums are in single precision.

use super::conv::{Window, image_dims};
use crate::DType;
use crate::base::shape::{Shape, TensorType};
use crate::ir::adjoint::Adjoint;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::{Op, OpRules, expect, expect_real};
use crate::ir::rules::{Precision, RowContext, RowRule};

/// The maximum of every window, and its index inside the window as one byte, which the gradient reads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaxPool {
    /// Window size, stride and padding.
    pub window: Window,
}

/// Routes every window's gradient to its maximum.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MaxPoolGrad {
    /// As in the pooling.
    pub window: Window,
    /// The pooling's input shape.
    pub input: Shape,
}

/// The mean of every window over elements inside the image.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AvgPool {
    /// Window size, stride and padding.
    pub window: Window,
}

/// Distributes every window's gradient evenly over its elements.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AvgPoolGrad {
    /// As in the pooling.
    pub window: Window,
    /// The pooling's input shape.
    pub input: Shape,
}

fn pooled(window: &Window, x: &Shape) -> Result<Shape, String> {
    let (n, h, w, c) = image_dims(x)?;
    if window.dilation != (1, 1) {
        return Err("pooling windows have no dilation".to_string());
    }
    // A window entirely in the padding would have no maximum and no mean.
    let (rows, columns) = (window.pad_rows, window.pad_columns);
    if rows.0.max(rows.1) >= window.size.0.max(1) || columns.0.max(columns.1) >= window.size.1.max(1) {
        return Err(format!("the padding of the window {window} is as large as the window"));
    }
    let (oh, ow) = window.output((h, w))?;
    Ok(Shape::new([n, oh.into(), ow.into(), c.into()]))
}

fn window_flops(window: &Window, output: &Shape, rows: usize) -> u64 {
    (window.size.0.saturating_mul(window.size.1) as u64).saturating_mul(output.elements().bind(rows) as u64)
}

impl OpRules for MaxPool {
    fn name(&self) -> &'static str {
        "max_pool"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        rows.input(0).then_some(RowRule::Independent)
    }

    fn attributes(&self) -> String {
        self.window.to_string()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        expect_real(inputs)?;
        let (h, w) = self.window.size;
        // One byte, without the value that means "none".
        if h.saturating_mul(w) > 255 {
            return Err(format!("a {h}×{w} window has more than 255 places"));
        }
        let shape = pooled(&self.window, &x.shape)?;
        Ok(vec![TensorType::new(x.dtype, shape.clone()), TensorType::new(DType::U8, shape)])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let op = MaxPoolGrad { window: self.window, input: adjoint.graph.shape(adjoint.inputs[0]).clone() };
        Ok(vec![Some(adjoint.graph.add_one(Op::MaxPoolGrad(op), &[adjoint.outputs[1], dy])?)])
    }

    fn flops(&self, _: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64 {
        window_flops(&self.window, &outputs[0].shape, rows)
    }
}

impl OpRules for MaxPoolGrad {
    fn name(&self) -> &'static str {
        "max_pool_grad"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        (rows.input(0) && rows.input(1)).then_some(RowRule::Independent)
    }

    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, _: bool) -> Option<Op> {
        Some(Op::MaxPoolGrad(MaxPoolGrad { input: part(&self.input), ..self.clone() }))
    }

    fn attributes(&self) -> String {
        self.window.to_string()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [places, dy] = expect(inputs)?;
        expect_real(&inputs[1..])?;
        if places.dtype != DType::U8 || places.shape != dy.shape || dy.shape != pooled(&self.window, &self.input)? {
            return Err(format!("places {places} and gradient {dy} do not belong to an input of {}", self.input));
        }
        Ok(vec![TensorType::new(dy.dtype, self.input.clone())])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        Err(adjoint.graph.error("the gradient of max pooling cannot be differentiated again"))
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        inputs[1].shape.elements().bind(rows) as u64
    }
}

impl OpRules for AvgPool {
    fn name(&self) -> &'static str {
        "avg_pool"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        rows.input(0).then_some(RowRule::Independent)
    }

    fn attributes(&self) -> String {
        self.window.to_string()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [x] = expect(inputs)?;
        expect_real(inputs)?;
        Ok(vec![TensorType::new(x.dtype, pooled(&self.window, &x.shape)?)])
    }

    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dy = adjoint.output_gradient(0)?;
        let op = AvgPoolGrad { window: self.window, input: adjoint.graph.shape(adjoint.inputs[0]).clone() };
        Ok(vec![Some(adjoint.graph.add_one(Op::AvgPoolGrad(op), &[dy])?)])
    }

    fn flops(&self, _: &[&TensorType], outputs: &[&TensorType], rows: usize) -> u64 {
        window_flops(&self.window, &outputs[0].shape, rows)
    }
}

impl OpRules for AvgPoolGrad {
    fn name(&self) -> &'static str {
        "avg_pool_grad"
    }

    fn precision(&self) -> Precision {
        Precision::Window
    }

    fn split_rows(&self, rows: &RowContext<'_>) -> Option<RowRule> {
        rows.input(0).then_some(RowRule::Independent)
    }

    fn with_rows(&self, part: &dyn Fn(&Shape) -> Shape, _: bool) -> Option<Op> {
        Some(Op::AvgPoolGrad(AvgPoolGrad { input: part(&self.input), ..self.clone() }))
    }

    fn attributes(&self) -> String {
        self.window.to_string()
    }

    fn infer(&self, _: &Graph, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let [dy] = expect(inputs)?;
        expect_real(inputs)?;
        if dy.shape != pooled(&self.window, &self.input)? {
            return Err(format!("a gradient of {} does not belong to an input of {}", dy.shape, self.input));
        }
        Ok(vec![TensorType::new(dy.dtype, self.input.clone())])
    }

    /// Linear: its gradient is the pooling itself.
    fn gradient(&self, adjoint: &mut Adjoint<'_>) -> Result<Vec<Option<ValueId>>, GraphError> {
        let dx = adjoint.output_gradient(0)?;
        Ok(vec![Some(adjoint.graph.add_one(Op::AvgPool(AvgPool { window: self.window }), &[dx])?)])
    }

    fn flops(&self, inputs: &[&TensorType], _: &[&TensorType], rows: usize) -> u64 {
        window_flops(&self.window, &inputs[0].shape, rows)
    }
}
