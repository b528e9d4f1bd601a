//! Snapshots of kernel sources.

use super::*;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::ops::{Activation, Attention, Cell, Packing, Recurrent, RecurrentGrad, Reduction, WeightDropout, Window};

fn site<'a>(expr: &'a Expr, dims: &'a [usize], operands: &'a [Operand<'a>], row: u64) -> FusedExpr<'a> {
    FusedExpr { expr, dims, operands, row, in_registers: &[] }
}

fn floats(dims: &[usize]) -> Operand<'_> {
    Operand { dtype: DType::F32, dims, strip: None }
}

/// The launch configuration and the source.
fn text(kernel: &Kernel) -> String {
    let Kernel { grid: [x, y, z], threads, .. } = kernel;
    format!("{x}×{y}×{z} blocks of {threads} threads\n{}", kernel.source(kernel.name))
}

#[test]
fn a_bias_and_a_relu() {
    let relu = Expr::build(|e| e.binary(Binary::Max, e.add(e.input(0), e.input(1)), e.constant(0.0)));
    let kernel = pointwise(&site(&relu, &[32, 6, 10], &[floats(&[32, 6, 10]), floats(&[10])], 60), &[DType::F32]);
    insta::assert_snapshot!(text(&kernel));
}

#[test]
fn updates_of_several_parameters_share_a_launch() {
    // Momentum: a parameter, its gradient, its velocity and the learning rate.
    let descent = Expr::build_many(|e| {
        let velocity = e.add(e.mul(e.input(2), e.constant(0.9)), e.input(1));
        vec![e.binary(Binary::Sub, e.input(0), e.mul(velocity, e.input(3))), velocity]
    });
    let operands = [floats(&[2500]), floats(&[2500]), floats(&[2500]), floats(&[1])];
    let kernel = pointwise_group(&site(&descent, &[2500], &operands, 0), &[DType::F32; 2], &[64, 2500, 1]).guarded(true);
    // A block for the first and the last set, and three for the second; each set has its own addresses.
    assert_eq!((kernel.grid, kernel.parameters.len()), ([5, 1, 1], 3 * 6 + 2));
    assert_eq!(kernel.parameters[6 + 2].1, Argument::Input(4 + 2));
    assert_eq!(kernel.parameters[2 * 6 + 5].1, Argument::Output(2 * 2 + 1));
    let source = text(&kernel);
    for part in [
        "if (*alarm || !is_finite(*loss)) return;",
        "if (blockIdx.x < 1) {",
        "in0 = in0_0; in1 = in1_0; in2 = in2_0; in3 = in3_0; out0 = out0_0; out1 = out1_0; n = 64; first = 0;",
        "if (blockIdx.x < 4) {",
        "in0 = in0_1; in1 = in1_1; in2 = in2_1; in3 = in3_1; out0 = out0_1; out1 = out1_1; n = 2500; first = 1;",
        "out1 = out1_2; n = 1; first = 4;",
        "load(in3[0])",
    ] {
        assert!(source.contains(part), "{part} is missing in\n{source}");
    }
}

#[test]
fn channel_views_are_read_in_place() {
    let expr = Expr::build(|e| e.add(e.input(0), e.input(1)));
    let strip = Operand { strip: Some((8, 40)), ..floats(&[6, 5, 10]) };
    let kernel = pointwise(&site(&expr, &[6, 5, 10], &[strip, floats(&[10])], 50), &[DType::F32]);
    let sum = reduce(&site(&expr, &[6, 5, 10], &[strip, floats(&[10])], 50), &[0, 1], Reduction::Sum);
    insta::assert_snapshot!([&kernel].into_iter().chain(&sum).map(text).collect::<String>());
}

#[test]
fn parts_are_written_where_they_go() {
    let expr = Expr::build(|e| e.binary(Binary::Max, e.add(e.input(0), e.input(1)), e.constant(0.0)));
    let operands = [floats(&[6, 5, 10]), floats(&[10])];
    let narrow = fused_slice_write(&site(&expr, &[6, 5, 10], &operands, 50), DType::BF16, PitchedRows { start: 8, length: 10, pitch: 40 });
    let identity = Expr::identity();
    let whole = [1 << 10, 1 << 11];
    let large = fused_slice_write(
        &site(&identity, &whole, &[floats(&whole)], 1 << 11),
        DType::F32,
        PitchedRows { start: 0, length: 1 << 11, pitch: 1 << 12 },
    );
    insta::assert_snapshot!([&narrow, &large].map(text).concat());
}

#[test]
fn every_type_randomness_a_coordinate_and_two_results() {
    let expr = Expr::build_many(|e| {
        let kept = e.binary(Binary::Less, e.random(3), e.constant(0.8));
        let one_hot = e.binary(Binary::Equal, e.input(0), e.coordinate(1));
        vec![e.select(kept, e.input(1), one_hot), e.unary(Unary::Exp, e.input(2))]
    });
    let operands = [
        Operand { dtype: DType::I32, dims: &[4, 1], strip: None },
        Operand { dtype: DType::F16, dims: &[4, 5], strip: None },
        Operand { dtype: DType::U8, dims: &[], strip: None },
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
    let conv = ConvShape { window: Window::same((3, 3), (2, 2), (1, 1), (9, 9)), groups: 1, image: [2, 9, 9, 3], result: [2, 5, 5, 8] };
    let operands = [floats(&[2, 5, 5, 8]), floats(&[8])];
    let site = FusedExpr { expr: &relu, dims: &[2, 5, 5, 8], operands: &operands, row: 200, in_registers: &[(0, "value")] };
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
    let conv = ConvShape { window, groups: 1, image, result };
    let product = matmul((5, 3, 7), false, true, [DType::BF16, DType::F32, DType::F16], false);
    let mut kernels = vec![product, cast(1, 21, 21, DType::BF16), max_pool(&window, image, result, DType::BF16)];
    kernels.push(grad_input(&conv, [DType::F32, DType::BF16, DType::BF16]));
    kernels.extend(grad_filter(&conv, [DType::F16, DType::F16]));
    insta::assert_snapshot!(kernels.iter().map(text).collect::<String>());
}

#[test]
fn elements_in_another_place() {
    let kernels = [
        transpose(4, &[2, 3, 5], &[2, 0, 1]),
        pad(1, &[2, 3], &[2, 6], 1, 2),
        concat(2, &[vec![2, 3], vec![2, 4]], &[2, 7], 1),
        slice_write(4, &[2, 3, 2], &[2, 7, 2], 1, 4),
    ];
    insta::assert_snapshot!(kernels.iter().map(text).collect::<String>());
}

/// A filter of 3×3×5 by 40 channels in cuDNN's layout and 16 bits, and its gradient back.
#[test]
fn filters_in_another_order() {
    let there = transpose_matrix((45, 40), (DType::F32, Argument::Input(1)), (DType::BF16, Argument::Workspace));
    let back = transpose_matrix((40, 45), (DType::BF16, Argument::Workspace), (DType::F32, Argument::Output(0))).guarded(false);
    insta::assert_snapshot!([there, back].iter().map(text).collect::<String>());
}

#[test]
fn outcome_reported_to_the_host() {
    insta::assert_snapshot!(text(&report(2, true)));
}

#[test]
fn a_program_counts_beyond_32_bits_only_where_it_must() {
    let identity = Expr::identity();
    let large = [3_000_000_000];
    assert!(pointwise(&site(&identity, &large, &[floats(&large)], 0), &[DType::F32]).body.contains("unsigned long long i"));
}

#[test]
fn rows_of_a_table_and_their_sum() {
    let mut kernels = vec![gather(12, 5, 7, [DType::BF16, DType::I32, DType::F32])];
    kernels.extend(scatter_add(8192, 50_257, 768, [DType::I32, DType::F16]));
    kernels.extend(scatter_add(6, 4, 3, [DType::U8, DType::F32]));
    insta::assert_snapshot!(kernels.iter().map(text).collect::<String>());
}

#[test]
fn attention_in_tiles() {
    let plain = Attention::new(Packing::All, 12, 64);
    let causal = Attention { causal: true, ..plain };
    let all = AttentionShape {
        op: &causal,
        batch: 2,
        queries: 100,
        keys: 100,
        depth: 64,
        types: vec![DType::BF16],
        mask: None,
        sequences: 1,
        tensor_cores: false,
    };
    insta::assert_snapshot!("attention", text(&attention(&all)));
    insta::assert_snapshot!("attention_grad", attention_grad(&all, DType::F32).iter().map(text).collect::<String>());
    // Not covered by these snapshots: separate tensors, grouped heads, a mask, and a head deeper than a tile.
    let shared = Attention { kv_heads: 2, ..Attention::new(Packing::Separate, 4, 67) };
    let types = vec![DType::F32, DType::F16, DType::BF16];
    let apart = AttentionShape {
        op: &shared,
        batch: 3,
        queries: 5,
        keys: 40,
        depth: 67,
        types,
        mask: Some(DType::U8),
        sequences: 1,
        tensor_cores: false,
    };
    let heads: Vec<String> =
        [vec![attention(&apart)], attention_grad(&apart, DType::F16)].concat().iter().map(|kernel| beginning(kernel, 13)).collect();
    insta::assert_snapshot!("attention_of_separate_tensors", heads.join("\n"));
    let dropping = Attention { dropout: Some(WeightDropout::new(0.25, 3)), ..causal.clone() };
    let all = AttentionShape { op: &dropping, sequences: 2, ..all };
    let heads: Vec<String> =
        [vec![attention(&all)], attention_grad(&all, DType::F32)].concat().iter().map(|kernel| beginning(kernel, 13)).collect();
    insta::assert_snapshot!("attention_with_dropout", heads.join("\n"));
}

#[test]
fn recurrent_layers_step_by_step() {
    for cell in [Cell::Lstm, Cell::Gru, Cell::Simple(Activation::Relu)] {
        let op = Recurrent { cell, units: 40, reverse: false, masked: true, initial: true };
        let numbers: Vec<usize> = (0..4 + usize::from(cell == Cell::Gru) + usize::from(cell == Cell::Lstm)).collect();
        let there = recurrent(&op, 9, 3, &numbers, |_| DType::BF16);
        let launches: Vec<String> = there.iter().map(|kernel| format!("{}\n{:?}\n", kernel.what, arguments(kernel))).collect();
        insta::assert_snapshot!(format!("recurrent_{}_launches", cell.name()), launches.join("\n"));
        let step = &there[there.len() - 1 - usize::from(cell == Cell::Lstm)];
        insta::assert_snapshot!(format!("recurrent_{}", cell.name()), text(step));

        let op = RecurrentGrad { cell, units: 40, reverse: true, masked: true, initial: true, last_state: cell == Cell::Lstm };
        let count = match cell {
            Cell::Lstm => 6,
            Cell::Gru => 7,
            Cell::Simple(_) => 4,
        };
        let back = recurrent_grad(&op, 9, 3, &(0..count).collect::<Vec<_>>(), |_| DType::F16, DType::F16);
        let launches: Vec<String> = back.iter().map(|kernel| format!("{}\n{:?}\n", kernel.what, arguments(kernel))).collect();
        insta::assert_snapshot!(format!("recurrent_{}_launches_back", cell.name()), launches.join("\n"));
        insta::assert_snapshot!(format!("recurrent_{}_back", cell.name()), text(&back[back.len() - 2]));
    }
}

fn arguments(kernel: &Kernel) -> Vec<String> {
    kernel.parameters.iter().map(|(text, argument)| format!("{text} = {argument:?}")).collect()
}

/// The first lines of a source, which contain everything that depends on shapes and types.
fn beginning(kernel: &Kernel, lines: usize) -> String {
    text(kernel).lines().take(lines).collect::<Vec<_>>().join("\n")
}
