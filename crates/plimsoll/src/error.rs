//! What can go wrong, for people: what happened, to what, and what to do.

use crate::allow::UnknownPermission;
use crate::infeasible::{Infeasible, PipelineInfeasible};
use plimsoll_core::device::DeviceError;
use plimsoll_core::plan::CheckError;
use plimsoll_core::{GraphError, LedgerError};
use plimsoll_data::{DataError, Dataset};
use std::path::PathBuf;

/// An error of the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A configuration that cannot be understood.
    #[error("{0}")]
    Config(String),
    /// A model that cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Data that cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run does not fit its memory budget.
    #[error(transparent)]
    Infeasible(#[from] Box<Infeasible>),
    /// A pipeline by itself does not fit its memory budget.
    #[error(transparent)]
    PipelineInfeasible(#[from] Box<PipelineInfeasible>),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A reservation over the line: the plan was wrong, which is a bug.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The plan did not pass the independent checker, which is a bug.
    #[error("{0}; this is a bug in the planner, please report it")]
    Plan(#[from] CheckError),
    /// Training went out of bounds.
    #[error(
        "the loss became {loss} in step {step} (epoch {epoch}); the first tensor that was not finite: {tensor}. \
         Try a smaller learning rate, or look at the data"
    )]
    NonFinite {
        /// The loss, in words.
        loss: String,
        /// The step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// Which tensor.
        tensor: String,
    },
    /// A label that names no class.
    #[error("{row} has the label {value}, but the model tells {classes} classes apart (0 to {}); correct the data or give the model more outputs", .classes - 1)]
    Label {
        /// The row.
        row: BadRow,
        /// The label.
        value: i32,
        /// How many classes there are.
        classes: usize,
    },
    /// A token that an embedding has no row for.
    #[error("{row} has the number {value} in its column `{column}`, but the model's embedding has {known} rows (0 to {}); correct the data or raise the vocabulary", .known - 1)]
    Token {
        /// The row.
        row: BadRow,
        /// The column.
        column: String,
        /// The token.
        value: i32,
        /// How many there are.
        known: usize,
    },
    /// A file or folder that cannot be used.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On which path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

/// A row that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Its place in the epoch, counted from 0.
    pub place: u64,
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Its number in the source, and the source, where rows have numbers.
    pub origin: Option<(u64, String)>,
}

impl std::fmt::Display for BadRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BadRow { place, epoch, origin } = self;
        match origin {
            Some((row, source)) if row == place => write!(f, "row {row} of {source}"),
            Some((row, source)) => write!(f, "row {row} of {source} (row {place} of epoch {epoch})"),
            None => write!(f, "row {place} of epoch {epoch}"),
        }
    }
}

impl Error {
    /// The same error with where a row came from, if it is about a row of this data.
    pub(crate) fn located(mut self, data: &Dataset) -> Error {
        if let Error::Label { row, .. } | Error::Token { row, .. } = &mut self {
            row.origin = data.origin(row.epoch - 1, row.place);
        }
        self
    }
}

impl From<UnknownPermission> for Error {
    fn from(error: UnknownPermission) -> Error {
        Error::Config(error.to_string())
    }
}

/// The library's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;
