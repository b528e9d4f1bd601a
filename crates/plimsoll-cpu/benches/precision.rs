//! `cargo bench -p plimsoll-cpu --bench precision` prints how long products and convolutions take when activations are
//! stored in bf16, relative to single precision: parameters in f32, sums in f32. Both are measured in turns, in short
//! runs on one thread, and the minimum time of each counts, so that other load on the machine matters little.

use plimsoll_core::DType;
use plimsoll_cpu::kernels::conv::{
    ConvOutput, ConvShape, HalfOperands, forward, forward_workspace, grad_filter, grad_filter_workspace, grad_input, grad_input_workspace,
};
use plimsoll_cpu::kernels::gemm::{Matrix, OutputBlock, WriteMode, blocks_workspace_len, gemm, gemm_blocks, workspace_len};
use plimsoll_cpu::runtime::threads::ThreadPool;
use plimsoll_cpu::simd::float_view::FloatView;
use std::time::Instant;

const ROUNDS: usize = 100;

fn main() {
    println!("{:<52} {:>12} {:>12} {:>7}", "kernel, on one thread", "f32", "bf16 stored", "ratio");
    let pool = ThreadPool::new(1).unwrap();
    products(&pool);
    convolutions(&pool);
}

/// The minimum time of each, measured alternately.
fn row(name: &str, mut single: impl FnMut(), mut narrow: impl FnMut()) {
    let time = |kernel: &mut dyn FnMut()| {
        let start = Instant::now();
        kernel();
        start.elapsed().as_secs_f64()
    };
    let (mut a, mut b) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        (a, b) = (a.min(time(&mut single)), b.min(time(&mut narrow)));
    }
    println!("{name:<52} {:>9.1} us {:>9.1} us {:>7.2}", a * 1e6, b * 1e6, b / a);
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 17) as f32 / 16.0 - 0.5).collect()
}

fn bits(floats: &[f32]) -> Vec<u16> {
    floats.iter().map(|x| (x.to_bits() >> 16) as u16).collect()
}

/// Somewhere to put blocks, as a program would.
fn keep(to: *mut u16, columns: usize) -> impl Fn(&OutputBlock) + Sync {
    struct To(*mut u16);
    // SAFETY: blocks are disjoint.
    unsafe impl Sync for To {}
    let to = To(to);
    move |block| {
        let to = &to;
        for row in block.rows.clone() {
            for (i, x) in block.row(row).iter().enumerate() {
                // SAFETY: the caller's vector holds the whole result.
                unsafe { to.0.add(row * columns + block.columns.start + i).write((x.to_bits() >> 16) as u16) };
            }
        }
    }
}

fn products(pool: &ThreadPool) {
    for (m, n, k) in [(256, 256, 256), (512, 512, 512), (64, 1024, 1024), (512, 10, 1024), (2048, 128, 128)] {
        let (a, b, mut c) = (values(m * k), values(k * n), vec![0.0; m * n]);
        let (a_bits, mut c_bits) = (bits(&a), vec![0u16; m * n]);
        let (left, right) = (Matrix::new(a.as_ptr(), m, k), Matrix::new(b.as_ptr(), k, n));
        let narrow = Matrix::of(&FloatView::of_bits(&a_bits, DType::BF16), m, k);
        let (mut work, mut blocks) = (vec![0.0; workspace_len(m, n, k, 2)], vec![0.0; blocks_workspace_len(m, n, k, 2)]);
        let take = keep(c_bits.as_mut_ptr(), n);
        // SAFETY: the matrices describe the vectors above.
        row(
            &format!("forward [{m}, {k}] · [{k}, {n}]"),
            || unsafe { gemm(pool, WriteMode::Set, left, right, c.as_mut_ptr(), n, &mut work, None) },
            || unsafe { gemm_blocks(pool, narrow, right, &mut blocks, &take) },
        );
        let (dy, mut dw) = (values(m * n), vec![0.0; k * n]);
        let dy_bits = bits(&dy);
        let (gradient, narrow_gradient) = (Matrix::new(dy.as_ptr(), m, n), Matrix::of(&FloatView::of_bits(&dy_bits, DType::BF16), m, n));
        let mut work = vec![0.0; workspace_len(k, n, m, 2)];
        let mut work_too = work.clone();
        let mut dw_too = dw.clone();
        // SAFETY: as above.
        row(
            &format!("weight gradient [{m}, {k}]ᵀ · [{m}, {n}]"),
            || unsafe { gemm(pool, WriteMode::Set, left.transposed(), gradient, dw.as_mut_ptr(), n, &mut work, None) },
            || unsafe { gemm(pool, WriteMode::Set, narrow.transposed(), narrow_gradient, dw_too.as_mut_ptr(), n, &mut work_too, None) },
        );
    }
}

fn convolutions(pool: &ThreadPool) {
    const HALVES: HalfOperands = HalfOperands { input: true, filter: false, output: true };
    const FLOATS: HalfOperands = HalfOperands { input: false, filter: false, output: false };
    for (batch, side, in_c, out_c, k, stride, pad, groups) in [
        (1, 56, 3, 64, 7, 2, 3, 1),
        (1, 28, 64, 64, 3, 1, 1, 1),
        (1, 14, 128, 128, 3, 1, 1, 1),
        (1, 28, 64, 256, 1, 1, 0, 1),
        (1, 56, 96, 96, 3, 1, 1, 96),
    ] {
        let out = (side + 2 * pad - k) / stride + 1;
        let shape = ConvShape {
            batch,
            in_h: side,
            in_w: side,
            in_c,
            out_h: out,
            out_w: out,
            out_c,
            k_h: k,
            k_w: k,
            stride: (stride, stride),
            pad: (pad, pad),
            dilation: (1, 1),
            groups,
        };
        let (x, filter, dy) = (values(shape.input_len()), values(shape.filter_len()), values(shape.output_len()));
        let (x_bits, dy_bits) = (bits(&x), bits(&dy));
        let (narrow_x, narrow_dy) = (FloatView::of_bits(&x_bits, DType::BF16), FloatView::of_bits(&dy_bits, DType::BF16));
        let (mut y, mut y_bits) = (vec![0.0; dy.len()], vec![0u16; dy.len()]);
        let (mut dx, mut dx_bits) = (vec![0.0; x.len()], vec![0u16; x.len()]);
        let (mut d_filter, mut d_filter_too) = (filter.clone(), filter.clone());
        let name = |pass: &str| format!("{pass} [{batch},{side},{side},{in_c}] {k}x{k}/{stride} {out_c}");
        let take = keep(y_bits.as_mut_ptr(), out_c);
        let mut work = vec![0.0; forward_workspace(&shape, FLOATS, 2)];
        let mut work_too = vec![0.0; forward_workspace(&shape, HALVES, 2)];
        row(
            &name("conv"),
            || forward(pool, &shape, x[..].into(), filter[..].into(), ConvOutput::Floats(&mut y, None), &mut work),
            || forward(pool, &shape, narrow_x, filter[..].into(), ConvOutput::Blocks(&take), &mut work_too),
        );
        let take = keep(dx_bits.as_mut_ptr(), in_c);
        let mut work = vec![0.0; grad_input_workspace(&shape, FLOATS, 2)];
        let mut work_too = vec![0.0; grad_input_workspace(&shape, HALVES, 2)];
        row(
            &name("conv, gradient by the image"),
            || grad_input(pool, &shape, dy[..].into(), filter[..].into(), ConvOutput::Floats(&mut dx, None), &mut work),
            || grad_input(pool, &shape, narrow_dy, filter[..].into(), ConvOutput::Blocks(&take), &mut work_too),
        );
        let mut work = vec![0.0; grad_filter_workspace(&shape, WriteMode::Set, 2)];
        let mut work_too = work.clone();
        row(
            &name("conv, gradient by the filter"),
            || grad_filter(pool, &shape, WriteMode::Set, x[..].into(), dy[..].into(), &mut d_filter, &mut work),
            || grad_filter(pool, &shape, WriteMode::Set, narrow_x, narrow_dy, &mut d_filter_too, &mut work_too),
        );
    }
}
