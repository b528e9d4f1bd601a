//! Pointwise kernels by shape: `cargo bench -p plimsoll-cpu --bench pointwise`.

use plimsoll_core::DType;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::random::StepRandom;
use plimsoll_cpu::kernels::pointwise::{InputSpec, Kernel, OutputSpec};
use plimsoll_cpu::runtime::threads::ThreadPool;
use std::time::Instant;

/// The fastest of many runs: on a shared machine that is the one nobody disturbed.
fn measure(name: &str, pool: &ThreadPool, expr: &Expr, dims: &[usize], inputs: &[&[usize]], in_place: bool) {
    let sources: Vec<InputSpec<'_>> = inputs.iter().map(|dims| InputSpec { dims, dtype: DType::F32, pitch: None }).collect();
    let outputs = expr.roots().len();
    let over: Vec<usize> = (0..outputs).collect();
    let sinks: Vec<OutputSpec<'_>> =
        over.chunks(1).map(|over| OutputSpec { dtype: DType::F32, over: if in_place { over } else { &[] }, runs: None }).collect();
    let elements: usize = dims.iter().product();
    let mut kernel = Kernel::new(expr, dims, &sources, &sinks).unwrap();
    let mut tensors: Vec<Vec<f32>> = inputs.iter().map(|dims| vec![0.5; dims.iter().product()]).collect();
    let mut results = vec![vec![0f32; elements]; outputs];
    for (i, tensor) in tensors.iter().enumerate() {
        kernel.set_input(i, tensor.as_ptr().cast());
    }
    for i in 0..outputs {
        kernel.set_output(i, if in_place { tensors[i].as_mut_ptr() } else { results[i].as_mut_ptr() }.cast());
    }
    let repeats = (2_000_000 / elements.max(200)).max(1);
    let best = (0..30)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..repeats {
                // SAFETY: all addresses are those of tensors of the right size, and overlap as said.
                unsafe {
                    kernel.prepare(StepRandom::default(), 0);
                    kernel.run(pool);
                }
            }
            start.elapsed().as_secs_f64() / repeats as f64
        })
        .fold(f64::INFINITY, f64::min);
    let bytes = 4 * (inputs.iter().map(|dims| dims.iter().product::<usize>()).sum::<usize>() + outputs * elements);
    println!(
        "{name:<40} {:>10.3} µs  {:>7.2} GB/s  {:>6.2} ns/element",
        best * 1e6,
        bytes as f64 / best / 1e9,
        best * 1e9 / elements as f64
    );
}

fn main() {
    let relu = Expr::build(|e| e.binary(Binary::Max, e.add(e.input(0), e.input(1)), e.constant(0.0)));
    let exp = Expr::build(|e| e.unary(Unary::Exp, e.input(0)));
    let tanh = Expr::build(|e| e.unary(Unary::Tanh, e.input(0)));
    let pow = Expr::build(|e| e.binary(Binary::Pow, e.input(0), e.constant(1.7)));
    let sum = Expr::build(|e| e.add(e.input(0), e.input(1)));
    let dropout = Expr::build(|e| e.select(e.binary(Binary::Less, e.random(0), e.constant(0.5)), e.constant(0.0), e.input(0)));
    let adam = Expr::build_many(|e| {
        let (p, m, v, g, rate) = (e.input(0), e.input(1), e.input(2), e.input(3), e.input(4));
        let m = e.add(e.mul(e.constant(0.9), m), e.mul(e.constant(0.1), g));
        let v = e.add(e.mul(e.constant(0.999), v), e.mul(e.constant(0.001), e.mul(g, g)));
        let step = e.div(e.mul(rate, m), e.add(e.unary(Unary::Sqrt, v), e.constant(1e-8)));
        vec![e.sub(p, step), m, v]
    });
    for threads in [1, 2] {
        let pool = ThreadPool::new(threads).unwrap();
        println!("{threads} threads");
        measure("bias and relu [32, 10]", &pool, &relu, &[32, 10], &[&[32, 10], &[10]], true);
        measure("row constant [32, 10]", &pool, &relu, &[32, 10], &[&[32, 10], &[32, 1]], true);
        measure("sum [32, 10]", &pool, &sum, &[32, 10], &[&[32, 10], &[32, 10]], false);
        measure("adam [1010]", &pool, &adam, &[1010], &[&[1010], &[1010], &[1010], &[1010], &[]], true);
        measure("sum [1048576]", &pool, &sum, &[1 << 20], &[&[1 << 20], &[1 << 20]], false);
        measure("sum [16777216]", &pool, &sum, &[1 << 24], &[&[1 << 24], &[1 << 24]], false);
        measure("bias and relu [65536, 64]", &pool, &relu, &[65536, 64], &[&[65536, 64], &[64]], true);
        measure("adam [1048576]", &pool, &adam, &[1 << 20], &[&[1 << 20], &[1 << 20], &[1 << 20], &[1 << 20], &[]], true);
        measure("exp [16384]", &pool, &exp, &[16384], &[&[16384]], false);
        measure("tanh [16384]", &pool, &tanh, &[16384], &[&[16384]], false);
        measure("pow [16384]", &pool, &pow, &[16384], &[&[16384]], false);
        measure("dropout [16384]", &pool, &dropout, &[16384], &[&[16384]], false);
    }
}
