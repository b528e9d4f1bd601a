//! Initial values of states in the memory of a GPU, computed by several threads with the bits of one.

use crate::system;
use plimsoll_core::Executor;
use plimsoll_core::device::DeviceError;
use std::ops::Range;

/// Initializes every state. The chunks of all threads together take less than what is reserved for compiling kernels, which comes later.
pub(super) fn initialize(executor: &mut Executor, seed: u64) -> Result<(), DeviceError> {
    executor.initialize_by(seed, system::cores().min(INITIALIZING_THREADS), &in_threads)
}

/// The most threads that compute initial values.
const INITIALIZING_THREADS: usize = 12;

/// Applies a function to ranges, each on a thread of its own.
fn in_threads(ranges: &[Range<u64>], work: &(dyn Fn(Range<u64>) -> Vec<u8> + Sync)) -> Vec<Vec<u8>> {
    std::thread::scope(|scope| {
        // Where a thread cannot be started, this one computes its part.
        let start = |range: &Range<u64>| {
            let (own, range) = (range.clone(), range.clone());
            std::thread::Builder::new().spawn_scoped(scope, move || work(own)).map_err(|_| range)
        };
        let (first, rest) = match ranges.split_first() {
            Some((first, rest)) => (first.clone(), rest),
            None => return Vec::new(),
        };
        let started: Vec<_> = rest.iter().map(start).collect();
        let mut results = vec![work(first)];
        for thread in started {
            results.push(match thread {
                Ok(thread) => thread.join().expect("initial values do not panic"),
                Err(range) => work(range),
            });
        }
        results
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
        let one_by_one = values(&|executor| executor.initialize(7).unwrap());
        for width in [1, 2, 5] {
            assert!(values(&|executor| executor.initialize_by(7, width, &in_threads).unwrap()) == one_by_one, "{width}");
        }
    }
}
