//! Which values mixed precision stores in two bytes, and what the passes make of it.

use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, StateKind};
use plimsoll_core::ops::Reduction;
use plimsoll_core::passes::{mixed, optimize};
use plimsoll_core::selftest::{cases, name_in_table};
use plimsoll_core::{DType, Graph, GraphError, Op, Shape, TensorType, ValueId};
use std::collections::BTreeMap;

fn parameter(g: &mut Graph, name: &str, dims: &[usize]) -> ValueId {
    g.state(name, StateKind::Parameter, TensorType::f32(Shape::fixed(dims.to_vec())), Init::Constant(0.0)).unwrap()
}

fn dense(g: &mut Graph, name: &str, x: ValueId, to: usize) -> Result<ValueId, GraphError> {
    g.in_scope(name, |g| {
        let from = g.shape(x).dims()[1].factor();
        let (kernel, bias) = (parameter(g, "kernel", &[from, to]), parameter(g, "bias", &[to]));
        let product = g.matmul(x, kernel)?;
        g.plus(product, bias)
    })
}

/// The page says of every op what the code does.
#[test]
fn the_table_in_the_documentation_is_the_one_in_the_code() {
    let page = include_str!("../../../../docs/mixed-precision.md");
    let mut table = BTreeMap::new();
    for case in cases(0) {
        for (_, node) in case.graph.nodes() {
            table.insert(name_in_table(&node.op), node.op.rules().precision());
        }
    }
    for (op, treatment) in table {
        let line = format!("| `{op}` | {treatment} |");
        assert!(page.lines().any(|known| known == line), "docs/mixed-precision.md lacks the line\n{line}");
    }
}

#[test]
fn a_cast_behind_a_product_is_the_products_type() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
    let w = parameter(&mut g, "w", &[4, 3]);
    let product = g.matmul(x, w).unwrap();
    let narrow = g.cast(product, DType::F16).unwrap();
    g.output("narrow", narrow);
    insta::assert_snapshot!(optimize(&g).unwrap(), @r#"
    %0 = input "x" : f32[B, 4]
    %1 = state "w" : f32[4, 3]
    %2 = matmul %0, %1 : f16[B, 3]
    output narrow = %2
    "#);
}

#[test]
fn what_follows_a_product_is_rounded_once() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
    let y = dense(&mut g, "first", x, 3).unwrap();
    let y = g.map(y, |e, x| e.binary(Binary::Max, x, e.constant(0.0))).unwrap();
    let y = dense(&mut g, "second", y, 2).unwrap();
    g.output("y", y);
    insta::assert_snapshot!(optimize(&mixed(&g, DType::BF16).unwrap()).unwrap(), @r#"
    %0 = input "x" : f32[B, 4]
    %1 = state "first/kernel" : f32[4, 3]  @first
    %2 = state "first/bias" : f32[3]  @first
    %3 = pointwise {a} %0 : bf16[B, 4]  @first
    %4 = matmul {then max(a + b, 0)} %3, %1, %2 : bf16[B, 3]
    %5 = state "second/kernel" : f32[3, 2]  @second
    %6 = state "second/bias" : f32[2]  @second
    %7 = matmul {then a + b} %4, %5, %6 : f32[B, 2]  @second
    output y = %7
    "#);
}

/// A classifier with its softmax as a layer: scores in two bytes, probabilities and loss in four, targets as they come.
#[test]
fn losses_and_probabilities_stay_in_four_bytes() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::new(DType::U8, Shape::batch_of([4])));
    let target = g.input("target", TensorType::f32(Shape::batch_of([3])));
    let scaled = g.map(x, |e, x| e.mul(x, e.constant(1.0 / 255.0))).unwrap();
    let scores = dense(&mut g, "scores", scaled, 3).unwrap();
    let log_sum = g.reduce(Reduction::LogSumExp, scores, &[1]).unwrap();
    let softmax = Expr::build(|e| e.unary(Unary::Exp, e.sub(e.input(0), e.input(1))));
    let probabilities = g.pointwise(softmax, &[scores, log_sum]).unwrap();
    let entropy = Expr::build(|e| e.mul(e.input(1), e.unary(Unary::Log, e.input(0))));
    let entropy = g.pointwise(entropy, &[probabilities, target]).unwrap();
    let loss = g.sum(entropy).unwrap();
    g.output("loss", loss);
    g.output("probabilities", probabilities);
    insta::assert_snapshot!(mixed(&g, DType::BF16).unwrap(), @r#"
    %0 = input "x" : u8[B, 4]
    %1 = input "target" : f32[B, 3]
    %2 = pointwise {a · 0.003921569} %0 : bf16[B, 4]
    %3 = state "scores/kernel" : f32[4, 3]  @scores
    %4 = state "scores/bias" : f32[3]  @scores
    %5 = matmul %2, %3 : bf16[B, 3]  @scores
    %6 = pointwise {a + b} %5, %4 : bf16[B, 3]  @scores
    %7 = logsumexp {axes 1 of [B, 3]} %6 : f32[B, 1]
    %8 = pointwise {exp(a - b)} %6, %7 : f32[B, 3]
    %9 = pointwise {a · log(b)} %1, %8 : f32[B, 3]
    %10 = sum {axes 0,1 of [B, 3]} %9 : f32[1, 1]
    %11 = reshape %10 : f32[]
    output loss = %11
    output probabilities = %8
    "#);
}

#[test]
fn only_types_of_two_bytes_are_mixed_in() {
    let error = mixed(&Graph::new(), DType::I32).unwrap_err().to_string();
    assert_eq!(error, "activations are stored in bf16 or f16 for mixed precision, not in i32");
}

#[test]
fn a_product_cannot_be_stored_as_whole_numbers() {
    let mut g = Graph::new();
    let x = g.input("x", TensorType::f32(Shape::batch_of([4])));
    let op = plimsoll_core::ops::MatMul { transpose_b: true, dtype: DType::U8, ..Default::default() };
    let w = parameter(&mut g, "w", &[2, 4]);
    let error = g.add(Op::MatMul(op), &[x, w]).unwrap_err().to_string();
    assert!(error.contains("computes real numbers, which cannot be stored as u8; cast the result"), "{error}");
}

/// The constant that wins a maximum must be distinguished from what is rounded to the same number.
#[test]
fn a_bound_that_two_bytes_cannot_hold_is_computed_again() {
    for (bound, reads_result) in [(0.5, true), (0.3, false)] {
        let mut g = Graph::new();
        let x = g.input("x", TensorType::new(DType::BF16, Shape::batch_of([4])));
        let clipped = Expr::build(|e| e.binary(Binary::Max, e.input(0), e.constant(bound)));
        let y = g.pointwise_many(clipped, &[x], Shape::batch_of([4]), vec![DType::BF16]).unwrap()[0];
        let loss = g.sum(y).unwrap();
        let gradient = plimsoll_core::autodiff::gradients(&mut g, loss, &[x]).unwrap()[0];
        assert_eq!(g.producer(gradient).inputs.contains(&y), reads_result, "{g}");
        assert_eq!(g.ty(gradient).dtype, DType::BF16);
    }
}
