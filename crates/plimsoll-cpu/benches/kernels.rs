//! `cargo bench -p plimsoll-cpu --bench kernels [-- filter]` prints the rate of each kernel at the shapes models meet, on one and on two threads.
//!
//! The time is the least of several rounds: other load on the machine can only add to it.

use std::time::Instant;

use plimsoll_cpu::conv::{
    ConvShape, InHalves, Target, forward, forward_workspace, grad_filter, grad_filter_workspace, grad_input, grad_input_workspace,
};
use plimsoll_cpu::gemm::{Matrix, Write, gemm, workspace_len};
use plimsoll_cpu::pooling::{PoolShape, max_pool, max_pool_grad};
use plimsoll_cpu::threads::Pool;

const ROUNDS: usize = 9;
const ROUND_SECONDS: f64 = 0.02;

fn main() {
    // Cargo passes `--bench`; any other word selects rows.
    let filter = std::env::args().skip(1).find(|word| !word.starts_with('-')).unwrap_or_default();
    println!("{:<44} {:>7} {:>12} {:>10} {:>9}", "kernel", "threads", "time", "GFLOP/s", "GB/s");
    let table = Table { filter };
    products(&table);
    convolutions(&table);
    pools(&table);
}

struct Table {
    filter: String,
}

impl Table {
    /// Measures `kernel` on one and on two threads and prints a row for each.
    fn row(&self, name: &str, flops: usize, bytes: usize, mut kernel: impl FnMut(&Pool)) {
        if !name.contains(&self.filter) {
            return;
        }
        for threads in [1, 2] {
            let pool = Pool::new(threads);
            let once = Instant::now();
            kernel(&pool);
            let repeats = (ROUND_SECONDS / once.elapsed().as_secs_f64().max(1e-8)).clamp(1.0, 1e6) as usize;
            let least = (0..ROUNDS)
                .map(|_| {
                    let start = Instant::now();
                    (0..repeats).for_each(|_| kernel(&pool));
                    start.elapsed().as_secs_f64() / repeats as f64
                })
                .fold(f64::MAX, f64::min);
            println!(
                "{name:<44} {threads:>7} {:>9.2} us {:>10.1} {:>9.1}",
                least * 1e6,
                flops as f64 / least * 1e-9,
                bytes as f64 / least * 1e-9
            );
        }
    }
}

fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 17) as f32 / 17.0 - 0.4).collect()
}

fn products(table: &Table) {
    for (m, n, k, a_transposed, b_transposed) in [
        (32, 10, 100, false, false),
        (100, 10, 32, true, false),
        (32, 10, 123_008, false, false),
        (123_008, 10, 32, true, false),
        (32, 123_008, 10, false, true),
        (256, 256, 256, false, false),
        (1024, 1024, 1024, false, false),
        (1024, 1024, 1024, true, false),
        (1024, 1024, 1024, false, true),
        (32, 512, 2048, false, false),
        (64, 1024, 1024, false, false),
        (1024, 1, 1024, false, false),
        (1024, 1, 1024, true, false),
        (1, 1024, 1024, false, false),
        (1, 1, 100_000, false, false),
        (512, 10, 100_000, true, false),
        (1000, 512, 20_000, true, false),
    ] {
        let (a, b, mut c) = (values(m * k), values(k * n), vec![0.0; m * n]);
        let left = if a_transposed { Matrix::new(a.as_ptr(), k, m).transposed() } else { Matrix::new(a.as_ptr(), m, k) };
        let right = if b_transposed { Matrix::new(b.as_ptr(), n, k).transposed() } else { Matrix::new(b.as_ptr(), k, n) };
        let mut workspace = vec![0.0; workspace_len(m, n, k, 2)];
        let mark = |transposed| if transposed { "T" } else { "" };
        let name = format!("gemm [{m}, {k}]{} [{k}, {n}]{}", mark(a_transposed), mark(b_transposed));
        table.row(&name, 2 * m * n * k, 4 * (m * k + k * n + m * n), |pool| {
            // SAFETY: the matrices describe the vectors above.
            unsafe { gemm(pool, Write::Set, left, right, c.as_mut_ptr(), n, &mut workspace, None) };
        });
    }
}

fn convolutions(table: &Table) {
    for (batch, side, in_c, out_c, k, stride, pad, groups) in [
        (32, 64, 1, 32, 3, 1, 0, 1),
        (32, 28, 1, 32, 3, 1, 1, 1),
        (32, 31, 32, 64, 3, 1, 0, 1),
        (8, 224, 3, 64, 7, 2, 3, 1),
        (8, 56, 64, 64, 3, 1, 1, 1),
        (8, 28, 128, 128, 3, 2, 1, 1),
        (8, 14, 256, 256, 3, 1, 1, 1),
        (8, 7, 512, 512, 3, 1, 1, 1),
        (8, 56, 64, 256, 1, 1, 0, 1),
        (8, 56, 96, 96, 3, 1, 1, 96),
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
        let (mut input, mut filter, mut output) = (values(shape.input_len()), values(shape.filter_len()), values(shape.output_len()));
        let flops = 2 * shape.output_len() * k * k * in_c / groups;
        let bytes = 4 * (input.len() + filter.len() + output.len());
        let name = |pass: &str| format!("conv {pass} [{batch},{side},{side},{in_c}] {k}x{k}/{stride} {out_c}");
        let mut workspace = vec![0.0; forward_workspace(&shape, InHalves::default(), 2)];
        table.row(&name("forward"), flops, bytes, |pool| {
            forward(pool, &shape, input[..].into(), filter[..].into(), Target::Floats(&mut output, None), &mut workspace);
        });
        let mut workspace = vec![0.0; grad_filter_workspace(&shape, 2)];
        table.row(&name("grad_filter"), flops, bytes, |pool| {
            grad_filter(pool, &shape, Write::Set, input[..].into(), output[..].into(), &mut filter, &mut workspace);
        });
        let mut workspace = vec![0.0; grad_input_workspace(&shape, InHalves::default(), 2)];
        table.row(&name("grad_input"), flops, bytes, |pool| {
            grad_input(pool, &shape, output[..].into(), filter[..].into(), Target::Floats(&mut input, None), &mut workspace);
        });
    }
}

fn pools(table: &Table) {
    let shape =
        PoolShape { batch: 32, in_h: 62, in_w: 62, channels: 32, out_h: 31, out_w: 31, window: (2, 2), stride: (2, 2), pad: (0, 0) };
    let (mut input, mut output, mut positions) = (values(shape.input_len()), values(shape.output_len()), vec![0; shape.output_len()]);
    let bytes = 4 * input.len() + 5 * output.len();
    table.row("max_pool [32,62,62,32] 2x2", input.len(), bytes, |pool| max_pool(pool, &shape, &input, &mut output, &mut positions));
    table.row("max_pool_grad [32,62,62,32] 2x2", input.len(), bytes, |pool| max_pool_grad(pool, &shape, &output, &positions, &mut input));
}
