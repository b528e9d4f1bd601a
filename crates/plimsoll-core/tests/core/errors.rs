//! Graphs that cannot be: the message names the layer and the shapes.

use crate::support::parameter;
use plimsoll_core::autodiff::gradients;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Init, StateId, StateKind};
use plimsoll_core::ops::{
    Attention, AvgPool, Cell, Concat, Conv2d, Conv2dGradFilter, Conv2dGradInput, Gather, MatMul, MaxPool, Packing, Recurrent, Reshape,
    ScatterAdd, Slice, Window,
};
use plimsoll_core::{DType, Dim, Graph, GraphError, Op, Shape, TensorType, ValueId, verify};

/// The message of building something wrong in the layer `encoder/dense`, from images `[B, 8, 8, 3]` and a matrix
/// `[4, 5]`.
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
        g.add(Op::Conv2dGradFilter(Conv2dGradFilter { window, groups: 1, filter: Shape::fixed([3, 3, 3, 4]), onto: false }), &[images, dy])
    }), @"layer `encoder/dense`: a gradient of [B, 6, 5, 4] does not belong to an image of [B, 8, 8, 3] and a filter of [3, 3, 3, 4]");
    insta::assert_snapshot!(message(|g, _, _| {
        let (filter, dy) = (parameter(g, "filter", Shape::fixed([3, 3, 3, 4]))?, g.input("dy", TensorType::f32(Shape::batch_of([6, 6, 5]))));
        g.add(Op::Conv2dGradInput(Conv2dGradInput { window, groups: 1, input: Shape::batch_of([8, 8, 3]), dtype: DType::F32 }), &[filter, dy])
    }), @"layer `encoder/dense`: a gradient of [B, 6, 6, 5] does not belong to an image of [B, 8, 8, 3] and a filter of [3, 3, 3, 4]");
}

#[test]
fn recurrent_layers_say_what_they_read() {
    let lstm = |units, masked| Op::Recurrent(Recurrent { cell: Cell::Lstm, units, reverse: true, masked, initial: false });
    let sequence = |g: &mut Graph| g.input("x", TensorType::f32(Shape::batch_of([5, 12])));
    insta::assert_snapshot!(message(|g, images, matrix| g.add(lstm(3, false), &[images, matrix])), @"layer `encoder/dense`: takes a sequence [batch, steps, features], but the projected input has the shape [B, 8, 8, 3]");
    insta::assert_snapshot!(message(|g, _, matrix| { let x = sequence(g); g.add(lstm(4, false), &[x, matrix]) }), @"layer `encoder/dense`: a step of 4 units of lstm reads 16 features, but the projected input is f32[B, 5, 12]");
    insta::assert_snapshot!(message(|g, _, matrix| { let x = sequence(g); g.add(lstm(3, false), &[x, matrix]) }), @"layer `encoder/dense`: the recurrent kernel should have the shape [3, 12], but is f32[4, 5]");
    insta::assert_snapshot!(message(|g, _, matrix| { let x = sequence(g); g.add(lstm(3, true), &[x, matrix]) }), @"layer `encoder/dense`: a walk of lstm, 3 units, backwards, masked does not take 2 tensors");
    insta::assert_snapshot!(message(|g, _, _| {
        let (x, kernel) = (sequence(g), parameter(g, "kernel", Shape::fixed([3, 12]))?);
        let mask = g.input("mask", TensorType::new(DType::I32, Shape::batch_of([5])));
        g.add(lstm(3, true), &[x, kernel, mask])
    }), @"layer `encoder/dense`: the mask is u8 or real, but is i32[B, 5]; cast it first");
    insta::assert_snapshot!(message(|g, _, _| {
        let (x, kernel) = (sequence(g), parameter(g, "kernel", Shape::fixed([3, 12]))?);
        let gates = g.add(lstm(3, false), &[x, kernel])?[1];
        let loss = g.sum(gates)?;
        gradients(g, loss, &[kernel])
    }), @"layer `encoder/dense`: the gates of a recurrent layer are kept for its gradient and cannot be differentiated");
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

#[test]
fn tables_and_row_numbers_must_go_together() {
    let numbers = |g: &mut Graph, dtype| g.input("numbers", TensorType::new(dtype, Shape::batch_of([7])));
    insta::assert_snapshot!(message(|g, images, _| {
        let numbers = numbers(g, DType::I32);
        g.gather(images, numbers)
    }), @"layer `encoder/dense`: takes a table [rows, …] that does not depend on the batch, but got the shape [B, 8, 8, 3]");
    insta::assert_snapshot!(message(|g, _, matrix| {
        let numbers = numbers(g, DType::F32);
        g.gather(matrix, numbers)
    }), @"layer `encoder/dense`: takes row numbers in i32 or u8, but got f32[B, 7]; cast them first");
    insta::assert_snapshot!(message(|g, _, matrix| {
        let numbers = numbers(g, DType::U8);
        g.add(Op::Gather(Gather { dtype: DType::I32 }), &[matrix, numbers])
    }), @"layer `encoder/dense`: gives real numbers, but is asked for i32");
    insta::assert_snapshot!(message(|g, _, matrix| {
        let numbers = numbers(g, DType::U8);
        g.add(Op::ScatterAdd(ScatterAdd { table: Shape::fixed([9, 5]), onto: false }), &[numbers, matrix])
    }), @"layer `encoder/dense`: rows [4, 5] at [B, 7] do not belong to a table of [9, 5]");
}

#[test]
fn sequences_must_go_together() {
    let sequence = |g: &mut Graph, dims: [usize; 2]| g.input("sequence", TensorType::f32(Shape::batch_of(dims)));
    let attention = |heads, kv_heads, packing| Op::Attention(Attention { kv_heads, ..Attention::new(packing, heads, 4) });
    insta::assert_snapshot!(message(|g, images, _| g.add(attention(2, 2, Packing::All), &[images])), @"layer `encoder/dense`: takes sequences [batch, length, width], but got the shape [B, 8, 8, 3]");
    insta::assert_snapshot!(message(|g, _, _| {
        let qkv = sequence(g, [9, 20]);
        g.add(attention(2, 2, Packing::All), &[qkv])
    }), @"layer `encoder/dense`: cannot cut the shape [B, 9, 20] into 6 parts of equal depth");
    insta::assert_snapshot!(message(|g, _, _| {
        let q = sequence(g, [9, 12]);
        g.add(attention(3, 2, Packing::Separate), &[q, q, q])
    }), @"layer `encoder/dense`: cannot share 2 heads of keys among 3 heads of queries");
    insta::assert_snapshot!(message(|g, _, _| {
        let (q, k, v) = (sequence(g, [9, 12]), sequence(g, [8, 12]), sequence(g, [7, 12]));
        g.add(attention(3, 3, Packing::Separate), &[q, k, v])
    }), @"layer `encoder/dense`: shapes [B, 9, 12], [B, 8, 12], [B, 7, 12] do not go together (3 heads of queries, 3 of keys)");
    insta::assert_snapshot!(message(|g, _, _| {
        let q = sequence(g, [9, 12]);
        g.add(attention(3, 3, Packing::Separate), &[q, q])
    }), @"layer `encoder/dense`: takes 3 tensors, or 4 with a mask of the keys, but got 2");
    insta::assert_snapshot!(message(|g, _, _| {
        let (q, kv) = (sequence(g, [9, 12]), sequence(g, [8, 24]));
        let mask = g.input("mask", TensorType::new(DType::U8, Shape::batch_of([9])));
        g.add(attention(3, 3, Packing::KeysValues), &[q, kv, mask])
    }), @"layer `encoder/dense`: takes a mask [B, 8] of the keys, but got u8[B, 9]");
    insta::assert_snapshot!(message(|g, _, _| {
        let q = sequence(g, [9, 12]);
        let results = g.add(attention(3, 3, Packing::Separate), &[q, q, q])?;
        let loss = g.sum(results[1])?;
        plimsoll_core::autodiff::gradients(g, loss, &[q])
    }), @"layer `encoder/dense`: the log-sum-exp of attention is a statistic; a loss cannot depend on it");
}
