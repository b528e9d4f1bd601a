//! Products, reductions and functions of elements.

use super::{Elements, RowTensor, RunResult};
use plimsoll_formats::tflite::{BuiltinOp, Operator};

/// The scalar product, in lanes that the compiler vectorizes.
pub(super) fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0_f32; LANES];
    let (left, right) = (a.chunks_exact(LANES), b.chunks_exact(LANES));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in left.zip(right) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

pub(super) fn fully_connected(x: &Elements, kernel: &Elements, bias: Option<&Elements>, shape: Vec<usize>) -> Elements {
    let (units, features) = (kernel.shape[0], kernel.shape[1]);
    let mut numbers = Vec::with_capacity(x.numbers.len() / features.max(1) * units);
    for row in x.numbers.chunks_exact(features) {
        let unit = |(i, weights): (usize, &[f32])| dot(row, weights) + bias.map_or(0.0, |bias| bias.numbers[i]);
        numbers.extend(kernel.numbers.chunks_exact(features).enumerate().map(unit));
    }
    Elements { shape, numbers }
}

pub(super) fn batch_matmul(operator: &Operator, a: &Elements, b: &Elements, shape: Vec<usize>) -> Elements {
    let matrix = |x: &Elements| (x.shape[x.shape.len() - 2], x.shape[x.shape.len() - 1]);
    let (left, right) = (transposed(a, operator.integer("adj_x") != 0), transposed(b, operator.integer("adj_y") == 0));
    let (rows, columns) = (shape[shape.len() - 2], shape[shape.len() - 1]);
    let depth = if operator.integer("adj_x") != 0 { matrix(a).0 } else { matrix(a).1 };
    let batches: usize = shape[..shape.len() - 2].iter().product();
    let mut numbers = Vec::with_capacity(batches * rows * columns);
    // One matrix serves all of the batch where the other has more.
    let (lefts, rights) = (left.len() / (rows * depth), right.len() / (columns * depth));
    for batch in 0..batches {
        let left = &left[(batch % lefts) * rows * depth..][..rows * depth];
        let right = &right[(batch % rights) * columns * depth..][..columns * depth];
        for row in left.chunks_exact(depth) {
            numbers.extend(right.chunks_exact(depth).map(|column| dot(row, column)));
        }
    }
    Elements { shape, numbers }
}

/// The elements with the last two axes swapped, or as they are.
pub(super) fn transposed<T: Copy>(x: &Elements<T>, swap: bool) -> Vec<T> {
    let (rows, columns) = (x.shape[x.shape.len() - 2], x.shape[x.shape.len() - 1]);
    if !swap {
        return x.numbers.clone();
    }
    let mut numbers = Vec::with_capacity(x.numbers.len());
    for matrix in x.numbers.chunks_exact(rows * columns) {
        (0..columns).for_each(|column| numbers.extend((0..rows).map(|row| matrix[row * columns + column])));
    }
    numbers
}

pub(super) fn softmax(x: &Elements, log: bool) -> Elements {
    let last = x.shape.last().copied().unwrap_or(1);
    let mut numbers = Vec::with_capacity(x.numbers.len());
    for row in x.numbers.chunks_exact(last) {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = row.iter().map(|x| (x - most).exp()).sum();
        numbers.extend(row.iter().map(|x| if log { x - most - sum.ln() } else { (x - most).exp() / sum }));
    }
    Elements { shape: x.shape.clone(), numbers }
}

/// For every element, where it goes when these axes are reduced.
pub(super) fn reduced_places(shape: &[usize], axes: &[usize]) -> (Vec<usize>, usize) {
    let (mut strides, mut size) = (vec![0; shape.len()], 1);
    for axis in (0..shape.len()).rev().filter(|axis| !axes.contains(axis)) {
        strides[axis] = size;
        size *= shape[axis];
    }
    let total: usize = shape.iter().product();
    let place = |mut i: usize| {
        let mut at = 0;
        for axis in (0..shape.len()).rev() {
            at += i % shape[axis] * strides[axis];
            i /= shape[axis];
        }
        at
    };
    ((0..total).map(place).collect(), size)
}

pub(super) fn axes_of(axes: &Elements, rank: usize) -> Vec<usize> {
    axes.numbers.iter().map(|axis| (*axis as i64).rem_euclid(rank as i64) as usize).collect()
}

pub(super) fn reduce(op: BuiltinOp, x: &Elements, axes: &Elements, shape: Vec<usize>) -> Elements {
    let (places, size) = reduced_places(&x.shape, &axes_of(axes, x.shape.len()));
    let start = if op == BuiltinOp::ReduceMax { f64::NEG_INFINITY } else { 0.0 };
    let mut sums = vec![start; size];
    for (number, at) in x.numbers.iter().zip(places) {
        sums[at] = if op == BuiltinOp::ReduceMax { sums[at].max(f64::from(*number)) } else { sums[at] + f64::from(*number) };
    }
    let count = if op == BuiltinOp::Mean { (x.numbers.len() / size.max(1)) as f64 } else { 1.0 };
    Elements { shape, numbers: sums.iter().map(|sum| (sum / count) as f32).collect() }
}

pub(super) fn arg_max(x: &Elements, axis: &Elements, shape: Vec<usize>) -> Elements {
    let axis = axes_of(axis, x.shape.len());
    let (places, size) = reduced_places(&x.shape, &axis);
    let mut best = vec![(f32::NEG_INFINITY, 0); size];
    let inner: usize = x.shape[axis[0] + 1..].iter().product();
    for (i, (number, at)) in x.numbers.iter().zip(places).enumerate() {
        if *number > best[at].0 {
            best[at] = (*number, i / inner % x.shape[axis[0]]);
        }
    }
    Elements { shape, numbers: best.iter().map(|(_, at)| *at as f32).collect() }
}

/// A function of two tensors that broadcast to a shape.
pub(super) fn broadcast(a: &Elements, b: &Elements, shape: Vec<usize>, of: fn(f32, f32) -> f32) -> Elements {
    if a.shape == shape && b.shape == shape {
        let numbers = a.numbers.iter().zip(&b.numbers).map(|(a, b)| of(*a, *b)).collect();
        return Elements { shape, numbers };
    }
    let (left, right) = (super::movement::broadcast_places(&a.shape, &shape), super::movement::broadcast_places(&b.shape, &shape));
    let numbers = left.zip(right).map(|(i, j)| of(a.numbers[i], b.numbers[j])).collect();
    Elements { shape, numbers }
}

pub(super) fn select(condition: &Elements, a: &Elements, b: &Elements, shape: Vec<usize>) -> Elements {
    let places = |x: &Elements| super::movement::broadcast_places(&x.shape, &shape);
    let (c, left, right) = (places(condition), places(a), places(b));
    let numbers = c.zip(left.zip(right)).map(|(c, (i, j))| if condition.numbers[c] != 0.0 { a.numbers[i] } else { b.numbers[j] }).collect();
    Elements { shape: shape.clone(), numbers }
}

pub(super) fn unary(operator: &Operator) -> Option<Box<dyn Fn(f32) -> f32>> {
    let of: fn(f32) -> f32 = match operator.op {
        BuiltinOp::Relu => |x| x.max(0.0),
        BuiltinOp::Relu6 => |x| x.clamp(0.0, 6.0),
        BuiltinOp::Logistic => sigmoid,
        BuiltinOp::Tanh => f32::tanh,
        BuiltinOp::Exp => f32::exp,
        BuiltinOp::Log => f32::ln,
        BuiltinOp::Sqrt => f32::sqrt,
        BuiltinOp::Rsqrt => |x| 1.0 / x.sqrt(),
        BuiltinOp::Square => |x| x * x,
        BuiltinOp::Neg => |x| -x,
        BuiltinOp::Abs => f32::abs,
        BuiltinOp::Floor => f32::floor,
        BuiltinOp::Sign => |x| if x == 0.0 { 0.0 } else { x.signum() },
        BuiltinOp::HardSwish => |x| x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        BuiltinOp::Elu => |x| if x < 0.0 { x.exp_m1() } else { x },
        BuiltinOp::Gelu if operator.integer("approximate") != 0 => |x| 0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh()),
        BuiltinOp::Gelu => |x| 0.5 * x * (1.0 + erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2) as f32),
        BuiltinOp::LeakyRelu => {
            let alpha = operator.number("alpha");
            return Some(Box::new(move |x| if x < 0.0 { alpha * x } else { x }));
        }
        _ => return None,
    };
    Some(Box::new(of))
}

pub(super) fn binary(op: BuiltinOp) -> Option<fn(f32, f32) -> f32> {
    Some(match op {
        BuiltinOp::Add => |a, b| a + b,
        BuiltinOp::Sub => |a, b| a - b,
        BuiltinOp::Mul => |a, b| a * b,
        BuiltinOp::Div => |a, b| a / b,
        BuiltinOp::Maximum => f32::max,
        BuiltinOp::Minimum => f32::min,
        BuiltinOp::Pow => f32::powf,
        BuiltinOp::SquaredDifference => |a, b| (a - b) * (a - b),
        BuiltinOp::Less => |a, b| f32::from(u8::from(a < b)),
        BuiltinOp::LessEqual => |a, b| f32::from(u8::from(a <= b)),
        BuiltinOp::Equal => |a, b| f32::from(u8::from(a == b)),
        BuiltinOp::LogicalAnd => |a, b| f32::from(u8::from(a != 0.0 && b != 0.0)),
        _ => return None,
    })
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The error function by its series, or its continued fraction where that converges faster.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term.abs() > 1e-17 * sum.abs() && n < 200.0 {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let fraction = (1..=60).rev().fold(a, |below, k| a + f64::from(k) / 2.0 / below);
        1.0 - (-a * a).exp() / fraction / std::f64::consts::PI.sqrt()
    };
    value.copysign(x)
}

/// An LSTM over one row: gates input, forget, candidate, output.
pub(super) fn lstm(read: &[Option<&RowTensor>], shape: Vec<usize>) -> RunResult<[Elements; 2]> {
    let input = |i: usize| read.get(i).copied().flatten().ok_or_else(|| format!("input {i} is missing"))?.real();
    let x = input(0)?;
    let (features, units) = (x.shape[2], shape[2]);
    let (mut hidden, mut cell) = (vec![0.0; units], vec![0.0; units]);
    let size = shape.iter().product();
    let (mut numbers, mut cells) = (Vec::with_capacity(size), Vec::with_capacity(size));
    for step in x.numbers.chunks_exact(features) {
        let mut gates = Vec::with_capacity(4);
        for gate in 0..4 {
            let (kernel, recurrent, bias) = (input(1 + gate)?, input(5 + gate)?, input(12 + gate)?);
            let unit = |unit: usize| {
                let own = dot(step, &kernel.numbers[unit * features..][..features]);
                own + dot(&hidden, &recurrent.numbers[unit * units..][..units]) + bias.numbers[unit]
            };
            gates.push((0..units).map(unit).collect::<Vec<f32>>());
        }
        for unit in 0..units {
            let kept = sigmoid(gates[1][unit]) * cell[unit];
            cell[unit] = kept + sigmoid(gates[0][unit]) * gates[2][unit].tanh();
            hidden[unit] = sigmoid(gates[3][unit]) * cell[unit].tanh();
        }
        numbers.extend_from_slice(&hidden);
        cells.extend_from_slice(&cell);
    }
    Ok([Elements { shape: shape.clone(), numbers }, Elements { shape, numbers: cells }])
}

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn the_error_function_is_exact_to_single_precision() {
        for (x, wanted) in
            [(0.0, 0.0), (0.5, 0.520_499_877_8), (-1.0, -0.842_700_792_9), (2.4, 0.999_311_486_1), (2.6, 0.999_763_965_6), (5.0, 1.0)]
        {
            assert!((erf(x) - wanted).abs() < 1e-9, "{x}: {}", erf(x));
        }
    }
}
