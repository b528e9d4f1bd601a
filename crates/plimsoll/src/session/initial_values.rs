//! Initial values of states in the memory of a GPU, computed by several threads with the bits of one.

use crate::system;
use plimsoll_core::Executor;
use plimsoll_core::device::DeviceError;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, PoisonError};

/// Initializes every state. The chunks of all threads together take less than what is reserved for compiling kernels.
pub(super) fn initialize(executor: &mut Executor, seed: u64) -> Result<(), DeviceError> {
    let threads = system::cores().min(INITIALIZING_THREADS);
    executor.initialize_by(seed, &|count, compute, write| in_threads(threads, count, compute, write))
}

/// The most threads that compute initial values.
const INITIALIZING_THREADS: usize = 16;

/// ComputedParts that are computed, and not written yet.
#[derive(Default)]
struct ComputedParts {
    /// The first one that no thread has begun.
    next: usize,
    /// The first one that is not written.
    unwritten: usize,
    /// No more are computed.
    closed: bool,
    computed: BTreeMap<usize, Vec<u8>>,
}

/// Computes chunks on several threads, at most two per thread ahead of what is written. This thread writes, and
/// computes where no other can be started.
fn in_threads(
    threads: usize,
    count: usize,
    compute: &(dyn Fn(usize) -> Vec<u8> + Sync),
    write: &mut dyn FnMut(usize, Vec<u8>) -> Result<(), DeviceError>,
) -> Result<(), DeviceError> {
    let (chunks, changed) = (Mutex::new(ComputedParts::default()), Condvar::new());
    let lock = || chunks.lock().unwrap_or_else(PoisonError::into_inner);
    let work = || loop {
        let mut state = lock();
        while !state.closed && state.next < count && state.next >= state.unwritten + 2 * threads {
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed || state.next >= count {
            return;
        }
        let chunk = state.next;
        state.next += 1;
        drop(state);
        let values = catch_unwind(AssertUnwindSafe(|| compute(chunk)));
        let mut state = lock();
        match values {
            Ok(values) => drop(state.computed.insert(chunk, values)),
            // The thread that writes recomputes it, and panics in turn.
            Err(_) => state.closed = true,
        }
        drop(state);
        changed.notify_all();
    };
    std::thread::scope(|scope| {
        let started = (0..threads.min(count)).filter(|_| std::thread::Builder::new().spawn_scoped(scope, work).is_ok()).count();
        for chunk in 0..count {
            let values = match started {
                0 => compute(chunk),
                _ => {
                    let mut state = lock();
                    loop {
                        match state.computed.remove(&chunk) {
                            Some(values) => break values,
                            None if state.closed => {
                                drop(state);
                                break compute(chunk);
                            }
                            None => state = changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                        }
                    }
                }
            };
            let written = write(chunk, values);
            let mut state = lock();
            state.unwritten = chunk + 1;
            state.closed |= written.is_err();
            drop(state);
            changed.notify_all();
            written?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::graph::{Graph, Init, StateId, StateKind};
    use plimsoll_core::plan::{CheckedPlan, plan};
    use plimsoll_core::step::Role;
    use plimsoll_core::{Device, Ledger, Shape, TensorType};
    use plimsoll_cpu::CpuDevice;
    use std::sync::Arc;

    #[test]
    fn initial_values_have_the_same_bits_from_any_number_of_threads() {
        let mut graph = Graph::new();
        let inits = [
            Init::Constant(0.5),
            Init::Uniform { limit: 0.1 },
            Init::TruncatedNormal { std: 0.02 },
            Init::Stretch { value: 1.0, from: 3, to: 9 },
            Init::Orthogonal,
        ];
        for (i, init) in inits.into_iter().enumerate() {
            let ty = TensorType::f32(Shape::fixed([301 + i, 467]));
            let value = graph.state(&format!("s{i}"), StateKind::Parameter, ty, init).unwrap();
            let sum = graph.sum(value).unwrap();
            graph.output(&format!("y{i}"), sum);
        }
        let device: Arc<dyn Device> = Arc::new(CpuDevice::new(1).unwrap());
        let planned = plan(vec![(Role::Step, graph)], 1, &*device).unwrap();
        let values = |initialize: &dyn Fn(&mut Executor)| {
            let checked = CheckedPlan::new(planned.clone()).unwrap();
            let mut executor = Executor::new(Arc::clone(&device), checked, &Ledger::new("host", None)).unwrap();
            initialize(&mut executor);
            let state = |(i, state): (usize, &plimsoll_core::plan::Resident)| {
                let mut bytes = vec![0; state.size.get()];
                executor.read_state(StateId(i as u32), &mut bytes).unwrap();
                bytes
            };
            planned.states.iter().enumerate().map(state).collect::<Vec<_>>()
        };
        let initialize_on = |executor: &mut Executor, threads: usize| {
            executor.initialize_by(7, &|count, compute, write| in_threads(threads, count, compute, write)).unwrap()
        };
        let one_by_one = values(&|executor| executor.initialize(7).unwrap());
        for width in [0, 1, 2, 5] {
            assert!(values(&|executor| initialize_on(executor, width)) == one_by_one, "{width}");
        }
    }
}
