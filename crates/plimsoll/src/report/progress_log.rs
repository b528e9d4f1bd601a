//! Progress within epochs: a file whose length grows with the logarithm of the run, and one line with the state of the
//! run now.

use crate::fit::Event;
use plimsoll_core::Bytes;
use plimsoll_formats::json::write_number;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The file with the state of a run, for those who watch it.
pub(crate) const STATUS: &str = "details/status.json";

/// How often that is written, at most.
const EVERY: Duration = Duration::from_secs(1);

/// A line is written when the step count has grown by this share since the last.
const GROWTH: f64 = 1.02;

/// Bytes of the state: it is written over the one before, filled with spaces.
const STATUS_BYTES: usize = 384;

/// Both files, open while the run trains.
pub(crate) struct ProgressLog {
    lines: File,
    status: File,
    next_step: u64,
    written: Option<Instant>,
    batch: u64,
    epochs: u64,
    budget: Bytes,
    /// Steps of an epoch, where they are known, to count steps over the whole run.
    line: Vec<u8>,
}

impl ProgressLog {
    /// Opens both files; `append` if the run continues.
    pub fn open(folder: &Path, append: bool, batch: usize, epochs: u64, budget: Bytes) -> io::Result<ProgressLog> {
        let path = folder.join(super::PROGRESS);
        let lines = if append { File::options().create(true).append(true).open(path)? } else { File::create(path)? };
        let status = File::create(folder.join(STATUS))?;
        Ok(ProgressLog {
            lines,
            status,
            next_step: 1,
            written: None,
            batch: batch as u64,
            epochs,
            budget,
            line: Vec::with_capacity(STATUS_BYTES),
        })
    }

    /// Notes the progress of an epoch, if it is time to.
    pub fn note(&mut self, event: &Event<'_>) -> io::Result<()> {
        let Event::Progress { epoch, step, steps, scores, learning_rate, examples_per_s, resident } = event else { return Ok(()) };
        let line = steps.is_some_and(|steps| (epoch - 1) * steps + step >= self.next_step);
        let status = self.written.is_none_or(|written| written.elapsed() >= EVERY);
        if !line && !status {
            return Ok(());
        }
        self.line.clear();
        let (epochs, budget, batch) = (self.epochs, self.budget.0, self.batch);
        write!(self.line, "{{\"epoch\":{epoch},\"epochs\":{epochs},\"step\":{step},\"steps\":{},\"loss\":", steps.unwrap_or(0))?;
        write_number(&mut self.line, scores.loss)?;
        if let Some(accuracy) = scores.accuracy {
            self.line.write_all(b",\"accuracy\":")?;
            write_number(&mut self.line, accuracy)?;
        }
        self.line.write_all(b",\"learning_rate\":")?;
        write_number(&mut self.line, *learning_rate)?;
        self.line.write_all(b",\"examples_per_s\":")?;
        write_number(&mut self.line, *examples_per_s)?;
        write!(self.line, ",\"batch\":{batch},\"resident_bytes\":{},\"host_budget_bytes\":{budget}}}", resident.0)?;
        if let (true, Some(steps)) = (line, steps) {
            let step = (epoch - 1) * steps + step;
            self.next_step = (step + 1).max((step as f64 * GROWTH) as u64);
            self.line.push(b'\n');
            self.lines.write_all(&self.line)?;
            self.line.pop();
        }
        if status {
            self.written = Some(Instant::now());
            self.line.resize(self.line.len().max(STATUS_BYTES), b' ');
            self.status.write_all_at(&self.line, 0)?;
        }
        Ok(())
    }
}
