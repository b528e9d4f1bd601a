//! A GPU of one of several ranks: opened in turn with those that share it, and connected to the others.

use super::cuda::CudaDevice;
use super::overhead::{bus_name, resident};
use crate::libraries::driver::Event;
use crate::libraries::kernel_cache::KernelCache;
use crate::libraries::nccl::Operands;
use crate::libraries::probe;
use crate::runtime::exchange::{Exchange, HOST_BUFFER, Waited, agreed};
use cudarc::driver::result;
use plimsoll_comm::{Group, Reduction};
use plimsoll_core::Bytes;
use plimsoll_core::device::DeviceError;
use plimsoll_core::plan::Overhead;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Device memory that NCCL is given beyond what it was measured to take: what it allocates when a step is recorded.
const NCCL_RESERVE: Bytes = Bytes::mib(8);

/// Floats of the sum that makes NCCL allocate its buffers.
const FIRST_SUM: usize = 1 << 20;

/// A GPU of one of several ranks.
pub struct RankOnGpu {
    /// The device, with the group.
    pub device: CudaDevice,
    /// What exchanging numbers with other ranks takes, in this process and on its GPU: the largest of all ranks.
    pub communication: Overhead,
    /// The most ranks that share a GPU.
    pub sharing: usize,
}

impl CudaDevice {
    /// Opens the GPU of one rank of a group. All ranks call this at the same time. `machine` is a number that the ranks
    /// of one machine have in common.
    ///
    /// Numbers are exchanged through NCCL, as part of the CUDA graph of a step. Where ranks share a GPU, which NCCL
    /// does not support, or it is not to be used (`PLIMSOLL_CUDA_WITHOUT=nccl`), they pass through host memory and the
    /// group.
    ///
    /// # Errors
    /// On all ranks, with the error of the first that failed.
    pub fn open_of_rank(
        ordinal: usize,
        cache: Option<KernelCache>,
        group: &Arc<dyn Group>,
        machine: u64,
    ) -> Result<RankOnGpu, DeviceError> {
        let refuse = |what: String| DeviceError::Failed { device: format!("cuda:{ordinal}"), what };
        let own = gpu_id(ordinal, machine);
        let mut gpus = vec![0; group.size()];
        group.all_gather((&[own][..]).into(), (&mut gpus[..]).into()).map_err(|error| refuse(error.to_string()))?;
        let sharing = most_equal(&gpus);
        // One after the other: what a context takes is measured by what is free before and after.
        let turn = gpus[..group.rank()].iter().filter(|other| **other == own).count();
        let (mut opened, mut cache) = (None, Some(cache));
        for now in 0..sharing {
            if now == turn {
                opened = cache.take().map(|cache| CudaDevice::open(ordinal, cache));
            }
            group.barrier().map_err(|error| refuse(error.to_string()))?;
        }
        let opened = opened.expect("every rank has its turn");
        let mut device = agreed(&**group, opened.map_err(|error| error.to_string())).map_err(refuse)?;
        let mut taken = device.connect(group, sharing).map_err(refuse)?;
        // All ranks make the same plan, so that all of them assume the largest of what any of them takes.
        let overhead = device.overhead();
        let mut most = [overhead.device.0, overhead.host.0, taken.device.0, taken.host.0];
        group.all_reduce((&mut most[..]).into(), Reduction::Max).map_err(|error| refuse(error.to_string()))?;
        device.assume_overhead(Overhead { device: Bytes(most[0]), host: Bytes(most[1]) });
        taken = Overhead { device: Bytes(most[2]), host: Bytes(most[3]) };
        Ok(RankOnGpu { device, communication: taken, sharing })
    }

    /// Connects it to the other ranks, and returns what that takes.
    fn connect(&mut self, group: &Arc<dyn Group>, sharing: usize) -> Result<Overhead, String> {
        let context = Arc::clone(self.context());
        let failed = |error: cudarc::driver::DriverError| format!("connecting the ranks failed: {error:?}");
        context.bind().map_err(failed)?;
        let through_host = sharing > 1 || probe::is_unwanted(probe::NCCL);
        let any = agreed_any(&**group, through_host)?;
        if any {
            self.set_exchange(Exchange::host(&context, group)?);
            return Ok(Overhead { device: Bytes::ZERO, host: HOST_BUFFER });
        }
        let before = (context.free().map_err(failed)?, resident().unwrap_or_default());
        let exchange = Exchange::nccl(&context, group).map_err(|error| format!("{error}{}", nccl_advice()))?;
        self.first_sum(&exchange)?;
        let free = context.free().map_err(failed)?;
        let measured = before.0.saturating_sub(free);
        let device = measured.max(exchange.device_memory().unwrap_or_default()) + NCCL_RESERVE;
        let host = resident().unwrap_or_default().saturating_sub(before.1);
        self.set_exchange(exchange);
        Ok(Overhead { device: device.align_up(1 << 20), host: host.align_up(1 << 20) })
    }

    /// Sums some numbers over all ranks, for which NCCL connects them and allocates its buffers.
    fn first_sum(&self, exchange: &Exchange) -> Result<(), String> {
        let failed = |error: cudarc::driver::DriverError| format!("the first sum over ranks failed: {error:?}");
        // SAFETY: filled before it is read.
        let start = unsafe { result::malloc_sync(4 * FIRST_SUM) }.map_err(failed)?;
        let summed = || {
            // SAFETY: just allocated with this size.
            unsafe { result::memset_d8_sync(start, 0, 4 * FIRST_SUM) }.map_err(failed)?;
            let stream = self.compute_stream();
            // SAFETY: the memory is freed below, after the event has occurred.
            unsafe { exchange.all_reduce(&[Operands { from: start, to: start, count: FIRST_SUM }], stream) }?;
            let done = Event::new(self.context()).map_err(failed)?;
            done.record(stream).map_err(failed)?;
            exchange.wait(&done).map_err(|error| match error {
                Waited::Driver(error) => failed(error),
                Waited::Ranks(what) => what,
            })
        };
        let summed = summed();
        // SAFETY: allocated above and freed once; the stream has ended its work, or NCCL was ended.
        let freed = unsafe { result::free_sync(start) }.map_err(failed);
        summed.and(freed)
    }
}

/// What to do about an error of NCCL's start.
fn nccl_advice() -> &'static str {
    "; install NCCL 2.18 or newer (libnccl2) on every machine, or set PLIMSOLL_CUDA_WITHOUT=nccl to sum through host memory, which is slower"
}

/// Whether it is so on any rank.
fn agreed_any(group: &dyn Group, own: bool) -> Result<bool, String> {
    let mut any = [u64::from(own)];
    group.all_reduce((&mut any[..]).into(), Reduction::Max).map_err(|error| error.to_string())?;
    Ok(any[0] == 1)
}

/// A number that differs between GPUs of one machine and of several. Where the driver does not start, opening the GPU
/// says why.
fn gpu_id(ordinal: usize, machine: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    machine.hash(&mut hasher);
    match probe::count() {
        Ok(gpus) if ordinal < gpus => bus_name(ordinal).hash(&mut hasher),
        _ => ordinal.hash(&mut hasher),
    }
    hasher.finish()
}

/// How many of the most frequent number there are.
fn most_equal(numbers: &[u64]) -> usize {
    numbers.iter().map(|number| numbers.iter().filter(|other| *other == number).count()).max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_comm::threads::ThreadGroup;
    use std::time::Duration;

    #[test]
    fn ranks_that_share_a_gpu_are_counted() {
        assert_eq!(most_equal(&[1, 2, 3]), 1);
        assert_eq!(most_equal(&[7, 2, 7, 7]), 3);
    }

    #[test]
    fn without_a_gpu_all_ranks_get_the_error_of_the_first() {
        if probe::count().is_ok_and(|gpus| gpus > 0) {
            return println!("there is a GPU");
        }
        let errors: Vec<String> = std::thread::scope(|scope| {
            let start = |group: ThreadGroup| {
                scope.spawn(move || {
                    let group: Arc<dyn Group> = Arc::new(group);
                    CudaDevice::open_of_rank(0, None, &group, 1).err().map(|error| error.to_string()).unwrap_or_default()
                })
            };
            let threads: Vec<_> = ThreadGroup::new(2, Duration::from_secs(60)).into_iter().map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(errors[0].contains("CUDA") && errors[0] == errors[1], "{errors:?}");
    }
}
