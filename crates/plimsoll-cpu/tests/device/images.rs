//! Batches of images in pieces, on the device: whatever is cut, a step learns the same bits.

use super::planned::{Draw, after_steps, alike, answer, learning};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, StateKind};
use plimsoll_core::ops::{AvgPool, Conv2d, MaxPool, Reduction, Window};
use plimsoll_core::plan::check_equivalence;
use plimsoll_core::plan::split::{pieces, split};
use plimsoll_core::{Bytes, DType, Device, Graph, GraphError, Op, Shape, TensorType, ValueId};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

fn side(g: &Graph, x: ValueId) -> (usize, usize) {
    let dims = g.shape(x).bind(1);
    (dims[1], dims[3])
}

pub(crate) fn parameter(g: &mut Graph, name: &str, dims: &[usize]) -> Result<ValueId, GraphError> {
    g.state(name, StateKind::Parameter, TensorType::f32(Shape::fixed(dims.iter().copied())), Init::Uniform { limit: 0.3 })
}

pub(crate) fn convolution(g: &mut Graph, draw: &mut Draw, x: ValueId, out: usize) -> Result<ValueId, GraphError> {
    let (side, channels) = side(g, x);
    let size = [1, 2, 3, 3][draw.below(4)].min(side);
    let stride = 1 + draw.below(2);
    let each = draw.below(4) == 0;
    let (groups, out) = if each { (channels, channels) } else { (1, out) };
    let window = match draw.below(3) {
        0 => Window::valid((size, size), (stride, stride)),
        _ => Window::same((size, size), (stride, stride), (1, 1), (side, side)),
    };
    let filter = parameter(g, "filter", &[size, size, channels / groups, out])?;
    g.add_one(Op::Conv2d(Conv2d { window, groups, epilogue: None, dtype: DType::F32 }), &[x, filter])
}

/// Towards mean 0 and variance 1, over the batch and all places.
pub(crate) fn normalised(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    let (side, channels) = side(g, x);
    let share = 1.0 / (side * side * 40) as f32;
    let sum = g.reduce(Reduction::Sum, x, &[0, 1, 2])?;
    let mean = g.map(sum, |e, x| e.mul(x, e.constant(share)))?;
    let fixed = g.stop_gradient(mean)?;
    let centred = Expr::build(|e| e.mul(e.sub(e.input(0), e.input(1)), e.sub(e.input(0), e.input(1))));
    let squares = g.pointwise(centred, &[x, fixed])?;
    let squares = g.reduce(Reduction::Sum, squares, &[0, 1, 2])?;
    let scale = g.map(squares, |e, x| e.unary(Unary::Recip, e.unary(Unary::Sqrt, e.add(e.mul(x, e.constant(share)), e.constant(0.01)))))?;
    let beta = parameter(g, "beta", &[channels])?;
    g.pointwise(Expr::build(|e| e.add(e.mul(e.sub(e.input(0), e.input(1)), e.input(2)), e.input(3))), &[x, mean, scale, beta])
}

/// Convolutions, their biases or batch statistics, poolings and residuals, the first by far the largest; then a dense
/// layer.
fn image_graph(seed: u32) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut draw = Draw::new(seed);
        let mut g = Graph::new();
        let (start, colours) = (10 + draw.below(9), 1 + draw.below(3));
        let mut x = g.input("x", TensorType::f32(Shape::batch_of([start, start, colours])));
        for i in 0..1 + draw.below(3) {
            let out = if i == 0 { 16 + 4 * draw.below(5) } else { 8 };
            x = g.in_scope(&format!("layer{i}"), |g| {
                let mut y = convolution(g, &mut draw, x, out)?;
                match draw.below(3) {
                    0 => {
                        let bias = parameter(g, "bias", &[side(g, y).1])?;
                        y = g.plus(y, bias)?;
                    }
                    _ => y = normalised(g, y)?,
                }
                if draw.below(3) > 0 {
                    y = g.map(y, |e, y| e.binary(Binary::Max, y, e.constant(0.0)))?;
                }
                if g.shape(x) == g.shape(y) && draw.below(2) == 0 {
                    y = g.plus(x, y)?;
                }
                let edge = side(g, y).0;
                match draw.below(4) {
                    0 | 1 if edge > 3 => {
                        let window = Window::same((3, 3), (2, 2), (1, 1), (edge, edge));
                        Ok(g.add(Op::MaxPool(MaxPool { window }), &[y])?[0])
                    }
                    2 if edge > 1 => g.add_one(Op::AvgPool(AvgPool { window: Window::valid((2, 2), (2, 2)) }), &[y]),
                    _ => Ok(y),
                }
            })?;
        }
        let channels = side(&g, x).1;
        let means = g.reduce(Reduction::Sum, x, &[1, 2])?;
        let means = g.reshape(means, Shape::batch_of([channels]))?;
        let head = g.in_scope("head", |g| parameter(g, "kernel", &[channels, 10]))?;
        let last = g.matmul(means, head)?;
        learning(g, last)
    };
    build().expect("every draw gives a legal graph")
}

#[test]
fn pieces_of_a_batch_learn_the_same_bits_in_fewer_bytes() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2).unwrap());
    let (mut cut, mut smaller, mut met, mut several) = (0, 0, 0, 0);
    for seed in 0..120 {
        let graph = image_graph(seed);
        let mut draw = Draw::new(seed + 3_000_000);
        let rows = 40 + draw.below(80);
        let Some(most) = pieces(&graph, rows, &*device, 8) else { continue };
        let asked = (2..=most).filter(|asked| split(&graph, rows, &*device, *asked).is_some()).nth(draw.below(2)).unwrap_or(most);
        let in_pieces = split(&graph, rows, &*device, asked).unwrap();
        plimsoll_core::verify(&in_pieces).unwrap();
        check_equivalence(&graph, &in_pieces, &*device, rows).unwrap();
        cut += 1;
        let sums = |graph: &Graph| graph.nodes().filter(|(_, node)| matches!(&node.op, Op::Conv2d(_))).count();
        several += usize::from(sums(&in_pieces) > asked + sums(&graph));
        let (arena, less, wanted) = alike(&graph, &in_pieces, rows, &device, seed);
        smaller += usize::from(less);
        let limit = Bytes(arena * (60 + draw.below(40) as u64) / 100);
        if let Some(plan) = answer(&in_pieces, &graph, rows, &device, limit) {
            assert_eq!(after_steps(&device, plan), wanted, "seed {seed}, with recomputed values");
            met += 1;
        }
    }
    assert!(
        cut > 20 && several > 20 && smaller * 2 > cut && met > 2,
        "{cut} were cut, {several} in several passes, {smaller} are smaller, {met} met a lower limit"
    );
}
