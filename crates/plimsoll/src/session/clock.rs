//! Measured step times.

use crate::system::Waiting;
use plimsoll_core::step::Role;
use std::time::{Duration, Instant};

/// Number of recorded steps: the memory of a run must not grow with its length.
const REMEMBERED: usize = 511;

/// Querying the thread's wait time takes a microsecond or two; shorter steps do not query it.
const WORTH_ASKING: f32 = 1e-3;

/// The first steps of a run touch memory for the first time and are not typical.
const SKIPPED: u64 = 1;

/// Times of whole batches, from the first micro-batch of each to its last.
pub(crate) struct Clock {
    steps: u64,
    seconds: Vec<f32>,
    fastest: f32,
    /// Time of the micro-batches of the current batch.
    begun: Duration,
    /// If the last micro-batch was submitted, on devices that run asynchronously.
    handed_over: Option<Instant>,
    waiting: Waiting,
    waited: Option<Duration>,
}

impl Clock {
    pub fn new() -> Clock {
        Clock {
            steps: 0,
            seconds: Vec::with_capacity(REMEMBERED),
            fastest: f32::INFINITY,
            begun: Duration::ZERO,
            handed_over: None,
            waiting: Waiting::of_this_thread(),
            waited: None,
        }
    }

    /// A micro-batch is about to run.
    pub fn begin(&mut self) -> Instant {
        let start = Instant::now();
        self.waited = (self.fastest > WORTH_ASKING).then(|| self.waiting.so_far());
        start
    }

    /// A micro-batch that began at `start` has run. On an asynchronous device (`lags`), the time between submissions counts. Time in which the
    /// thread was preempted does not count.
    pub fn ran(&mut self, role: Role, start: Instant, lags: bool) {
        let waited = self.waited.take().map_or(Duration::ZERO, |before| self.waiting.so_far().saturating_sub(before));
        let now = Instant::now();
        let from = if lags { self.handed_over.replace(now).unwrap_or(start) } else { start };
        self.begun += (now - from).saturating_sub(waited);
        if matches!(role, Role::Step | Role::Last) {
            let seconds = std::mem::take(&mut self.begun).as_secs_f32();
            if self.steps >= SKIPPED {
                let at = ((self.steps - SKIPPED) % REMEMBERED as u64) as usize;
                if at < self.seconds.len() {
                    self.seconds[at] = seconds
                } else {
                    self.seconds.push(seconds)
                }
                self.fastest = self.fastest.min(seconds);
            }
            self.steps += 1;
        }
    }

    /// Training was interrupted, by validation for example.
    pub fn paused(&mut self) {
        self.handed_over = None;
    }

    /// The median and the minimum seconds of a step; none after too few steps.
    pub fn measured(&self) -> Option<(f64, f64)> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f32::total_cmp);
        let median = seconds.get(seconds.len() / 2)?;
        Some((f64::from(*median), f64::from(self.fastest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_steps_and_the_first_step_does_not_count() {
        let mut clock = Clock::new();
        let ago = |millis: u64| Instant::now() - Duration::from_millis(millis);
        clock.ran(Role::Step, ago(10_000), false);
        assert_eq!(clock.measured(), None);
        for pieces in [[100, 200], [300, 400], [500, 600]] {
            clock.ran(Role::First, ago(pieces[0]), false);
            clock.ran(Role::Last, ago(pieces[1]), false);
        }
        let (median, fastest) = clock.measured().unwrap();
        assert!((0.7..0.8).contains(&median) && (0.3..0.4).contains(&fastest), "{median} {fastest}");
    }

    #[test]
    fn only_the_last_steps_are_stored() {
        let mut clock = Clock::new();
        let start = Instant::now();
        (0..3 * REMEMBERED).for_each(|_| clock.ran(Role::Step, start, false));
        assert_eq!((clock.seconds.len(), clock.seconds.capacity()), (REMEMBERED, REMEMBERED));
    }
}
