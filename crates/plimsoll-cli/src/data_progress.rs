//! Progress of passes over tables before a run: a line on a terminal, rewritten now and then.

use crate::output::printable;
use plimsoll::DataProgress;
use std::io::{IsTerminal, Write, stderr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Passes that take less are not reported, and lines not more often.
const EVERY: Duration = Duration::from_millis(500);

static LAST: Mutex<Option<Instant>> = Mutex::new(None);

/// Shows progress where standard error is a terminal.
pub fn show() {
    if stderr().is_terminal() {
        plimsoll::observe_data_progress(report);
    }
}

fn report(progress: &DataProgress<'_>) {
    let Ok(mut last) = LAST.lock() else { return };
    let begun = *last.get_or_insert_with(Instant::now);
    let finished = progress.done >= progress.total;
    if begun.elapsed() < EVERY && !finished {
        return;
    }
    *last = Some(Instant::now());
    let percent = progress.done as f64 / progress.total.max(1) as f64 * 100.0;
    let name = progress.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let line = if finished { String::new() } else { format!("{} {}: {percent:.0} %", progress.task, printable(&name)) };
    let _ = write!(stderr(), "\r\x1b[K{line}");
}
