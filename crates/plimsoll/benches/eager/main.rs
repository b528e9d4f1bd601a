//! Overhead of eager ops, and of eager training steps against compiled ones.
//!
//! ```text
//! cargo bench -p plimsoll --bench eager
//! ```

use plimsoll::Bytes;
use plimsoll::eager::{Context, Result, Tape, Tensor, compile_with_state, value_and_grad};
use std::time::Instant;

/// Rounds of a measurement; the median counts. Rounds are short, so that most of them are not interrupted.
const ROUNDS: usize = 401;

fn main() -> Result<()> {
    Context::cpu(1, Bytes::gib(1))?.scope(ops)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    for threads in if threads > 1 { vec![1, threads] } else { vec![1] } {
        Context::cpu(threads, Bytes::gib(2))?.scope(|| mlp(threads))?;
    }
    Ok(())
}

/// The median seconds of a call, repeated `times` in each round.
fn seconds(times: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..times {
            call()?;
        }
        rounds.push(begin.elapsed().as_secs_f64() / times as f64);
    }
    rounds.sort_by(f64::total_cmp);
    Ok(rounds[ROUNDS / 2])
}

fn ops() -> Result<()> {
    let (x, y) = (Tensor::arange(8)?, Tensor::ones([8])?);
    let report = |name: &str, seconds: f64| println!("{name:<44} {:>9.3} µs", 1e6 * seconds);
    report("add of 8 numbers", seconds(200, || x.add(&y).map(drop))?);
    report("add of 8 numbers and a number", seconds(200, || x.add_scalar(1.0).map(drop))?);
    report("reshape", seconds(200, || x.reshape([2, 4]).map(drop))?);
    let taped = || {
        let tape = Tape::new();
        tape.watch(&x);
        for _ in 0..100 {
            drop(x.mul(&y)?);
        }
        Ok(())
    };
    report("mul of 8 numbers on a tape", seconds(2, taped)? / 100.0);
    Ok(())
}

/// A step of a network of three layers on 64 rows of 784 numbers.
fn mlp(threads: usize) -> Result<()> {
    const ROWS: usize = 64;
    let x = Tensor::uniform([ROWS, 784])?;
    let labels: Vec<i32> = (0..ROWS).map(|i| (i % 10) as i32).collect();
    let labels = Tensor::from_slice(&labels, [ROWS])?;
    let sizes = [784, 256, 128, 10];
    let mut state = Vec::new();
    for pair in sizes.windows(2) {
        state.push(Tensor::normal([pair[0], pair[1]])?.mul_scalar((2.0 / pair[0] as f32).sqrt())?);
        state.push(Tensor::zeros([pair[1]])?);
    }
    let step = |state: &[Tensor], batch: &[Tensor]| {
        let loss = |p: &[Tensor]| {
            let mut hidden = batch[0].clone();
            for (i, layer) in p.chunks(2).enumerate() {
                hidden = hidden.matmul(&layer[0])?.add(&layer[1])?;
                if i < 2 {
                    hidden = hidden.relu()?;
                }
            }
            hidden.cross_entropy(&batch[1])
        };
        let (loss, gradients) = value_and_grad(loss)(state)?;
        let updated = state.iter().zip(&gradients).map(|(p, g)| p - &(g * 0.01)?).collect::<Result<Vec<_>>>()?;
        Ok((updated, vec![loss]))
    };
    let compiled = compile_with_state(step, &state.iter().collect::<Vec<_>>(), &[&x, &labels], Bytes::mib(64))?;
    let planned = seconds(1, || compiled.run(&[&x, &labels]).map(drop))?;
    let batch = [x.clone(), labels.clone()];
    let eager = seconds(1, || {
        state = step(&state, &batch)?.0;
        Ok(())
    })?;
    println!(
        "training step of the mlp, {threads} threads: eager {:.3} ms, compiled {:.3} ms, ratio {:.2}; compiled peak {}",
        1e3 * eager,
        1e3 * planned,
        eager / planned,
        compiled.peak()
    );
    Ok(())
}
