//! The error type: what happened, to what, and what to do.

use crate::allow::UnknownPermission;
use crate::infeasible::{Infeasible, PipelineInfeasible, PlanningInfeasible};
use plimsoll_comm::{CommError, LaunchError};
use plimsoll_core::budget::ParseBytesError;
use plimsoll_core::device::DeviceError;
use plimsoll_core::plan::CheckError;
use plimsoll_core::{GraphError, LedgerError};
use plimsoll_data::{DataError, Dataset};
use std::path::PathBuf;

/// An error of the library.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid configuration.
    #[error("{0}")]
    Config(String),
    /// A number of bytes that cannot be read.
    #[error(transparent)]
    Bytes(#[from] ParseBytesError),
    /// A model that cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// Data that cannot be read.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The run does not fit its memory budget.
    #[error(transparent)]
    Infeasible(#[from] Box<Infeasible>),
    /// Planning the run takes more memory than is free.
    #[error(transparent)]
    PlanningInfeasible(#[from] PlanningInfeasible),
    /// A pipeline by itself does not fit its memory budget.
    #[error(transparent)]
    PipelineInfeasible(#[from] Box<PipelineInfeasible>),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A reservation beyond the budget: the plan was wrong, which is a bug.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
    /// The plan did not pass the independent checker, which is a bug.
    #[error("{0}; this is a bug in the planner, please report it")]
    Plan(#[from] CheckError),
    /// A loss that is not finite.
    #[error(
        "the loss became {loss} in step {step} (epoch {epoch}); the first non-finite tensor is {tensor}{}. \
         Try a smaller learning rate, or check the data",
        .row.as_ref().map(|row| format!(", {row}")).unwrap_or_default()
    )]
    NonFinite {
        /// The loss, as text.
        loss: String,
        /// The step, counted from 1.
        step: u64,
        /// The epoch, counted from 1.
        epoch: u64,
        /// Which tensor.
        tensor: String,
        /// The row, if the tensor is a column of the data.
        row: Option<BadRow>,
    },
    /// A label outside the classes of the model.
    #[error("{row} has the label {value}, but the model has {classes} classes (0 to {}); {}", .classes - 1, label_advice(*.value))]
    Label {
        /// The row.
        row: BadRow,
        /// The label.
        value: i32,
        /// The number of classes.
        classes: usize,
    },
    /// A token ID outside the vocabulary of an embedding.
    #[error("{row} has the token ID {value} in its column `{column}`, but the embedding has a vocabulary of {known} (0 to {}); correct the data or increase the vocabulary", .known - 1)]
    Token {
        /// The row.
        row: BadRow,
        /// The column.
        column: String,
        /// The token.
        value: i32,
        /// The vocabulary size.
        known: usize,
    },
    /// The variables of launchers do not say which rank this is.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Ranks could not exchange what they need.
    #[error(transparent)]
    Communication(#[from] CommError),
    /// Another rank failed, or this one, and all of them end.
    #[error("on rank {rank} of {size}: {error}")]
    OfRank {
        /// The first rank that failed.
        rank: usize,
        /// The number of ranks.
        size: usize,
        /// Its error.
        error: String,
        /// Whether the run does not fit its memory budget there.
        infeasible: bool,
    },
    /// A file or folder that cannot be used.
    #[error("cannot {action} {}: {source}", .path.display())]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
}

/// The row that an error is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Its position in the epoch, counted from 0.
    pub place: u64,
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Its index in the source, and its name there, such as a file and a line, for indexed sources.
    pub origin: Option<(u64, String)>,
}

impl std::fmt::Display for BadRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BadRow { place, epoch, origin } = self;
        match origin {
            Some((row, name)) if row == place => write!(f, "{name}"),
            Some((_, name)) => write!(f, "{name} (row {place} of epoch {epoch})"),
            None => write!(f, "row {place} of epoch {epoch}"),
        }
    }
}

/// What to do about a label outside the classes.
fn label_advice(value: i32) -> &'static str {
    match value {
        // White, the usual value of the foreground.
        255 => {
            "masks whose pixels are not class indices, such as 0 and 255, need their values in `data.values`, such as [0, 255]; for other \
             data, correct the label or increase the number of outputs"
        }
        _ => "correct the data or increase the number of outputs",
    }
}

impl Error {
    /// Whether the run does not fit its memory budget.
    pub fn is_infeasible(&self) -> bool {
        let refused = matches!(self, Error::Infeasible(_) | Error::PlanningInfeasible(_) | Error::PipelineInfeasible(_));
        refused || matches!(self, Error::OfRank { infeasible: true, .. })
    }

    /// The same error with the origin of its row, if it is about a row of this data.
    pub(crate) fn located(mut self, data: &Dataset) -> Error {
        if let Error::Label { row, .. } | Error::Token { row, .. } | Error::NonFinite { row: Some(row), .. } = &mut self {
            let origin = data.origin(row.epoch - 1, row.place);
            row.origin = origin.and_then(|(index, _)| Some((index, data.row_name(index)?)));
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
