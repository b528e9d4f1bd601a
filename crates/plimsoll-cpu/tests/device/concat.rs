//! Concats on the device: with every strategy a step produces the same bits, and nested concats take less memory.

use super::images::{convolution, normalised};
use super::planned::{Draw, after_steps, assert_sound, learning, learning_in, placed};
use plimsoll_core::device::StepInputs;
use plimsoll_core::expr::{Binary, Unary};
use plimsoll_core::graph::ConcatStrategy;
use plimsoll_core::ops::{Concat, Conv2d, Conv2dGradInput};
use plimsoll_core::plan::CheckedPlan;
use plimsoll_core::plan::split::{pieces, split};
use plimsoll_core::plan::{as_written, check_equivalence, fuse_slice_writes, layout, rewrite_concats, schedule};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, Device, Dim, Executor, Graph, GraphError, Ledger, Op, Shape, TensorType, ValueId};
use plimsoll_cpu::CpuDevice;
use std::collections::BTreeMap;
use std::sync::Arc;

fn relu(g: &mut Graph, x: ValueId) -> Result<ValueId, GraphError> {
    g.map(x, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))
}

fn concat(g: &mut Graph, axis: usize, parts: &[ValueId]) -> Result<ValueId, GraphError> {
    g.add_one(Op::Concat(Concat { axis }), parts)
}

/// Blocks in which every layer reads all before it, or branches that are joined and read by several; with and without
/// batch statistics.
fn joining_graph(seed: u32, dtype: Option<DType>) -> Graph {
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
        learning_in(dtype, g, last)
    };
    build().expect("every draw gives a legal graph")
}

/// A convolution or a transposed one that keeps height and width, behind statistics or before ReLU.
fn layer(g: &mut Graph, draw: &mut Draw, x: ValueId, width: usize) -> Result<ValueId, GraphError> {
    let normal = if draw.below(2) == 0 { normalised(g, x)? } else { x };
    let dims = g.shape(normal).bind(1);
    let size = 1 + 2 * draw.below(2);
    let window = plimsoll_core::ops::Window::same((size, size), (1, 1), (1, 1), (dims[1], dims[2]));
    let convolved = if draw.below(5) == 0 {
        let filter = super::images::parameter(g, "filter", &[size, size, width, dims[3]])?;
        let op = Conv2dGradInput { window, groups: 1, input: g.shape(normal).with(3, width.into()), dtype: DType::F32 };
        g.add_one(Op::Conv2dGradInput(op), &[filter, normal])?
    } else {
        let filter = super::images::parameter(g, "filter", &[size, size, dims[3], width])?;
        g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[normal, filter])?
    };
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

/// Branches of products, expressions and pieces of them, joined along any axis but the batch's, several times over.
fn flat_joining_graph(seed: u32, dtype: Option<DType>) -> Graph {
    let build = || -> Result<Graph, GraphError> {
        let mut draw = Draw::new(seed);
        let mut g = Graph::new();
        let start = 3 + draw.below(20);
        let mut x = g.input("x", TensorType::f32(Shape::batch_of([start])));
        for block in 0..1 + draw.below(3) {
            x = g.in_scope(&format!("block{block}"), |g| {
                let from = g.shape(x).dims()[1].factor();
                let mut parts = Vec::new();
                for branch in 0..2 + draw.below(3) {
                    let width = 2 + draw.below(40);
                    let part = g.in_scope(&format!("branch{branch}"), |g| {
                        let kernel = super::images::parameter(g, "kernel", &[from, width])?;
                        let product = g.matmul(x, kernel)?;
                        match draw.below(4) {
                            0 => Ok(product),
                            1 => g.unary(Unary::Tanh, product),
                            _ => {
                                let bias = super::images::parameter(g, "bias", &[width])?;
                                let biased = g.plus(product, bias)?;
                                relu(g, biased)
                            }
                        }
                    })?;
                    parts.push(part);
                }
                let joined = concat(g, 1, &parts)?;
                // Once more, as planes that are joined along their rows or columns.
                let width = g.shape(joined).dims()[1].factor();
                let plane = g.reshape(joined, Shape::new([Dim::BATCH, width.into(), 1.into()]))?;
                let (other, axis) = (g.unary(Unary::Tanh, plane)?, 1 + draw.below(2));
                let doubled = g.map(plane, |e, x| e.mul(x, e.constant(0.5)))?;
                let planes = concat(g, axis, &[other, doubled])?;
                g.reshape(planes, Shape::new([Dim::BATCH, (2 * width).into()]))
            })?;
        }
        learning_in(dtype, g, x)
    };
    build().expect("every draw gives a legal graph")
}

/// The producers of a graph whose slice writes are fused.
fn makers(graph: &Graph) -> Vec<&'static str> {
    graph
        .nodes()
        .filter(|(_, node)| matches!(node.op, Op::FusedSliceWrite(_)))
        .map(|(_, node)| graph.effective_op(node).op.rules().name())
        .collect()
}

#[test]
fn however_they_are_joined_a_step_learns_the_same_bits() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
    let several: Arc<dyn Device> = Arc::new(CpuDevice::new(3).unwrap());
    let (mut put, mut shared, mut smaller, mut concats_fused) = (0, 0, 0, BTreeMap::new());
    for seed in 0..90 {
        let graph = match seed % 6 {
            0..3 => joining_graph(seed, None),
            3 => flat_joining_graph(seed, None),
            4 => joining_graph(seed, Some(DType::BF16)),
            _ => flat_joining_graph(seed, Some(DType::F16)),
        };
        let rows = 1 + Draw::new(seed + 3_000_000).below(20);
        let copied = placed(as_written(&graph, rows, &*device).unwrap(), rows, &*device);
        let bound = copied.lower_bound;
        assert_sound(&copied, &graph, &*device);
        let wanted = after_steps(&device, copied);
        for how in [ConcatStrategy::SliceWrite, ConcatStrategy::SharedBuffer] {
            let Some(joined) = rewrite_concats(&graph, how, &[], &*device) else { continue };
            check_equivalence(&graph, &joined, &*device, rows).unwrap();
            let plan = placed(as_written(&joined, rows, &*device).unwrap(), rows, &*device);
            assert_eq!(plan.programs[0].graph.joining(), how);
            assert_sound(&plan, &graph, &*device);
            assert_eq!(after_steps(&device, plan), wanted, "seed {seed}, {how:?}");
            if how == ConcatStrategy::SharedBuffer {
                shared += 1
            } else {
                put += 1
            }
            // At any number of threads a fused slice write gives the bits of a copied slice.
            let Some(made) = fuse_slice_writes(&joined, &*device) else { continue };
            makers(&made).into_iter().for_each(|maker| *concats_fused.entry(maker).or_insert(0) += 1);
            check_equivalence(&graph, &made, &*device, rows).unwrap();
            for device in [&device, &several] {
                let plan = placed(as_written(&made, rows, &**device).unwrap(), rows, &**device);
                assert_sound(&plan, &graph, &**device);
                assert_eq!(after_steps(device, plan), wanted, "seed {seed}, {how:?}, fused slice writes");
            }
        }
        let chosen = layout(&[(Role::Step, graph.clone())], rows, &*device).unwrap();
        assert!(chosen.lower_bound <= bound, "seed {seed}: {} where copying holds {bound}", chosen.lower_bound);
        assert_sound(&chosen, &graph, &*device);
        smaller += usize::from(chosen.lower_bound < bound);
        assert_eq!(after_steps(&device, chosen), wanted, "seed {seed}");
    }
    assert!(put > 70 && shared > 40 && smaller > 20, "{put} put, {shared} shared, {smaller} smaller");
    let often = |maker: &str| concats_fused.get(maker).is_some_and(|count| *count > 20);
    assert!(["pointwise", "matmul", "conv2d", "conv2d_grad_input"].into_iter().all(often), "{concats_fused:?}");
}

/// Micro-batches are concatenated along the batch, and written straight into the concat output.
#[test]
fn pieces_of_a_batch_are_written_into_the_concat_output() {
    let device: Arc<dyn Device> = Arc::new(CpuDevice::new(2).unwrap());
    let mut made = 0;
    for seed in 0..40 {
        let graph = joining_graph(seed, None);
        let rows = 40 + Draw::new(seed + 4_000_000).below(60);
        let Some(in_pieces) = pieces(&graph, rows, &*device, 8).and_then(|most| split(&graph, rows, &*device, most)) else { continue };
        let Some(joined) = rewrite_concats(&in_pieces, ConcatStrategy::SliceWrite, &[], &*device) else { continue };
        let Some(concats_fused) = fuse_slice_writes(&joined, &*device) else { continue };
        made += makers(&concats_fused).len();
        check_equivalence(&graph, &concats_fused, &*device, rows).unwrap();
        let wanted = after_steps(&device, placed(as_written(&graph, rows, &*device).unwrap(), rows, &*device));
        let plan = placed(as_written(&concats_fused, rows, &*device).unwrap(), rows, &*device);
        assert_sound(&plan, &graph, &*device);
        assert_eq!(after_steps(&device, plan), wanted, "seed {seed}");
    }
    assert!(made > 50, "{made} were written straight into the concat output");
}

/// A part that is not finite is found where it is made, whatever lies beside it.
#[test]
fn a_broken_part_is_named_by_what_makes_it() {
    let build = |broken: usize| -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::f32(Shape::batch_of([3, 5])));
        let mut parts = Vec::new();
        for branch in 0..3 {
            let scale = if branch == broken { f32::MAX } else { 1.0 };
            parts.push(g.in_scope(&format!("branch{branch}"), |g| g.map(x, |e, x| e.mul(e.unary(Unary::Exp, x), e.constant(scale))))?);
        }
        let all = concat(&mut g, 2, &parts)?;
        let sum = g.sum(all)?;
        g.output("loss", sum);
        Ok(g)
    };
    for broken in 0..3 {
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
        let graph = build(broken).expect("legal shapes");
        let joined = rewrite_concats(&graph, ConcatStrategy::SliceWrite, &[], &*device)
            .and_then(|joined| fuse_slice_writes(&joined, &*device))
            .expect("there is a join");
        let plan = placed(as_written(&joined, 4, &*device).unwrap(), 4, &*device);
        let mut executor = Executor::new(device.clone(), CheckedPlan::new(plan).unwrap(), &Ledger::new("host", None)).unwrap();
        let column: Vec<u8> = (0..60).flat_map(|i| (1.0 + i as f32 / 60.0).to_ne_bytes()).collect();
        let inputs = StepInputs { columns: &[&column], scalars: &[], random: StepRandom::default() };
        let node = executor.find_non_finite(Role::Step, 4, Some(&inputs)).unwrap().expect("something is not finite");
        assert_eq!(executor.plan().programs[0].graph.node(node).scope, format!("branch{broken}"));
    }
}

/// A block of eight layers keeps its last whole instead of all of them.
#[test]
fn nested_concats_share_one_buffer() {
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
    let device = CpuDevice::new(1).unwrap();
    let copied = placed(as_written(&graph, ROWS, &device).unwrap(), ROWS, &device);
    let plan = placed(schedule(&graph, ROWS, &device).unwrap(), ROWS, &device);
    assert_eq!(plan.programs[0].graph.joining(), ConcatStrategy::SharedBuffer);
    // What was joined before the last, and what it began with: 16, 24, … 72 channels.
    let before = Bytes((0..8).map(|i| 4 * ROWS as u64 * 16 * 16 * (16 + 8 * i)).sum());
    let saved = copied.lower_bound.saturating_sub(plan.lower_bound);
    assert!(saved.0 * 4 >= before.0 * 3, "{} instead of {}: {saved} of {before}", plan.lower_bound, copied.lower_bound);
}
