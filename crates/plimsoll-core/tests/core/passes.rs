//! Passes: what they make of a training step, and that they change no result.

use crate::support::{graph_from, numbers, parameter, recipes};
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::StateId;
use plimsoll_core::ops::{Concat, Conv2d, MaxPool, Window};
use plimsoll_core::passes::{
    fuse_epilogues, fuse_pointwise, inline_masks, optimize, read_what_is_kept, remove_dead, simplify, sink_masks, split_concats,
};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::training_programs;
use plimsoll_core::{DType, Graph, GraphError, Op, Shape, TensorType, ValueId, reference, verify};

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

/// Two convolutions with ReLU, the first pooled (windows that overlap) and also read as it is, as networks with skips do.
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
