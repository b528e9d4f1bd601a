//! The input pipelines of a plan.

use super::DataSummary;
use plimsoll_core::Bytes;
use plimsoll_data::{DataError, Dataset, PipelinePlan};

/// The stage of a plan that stands for [`DataSummary::names`].
pub(crate) const NAMES: &str = "names in checkpoints and weights";

pub(super) struct Pipelines {
    pub training: PipelinePlan,
    pub validation: Option<PipelinePlan>,
    pub stages: Vec<(String, Bytes)>,
    pub minimum: Bytes,
}

impl Pipelines {
    pub fn total(&self) -> Bytes {
        self.stages.iter().map(|(_, size)| *size).sum()
    }
}

/// The pipelines in the rest of the host budget; without a limit, at their minimum.
pub(super) fn pipelines(data: &DataSummary, feed_rows: usize, left: Option<Bytes>) -> Result<Pipelines, DataError> {
    let training = data.training.dataset.clone().rebatch(feed_rows);
    let validation = data.validation.as_ref().map(|data| data.dataset.clone().rebatch(feed_rows));
    let minimum = |data: &Dataset| data.plan(None).map(|plan| plan.minimum());
    let for_validation = validation.as_ref().map(&minimum).transpose()?;
    let least = minimum(&training)? + for_validation.unwrap_or_default();
    let left = left.map_or(least, |left| left.saturating_sub(data.names));
    // Validation is short: it gets its minimum plus a quarter of the rest.
    let spare = Bytes(left.saturating_sub(least).0 / 4);
    let validation = validation.zip(for_validation).map(|(data, least)| data.plan(Some(least + spare))).transpose()?;
    let taken = validation.as_ref().map_or(Bytes::ZERO, PipelinePlan::total);
    let training = training.plan(Some(left - taken))?;
    let name =
        |prefix: &str, stages: &[(String, Bytes)]| stages.iter().map(|(name, size)| (format!("{prefix}{name}"), *size)).collect::<Vec<_>>();
    let mut stages = name("", training.stages());
    stages.extend(validation.iter().flat_map(|plan| name("validation ", plan.stages())));
    if data.names > Bytes::ZERO {
        stages.push((NAMES.to_string(), data.names));
    }
    Ok(Pipelines { training, validation, stages, minimum: least + data.names })
}
