//! What opening a GPU and loading programs takes.

use super::state::lock;
use std::sync::Mutex;
use std::time::Instant;

/// Seconds by what they were spent on, in the order in which that began.
#[derive(Default)]
pub(crate) struct StartTimes(Mutex<Vec<(&'static str, f64)>>);

impl StartTimes {
    /// Adds the time of `work`.
    pub fn time<T>(&self, what: &'static str, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.add(what, start);
        result
    }

    /// Adds the time since `start`.
    pub fn add(&self, what: &'static str, start: Instant) {
        let (mut times, seconds) = (lock(&self.0), start.elapsed().as_secs_f64());
        match times.iter_mut().find(|(known, _)| *known == what) {
            Some((_, sum)) => *sum += seconds,
            None => times.push((what, seconds)),
        }
    }

    /// All of them so far.
    pub fn list(&self) -> Vec<(&'static str, f64)> {
        lock(&self.0).clone()
    }
}
