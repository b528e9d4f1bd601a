//! The input pipelines of a statement. What a stage holds for a limit is a formula of the data crate, by which the feed
//! also allocates; which limit each pipeline has is derived here.

use super::untrue;
use crate::error::Result;
use crate::plan::{DataSummary, NAMES};
use plimsoll_core::Bytes;
use plimsoll_data::{Dataset, PipelinePlan};

/// The minimum of the pipelines for batches of this many rows.
pub(super) fn minimum(data: &DataSummary, rows: usize) -> Result<u64> {
    let training = smallest(&data.training.dataset, rows)?;
    let validation = data.validation.as_ref().map(|data| smallest(&data.dataset, rows)).transpose()?;
    let pipelines = training.checked_add(validation.unwrap_or(0));
    pipelines.and_then(|bytes| bytes.checked_add(data.names.0)).ok_or_else(|| untrue("its input pipelines take more than there is"))
}

/// The stages of the pipelines in the rest of a budget, in bytes; without one, at their minimum. Validation has its
/// minimum and a quarter of what both leave.
pub(super) fn stages(data: &DataSummary, rows: usize, rest: Option<u64>) -> Result<Vec<(String, u64)>> {
    let minimum = minimum(data, rows)?;
    let rest = rest.unwrap_or(minimum);
    let Some(spare) = rest.checked_sub(minimum) else {
        return Err(untrue(format!("its budget leaves {rest} bytes for the input pipelines, which take {minimum}")));
    };
    let validation = match &data.validation {
        None => None,
        Some(validation) => Some(within(&validation.dataset, rows, smallest(&validation.dataset, rows)? + spare / 4)?),
    };
    let taken = validation.as_ref().map_or(0, |plan| plan.total().0);
    let training = within(&data.training.dataset, rows, rest.saturating_sub(taken).saturating_sub(data.names.0))?;
    let mut stages: Vec<(String, u64)> = training.stages().iter().map(|(name, size)| (name.clone(), size.0)).collect();
    let held_out = validation.iter().flat_map(|plan| plan.stages());
    stages.extend(held_out.map(|(name, size)| (format!("validation {name}"), size.0)));
    if data.names > Bytes::ZERO {
        stages.push((NAMES.to_string(), data.names.0));
    }
    Ok(stages)
}

fn smallest(data: &Dataset, rows: usize) -> Result<u64> {
    Ok(data.clone().rebatch(rows).plan(None)?.minimum().0)
}

fn within(data: &Dataset, rows: usize, limit: u64) -> Result<PipelinePlan> {
    Ok(data.clone().rebatch(rows).plan(Some(Bytes(limit)))?)
}
