//! The training programs of a forward graph: backward pass, gradient clipping, optimizer update, pruning masks and
//! weight average.

use crate::prune::PrunedWeight;
use crate::spec::Optimization;
use plimsoll_core::data_parallel::DataParallel;
use plimsoll_core::fixed_order::FixedOrder;
use plimsoll_core::graph::{Graph, GraphError, StateId};
use plimsoll_core::pruning::zero_where_pruned;
use plimsoll_core::sharding::Sharding;
use plimsoll_core::step::{GradientsRule, Role, Training, training_programs_with};
use plimsoll_core::{Bytes, ValueId};

/// Gradients that are summed over ranks at a time, at least: as much as a communicator's buffer holds.
const BUCKET: Bytes = Bytes::mib(1);

/// How parameters are updated.
#[derive(Clone, Copy)]
pub(crate) struct Update<'a> {
    pub optimization: &'a Optimization,
    /// The weights that have a mask.
    pub pruned: &'a [PrunedWeight],
    /// Ranks that gradients are summed over.
    pub ranks: usize,
    /// The order of sums over micro-batches and ranks, if it is fixed.
    pub order: Option<FixedOrder>,
    /// What is divided over ranks.
    pub sharding: Option<Sharding>,
}

/// The training programs of a forward graph, with or without the variants that accumulate gradients over micro-batches.
/// `resumes`: whether the device's sums over rows resume from those of earlier micro-batches.
pub(crate) fn training_programs(
    update: Update<'_>,
    forward: &Graph,
    loss: ValueId,
    divisor: Option<ValueId>,
    accumulate: bool,
    resumes: bool,
) -> Result<Vec<(Role, Graph)>, GraphError> {
    let Update { optimization, pruned, ranks, order, sharding } = update;
    let local = optimization.clip.filter(|clip| clip.is_local());
    let rule = |g: &mut Graph, parameter: StateId, gradient: ValueId| {
        let gradient = local.map_or(Ok(gradient), |clip| clip.one(g, gradient))?;
        let mask = pruned.iter().find(|weight| weight.name == g.states()[parameter.0 as usize].name);
        let mask = mask.map(|weight| weight.declare_mask(g)).transpose()?;
        optimization.optimizer.update(g, parameter, gradient)?;
        if let Some(mask) = mask {
            zero_where_pruned(g, parameter, mask)?;
        }
        let average = optimization.average.map_or(Ok(None), |average| average.follow(g, parameter))?;
        average.zip(mask).map_or(Ok(()), |(average, mask)| zero_where_pruned(g, average, mask))
    };
    let global = optimization.clip.filter(|clip| !clip.is_local()).map(|clip| move |g: &mut Graph, all: &[ValueId]| clip.all(g, all));
    let gradients = global.as_ref().map(|rule| rule as &GradientsRule<'_>);
    let data_parallel = (ranks > 1).then_some(DataParallel { ranks: ranks as u32, bucket: BUCKET });
    let training =
        Training { rule: &rule, gradients, divisor, scaling: optimization.loss_scaling(), resumes, data_parallel, order, sharding };
    training_programs_with(forward, loss, accumulate, &training)
}
