//! What is run: operators, types and shapes are checked before a model runs, and everything that is not run is listed.

use super::elements::{dims, is_int8};
use super::{integer, kernels, movement};
use plimsoll_formats::tensor::DType;
use plimsoll_formats::tflite::{BuiltinOp, Contents, Operator, TfliteModel, TfliteTensor};
use std::collections::BTreeSet;

/// That every operator of a model is run here, with tensors of fitting shapes.
///
/// # Errors
/// All operators that are not run, by name.
pub(crate) fn check(model: &TfliteModel) -> Result<(), String> {
    if let Some(operator) = model.operators.iter().find(|operator| !has_operands(operator)) {
        return Err(format!("{} has no input or no result", operator.op.name()));
    }
    let unknown: BTreeSet<String> = model.operators.iter().filter_map(|operator| refused(model, operator)).collect();
    if !unknown.is_empty() {
        return Err(format!("these operators are not run here:\n  {}", unknown.into_iter().collect::<Vec<_>>().join("\n  ")));
    }
    for tensor in &model.tensors {
        let counted = tensor.quantization.as_ref().is_none_or(|quantization| {
            let axis = usize::try_from(quantization.axis).ok().and_then(|axis| tensor.shape.get(axis));
            let scales = quantization.scales.len();
            let finite = quantization.scales.iter().all(|scale| scale.is_finite() && *scale > 0.0);
            finite && (scales == 1 || axis.is_some_and(|extent| *extent as usize == scales))
        });
        if !counted {
            return Err(format!("`{}` has scales that do not fit its shape", tensor.name));
        }
    }
    let misfit = |operator: &&Operator| fits(model, operator).is_none();
    match model.operators.iter().find(misfit) {
        Some(operator) => {
            let name = operator.outputs.first().map_or("", |tensor| &model.tensors[*tensor as usize].name);
            Err(format!("the shapes of {} do not fit (`{name}`)", operator.op.name()))
        }
        None => Ok(()),
    }
}

/// Whether an operator has a first input, and results.
fn has_operands(operator: &Operator) -> bool {
    operator.inputs.first().is_some_and(|tensor| *tensor >= 0) && !operator.outputs.is_empty()
}

/// The name of an operator that is not run, or not with these types.
fn refused(model: &TfliteModel, operator: &Operator) -> Option<String> {
    use BuiltinOp as Op;
    let name = operator.op.name();
    let types = operator.inputs.iter().chain(&operator.outputs).filter_map(|tensor| usize::try_from(*tensor).ok());
    let types: Vec<&TfliteTensor> = types.map(|index| &model.tensors[index]).collect();
    let is_lstm = operator.op == Op::UnidirectionalSequenceLstm;
    if let Some(other) = types.iter().filter(|tensor| !(is_lstm && tensor.variable)).find(|tensor| {
        matches!(tensor.dtype, DType::U8 | DType::I16 | DType::U16 | DType::F64 | DType::BF16 | DType::U64)
            || (tensor.dtype == DType::I8 && tensor.quantization.is_none())
    }) {
        return Some(format!("{name} with elements of {}", other.dtype.name()));
    }
    let moves = matches!(
        operator.op,
        Op::Reshape
            | Op::Transpose
            | Op::Pad
            | Op::StridedSlice
            | Op::Gather
            | Op::Concatenation
            | Op::Pack
            | Op::Split
            | Op::Unpack
            | Op::ResizeNearestNeighbor
            | Op::ReverseV2
            | Op::BroadcastTo
    );
    let sampled = operator.op == Op::ResizeNearestNeighbor && operator.integer("align_corners") != 0;
    let written: &[i32] = if is_lstm { &[4] } else { &[0, 1, 3] };
    let activated = !written.contains(&operator.integer("fused_activation_function"));
    if sampled || activated {
        return Some(format!("{name} with options that are not written here"));
    }
    let in_int8 = matches!(
        operator.op,
        Op::Conv2d
            | Op::DepthwiseConv2d
            | Op::TransposeConv
            | Op::FullyConnected
            | Op::BatchMatmul
            | Op::MaxPool2d
            | Op::AveragePool2d
            | Op::Add
            | Op::Sub
            | Op::Mul
            | Op::Mean
            | Op::Softmax
            | Op::LeakyRelu
            | Op::Quantize
            | Op::Dequantize
    );
    if integer::computes(model, operator) {
        if is_lstm {
            return (!integer::is_complete(model, operator)).then(|| format!("{name} in int8 with scales that are not computed here"));
        }
        let known = in_int8 || moves || kernels::unary(operator).is_some();
        return (!known).then(|| format!("{name} in int8"));
    }
    let in_real = matches!(
        operator.op,
        Op::LogSoftmax
            | Op::Sum
            | Op::ReduceMax
            | Op::ArgMax
            | Op::UnidirectionalSequenceLstm
            | Op::SelectV2
            | Op::Cast
            | Op::Shape
            | Op::PadV2
    );
    let known = in_int8 || in_real || moves || kernels::unary(operator).is_some() || kernels::binary(operator.op).is_some();
    (!known).then(|| name.to_string())
}

/// Whether the shapes of an operator fit; none if they do not.
fn fits(model: &TfliteModel, operator: &Operator) -> Option<()> {
    use BuiltinOp as Op;
    let tensor = |i: usize| operator.inputs.get(i).and_then(|index| usize::try_from(*index).ok()).map(|index| &model.tensors[index]);
    let shape = |i: usize| tensor(i).map(dims);
    let size = |i: usize| shape(i).map(|shape| shape.iter().product::<usize>());
    let output = dims(&model.tensors[*operator.outputs.first()? as usize]);
    let results: usize = output.iter().product();
    let that = |fits: bool| fits.then_some(());
    let positive = |shape: &[usize]| that(shape.iter().all(|dim| *dim > 0));
    let bias = |place: usize, units: usize| that(size(place).is_none_or(|size| size == units));
    positive(&output)?;
    positive(&shape(usize::from(operator.op == Op::Split))?)?;
    match operator.op {
        Op::Conv2d | Op::DepthwiseConv2d => {
            let (x, kernel) = (image(shape(0)?)?, image4(shape(1)?)?);
            let (deep, filters) = if operator.op == Op::Conv2d { (kernel[3], kernel[0]) } else { (1, kernel[3]) };
            that(output.len() == 4 && output[0] == 1 && output[3] == filters && x[3] % deep == 0 && filters % (x[3] / deep) == 0)?;
            bias(2, filters)?;
            windows(operator, [kernel[1], kernel[2]], [x[1], x[2]], [output[1], output[2]])
        }
        Op::TransposeConv => {
            let (x, kernel) = (image(shape(2)?)?, image4(shape(1)?)?);
            that(output.len() == 4 && output[0] == 1 && output[3] == kernel[0] && kernel[3] == x[3])?;
            bias(3, kernel[0])?;
            windows(operator, [kernel[1], kernel[2]], [output[1], output[2]], [x[1], x[2]])
        }
        Op::MaxPool2d | Op::AveragePool2d => {
            let x = image(shape(0)?)?;
            let window = ["filter_height", "filter_width"].map(|name| usize::try_from(operator.integer(name)).unwrap_or(0));
            that(output.len() == 4 && output[0] == 1 && output[3] == x[3] && window.iter().all(|size| *size > 0))?;
            windows(operator, window, [x[1], x[2]], [output[1], output[2]])
        }
        Op::FullyConnected => {
            let kernel = shape(1)?;
            that(kernel.len() == 2 && kernel.iter().all(|dim| *dim > 0) && size(0)? % kernel[1] == 0)?;
            that(results == size(0)? / kernel[1] * kernel[0])?;
            bias(2, kernel[0])
        }
        Op::BatchMatmul => {
            let (a, b) = (shape(0)?, shape(1)?);
            that(a.len() >= 2 && b.len() >= 2 && output.len() >= 2)?;
            positive(&b)?;
            let sides = |shape: &[usize], swap: bool| {
                let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
                if swap { (columns, rows) } else { (rows, columns) }
            };
            let (left, right) = (sides(&a, operator.integer("adj_x") != 0), sides(&b, operator.integer("adj_y") != 0));
            that(left.1 == right.0 && sides(&output, false) == (left.0, right.1))
        }
        Op::Concatenation | Op::Pack => {
            let axis = operator.integer("axis").rem_euclid(output.len().max(1) as i32) as usize;
            let inner: usize = output.get(axis + 1..)?.iter().product();
            let outer: usize = output[..axis].iter().product();
            let mut along = 0;
            for i in 0..operator.inputs.len() {
                let part = shape(i)?;
                let extent = if operator.op == Op::Pack { 1 } else { *part.get(axis)? };
                that(size(i)? == outer * extent * inner)?;
                along += extent;
            }
            that(along == output[axis])
        }
        Op::Split | Op::Unpack => {
            let x = shape(usize::from(operator.op == Op::Split))?;
            let axis = match operator.op {
                Op::Split => *numbers(tensor(0)?)?.first()?,
                _ => i64::from(operator.integer("axis")),
            };
            let extent = *x.get(usize::try_from(axis).ok()?)?;
            that(extent % operator.outputs.len() == 0 && results == x.iter().product::<usize>() / operator.outputs.len())
        }
        Op::Transpose => {
            let (x, order) = (shape(0)?, numbers(tensor(1)?)?);
            that(order.len() == x.len() && output.len() == x.len())?;
            let mut seen = vec![false; x.len()];
            for (axis, extent) in order.iter().zip(&output) {
                let axis = usize::try_from(*axis).ok()?;
                that(x.get(axis)? == extent && !std::mem::replace(seen.get_mut(axis)?, true))?;
            }
            Some(())
        }
        Op::StridedSlice => {
            let (x, begin, steps) = (shape(0)?, numbers(tensor(1)?)?, numbers(tensor(3)?)?);
            that(begin.len() == x.len() && steps.iter().all(|step| *step == 1))?;
            let (masked, shrunk) = (operator.integer("begin_mask"), operator.integer("shrink_axis_mask"));
            let mut extents = output.iter();
            for (axis, extent) in x.iter().enumerate() {
                let start = movement::slice_start(begin[axis], masked & (1 << axis) != 0, *extent)?;
                let length = if shrunk & (1 << axis) != 0 { 1 } else { *extents.next()? };
                that(start + length <= *extent)?;
            }
            that(extents.next().is_none())
        }
        Op::ReverseV2 => {
            let axes = numbers(tensor(1)?)?;
            that(axes.len() == 1 && shape(0)? == output && usize::try_from(axes[0]).is_ok_and(|axis| axis < output.len()))
        }
        Op::Pad | Op::PadV2 => {
            let (x, pads) = (shape(0)?, numbers(tensor(1)?)?);
            that(pads.len() == 2 * x.len() && output.len() == x.len())?;
            let whole = |axis: usize| {
                pads[2 * axis] >= 0 && (x[axis] as i64).checked_add(pads[2 * axis] + pads[2 * axis + 1]) == Some(output[axis] as i64)
            };
            that((0..x.len()).all(whole) && pads.iter().all(|pad| *pad >= 0))?;
            that(operator.op == Op::Pad || size(2)? == 1)
        }
        Op::ResizeNearestNeighbor => {
            let x = image(shape(0)?)?;
            that(output.len() == 4 && output[0] == 1 && output[3] == x[3])
        }
        Op::Gather => {
            let table = shape(0)?;
            that(!table.is_empty() && operator.integer("axis") == 0 && operator.integer("batch_dims") == 0)?;
            that(results == size(1)? * table[1..].iter().product::<usize>())
        }
        Op::Mean | Op::Sum | Op::ReduceMax | Op::ArgMax => {
            let (x, axes) = (shape(0)?, numbers(tensor(1)?)?);
            let rank = x.len() as i64;
            that(!axes.is_empty() && axes.iter().all(|axis| (-rank..rank).contains(axis)))?;
            let axes: BTreeSet<usize> = axes.iter().map(|axis| axis.rem_euclid(rank) as usize).collect();
            let kept: usize = (0..x.len()).filter(|axis| !axes.contains(axis)).map(|axis| x[axis]).product();
            that(results == kept && (operator.op != Op::ArgMax || axes.len() == 1))
        }
        Op::UnidirectionalSequenceLstm => {
            let x = shape(0)?;
            that(x.len() == 3 && x[0] == 1 && output.len() == 3 && operator.integer("time_major") == 0)?;
            let units = output[2];
            let gates = (0..4).all(|gate| {
                let kernels = (shape(1 + gate), shape(5 + gate), size(12 + gate));
                kernels == (Some(vec![units, x[2]]), Some(vec![units, units]), Some(units))
            });
            that(gates && output[1] == x[1])
        }
        Op::BroadcastTo => broadcasts(&shape(0)?, &output),
        Op::SelectV2 => (0..3).try_for_each(|i| broadcasts(&shape(i)?, &output)),
        Op::Shape => that(results == shape(0)?.len()),
        op if kernels::binary(op).is_some() => (0..2).try_for_each(|i| broadcasts(&shape(i)?, &output)),
        // One element for each.
        _ => that(size(0)? == results),
    }
}

/// An image of one row.
fn image(shape: Vec<usize>) -> Option<Vec<usize>> {
    image4(shape).filter(|shape| shape[0] == 1)
}

fn image4(shape: Vec<usize>) -> Option<Vec<usize>> {
    (shape.len() == 4 && shape.iter().all(|dim| *dim > 0)).then_some(shape)
}

/// Whether windows of a size give these outputs, along both axes.
fn windows(operator: &Operator, sizes: [usize; 2], lengths: [usize; 2], outputs: [usize; 2]) -> Option<()> {
    let strides = ["stride_h", "stride_w"].map(|name| usize::try_from(operator.integer(name)).unwrap_or(0));
    let dilations = ["dilation_h_factor", "dilation_w_factor"].map(|name| operator.integer(name).max(1) as usize);
    for axis in 0..2 {
        let (stride, reach) = (strides[axis], (sizes[axis] - 1) * dilations[axis] + 1);
        let same = operator.integer("padding") == 0;
        let wanted = match (stride, same) {
            (0, _) => return None,
            (_, true) => lengths[axis].div_ceil(stride),
            (_, false) => (lengths[axis] + 1).checked_sub(reach)?.div_ceil(stride),
        };
        if wanted != outputs[axis] {
            return None;
        }
    }
    Some(())
}

/// Whether a shape broadcasts to another.
fn broadcasts(from: &[usize], to: &[usize]) -> Option<()> {
    let missing = to.len().checked_sub(from.len())?;
    from.iter().zip(&to[missing..]).all(|(from, to)| *from == 1 || from == to).then_some(())
}

/// Most elements of shapes and axes.
const FEW: u64 = 64;

/// The integers of a constant, such as axes.
fn numbers(tensor: &TfliteTensor) -> Option<Vec<i64>> {
    let Contents::Constant(stored) = &tensor.contents else { return None };
    (!is_int8(tensor)).then(|| stored.integers(FEW).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::check;
    use plimsoll_formats::tensor::DType;
    use plimsoll_formats::tflite::{BuiltinOp, Operator, TfliteModel, TfliteTensor};

    #[test]
    fn operators_without_an_input_or_a_result_are_refused() {
        let tensors = vec![TfliteTensor::computed("x", DType::F32, vec![1, 4])];
        for (inputs, outputs) in [(vec![], vec![0]), (vec![-1], vec![0]), (vec![0], vec![])] {
            let operators = vec![Operator { inputs, outputs, ..Operator::new(BuiltinOp::Quantize, 1) }];
            let model = TfliteModel { tensors: tensors.clone(), operators, ..TfliteModel::default() };
            assert_eq!(check(&model).unwrap_err(), "QUANTIZE has no input or no result");
        }
    }
}
