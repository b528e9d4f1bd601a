//! Groups without MPI: of one process, and of threads.

mod contract;

use contract::check_group;
use plimsoll_comm::threads::ThreadGroup;
use plimsoll_comm::{Alone, Group, Reduction};
use std::thread;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_millis(50);

/// What each rank of a group of threads returns.
fn on_ranks<T: Send>(size: usize, timeout: Duration, run: impl Fn(ThreadGroup) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let ranks = ThreadGroup::new(size, timeout);
        let threads: Vec<_> = ranks.into_iter().map(|rank| scope.spawn(|| run(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn a_group_of_one_returns_what_it_has() {
    check_group(&Alone);
    assert_eq!(Alone.owned_bytes(), 0);
    assert!(Alone.split(None, 0).unwrap().is_none());
}

#[test]
fn threads_are_a_group() {
    for size in [1, 2, 3, 5] {
        on_ranks(size, LONG, |rank| check_group(&rank));
    }
}

#[test]
fn late_ranks_are_named() {
    for (size, late) in [(2, "rank 1 has not called it"), (4, "ranks 1, 2 and 3 have not called it")] {
        let group = ThreadGroup::new(size, SHORT).remove(0);
        let error = group.barrier().unwrap_err().to_string();
        let text = format!(
            "rank 0 of {size} has waited 0.05 s in barrier: {late}; look for an earlier error of those ranks, or allow for more time if they \
             compute that long"
        );
        assert_eq!(error, text);
        // Later calls do not wait.
        let later = group.all_reduce((&mut [0.0f32][..]).into(), Reduction::Sum).unwrap_err().to_string();
        assert_eq!(later, format!("rank 0 of {size} cannot call all_reduce after an earlier error: {text}"));
    }
}

#[test]
fn a_message_that_is_not_sent_names_its_sender() {
    let group = ThreadGroup::new(2, SHORT).remove(1);
    let error = group.receive((&mut [0.0f32][..]).into(), 0).unwrap_err().to_string();
    let text = "rank 1 of 2 has waited 0.05 s in receive from rank 0: rank 0 has not sent it; look for an earlier error of those ranks, or \
                allow for more time if they compute that long";
    assert_eq!(error, text);
}

#[test]
fn different_operations_are_an_error() {
    let errors = on_ranks(2, LONG, |group| match group.rank() {
        0 => group.barrier().unwrap_err().to_string(),
        _ => group.all_reduce((&mut [0.0f32][..]).into(), Reduction::Sum).unwrap_err().to_string(),
    });
    let instead = "of the group called";
    assert!(errors.iter().all(|error| error.contains(instead)), "{errors:?}");
    // An error of one rank is that of all, from then on.
    assert!(errors.iter().any(|error| error.contains("after an earlier error")), "{errors:?}");
}
