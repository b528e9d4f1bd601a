//! Ranks that train together, each on its own device and its own rows, over a group of threads.

use crate::model::{Model, ROWS};
use plimsoll_comm::Group;
use plimsoll_comm::threads::ThreadGroup;
use plimsoll_core::Bytes;
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const STEPS: u32 = 10;

/// The rows of a rank: consecutive ones, and as many as others have, up to one.
fn rows_of(rank: usize, size: usize) -> Range<usize> {
    ROWS * rank / size..ROWS * (rank + 1) / size
}

/// The states that each of some ranks has after training.
fn train(size: usize, threads: usize, bucket: Bytes) -> Vec<Vec<Vec<u8>>> {
    let run = |group: ThreadGroup| {
        let rows = rows_of(group.rank(), size);
        let mut model = Model::on_rank(threads, Arc::new(group), bucket);
        (0..STEPS).for_each(|step| model.step_of(step, rows.clone()).unwrap());
        model.states()
    };
    thread::scope(|scope| {
        let groups = ThreadGroup::new(size, Duration::from_secs(300));
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| run(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn floats(states: &[Vec<u8>]) -> Vec<f32> {
    states.iter().flat_map(|state| state.chunks_exact(4)).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

#[test]
fn ranks_have_the_weights_of_one_process() {
    let mut alone = Model::new(1);
    (0..STEPS).for_each(|step| alone.step_of(step, 0..ROWS).unwrap());
    let alone = floats(&alone.states());
    for size in [1, 2, 3, 4, 7] {
        for bucket in [Bytes(1), Bytes(200), Bytes::mib(1)] {
            let ranks = train(size, 1, bucket);
            for (rank, states) in ranks.iter().enumerate() {
                assert!(*states == ranks[0], "{size} ranks with {bucket}: rank {rank} has the bits of rank 0");
            }
            let worst = floats(&ranks[0]).iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{size} ranks with {bucket}: {worst}");
        }
    }
}

#[test]
fn neither_threads_nor_buckets_change_a_bit() {
    let ranks = train(3, 1, Bytes(1));
    assert!(ranks == train(3, 2, Bytes(1)) && ranks == train(3, 1, Bytes::mib(1)));
}

#[test]
fn one_rank_has_the_bits_of_a_process_without_ranks() {
    let mut alone = Model::new(1);
    (0..STEPS).for_each(|step| alone.step_of(step, 0..ROWS).unwrap());
    assert!(train(1, 1, Bytes::mib(1))[0] == alone.states());
}

#[test]
fn a_plan_for_other_ranks_is_refused() {
    let mut group = ThreadGroup::new(2, Duration::from_secs(300));
    let mut model = Model::planned(1, Arc::new(group.remove(0)), Some((4, Bytes::mib(1))));
    let error = model.step_of(0, 0..ROWS).unwrap_err().to_string();
    let text = "cpu: all_reduce of `all_reduce/0`: sums over 4 ranks, but this process is one of 2; plan for that number of ranks, or \
                start as many processes";
    assert_eq!(error, text);
}

#[test]
fn a_rank_that_is_missing_is_named() {
    let mut group = ThreadGroup::new(2, Duration::from_millis(50));
    let mut model = Model::on_rank(1, Arc::new(group.remove(0)), Bytes::mib(1));
    let error = model.step_of(0, rows_of(0, 2)).unwrap_err().to_string();
    let text = "cpu: rank 0 of 2 has waited 0.05 s in all_reduce: rank 1 has not called it; look for an earlier error of those ranks, or \
                allow for more time if they compute that long";
    assert_eq!(error, text);
}
