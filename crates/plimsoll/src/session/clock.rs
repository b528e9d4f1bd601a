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

/// Submissions to an asynchronous device lag behind it by a step at most: after a late one the next seems to take less
/// time than it computes. Over this many steps in a row that is little.
const IN_A_ROW: u32 = 16;

/// Times of whole batches, from the first micro-batch of each to its last.
pub(crate) struct Clock {
    /// Steps so far, and those of them that were recorded.
    steps: u64,
    recorded: u64,
    seconds: Vec<f32>,
    fastest: f32,
    /// The current steps in a row on an asynchronous device, and their seconds.
    row: (u32, f32),
    /// Time of the micro-batches of the current batch: without the time in which the thread was preempted, and with it.
    begun: Duration,
    elapsed: Duration,
    /// Whether the current batch is a whole one, timed from its beginning.
    whole: bool,
    /// If the last micro-batch was submitted, on devices that run asynchronously.
    handed_over: Option<Instant>,
    waiting: Waiting,
    waited: Option<Duration>,
}

impl Clock {
    pub fn new() -> Clock {
        Clock {
            steps: 0,
            recorded: 0,
            seconds: Vec::with_capacity(REMEMBERED),
            fastest: f32::INFINITY,
            row: (0, 0.0),
            begun: Duration::ZERO,
            elapsed: Duration::ZERO,
            whole: true,
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

    /// A micro-batch that began at `start` has run; `whole` if its batch has all of its rows. On an asynchronous device
    /// (`lags`), the time between submissions counts: a submission that follows a pause returns before anything was
    /// computed, and its step is not recorded. Time in which the thread was preempted does not count in the median. It
    /// does in the fastest step: other threads may have computed meanwhile. On an asynchronous device that is the
    /// fastest mean of some steps in a row.
    pub fn ran(&mut self, role: Role, start: Instant, lags: bool, whole: bool) {
        let waited = self.waited.take().map_or(Duration::ZERO, |before| self.waiting.so_far().saturating_sub(before));
        let now = Instant::now();
        self.whole &= whole && (!lags || self.handed_over.is_some());
        let from = if lags { self.handed_over.replace(now).unwrap_or(start) } else { start };
        self.elapsed += now - from;
        self.begun += (now - from).saturating_sub(waited);
        if matches!(role, Role::Step | Role::Last) {
            let (seconds, elapsed) = (std::mem::take(&mut self.begun), std::mem::take(&mut self.elapsed).as_secs_f32());
            if std::mem::replace(&mut self.whole, true) && self.steps >= SKIPPED {
                let at = (self.recorded % REMEMBERED as u64) as usize;
                if at < self.seconds.len() {
                    self.seconds[at] = seconds.as_secs_f32()
                } else {
                    self.seconds.push(seconds.as_secs_f32())
                }
                self.recorded += 1;
                self.fastest = self.fastest.min(if lags { self.per_step_in_a_row(elapsed) } else { elapsed });
            } else {
                self.row = (0, 0.0);
            }
            self.steps += 1;
        }
    }

    /// Seconds per step, once there are enough in a row.
    fn per_step_in_a_row(&mut self, seconds: f32) -> f32 {
        self.row = (self.row.0 + 1, self.row.1 + seconds);
        if self.row.0 < IN_A_ROW {
            return f32::INFINITY;
        }
        std::mem::take(&mut self.row).1 / IN_A_ROW as f32
    }

    /// Training was interrupted, by validation for example.
    pub fn paused(&mut self) {
        self.handed_over = None;
        self.row = (0, 0.0);
    }

    /// The median and the minimum seconds of a step; none after too few steps.
    pub fn measured(&self) -> Option<(f64, f64)> {
        let mut seconds = self.seconds.clone();
        seconds.sort_by(f32::total_cmp);
        let median = seconds.get(seconds.len() / 2)?;
        // On a busy machine, no step may have been as fast as most would be on an idle one.
        Some((f64::from(*median), f64::from(self.fastest.min(*median))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_add_up_to_steps_and_the_first_step_does_not_count() {
        let mut clock = Clock::new();
        let ago = |millis: u64| Instant::now() - Duration::from_millis(millis);
        clock.ran(Role::Step, ago(10_000), false, true);
        assert_eq!(clock.measured(), None);
        for pieces in [[100, 200], [300, 400], [500, 600]] {
            clock.ran(Role::First, ago(pieces[0]), false, true);
            clock.ran(Role::Last, ago(pieces[1]), false, true);
        }
        clock.ran(Role::Step, Instant::now(), false, false);
        let (median, fastest) = clock.measured().unwrap();
        assert!((0.7..0.8).contains(&median) && (0.3..0.4).contains(&fastest), "a partial batch does not count: {median} {fastest}");
    }

    #[test]
    fn only_the_last_steps_are_stored() {
        let mut clock = Clock::new();
        let start = Instant::now();
        (0..3 * REMEMBERED).for_each(|_| clock.ran(Role::Step, start, false, true));
        assert_eq!((clock.seconds.len(), clock.seconds.capacity()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn the_fastest_step_is_a_whole_one() {
        let ago = |millis: u64| Instant::now() - Duration::from_millis(millis);
        let mut clock = Clock::new();
        for millis in [5000, 1000, 1000] {
            clock.ran(Role::Step, ago(millis), false, true);
        }
        // The last batch of an epoch has fewer rows.
        clock.ran(Role::First, ago(1), false, false);
        clock.ran(Role::Last, ago(1), false, false);
        let (median, fastest) = clock.measured().unwrap();
        assert!(fastest > 0.9 && median > 0.9, "{median} {fastest}");

        // On an asynchronous device, the first submission after a pause returns at once.
        let mut clock = Clock::new();
        clock.ran(Role::Step, ago(5000), true, true);
        for _ in 0..3 {
            clock.paused();
            clock.ran(Role::Step, ago(0), true, true);
            clock.handed_over = Some(ago(1000));
            clock.ran(Role::Step, ago(0), true, true);
        }
        let (median, fastest) = clock.measured().unwrap();
        assert!(fastest > 0.9 && median > 0.9, "{median} {fastest}");
    }

    #[test]
    fn a_late_submission_makes_no_step_of_an_asynchronous_device_faster() {
        let ago = |millis: u64| Instant::now() - Duration::from_millis(millis);
        let mut clock = Clock::new();
        clock.ran(Role::Step, ago(5000), true, true);
        for step in 0..3 * IN_A_ROW {
            // The host is late by half a step now and then.
            let millis = [1500, 500, 1000, 1000][step as usize % 4];
            clock.handed_over = Some(ago(millis));
            clock.ran(Role::Step, ago(0), true, true);
        }
        let (median, fastest) = clock.measured().unwrap();
        assert!((0.99..1.1).contains(&median) && (0.99..1.1).contains(&fastest), "{median} {fastest}");
    }
}
