//! The reference itself, against numbers worked out by hand.

use plimsoll_core::expr::{Binary, Expr};
use plimsoll_core::ops::{AvgPool, Conv2d, MaxPool, Reduction, Window};
use plimsoll_core::random::StepRandom;
use plimsoll_core::reference::{self, Outcome};
use plimsoll_core::{DType, Graph, GraphError, Op, Shape, TensorType, ValueId};

fn run(graph: &Graph, inputs: &[Vec<f64>]) -> Outcome {
    reference::run(graph, 1, inputs, &[], &[], &StepRandom::default())
}

fn image(graph: &mut Graph, height: usize, width: usize, channels: usize) -> ValueId {
    graph.input("x", TensorType::f32(Shape::batch_of([height, width, channels])))
}

fn count_up(n: usize) -> Vec<f64> {
    (1..=n).map(|i| i as f64).collect()
}

#[test]
fn convolution_slides_without_turning_the_filter() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = image(&mut graph, 3, 3, 1);
    let filter = graph.input("filter", TensorType::f32(Shape::fixed([2, 2, 1, 1])));
    let conv = |window| Op::Conv2d(Conv2d { window, groups: 1, epilogue: None, dtype: DType::F32 });
    let valid = graph.add_one(conv(Window::valid((2, 2), (1, 1))), &[x, filter])?;
    let padded = graph.add_one(conv(Window { pad_rows: (1, 0), ..Window::valid((2, 2), (2, 2)) }), &[x, filter])?;
    let dilated = graph.add_one(conv(Window { dilation: (2, 2), ..Window::valid((2, 2), (1, 1)) }), &[x, filter])?;
    let outcome = run(&graph, &[count_up(9), vec![1.0, 10.0, 100.0, 1000.0]]);
    assert_eq!(outcome.value(valid), [5421.0, 6532.0, 8754.0, 9865.0]);
    assert_eq!(outcome.value(padded), [2100.0, 8754.0], "one row of zeros above, every second position");
    assert_eq!(outcome.value(dilated), [9731.0]);
    Ok(())
}

#[test]
fn groups_of_channels_do_not_see_each_other() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = image(&mut graph, 1, 1, 4);
    let filter = graph.input("filter", TensorType::f32(Shape::fixed([1, 1, 2, 4])));
    let op = Conv2d { window: Window::valid((1, 1), (1, 1)), groups: 2, epilogue: None, dtype: DType::F32 };
    let y = graph.add_one(Op::Conv2d(op), &[x, filter])?;
    let outcome = run(&graph, &[vec![1.0, 2.0, 3.0, 4.0], vec![1.0, 2.0, 3.0, 4.0, 10.0, 20.0, 30.0, 40.0]]);
    assert_eq!(outcome.value(y), [1.0 + 20.0, 2.0 + 40.0, 9.0 + 120.0, 12.0 + 160.0]);
    Ok(())
}

#[test]
fn pooling_ignores_padding_and_keeps_nan() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = image(&mut graph, 1, 5, 1);
    let window = Window { pad_columns: (1, 0), ..Window::valid((1, 2), (1, 2)) };
    let largest = graph.add(Op::MaxPool(MaxPool { window }), &[x])?;
    let mean = graph.add_one(Op::AvgPool(AvgPool { window }), &[x])?;
    let outcome = run(&graph, &[vec![-3.0, 2.0, 2.0, 5.0, f64::NAN]]);
    assert_eq!(outcome.value(largest[0])[..2], [-3.0, 2.0], "the zeros around the image never win");
    assert!(outcome.value(largest[0])[2].is_nan());
    assert_eq!(outcome.value(largest[1]), [1.0, 0.0, 1.0], "the first of equals wins");
    assert_eq!(outcome.value(mean)[..2], [-3.0, 2.0], "only elements of the image count");
    Ok(())
}

#[test]
fn whole_numbers_are_cut_toward_zero_and_kept_in_range() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([4])));
    let (int, byte) = (graph.cast(x, DType::I32)?, graph.cast(x, DType::U8)?);
    let outcome = run(&graph, &[vec![-1.7, 2.9, 300.0, 1e12]]);
    assert_eq!(outcome.value(int), [-1.0, 2.0, 300.0, f64::from(i32::MAX)]);
    assert_eq!(outcome.value(byte), [0.0, 2.0, 255.0, 255.0]);
    Ok(())
}

#[test]
fn the_largest_of_equals_is_the_first_and_huge_exponents_do_not_overflow() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let x = graph.input("x", TensorType::f32(Shape::batch_of([3])));
    let at = graph.reduce(Reduction::ArgMax, x, &[1])?;
    let total = graph.reduce(Reduction::LogSumExp, x, &[1])?;
    let outcome = run(&graph, &[vec![1.0, 1000.0, 1000.0]]);
    assert_eq!(outcome.value(at), [1.0]);
    assert!((outcome.value(total)[0] - (1000.0 + 2f64.ln())).abs() < 1e-12);
    Ok(())
}

#[test]
fn a_piece_of_a_batch_draws_what_the_whole_batch_draws_there() -> Result<(), GraphError> {
    let mut graph = Graph::new();
    let shape = Shape::batch_of([3]);
    let stream = graph.stream();
    let drawn = graph.pointwise_over(Expr::build(|e| e.binary(Binary::Add, e.random(stream), e.coordinate(1))), &[], shape)?;
    let at = |rows: usize, first_row: u64| {
        let random = StepRandom { seed: 9, step: 2, first_row };
        reference::run(&graph, rows, &[], &[], &[], &random).value(drawn).to_vec()
    };
    assert_eq!(at(5, 0)[6..], at(3, 2));
    Ok(())
}
