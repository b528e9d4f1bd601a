//! What a run must be for several ranks to train it together.

use crate::allow::Permission;
use crate::error::{Error, Result};
use crate::graphs::Programs;
use crate::ranks::DataParallelism;
use crate::spec::RunSpec;
use plimsoll_core::graph::StateKind;
use plimsoll_core::plan::Capabilities;

/// Checks that a run has the same bits on any number of ranks.
pub(crate) fn check_reproducible(device: &Capabilities, programs: &Programs) -> Result<()> {
    let refuse = |what: String| Err(Error::Config(format!("`parallel.reproducible` {what}")));
    if !device.fixed_order {
        return refuse("needs the CPU, whose sums over micro-batches and ranks have a fixed order; leave it or `device` out".to_string());
    }
    if programs.batch_statistics {
        return refuse(
            "cannot be met with batch normalization, whose statistics are those of each micro-batch; use layer or group normalization, \
             or leave it out"
                .to_string(),
        );
    }
    match batch_state(programs) {
        Some(state) => refuse(format!("cannot be met, because `{state}` follows the rows of each micro-batch; leave it out")),
        None => Ok(()),
    }
}

/// Checks that what `parallel.shard` divides over ranks can be divided, before graphs are built. One process has all of
/// it.
pub(crate) fn check_shards(spec: &RunSpec, device: &Capabilities) -> Result<()> {
    if spec.sharding().is_none() {
        return Ok(());
    }
    let refuse = |what: String| Err(Error::Config(format!("`parallel.shard` {what}")));
    if device.collectives && !device.shards {
        return refuse("needs a device that exchanges shards; leave it or `device` out".to_string());
    }
    if spec.parallel.reproducible {
        return refuse(
            "cannot be met with `parallel.reproducible`: shards are summed in the order of MPI; leave one of them out".to_string(),
        );
    }
    let optimization = &spec.optimization;
    if let Some(why) = optimization.optimizer.undivided() {
        return refuse(format!(
            "cannot be met with the optimizer {}: {why}; use Adam or SGD, or leave it out",
            optimization.optimizer.name()
        ));
    }
    if optimization.prune.is_some() {
        return refuse("cannot be met with pruning, whose masks follow from whole weights; leave `[prune]` or it out".to_string());
    }
    if optimization.average.is_some() {
        return refuse("cannot be met with `train.ema`: no rank would have the whole average; leave one of them out".to_string());
    }
    if spec.fit.initial_weights.as_ref().is_some_and(|initial| initial.with_optimizer) {
        return refuse("cannot be met with optimizer states of a file; leave it out, or begin with its weights alone".to_string());
    }
    Ok(())
}

/// The first state that follows the rows of each batch, if there is one.
fn batch_state(programs: &Programs) -> Option<&str> {
    let step = programs.whole.first().map(|(_, graph)| graph);
    let mut updated = step.into_iter().flat_map(|graph| graph.updates().iter().map(|(state, _)| &graph.states()[state.0 as usize]));
    updated.find(|state| state.kind == StateKind::Statistic).map(|state| &*state.name)
}

/// Checks that the ranks of a run may train it together, and that they can.
pub(crate) fn check(spec: &RunSpec, device: &Capabilities, programs: &Programs, rank_batch: usize) -> Result<()> {
    let ranks = spec.ranks;
    let refuse = |what: String| Err(Error::Config(what));
    if spec.parallel.data == DataParallelism::None {
        return refuse(format!(
            "{ranks} ranks were started, but `parallel.data` is \"none\": leave it out to divide every batch over them, or start one process"
        ));
    }
    if spec.inference_only {
        return refuse(format!("{ranks} ranks were started, but predictions are computed by one process"));
    }
    if !device.collectives {
        return refuse(format!(
            "{ranks} ranks were started to train together, but this device does not sum over ranks; leave `device` out"
        ));
    }
    let given = spec.numerics.as_ref().map(|fixed| fixed.micro_batch).or(spec.micro_batch);
    if let Some(rows) = given.filter(|rows| programs.synchronized && *rows < rank_batch) {
        return refuse(format!(
            "batch normalization is synchronized over whole batches, but each of {ranks} ranks would compute its {rank_batch} rows in \
             micro-batches of {rows}; leave `train.micro_batch` out, or set `parallel.batch_norm` to \"local\""
        ));
    }
    if !programs.synchronized && programs.batch_statistics && !spec.allow.has(Permission::MicrobatchBatchnorm) {
        return refuse(format!(
            "batch normalization would have the statistics of each of {ranks} ranks' own rows, which changes results; allow that with \
             --allow microbatch_batchnorm beside the permissions of the run ({}), leave `parallel.batch_norm` out to synchronize them, use \
             layer or group normalization, or train on one process",
            spec.allow
        ));
    }
    match batch_state(programs).filter(|_| !programs.batch_statistics) {
        Some(state) => {
            refuse(format!("`{state}` follows the rows of each batch, and {ranks} ranks have different rows; train on one process"))
        }
        None => Ok(()),
    }
}
