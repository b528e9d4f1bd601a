//! The machine a run is planned for, read once before planning.

use crate::cost::{Bandwidths, CostTable};
use crate::devices::{self, OpenDevice};
use crate::error::Result;
use crate::ranks::Ranks;
use crate::spec::RunSpec;
use crate::system;
use plimsoll_core::device::Device;
use plimsoll_core::plan::{CopyRate, CostModel, Overhead};
use plimsoll_core::{Budget, Bytes};
use std::sync::Arc;

/// What communication is assumed to take where no rank has been started: more than the 9 to 17 MiB that Open MPI 4 and
/// 5 and MPICH 5 were measured to take on two and four ranks of one machine (`communication` of
/// `plimsoll train --json`).
const ASSUMED_COMMUNICATION: Bytes = Bytes::mib(24);

/// The same on the GPU of each rank, for NCCL; not measured with several GPUs yet.
const ASSUMED_ON_DEVICE: Bytes = Bytes::mib(768);

/// The planner's view of the machine: an opened device, free memory, and predicted times. A value: planning reads
/// nothing else.
#[derive(Clone)]
pub struct Machine {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) cost_model: Arc<dyn CostModel>,
    pub(crate) copy_rate: CopyRate,
    /// Whether times are predicted from measurements of the device, or from built-in rates.
    pub measured: bool,
    /// Total host memory that this process can use.
    pub free_host: Bytes,
    /// Free device memory, if the device has its own.
    pub free_device: Option<Bytes>,
    /// Resident memory of the process before a run: code, libraries, stack and untracked heap.
    pub process: Bytes,
    /// Threads of a device that computes on the host; none for a GPU.
    pub threads: Option<usize>,
    /// Stacks of the device's threads.
    pub thread_stacks: Bytes,
    /// What communication with other ranks takes.
    pub communication: Bytes,
    /// What it takes of the device's own memory.
    pub communication_on_device: Bytes,
}

/// The numbers of a plan that come from the machine it was made on, and cannot be recomputed elsewhere. Plan files list
/// them, and a run compares them with its own before it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assumptions {
    /// Resident memory of the process before a run.
    pub process: Bytes,
    /// Threads of a device that computes on the host; none for a GPU.
    pub threads: Option<usize>,
    /// Stacks of these threads.
    pub thread_stacks: Bytes,
    /// Buffers and libraries of communication with other ranks.
    pub communication: Bytes,
    /// The same on the device.
    pub communication_on_device: Bytes,
    /// Memory of the device runtime, such as the CUDA context.
    pub runtime: Overhead,
    /// Free host memory, where no budget was given.
    pub free_host: Option<Bytes>,
    /// Free device memory, where the device has its own and no budget was given.
    pub free_device: Option<Bytes>,
}

impl Machine {
    /// Opens the device of a run and reads the free memory.
    pub fn open(spec: &RunSpec) -> Result<Machine> {
        // Measured before libraries are loaded, which are not part of the process footprint.
        system::process_footprint();
        Ok(Machine::read(&devices::open(spec.device, spec.threads, spec.device_profile.as_deref(), spec.algorithms)?, spec.costs.as_ref()))
    }

    /// Reads the free memory for an opened device.
    pub(crate) fn read(opened: &OpenDevice, costs: Option<&Arc<CostTable>>) -> Machine {
        let device = Arc::clone(&opened.device);
        let bandwidths = costs.map_or_else(Bandwidths::default, |costs| costs.transfers);
        Machine {
            cost_model: costs.map_or_else(|| device.cost_model(), |costs| Arc::clone(costs) as Arc<dyn CostModel>),
            copy_rate: bandwidths.offload(&*device),
            measured: costs.is_some(),
            free_host: system::available_memory(),
            free_device: device.memory_info().map(|memory| Bytes(memory.available.0 / opened.sharing as u64)),
            process: system::process_footprint(),
            threads: opened.threads,
            thread_stacks: opened.thread_stacks,
            communication: opened.communication.host,
            communication_on_device: opened.communication.device,
            device,
        }
    }

    /// The same of some ranks, of which none has been started: what communication takes is not measured then.
    pub(crate) fn of_ranks(self, ranks: usize) -> Machine {
        if ranks <= 1 {
            return self;
        }
        let shares_host_memory = self.device.capabilities().shares_host_memory;
        let communication_on_device = if shares_host_memory { Bytes::ZERO } else { ASSUMED_ON_DEVICE };
        Machine { communication: ASSUMED_COMMUNICATION, communication_on_device, ..self }
    }

    /// The same as all ranks see it, so that they make the same plan: the largest of what they take, and the smallest
    /// of what is free. Memory that no budget divides is shared by the ranks of a machine.
    pub(crate) fn shared_by(self, ranks: &Ranks) -> Result<Machine> {
        let communication = ranks.owned_bytes() + self.communication;
        let most = ranks.most([self.process.0, self.thread_stacks.0, communication.0, self.communication_on_device.0])?;
        let [process, thread_stacks, communication, communication_on_device] = most.map(Bytes);
        let free_device = self.free_device.map_or(u64::MAX, |free| free.0);
        let [free_host, free_device] = ranks.least([system::available_to_rank(ranks.here() as u64).0, free_device])?.map(Bytes);
        let free_device = self.free_device.map(|_| free_device);
        Ok(Machine { process, thread_stacks, communication, communication_on_device, free_host, free_device, ..self })
    }

    /// The same with what the process takes now: libraries may have been loaded since the plan was made. Those that a
    /// GPU loads are part of its runtime, and those of communication, which have `mapped` bytes, of that.
    pub(crate) fn at_start(mut self, mapped: Bytes) -> Machine {
        if self.device.capabilities().shares_host_memory {
            let now = system::footprint_now();
            self.process = self.process.max(now - mapped.min(now));
        }
        self
    }

    /// What a plan with these budgets takes from this machine.
    pub(crate) fn assumptions(&self, given: Budget, runtime: Overhead) -> Assumptions {
        Assumptions {
            process: self.process,
            threads: self.threads,
            thread_stacks: self.thread_stacks,
            communication: self.communication,
            communication_on_device: self.communication_on_device,
            runtime,
            free_host: given.host.is_none().then_some(self.free_host),
            free_device: if given.device.is_none() { self.free_device } else { None },
        }
    }

    /// The budgets of a run: those given, otherwise the free memory.
    pub(crate) fn budgets(&self, given: Budget) -> Budgets {
        Budgets { host: given.host.unwrap_or(self.free_host), device: given.device.or(self.free_device).unwrap_or_default() }
    }
}

/// The memory budgets of a run, resolved.
#[derive(Clone, Copy)]
pub(crate) struct Budgets {
    pub host: Bytes,
    pub device: Bytes,
}

impl Budgets {
    /// Budgets that nothing fits.
    pub const NONE: Budgets = Budgets { host: Bytes::ZERO, device: Bytes::ZERO };
}
