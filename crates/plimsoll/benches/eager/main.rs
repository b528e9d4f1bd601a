//! Overhead of eager ops, and eager training steps against compiled ones, in time and peak memory.
//!
//! ```text
//! cargo bench -p plimsoll --bench eager                      overhead on the CPU, then every network
//! cargo bench -p plimsoll --bench eager -- ops               overhead only
//! cargo bench -p plimsoll --bench eager -- mlp resnet18      these networks
//! cargo bench -p plimsoll --bench eager -- step mlp          one line of a network's eager step, for rivals/eager_compare.py
//! cargo bench -p plimsoll --bench eager -- cuda:0            overhead of enqueueing and networks on a GPU
//! ```
//!
//! `THREADS` sets the number of threads, 1 by default.

mod networks;

use networks::{NAMES, Network, network};
use plimsoll::eager::{Context, Limit, Result, Tape, Tensor, compile_with_state, value_and_grad};
use plimsoll::{Bytes, DeviceSpec, open_device, probe};
use std::time::{Duration, Instant};

/// Rounds of a short measurement; the median counts. Rounds are short, so that most of them are not interrupted.
const ROUNDS: usize = 401;
/// Eager training steps of a network are repeated this long, and compiled ones, in this many turns.
const SPAN: Duration = Duration::from_secs(6);
const TURNS: u32 = 6;

fn main() -> Result<()> {
    let asked: Vec<String> = std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let asked: Vec<&str> = asked.iter().map(String::as_str).collect();
    let threads = std::env::var("THREADS").ok().and_then(|threads| threads.parse().ok()).unwrap_or(1);
    let cpu = || Context::cpu(threads, Bytes::gib(4));
    match &asked[..] {
        ["step", name] => cpu()?.scope(|| step_alone(name)),
        ["ops"] => cpu()?.scope(ops),
        ["cuda:0"] => on_gpu(),
        names => {
            if names.is_empty() {
                cpu()?.scope(ops)?;
            }
            let all = if names.is_empty() { &NAMES[..] } else { names };
            all.iter().try_for_each(|name| cpu()?.scope(|| compare(name, &format!("{threads} threads"))))
        }
    }
}

/// The median seconds of a call, repeated `times` in each of some rounds.
fn seconds(times: usize, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..times {
            call()?;
        }
        rounds.push(begin.elapsed().as_secs_f64() / times as f64);
    }
    Ok(median(rounds))
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn report(name: &str, seconds: f64) {
    println!("{name:<44} {:>9.3} µs", 1e6 * seconds);
}

fn ops() -> Result<()> {
    let (x, y) = (Tensor::arange(8)?, Tensor::ones([8])?);
    report("add of 8 numbers", seconds(200, || x.add(&y).map(drop))?);
    report("add of 8 numbers and a number", seconds(200, || x.add_scalar(1.0).map(drop))?);
    report("reshape", seconds(200, || x.reshape([2, 4]).map(drop))?);
    let taped = |op: fn(&Tensor, &Tensor) -> Result<Tensor>| {
        seconds(2, || {
            let tape = Tape::new();
            tape.watch(&x);
            (0..100).try_for_each(|_| op(&x, &y).map(drop))
        })
    };
    report("add of 8 numbers on a tape", taped(Tensor::add)? / 100.0);
    report("mul of 8 numbers on a tape", taped(Tensor::mul)? / 100.0);
    Ok(())
}

/// New parameters and the loss of a training step.
fn step(network: &Network, state: &[Tensor], batch: &[Tensor]) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
    let (loss, gradients) = value_and_grad(|p: &[Tensor]| (network.loss)(p, batch))(state)?;
    let mut updated = Vec::with_capacity(state.len());
    for (parameter, gradient) in state.iter().zip(gradients) {
        updated.push(parameter.add_scaled(&gradient, -0.01)?);
    }
    Ok((updated, vec![loss]))
}

/// What a number of steps took.
#[derive(Default)]
struct Spent {
    steps: u32,
    wall: Duration,
    /// Seconds of all threads of the process: on a busy machine, steadier than time on the wall.
    cpu: f64,
}

impl Spent {
    /// Repeats a step for some time.
    fn repeat(&mut self, span: Duration, mut step: impl FnMut() -> Result<f32>) -> Result<f32> {
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut loss = step()?;
        self.steps += 1;
        while start.elapsed() < span {
            loss = step()?;
            self.steps += 1;
        }
        self.wall += start.elapsed();
        self.cpu += cpu_seconds() - cpu;
        Ok(loss)
    }

    /// Milliseconds of a step: on the wall, and of all threads.
    fn milliseconds(&self) -> (f64, f64) {
        let steps = f64::from(self.steps);
        (1e3 * self.wall.as_secs_f64() / steps, 1e3 * self.cpu / steps)
    }
}

/// Processor time of the process so far, in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let numbers = stat.rsplit(')').next().expect("the name is in parentheses").split_whitespace();
    let ticks: u64 = numbers.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    ticks as f64 / 100.0
}

/// Eager steps by themselves, so that the peak of the process is theirs.
fn step_alone(name: &str) -> Result<()> {
    let resident = plimsoll::system::resident();
    let network = network(name)?;
    let mut state = network.parameters.clone();
    let mut eager = || {
        let (updated, losses) = step(&network, &state, &network.batch)?;
        state = updated;
        losses[0].item::<f32>()
    };
    eager()?;
    let mut spent = Spent::default();
    let loss = spent.repeat(SPAN / 2, eager)?;
    let grown = plimsoll::system::peak_resident().0.saturating_sub(resident.0) as f64 / (1 << 20) as f64;
    let (wall, cpu) = spent.milliseconds();
    println!("plimsoll {name} {wall:.3} ms {cpu:.3} ms-cpu {grown:.1} MiB loss {loss:.4}");
    Ok(())
}

/// Eager and compiled steps in turns.
fn compare(name: &str, place: &str) -> Result<()> {
    let network = network(name)?;
    let parameters: Vec<&Tensor> = network.parameters.iter().collect();
    let batch: Vec<&Tensor> = network.batch.iter().collect();
    let compiled = compile_with_state(|state, batch| step(&network, state, batch), &parameters, &batch, Bytes::gib(2))?;
    let mut state = network.parameters.clone();
    let mut eager = || {
        let (updated, losses) = step(&network, &state, &network.batch)?;
        state = updated;
        losses[0].item::<f32>()
    };
    let planned = || compiled.run(&batch)?[0].item::<f32>();
    eager()?;
    planned()?;
    let (mut by_op, mut by_plan) = (Spent::default(), Spent::default());
    for _ in 0..TURNS {
        by_op.repeat(SPAN / TURNS, &mut eager)?;
        by_plan.repeat(SPAN / TURNS, planned)?;
    }
    let ((eager_ms, eager_cpu), (plan_ms, plan_cpu)) = (by_op.milliseconds(), by_plan.milliseconds());
    let stats = network.parameters[0].context()?.stats();
    println!(
        "training step of {}, {place}: eager {eager_ms:.3} ms ({eager_cpu:.3} of CPU), compiled {plan_ms:.3} ms ({plan_cpu:.3} of CPU), \
         ratio {:.2} ({:.2} of CPU); peak of both {}, compiled {}",
        network.name,
        eager_ms / plan_ms,
        eager_cpu / plan_cpu,
        stats.peak,
        compiled.peak()
    );
    Ok(())
}

/// The overhead of enqueueing an op, and training steps, on the first GPU.
fn on_gpu() -> Result<()> {
    if let Some(obstacle) = probe().obstacle() {
        println!("not run on a GPU: {obstacle}");
        return Ok(());
    }
    let gpu = Context::new(open_device(DeviceSpec::Cuda(0))?, Limit::Bytes(Bytes::gib(8)))?;
    gpu.scope(|| {
        let (x, y) = (Tensor::arange(8)?, Tensor::ones([8])?);
        let (a, b) = (Tensor::uniform([64, 64])?, Tensor::uniform([64, 64])?);
        // Fewer per round than the driver queues, and waited for between rounds.
        let enqueue = |op: &dyn Fn() -> Result<Tensor>| -> Result<f64> {
            drop(op()?);
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                x.to_vec::<f32>()?;
                let begin = Instant::now();
                for _ in 0..200 {
                    drop(op()?);
                }
                rounds.push(begin.elapsed().as_secs_f64() / 200.0);
            }
            Ok(median(rounds))
        };
        report("enqueue add of 8 numbers", enqueue(&|| x.add(&y))?);
        report("enqueue add of 8 numbers and a number", enqueue(&|| x.add_scalar(1.0))?);
        report("enqueue sum of 8 numbers", enqueue(&|| x.sum())?);
        report("enqueue product of 64×64", enqueue(&|| a.matmul(&b))?);
        let tape = Tape::new();
        tape.watch(&x);
        report("enqueue add of 8 numbers on a tape", enqueue(&|| x.add(&y))?);
        drop(tape);
        NAMES.iter().try_for_each(|name| compare(name, "cuda:0"))
    })
}
