//! Bytes as a type, the memory budgets of a run, and the ledger in which every byte has an owner.

mod bytes;
mod heap;
mod ledger;
mod limits;
mod owner;
mod slot;

pub use bytes::{Bytes, ParseBytesError};
pub use heap::{CountingAllocator, give_back_freed_memory};
pub use ledger::{Ledger, LedgerError, OwnerUsage, Reservation};
pub use limits::Budget;
pub use owner::{DeviceRuntime, Owner};
pub use slot::SlotMemory;
