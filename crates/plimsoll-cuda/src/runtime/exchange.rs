//! How the ranks of a job exchange numbers that are in device memory: through NCCL, in the stream of the step, or where
//! ranks share a GPU through host memory and the job's group.

use crate::libraries::driver::{Context, Event, PinnedBuffer, Stream};
use crate::libraries::nccl::{Communicator, ID_BYTES, Operands, unique_id};
use crate::runtime::state::lock;
use cudarc::driver::result;
use plimsoll_comm::{Group, Reduction};
use plimsoll_core::Bytes;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes of the pinned memory that numbers pass through on the host.
pub(crate) const HOST_BUFFER: Bytes = Bytes::mib(4);

/// For how long an event is asked for without a pause, and the pause after that: a step takes longer than either.
const EAGER: Duration = Duration::from_micros(200);
const PAUSE: Duration = Duration::from_micros(50);

/// How often NCCL is asked for errors while a run is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// How long a run with collectives is waited for: other ranks may compile kernels first.
const TIMEOUT: Duration = Duration::from_secs(600);

/// The ranks of a job, as a GPU exchanges numbers with them.
pub(crate) struct Exchange {
    group: Arc<dyn Group>,
    transport: Transport,
    timeout: Duration,
}

/// Which of its operands has a block per rank.
#[derive(Clone, Copy)]
enum Direction {
    /// The input.
    ToOwn,
    /// The output.
    FromOwn,
}

enum Transport {
    Nccl(Communicator),
    /// Through this memory of the host.
    Host(Mutex<PinnedBuffer>),
}

impl Exchange {
    /// Through NCCL, whose id travels over the group. All ranks call this at the same time; the context is current.
    ///
    /// # Errors
    /// On all ranks, with the error of the first that failed.
    pub fn nccl(context: &Arc<Context>, group: &Arc<dyn Group>) -> Result<Exchange, String> {
        let (rank, ranks) = (group.rank(), group.size());
        let own = if rank == 0 { unique_id() } else { Ok([0; ID_BYTES]) };
        let mut id = agreed(&**group, own)?;
        group.broadcast((&mut id[..]).into(), 0).map_err(|error| error.to_string())?;
        let communicator = agreed(&**group, Communicator::open(context, (rank, ranks), id))?;
        Ok(Exchange { group: Arc::clone(group), transport: Transport::Nccl(communicator), timeout: TIMEOUT })
    }

    /// Through host memory and the group; the context is current.
    ///
    /// # Errors
    /// If the memory cannot be pinned.
    pub fn host(context: &Arc<Context>, group: &Arc<dyn Group>) -> Result<Exchange, String> {
        let buffer = PinnedBuffer::new(context, HOST_BUFFER.get());
        let buffer = buffer.map_err(|error| format!("{HOST_BUFFER} of host memory for sums over ranks could not be pinned: {error:?}"));
        Ok(Exchange { group: Arc::clone(group), transport: Transport::Host(Mutex::new(agreed(&**group, buffer)?)), timeout: TIMEOUT })
    }

    /// The number of this rank.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// The number of ranks.
    pub fn ranks(&self) -> usize {
        self.group.size()
    }

    /// Whether collectives are work of the stream alone, so that CUDA graphs can hold them.
    pub fn is_recorded(&self) -> bool {
        matches!(self.transport, Transport::Nccl(_))
    }

    /// Device memory of NCCL's communicator, as far as the library says.
    pub fn device_memory(&self) -> Option<Bytes> {
        match &self.transport {
            Transport::Nccl(communicator) => communicator.device_memory().map(Bytes),
            Transport::Host(_) => Some(Bytes::ZERO),
        }
    }

    /// Sums numbers over all ranks. Through the host, that waits for the stream and for the other ranks.
    ///
    /// # Errors
    /// If another rank does not take part.
    ///
    /// # Safety
    /// The addresses are those of device memory with as many floats, valid until the stream has executed it. An input
    /// may be its own output, and overlaps no other one. The context is current.
    pub unsafe fn all_reduce(&self, operands: &[Operands], stream: &Stream) -> Result<(), String> {
        match &self.transport {
            // SAFETY: guaranteed by the caller.
            Transport::Nccl(communicator) => unsafe { communicator.all_reduce(operands, stream) },
            Transport::Host(buffer) => {
                let failed = |error: cudarc::driver::DriverError| format!("copying sums over ranks failed: {error:?}");
                stream.wait().map_err(failed)?;
                let buffer = lock(buffer);
                // SAFETY: pinned and zeroed with this size, and locked.
                let numbers = unsafe { std::slice::from_raw_parts_mut(buffer.start.cast::<f32>(), HOST_BUFFER.get() / 4) };
                for Operands { from, to, count } in operands {
                    for at in (0..*count).step_by(numbers.len()) {
                        let (numbers, offset) = (&mut numbers[..(count - at).min(HOST_BUFFER.get() / 4)], 4 * at as u64);
                        // SAFETY: the range is that of an operand, and the stream is idle.
                        unsafe { result::memcpy_dtoh_sync(numbers, from + offset) }.map_err(failed)?;
                        self.group.all_reduce((&mut *numbers).into(), Reduction::Sum).map_err(|error| error.to_string())?;
                        // SAFETY: as above.
                        unsafe { result::memcpy_htod_sync(to + offset, numbers) }.map_err(failed)?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Sums numbers over all ranks, of which each rank gets its block.
    ///
    /// # Errors
    /// If another rank does not take part.
    ///
    /// # Safety
    /// As for [`all_reduce`](Exchange::all_reduce), but an input has a block of `count` floats per rank, and overlaps
    /// no output.
    pub unsafe fn reduce_scatter(&self, operands: &[Operands], stream: &Stream) -> Result<(), String> {
        let sum = |blocks: &mut [f32], own: &mut [f32]| self.group.reduce_scatter((&*blocks).into(), own.into(), Reduction::Sum);
        match &self.transport {
            // SAFETY: guaranteed by the caller.
            Transport::Nccl(communicator) => unsafe { communicator.reduce_scatter(operands, stream) },
            // SAFETY: guaranteed by the caller.
            Transport::Host(buffer) => unsafe { self.in_blocks(buffer, operands, stream, Direction::ToOwn, sum) },
        }
    }

    /// Copies the blocks of all ranks to all of them.
    ///
    /// # Errors
    /// If another rank does not take part.
    ///
    /// # Safety
    /// As for [`all_reduce`](Exchange::all_reduce), but an output has a block of `count` floats per rank, and overlaps
    /// no input.
    pub unsafe fn all_gather(&self, operands: &[Operands], stream: &Stream) -> Result<(), String> {
        let gather = |blocks: &mut [f32], own: &mut [f32]| self.group.all_gather((&*own).into(), blocks.into());
        match &self.transport {
            // SAFETY: guaranteed by the caller.
            Transport::Nccl(communicator) => unsafe { communicator.all_gather(operands, stream) },
            // SAFETY: guaranteed by the caller.
            Transport::Host(buffer) => unsafe { self.in_blocks(buffer, operands, stream, Direction::FromOwn, gather) },
        }
    }

    /// Exchanges blocks through host memory, as much of each rank's block at a time as fits there.
    ///
    /// # Safety
    /// The addresses are those of device memory: of a block of `count` floats per rank, and of one.
    unsafe fn in_blocks(
        &self,
        buffer: &Mutex<PinnedBuffer>,
        operands: &[Operands],
        stream: &Stream,
        direction: Direction,
        mut exchange: impl FnMut(&mut [f32], &mut [f32]) -> plimsoll_comm::Result<()>,
    ) -> Result<(), String> {
        let failed = |error: cudarc::driver::DriverError| format!("copying blocks of ranks failed: {error:?}");
        stream.wait().map_err(failed)?;
        let buffer = lock(buffer);
        let ranks = self.ranks();
        let most = HOST_BUFFER.get() / 4 / (ranks + 1);
        if most == 0 {
            return Err(format!("{HOST_BUFFER} of host memory are too few for blocks of {ranks} ranks"));
        }
        // SAFETY: pinned and zeroed with this size, and locked.
        let numbers = unsafe { std::slice::from_raw_parts_mut(buffer.start.cast::<f32>(), HOST_BUFFER.get() / 4) };
        for Operands { from, to, count } in operands.iter().copied() {
            let block_at = |rank: usize, at: usize| 4 * (rank * count + at) as u64;
            for at in (0..count).step_by(most) {
                let length = most.min(count - at);
                let (blocks, rest) = numbers.split_at_mut(ranks * length);
                let own = &mut rest[..length];
                // SAFETY: the ranges are those of operands, and the stream is idle.
                unsafe {
                    match direction {
                        Direction::ToOwn => {
                            for (rank, block) in blocks.chunks_exact_mut(length).enumerate() {
                                result::memcpy_dtoh_sync(block, from + block_at(rank, at)).map_err(failed)?;
                            }
                        }
                        Direction::FromOwn => result::memcpy_dtoh_sync(own, from + 4 * at as u64).map_err(failed)?,
                    }
                }
                exchange(blocks, own).map_err(|error| error.to_string())?;
                // SAFETY: as above.
                unsafe {
                    match direction {
                        Direction::ToOwn => result::memcpy_htod_sync(to + 4 * at as u64, own).map_err(failed)?,
                        Direction::FromOwn => {
                            for (rank, block) in blocks.chunks_exact(length).enumerate() {
                                result::memcpy_htod_sync(to + block_at(rank, at), block).map_err(failed)?;
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits until an event of a run with collectives has occurred. NCCL's kernels wait for other ranks on the GPU,
    /// where nothing ends them if a rank is gone.
    ///
    /// # Errors
    /// If NCCL reports an error, or another rank does not take part in time. NCCL is ended then.
    pub fn wait(&self, event: &Event) -> Result<(), Waited> {
        let Transport::Nccl(communicator) = &self.transport else { return event.wait().map_err(Waited::Driver) };
        let start = Instant::now();
        let mut looked = start;
        loop {
            if event.has_occurred().map_err(Waited::Driver)? {
                return Ok(());
            }
            let now = Instant::now();
            if now.duration_since(looked) > LOOK {
                looked = now;
                let late = || {
                    let waited = now.duration_since(start) > self.timeout;
                    waited.then(|| format!("a rank did not take part within {} s", self.timeout.as_secs()))
                };
                if let Some(what) = communicator.error().or_else(late) {
                    communicator.abort();
                    return Err(Waited::Ranks(self.in_words(&what)));
                }
            }
            if now.duration_since(start) > EAGER {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn in_words(&self, what: &str) -> String {
        format!(
            "rank {} of {}: sums over ranks through NCCL failed: {what}; look for an earlier error of another rank, then start the run \
             again with --resume",
            self.group.rank(),
            self.ranks()
        )
    }
}

/// What ended a wait.
pub(crate) enum Waited {
    Driver(cudarc::driver::DriverError),
    Ranks(String),
}

/// The result of every rank's own work, or the error of the first that failed, on all of them.
pub(crate) fn agreed<T>(group: &dyn Group, own: Result<T, String>) -> Result<T, String> {
    let failed = |error: plimsoll_comm::CommError| error.to_string();
    let size = group.size() as u64;
    let mut first = [if own.is_err() { group.rank() as u64 } else { size }];
    group.all_reduce((&mut first[..]).into(), Reduction::Min).map_err(failed)?;
    if first[0] == size {
        return own;
    }
    let mut text = own.err().unwrap_or_default().into_bytes();
    let mut length = [text.len() as u64];
    group.broadcast((&mut length[..]).into(), first[0] as usize).map_err(failed)?;
    text.resize(length[0] as usize, 0);
    group.broadcast((&mut text[..]).into(), first[0] as usize).map_err(failed)?;
    Err(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_comm::threads::ThreadGroup;

    #[test]
    fn all_ranks_fail_with_the_error_of_the_first() {
        let groups = ThreadGroup::new(3, Duration::from_secs(60));
        let errors: Vec<String> = std::thread::scope(|scope| {
            let start = |group: ThreadGroup| {
                scope.spawn(move || {
                    assert_eq!(agreed(&group, Ok(7)), Ok(7));
                    let own = if group.rank() == 0 { Ok(()) } else { Err(format!("rank {} has no NCCL", group.rank())) };
                    agreed(&group, own).unwrap_err()
                })
            };
            let threads: Vec<_> = groups.into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(errors, vec!["rank 1 has no NCCL"; 3]);
    }
}
