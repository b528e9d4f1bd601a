//! Why a file could not be read.

use std::fmt;
use std::io;

/// An error of a reader. Readers know no paths: callers add the file's name.
#[derive(Debug)]
pub enum FormatError {
    /// The system could not read or write.
    Io(io::Error),
    /// The bytes contradict the format: what, and where.
    Damaged(String),
    /// The file is valid but has something that is not read, by name.
    Unsupported(String),
}

/// The result of a reader.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

impl fmt::Display for FormatError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FormatError::Io(error) => write!(f, "{error}"),
            FormatError::Damaged(what) | FormatError::Unsupported(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for FormatError {}

impl From<io::Error> for FormatError {
    fn from(error: io::Error) -> FormatError {
        FormatError::Io(error)
    }
}

pub(crate) fn damaged<T>(what: impl Into<String>) -> Result<T> {
    Err(FormatError::Damaged(what.into()))
}

pub(crate) fn unsupported<T>(what: impl Into<String>) -> Result<T> {
    Err(FormatError::Unsupported(what.into()))
}
