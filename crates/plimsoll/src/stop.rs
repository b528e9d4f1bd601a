//! A request to stop training, from another thread or a signal handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stops a [`Fit`](crate::Fit) from outside: another thread, a callback, or a signal handler. Clones stop the same fit.
///
/// Training ends after the step that is running, with a checkpoint if the fit writes any, also while it waits for
/// input. The run can then be resumed, bit for bit.
///
/// ```
/// use plimsoll::prelude::*;
/// use plimsoll::StopHandle;
///
/// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let stop = StopHandle::new();
/// let elsewhere = stop.clone();
/// // Such as a thread that receives "stop" from a user.
/// std::thread::spawn(move || elsewhere.stop());
/// let history = Trainer::new(zoo::mlp(10), &data).fit(Fit::epochs(1_000_000).stop_handle(&stop))?;
/// assert!(history.stopped);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct StopHandle(Arc<AtomicBool>);

impl StopHandle {
    /// A handle that has not stopped anything yet.
    pub fn new() -> StopHandle {
        StopHandle::default()
    }

    /// Asks training to stop. One atomic store: it may be called in a signal handler.
    pub fn stop(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether training was asked to stop.
    pub fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// For what waits in between.
    pub(crate) fn flag(&self) -> &AtomicBool {
        &self.0
    }
}
