//! The rank of a process, from the variables that launchers set.

use std::collections::BTreeMap;
use std::fmt;

/// What started this process as one of several ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` or `mpiexec` of MPICH and its relatives, and other process managers that speak PMI.
    Pmi,
    /// A process manager that speaks PMIx.
    Pmix,
    /// `srun` of Slurm.
    Slurm,
    /// `torchrun`, and whatever else sets `RANK` and `WORLD_SIZE`.
    Torchrun,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::OpenMpi => "mpirun of Open MPI",
            Launcher::Pmi => "mpirun of MPICH",
            Launcher::Pmix => "a PMIx launcher",
            Launcher::Slurm => "srun",
            Launcher::Torchrun => "torchrun",
        })
    }
}

/// The place of this process among the ranks of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// What started it.
    pub launcher: Launcher,
    /// The number of this rank, from 0.
    pub rank: usize,
    /// The number of ranks.
    pub size: usize,
    /// The number of this rank among those of this machine; none if the launcher does not say.
    pub local_rank: Option<usize>,
    /// The number of ranks of this machine; none if the launcher does not say.
    pub local_size: Option<usize>,
    /// The variable with the number of ranks, for errors.
    pub size_variable: &'static str,
}

/// The variables of a launcher do not say which rank this is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LaunchError {
    /// A variable is not a number.
    #[error(
        "the variable {variable} is `{value}`, but launchers set it to an integer; unset it, or start the run with mpirun, srun or torchrun"
    )]
    NotANumber {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
    },
    /// A variable is missing beside another one.
    #[error("the variable {present} is set, but none of {missing}; set it too, or unset {present} to run on one process")]
    Missing {
        /// The variable that is set.
        present: &'static str,
        /// Those of which one must be set too.
        missing: String,
    },
    /// Two variables disagree.
    #[error(
        "the variables {first} = {first_value} and {second} = {second_value} contradict each other; unset those of the launcher that did not \
         start this run"
    )]
    Contradiction {
        /// A variable.
        first: &'static str,
        /// Its value.
        first_value: usize,
        /// Another one, which states the same.
        second: &'static str,
        /// Its value.
        second_value: usize,
    },
    /// A rank is not below the number of ranks.
    #[error("the variable {rank} = {rank_value} is not below {size} = {size_value}: ranks are numbered from 0; set both, or unset both")]
    OutOfRange {
        /// The variable with the rank.
        rank: &'static str,
        /// Its value.
        rank_value: usize,
        /// The variable with the number of ranks.
        size: &'static str,
        /// Its value.
        size_value: usize,
    },
}

/// The variables of a launcher: each fact has one or more names, the first that is set counts.
struct Variables {
    launcher: Launcher,
    rank: &'static [&'static str],
    size: &'static [&'static str],
    local_rank: &'static [&'static str],
    local_size: &'static [&'static str],
    /// A variable without which the others do not mean that this launcher started the process.
    only_with: Option<&'static str>,
}

/// The closest launcher first: `mpirun` within a job of Slurm sets its own variables, and those of Slurm are then about
/// its daemons.
const LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: Launcher::OpenMpi,
        rank: &["OMPI_COMM_WORLD_RANK"],
        size: &["OMPI_COMM_WORLD_SIZE"],
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        only_with: None,
    },
    Variables {
        launcher: Launcher::Pmi,
        rank: &["PMI_RANK"],
        size: &["PMI_SIZE"],
        local_rank: &["MPI_LOCALRANKID"],
        local_size: &["MPI_LOCALNRANKS"],
        only_with: None,
    },
    Variables {
        launcher: Launcher::Pmix,
        rank: &["PMIX_RANK"],
        size: &["PMIX_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "WORLD_SIZE"],
        local_rank: &["PMIX_LOCAL_RANK", "SLURM_LOCALID"],
        local_size: &[],
        only_with: None,
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: &["SLURM_PROCID"],
        size: &["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"],
        local_rank: &["SLURM_LOCALID"],
        local_size: &[],
        // A batch script has a rank of Slurm too, but is one process.
        only_with: Some("SLURM_STEP_ID"),
    },
    Variables {
        launcher: Launcher::Torchrun,
        rank: &["RANK"],
        size: &["WORLD_SIZE"],
        local_rank: &["LOCAL_RANK"],
        local_size: &["LOCAL_WORLD_SIZE"],
        only_with: None,
    },
];

/// A fact that a variable states.
#[derive(Clone, Copy)]
struct Stated {
    variable: &'static str,
    value: usize,
}

impl Launch {
    /// Reads the rank of this process from the variables of its environment; none if no launcher set any.
    ///
    /// # Errors
    /// If variables contradict each other, are incomplete, or are no numbers.
    ///
    /// ```
    /// use plimsoll_comm::{Launch, Launcher};
    ///
    /// let variables = [("RANK", "1"), ("WORLD_SIZE", "4")].map(|(name, value)| (name.into(), value.into())).into();
    /// let launch = Launch::from_variables(&variables)?.expect("torchrun started it");
    /// assert_eq!((launch.launcher, launch.rank, launch.size), (Launcher::Torchrun, 1, 4));
    /// # Ok::<(), plimsoll_comm::LaunchError>(())
    /// ```
    pub fn from_variables(variables: &BTreeMap<String, String>) -> Result<Option<Launch>, LaunchError> {
        let mut found: Option<(Launch, Facts)> = None;
        let mut incomplete = None;
        for launcher in &LAUNCHERS {
            // Ranks that Slurm gives its own tasks say nothing about those that another `mpirun` started among them.
            let nested = matches!(launcher.launcher, Launcher::Slurm)
                && found.as_ref().is_some_and(|(launch, _)| matches!(launch.launcher, Launcher::OpenMpi | Launcher::Pmi));
            if nested || launcher.only_with.is_some_and(|name| !variables.contains_key(name)) {
                continue;
            }
            let facts = launcher.facts(variables)?;
            // Some job systems set a size alone, also for processes that nobody launched.
            let [Some(rank), size, local_rank, local_size] = facts else { continue };
            if let Some((_, first)) = &found {
                agree(first, &facts)?;
                continue;
            }
            let Some(size) = size else {
                incomplete.get_or_insert(LaunchError::Missing { present: rank.variable, missing: launcher.size.join(", ") });
                continue;
            };
            let launch = Launch {
                launcher: launcher.launcher,
                rank: rank.value,
                size: size.value,
                local_rank: local_rank.map(|stated| stated.value),
                local_size: local_size.map(|stated| stated.value),
                size_variable: size.variable,
            };
            found = Some((launch, facts));
        }
        match (found, incomplete) {
            (None, Some(error)) => Err(error),
            (found, _) => Ok(found.map(|(launch, _)| launch)),
        }
    }
}

/// Rank, size, local rank and local size, as far as a launcher states them.
type Facts = [Option<Stated>; 4];

impl Variables {
    fn facts(&self, variables: &BTreeMap<String, String>) -> Result<Facts, LaunchError> {
        let [rank, size, local_rank, local_size] =
            [self.rank, self.size, self.local_rank, self.local_size].map(|names| stated(variables, names));
        let facts = [rank?, size?, local_rank?, local_size?];
        for (rank, size) in [(facts[0], facts[1]), (facts[2], facts[3])] {
            if let (Some(rank), Some(size)) = (rank, size) {
                below(rank, size)?;
            }
        }
        Ok(facts)
    }
}

/// The first of some variables that is set.
fn stated(variables: &BTreeMap<String, String>, names: &[&'static str]) -> Result<Option<Stated>, LaunchError> {
    let Some((variable, text)) = names.iter().find_map(|name| variables.get(*name).map(|value| (*name, value))) else { return Ok(None) };
    match text.trim().parse() {
        Ok(value) => Ok(Some(Stated { variable, value })),
        Err(_) => Err(LaunchError::NotANumber { variable, value: text.clone() }),
    }
}

fn below(rank: Stated, size: Stated) -> Result<(), LaunchError> {
    if rank.value < size.value {
        return Ok(());
    }
    let (rank_value, size_value) = (rank.value, size.value);
    Err(LaunchError::OutOfRange { rank: rank.variable, rank_value, size: size.variable, size_value })
}

/// Checks that two launchers state the same where both state something.
fn agree(first: &Facts, second: &Facts) -> Result<(), LaunchError> {
    for (first, second) in first.iter().zip(second) {
        if let (Some(first), Some(second)) = (first, second)
            && first.value != second.value
        {
            let (first_value, second_value) = (first.value, second.value);
            return Err(LaunchError::Contradiction { first: first.variable, first_value, second: second.variable, second_value });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &str) -> Result<Option<Launch>, LaunchError> {
        let pair = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_string(), value.to_string())).expect("NAME=VALUE");
        Launch::from_variables(&variables.split_whitespace().map(pair).collect())
    }

    #[test]
    fn launchers_state_rank_size_and_local_rank() {
        let cases = [
            (
                "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=8 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2",
                (Launcher::OpenMpi, 3, 8, Some(1), Some(2)),
            ),
            // Open MPI 5 sets PMIx' variables beside its own.
            ("PMIX_RANK=3 PMIX_NAMESPACE=prterun-1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4", (Launcher::OpenMpi, 3, 4, None, None)),
            ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=2", (Launcher::Pmi, 0, 2, Some(0), Some(2))),
            ("RANK=5 WORLD_SIZE=6 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2", (Launcher::Torchrun, 5, 6, Some(1), Some(2))),
            ("SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=0", (Launcher::Slurm, 2, 4, Some(0), None)),
            // A step may have fewer tasks than its job.
            ("SLURM_STEP_ID=1 SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2", (Launcher::Slurm, 1, 2, None, None)),
            // srun --mpi=pmix, and --mpi=pmi2
            ("PMIX_RANK=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4", (Launcher::Pmix, 1, 4, None, None)),
            ("PMI_RANK=1 PMI_SIZE=4 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4", (Launcher::Pmi, 1, 4, None, None)),
            // mpirun within a job: the variables of Slurm are those of a daemon
            (
                "OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=2",
                (Launcher::OpenMpi, 3, 4, None, None),
            ),
            ("RANK=0 WORLD_SIZE=1", (Launcher::Torchrun, 0, 1, None, None)),
        ];
        for (variables, (launcher, rank, size, local_rank, local_size)) in cases {
            let launch = read(variables).unwrap().unwrap();
            let found = (launch.launcher, launch.rank, launch.size, launch.local_rank, launch.local_size);
            assert_eq!(found, (launcher, rank, size, local_rank, local_size), "{variables}");
        }
    }

    #[test]
    fn a_process_without_a_launcher_is_alone() {
        // A batch script of Slurm, and sizes alone, start one process.
        for variables in ["", "SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7", "WORLD_SIZE=4", "HOME=/root"] {
            assert_eq!(read(variables), Ok(None), "{variables}");
        }
    }

    #[test]
    fn contradictions_name_both_variables() {
        let cases = [
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 RANK=0 WORLD_SIZE=4",
                "the variables OMPI_COMM_WORLD_RANK = 1 and RANK = 0 contradict each other; unset those of the launcher that did not start \
                 this run",
            ),
            (
                "PMI_RANK=1 PMI_SIZE=4 RANK=1 WORLD_SIZE=2",
                "the variables PMI_SIZE = 4 and WORLD_SIZE = 2 contradict each other; unset those of the launcher that did not start this \
                 run",
            ),
            (
                "PMIX_RANK=1 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4",
                "the variables PMIX_RANK = 1 and SLURM_PROCID = 2 contradict each other; unset those of the launcher that did not start \
                 this run",
            ),
            (
                "RANK=1 WORLD_SIZE=4 LOCAL_RANK=1 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_NTASKS=4 SLURM_LOCALID=0",
                "the variables SLURM_LOCALID = 0 and LOCAL_RANK = 1 contradict each other; unset those of the launcher that did not start \
                 this run",
            ),
            (
                "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 PMIX_RANK=2",
                "the variables OMPI_COMM_WORLD_RANK = 1 and PMIX_RANK = 2 contradict each other; unset those of the launcher that did not \
                 start this run",
            ),
            (
                "RANK=4 WORLD_SIZE=4",
                "the variable RANK = 4 is not below WORLD_SIZE = 4: ranks are numbered from 0; set both, or unset both",
            ),
            ("RANK=1", "the variable RANK is set, but none of WORLD_SIZE; set it too, or unset RANK to run on one process"),
            (
                "PMIX_RANK=1",
                "the variable PMIX_RANK is set, but none of PMIX_SIZE, SLURM_STEP_NUM_TASKS, SLURM_NTASKS, WORLD_SIZE; set it too, or \
                 unset PMIX_RANK to run on one process",
            ),
            (
                "RANK=first WORLD_SIZE=4",
                "the variable RANK is `first`, but launchers set it to an integer; unset it, or start the run with mpirun, srun or \
                 torchrun",
            ),
            (
                "OMPI_COMM_WORLD_RANK=-1 OMPI_COMM_WORLD_SIZE=4",
                "the variable OMPI_COMM_WORLD_RANK is `-1`, but launchers set it to an integer; unset it, or start the run with mpirun, \
                 srun or torchrun",
            ),
        ];
        for (variables, error) in cases {
            assert_eq!(read(variables).unwrap_err().to_string(), error, "{variables}");
        }
    }
}
