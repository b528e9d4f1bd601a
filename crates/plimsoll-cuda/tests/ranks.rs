//! Data-parallel training on a GPU: through NCCL with one rank, and with two ranks that share the GPU through host memory. Where there is no GPU, the
//! tests say so.

#[path = "../../plimsoll-cpu/tests/device/model.rs"]
#[allow(dead_code, reason = "the tests of the CPU use the rest")]
mod model;

use model::{Model, ROWS};
use plimsoll_comm::threads::ThreadGroup;
use plimsoll_comm::{Alone, Group};
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

fn trained(device: Arc<dyn Device>, ranks: Option<(u32, Bytes)>, rows: std::ops::Range<usize>) -> Vec<u8> {
    let mut model = Model::on_device(device, ranks);
    (0..STEPS).for_each(|step| model.step_of(step, rows.clone()).unwrap());
    model.states().concat()
}

fn alone() -> Vec<u8> {
    trained(Arc::new(CudaDevice::open(0, None).unwrap()), None, 0..ROWS)
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
        assert!(trained(Arc::new(device), Some((1, bucket)), 0..ROWS) == alone, "buckets of {bucket}");
    }
}

#[test]
fn two_ranks_that_share_a_gpu_have_the_weights_of_one_process() {
    if !has_gpu() {
        return;
    }
    let floats = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>();
    let alone = floats(&alone());
    for bucket in BUCKETS {
        let ranks: Vec<Vec<u8>> = thread::scope(|scope| {
            let start = |group: ThreadGroup| {
                scope.spawn(move || {
                    let group: Arc<dyn Group> = Arc::new(group);
                    let opened = CudaDevice::open_of_rank(0, None, &group, 1).unwrap();
                    assert_eq!((opened.sharing, opened.communication.device), (2, Bytes::ZERO));
                    let half = ROWS / 2;
                    trained(Arc::new(opened.device), Some((2, bucket)), half * group.rank()..half * (group.rank() + 1))
                })
            };
            let threads: Vec<_> = ThreadGroup::new(2, Duration::from_secs(120)).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ranks[0] == ranks[1], "both ranks have the same bits");
        let worst = floats(&ranks[0]).iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "buckets of {bucket}: {worst}");
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
