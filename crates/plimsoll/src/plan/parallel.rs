//! Searches that run at the same time. A device with memory of its own has a host budget that holds several of them; on
//! others, planning has to stay within the memory of the run. How many there are changes no plan.

use super::Request;
use super::candidate::compared;
use super::planning_memory::planning_limit;
use crate::system;
use plimsoll_core::Bytes;

/// More searches at the same time take longer: they allocate much, and wait for each other. On 16 cores, planning took
/// 1.3 s with three in the search for the fastest plan, and 1.9 s with all.
const MOST: usize = 6;

/// How many searches may run at the same time: as many as there are cores, up to a few, and as fit into the memory that
/// planning may take. The search for the minimum and that for the fastest plan have half of them each.
pub(super) fn searches_at_once(request: &Request<'_>) -> usize {
    if request.device().capabilities().shares_host_memory {
        return 1;
    }
    let heap = planning_limit(request).saturating_sub(request.machine.process);
    let fit = heap.0 / request.programs.search_heap_at_most(compared(request)).0.max(1);
    system::cores().min(MOST).min(usize::try_from(fit).unwrap_or(usize::MAX)).max(1)
}

/// How many parts of one search may run at the same time, beside the other search.
pub(super) fn parts_at_once(request: &Request<'_>) -> usize {
    (searches_at_once(request) / 2).max(1)
}

/// Host memory of a device that prepares for a program.
const PREPARING: Bytes = Bytes::mib(160);

/// Lets the device prepare for the training step of whole batches, where there is host memory for that beside all
/// searches.
pub(super) fn prepare(request: &Request<'_>) {
    let searches = searches_at_once(request) as u64;
    let search = request.programs.search_heap_at_most(compared(request));
    if searches > 1 && request.machine.process + Bytes(searches * search.0) + PREPARING <= planning_limit(request) {
        request.device().prepare(&request.programs.whole[0].1, request.batch);
    }
}

/// Applies a function to every item, each on a thread of its own; the results in the order of the items.
pub(super) fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    std::thread::scope(|scope| {
        let work = &work;
        // Where a thread cannot be started, this one does its work.
        let started: Vec<_> = items
            .iter()
            .skip(1)
            .map(|item| std::thread::Builder::new().spawn_scoped(scope, move || work(item)).map_err(|_| item))
            .collect();
        let first = items.first().map(work);
        let join = |thread: Result<std::thread::ScopedJoinHandle<'_, R>, &T>| match thread {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(item) => work(item),
        };
        first.into_iter().chain(started.into_iter().map(join)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_their_items() {
        let items: Vec<u64> = (0..20).collect();
        assert_eq!(in_parallel(&items, |item| item * item), items.iter().map(|item| item * item).collect::<Vec<_>>());
        assert_eq!(in_parallel(&[] as &[u64], |item| *item), Vec::<u64>::new());
    }
}
