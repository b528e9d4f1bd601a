//! What a command prints as one of several ranks: rank 0 prints for all of them, and the others only what is theirs
//! alone.

use crate::output::message;
use anyhow::Result;
use plimsoll::{Error, Ranks};
use std::sync::OnceLock;

/// The rank of this process and the number of ranks, if there are several.
static RANK: OnceLock<(usize, usize)> = OnceLock::new();

/// Remembers which rank this process is.
pub fn set(ranks: &Ranks) {
    let _ = RANK.set((ranks.rank(), ranks.size()));
}

/// Whether this process prints for all ranks.
pub fn prints() -> bool {
    RANK.get().is_none_or(|(rank, _)| *rank == 0)
}

/// The result of every rank, or the error of the first that failed.
pub fn agreed<T>(ranks: Option<&Ranks>, result: Result<T>) -> Result<T> {
    let Some(ranks) = ranks else { return result };
    let own = |error: anyhow::Error| error.downcast::<Error>().unwrap_or_else(|other| Error::Config(other.to_string()));
    Ok(ranks.agree(result.map_err(own))?)
}

/// How an error of this rank is printed; not at all if rank 0 prints it.
pub fn error_line(error: &anyhow::Error) -> Option<String> {
    match (RANK.get(), error.downcast_ref()) {
        (Some((1.., _)), Some(Error::OfRank { .. })) => None,
        // Errors of communication name the rank themselves.
        (Some((rank @ 1.., size)), _) if !error.to_string().contains(&format!("rank {rank} of {size}")) => {
            Some(format!("error: on rank {rank} of {size}: {}\n", message(error)))
        }
        _ => Some(format!("error: {}\n", message(error))),
    }
}
