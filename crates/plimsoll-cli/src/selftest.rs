//! `plimsoll selftest`: every op of the table on a device, against a float64 reference.

use anyhow::Result;
use plimsoll::selftest::{Case, CaseReport};
use plimsoll::{Choice, describe, open_device, selftest};
use std::io::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Prints one line per op and a summary; gives whether everything holds.
pub fn run(choice: Choice, seed: u64) -> Result<bool> {
    // A GPU waits for the compiler of its kernels, so each thread opens it for itself; the CPU device has threads of its own.
    let threads = if choice == Choice::Cpu { 1 } else { std::thread::available_parallelism().map_or(1, usize::from) };
    let devices = (0..threads).map(|_| open_device(choice)).collect::<plimsoll::Result<Vec<_>>>()?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "selftest · {} ({}) · seed {seed}\n", devices[0].name(), describe(&*devices[0]))?;
    let all = selftest::cases(seed);
    let (mut cases, mut failures) = (0, 0);
    for op in selftest::ops() {
        let own: Vec<&Case> = all.iter().filter(|case| case.op == op).collect();
        let (next, report) = (AtomicUsize::new(0), Mutex::new(CaseReport::new(op)));
        std::thread::scope(|scope| {
            for device in &devices {
                scope.spawn(|| {
                    while let Some(case) = own.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let mut single = CaseReport::new(op);
                        single.run(case, device);
                        report.lock().expect("no check panics").join(single);
                    }
                });
            }
        });
        let report = report.into_inner().expect("no check panics");
        cases += report.cases;
        failures += report.failures.len();
        writeln!(out, "{report}")?;
    }
    let verdict = if failures == 0 { "every result and gradient holds".to_string() } else { format!("{failures} do not hold") };
    writeln!(out, "\n{cases} cases, forward and backward, as written and improved: {verdict}")?;
    Ok(failures == 0)
}
