//! Ranks that train together, each on its own device and its own rows, over a group of threads.

use crate::model::{Model, ROWS};
use plimsoll_comm::Group;
use plimsoll_comm::threads::ThreadGroup;
use plimsoll_core::device::StepInputs;
use plimsoll_core::graph::{Graph, Init, StateId, StateKind};
use plimsoll_core::ops::{AllGather, ReduceScatter, Shard};
use plimsoll_core::plan::{CheckedPlan, plan};
use plimsoll_core::random::StepRandom;
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, Executor, Ledger, Op, Shape, TensorType, ValueId};
use plimsoll_cpu::CpuDevice;
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
    train_by(size, |group| Model::on_rank(threads, group, bucket))
}

fn train_by(size: usize, model: impl Fn(Arc<dyn Group>) -> Model + Sync) -> Vec<Vec<Vec<u8>>> {
    let run = |group: ThreadGroup| {
        let rows = rows_of(group.rank(), size);
        let mut model = model(Arc::new(group));
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
fn ranks_with_shards_have_the_weights_of_one_process() {
    let mut alone = Model::new(1);
    (0..STEPS).for_each(|step| alone.step_of(step, 0..ROWS).unwrap());
    let alone = floats(&alone.states());
    for size in [1, 2, 3, 4, 7] {
        for bucket in [Bytes(1), Bytes(200), Bytes::mib(1)] {
            let ranks = train_by(size, |group| Model::with_shards(1, group, bucket));
            assert!(ranks.iter().all(|states| *states == ranks[0]), "{size} ranks with {bucket}: all have the same bits");
            let worst = floats(&ranks[0]).iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-6, "{size} ranks with {bucket}: {worst}");
        }
    }
}

/// Tensors that are larger than what passes at a time, of lengths that no number of ranks divides.
#[test]
fn large_shards_pass_in_parts() {
    let shapes = [Shape::fixed([611, 701]), Shape::fixed([13]), Shape::fixed([3, 100_003])];
    let run = |group: ThreadGroup| {
        let (rank, ranks) = (group.rank(), group.size() as u32);
        let mut g = Graph::new();
        let factor = g.scalar("factor");
        let declare = |(i, shape): (usize, &Shape)| {
            g.state(&format!("w{i}"), StateKind::Parameter, TensorType::f32(shape.clone()), Init::Uniform { limit: 1.0 }).unwrap()
        };
        let states: Vec<ValueId> = shapes.iter().enumerate().map(declare).collect();
        let scaled: Vec<ValueId> = states.iter().map(|state| g.times(*state, factor).unwrap()).collect();
        let mut shards = g.add(Op::ReduceScatter(ReduceScatter { ranks, has_token: false }), &scaled).unwrap();
        let token = shards.pop().unwrap();
        // Each rank adds its own shard of the states.
        for (shard, state) in shards.iter_mut().zip(&states) {
            let own = g.add_one(Op::Shard(Shard { ranks }), &[*state]).unwrap();
            *shard = g.plus(*shard, own).unwrap();
        }
        shards.push(token);
        let gathered = g.add(Op::AllGather(AllGather { ranks, has_token: true, shapes: shapes.to_vec() }), &shards).unwrap();
        for (i, (state, new)) in states.iter().zip(gathered).enumerate() {
            g.output(&format!("new{i}"), new);
            assert_eq!(g.as_state(*state), Some(StateId(i as u32)));
        }
        let device = Arc::new(CpuDevice::new(1).unwrap().with_group(Arc::new(group)));
        let planned = plan(vec![(Role::Predict, g)], 1, &*device).unwrap();
        let mut executor = Executor::new(device, CheckedPlan::new(planned).unwrap(), &Ledger::new("host", None)).unwrap();
        executor.initialize(3).unwrap();
        let random = StepRandom { seed: 1, step: 0, first_row: 0 };
        executor.run(Role::Predict, 1, &StepInputs { columns: &[], scalars: &[rank as f32], random }).unwrap();
        let results = shapes.iter().enumerate().map(|(i, shape)| {
            let (mut before, mut after) = (vec![0; 4 * shape.elements().factor()], vec![0; 4 * shape.elements().factor()]);
            executor.read_state(StateId(i as u32), &mut before).unwrap();
            executor.read(executor.output(Role::Predict, &format!("new{i}")).unwrap(), &mut after).unwrap();
            (floats(&[before]), floats(&[after]))
        });
        results.collect::<Vec<_>>()
    };
    for size in [1, 2, 3, 5] {
        let ranks: Vec<_> = thread::scope(|scope| {
            let groups = ThreadGroup::new(size, Duration::from_secs(300));
            let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| run(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let factor = (size * (size - 1) / 2 + 1) as f32;
        for (before, after) in ranks.iter().flatten() {
            let differs = before.iter().zip(after).position(|(x, y)| (x * factor - y).abs() > 1e-5);
            assert_eq!(differs, None, "{size} ranks, {} elements", before.len());
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
