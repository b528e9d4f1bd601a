//! What a run must be for several ranks to train it together.

use crate::allow::Permission;
use crate::error::{Error, Result};
use crate::graphs::Programs;
use crate::ranks::DataParallelism;
use crate::spec::RunSpec;
use plimsoll_core::graph::StateKind;
use plimsoll_core::plan::Capabilities;

/// Checks that the ranks of a run may train it together, and that they can.
pub(crate) fn check(spec: &RunSpec, device: &Capabilities, programs: &Programs) -> Result<()> {
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
    if programs.batch_statistics && !spec.allow.has(Permission::MicrobatchBatchnorm) {
        return refuse(format!(
            "batch normalization would have the statistics of each of {ranks} ranks' own rows, which changes results; allow that with \
             --allow microbatch_batchnorm beside the permissions of the run ({}), use layer or group normalization, or train on one process",
            spec.allow
        ));
    }
    let step = programs.whole.first().map(|(_, graph)| graph);
    let updated = step.into_iter().flat_map(|graph| graph.updates().iter().map(|(state, _)| &graph.states()[state.0 as usize]));
    match updated.into_iter().find(|state| state.kind == StateKind::Statistic).filter(|_| !programs.batch_statistics) {
        Some(state) => {
            refuse(format!("`{}` follows the rows of each batch, and {ranks} ranks have different rows; train on one process", state.name))
        }
        None => Ok(()),
    }
}
