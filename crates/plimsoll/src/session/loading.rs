//! The first program of a run, loaded by a thread of its own while initial values are computed and the input pipeline
//! starts.

use plimsoll_core::device::DeviceError;
use plimsoll_core::step::Role;
use plimsoll_core::{Executor, LoadedProgram};
use std::thread::JoinHandle;

/// A program that may still be loading.
#[derive(Default)]
pub(super) struct Loading(Option<JoinHandle<Result<LoadedProgram, DeviceError>>>);

impl Loading {
    /// Begins to load a program. Where the device or the system does not support that, it is loaded when it runs.
    pub fn start(executor: &Executor, role: Role, rows: usize) -> Loading {
        let start =
            |loader: plimsoll_core::ProgramLoader| std::thread::Builder::new().name("load".to_string()).spawn(move || loader.load()).ok();
        Loading(executor.loader(role, rows).and_then(start))
    }

    /// Waits for the program and gives it to its executor.
    pub fn finish(&mut self, executor: &mut Executor) -> Result<(), DeviceError> {
        let Some(thread) = self.0.take() else { return Ok(()) };
        let loaded = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        loaded.map(|loaded| executor.adopt(loaded))
    }
}

impl Drop for Loading {
    fn drop(&mut self) {
        // A run that failed meanwhile does not need it, but its device must not close before.
        if let Some(thread) = self.0.take() {
            let _ = thread.join();
        }
    }
}
