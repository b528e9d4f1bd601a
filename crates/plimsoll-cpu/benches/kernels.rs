//! `cargo bench -p plimsoll-cpu --bench kernels [-- filter]` prints the rate of each kernel at the shapes models meet,
//! on one and on two threads.
//!
//! The time is the minimum of several rounds: other load on the machine can only add to it.

use std::time::Instant;

use plimsoll_core::DType;
use plimsoll_core::ops::{Cell, RecurrentGradInputs, RecurrentInputs};
use plimsoll_cpu::kernels::attention::{
    self, AttentionShape, Backward, Forward, HeadsPtr, backward_workspace as attention_backward_workspace,
    forward_workspace as attention_workspace,
};
use plimsoll_cpu::kernels::conv::{
    ConvOutput, ConvShape, HalfOperands, forward, forward_workspace, grad_filter, grad_filter_workspace, grad_input, grad_input_workspace,
};
use plimsoll_cpu::kernels::gather::{TableShape, gather, scatter_add};
use plimsoll_cpu::kernels::gemm::{Matrix, WriteMode, gemm, workspace_len};
use plimsoll_cpu::kernels::pooling::{PoolShape, max_pool, max_pool_grad};
use plimsoll_cpu::kernels::recurrent::{
    BackwardArgs, ForwardArgs, RecurrentShape, TensorPtr, backward, backward_workspace, forward as walk,
    forward_workspace as walk_workspace,
};
use plimsoll_cpu::runtime::threads::ThreadPool;

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
    attentions(&table);
    tables(&table);
    walks(&table);
}

struct Table {
    filter: String,
}

impl Table {
    /// Measures `kernel` on one and on two threads and prints a row for each.
    fn row(&self, name: &str, flops: usize, bytes: usize, mut kernel: impl FnMut(&ThreadPool)) {
        if !name.contains(&self.filter) {
            return;
        }
        for threads in [1, 2] {
            let pool = ThreadPool::new(threads).unwrap();
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
        (1024, 1536, 384, false, false),
        (1024, 384, 1536, false, false),
        (384, 1536, 1024, true, false),
        (1024, 384, 1536, false, true),
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
            unsafe { gemm(pool, WriteMode::Set, left, right, c.as_mut_ptr(), n, &mut workspace, None) };
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
        (8, 7, 512, 2048, 1, 1, 0, 1),
        (8, 112, 32, 32, 3, 1, 1, 32),
        (8, 56, 128, 128, 3, 2, 1, 128),
        (8, 14, 512, 512, 3, 1, 1, 512),
        (8, 14, 240, 240, 5, 1, 2, 240),
        (8, 28, 72, 144, 3, 1, 1, 72),
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
        let kind = if groups == 1 { "conv" } else { "depthwise" };
        let name = |pass: &str| format!("{kind} {pass} [{batch},{side},{side},{in_c}] {k}x{k}/{stride} {out_c}");
        let mut workspace = vec![0.0; forward_workspace(&shape, HalfOperands::default(), 2)];
        table.row(&name("forward"), flops, bytes, |pool| {
            forward(pool, &shape, input[..].into(), filter[..].into(), ConvOutput::Floats(&mut output, None), &mut workspace);
        });
        let mut workspace = vec![0.0; grad_filter_workspace(&shape, WriteMode::Set, 2)];
        table.row(&name("grad_filter"), flops, bytes, |pool| {
            grad_filter(pool, &shape, WriteMode::Set, input[..].into(), output[..].into(), &mut filter, &mut workspace);
        });
        let mut workspace = vec![0.0; grad_input_workspace(&shape, HalfOperands::default(), 2)];
        table.row(&name("grad_input"), flops, bytes, |pool| {
            grad_input(pool, &shape, output[..].into(), filter[..].into(), ConvOutput::Floats(&mut input, None), &mut workspace);
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

/// Attention over one packed projection, as a language model does it.
fn attentions(table: &Table) {
    for (batch, heads, length, depth, causal) in
        [(4, 6, 256, 64, true), (4, 6, 256, 64, false), (1, 12, 1024, 64, true), (8, 4, 64, 32, true), (1, 2, 4096, 64, true)]
    {
        let shape = AttentionShape {
            batch,
            queries: length,
            keys: length,
            heads,
            kv_heads: heads,
            depth,
            causal,
            scale: 1.0 / (depth as f32).sqrt(),
            drops: false,
        };
        let width = heads * depth;
        let (mut qkv, mut o) = (values(3 * batch * length * width), vec![0.0f32; batch * length * width]);
        let (mut d_qkv, mut d_o) = (vec![0.0f32; qkv.len()], values(o.len()));
        let mut lse = vec![0.0f32; batch * heads * length];
        let part = |tensor: &mut Vec<f32>, part: usize, row: usize| HeadsPtr {
            start: tensor[part * width..].as_mut_ptr().cast(),
            dtype: DType::F32,
            row,
        };
        let [q, k, v] = [0, 1, 2].map(|i| part(&mut qkv, i, 3 * width));
        let [d_q, d_k, d_v] = [0, 1, 2].map(|i| part(&mut d_qkv, i, 3 * width));
        let (o, d_o) = (part(&mut o, 0, width), part(&mut d_o, 0, width));
        let pairs = batch * heads * if causal { length * (length + 1) / 2 } else { length * length };
        let name = |pass: &str| format!("attention {pass} [{batch},{heads},{length},{depth}]{}", if causal { " causal" } else { "" });
        let bytes = 16 * batch * length * width;
        let mut workspace = vec![0.0; attention_workspace(&shape, 2)];
        let tensors = Forward { q, k, v, mask: None, dropout_mask: None, o, lse: lse.as_mut_ptr() };
        // SAFETY: the heads describe the vectors above.
        let forward = |pool: &ThreadPool| unsafe { attention::forward(pool, &shape, &tensors, &mut workspace) };
        table.row(&name("forward"), 4 * pairs * depth, bytes, forward);
        let mut workspace = vec![0.0; attention_backward_workspace(&shape, DType::F32, 2)];
        let tensors = Backward { q, k, v, mask: None, dropout_mask: None, o, lse: lse.as_ptr(), d_o, d_q, d_k, d_v };
        // SAFETY: as above.
        let backward = |pool: &ThreadPool| unsafe { attention::backward(pool, &shape, &tensors, &mut workspace) };
        table.row(&name("backward"), 10 * pairs * depth, 2 * bytes, backward);
    }
}

/// Embeddings of a language model.
fn tables(table: &Table) {
    for (rows, width, count) in [(50_257, 768, 1024), (50_257, 768, 8192), (65, 384, 1024)] {
        let shape = TableShape { rows, width, count, indices: DType::I32 };
        let mut weights = values(rows * width);
        let indices: Vec<i32> = (0..count).map(|i| (i * 7919 % rows) as i32).collect();
        let mut taken = values(count * width);
        let name = |op: &str| format!("{op} [{rows},{width}] {count}");
        table.row(&name("gather"), 0, 8 * count * width, |pool| {
            let (from, to) = ((weights.as_ptr().cast(), DType::F32), (taken.as_mut_ptr().cast(), DType::F32));
            // SAFETY: the shape describes the vectors above.
            unsafe { gather(pool, &shape, from, indices.as_ptr().cast(), to) };
        });
        table.row(&name("scatter_add"), count * width, 4 * (rows + 2 * count) * width, |pool| {
            let from = (taken.as_ptr().cast(), DType::F32);
            // SAFETY: as above.
            unsafe { scatter_add(pool, &shape, WriteMode::Set, indices.as_ptr().cast(), from, weights.as_mut_ptr()) };
        });
    }
}

/// Recurrent layers: projection of the inputs, the steps, and back, with the gradients of both kernels.
fn walks(table: &Table) {
    for (cell, name, batch, steps, features, units) in [
        (Cell::Lstm, "lstm", 32, 96, 7, 64),
        (Cell::Lstm, "lstm", 32, 96, 7, 256),
        (Cell::Gru, "gru", 32, 96, 7, 64),
        (Cell::Gru, "gru", 32, 96, 7, 256),
    ] {
        let (wide, rows) = (cell.gates() * units, batch * steps);
        let shape = RecurrentShape { cell, batch, steps, units, reverse: false };
        let (x, kernel, recurrent) = (values(rows * features), values(features * wide), values(units * wide));
        let mut gates = values(rows * wide);
        let (mut hidden, mut last, mut change, bias) = (values(rows * units), values(batch * units), values(rows * wide), values(wide));
        let (d_hidden, mut d_kernel, mut d_recurrent) = (values(rows * units), values(features * wide), values(units * wide));
        let most = [
            walk_workspace(&shape, 2),
            backward_workspace(&shape, 2),
            workspace_len(rows, wide, features, 2),
            workspace_len(units, wide, rows, 2),
            workspace_len(features, wide, rows, 2),
        ];
        let mut workspace = vec![0.0; most.into_iter().max().unwrap_or(0)];
        let real = |values: &[f32]| TensorPtr { ptr: values.as_ptr().cast_mut().cast(), dtype: DType::F32 };
        let gru = cell == Cell::Gru;
        let steps_of = |gates: &mut [f32], hidden: &mut [f32], last: &mut [f32]| ForwardArgs {
            shape,
            inputs: RecurrentInputs {
                x: real(gates),
                kernel: real(&recurrent),
                bias: gru.then(|| real(&bias)),
                mask: None,
                hidden: None,
                state: None,
            },
            hidden: real(hidden),
            gates: Some(real(gates)),
            last: (!gru).then(|| real(last)),
        };
        let flops = 2 * rows * wide * (features + units);
        let bytes = 4 * rows * (features + units + wide);
        let label = |pass: &str| format!("{name} {pass} [{batch},{steps},{features}] {units}");
        table.row(&label("forward"), flops, bytes, |pool| {
            // SAFETY: matrices and tensors describe the vectors above; the gates stand where the projected input did.
            unsafe {
                let (a, b) = (Matrix::new(x.as_ptr(), rows, features), Matrix::new(kernel.as_ptr(), features, wide));
                gemm(pool, WriteMode::Set, a, b, gates.as_mut_ptr(), wide, &mut workspace, None);
                walk(pool, &steps_of(&mut gates, &mut hidden, &mut last), &mut workspace);
            }
        });
        table.row(&label("forward and backward"), 3 * flops, 3 * bytes, |pool| {
            // SAFETY: as above. The hidden states stand in for the ones shifted by a step, which are as many.
            unsafe {
                let (a, b) = (Matrix::new(x.as_ptr(), rows, features), Matrix::new(kernel.as_ptr(), features, wide));
                gemm(pool, WriteMode::Set, a, b, gates.as_mut_ptr(), wide, &mut workspace, None);
                walk(pool, &steps_of(&mut gates, &mut hidden, &mut last), &mut workspace);
                let back = BackwardArgs {
                    shape,
                    inputs: RecurrentGradInputs {
                        kernel: real(&recurrent),
                        bias: gru.then(|| real(&bias)),
                        gates: Some(real(&gates)),
                        hidden: gru.then(|| real(&hidden)),
                        mask: None,
                        before: None,
                        d_hidden: real(&d_hidden),
                        d_state: None,
                    },
                    d_x: real(&gates),
                    d_recurrent: gru.then(|| real(&change)),
                    d_first: None,
                    d_state: None,
                };
                backward(pool, &back, &mut workspace);
                let change = Matrix::new(if gru { change.as_mut_ptr() } else { gates.as_mut_ptr() }, rows, wide);
                let states = Matrix::new(hidden.as_ptr(), rows, units).transposed();
                gemm(pool, WriteMode::Set, states, change, d_recurrent.as_mut_ptr(), wide, &mut workspace, None);
                let own = Matrix::new(gates.as_ptr(), rows, wide);
                gemm(pool, WriteMode::Set, a.transposed(), own, d_kernel.as_mut_ptr(), wide, &mut workspace, None);
            }
        });
    }
}
