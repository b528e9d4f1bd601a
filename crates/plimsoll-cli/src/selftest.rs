//! `plimsoll selftest`: every op of the table on a device, against a float64 reference.

use anyhow::Result;
use plimsoll::{Choice, describe, open_device, selftest};
use std::io::Write;

/// Prints one line per op and a summary; gives whether everything holds.
pub fn run(choice: Choice, seed: u64) -> Result<bool> {
    let device = open_device(choice)?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "selftest · {} ({}) · seed {seed}\n", device.name(), describe(&*device))?;
    let (mut cases, mut failures) = (0, 0);
    selftest::run_each(&device, seed, |report| {
        cases += report.cases;
        failures += report.failures.len();
        // A line that cannot be written is told by the summary.
        let _ = writeln!(out, "{report}");
    });
    let verdict = if failures == 0 { "every result and gradient holds".to_string() } else { format!("{failures} do not hold") };
    writeln!(out, "\n{cases} cases, forward and backward, as written and improved: {verdict}")?;
    Ok(failures == 0)
}
