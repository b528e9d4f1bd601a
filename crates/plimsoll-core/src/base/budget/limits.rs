//! The memory budgets of a run.

use super::{Bytes, ParseBytesError};

/// The budgets of host memory and of device memory. Without a number, the budget is the memory that is free.
///
/// ```
/// use plimsoll_core::{Budget, Bytes};
/// let budget = Budget::host("2GiB").unwrap().device("8GiB").unwrap();
/// assert_eq!(budget.host, Some(Bytes::gib(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// The budget of the process's resident memory.
    pub host: Option<Bytes>,
    /// The budget of device memory; unused on the CPU.
    pub device: Option<Bytes>,
}

impl Budget {
    /// A host budget from a size string.
    pub fn host(size: &str) -> Result<Budget, ParseBytesError> {
        Ok(Budget { host: Some(size.parse()?), device: None })
    }

    /// The same budget with a device budget.
    pub fn device(self, size: &str) -> Result<Budget, ParseBytesError> {
        Ok(Budget { device: Some(size.parse()?), ..self })
    }
}
