//! The graphs of a run: the training step in its variants, evaluation and prediction, from one model.

mod programs;
mod training;
#[cfg(test)]
mod update_tests;
mod variants;

pub(crate) use programs::{
    GAPS_OF_SEARCH, LOSS_WEIGHT, MAX_COLUMNS, PENALTY_SHARE, PlanSpace, PlannedRun, ProgramInterface, Programs, ROW_SHARE,
    SMALLEST_OFFLOADED, ValueKind, input_columns, nodes,
};
pub(crate) use variants::{Variant, Variants};
