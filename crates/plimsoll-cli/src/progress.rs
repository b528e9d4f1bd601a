//! Progress on standard error: a live line per epoch on a terminal, one line per epoch elsewhere.

use crate::{signals, text};
use plimsoll::{Bytes, Epoch, Event};
use std::io::{IsTerminal, Write, stderr};
use std::path::{Path, PathBuf};

/// Cells of the epoch's bar and of the memory gauge.
const BAR: usize = 20;
const GAUGE: usize = 8;

pub struct Progress {
    quiet: bool,
    folder: PathBuf,
    terminal: bool,
    budget: Bytes,
    epochs: Option<u64>,
    /// Lines about the data, after the plan.
    notes: String,
}

impl Progress {
    pub fn new(quiet: bool, folder: &Path, notes: String) -> Progress {
        Progress { notes, quiet, folder: folder.to_path_buf(), terminal: stderr().is_terminal(), budget: Bytes::ZERO, epochs: None }
    }

    /// Says something about the run as a whole.
    pub fn note(&self, text: &str) {
        if !self.quiet {
            say(&format!("note: {text}\n"));
        }
    }

    /// Says what is wrong, even with --quiet.
    pub fn warn(&self, text: &str) {
        say(&format!("warning: {text}\n"));
    }

    /// Says where a stopped run continues, even with --quiet.
    fn stopped(&self, step: u64, checkpoint: Option<&Path>, complete: bool) {
        let by = signals::received().map_or("from outside", |(name, _)| name);
        let line = if self.terminal && !self.quiet { "\n" } else { "" };
        let folder = self.folder.display();
        let how = format!("resume with `plimsoll train --out {folder} --resume`");
        say(&match checkpoint.map(Path::display) {
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
                self.budget = plan.host_budget;
                self.epochs = Some(*epochs);
                say(&format!("{plan}\n{}\n", self.notes));
            }
            Event::Progress { epoch, step, steps, scores, learning_rate, examples_per_s, resident } if self.terminal => {
                let bar = match steps {
                    Some(steps) => text::bar(*step as f64 / (*steps).max(1) as f64, BAR),
                    None => format!("step {step}"),
                };
                let gauge = text::bar(resident.0 as f64 / self.budget.0.max(1) as f64, GAUGE);
                let line = format!(
                    "{} {bar} {} · rate {} · {} examples/s · memory {gauge} {resident} of {}",
                    self.epoch(*epoch),
                    text::scores(scores),
                    text::rate(*learning_rate),
                    text::thousands(*examples_per_s),
                    self.budget
                );
                // Clears what is left of a longer line before.
                say(&format!("\r{line}\x1b[K"));
            }
            Event::FirstBatch(_) | Event::Progress { .. } => {}
            Event::Resumed { epoch, step, .. } => say(&format!("resumed after step {step}, {epoch} epochs done\n\n")),
            Event::Replanned { .. } | Event::Warning(_) | Event::Stopped { .. } => {}
            Event::EpochEnd(epoch) => self.end(epoch),
        }
    }

    fn end(&self, epoch: &Epoch) {
        let start = if self.terminal { "\r" } else { "" };
        let end = if self.terminal { "\x1b[K" } else { "" };
        let held_out = epoch.validation.as_ref().map_or(String::new(), |scores| format!(" · validation: {}", text::scores(scores)));
        say(&format!(
            "{start}{} {}{held_out} · rate {} · {} examples/s · {:.1} s{end}\n",
            self.epoch(epoch.epoch),
            text::scores(&epoch.training),
            text::rate(epoch.learning_rate),
            text::thousands(epoch.examples_per_s),
            epoch.seconds
        ));
    }

    fn epoch(&self, epoch: u64) -> String {
        match self.epochs {
            Some(epochs) => format!("epoch {epoch:>width$}/{epochs}", width = epochs.to_string().len()),
            None => format!("epoch {epoch}"),
        }
    }
}

/// Writes to standard error. Progress that nobody reads any more must not end a run.
fn say(text: &str) {
    let mut stream = stderr();
    let _ = stream.write_all(text.as_bytes()).and_then(|()| stream.flush());
}
