//! Input pipelines whose batches are assembled in the memory the device copies from.

use crate::error::Result;
use plimsoll_core::budget::give_back_program_pages;
use plimsoll_core::device::Device;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{AlignedBuf, DataError, Dataset, Feed, Options, PipelinePlan, SlotMemory};

/// Starts a planned pipeline. Its slots are in pinned memory if the device has any.
pub(crate) fn start(data: &Dataset, plan: &PipelinePlan, ledger: &Ledger, options: Options, device: &dyn Device) -> Result<Feed> {
    let mut slot = |bytes: Bytes| -> Result<Box<dyn SlotMemory>, DataError> {
        let own = device.slot_memory(bytes).map_err(|error| DataError::Stage(error.to_string()))?;
        Ok(own.unwrap_or_else(|| Box::new(AlignedBuf::new(bytes.get()))))
    };
    let feed = Feed::start_in(data, plan, ledger, options, &mut slot)?;
    // The code that opened the run does not stay resident beside the code that runs it.
    give_back_program_pages();
    Ok(feed)
}
