//! The output of expressions, products and convolutions: a separate tensor, or a slice of a concat output.

use super::instruction::{Address, Expression, F32Tensor, FloatTensor, KernelCall};
use super::lower::{Lowering, conv_shape, random_row};
use crate::kernels::movement::StridedCopy;
use crate::kernels::pointwise::{InputSpec, Kernel, OutputSpec, PitchedRows};
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::Node;
use plimsoll_core::ops::{FusedSliceWrite, SliceWrite};
use plimsoll_core::{DType, Op, Shape, TensorType, ValueId};

/// The output of a kernel.
pub(super) struct Destination {
    /// The value that is complete afterwards: the concat output, if this is a slice of one.
    value: ValueId,
    ty: TensorType,
    pub address: Address,
    /// The layout of the slice in the concat output, if it is not contiguous.
    pub runs: Option<PitchedRows>,
}

/// Whether a kernel can write its output with the row stride of a concat output, bit-identical to a contiguous one.
/// Expressions write any layout; products need the rows of the concat output, or a contiguous slice.
pub(crate) fn fuses_slice_write(maker: &Op, part: &TensorType, place: &SliceWrite) -> bool {
    // A product of one column uses another kernel with strided rows.
    let rows_of_columns = || place.axis + 1 == part.shape.rank() && part.shape.last().and_then(|dim| dim.as_fixed()).is_some_and(|n| n > 1);
    let stored = part.dtype == DType::F32 || part.dtype.is_half();
    let anywhere = matches!(maker, Op::Pointwise(_));
    FusedSliceWrite::can_fuse(maker) && (anywhere || stored && (place.axis == 0 || rows_of_columns()))
}

impl Lowering<'_> {
    /// A separate tensor.
    pub fn own(&self, value: ValueId) -> Result<Destination, String> {
        Ok(Destination { value, ty: self.program.graph.ty(value).clone(), address: self.address(value)?, runs: None })
    }

    /// The output of a node: a separate tensor, or a slice of the concat output.
    pub fn destination(&self, node: &Node) -> Result<Destination, String> {
        let own = self.own(node.outputs[0])?;
        let Some((place, part)) = self.program.graph.effective_op(node).slice else { return Ok(own) };
        let (dims, whole) = (part.shape.bind(self.rows), own.ty.shape.bind(self.rows));
        let (axis, inner) = (place.axis, dims[place.axis + 1..].iter().product::<usize>());
        let first = place.first(part.shape.dims()[axis], self.rows) * inner * part.dtype.size();
        let runs = PitchedRows { length: dims[axis] * inner, pitch: whole[axis] * inner };
        let in_pieces = dims[..axis].iter().product::<usize>() > 1;
        Ok(Destination { address: own.address.offset_by(first)?, runs: in_pieces.then_some(runs), ty: part, ..own })
    }

    /// A fused slice write, preceded by a copy of the concat output so far if that is read again.
    pub fn fused_slice_write(&self, op: &FusedSliceWrite, node: &Node, workspace: F32Tensor) -> Result<KernelCall, String> {
        let (effective_op, output) = (self.program.graph.effective_op(node), self.address(node.outputs[0])?);
        let mut copies = Vec::new();
        if op.has_base
            && let base = self.address(node.inputs[0])?
            && base != output
        {
            let (whole, all) = (self.dims(node.outputs[0]), (self.dims(node.outputs[0])[op.slice.axis], 0));
            copies.push((StridedCopy::along(self.size(node.outputs[0]), &whole, op.slice.axis, all, all), base));
        }
        let copied = KernelCall::Copy { copies, output, zeros: None };
        let to = self.destination(node)?;
        if to.dims(self.rows).contains(&0) {
            // An empty piece: the batch ended before it.
            return Ok(copied);
        }
        let made = self.make(effective_op.op, effective_op.inputs, &to, workspace)?;
        Ok(if matches!(&copied, KernelCall::Copy { copies, .. } if copies.is_empty()) {
            made
        } else {
            KernelCall::Sequence(Box::new([copied, made]))
        })
    }

    /// The instruction for an expression with one result, a product, a convolution or its input gradient.
    pub fn make(&self, op: &Op, inputs: &[ValueId], to: &Destination, workspace: F32Tensor) -> Result<KernelCall, String> {
        Ok(match op {
            Op::Pointwise(op) => KernelCall::Pointwise(Box::new(self.expression(&op.expr, &op.shape, inputs, std::slice::from_ref(to))?)),
            Op::MatMul(op) => {
                let matrix = |value: ValueId, turned: bool| -> Result<_, String> {
                    let dims = self.dims(value);
                    Ok((self.stored(value)?, [dims[0], dims[1]], turned))
                };
                let (_, _, k) = op.dims(self.program.graph.shape(inputs[0]), self.program.graph.shape(inputs[1]))?;
                KernelCall::MatMul {
                    over_rows: k.is_batch(),
                    a: matrix(inputs[0], op.transpose_a)?,
                    b: matrix(inputs[1], op.transpose_b)?,
                    c: to.stored(self.rows)?,
                    pitch: to.pitch(),
                    onto: if op.onto { Some(self.floats(inputs[2])?) } else { None },
                    workspace,
                    epilogue: self.epilogue(op.epilogue.as_ref(), &inputs[2..], to)?,
                }
            }
            Op::Conv2d(op) => KernelCall::Conv {
                shape: Box::new(conv_shape(&op.window, op.groups, &self.dims(inputs[0]), &to.dims(self.rows))),
                input: self.stored(inputs[0])?,
                filter: self.stored(inputs[1])?,
                output: to.stored(self.rows)?,
                pitch: to.pitch(),
                workspace,
                epilogue: self.epilogue(op.epilogue.as_ref(), &inputs[2..], to)?,
            },
            Op::Conv2dGradInput(op) => KernelCall::ConvGradInput {
                shape: Box::new(conv_shape(&op.window, op.groups, &to.dims(self.rows), &self.dims(inputs[1]))),
                filter: self.stored(inputs[0])?,
                gradient: self.stored(inputs[1])?,
                output: to.stored(self.rows)?,
                pitch: to.pitch(),
                workspace,
            },
            op => return Err(format!("{} does not write between other results", op.rules().name())),
        })
    }

    /// An expression over a shape with these outputs.
    pub fn expression(&self, expr: &Expr, shape: &Shape, inputs: &[ValueId], to: &[Destination]) -> Result<Expression, String> {
        let dims: Vec<Vec<usize>> = inputs.iter().map(|input| self.dims(*input)).collect();
        let over: Vec<Vec<usize>> = to.iter().map(|to| self.overlaps(inputs, to)).collect::<Result<_, _>>()?;
        let sinks: Vec<OutputSpec<'_>> =
            to.iter().zip(&over).map(|(to, over)| OutputSpec { dtype: to.ty.dtype, over, runs: to.runs }).collect();
        let mut kernel = Kernel::new(expr, &shape.bind(self.rows), &self.sources(inputs, &dims), &sinks)?;
        let moving = self.bind(inputs, |i, address| kernel.set_input(i, address))?;
        let mut moving_outputs = Vec::new();
        for (i, to) in to.iter().enumerate() {
            match to.address.written()? {
                Address::Fixed(address) => kernel.set_output(i, address),
                address => moving_outputs.push((i, address)),
            }
        }
        Ok(Expression { kernel, moving, moving_outputs, row: random_row(shape) })
    }

    /// An in-place expression over a result, which is its first input and its output. Until then, a 16-bit result is in
    /// the workspace, contiguous and in single precision.
    fn epilogue(&self, expr: Option<&Expr>, rest: &[ValueId], to: &Destination) -> Result<Option<Box<Expression>>, String> {
        let Some(expr) = expr else { return Ok(None) };
        let (own, dims): (_, Vec<Vec<usize>>) = (to.dims(self.rows), rest.iter().map(|input| self.dims(*input)).collect());
        let pitch = to.pitch().filter(|_| !to.ty.dtype.is_half());
        let sources: Vec<InputSpec<'_>> =
            [InputSpec { dims: &own, dtype: DType::F32, pitch }].into_iter().chain(self.sources(rest, &dims)).collect();
        let over: Vec<usize> = [0].into_iter().chain(self.overlaps(rest, to)?.into_iter().map(|i| i + 1)).collect();
        let mut kernel = Kernel::new(expr, &own, &sources, &[OutputSpec { dtype: to.ty.dtype, over: &over, runs: to.runs }])?;
        let mut moving = self.bind(rest, |i, address| kernel.set_input(i + 1, address))?;
        moving.iter_mut().for_each(|(i, _)| *i += 1);
        let mut moving_outputs = Vec::new();
        match to.address.written()? {
            Address::Fixed(address) => {
                kernel.set_input(0, address);
                kernel.set_output(0, address);
            }
            address => {
                moving.push((0, address));
                moving_outputs.push((0, address));
            }
        }
        Ok(Some(Box::new(Expression { kernel, moving, moving_outputs, row: random_row(&to.ty.shape) })))
    }

    /// The inputs that a result overwrites.
    fn overlaps(&self, inputs: &[ValueId], to: &Destination) -> Result<Vec<usize>, String> {
        // The region, or none for a fixed address, and the range of bytes.
        let range = |value: ValueId| -> Result<Option<(Option<usize>, usize, usize)>, String> {
            let value = self.program.graph.spread(value);
            let (region, start) = match self.address(value)? {
                Address::Fixed(start) => (None, start as usize),
                Address::Region(region, offset) => (Some(region), offset),
                Address::Column(_) | Address::Scalar(_) => return Ok(None),
            };
            Ok(Some((region, start, start + self.program.graph.ty(value).bytes(self.rows).0 as usize)))
        };
        // A slice must not be computed from other parts of the concat output while it is written.
        let own = range(to.value)?;
        let alone = to.ty == *self.program.graph.ty(to.value);
        let mut found = Vec::new();
        for (i, input) in inputs.iter().enumerate() {
            if let (Some((region, start, end)), Some((other, from, until))) = (own, range(*input)?)
                && region == other
                && start < until
                && from < end
            {
                if (start, end) != (from, until) || !alone {
                    return Err(format!("{} is planned over a part of {input}", to.value));
                }
                found.push(i);
            }
        }
        Ok(found)
    }
}

impl Destination {
    pub fn dims(&self, rows: usize) -> Vec<usize> {
        self.ty.shape.bind(rows)
    }

    /// Number of elements.
    pub fn count(&self, rows: usize) -> usize {
        self.ty.shape.elements().bind(rows)
    }

    pub fn dtype(&self) -> DType {
        self.ty.dtype
    }

    /// Row stride of a matrix, if it is not contiguous.
    fn pitch(&self) -> Option<usize> {
        self.runs.map(|runs| runs.pitch)
    }

    /// The output as real numbers in single precision or 16 bits: up to its last element, including elements of other
    /// slices in between.
    fn stored(&self, rows: usize) -> Result<FloatTensor, String> {
        if self.ty.dtype != DType::F32 && !self.ty.dtype.is_half() {
            return Err(format!("computes with f32, f16 and bf16, but {} is {}; cast it first", self.value, self.ty));
        }
        let all = self.count(rows);
        let count = match self.runs {
            Some(runs) if all > 0 => (all / runs.length - 1) * runs.pitch + runs.length,
            _ => all,
        };
        Ok(FloatTensor { address: self.address, dtype: self.ty.dtype, count })
    }
}
