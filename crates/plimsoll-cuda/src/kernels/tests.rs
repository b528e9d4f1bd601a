//! The text of kernels, as a reader and the compiler see it.

use super::*;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::{Reduction, Window};

fn site<'a>(expr: &'a Expr, dims: &'a [usize], operands: &'a [Operand<'a>], row: u64) -> Site<'a> {
    Site { expr, dims, operands, row, at_hand: &[] }
}

fn floats(dims: &[usize]) -> Operand<'_> {
    Operand { dtype: DType::F32, dims }
}

/// The launch and the text.
fn text(kernel: &Kernel) -> String {
    let Kernel { blocks: [x, y, z], threads, .. } = kernel;
    format!("{x}×{y}×{z} blocks of {threads} threads\n{}", kernel.source("k0"))
}

#[test]
fn a_bias_and_a_relu() {
    let relu = Expr::build(|e| e.binary(Binary::Max, e.add(e.input(0), e.input(1)), e.constant(0.0)));
    let kernel = pointwise(&site(&relu, &[32, 6, 10], &[floats(&[32, 6, 10]), floats(&[10])], 60), &[DType::F32]);
    insta::assert_snapshot!(text(&kernel));
}

#[test]
fn every_type_randomness_a_coordinate_and_two_results() {
    let expr = Expr::build_many(|e| {
        let kept = e.binary(Binary::Less, e.random(3), e.constant(0.8));
        let one_hot = e.binary(Binary::Equal, e.input(0), e.coordinate(1));
        vec![e.select(kept, e.input(1), one_hot), e.unary(Unary::Exp, e.input(2))]
    });
    let operands = [
        Operand { dtype: DType::I32, dims: &[4, 1] },
        Operand { dtype: DType::F16, dims: &[4, 5] },
        Operand { dtype: DType::U8, dims: &[] },
    ];
    let kernel = pointwise(&site(&expr, &[4, 5], &operands, 5), &[DType::BF16, DType::U8]);
    insta::assert_snapshot!(text(&kernel));
}

#[test]
fn a_change_of_state_asks_for_the_loss_first() {
    let descend = Expr::build(|e| e.sub(e.input(0), e.mul(e.input(1), e.input(2))));
    let operands = [floats(&[7]), floats(&[]), floats(&[7])];
    insta::assert_snapshot!(text(&pointwise(&site(&descend, &[7], &operands, 0), &[DType::F32]).guarded(true)));
}

#[test]
fn sums_along_rows_and_along_columns() {
    let identity = Expr::identity();
    let rows = reduce(&site(&identity, &[8, 300], &[floats(&[8, 300])], 300), &[1], Reduction::Sum);
    assert_eq!(rows.len(), 1);
    insta::assert_snapshot!("sums_along_rows", text(&rows[0]));
    let columns = reduce(&site(&identity, &[100_000, 32], &[floats(&[100_000, 32])], 32), &[0], Reduction::Sum);
    assert_eq!(columns.len(), 2, "long sums of few results are cut into chunks");
    insta::assert_snapshot!("sums_along_columns", columns.iter().map(text).collect::<String>());
}

#[test]
fn short_rows_are_one_threads_work() {
    let identity = Expr::identity();
    for (name, kind) in [("logsumexp", Reduction::LogSumExp), ("argmax", Reduction::ArgMax)] {
        let kernels = reduce(&site(&identity, &[64, 10], &[floats(&[64, 10])], 10), &[1], kind);
        insta::assert_snapshot!(format!("short_rows_{name}"), kernels.iter().map(text).collect::<String>());
    }
}

#[test]
fn a_convolution_with_its_epilogue() {
    let relu = Expr::build(|e| e.binary(Binary::Max, e.add(e.input(0), e.input(1)), e.constant(0.0)));
    let conv = Conv { window: Window::same((3, 3), (2, 2), (1, 1), (9, 9)), groups: 1, image: [2, 9, 9, 3], result: [2, 5, 5, 8] };
    let operands = [floats(&[2, 5, 5, 8]), floats(&[8])];
    let site = Site { expr: &relu, dims: &[2, 5, 5, 8], operands: &operands, row: 200, at_hand: &[(0, "value")] };
    insta::assert_snapshot!(text(&forward(&conv, [DType::F32; 3], Some(&site))));
}

#[test]
fn pools_gather() {
    let window = Window::valid((2, 2), (2, 2));
    insta::assert_snapshot!("max_pool", text(&max_pool(&window, [1, 4, 4, 3], [1, 2, 2, 3], DType::F32)));
    insta::assert_snapshot!("max_pool_grad", text(&max_pool_grad(&window, [1, 4, 4, 3], [1, 2, 2, 3], DType::F32)));
}

#[test]
fn two_bytes_beside_four() {
    let (window, image, result) = (Window::valid((2, 2), (2, 2)), [1, 4, 4, 3], [1, 2, 2, 3]);
    let conv = Conv { window, groups: 1, image, result };
    let product = matmul((5, 3, 7), false, true, [DType::BF16, DType::F32, DType::F16]);
    let mut kernels = vec![product, narrowed(1, 21, DType::BF16), max_pool(&window, image, result, DType::BF16)];
    kernels.push(grad_input(&conv, [DType::F32, DType::BF16, DType::BF16]));
    kernels.extend(grad_filter(&conv, [DType::F16, DType::F16]));
    insta::assert_snapshot!(kernels.iter().map(text).collect::<String>());
}

#[test]
fn elements_in_another_place() {
    let kernels = [transpose(4, &[2, 3, 5], &[2, 0, 1]), pad(1, &[2, 3], &[2, 6], 1, 2), concat(2, &[vec![2, 3], vec![2, 4]], &[2, 7], 1)];
    insta::assert_snapshot!(kernels.iter().map(text).collect::<String>());
}

#[test]
fn what_the_host_is_told() {
    insta::assert_snapshot!(text(&report(2, true)));
}

#[test]
fn a_program_counts_beyond_32_bits_only_where_it_must() {
    let identity = Expr::identity();
    let large = [3_000_000_000];
    assert!(pointwise(&site(&identity, &large, &[floats(&large)], 0), &[DType::F32]).body.contains("unsigned long long i"));
}
