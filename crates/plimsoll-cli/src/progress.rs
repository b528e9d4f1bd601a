//! Progress on standard error: a live line per epoch on a terminal, one line per epoch elsewhere.

use crate::text;
use plimsoll::{Bytes, Epoch, Event};
use std::io::{IsTerminal, Write, stderr};

/// Cells of the epoch's bar and of the memory gauge.
const BAR: usize = 20;
const GAUGE: usize = 8;

pub struct Progress {
    quiet: bool,
    terminal: bool,
    budget: Bytes,
    epochs: Option<u64>,
    /// Lines about the data, after the plan.
    notes: String,
}

impl Progress {
    pub fn new(quiet: bool, notes: String) -> Progress {
        Progress { notes, quiet, terminal: stderr().is_terminal(), budget: Bytes::ZERO, epochs: None }
    }

    pub fn show(&mut self, event: &Event<'_>) {
        // Warnings are printed even with --quiet.
        match event {
            Event::Replanned { reason, .. } => return say(&format!("warning: {reason}; replanned for what is free\n")),
            Event::Warning(what) => return say(&format!("warning: {what}\n")),
            Event::Resumed { complaints, .. } => {
                complaints.iter().for_each(|complaint| say(&format!("warning: {complaint}; an older checkpoint is used\n")));
            }
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
            Event::Progress { .. } => {}
            Event::Resumed { epoch, step, .. } => say(&format!("resumed after step {step}, {epoch} epochs done\n\n")),
            Event::Replanned { .. } | Event::Warning(_) => {}
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
