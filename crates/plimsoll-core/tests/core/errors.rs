//! Graphs that cannot be: the message names the layer and the shapes.

use crate::support::parameter;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::ops::{AvgPool, Concat, Conv2d, Conv2dGradFilter, Conv2dGradInput, MatMul, MaxPool, Reshape, Slice, Window};
use plimsoll_core::{DType, Dim, Graph, GraphError, Op, Shape, TensorType, ValueId, verify};

/// The message of building something wrong in the layer `encoder/dense`, from images `[B, 8, 8, 3]` and a matrix `[4, 5]`.
fn message<T>(build: impl FnOnce(&mut Graph, ValueId, ValueId) -> Result<T, GraphError>) -> String {
    let mut graph = Graph::new();
    let images = graph.input("images", TensorType::f32(Shape::batch_of([8, 8, 3])));
    let matrix = parameter(&mut graph, "matrix", Shape::fixed([4, 5])).unwrap();
    let built = graph.in_scope("encoder", |g| g.in_scope("dense", |g| build(g, images, matrix)));
    built.err().expect("this cannot be built").to_string()
}

#[test]
fn states_have_names_of_their_own_and_do_not_grow_with_the_batch() {
    insta::assert_snapshot!(message(|g, _, _| {
        parameter(g, "kernel", Shape::fixed([2]))?;
        parameter(g, "kernel", Shape::fixed([2]))
    }), @"layer `encoder/dense`: there are two tensors named `encoder/dense/kernel`; give the layers different names");
    insta::assert_snapshot!(message(|g, _, _| parameter(g, "kernel", Shape::batch_of([2]))), @"layer `encoder/dense`: `encoder/dense/kernel` has the shape [B, 2], but a kept tensor cannot depend on the batch");
}

#[test]
fn shapes_that_do_not_go_together_are_named() {
    insta::assert_snapshot!(message(|g, _, matrix| g.matmul(matrix, matrix)), @"layer `encoder/dense`: shapes [4, 5] and [4, 5] do not go together: 5 columns meet 4 rows");
    insta::assert_snapshot!(message(|g, images, matrix| g.matmul(images, matrix)), @"layer `encoder/dense`: multiplies matrices, but got the shapes [B, 8, 8, 3] and [4, 5]");
    insta::assert_snapshot!(message(|g, images, matrix| g.plus(images, matrix)), @"layer `encoder/dense`: shapes [B, 8, 8, 3] and [4, 5] do not go together");
    insta::assert_snapshot!(message(|g, images, _| g.add(Op::Reshape(Reshape { shape: Shape::batch_of([100]) }), &[images])), @"layer `encoder/dense`: [B, 8, 8, 3] has 192B elements and cannot become [B, 100], which has 100B");
    insta::assert_snapshot!(message(|g, images, _| g.add(Op::Slice(Slice { axis: 3, start: 2, length: 2 }), &[images])), @"layer `encoder/dense`: cannot take 2..4 along axis 3 of [B, 8, 8, 3]");
    insta::assert_snapshot!(message(|g, images, matrix| g.add(Op::Concat(Concat { axis: 1 }), &[images, matrix])), @"layer `encoder/dense`: f32[B, 8, 8, 3] and f32[4, 5] cannot be joined along axis 1");
}

#[test]
fn windows_must_fit_their_images() {
    let conv = |window, groups| Op::Conv2d(Conv2d { window, groups, epilogue: None, dtype: DType::F32 });
    insta::assert_snapshot!(message(|g, images, _| {
        let filter = parameter(g, "filter", Shape::fixed([3, 3, 4, 8]))?;
        g.add(conv(Window::valid((3, 3), (1, 1)), 1), &[images, filter])
    }), @"layer `encoder/dense`: shapes [B, 8, 8, 3] and [3, 3, 4, 8] do not go together (1 groups)");
    insta::assert_snapshot!(message(|g, images, _| {
        let filter = parameter(g, "filter", Shape::fixed([9, 3, 3, 8]))?;
        g.add(conv(Window::valid((9, 3), (1, 1)), 1), &[images, filter])
    }), @"layer `encoder/dense`: a 9×3 window does not fit into an image of 8×8");
    insta::assert_snapshot!(message(|g, images, _| g.add(Op::MaxPool(MaxPool { window: Window::valid((17, 17), (1, 1)) }), &[images])), @"layer `encoder/dense`: a 17×17 window has more than 255 places");
    insta::assert_snapshot!(message(|g, images, _| {
        let window = Window { pad_rows: (2, 2), ..Window::valid((2, 2), (2, 2)) };
        g.add(Op::AvgPool(AvgPool { window }), &[images])
    }), @"layer `encoder/dense`: the padding of the window 2×2, stride 2×2, pad 2+2 0+0 is as large as the window");
    insta::assert_snapshot!(message(|g, _, matrix| g.add(Op::AvgPool(AvgPool { window: Window::valid((2, 2), (2, 2)) }), &[matrix])), @"layer `encoder/dense`: takes images [batch, height, width, channels], but got the shape [4, 5]");
}

#[test]
fn windows_of_nothing_and_steps_of_nothing_are_refused_not_computed() {
    for (size, stride) in [((0, 3), (1, 1)), ((3, 3), (1, 0))] {
        let window = Window::same(size, stride, (1, 1), (8, 8));
        assert!(window.output((8, 8)).is_err(), "{window}");
    }
}

#[test]
fn whole_numbers_are_not_read_as_if_they_were_real() {
    let pixels = |g: &mut Graph| g.input("pixels", TensorType::new(DType::U8, Shape::batch_of([8, 8, 3])));
    insta::assert_snapshot!(message(|g, _, _| {
        let (pixels, filter) = (pixels(g), parameter(g, "filter", Shape::fixed([1, 1, 3, 8]))?);
        g.add(Op::Conv2d(Conv2d { window: Window::valid((1, 1), (1, 1)), groups: 1, epilogue: None, dtype: DType::F32 }), &[pixels, filter])
    }), @"layer `encoder/dense`: takes real numbers, but got u8[B, 8, 8, 3]; cast it first");
    insta::assert_snapshot!(message(|g, _, _| {
        let pixels = pixels(g);
        g.add(Op::MaxPool(MaxPool { window: Window::valid((2, 2), (2, 2)) }), &[pixels])
    }), @"layer `encoder/dense`: takes real numbers, but got u8[B, 8, 8, 3]; cast it first");
    insta::assert_snapshot!(message(|g, _, matrix| {
        let tokens = g.input("tokens", TensorType::new(DType::I32, Shape::batch_of([4])));
        g.matmul(tokens, matrix)
    }), @"layer `encoder/dense`: takes real numbers, but got i32[B, 4]; cast it first");
}

#[test]
fn a_gradient_must_belong_to_its_convolution() {
    let window = Window::valid((3, 3), (1, 1));
    insta::assert_snapshot!(message(|g, images, _| {
        let dy = g.input("dy", TensorType::f32(Shape::batch_of([6, 5, 4])));
        g.add(Op::Conv2dGradFilter(Conv2dGradFilter { window, groups: 1, filter: Shape::fixed([3, 3, 3, 4]) }), &[images, dy])
    }), @"layer `encoder/dense`: a gradient of [B, 6, 5, 4] does not belong to an image of [B, 8, 8, 3] and a filter of [3, 3, 3, 4]");
    insta::assert_snapshot!(message(|g, _, _| {
        let (filter, dy) = (parameter(g, "filter", Shape::fixed([3, 3, 3, 4]))?, g.input("dy", TensorType::f32(Shape::batch_of([6, 6, 5]))));
        g.add(Op::Conv2dGradInput(Conv2dGradInput { window, groups: 1, input: Shape::batch_of([8, 8, 3]), dtype: DType::F32 }), &[filter, dy])
    }), @"layer `encoder/dense`: a gradient of [B, 6, 6, 5] does not belong to an image of [B, 8, 8, 3] and a filter of [3, 3, 3, 4]");
}

#[test]
fn a_state_changes_once_and_keeps_its_type() {
    let refused = |build: fn(&mut Graph) -> Result<(), GraphError>| {
        let mut graph = Graph::new();
        build(&mut graph).unwrap();
        verify(&graph).unwrap_err().to_string()
    };
    insta::assert_snapshot!(refused(|g| {
        let w = g.state("w", StateKind::Parameter, TensorType::f32(Shape::fixed([2])), Init::Constant(0.0))?;
        g.update(StateId(0), w);
        g.update(StateId(0), w);
        Ok(())
    }), @"`w` is changed twice in one step");
    insta::assert_snapshot!(refused(|g| {
        let w = parameter(g, "w", Shape::fixed([2]))?;
        let whole = g.cast(w, DType::I32)?;
        g.update(StateId(0), whole);
        Ok(())
    }), @"`w` is f32[2] and cannot become %1");
    insta::assert_snapshot!(refused(|g| {
        let x = g.input("x", TensorType::f32(Shape::batch_of([2])));
        let op = MatMul { transpose_b: true, ..Default::default() };
        g.in_scope("attention", |g| g.add(Op::MatMul(op), &[x, x]))?;
        Ok(())
    }), @"layer `attention`: matmul (node 1): the shape [B, B] has the batch in it twice");
}

/// What an element is must not depend on how the batch is cut into pieces.
#[test]
fn positions_that_a_cut_batch_would_change_are_refused() {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([3])));
    let rows = graph.map(x, |e, x| e.add(x, e.coordinate(0))).unwrap_err();
    insta::assert_snapshot!(rows, @"asks for the row's number in [B, 3], which changes when the batch is cut into pieces");
    let across = Shape::new([3.into(), Dim::BATCH]);
    let draws = graph.pointwise_over(Expr::build(|e| e.random(0)), &[], across).unwrap_err();
    insta::assert_snapshot!(draws, @"draws random numbers over [3, B]; the batch must come first, so that pieces of it draw the same");
}
