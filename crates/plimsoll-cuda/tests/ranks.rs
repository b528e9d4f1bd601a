//! Data-parallel training on a GPU: through NCCL with one rank, and with two ranks that share the GPU through host
//! memory. Where there is no GPU, the tests say so.

#[path = "../../plimsoll-cpu/tests/device/model.rs"]
#[allow(dead_code, reason = "the tests of the CPU use the rest")]
mod model;

use model::{Model, ROWS};
use plimsoll_comm::threads::ThreadGroup;
use plimsoll_comm::{Alone, Group};
use plimsoll_core::sharding::Sharding;
use plimsoll_core::{Bytes, Device};
use plimsoll_cuda::{CudaDevice, RankOnGpu, probe};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

const STEPS: u32 = 10;

/// A sum per tensor, some together, and one of all.
const BUCKETS: [Bytes; 3] = [Bytes(1), Bytes(200), Bytes::mib(1)];

/// Whether there is a GPU.
fn has_gpu() -> bool {
    let obstacle = probe().obstacle();
    if let Some(obstacle) = &obstacle {
        println!("not run on a GPU: {obstacle}");
    }
    obstacle.is_none()
}

fn trained(device: Arc<dyn Device>, ranks: Option<(u32, Bytes)>, sharding: Option<Sharding>, rows: std::ops::Range<usize>) -> Vec<u8> {
    let mut model = Model::of(device, ranks, sharding);
    (0..STEPS).for_each(|step| model.step_of(step, rows.clone()).unwrap());
    model.states().concat()
}

fn alone() -> Vec<u8> {
    trained(Arc::new(CudaDevice::open(0, None).unwrap()), None, None, 0..ROWS)
}

#[test]
fn one_rank_through_nccl_has_the_bits_of_a_process_without_ranks() {
    if !has_gpu() {
        return;
    }
    let alone = alone();
    for bucket in BUCKETS {
        let group: Arc<dyn Group> = Arc::new(Alone);
        let RankOnGpu { device, communication, sharing } = match CudaDevice::open_of_rank(0, None, &group, 1) {
            Ok(opened) => opened,
            Err(error) => {
                assert!(error.to_string().contains("NCCL"), "{error}");
                return println!("not run: {error}");
            }
        };
        assert_eq!(sharing, 1);
        assert!(communication.device > Bytes::ZERO, "a communicator takes device memory");
        println!("NCCL with one rank takes {} on the GPU and {} on the host", communication.device, communication.host);
        let device: Arc<dyn Device> = Arc::new(device);
        for sharding in [None, Some(Sharding::Optimizer)] {
            assert!(trained(Arc::clone(&device), Some((1, bucket)), sharding, 0..ROWS) == alone, "buckets of {bucket}, {sharding:?}");
        }
    }
}

/// What each of two ranks that share a GPU returns.
fn on_two_ranks<T: Send>(run: impl Fn(Arc<dyn Device>, usize) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let start = |group: ThreadGroup| {
            let run = &run;
            scope.spawn(move || {
                let group: Arc<dyn Group> = Arc::new(group);
                let opened = CudaDevice::open_of_rank(0, None, &group, 1).unwrap();
                assert_eq!((opened.sharing, opened.communication.device), (2, Bytes::ZERO));
                run(Arc::new(opened.device), group.rank())
            })
        };
        let threads: Vec<_> = ThreadGroup::new(2, Duration::from_secs(120)).into_iter().map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn half(rank: usize) -> std::ops::Range<usize> {
    ROWS / 2 * rank..ROWS / 2 * (rank + 1)
}

#[test]
fn two_ranks_that_share_a_gpu_have_the_weights_of_one_process() {
    if !has_gpu() {
        return;
    }
    let floats = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>();
    let alone = floats(&alone());
    for (bucket, sharding) in BUCKETS.into_iter().flat_map(|bucket| [None, Some(Sharding::Optimizer)].map(|sharding| (bucket, sharding))) {
        let ranks = on_two_ranks(|device, rank| trained(device, Some((2, bucket)), sharding, half(rank)));
        assert!(ranks[0] == ranks[1], "both ranks have the same bits");
        let worst = floats(&ranks[0]).iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "buckets of {bucket}, {sharding:?}: {worst}");
    }
}

#[test]
fn a_loss_of_one_rank_that_is_not_finite_changes_no_weight_of_any() {
    if !has_gpu() {
        return;
    }
    for sharding in [None, Some(Sharding::Optimizer)] {
        let ranks = on_two_ranks(|device, rank| {
            let mut model = Model::of(device, Some((2, Bytes(200))), sharding);
            (0..3).for_each(|step| model.step_of(step, half(rank)).unwrap());
            let before = model.states();
            if rank == 0 {
                model.break_batch();
            }
            // The error is reported with the results of the step, or before the next one.
            let _ = model.step_of(3, half(rank));
            (before, model.states())
        });
        for (before, after) in &ranks {
            assert!(before == after && *before == ranks[0].0, "{sharding:?}");
        }
    }
}

#[test]
fn a_plan_for_other_ranks_is_refused() {
    if !has_gpu() {
        return;
    }
    let device: Arc<dyn Device> = Arc::new(CudaDevice::open(0, None).unwrap());
    let mut model = Model::on_device(device, Some((4, Bytes::mib(1))));
    let error = model.step_of(0, 0..ROWS).unwrap_err().to_string();
    let text = "cuda:0: all_reduce of `all_reduce/0`: sums over 4 ranks, but this process is one of 1; plan for that number of ranks, or \
                start as many processes";
    assert_eq!(error, text);
}
