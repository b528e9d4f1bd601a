//! Tensors that are joined, on the device: however they come together, a step learns the same bits, and growing wholes hold less.

use super::images::{convolution, normalised};
use super::planned::{Draw, after_steps, assert_sound, learning, placed};
use plimsoll_core::expr::Binary;
use plimsoll_core::ops::Concat;
use plimsoll_core::plan::{Joining, as_written, check_same, join, layout, sequence};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Device, Dim, Graph, GraphError, Op, Shape, TensorType, ValueId};
use plimsoll_cpu::CpuDevice;
use std::sync::Arc;

fn relu(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    g.map(x, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))
}

fn concat(g: &mut Graph, axis: usize, parts: &[ValueId]) -> Result<ValueId, GraphError> {
    g.add_one(Op::Concat(Concat { axis }), parts)
}

/// Blocks in which every layer reads all before it, or branches that are joined and read by several; with and without batch statistics.
fn joining_graph(seed: u32) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut draw = Draw::new(seed);
        let mut g = Graph::new();
        let (side, colours) = (5 + draw.below(4), 1 + draw.below(3));
        let x = g.input("x", TensorType::f32(Shape::batch_of([side, side, colours])));
        let mut x = g.in_scope("stem", |g| convolution(g, &mut draw, x, 8))?;
        for block in 0..1 + draw.below(2) {
            x = g.in_scope(&format!("block{block}"), |g| {
                if draw.below(3) > 0 {
                    return grown(g, &mut draw, x);
                }
                let mut parts = Vec::new();
                for branch in 0..2 + draw.below(3) {
                    let width = 1 + draw.below(12);
                    parts.push(g.in_scope(&format!("branch{branch}"), |g| layer(g, &mut draw, x, width))?);
                }
                // Sometimes one of them twice, or what all began with.
                match draw.below(4) {
                    0 => parts.push(parts[0]),
                    1 => parts.push(x),
                    _ => {}
                }
                concat(g, 3, &parts)
            })?;
        }
        let elements = g.shape(x).elements().factor();
        let last = g.reshape(x, Shape::new([Dim::BATCH, elements.into()]))?;
        learning(g, last)
    };
    build().expect("every draw gives a legal graph")
}

/// A convolution that keeps height and width, behind statistics or before ReLU.
fn layer(g: &mut Graph, draw: &mut Draw, x: ValueId, width: usize) -> Result<ValueId, GraphError> {
    let normal = if draw.below(2) == 0 { normalised(g, x)? } else { x };
    let dims = g.shape(normal).bind(1);
    let size = 1 + 2 * draw.below(2);
    let window = plimsoll_core::ops::Window::same((size, size), (1, 1), (1, 1), (dims[1], dims[2]));
    let filter = super::images::parameter(g, "filter", &[size, size, dims[3], width])?;
    let op = plimsoll_core::ops::Conv2d { window, groups: 1, epilogue: None, dtype: plimsoll_core::DType::F32 };
    let convolved = g.add_one(Op::Conv2d(op), &[normal, filter])?;
    if draw.below(3) == 0 { Ok(convolved) } else { relu(g, convolved) }
}

/// Every layer reads all that was joined before, and its result is joined to it.
fn grown(g: &mut Graph, draw: &mut Draw, x: ValueId) -> Result<ValueId, GraphError> {
    let mut all = x;
    for i in 0..2 + draw.below(4) {
        let width = 1 + draw.below(9);
        all = g.in_scope(&format!("layer{i}"), |g| {
            let normal = normalised(g, all)?;
            let cut = relu(g, normal)?;
            let new = g.in_scope("new", |g| layer(g, draw, cut, width))?;
            concat(g, 3, &[all, new])
        })?;
    }
    Ok(all)
}

#[test]
fn however_they_are_joined_a_step_learns_the_same_bits() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1));
    let (mut put, mut shared, mut smaller) = (0, 0, 0);
    for seed in 0..60 {
        let graph = joining_graph(seed);
        let rows = 1 + Draw::new(seed + 3_000_000).below(20);
        let copied = placed(as_written(&graph, rows, &*device).unwrap(), rows, &*device);
        let bound = copied.lower_bound;
        assert_sound(&copied, &graph, &*device);
        let wanted = after_steps(&device, copied);
        for how in [Joining::Putting, Joining::Sharing] {
            let Some(joined) = join(&graph, how, &[], &*device) else { continue };
            check_same(&graph, &joined, &*device, rows).unwrap();
            let plan = placed(as_written(&joined, rows, &*device).unwrap(), rows, &*device);
            assert_eq!(plan.programs[0].graph.joining(), how);
            assert_sound(&plan, &graph, &*device);
            assert_eq!(after_steps(&device, plan), wanted, "seed {seed}, {how:?}");
            if how == Joining::Sharing { shared += 1 } else { put += 1 }
        }
        let chosen = layout(&[(Role::Step, graph.clone())], rows, &*device).unwrap();
        assert!(chosen.lower_bound <= bound, "seed {seed}: {} where copying holds {bound}", chosen.lower_bound);
        assert_sound(&chosen, &graph, &*device);
        smaller += usize::from(chosen.lower_bound < bound);
        assert_eq!(after_steps(&device, chosen), wanted, "seed {seed}");
    }
    assert!(put > 50 && shared > 30 && smaller > 30, "{put} put, {shared} shared, {smaller} smaller");
}

/// A block of eight layers keeps its last whole instead of all of them.
#[test]
fn wholes_that_grow_out_of_each_other_are_one() {
    const ROWS: usize = 8;
    let build = || -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([16, 16, 3])));
        let mut draw = Draw::new(7);
        let mut all = g.in_scope("stem", |g| layer(g, &mut draw, x, 16))?;
        for i in 0..8 {
            all = g.in_scope(&format!("layer{i}"), |g| {
                let normal = normalised(g, all)?;
                let cut = relu(g, normal)?;
                let filter = super::images::parameter(g, "filter", &[1, 1, 16 + 8 * i, 8])?;
                let window = plimsoll_core::ops::Window::same((1, 1), (1, 1), (1, 1), (16, 16));
                let op = plimsoll_core::ops::Conv2d { window, groups: 1, epilogue: None, dtype: plimsoll_core::DType::F32 };
                let new = g.add_one(Op::Conv2d(op), &[cut, filter])?;
                concat(g, 3, &[all, new])
            })?;
        }
        let last = g.reshape(all, Shape::new([Dim::BATCH, (16 * 16 * 80).into()]))?;
        learning(g, last)
    };
    let graph = build().expect("legal shapes");
    let device = CpuDevice::new(1);
    let copied = placed(as_written(&graph, ROWS, &device).unwrap(), ROWS, &device);
    let plan = placed(sequence(&graph, ROWS, &device).unwrap(), ROWS, &device);
    assert_eq!(plan.programs[0].graph.joining(), Joining::Sharing);
    // What was joined before the last, and what it began with: 16, 24, … 72 channels.
    let before = Bytes((0..8).map(|i| 4 * ROWS as u64 * 16 * 16 * (16 + 8 * i)).sum());
    let saved = copied.lower_bound.saturating_sub(plan.lower_bound);
    assert!(saved.0 * 4 >= before.0 * 3, "{} instead of {}: {saved} of {before}", plan.lower_bound, copied.lower_bound);
}
