//! The graphs of a run: the training step in its variants, evaluation and prediction, from one model.

mod learning;
mod programs;
mod variants;

pub(crate) use learning::Learning;
pub(crate) use programs::{Classes, LOSS_WEIGHT, MAX_COLUMNS, Of, Programs, ROW_SHARE};
pub(crate) use variants::{Variant, Variants};
