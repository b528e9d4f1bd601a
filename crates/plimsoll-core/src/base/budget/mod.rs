//! Bytes as a type, the memory budgets of a run, and the ledger in which every byte has an owner.

mod bytes;
mod heap;
mod ledger;
mod limits;
mod owner;
mod program_pages;
mod slot;

pub use bytes::{Bytes, ParseBytesError};
pub use heap::{CountingAllocator, KeepFreedMemory, give_back_freed_memory, give_back_unused_memory, return_freed_memory_early};
pub use ledger::{Ledger, LedgerError, OwnerUsage, Reservation};
pub use limits::Budget;
pub use owner::{DeviceRuntime, Owner};
pub use program_pages::{FaultWindows, fault_windows, give_back_memory_of_phase, give_back_program_pages, program_pages};
pub use slot::SlotMemory;
