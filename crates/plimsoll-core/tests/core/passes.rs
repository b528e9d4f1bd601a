//! Passes: what they make of a training step, and that they change no result.

use crate::support::{graph_from, numbers, parameter, recipes};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::StateId;
use plimsoll_core::ops::{Concat, Conv2d, MatMul, MaxPool, Reduction, Window};
use plimsoll_core::passes::{
    fuse_epilogues, fuse_pointwise, inline_masks, mixed, optimize, pad_classes, read_what_is_kept, remove_dead, simplify, sink_masks,
    split_concats,
};
use plimsoll_core::plan::split::logits_in_blocks;
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::training_programs;
use plimsoll_core::{Bytes, DType, Dim, Graph, GraphError, Op, Shape, TensorType, ValueId, reference, verify};

/// A dense layer with ReLU, mean squared error, and plain descent.
fn training_step() -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([4])));
    let target = graph.input("target", TensorType::f32(Shape::batch_of([3])));
    let batch = graph.scalar("batch");
    let prediction = graph.in_scope("dense", |g| {
        let (kernel, bias) = (parameter(g, "kernel", Shape::fixed([4, 3]))?, parameter(g, "bias", Shape::fixed([3]))?);
        let product = g.matmul(x, kernel)?;
        let sum = g.plus(product, bias)?;
        g.map(sum, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))
    })?;
    let loss = graph.in_scope("loss", |g| {
        let difference = g.binary(Binary::Sub, prediction, target)?;
        let squared = g.times(difference, difference)?;
        let sum = g.sum(squared)?;
        g.binary(Binary::Div, sum, batch)
    })?;
    graph.output("loss", loss);
    let descend = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
        let value = g.state_value(parameter).expect("parameters are read");
        let rate = g.scalar("rate");
        let moved = g.pointwise(Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.input(2)))), &[value, gradient, rate])?;
        g.update(parameter, moved);
        Ok(())
    };
    Ok(training_programs(&graph, loss, false, &descend)?.remove(0).1)
}

#[test]
fn a_training_step_as_written() {
    insta::assert_snapshot!(training_step().unwrap(), @r#"
    %0 = input "x" : f32[B, 4]
    %1 = input "target" : f32[B, 3]
    %2 = scalar "batch" : f32[]
    %3 = state "dense/kernel" : f32[4, 3]  @dense
    %4 = state "dense/bias" : f32[3]  @dense
    %5 = matmul %0, %3 : f32[B, 3]  @dense
    %6 = pointwise {a + b} %5, %4 : f32[B, 3]  @dense
    %7 = pointwise {max(a, 0)} %6 : f32[B, 3]  @dense
    %8 = pointwise {a - b} %7, %1 : f32[B, 3]  @loss
    %9 = pointwise {a · a} %8 : f32[B, 3]  @loss
    %10 = sum {axes 0,1 of [B, 3]} %9 : f32[1, 1]  @loss
    %11 = reshape %10 : f32[]  @loss
    %12 = pointwise {a / b} %11, %2 : f32[]  @loss
    %13 = pointwise {1} : f32[]  @loss ←
    %14 = pointwise {b / a} %2, %13 : f32[]  @loss ←
    %15 = reshape %14 : f32[1, 1]  @loss ←
    %16 = pointwise {a} %15 : f32[B, 3]  @loss ←
    %17 = pointwise {b · a + b · a} %8, %16 : f32[B, 3]  @loss ←
    %18 = pointwise {a} %17 : f32[B, 3]  @loss ←
    %19 = pointwise {select(less(0, a), b, 0)} %7, %18 : f32[B, 3]  @dense ←
    %20 = pointwise {a} %19 : f32[B, 3]  @dense ←
    %21 = pointwise {a} %19 : f32[B, 3]  @dense ←
    %22 = sum {axes 0 of [B, 3]} %21 : f32[1, 3]  @dense ←
    %23 = reshape %22 : f32[3]  @dense ←
    %24 = matmul {aᵀ} %0, %20 : f32[4, 3]  @dense ←
    %25 = scalar "rate" : f32[]  @dense/kernel ↻
    %26 = pointwise {a - b · c} %3, %24, %25 : f32[4, 3]  @dense/kernel ↻
    %27 = pointwise {a - b · c} %4, %23, %25 : f32[3]  @dense/bias ↻
    output loss = %12
    update dense/kernel = %26
    update dense/bias = %27
    "#);
}

#[test]
fn a_training_step_improved() {
    insta::assert_snapshot!(optimize(&training_step().unwrap()).unwrap(), @r#"
    %0 = input "x" : f32[B, 4]
    %1 = input "target" : f32[B, 3]
    %2 = scalar "batch" : f32[]
    %3 = state "dense/kernel" : f32[4, 3]  @dense
    %4 = state "dense/bias" : f32[3]  @dense
    %5 = matmul {then max(a + b, 0)} %0, %3, %4 : f32[B, 3]  @dense
    %6 = pointwise {a - b} %5, %1 : f32[B, 3]  @loss
    %7 = sum {a · a, axes 0,1 of [B, 3]} %6 : f32[1, 1]  @loss
    %8 = reshape %7 : f32[]  @loss
    %9 = pointwise {a / b} %8, %2 : f32[]  @loss
    %10 = pointwise {1 / a} %2 : f32[]  @loss ←
    %11 = reshape %10 : f32[1, 1]  @loss ←
    %12 = pointwise {select(less(0, a), c · b + c · b, 0)} %5, %6, %11 : f32[B, 3]  @dense ←
    %13 = sum {axes 0 of [B, 3]} %12 : f32[1, 3]  @dense ←
    %14 = reshape %13 : f32[3]  @dense ←
    %15 = matmul {aᵀ} %0, %12 : f32[4, 3]  @dense ←
    %16 = scalar "rate" : f32[]  @dense/kernel ↻
    %17 = pointwise {a - b · c} %3, %15, %16 : f32[4, 3]  @dense/kernel ↻
    %18 = pointwise {a - b · c} %4, %14, %16 : f32[3]  @dense/bias ↻
    output loss = %9
    update dense/kernel = %17
    update dense/bias = %18
    "#);
}

#[test]
fn equal_things_are_computed_once_and_dead_ones_never() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([2])));
    let (first, second) = (graph.unary(Unary::Exp, x)?, graph.unary(Unary::Exp, x)?);
    let both = graph.plus(first, second)?;
    graph.unary(Unary::Log, both)?;
    let zeros = graph.full(0.0, Shape::batch_of([2]))?;
    let same = graph.plus(both, zeros)?;
    graph.output("both", same);
    insta::assert_snapshot!(remove_dead(&simplify(&graph)), @r#"
    %0 = input "x" : f32[B, 2]
    %1 = pointwise {exp(a)} %0 : f32[B, 2]
    %2 = pointwise {a + a} %1 : f32[B, 2]
    output both = %2
    "#);
    Ok(())
}

type Pass = fn(&Graph) -> Graph;

#[test]
fn each_pass_alone_and_all_together_change_no_result() {
    let passes: [(&str, Pass); 8] = [
        ("simplify", simplify),
        ("remove_dead", remove_dead),
        ("fuse_pointwise", fuse_pointwise),
        ("fuse_epilogues", fuse_epilogues),
        ("split_concats", split_concats),
        ("read_what_is_kept", |graph| read_what_is_kept(&fuse_pointwise(graph))),
        ("inline_masks", |graph| inline_masks(&fuse_pointwise(graph))),
        ("optimize", |graph| optimize(graph).unwrap()),
    ];
    for recipe in recipes(150, 14) {
        let graph = graph_from(&recipe);
        let want = run(&graph);
        for (name, pass) in passes {
            let improved = pass(&graph);
            verify(&improved).unwrap_or_else(|error| panic!("{name}: {error}\n{graph}\n{improved}"));
            let got = run(&improved);
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let close = |(got, want): (&f64, &f64)| {
                    (got - want).abs() <= 1e-9 * want.abs().max(1.0) || got.is_nan() && want.is_nan() || got == want
                };
                assert!(got.iter().zip(want).all(close), "{name} changes result {i}\n{graph}\n{improved}");
            }
        }
    }
}

/// All outputs and all states after one run.
fn run(graph: &Graph) -> Vec<Vec<f64>> {
    let rows = 3;
    let inputs: Vec<Vec<f64>> =
        graph.inputs().iter().enumerate().map(|(i, input)| numbers(input.ty.shape.elements().bind(rows), i as u32)).collect();
    let states: Vec<Vec<f64>> =
        graph.states().iter().enumerate().map(|(i, state)| numbers(state.ty.shape.elements().bind(rows), 50 + i as u32)).collect();
    let outcome = reference::run(graph, rows, &inputs, &states, &[], &StepRandom::default());
    outcome.outputs().iter().map(|(_, elements)| elements.clone()).chain(outcome.states().to_vec()).collect()
}

/// Two convolutions with ReLU, the first pooled (windows that overlap) and also read as it is, as networks with skips
/// do.
fn pooled_step(skip: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([6, 6, 2])));
    let convolved = |g: &mut Graph, name: &str, x: ValueId, stride: usize| {
        let filter = parameter(g, name, Shape::fixed([3, 3, 2, 2]))?;
        let window = Window::same((3, 3), (stride, stride), (1, 1), (6, 6));
        let y = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[x, filter])?;
        g.map(y, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))
    };
    let large = convolved(&mut g, "first", x, 1)?;
    let window = Window::same((3, 3), (2, 2), (1, 1), (6, 6));
    let small = g.add(Op::MaxPool(MaxPool { window }), &[large])?[0];
    let mut last = g.times(small, small)?;
    if skip {
        let other = convolved(&mut g, "second", large, 2)?;
        last = g.times(last, other)?;
    }
    let loss = g.sum(last)?;
    g.output("loss", loss);
    let descend = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
        let value = g.state_value(parameter).expect("parameters are read");
        let moved = g.binary(Binary::Sub, value, gradient)?;
        g.update(parameter, moved);
        Ok(())
    };
    Ok(training_programs(&g, loss, false, &descend)?.remove(0).1)
}

#[test]
fn masks_are_read_off_what_was_pooled() {
    for skip in [false, true] {
        let fused =
            [simplify, remove_dead, fuse_pointwise, remove_dead].iter().fold(pooled_step(skip).unwrap(), |graph, pass| pass(&graph));
        let sunk = remove_dead(&sink_masks(&fused));
        verify(&sunk).unwrap();
        let x = numbers(5 * 72, 3);
        let states: Vec<Vec<f64>> = fused.states().iter().enumerate().map(|(i, _)| numbers(36, i as u32)).collect();
        let run = |graph: &Graph| reference::run(graph, 5, std::slice::from_ref(&x), &states, &[], &StepRandom::default());
        let (before, after) = (run(&fused), run(&sunk));
        assert_eq!((before.outputs(), before.states()), (after.outputs(), after.states()), "skip {skip}");
        // The gradient of pooling is final: no mask over the large tensor follows it.
        let pooled = sunk.nodes().find(|(_, node)| matches!(node.op, Op::MaxPoolGrad(_))).expect("pooling is differentiated").1;
        let readers: Vec<_> = sunk.nodes().filter(|(_, node)| node.inputs.contains(&pooled.outputs[0])).map(|(_, node)| node).collect();
        let masked = |op: &Op| matches!(op, Op::Pointwise(op) if op.expr.to_string().contains("select"));
        assert!(!readers.is_empty() && readers.iter().all(|node| !masked(&node.op)), "skip {skip}\n{sunk}");
    }
}

/// Two values joined and convolved, scaled per channel as a normalisation does, cut by ReLU, and convolved again.
fn joined_step(apart: bool) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([5, 5, 2])));
    let parts = [g.map(x, |e, x| e.mul(x, x))?, g.map(x, |e, x| e.add(x, e.constant(1.0)))?];
    let joined = g.add_one(Op::Concat(Concat { axis: 3 }), &parts)?;
    let filter = parameter(&mut g, "filter", Shape::fixed([3, 3, 4, 2]))?;
    let window = Window::same((3, 3), (1, 1), (1, 1), (5, 5));
    let y = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[joined, filter])?;
    let scale = parameter(&mut g, "scale", Shape::fixed([2]))?;
    let normal = g.times(y, scale)?;
    let cut = g.map(normal, |e, x| e.binary(Binary::Max, x, e.constant(0.0)))?;
    let second = parameter(&mut g, "second", Shape::fixed([3, 3, 2, 2]))?;
    let window = Window::same((3, 3), (1, 1), (1, 1), (5, 5));
    let z = g.add_one(Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 }), &[cut, second])?;
    let squares = g.times(z, z)?;
    let loss = g.sum(squares)?;
    g.output("loss", loss);
    let g = if apart { remove_dead(&split_concats(&g)) } else { g };
    let loss = g.outputs()[0].1;
    let descend = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
        let value = g.state_value(parameter).expect("parameters are read");
        let moved = g.binary(Binary::Sub, value, gradient)?;
        g.update(parameter, moved);
        Ok(())
    };
    Ok(training_programs(&g, loss, false, &descend)?.remove(0).1)
}

#[test]
fn convolutions_of_joined_channels_are_taken_apart_and_learn_the_same() {
    let (whole, apart) = (joined_step(false).unwrap(), joined_step(true).unwrap());
    let named = |graph: &Graph, name: &str| graph.nodes().filter(|(_, node)| node.op.rules().name() == name).count();
    assert_eq!((named(&whole, "concat"), named(&whole, "conv2d")), (1, 2));
    assert_eq!((named(&apart, "concat"), named(&apart, "conv2d")), (0, 3), "{apart}");
    for graph in [&apart, &optimize(&apart).unwrap(), &optimize(&whole).unwrap()] {
        for (got, want) in run(graph).iter().flatten().zip(run(&whole).iter().flatten()) {
            assert!((got - want).abs() <= 1e-9 * want.abs().max(1.0), "{got} where {want} was\n{graph}");
        }
    }
}

#[test]
fn masks_are_read_off_what_is_kept_for_the_next_gradient_anyway() {
    let graph = simplify(&remove_dead(&fuse_pointwise(&remove_dead(&simplify(&joined_step(false).unwrap())))));
    let masks = |graph: &Graph| -> Vec<bool> {
        let convolved: Vec<ValueId> = graph.nodes().filter(|(_, n)| n.op.rules().name() == "conv2d").map(|(_, n)| n.outputs[0]).collect();
        let cut = graph.nodes().filter(|(_, n)| matches!(&n.op, Op::Pointwise(op) if format!("{op:?}").contains("Select")));
        cut.map(|(_, n)| n.inputs.iter().any(|input| convolved.contains(input))).collect()
    };
    assert_eq!((masks(&graph), masks(&read_what_is_kept(&graph))), (vec![false], vec![true]), "{graph}");
}

/// The gradient of a scale and the gradient before it both recompute the mask, instead of reading a masked gradient.
#[test]
fn masks_are_recomputed_by_their_consumers() {
    let graph = simplify(&remove_dead(&fuse_pointwise(&remove_dead(&simplify(&joined_step(false).unwrap())))));
    let graph = read_what_is_kept(&graph);
    let inlined = remove_dead(&inline_masks(&graph));
    let count = |graph: &Graph, wanted: fn(&str) -> bool| {
        let texts = graph.nodes().map(|(_, node)| node.op.rules().attributes());
        texts.filter(|text| wanted(text)).count()
    };
    let alone = |text: &str| text.starts_with("select(") && text.ends_with(", 0)");
    let any = |text: &str| text.contains("select(");
    assert_eq!((count(&graph, alone), count(&graph, any)), (1, 1), "{graph}");
    assert_eq!((count(&inlined, alone), count(&inlined, any)), (0, 2), "{inlined}");
    for (got, want) in run(&inlined).iter().flatten().zip(run(&graph).iter().flatten()) {
        assert_eq!(got, want, "{inlined}");
    }
}

#[test]
fn passes_before_gradients_preserve_stopped_gradients() {
    let mut g = Graph::new();
    let weights = parameter(&mut g, "weights", Shape::fixed([3])).unwrap();
    let stopped = g.stop_gradient(weights).unwrap();
    let products = g.times(weights, stopped).unwrap();
    let loss = g.sum(products).unwrap();
    g.output("loss", loss);
    let g = split_concats(&g);
    let descend = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
        let value = g.state_value(parameter).expect("parameters are read");
        let moved = g.binary(Binary::Sub, value, gradient)?;
        g.update(parameter, moved);
        Ok(())
    };
    let step = training_programs(&g, g.outputs()[0].1, false, &descend).unwrap().remove(0).1;
    // The gradient of w · stopped(w) is w, not 2w.
    assert_eq!(run(&step).last().unwrap(), &[0.0; 3], "{step}");
}

/// A step of a classifier of every position of a sequence, with a softmax cross-entropy, in mixed precision. With
/// `smooth`, the loss reads all logits.
fn language_step(classes: usize, smooth: bool) -> Result<Graph, GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([8, 4])));
    let y = graph.input("y", TensorType::new(DType::I32, Shape::batch_of([8])));
    let table = graph.in_scope("tokens", |g| parameter(g, "table", Shape::fixed([classes, 4])))?;
    let rows = |width: usize| Shape::new([Dim::times_batch(8), Dim::fixed(width)]);
    let (x, y) = (graph.reshape(x, rows(4))?, graph.reshape(y, rows(1))?);
    let logits = graph.add_one(Op::MatMul(MatMul { transpose_b: true, ..MatMul::default() }), &[x, table])?;
    let normalizer = graph.reduce(Reduction::LogSumExp, logits, &[1])?;
    let own = graph.pointwise(
        Expr::build(|e| {
            let is_label = e.binary(Binary::Equal, e.coordinate(1), e.input(1));
            let else_ = if smooth { e.mul(e.input(0), e.constant(0.01)) } else { e.constant(0.0) };
            e.select(is_label, e.sub(e.input(2), e.input(0)), else_)
        }),
        &[logits, y, normalizer],
    )?;
    let losses = graph.reduce(Reduction::Sum, own, &[1])?;
    let loss = graph.sum(losses)?;
    graph.output("loss", loss);
    let best = graph.reduce(Reduction::ArgMax, logits, &[1])?;
    graph.output("best", best);
    let graph = mixed(&graph, DType::BF16)?;
    let loss = graph.outputs()[0].1;
    let replace = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
        g.update(parameter, gradient);
        Ok(())
    };
    optimize(&training_programs(&graph, loss, false, &replace)?.remove(0).1)
}

fn widths_of_products(graph: &Graph) -> Vec<usize> {
    let products = graph.nodes().filter(|(_, node)| matches!(node.op, Op::MatMul(_)));
    products.map(|(_, node)| graph.shape(node.outputs[0]).bind(3).into_iter().max().unwrap()).collect()
}

#[test]
fn logits_of_odd_vocabularies_are_padded_and_computed_in_blocks_without_changing_results() {
    let (classes, rows) = (4099, 3);
    let plain = language_step(classes, false).unwrap();
    let padded = pad_classes(&plain);
    verify(&padded).unwrap();
    let (before, after) = (widths_of_products(&plain), widths_of_products(&padded));
    assert!(before.contains(&classes) && !after.contains(&classes), "{before:?}, then {after:?}");
    let bytes = Bytes((rows * 8 * 4104 * 2) as u64);
    let blocks = logits_in_blocks(&padded, rows, Bytes(bytes.0 / 4)).unwrap();
    verify(&blocks).unwrap();
    let largest = |graph: &Graph| {
        graph
            .nodes()
            .flat_map(|(_, node)| &node.outputs)
            .filter(|value| graph.shape(**value).has_batch())
            .map(|value| graph.ty(*value).bytes(rows))
            .max()
    };
    assert_eq!((largest(&padded), largest(&blocks)), (Some(bytes), Some(Bytes(bytes.0 / 4))));
    let inputs = vec![numbers(rows * 32, 1), (0..rows * 8).map(|i| (i * 509 % classes) as f64).collect()];
    let states = vec![numbers(classes * 4, 2)];
    let run = |graph: &Graph| reference::run(graph, rows, &inputs, &states, &[], &StepRandom::default());
    let want = run(&plain);
    for graph in [&padded, &blocks] {
        let got = run(graph);
        for name in ["loss", "best"] {
            let pairs = want.output(name).unwrap().iter().zip(got.output(name).unwrap());
            pairs.for_each(|(want, got)| assert!((want - got).abs() <= 1e-9 * want.abs().max(1.0), "{name}: {got} instead of {want}"));
        }
        let pairs = want.states()[0].iter().zip(&got.states()[0]);
        assert!(pairs.clone().count() == classes * 4 && pairs.clone().any(|(want, _)| *want != 0.0));
        pairs.for_each(|(want, got)| assert!((want - got).abs() <= 1e-9 * want.abs().max(1.0), "{got} instead of {want}"));
    }
}

#[test]
fn logits_are_padded_only_where_no_consumer_sees_it() {
    // Whole vectors; few classes; a loss that reads all logits.
    for (classes, smooth) in [(4104, false), (37, false), (4099, true)] {
        let plain = language_step(classes, smooth).unwrap();
        assert_eq!(pad_classes(&plain).to_string(), plain.to_string(), "{classes} {smooth}");
    }
    // Blocks are for large logits only.
    assert!(logits_in_blocks(&language_step(4099, false).unwrap(), 3, Bytes::mib(512)).is_none());
    assert!(logits_in_blocks(&training_step().unwrap(), 1 << 20, Bytes::mib(1)).is_none());
}
