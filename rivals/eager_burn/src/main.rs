//! Eager training steps of the networks of `cargo bench -p plimsoll --bench eager` in Burn, and the overhead of an op.
//!
//! ```text
//! eager_burn step mlp|cifar-cnn|char-gpt
//! eager_burn ops
//! ```
//!
//! `RAYON_NUM_THREADS` sets the number of threads. `step` prints one line: milliseconds of a step on the wall
//! and of all threads, and by how many MiB the peak of the process grew.

mod burned;

use std::time::{Duration, Instant};

pub const TOKENS: usize = 65;
pub const CONTEXT: usize = 64;
pub const WIDTH: usize = 128;
pub const HEADS: usize = 4;
pub const BLOCKS: usize = 4;

pub fn class_ids(count: usize, classes: usize) -> Vec<i32> {
    (0..count).map(|i| (i * 7 % classes) as i32).collect()
}

/// Uniform numbers from 0 to 1.
pub fn uniform(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 24) as f32
    };
    (0..count).map(|_| next()).collect()
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["step", name] => burned::step(name),
        ["ops"] => burned::ops(),
        _ => panic!("step NETWORK, or ops"),
    }
}

/// Repeats a step that returns its loss, and prints its line.
pub fn measure(name: &str, before: u64, mut step: impl FnMut() -> f32) {
    step();
    let (mut steps, mut loss, start, cpu) = (0, 0.0, Instant::now(), cpu_seconds());
    while steps == 0 || start.elapsed() < Duration::from_secs(3) {
        loss = step();
        steps += 1;
    }
    let [wall, cpu] = [start.elapsed().as_secs_f64(), cpu_seconds() - cpu].map(|seconds| 1e3 * seconds / f64::from(steps));
    let grown = status("VmHWM:").saturating_sub(before) as f64 / 1024.0;
    println!("burn {name} {wall:.3} ms {cpu:.3} ms-cpu {grown:.1} MiB loss {loss:.4}");
}

/// Processor time of the process so far, in steps of 10 ms.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let numbers = stat.rsplit(')').next().expect("the name is in parentheses").split_whitespace();
    let ticks: u64 = numbers.skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number")).sum();
    ticks as f64 / 100.0
}

/// The overhead of an op.
pub fn overhead(name: &str, mut op: impl FnMut()) {
    let mut rounds = Vec::new();
    for _ in 0..401 {
        let begin = Instant::now();
        for _ in 0..200 {
            op();
        }
        rounds.push(begin.elapsed().as_secs_f64() / 200.0);
    }
    println!("burn {name:<36} {:9.3} µs", 1e6 * median(rounds));
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// KiB of resident memory.
pub fn resident() -> u64 {
    status("VmRSS:")
}

fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find(|line| line.starts_with(key)).expect("it states that");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("in KiB")
}
