//! The two numbers a run is given.

use super::{Bytes, ParseBytesError};

/// What a run may use: bytes of host memory and bytes of device memory. Without a number, the library asks the system what there is.
///
/// ```
/// use plimsoll_core::{Budget, Bytes};
/// let budget = Budget::host("2GiB").unwrap().device("8GiB").unwrap();
/// assert_eq!(budget.host, Some(Bytes::gib(2)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budget {
    /// The budget of the process, as the operating system counts it.
    pub host: Option<Bytes>,
    /// The line for the device's memory; the CPU has none of its own.
    pub device: Option<Bytes>,
}

impl Budget {
    /// A line for host memory, written as people write sizes.
    pub fn host(size: &str) -> Result<Budget, ParseBytesError> {
        Ok(Budget { host: Some(size.parse()?), device: None })
    }

    /// The same budget with a line for device memory.
    pub fn device(self, size: &str) -> Result<Budget, ParseBytesError> {
        Ok(Budget { device: Some(size.parse()?), ..self })
    }
}
