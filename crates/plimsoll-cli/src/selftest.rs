//! `plimsoll selftest`: every op of the table on a device, against a float64 reference.

use crate::Command;
use crate::output::say;
use anyhow::{Result, bail};
use clap::Args;
use plimsoll::selftest::{Case, CaseReport};
use plimsoll::{Device, DeviceSpec, describe, open_device, open_each_way, selftest};
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Compare every op of a device with a float64 reference
#[derive(Args)]
pub struct Selftest {
    /// Device to run on (see `plimsoll devices`)
    #[arg(long, value_name = "NAME", default_value = "cpu")]
    device: String,

    /// Seed of shapes and values
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Only ops whose names start with this; may be repeated
    #[arg(long, value_name = "OP")]
    only: Vec<String>,
}

impl Command for Selftest {
    const NAME: &'static str = "selftest";

    fn run(&self) -> Result<ExitCode> {
        Ok(if run(self.device.parse()?, self.seed, &self.only)? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// One device per thread, and what is special about them.
type DeviceSet = (&'static str, Vec<Arc<dyn Device>>);

/// Prints one line per op and a summary; gives whether everything holds. Only ops whose names begin with one of `only`
/// are run, if there are any.
fn run(device: DeviceSpec, seed: u64, only: &[String]) -> Result<bool> {
    let ops: Vec<&str> = selftest::ops().filter(|op| only.is_empty() || only.iter().any(|name| op.starts_with(name.as_str()))).collect();
    if ops.is_empty() {
        bail!("no op begins with `{}`; there are: {}", only.join("`, `"), selftest::ops().collect::<Vec<_>>().join(", "));
    }
    // A GPU waits for the compiler of its kernels, so each thread opens it for itself; the CPU device has threads of
    // its own.
    let threads = if device == DeviceSpec::Cpu { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    // Convolutions and attention are checked every way they can go.
    let has_ways = |op: &str| op.starts_with("conv2d") || op.starts_with("attention");
    let usual = if ops.iter().all(|op| has_ways(op)) { vec![] } else { open(threads, || Ok(vec![("", open_device(device)?)]))? };
    let each_way = if ops.iter().any(|op| has_ways(op)) { open(threads, || open_each_way(device))? } else { vec![] };
    let first = &usual.iter().chain(&each_way).next().expect("there is an op").1[0];
    say(&format!("selftest · {} ({}) · seed {seed}\n\n", first.name(), describe(&**first)))?;
    let all = selftest::cases(seed);
    let (mut cases, mut failures) = (0, 0);
    for op in ops {
        let own: Vec<&Case> = all.iter().filter(|case| case.op == op).collect();
        for (name, devices) in if has_ways(op) { &each_way } else { &usual } {
            let before = taken(devices);
            let report = run_op(op, &own, devices);
            cases += report.cases;
            failures += report.failures.len();
            let (name, taken) = (if name.is_empty() { String::new() } else { format!("   by {name}") }, told(&before, &taken(devices)));
            let text = report.to_string();
            let (first, rest) = text.split_once('\n').map_or((text.as_str(), String::new()), |(first, rest)| (first, format!("\n{rest}")));
            say(&format!("{first}{name}{taken}{rest}\n"))?;
        }
    }
    let verdict = if failures == 0 { "every result and gradient holds".to_string() } else { format!("{failures} do not hold") };
    say(&format!("\n{cases} cases, forward and backward, as written and improved: {verdict}\n"))?;
    let whole: Vec<Arc<dyn Device>> = each_way.iter().flat_map(|(_, devices)| devices.iter().cloned()).collect();
    let ways = taken(&whole);
    if !ways.is_empty() {
        say(&format!("convolutions{}\n", told(&BTreeMap::new(), &ways)))?;
    }
    Ok(failures == 0)
}

/// Opens devices for so many threads, by all of them at once: one device each, or one for each way there is.
fn open(threads: usize, open: impl Fn() -> plimsoll::Result<Vec<(&'static str, Arc<dyn Device>)>> + Sync) -> Result<Vec<DeviceSet>> {
    let opened = std::thread::scope(|scope| {
        // Where a thread cannot be started, this one opens the device.
        let opening: Vec<_> = (0..threads).map(|_| std::thread::Builder::new().spawn_scoped(scope, &open).map_err(|_| open())).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().expect("opening does not panic");
        opening.into_iter().map(|opened| opened.map_or_else(|here| here, join)).collect::<plimsoll::Result<Vec<_>>>()
    })?;
    let mut ways: Vec<DeviceSet> = Vec::new();
    for (i, (name, device)) in opened.into_iter().flat_map(|devices| devices.into_iter().enumerate()) {
        if i == ways.len() {
            ways.push((name, Vec::new()));
        }
        ways[i].1.push(device);
    }
    Ok(ways)
}

fn run_op(op: &'static str, cases: &[&Case], devices: &[Arc<dyn Device>]) -> CaseReport {
    let (next, report) = (AtomicUsize::new(0), Mutex::new(CaseReport::new(op)));
    std::thread::scope(|scope| {
        for device in devices {
            let work = || {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut single = CaseReport::new(op);
                    single.run(case, device);
                    report.lock().expect("no check panics").join(single);
                }
            };
            // Where a thread cannot be started, this one runs the cases.
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                work();
            }
        }
    });
    report.into_inner().expect("no check panics")
}

/// How many convolutions went which way so far.
fn taken(devices: &[Arc<dyn Device>]) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for (way, count) in devices.iter().filter_map(|device| device.diagnostics()).flat_map(|device| device.convolution_algorithms()) {
        *all.entry(way).or_default() += count;
    }
    all
}

/// Which ways were gone since, with how often.
fn told(before: &BTreeMap<String, usize>, after: &BTreeMap<String, usize>) -> String {
    let since = after.iter().map(|(way, count)| (way, count - before.get(way).unwrap_or(&0))).filter(|(_, count)| *count > 0);
    let parts: Vec<String> = since.map(|(way, count)| format!("{way} {count}")).collect();
    if parts.is_empty() { String::new() } else { format!("   {}", parts.join(" · ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_new_results_are_reported() {
        let map = |parts: &[(&str, usize)]| parts.iter().map(|(way, count)| (way.to_string(), *count)).collect::<BTreeMap<_, _>>();
        let (before, after) = (map(&[("cuDNN", 3), ("generated", 2)]), map(&[("cuBLASLt", 4), ("cuDNN", 9), ("generated", 2)]));
        assert_eq!(told(&before, &after), "   cuBLASLt 4 · cuDNN 6");
        assert_eq!(told(&after, &after), "");
    }
}
