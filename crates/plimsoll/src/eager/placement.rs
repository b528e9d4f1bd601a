//! Device scopes, and a log of where ops ran and what was copied between devices.

use super::context::Context;
use super::error::Result;
use plimsoll_core::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt;

/// Runs a closure whose new tensors are made on a device, such as `cpu`. Ops run where their operands are.
///
/// ```
/// use plimsoll::eager::{Tensor, device};
/// let x = device("cpu", || Tensor::zeros([2]))??;
/// assert_eq!(x.device()?, "cpu");
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
///
/// # Errors
/// If there is no such device.
pub fn device<R>(name: &str, body: impl FnOnce() -> R) -> Result<R> {
    Ok(Context::of(name)?.scope(body))
}

/// The ops that ran on each device, and the bytes that were copied between devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// Number of runs, by device and op.
    pub ops: BTreeMap<(String, &'static str), u64>,
    /// Bytes copied, by source and destination.
    pub copies: BTreeMap<(String, String), Bytes>,
}

thread_local! {
    static LOGGING: Cell<bool> = const { Cell::new(false) };
    static LOG: RefCell<Placement> = RefCell::default();
}

/// Runs a closure, and returns its result with the log of its ops on this thread. A log inside of another one is part
/// of it.
///
/// ```
/// use plimsoll::eager::{Tensor, log_placement};
/// let (result, log) = log_placement(|| Tensor::ones([2])?.relu()?.relu());
/// assert_eq!(log.to_string(), "cpu: 1 full, 2 relu");
/// # drop(result?);
/// # Ok::<(), plimsoll::eager::Error>(())
/// ```
pub fn log_placement<R>(body: impl FnOnce() -> R) -> (R, Placement) {
    /// Ends the log also when the closure panics.
    struct StopLogging(bool, Placement);
    impl Drop for StopLogging {
        fn drop(&mut self) {
            LOGGING.set(self.0);
            let inner = LOG.replace(std::mem::take(&mut self.1));
            LOG.with_borrow_mut(|outer| outer.add(&inner));
        }
    }
    let end = StopLogging(LOGGING.replace(true), LOG.take());
    let result = body();
    let log = LOG.with_borrow(Clone::clone);
    drop(end);
    (result, log)
}

/// Notes an op.
pub(super) fn ran(context: &Context, op: &'static str) {
    if LOGGING.get() {
        LOG.with_borrow_mut(|log| *log.ops.entry((context.name().to_string(), op)).or_default() += 1);
    }
}

/// Notes a copy.
pub(super) fn copied(from: &Context, to: &Context, bytes: Bytes) {
    if LOGGING.get() {
        LOG.with_borrow_mut(|log| *log.copies.entry((from.name().to_string(), to.name().to_string())).or_default() += bytes);
    }
}

impl Placement {
    fn add(&mut self, other: &Placement) {
        if LOGGING.get() {
            other.ops.iter().for_each(|(op, count)| *self.ops.entry(op.clone()).or_default() += count);
            other.copies.iter().for_each(|(way, bytes)| *self.copies.entry(way.clone()).or_default() += *bytes);
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut devices: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for ((device, op), count) in &self.ops {
            devices.entry(device).or_default().push(format!("{count} {op}"));
        }
        let ops = devices.iter().map(|(device, ops)| format!("{device}: {}", ops.join(", ")));
        let copies = self.copies.iter().map(|((from, to), bytes)| format!("{from} to {to}: {bytes}"));
        f.write_str(&ops.chain(copies).collect::<Vec<_>>().join("\n"))
    }
}
