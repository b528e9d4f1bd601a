//! Data-parallel training over the MPI libraries of this machine: every rank has the weights of one process. Without a
//! test harness: this program starts itself as the ranks of a job.

#[path = "../../plimsoll-comm/tests/engines/mod.rs"]
mod engines;
#[path = "device/model.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod model;

use engines::{LIBRARY, TASK, engines, is_asked_for_list};
use model::{Model, ROWS};
use plimsoll_comm::{Group, Launch, Mpi, MpiOptions};
use plimsoll_core::Bytes;
use std::env;
use std::process::ExitCode;
use std::sync::Arc;

const STEPS: u32 = 10;

fn main() -> ExitCode {
    if env::var_os(TASK).is_some() {
        rank();
        return ExitCode::SUCCESS;
    }
    if is_asked_for_list() {
        return ExitCode::SUCCESS;
    }
    for engine in &engines() {
        for ranks in [1, 2, 4] {
            let output = engine.run(ranks, "train");
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{ranks} ranks of {}: {out}{err}", engine.mpirun.display());
            assert_eq!(out.matches("trained: rank ").count(), ranks, "{out}{err}");
        }
        println!("mpi: trained on 1, 2 and 4 ranks with {}", engine.mpirun.display());
    }
    ExitCode::SUCCESS
}

/// One rank of a job: trains on its rows, and by itself on all of them.
fn rank() {
    let launch = Launch::from_variables(&env::vars().collect()).unwrap();
    let mpi = Arc::new(Mpi::open(&MpiOptions { library: env::var_os(LIBRARY), launch, ..MpiOptions::default() }).unwrap());
    let (rank, size) = (mpi.rank(), mpi.size());
    let mut alone = Model::new(1);
    (0..STEPS).for_each(|step| alone.step_of(step, 0..ROWS).unwrap());
    let alone = alone.states().concat();
    // A sum per tensor, and one of all; of whole gradients, and of shards.
    for (bucket, shards) in [(Bytes(1), false), (Bytes::mib(1), false), (Bytes(1), true), (Bytes::mib(1), true)] {
        let group: Arc<dyn Group> = mpi.clone();
        let mut model = if shards { Model::with_shards(1, group, bucket) } else { Model::on_rank(1, group, bucket) };
        (0..STEPS).for_each(|step| model.step_of(step, ROWS * rank / size..ROWS * (rank + 1) / size).unwrap());
        let own = model.states().concat();
        let mut all = vec![0u8; own.len() * size];
        mpi.all_gather((&own[..]).into(), (&mut all[..]).into()).unwrap();
        assert!(all.chunks_exact(own.len()).all(|other| other == own), "every rank has the same bits");
        let floats = |bytes: &[u8]| bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect::<Vec<f32>>();
        let worst = floats(&own).iter().zip(floats(&alone)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-6, "{size} ranks with {bucket}, shards {shards}: {worst}");
    }
    println!("trained: rank {rank}");
}
