//! The thread pool under the system's scheduler.

use super::*;
use std::io;

fn counts(pool: &ThreadPool, tasks: usize) -> Vec<usize> {
    let seen: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
    pool.run(tasks, &|index, worker| {
        assert!(worker < pool.threads());
        seen[index].fetch_add(1, Ordering::Relaxed);
    });
    seen.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_task_runs_once() {
    for threads in [0, 1, 2, 3, 5] {
        let pool = ThreadPool::new(threads).unwrap();
        assert_eq!(pool.threads(), threads.max(1));
        for tasks in [0, 1, 2, 7, 1000] {
            for _ in 0..50 {
                assert_eq!(counts(&pool, tasks), vec![1; tasks]);
            }
        }
    }
}

#[test]
fn a_panic_reaches_the_caller_and_the_pool_survives() {
    let pool = ThreadPool::new(3).unwrap();
    for culprit in [0, 5, 19] {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(20, &|index, _| assert_ne!(index, culprit, "task {culprit}"));
        }));
        let message = *caught.unwrap_err().downcast::<String>().unwrap();
        assert!(message.contains(&format!("task {culprit}")), "{message}");
        assert_eq!(counts(&pool, 20), vec![1; 20]);
    }
}

/// A panic payload that panics again when it is dropped.
struct Explosive;

impl Drop for Explosive {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

#[test]
fn panics_of_several_tasks_leave_nobody_inside() {
    let pool = ThreadPool::new(3).unwrap();
    let together = std::sync::Barrier::new(2);
    for _ in 0..20 {
        let caught = catch_unwind(AssertUnwindSafe(|| {
            pool.run(2, &|_, _| {
                together.wait();
                std::panic::resume_unwind(Box::new(Explosive));
            });
        }));
        std::mem::forget(caught.unwrap_err());
        assert_eq!(counts(&pool, 20), vec![1; 20]);
    }
}

#[test]
fn a_nested_run_is_serial_on_the_worker_that_asked() {
    let pool = ThreadPool::new(3).unwrap();
    let inner = AtomicUsize::new(0);
    pool.run(8, &|_, outer| {
        pool.run(4, &|_, worker| {
            assert_eq!(worker, outer);
            inner.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(inner.into_inner(), 32);
}

#[test]
fn callers_on_several_threads_take_turns() {
    let pool = ThreadPool::new(2).unwrap();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..100).for_each(|_| assert_eq!(counts(&pool, 9), vec![1; 9])));
        }
    });
}

/// Counts the threads that are started and refuses one of them.
fn refuse(refused: usize) -> (Result<ThreadPool, DeviceError>, usize) {
    let mut asked = 0;
    let pool = ThreadPool::start(4, &mut |spec| {
        asked += 1;
        if asked == refused { Err(io::Error::from_raw_os_error(11)) } else { spawn(spec) }
    });
    (pool, asked)
}

#[test]
fn a_thread_that_cannot_be_started_is_an_error_that_says_what_to_do() {
    for refused in 1..4 {
        let (pool, asked) = refuse(refused);
        assert_eq!(asked, refused, "no further thread is started");
        let error = pool.err().expect("a thread was refused").to_string();
        assert!(error.starts_with(&format!("cpu: thread {refused} of 4 could not be started: ")), "{error}");
        assert!(error.ends_with("set a smaller `threads`, or raise the limit on processes (`ulimit -u`)"), "{error}");
    }
    assert_eq!(refuse(0).0.unwrap().threads(), 4);
}
