//! Groups of ranks and their collectives.

use crate::error::{CommError, Result};
use crate::numbers::{Numbers, NumbersMut, Reduction};

/// The ranks that run one program together, one process per device.
///
/// Every rank calls the same collectives in the same order with the same numbers of elements. A call returns when this
/// rank's part is complete. A rank that waits longer than the timeout of its group gets an error that names the ranks
/// it waits for. At most one call is under way per process.
///
/// ```
/// use plimsoll_comm::{Alone, Group, Reduction};
///
/// fn mean_loss(group: &dyn Group, loss: f64, rows: u64) -> plimsoll_comm::Result<f64> {
///     let mut sums = [loss, rows as f64];
///     group.all_reduce((&mut sums[..]).into(), Reduction::Sum)?;
///     Ok(sums[0] / sums[1])
/// }
/// assert_eq!(mean_loss(&Alone, 6.0, 4)?, 1.5);
/// # Ok::<(), plimsoll_comm::CommError>(())
/// ```
pub trait Group: Send + Sync {
    /// The number of this rank, from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Divides the group: the ranks that give the same color form one, in the order of their keys, and of their ranks
    /// where keys are equal. A rank without a color gets none. Ranks drop the groups they share in the same order.
    ///
    /// # Errors
    /// If another rank does not take part.
    fn split(&self, color: Option<u32>, key: u32) -> Result<Option<Box<dyn Group>>>;

    /// Reduces numbers over all ranks; every rank gets the result, with the same bits.
    ///
    /// # Errors
    /// If another rank does not take part.
    fn all_reduce(&self, numbers: NumbersMut<'_>, reduction: Reduction) -> Result<()>;

    /// Reduces numbers over all ranks; each rank gets its block of the result. `send` has a block per rank.
    ///
    /// # Errors
    /// If another rank does not take part, or sizes do not match.
    fn reduce_scatter(&self, send: Numbers<'_>, receive: NumbersMut<'_>, reduction: Reduction) -> Result<()>;

    /// Collects the blocks of all ranks, in their order, on every rank. `receive` has a block per rank.
    ///
    /// # Errors
    /// If another rank does not take part, or sizes do not match.
    fn all_gather(&self, send: Numbers<'_>, receive: NumbersMut<'_>) -> Result<()>;

    /// Copies the numbers of one rank to all others.
    ///
    /// # Errors
    /// If another rank does not take part, or there is no such rank.
    fn broadcast(&self, numbers: NumbersMut<'_>, root: usize) -> Result<()>;

    /// Sends numbers to another rank, which [receives](Group::receive) them in the order of calls.
    ///
    /// # Errors
    /// If the rank does not receive them, or there is no such rank.
    fn send(&self, numbers: Numbers<'_>, to: usize) -> Result<()>;

    /// Receives numbers that another rank sends.
    ///
    /// # Errors
    /// If the rank does not send any, or there is no such rank.
    fn receive(&self, numbers: NumbersMut<'_>, from: usize) -> Result<()>;

    /// Waits until every rank has called it.
    ///
    /// # Errors
    /// If another rank does not take part.
    fn barrier(&self) -> Result<()>;

    /// Memory that communication takes in this process: buffers, and what the library has allocated.
    fn owned_bytes(&self) -> u64;
}

/// An operation of a group, as errors name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Split,
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast(usize),
    Send(usize),
    Receive(usize),
    Barrier,
}

impl Operation {
    pub fn in_words(self) -> String {
        match self {
            Operation::Split => "split".to_string(),
            Operation::AllReduce => "all_reduce".to_string(),
            Operation::ReduceScatter => "reduce_scatter".to_string(),
            Operation::AllGather => "all_gather".to_string(),
            Operation::Broadcast(root) => format!("broadcast from rank {root}"),
            Operation::Send(to) => format!("send to rank {to}"),
            Operation::Receive(from) => format!("receive from rank {from}"),
            Operation::Barrier => "barrier".to_string(),
        }
    }
}

/// Checks that `blocks` has a block of the size of `block` per rank.
pub(crate) fn check_blocks(group: &dyn Group, operation: Operation, block: &Numbers<'_>, blocks: &Numbers<'_>) -> Result<()> {
    if block.number_type() == blocks.number_type() && blocks.len() == block.len() * group.size() {
        return Ok(());
    }
    Err(usage(
        group,
        format!(
            "{} of {} ranks takes blocks of one type and size: a rank's {:?} × {} do not match the {:?} × {} of all ranks",
            operation.in_words(),
            group.size(),
            block.number_type(),
            block.len(),
            blocks.number_type(),
            blocks.len()
        ),
    ))
}

/// Checks that there is such a rank, and that it is another one.
pub(crate) fn check_peer(group: &dyn Group, operation: Operation, peer: usize) -> Result<()> {
    let same = peer == group.rank() && !matches!(operation, Operation::Broadcast(_));
    match peer < group.size() {
        true if !same => Ok(()),
        true => Err(usage(group, format!("{} is this rank itself; name another one", operation.in_words()))),
        false => Err(usage(group, format!("{}: ranks are 0 to {}", operation.in_words(), group.size() - 1))),
    }
}

fn usage(group: &dyn Group, what: String) -> CommError {
    CommError::Usage { rank: group.rank(), size: group.size(), what }
}
