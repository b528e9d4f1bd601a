//! Progress on standard error: a live line per epoch on a terminal; elsewhere a line per epoch, and some within long
//! ones.

use crate::output::{colours, printable};
use crate::progress_line::{Line, ended};
use crate::signals;
use plimsoll::{Bytes, Epoch, Event};
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where the output is not a terminal, a line within an epoch follows the last after this long, or after a tenth of the
/// epoch.
const EVERY: Duration = Duration::from_secs(10);

/// Lines within an epoch are at least this far apart: short epochs have none.
const APART: Duration = Duration::from_secs(1);

pub struct Progress {
    quiet: bool,
    folder: PathBuf,
    terminal: bool,
    budget: Bytes,
    batch: u64,
    epochs: Option<u64>,
    /// Lines about the data, after the plan.
    notes: String,
    interval: LineInterval,
}

/// When the next line within an epoch is due, where the output is not a terminal.
struct LineInterval {
    last: Instant,
    epoch: u64,
    step: u64,
}

impl LineInterval {
    /// Whether ten seconds or, where its length is known, a tenth of the epoch have passed since the last line.
    fn due(&self, since: Duration, epoch: u64, step: u64, steps: Option<u64>) -> bool {
        let before = if self.epoch == epoch { self.step } else { 0 };
        since >= EVERY || (since >= APART && steps.is_some_and(|steps| 10 * (step - before.min(step)) >= steps))
    }
}

impl Progress {
    pub fn new(quiet: bool, folder: &Path, notes: String) -> Progress {
        let interval = LineInterval { last: Instant::now(), epoch: 0, step: 0 };
        let terminal = stderr().is_terminal();
        Progress { notes, quiet, folder: folder.to_path_buf(), terminal, budget: Bytes::ZERO, batch: 0, epochs: None, interval }
    }

    /// Says something about the run as a whole.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            self.say(&format!("note: {text}\n"));
        }
    }

    /// Says what is wrong, even with --quiet.
    pub fn warn(&self, text: &str) {
        self.say(&format!("warning: {text}\n"));
    }

    /// Says where a stopped run continues, even with --quiet.
    fn stopped(&self, step: u64, checkpoint: Option<&Path>, complete: bool) {
        let by = signals::received().map_or("from outside", |(name, _)| name);
        let line = if self.terminal && !self.quiet { "\n" } else { "" };
        let folder = self.folder.display();
        let how = format!("resume with `plimsoll train --out {folder} --resume`");
        self.say(&match checkpoint.map(Path::display) {
            Some(path) if complete => format!("{line}stopped by {by} after step {step}; checkpoint written to {path}; {how}\n"),
            Some(path) => {
                format!("{line}stopped by {by} after step {step}; the last steps are not in the newest checkpoint, {path}; {how}\n")
            }
            None => format!("{line}stopped by {by} after step {step}; no checkpoint was written, so the steps are lost\n"),
        });
    }

    pub fn show(&mut self, event: &Event<'_>) {
        // Warnings are printed even with --quiet.
        match event {
            Event::Replanned { reason, .. } => return self.warn(&format!("{reason}; replanned for what is free")),
            Event::Warning(what) => return self.warn(what),
            Event::Resumed { complaints, .. } => {
                complaints.iter().for_each(|complaint| self.warn(&format!("{complaint}; an older checkpoint is used")));
            }
            Event::Stopped { step, checkpoint, complete, .. } => return self.stopped(*step, *checkpoint, *complete),
            _ => {}
        }
        if self.quiet {
            return;
        }
        match event {
            Event::Planned { plan, epochs } => {
                (self.budget, self.batch) = (plan.host_budget, plan.batch as u64);
                self.epochs = Some(*epochs);
                self.say(&format!("{plan}\n{}\n", self.notes));
            }
            Event::Progress { epoch, step, steps, scores, learning_rate, examples_per_s, resident } => {
                if !self.terminal && !self.interval.due(self.interval.last.elapsed(), *epoch, *step, *steps) {
                    return;
                }
                self.interval = LineInterval { last: Instant::now(), epoch: *epoch, step: *step };
                let rows_left =
                    steps.zip(self.epochs).map(|(steps, epochs)| ((epochs - epoch + 1) * steps).saturating_sub(*step) * self.batch);
                let line = Line {
                    epoch: *epoch,
                    epochs: self.epochs,
                    step: *step,
                    steps: *steps,
                    scores,
                    learning_rate: *learning_rate,
                    examples_per_s: *examples_per_s,
                    left_s: rows_left.filter(|_| *examples_per_s > 0.0).map(|rows| rows as f64 / examples_per_s),
                    resident: *resident,
                    budget: self.budget,
                };
                self.line(&line.fitting(self.columns()), !self.terminal);
            }
            Event::Resumed { epoch, step, .. } => self.say(&format!("resumed after step {step}, {epoch} epochs done\n\n")),
            Event::FirstBatch(_) | Event::Replanned { .. } | Event::Warning(_) | Event::Stopped { .. } => {}
            Event::EpochEnd(epoch) => self.end(epoch),
        }
    }

    fn end(&mut self, epoch: &Epoch) {
        self.interval = LineInterval { last: Instant::now(), epoch: epoch.epoch + 1, step: 0 };
        self.line(&ended(epoch, self.epochs, self.columns()), true);
    }

    /// Writes a line over the one before on a terminal; `ends` if the next goes below it.
    fn line(&self, line: &str, ends: bool) {
        let end = if ends { "\n" } else { "" };
        // Dim while it changes, and cleared of what is left of a longer line before.
        let (dim, plain) = if colours(self.terminal) && !ends { ("\x1b[2m", "\x1b[0m") } else { ("", "") };
        let line = printable(line);
        write(&if self.terminal { format!("\r{dim}{line}{plain}\x1b[K{end}") } else { format!("{line}{end}") });
    }

    fn say(&self, text: &str) {
        write(&if self.terminal { printable(text) } else { text.into() });
    }

    fn columns(&self) -> usize {
        if !self.terminal {
            return usize::MAX;
        }
        terminal_size::terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0))
    }
}

/// Writes to standard error. Progress that nobody reads any more must not end a run.
fn write(text: &str) {
    let mut stream = stderr();
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirected_lines_come_every_ten_seconds_or_tenth_of_an_epoch() {
        let interval = LineInterval { last: Instant::now(), epoch: 2, step: 100 };
        let seconds = Duration::from_secs;
        assert!(interval.due(seconds(2), 2, 200, Some(1000)), "a tenth of the epoch");
        assert!(!interval.due(seconds(9), 2, 199, Some(1000)), "less than a tenth, and too soon");
        assert!(interval.due(seconds(10), 2, 101, Some(1_000_000)), "long epochs are not silent");
        assert!(!interval.due(Duration::from_millis(900), 2, 900, Some(1000)), "short epochs have no lines within");
        assert!(interval.due(seconds(10), 2, 101, None) && !interval.due(seconds(9), 2, 900, None), "an epoch of unknown length");
        assert!(interval.due(seconds(1), 3, 100, Some(1000)), "a new epoch begins at its first step");
    }
}
