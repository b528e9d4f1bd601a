//! Groups over the MPI libraries of this machine, each started by its own `mpirun`. Without a test harness: this
//! program starts itself as the ranks of a job.

mod contract;
mod engines;

use contract::check_group;
use engines::{Engine, LIBRARY, TASK, engines, is_asked_for_list};
use plimsoll_comm::{Group, Launch, Mpi, MpiOptions, Reduction};
use std::collections::BTreeSet;
use std::env;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    if let Ok(task) = env::var(TASK) {
        return rank(&task);
    }
    if is_asked_for_list() {
        return ExitCode::SUCCESS;
    }
    for engine in &engines() {
        let version = check(engine);
        println!(
            "mpi: {} with {} ({version})",
            engine.mpirun.display(),
            engine.library.as_deref().map_or("its library".into(), Path::to_string_lossy)
        );
    }
    missing_library();
    ExitCode::SUCCESS
}

/// Checks groups of one, two and four ranks, and what happens when a rank is late; returns the library's version.
fn check(engine: &Engine) -> String {
    let mut version = String::new();
    for ranks in [1, 2, 4] {
        let output = engine.run(ranks, "contract");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{ranks} ranks of {}: {out}{err}", engine.mpirun.display());
        let complete: BTreeSet<&str> = out.lines().filter(|line| line.starts_with("complete: rank ")).collect();
        assert_eq!(complete.len(), ranks, "{out}{err}");
        version = out.lines().find_map(|line| line.strip_prefix("version: ")).unwrap_or_default().to_string();
    }
    for (task, text) in [
        (
            "blocked",
            "rank 0 of 2 has waited 0.2 s in all_reduce: rank 1 has not called it and does not answer: it computes, is blocked, or has ended;",
        ),
        ("elsewhere", "rank 0 of 2 has waited 0.2 s in all_reduce: rank 1 waits in receive from rank 0;"),
        ("message", "rank 0 of 2 has waited 0.2 s in receive from rank 1: rank 1 has not called it and does not answer:"),
    ] {
        let output = engine.run(2, task);
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success() && err.contains(text), "{task} with {}: {out}{err}", engine.mpirun.display());
    }
    let output = engine.run(2, "short message");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let text = "rank 0 of 2: receive from rank 1 failed: 2 numbers have come, but 3 are expected; both ranks name the same number;";
    assert!(!output.status.success() && err.contains(text), "{}: {out}{err}", engine.mpirun.display());
    // The launcher ends the ranks that wait for one that has died, long before their timeout.
    let output = engine.run(2, "dies");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(!output.status.success() && !err.contains("has waited"), "a dead rank with {}: {out}{err}", engine.mpirun.display());
    version
}

/// The error of a machine without MPI.
fn missing_library() {
    let options = MpiOptions { library: Some("libno-such-mpi.so".into()), ..MpiOptions::default() };
    let error = Mpi::open(&options).err().expect("there is no such library").to_string();
    assert!(error.starts_with("no MPI library could be loaded: libno-such-mpi.so ("), "{error}");
    let hint = "install Open MPI or MPICH, or name the library of your `mpirun` with PLIMSOLL_MPI";
    assert!(error.ends_with(hint), "{error}");
}

/// One rank of a job.
fn rank(task: &str) -> ExitCode {
    let launch = Launch::from_variables(&env::vars().collect()).unwrap().expect("a launcher started it");
    let (expected, local) = ((launch.rank, launch.size), launch.local_rank);
    // Where ranks are late, the test does not wait for long; the late one itself does.
    let short = Duration::from_millis(200);
    let waits = ["contract", "dies", "short message"].contains(&task) || launch.rank > 0;
    let timeout = if waits { MpiOptions::default().timeout } else { short };
    let options = MpiOptions { library: env::var_os(LIBRARY), timeout, launch: Some(launch) };
    let mpi = Mpi::open(&options).unwrap();
    assert_eq!((mpi.rank(), mpi.size()), expected);
    assert!(local.is_some_and(|local| local < mpi.size()), "local rank {local:?}");
    if task == "contract" {
        check_group(&mpi);
        let wrong = mpi.split(Some(u32::MAX), 0).err().expect("no such color").to_string();
        assert_eq!(wrong, format!("rank {} of {}: split takes colors and keys up to 2147483647, as MPI does", mpi.rank(), mpi.size()));
        assert!(mpi.owned_bytes() >= 1 << 20);
        println!("version: {}", mpi.version());
        println!("complete: rank {}", mpi.rank());
        return ExitCode::SUCCESS;
    }
    if task == "dies" {
        if mpi.rank() == 1 {
            std::process::abort();
        }
        let _ = mpi.barrier();
        return ExitCode::FAILURE;
    }
    if task == "short message" {
        let sent = match mpi.rank() {
            0 => mpi.receive((&mut [0.0f32; 3][..]).into(), 1),
            _ => mpi.send((&[0.0f32; 2][..]).into(), 0).and_then(|()| mpi.barrier()),
        };
        eprintln!("{}", sent.unwrap_err());
        return ExitCode::FAILURE;
    }
    if mpi.rank() == 0 {
        let mut numbers = [1.0f32];
        let waited = match task {
            "message" => mpi.receive((&mut numbers[..]).into(), 1),
            _ => mpi.all_reduce((&mut numbers[..]).into(), Reduction::Sum),
        };
        eprintln!("{}", waited.unwrap_err());
        // Later calls are refused at once.
        let later = mpi.barrier().unwrap_err().to_string();
        assert!(later.starts_with("rank 0 of 2 cannot call barrier after an earlier error: rank 0 of 2 has waited"), "{later}");
        return ExitCode::FAILURE;
    }
    if task == "elsewhere" {
        // Answers questions while it waits for what nobody sends.
        let _ = mpi.receive((&mut [0.0f32][..]).into(), 0);
    }
    // Until the launcher ends it.
    loop {
        std::thread::park();
    }
}
