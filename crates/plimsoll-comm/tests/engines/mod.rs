//! The MPI libraries of this machine, each with the launcher that belongs to it.
//!
//! Every `mpirun` in a folder of PATH is tried, with the libraries of the folder `lib` beside it, or those of the
//! system.

use std::collections::BTreeSet;
use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// What the ranks of a job do.
pub const TASK: &str = "PLIMSOLL_TEST_TASK";

/// Names the library to load.
pub const LIBRARY: &str = "PLIMSOLL_MPI";

/// A launcher and a library that belong together.
pub struct Engine {
    pub mpirun: PathBuf,
    pub library: Option<PathBuf>,
}

/// Whether this program is asked for the list of its tests, as `cargo test NAME` asks every one: as a list, it is
/// empty.
pub fn is_asked_for_list() -> bool {
    env::args().any(|argument| argument == "--list")
}

/// The launchers of this machine. If there is none, says so.
pub fn engines() -> Vec<Engine> {
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
    let engines: Vec<Engine> = new.flat_map(with_libraries).collect();
    if engines.is_empty() {
        println!("mpi: skipped, there is no mpirun: tools/install_mpi.sh");
    }
    engines
}

impl Engine {
    /// Starts this program as the ranks of a job.
    pub fn run(&self, ranks: usize, task: &str) -> Output {
        let mut command = self.command(ranks);
        command.env(TASK, task).arg(env::current_exe().expect("this program has a path"));
        command.output().expect("the launcher starts")
    }

    /// The launcher of a job, without its program.
    pub fn command(&self, ranks: usize) -> Command {
        let mut command = Command::new(&self.mpirun);
        // A launcher of Open MPI, as root and on fewer cores than ranks. MPICH's needs no permission.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command.env("OMPI_MCA_rmaps_base_oversubscribe", "1").env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
        command.env_remove(LIBRARY);
        if let Some(library) = &self.library {
            command.env(LIBRARY, library);
        }
        command.arg("-np").arg(ranks.to_string());
        command
    }
}
