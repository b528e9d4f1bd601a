//! Progress of passes over files before a run: what is read, and how much of it.

use std::path::Path;
use std::sync::OnceLock;

/// A pass over a file.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'p> {
    /// What the pass is for, such as `reading` or `fitting`.
    pub task: &'static str,
    /// The file.
    pub path: &'p Path,
    /// What was read, in units of the total.
    pub done: u64,
    /// Everything there is to read.
    pub total: u64,
}

static OBSERVER: OnceLock<fn(&Progress<'_>)> = OnceLock::new();

/// Sets the function that is called now and then during passes over files. Only the first call has an effect.
pub fn observe_progress(observer: fn(&Progress<'_>)) {
    _ = OBSERVER.set(observer);
}

/// Bytes and rows between two reports.
const STEP: u64 = 1 << 20;
const ROWS: u64 = 1 << 14;

/// Reports a pass in steps.
pub(crate) struct Reporter<'p> {
    task: &'static str,
    path: &'p Path,
    total: u64,
    step: u64,
    next: u64,
}

impl<'p> Reporter<'p> {
    pub fn new(task: &'static str, path: &'p Path, total: u64) -> Reporter<'p> {
        Reporter { task, path, total, step: STEP, next: STEP }
    }

    /// Reports rows instead of bytes.
    pub fn rows(task: &'static str, path: &'p Path, total: u64) -> Reporter<'p> {
        Reporter { step: ROWS, next: ROWS, task, path, total }
    }

    #[inline]
    pub fn at(&mut self, done: u64) {
        if done >= self.next {
            self.next = done + self.step;
            if let Some(observer) = OBSERVER.get() {
                observer(&Progress { task: self.task, path: self.path, done: done.min(self.total), total: self.total });
            }
        }
    }
}

impl Drop for Reporter<'_> {
    fn drop(&mut self) {
        // The end is reported only where the beginning was.
        if self.next > self.step
            && let Some(observer) = OBSERVER.get()
        {
            observer(&Progress { task: self.task, path: self.path, done: self.total, total: self.total });
        }
    }
}
