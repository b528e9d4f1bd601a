//! The ranks that train a run together: how they are found, and what they agree on.

use crate::error::{Error, Result};
use crate::system;
use plimsoll_comm::{Group, Launch, Mpi, MpiOptions, Reduction};
use plimsoll_core::Bytes;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What the ranks of a job do: `[parallel]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parallel {
    /// How they divide the batches.
    pub data: DataParallelism,
    /// Whose rows the statistics of batch normalization are of.
    pub batch_norm: BatchNormStatistics,
    /// Whether results have the same bits on any number of ranks: batches are divided into fixed micro-batches, whose
    /// gradients are added in a fixed order. On one process too, with the same bits.
    pub reproducible: bool,
    /// What each rank has a part of, instead of all.
    pub shard: Shard,
}

/// No job has more ranks.
pub(crate) const MAX_RANKS: usize = 1 << 20;

/// What is divided over the ranks that train together (ZeRO). One process has all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Shard {
    /// Nothing: all ranks have the same.
    #[default]
    None,
    /// The states of the optimizer (ZeRO 1): each rank updates its part of every parameter, and all gather the new
    /// values.
    Optimizer,
    /// Gradients that are accumulated over micro-batches too (ZeRO 2): those of every micro-batch are summed over
    /// ranks.
    Gradients,
}

impl Shard {
    /// Names in configurations.
    pub(crate) const NAMES: [(&'static str, Shard); 3] =
        [("none", Shard::None), ("optimizer", Shard::Optimizer), ("gradients", Shard::Gradients)];

    /// Its name in configurations and plans.
    pub fn name(self) -> &'static str {
        let own = Shard::NAMES.iter().find(|(_, shard)| *shard == self);
        own.map_or("none", |(name, _)| name)
    }
}

/// How ranks divide the batches of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataParallelism {
    /// Every rank trains on its rows of every batch, and gradients are summed over all of them. On one process, nothing
    /// is divided.
    #[default]
    Auto,
    /// The run is one of a single process; several are refused.
    None,
}

impl DataParallelism {
    /// Names in configurations.
    pub(crate) const NAMES: [(&'static str, DataParallelism); 2] = [("auto", DataParallelism::Auto), ("none", DataParallelism::None)];
}

/// Whose rows the mean and variance of batch normalization are of, where several ranks train together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BatchNormStatistics {
    /// Those of the rows of all ranks, as of one process.
    #[default]
    Synchronized,
    /// Those of each rank's own rows. That changes results, and has to be
    /// [allowed](crate::Permission::MicrobatchBatchnorm).
    Local,
}

impl BatchNormStatistics {
    /// Names in configurations.
    pub(crate) const NAMES: [(&'static str, BatchNormStatistics); 2] =
        [("synchronized", BatchNormStatistics::Synchronized), ("local", BatchNormStatistics::Local)];
}

/// The ranks that a launcher started to train one run together.
///
/// ```
/// use plimsoll::Ranks;
/// // A process that no launcher started is alone.
/// assert!(Ranks::launched()?.is_none());
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone)]
pub struct Ranks {
    group: Arc<dyn Group>,
    /// How many of them run on this machine.
    here: usize,
    /// The number of this one among them.
    local: usize,
    /// What the footprint of the process has grown by when the group was opened.
    mapped: Bytes,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl Ranks {
    /// The ranks that `mpirun`, `srun` or another launcher started with this process, over MPI; none if it is alone.
    /// Called before anything else takes memory, so that what MPI takes is measured.
    ///
    /// # Errors
    /// If the variables of launchers contradict each other, or MPI cannot be started.
    pub fn launched() -> Result<Option<Ranks>> {
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
        let Some(launch) = Launch::from_variables(&variables.collect())?.filter(|launch| launch.size > 1) else { return Ok(None) };
        // Before libraries are loaded: they are memory of communication.
        let before = system::process_footprint();
        let library = std::env::var_os("PLIMSOLL_MPI").filter(|name| !name.is_empty());
        let local = launch.local_rank;
        let mpi = Mpi::open(&MpiOptions { library, launch: Some(launch), timeout: timeout()? })?;
        let now = system::footprint_now();
        let ranks = Ranks::over(Arc::new(mpi))?;
        Ok(Some(Ranks { mapped: now - before.min(now), local: local.unwrap_or(ranks.local), ..ranks }))
    }

    /// The ranks of a group.
    ///
    /// # Errors
    /// If another rank does not take part.
    pub fn over(group: Arc<dyn Group>) -> Result<Ranks> {
        let machine = [system::machine_id()];
        let mut machines = vec![0; group.size()];
        group.all_gather((&machine[..]).into(), (&mut machines[..]).into())?;
        let of_this_one = |ranks: &[u64]| ranks.iter().filter(|other| **other == machine[0]).count();
        let (here, local) = (of_this_one(&machines), of_this_one(&machines[..group.rank()]));
        Ok(Ranks { group, here, local, mapped: Bytes::ZERO })
    }

    /// The number of this rank, from 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.group.size()
    }

    /// Whether this is the rank that prints, and writes the files of the run.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// Ranks on this machine.
    pub(crate) fn here(&self) -> usize {
        self.here
    }

    /// The number of this rank among those of its machine: that of its launcher, if it says so.
    pub(crate) fn local_rank(&self) -> usize {
        self.local
    }

    /// What communication takes in this process, as it was measured at its start.
    pub(crate) fn owned_bytes(&self) -> Bytes {
        Bytes(self.group.owned_bytes())
    }

    /// What the footprint of the process has grown by when the group was opened.
    pub(crate) fn mapped(&self) -> Bytes {
        self.mapped
    }

    /// Their group.
    pub(crate) fn group(&self) -> &Arc<dyn Group> {
        &self.group
    }

    /// The result of every rank's own work, if all of them have one. Otherwise all ranks return the error of the first
    /// that failed, so that none waits for it.
    ///
    /// # Errors
    /// The first rank's error, or that of communication.
    pub fn agree<T>(&self, result: Result<T>) -> Result<T> {
        let size = self.size() as u64;
        let failed = if result.is_err() { self.rank() as u64 } else { size };
        let first = self.least([failed])?[0];
        if first == size {
            return result;
        }
        let own = result.err().filter(|_| first == self.rank() as u64);
        let mut outline = own.as_ref().map_or([0, 0], |error| [error.to_string().len() as u64, u64::from(error.is_infeasible())]);
        self.group.broadcast((&mut outline[..]).into(), first as usize)?;
        let mut text = own.as_ref().map_or_else(|| vec![0; outline[0] as usize], |error| error.to_string().into_bytes());
        self.group.broadcast((&mut text[..]).into(), first as usize)?;
        match own {
            // The one that prints has it with all details.
            Some(error) if self.is_first() => Err(error),
            _ => Err(Error::OfRank {
                rank: first as usize,
                size: self.size(),
                error: String::from_utf8_lossy(&text).into_owned(),
                infeasible: outline[1] == 1,
            }),
        }
    }

    /// Adds numbers up over all ranks, in double precision.
    pub(crate) fn sum(&self, numbers: &mut [f64]) -> Result<()> {
        Ok(self.group.all_reduce(numbers.into(), Reduction::Sum)?)
    }

    /// The smallest of each number over all ranks.
    pub(crate) fn least<const N: usize>(&self, mut numbers: [u64; N]) -> Result<[u64; N]> {
        self.group.all_reduce((&mut numbers[..]).into(), Reduction::Min)?;
        Ok(numbers)
    }

    /// The largest of each number over all ranks.
    pub(crate) fn most<const N: usize>(&self, mut numbers: [u64; N]) -> Result<[u64; N]> {
        self.group.all_reduce((&mut numbers[..]).into(), Reduction::Max)?;
        Ok(numbers)
    }

    /// Waits until every rank is here.
    pub(crate) fn wait(&self) -> Result<()> {
        Ok(self.group.barrier()?)
    }

    /// The bytes that rank 0 has.
    ///
    /// # Errors
    /// If another rank does not take part.
    pub fn of_first(&self, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut length = [bytes.len() as u64];
        self.group.broadcast((&mut length[..]).into(), 0)?;
        let mut all = if self.is_first() { bytes.to_vec() } else { vec![0; length[0] as usize] };
        self.group.broadcast((&mut all[..]).into(), 0)?;
        Ok(all)
    }

    /// The numbers of all ranks, in their order.
    pub(crate) fn of_all<const N: usize>(&self, own: [u64; N]) -> Result<Vec<[u64; N]>> {
        let mut all = vec![0; N * self.size()];
        self.group.all_gather((&own[..]).into(), (&mut all[..]).into())?;
        Ok(all.chunks_exact(N).map(|numbers| numbers.try_into().expect("chunks of this size")).collect())
    }

    /// Copies bytes of rank 0 to all ranks.
    pub(crate) fn copy_of_first(&self, bytes: &mut [u8]) -> Result<()> {
        Ok(self.group.broadcast(bytes.into(), 0)?)
    }

    /// Checks that something is the same on all ranks; names the first rank on which it is not.
    pub(crate) fn check_equal(&self, what: &[(&str, u64)]) -> Result<()> {
        let own: Vec<u64> = what.iter().map(|(_, hash)| *hash).collect();
        let mut all = vec![0u64; own.len() * self.size()];
        self.group.all_gather((&own[..]).into(), (&mut all[..]).into())?;
        for (rank, hashes) in all.chunks_exact(own.len()).enumerate() {
            if let Some(different) = hashes.iter().zip(&all).position(|(hash, first)| hash != first) {
                let what = what[different].0;
                return Err(Error::Config(format!(
                    "rank {rank} of {} has another {what} than rank 0; start all ranks with the same program, configuration and files",
                    self.size()
                )));
            }
        }
        Ok(())
    }
}

/// The variable with the seconds that a rank waits for others.
const TIMEOUT: &str = "PLIMSOLL_MPI_TIMEOUT";

/// How long a rank waits for others.
fn timeout() -> Result<Duration> {
    let Some(set) = std::env::var_os(TIMEOUT).filter(|value| !value.is_empty()) else { return Ok(MpiOptions::default().timeout) };
    let text = set.to_string_lossy();
    let seconds = text.parse().ok().filter(|seconds| *seconds > 0.0);
    seconds
        .and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
        .ok_or_else(|| Error::Config(format!("{TIMEOUT} is `{text}`, but should be the seconds that a rank waits for others, such as 600")))
}

/// The result of every rank, or the error of the first that failed.
pub(crate) fn agree<T>(ranks: Option<&Ranks>, result: Result<T>) -> Result<T> {
    match ranks {
        Some(ranks) => ranks.agree(result),
        None => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_comm::threads::ThreadGroup;

    fn on_ranks<T: Send>(ranks: usize, run: impl Fn(Ranks) -> T + Sync) -> Vec<T> {
        let groups = ThreadGroup::new(ranks, Duration::from_secs(60));
        std::thread::scope(|scope| {
            let start = |group| scope.spawn(|| run(Ranks::over(Arc::new(group)).unwrap()));
            let threads: Vec<_> = groups.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn all_ranks_return_the_error_of_the_first_that_failed() {
        let errors = on_ranks(4, |ranks| {
            let own = if ranks.rank() % 2 == 1 { Err(Error::Config(format!("rank {} is full", ranks.rank()))) } else { Ok(()) };
            let agreed = ranks.agree(own).unwrap_err().to_string();
            (ranks.agree(Ok(ranks.rank())).unwrap(), agreed)
        });
        let expected: Vec<_> = (0..4).map(|rank| (rank, "on rank 1 of 4: rank 1 is full".to_string())).collect();
        assert_eq!(errors, expected);
        assert_eq!(on_ranks(3, |ranks| ranks.here()), [3, 3, 3]);
    }

    #[test]
    fn what_differs_is_named_with_its_rank() {
        let checked = on_ranks(3, |ranks| {
            ranks.check_equal(&[("configuration", 7)]).unwrap();
            ranks.check_equal(&[("configuration", 7), ("plan", ranks.rank() as u64 / 2)]).unwrap_err().to_string()
        });
        let error = "rank 2 of 3 has another plan than rank 0; start all ranks with the same program, configuration and files".to_string();
        assert_eq!(checked, vec![error; 3]);
    }
}
