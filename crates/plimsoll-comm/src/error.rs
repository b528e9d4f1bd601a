//! Errors of communication.

use std::time::Duration;

/// A result of communication.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// An error of communication. After any of them but [`CommError::Usage`], a group cannot be used any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommError {
    /// There is no MPI library.
    #[error("no MPI library could be loaded: {tried}; install Open MPI or MPICH, or name the library of your `mpirun` with PLIMSOLL_MPI")]
    NoLibrary {
        /// The names that were tried, each with the error of the loader.
        tried: String,
    },
    /// The library cannot be used.
    #[error("the MPI library {library} cannot be used: {what}; name the library of your `mpirun` with PLIMSOLL_MPI")]
    Unsupported {
        /// Its name.
        library: String,
        /// The reason.
        what: String,
    },
    /// An operation failed.
    #[error(
        "rank {rank} of {size}: {operation} failed: {what}; look for an earlier error of another rank, then start the run again with \
         --resume"
    )]
    Failed {
        /// The rank on which it failed.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// The operation.
        operation: String,
        /// The error message of the library.
        what: String,
    },
    /// Other ranks did not take part in time.
    #[error(
        "rank {rank} of {size} has waited {} s in {operation}: {missing}; look for an earlier error of those ranks, or allow for more time \
         if they compute that long",
        waited.as_secs_f64()
    )]
    Timeout {
        /// The rank that waited.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// What it waited in.
        operation: String,
        /// How long it may wait.
        waited: Duration,
        /// The ranks it waits for, with what is known of each.
        missing: String,
    },
    /// An earlier error made the group unusable.
    #[error("rank {rank} of {size} cannot call {operation} after an earlier error: {first}")]
    Unusable {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// The operation.
        operation: String,
        /// The earlier error.
        first: String,
    },
    /// The operation is not possible with these arguments, and was not begun.
    #[error("rank {rank} of {size}: {what}")]
    Usage {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// What does not fit, and what would.
        what: String,
    },
}

/// A list of ranks in words, each with what is known of it: `rank 1 …` or `ranks 1, 2 and 5 …`.
pub(crate) fn ranks_in_words(ranks: &[usize], what: &str, what_of_several: &str) -> String {
    match ranks {
        [] => String::new(),
        [rank] => format!("rank {rank} {what}"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(usize::to_string).collect();
            format!("ranks {} and {last} {what_of_several}", first.join(", "))
        }
    }
}
