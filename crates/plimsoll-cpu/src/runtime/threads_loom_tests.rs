//! The thread pool under every interleaving that loom finds within a bound on preemptions; `tools/loom.sh` runs these
//! models.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Explores `check` with at most `preemptions` forced switches away from a runnable thread.
fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(check);
}

/// Cells that tasks write without synchronisation of their own. Loom fails the model when a read of the caller is not
/// ordered after the write.
struct Results(Vec<UnsafeCell<usize>>);

// SAFETY: each task writes its own cell, and the caller reads after the run.
unsafe impl Sync for Results {}

impl Results {
    fn new(tasks: usize) -> Results {
        Results((0..tasks).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, task: usize) {
        // SAFETY: the pool hands out each index once.
        self.0[task].with_mut(|cell| unsafe { *cell += task + 1 });
    }

    fn check(&self, runs: usize) {
        for (task, cell) in self.0.iter().enumerate() {
            // SAFETY: no run is in progress.
            assert_eq!(cell.with(|cell| unsafe { *cell }), runs * (task + 1));
        }
    }
}

/// Every task runs once, `run` returns after all of them, and what they wrote is visible to the caller. With fewer
/// tasks than threads a worker may join that was not unparked for the run.
#[test]
fn loom_a_run_is_complete_when_it_returns() {
    for (threads, tasks, preemptions) in [(2, 2, 5), (2, 3, 4), (3, 2, 3), (3, 3, 2)] {
        model(preemptions, move || {
            let pool = ThreadPool::new(threads).unwrap();
            let results = Results::new(tasks);
            pool.run(tasks, &|task, _| results.add(task));
            results.check(1);
        });
    }
}

/// The closure of a run lives on the caller's stack: no worker may use it after `run` has returned, nor see the job of
/// the next run half written.
#[test]
fn loom_runs_follow_each_other() {
    model(4, || {
        let pool = ThreadPool::new(2).unwrap();
        let results = Results::new(2);
        for run in 1..=2 {
            pool.run(2, &|task, _| results.add(task));
            results.check(run);
        }
    });
}

/// No two tasks that run at the same time have the same worker index.
#[test]
fn loom_workers_are_exclusive() {
    model(4, || {
        let pool = ThreadPool::new(2).unwrap();
        let scratch = Results::new(2);
        // Loom fails the model when two tasks are inside the same cell at once.
        pool.run(3, &|_, worker| scratch.add(worker));
    });
}

/// A panic reaches the caller after every worker has left the run, whichever thread it happens on.
#[test]
fn loom_a_panic_reaches_the_caller() {
    model(4, || {
        let pool = ThreadPool::new(2).unwrap();
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, &|task, _| {
                if task == 1 {
                    resume_unwind(Box::new("task 1"));
                }
            });
        }));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"task 1"));
        let results = Results::new(2);
        pool.run(2, &|task, _| results.add(task));
        results.check(1);
    });
}

/// A pool is dropped while its workers park, wake or have just left a run: none is lost.
#[test]
fn loom_a_pool_stops_its_workers() {
    model(4, || drop(ThreadPool::new(3).unwrap()));
    model(4, || {
        let pool = ThreadPool::new(2).unwrap();
        pool.run(2, &|_, _| {});
    });
}
