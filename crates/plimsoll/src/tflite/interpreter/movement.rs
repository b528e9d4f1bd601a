//! Operators that move elements.

use super::{Elements, RowTensor, RunResult, dims};
use plimsoll_formats::tflite::{BuiltinOp, Operator, TfliteModel};

/// Steps between neighbours along each axis.
fn strides(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    strides
}

/// For every element of a shape, the element of a tensor that broadcasts to it.
pub(super) fn broadcast_places(from: &[usize], to: &[usize]) -> impl Iterator<Item = usize> + use<> {
    let missing = to.len() - from.len();
    let own = strides(from);
    let steps: Vec<isize> =
        (0..to.len()).map(|axis| if axis < missing || from[axis - missing] == 1 { 0 } else { own[axis - missing] as isize }).collect();
    Places::new(0, to.to_vec(), steps)
}

/// Positions of an element while the coordinates of a shape are counted up.
struct Places {
    shape: Vec<usize>,
    steps: Vec<isize>,
    position: Vec<usize>,
    at: isize,
    left: usize,
}

impl Places {
    fn new(start: isize, shape: Vec<usize>, steps: Vec<isize>) -> Places {
        let left = shape.iter().product();
        Places { position: vec![0; shape.len()], shape, steps, at: start, left }
    }
}

impl Iterator for Places {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        self.left = self.left.checked_sub(1)?;
        let found = self.at as usize;
        for axis in (0..self.shape.len()).rev() {
            self.position[axis] += 1;
            self.at += self.steps[axis];
            if self.position[axis] < self.shape[axis] {
                break;
            }
            self.at -= self.steps[axis] * self.shape[axis] as isize;
            self.position[axis] = 0;
        }
        Some(found)
    }
}

/// The inputs of an operator that moves elements: those whose elements are moved.
pub(super) fn data_inputs(operator: &Operator) -> std::ops::Range<usize> {
    match operator.op {
        BuiltinOp::Concatenation | BuiltinOp::Pack => 0..operator.inputs.len(),
        BuiltinOp::Split => 1..2,
        _ => 0..1,
    }
}

/// Moves the elements of `data`; `read` has all inputs, and padding without a number of its own is `zero`.
pub(super) fn moved<T: Copy>(
    model: &TfliteModel,
    operator: &Operator,
    data: &[&Elements<T>],
    read: &[Option<&RowTensor>],
    zero: T,
) -> RunResult<Vec<Elements<T>>> {
    let input = |i: usize| read.get(i).copied().flatten().ok_or_else(|| format!("input {i} is missing"))?.real();
    let x = *data.first().ok_or("an input is missing")?;
    let shape = dims(&model.tensors[operator.outputs[0] as usize]);
    let own: Vec<isize> = strides(&x.shape).into_iter().map(|stride| stride as isize).collect();
    let gathered = |places: Places, shape: Vec<usize>| Elements { shape, numbers: places.map(|at| x.numbers[at]).collect() };
    let one = match operator.op {
        BuiltinOp::Reshape => Elements { shape, numbers: x.numbers.clone() },
        BuiltinOp::Transpose => {
            let order = &input(1)?.numbers;
            let steps = order.iter().map(|axis| own[*axis as usize]).collect();
            gathered(Places::new(0, shape.clone(), steps), shape)
        }
        BuiltinOp::StridedSlice => {
            let begin = &input(1)?.numbers;
            let masked = operator.integer("begin_mask");
            let starts = (0..x.shape.len()).map(|axis| {
                let start = slice_start(begin[axis] as i64, masked & (1 << axis) != 0, x.shape[axis]);
                start.map(|start| start as isize * own[axis]).ok_or_else(|| "a slice begins outside of its input".to_string())
            });
            let start = starts.sum::<RunResult<isize>>()?;
            let shrunk = operator.integer("shrink_axis_mask");
            let steps = (0..x.shape.len()).filter(|axis| shrunk & (1 << axis) == 0).map(|axis| own[axis]).collect();
            gathered(Places::new(start, shape.clone(), steps), shape)
        }
        BuiltinOp::ReverseV2 => {
            let axis = input(1)?.numbers[0] as usize;
            let start = (x.shape[axis] as isize - 1) * own[axis];
            let steps = own.iter().enumerate().map(|(i, stride)| if i == axis { -stride } else { *stride }).collect();
            gathered(Places::new(start, shape.clone(), steps), shape)
        }
        BuiltinOp::BroadcastTo => {
            let numbers = broadcast_places(&x.shape, &shape).map(|at| x.numbers[at]).collect();
            Elements { shape, numbers }
        }
        BuiltinOp::Pad | BuiltinOp::PadV2 => {
            let pads = &input(1)?.numbers;
            let steps: Vec<isize> = strides(&shape).into_iter().map(|stride| stride as isize).collect();
            let start = (0..shape.len()).map(|axis| pads[2 * axis] as isize * steps[axis]).sum();
            let mut numbers = vec![zero; shape.iter().product()];
            Places::new(start, x.shape.clone(), steps).zip(&x.numbers).for_each(|(at, number)| numbers[at] = *number);
            Elements { shape, numbers }
        }
        BuiltinOp::ResizeNearestNeighbor => {
            // The nearest neighbour of whole factors.
            let (height, width, channels) = (shape[1], shape[2], shape[3]);
            let mut numbers = Vec::with_capacity(shape.iter().product());
            for row in 0..height {
                for column in 0..width {
                    let at = (row * x.shape[1] / height * x.shape[2] + column * x.shape[2] / width) * channels;
                    numbers.extend_from_slice(&x.numbers[at..at + channels]);
                }
            }
            Elements { shape, numbers }
        }
        BuiltinOp::Gather => gather(x, input(1)?, shape)?,
        BuiltinOp::Concatenation | BuiltinOp::Pack => concat(operator, data, shape),
        BuiltinOp::Split => return Ok(parts(operator, x, input(0)?.numbers[0] as usize, model)),
        BuiltinOp::Unpack => return Ok(parts(operator, x, operator.integer("axis") as usize, model)),
        _ => return Err("this operator is not run here".to_string()),
    };
    Ok(vec![one])
}

fn gather<T: Copy>(table: &Elements<T>, indices: &Elements, shape: Vec<usize>) -> RunResult<Elements<T>> {
    let wide: usize = table.shape[1..].iter().product();
    let mut numbers = Vec::with_capacity(shape.iter().product());
    for index in &indices.numbers {
        let row = (*index >= 0.0).then(|| table.numbers.get(*index as usize * wide..).and_then(|rest| rest.get(..wide))).flatten();
        numbers.extend_from_slice(row.ok_or_else(|| format!("row {index} is not in a table of {} rows", table.shape[0]))?);
    }
    Ok(Elements { shape, numbers })
}

/// `CONCATENATION` and `PACK`.
fn concat<T: Copy>(operator: &Operator, data: &[&Elements<T>], shape: Vec<usize>) -> Elements<T> {
    let axis = operator.integer("axis").rem_euclid(shape.len() as i32) as usize;
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let mut numbers = Vec::with_capacity(shape.iter().product());
    for i in 0..outer {
        for part in data {
            let wide = if operator.op == BuiltinOp::Pack { inner } else { part.shape[axis] * inner };
            numbers.extend_from_slice(&part.numbers[i * wide..][..wide]);
        }
    }
    Elements { shape, numbers }
}

/// `SPLIT` and `UNPACK`.
fn parts<T: Copy>(operator: &Operator, x: &Elements<T>, axis: usize, model: &TfliteModel) -> Vec<Elements<T>> {
    let count = operator.outputs.len();
    let inner: usize = x.shape[axis + 1..].iter().product::<usize>() * (x.shape[axis] / count);
    let part = |(i, tensor): (usize, &i32)| {
        let numbers = x.numbers.chunks_exact(inner).skip(i).step_by(count).flatten().copied().collect();
        Elements { shape: dims(&model.tensors[*tensor as usize]), numbers }
    };
    operator.outputs.iter().enumerate().map(part).collect()
}

/// Where a slice begins along an axis: numbers below zero count from the end. None outside of the axis.
pub(super) fn slice_start(begin: i64, masked: bool, extent: usize) -> Option<usize> {
    let start = match begin {
        _ if masked => 0,
        ..0 => begin.checked_add(extent as i64)?,
        _ => begin,
    };
    usize::try_from(start).ok()
}
