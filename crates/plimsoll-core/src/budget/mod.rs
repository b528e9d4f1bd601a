//! Bytes as a type, and the ledger in which every byte has an owner.

mod bytes;
mod ledger;

pub use bytes::{Bytes, ParseBytesError};
pub use ledger::{Ledger, LedgerError, Owner, Reservation};
