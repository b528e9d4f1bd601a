//! Graphs, plans and budgets: everything about a training step that can be known before it runs.

pub mod budget;
pub mod dtype;

pub use budget::{Bytes, Ledger, LedgerError, Reservation};
pub use dtype::DType;
