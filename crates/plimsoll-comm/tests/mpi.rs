//! Groups over the MPI libraries of this machine, each started by its own `mpirun`. Without a test harness: this
//! program starts itself as the ranks of a job.
//!
//! Every `mpirun` in a folder of PATH is tried, with the libraries of the folder `lib` beside it, or those of the
//! system.

mod contract;

use contract::check_group;
use plimsoll_comm::{Group, Launch, Mpi, MpiOptions, Reduction};
use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

/// What the ranks of a job do.
const TASK: &str = "PLIMSOLL_TEST_TASK";

/// Names the library to load.
const LIBRARY: &str = "PLIMSOLL_MPI";

fn main() -> ExitCode {
    if let Ok(task) = env::var(TASK) {
        return rank(&task);
    }
    // `cargo test NAME` runs every test program; as a list, this one is empty.
    if env::args().any(|argument| argument == "--list") {
        return ExitCode::SUCCESS;
    }
    let engines = engines();
    if engines.is_empty() {
        println!("mpi: skipped, there is no mpirun: install openmpi-bin, or mpich from PyPI");
    }
    for engine in &engines {
        let version = engine.check();
        println!(
            "mpi: {} with {} ({version})",
            engine.mpirun.display(),
            engine.library.as_deref().map_or("its library".into(), Path::to_string_lossy)
        );
    }
    missing_library();
    ExitCode::SUCCESS
}

/// A launcher and a library that belong together.
struct Engine {
    mpirun: PathBuf,
    library: Option<PathBuf>,
}

/// The launchers of this machine.
fn engines() -> Vec<Engine> {
    let path = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&path).map(|folder| folder.join("mpirun")).filter(|path| path.exists());
    let mut known = BTreeSet::new();
    let new = found.filter(|path| known.insert(path.canonicalize().unwrap_or_else(|_| path.clone())));
    let with_libraries = |mpirun: PathBuf| -> Vec<Engine> {
        let lib = mpirun.parent().and_then(Path::parent).map(|folder| folder.join("lib")).unwrap_or_default();
        let names = ["libmpi_abi.so.1", "libmpi.so.12", "libmpi.so.40"];
        let libraries: Vec<PathBuf> = names.iter().map(|name| lib.join(name)).filter(|path| path.exists()).collect();
        match libraries.is_empty() {
            true => vec![Engine { mpirun, library: None }],
            false => libraries.into_iter().map(|library| Engine { mpirun: mpirun.clone(), library: Some(library) }).collect(),
        }
    };
    new.flat_map(with_libraries).collect()
}

impl Engine {
    /// Starts this program as the ranks of a job.
    fn run(&self, ranks: usize, task: &str) -> Output {
        let mut command = Command::new(&self.mpirun);
        // A launcher of Open MPI, as root and on fewer cores than ranks. MPICH's needs no permission.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
        command.env(TASK, task).env_remove(LIBRARY);
        if let Some(library) = &self.library {
            command.env(LIBRARY, library);
        }
        command.arg("-np").arg(ranks.to_string()).arg(env::current_exe().expect("this program has a path"));
        command.output().expect("the launcher starts")
    }

    /// Checks groups of one, two and four ranks, and what happens when a rank is late; returns the library's version.
    fn check(&self) -> String {
        let mut version = String::new();
        for ranks in [1, 2, 4] {
            let output = self.run(ranks, "contract");
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(output.status.success(), "{ranks} ranks of {}: {out}{err}", self.mpirun.display());
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
            let output = self.run(2, task);
            let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            assert!(!output.status.success() && err.contains(text), "{task} with {}: {out}{err}", self.mpirun.display());
        }
        version
    }
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
    let timeout = if task == "contract" || launch.rank > 0 { MpiOptions::default().timeout } else { short };
    let options = MpiOptions { library: env::var_os(LIBRARY), timeout, launch: Some(launch) };
    let mpi = Mpi::open(&options).unwrap();
    assert_eq!((mpi.rank(), mpi.size()), expected);
    assert!(local.is_some_and(|local| local < mpi.size()), "local rank {local:?}");
    if task == "contract" {
        check_group(&mpi);
        assert!(mpi.owned_bytes() >= 1 << 20);
        println!("version: {}", mpi.version());
        println!("complete: rank {}", mpi.rank());
        return ExitCode::SUCCESS;
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
        let _ = mpi.receive((&mut [0.0f32][..]).into(), 0);
    }
    // Until the launcher ends it.
    loop {
        std::thread::park();
    }
}
