//! Ctrl-C and other requests to end: the first lets training stop with a checkpoint, the second ends the process at
//! once.

use plimsoll::StopHandle;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

/// The handler of a signal that is ignored.
const IGNORE: usize = 1;

/// The signal that was received, or zero.
static RECEIVED: AtomicI32 = AtomicI32::new(0);
static STOP: OnceLock<StopHandle> = OnceLock::new();

unsafe extern "C" {
    fn signal(number: i32, handler: usize) -> usize;
    fn _exit(status: i32) -> !;
}

/// A handle that SIGINT, SIGTERM and SIGHUP stop from now on. Before, they end the process as usual.
pub fn stop_handle() -> StopHandle {
    let stop = STOP.get_or_init(StopHandle::new).clone();
    let handler = on_signal as extern "C" fn(i32) as usize;
    for number in [SIGINT, SIGTERM, SIGHUP] {
        // SAFETY: part of the C library that the program is linked to; the handler does what handlers may do.
        let before = unsafe { signal(number, handler) };
        if number == SIGHUP && before == IGNORE {
            // `nohup` asked to go on without a terminal.
            // SAFETY: as above; to ignore a signal runs no code.
            unsafe { signal(number, IGNORE) };
        }
    }
    stop
}

/// Only atomic operations and `_exit`: it may interrupt the program anywhere, and must not allocate or lock.
extern "C" fn on_signal(number: i32) {
    if RECEIVED.swap(number, Ordering::SeqCst) != 0 {
        // SAFETY: part of the C library, and allowed in handlers; it ends the process without running anything else.
        unsafe { _exit(status(number)) };
    }
    if let Some(stop) = STOP.get() {
        stop.stop();
    }
}

/// The exit status of a process that a signal ended, as shells report it.
fn status(number: i32) -> i32 {
    128 + number
}

/// The signal that was received: its name and the exit status it asks for.
pub fn received() -> Option<(&'static str, u8)> {
    let name = match RECEIVED.load(Ordering::SeqCst) {
        SIGINT => "Ctrl-C",
        SIGTERM => "SIGTERM",
        SIGHUP => "SIGHUP",
        _ => return None,
    };
    Some((name, status(RECEIVED.load(Ordering::SeqCst)) as u8))
}
