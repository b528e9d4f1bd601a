//! What a plan takes from the machine and the data, as it is in the file.

use super::untrue;
use crate::devices::OpenDevice;
use crate::error::Result;
use crate::plan::{DataSummary, DatasetSummary, RunPlan};
use crate::spec::{Count, RunSpec};
use plimsoll_core::Bytes;
use plimsoll_core::plan::Footprint;
use serde::{Deserialize, Serialize};

/// The assumptions of a plan. Those about the machine are compared where a run starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Stated {
    /// Resident memory of the process before a run; none where only weights and activations count.
    pub process_bytes: Option<u64>,
    /// Threads of a device that computes on the host; workspaces depend on it.
    pub threads: Option<usize>,
    /// Stacks of these threads.
    pub thread_stacks_bytes: u64,
    /// Ranks that train together, which a launcher starts.
    pub ranks: usize,
    /// Buffers and libraries of communication with other ranks, as they were measured at start.
    pub communication_bytes: u64,
    /// The same on the device.
    pub device_communication_bytes: u64,
    /// The device runtime, such as the CUDA context, if there is one.
    pub runtime: Option<Runtime>,
    /// Free memory, where that is the budget.
    pub free_host_bytes: Option<u64>,
    /// Free device memory, where that is the budget.
    pub free_device_bytes: Option<u64>,
    /// The data.
    pub data: AssumedData,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Runtime {
    pub host_bytes: u64,
    pub device_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AssumedData {
    pub training: DatasetRows,
    pub validation: Option<DatasetRows>,
}

/// What the memory of a dataset depends on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct DatasetRows {
    /// Rows of an epoch at most.
    pub rows: u64,
    /// Whether an epoch has exactly that many, so that micro-batches can be fed one by one.
    pub known_length: bool,
    /// Bytes of a row; of the largest if rows differ.
    pub row_bytes: u64,
}

impl Stated {
    /// Those of a plan.
    pub fn of(plan: &RunPlan, data: &DataSummary) -> Stated {
        let (assumed, everything) = (&plan.assumptions, plan.count == Count::Everything);
        let has_runtime = everything && plan.device_memory.is_some();
        let runtime = Runtime { host_bytes: assumed.runtime.host.0, device_bytes: assumed.runtime.device.0 };
        Stated {
            process_bytes: everything.then_some(assumed.process.0),
            threads: assumed.threads,
            thread_stacks_bytes: assumed.thread_stacks.0,
            ranks: plan.ranks,
            communication_bytes: assumed.communication.0,
            device_communication_bytes: assumed.communication_on_device.0,
            runtime: has_runtime.then_some(runtime),
            free_host_bytes: assumed.free_host.map(|bytes| bytes.0),
            free_device_bytes: assumed.free_device.filter(|_| has_runtime).map(|bytes| bytes.0),
            data: AssumedData { training: DatasetRows::of(&data.training), validation: data.validation.as_ref().map(DatasetRows::of) },
        }
    }

    /// Verifies what can be recomputed, and that nothing is assumed that is not.
    pub fn verify(&self, spec: &RunSpec, data: &DataSummary, opened: &OpenDevice, footprint: &Footprint) -> Result<()> {
        let wrong = |what: String| Err(untrue(format!("its assumptions state {what}")));
        let everything = spec.count == Count::Everything;
        let own_memory = everything && !opened.device.capabilities().shares_host_memory;
        if self.process_bytes.is_some() != everything {
            return wrong("the memory of a process where it does not count, or none where it does".to_string());
        }
        if (self.threads, self.thread_stacks_bytes) != (opened.threads, opened.thread_stacks.0) {
            let (stated, found) = (self.thread_stacks_bytes, opened.thread_stacks.0);
            return wrong(format!("{stated} bytes of stacks for {:?} threads, but that is {found} for {:?}", self.threads, opened.threads));
        }
        if self.device_communication_bytes > 0 && (!own_memory || self.ranks == 1) {
            let bytes = self.device_communication_bytes;
            return wrong(format!("{bytes} bytes of communication on the device, where there is none"));
        }
        if self.communication_bytes > 0 && self.ranks == 1 {
            return wrong(format!("{} bytes of communication, but a single rank has none", self.communication_bytes));
        }
        if self.free_host_bytes.is_some() != spec.budget.host.is_none() {
            return wrong("free host memory where a budget is given, or none where it is the budget".to_string());
        }
        if self.free_device_bytes.is_some() != (own_memory && spec.budget.device.is_none()) {
            return wrong("free device memory where that is not the budget, or none where it is".to_string());
        }
        let found = own_memory.then_some(Runtime { host_bytes: footprint.runtime.host.0, device_bytes: footprint.runtime.device.0 });
        // A stored profile is the same everywhere; a GPU measures its own, which the assumption has to cover.
        let stored = spec.device_profile.is_some();
        let covered = match (&self.runtime, &found) {
            (Some(stated), Some(found)) if !stored => stated.host_bytes >= found.host_bytes && stated.device_bytes >= found.device_bytes,
            (stated, found) => stated == found,
        };
        if !covered {
            return wrong(format!("{:?} for the device runtime, which takes {found:?}", self.runtime));
        }
        if let (true, Some(stated), Some(memory)) = (stored, self.free_device_bytes, opened.device.memory_info())
            && Bytes(stated) != memory.available
        {
            return wrong(format!("{stated} bytes of free device memory, but the profile has {}", memory.available.0));
        }
        let found = AssumedData { training: DatasetRows::of(&data.training), validation: data.validation.as_ref().map(DatasetRows::of) };
        if self.data != found {
            return wrong(format!("{:?}, but the data has {found:?}; write a new plan file", self.data));
        }
        Ok(())
    }
}

impl DatasetRows {
    fn of(data: &DatasetSummary) -> DatasetRows {
        DatasetRows { rows: data.max_rows, known_length: data.epoch_rows.is_some(), row_bytes: data.row_bytes.0 }
    }
}
