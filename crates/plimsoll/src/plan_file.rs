//! Plan files: written by `plan --out`, verified by `check`.
//!
//! The file has the run's configuration and the certificate. The checker builds the model's graphs from the configuration and trusts nothing
//! of the planner: the certificate has to execute those graphs, byte by byte.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::plan::RunPlan;
use crate::spec::RunSpec;
use crate::trainer::Trainer;
use plimsoll_core::Bytes;
use plimsoll_core::plan::Certificate;
use serde_json::{Value, json};

/// What was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Rows of the micro-batch.
    pub rows: usize,
    /// The arena's size.
    pub arena: Bytes,
    /// The number of programs.
    pub programs: usize,
    /// Steps in all programs.
    pub steps: usize,
    /// Steps that recompute.
    pub repeated: usize,
}

/// The plan of a run from a configuration, as a document that can be verified by itself.
pub fn plan_file(spec: &RunSpec, plan: &RunPlan) -> Value {
    json!({ "plan": plan.to_json(), "configuration": spec.config, "certificate": plan.memory.certificate() })
}

/// Verifies a document of [`plan_file`]: that its certificate is an exact plan of the model of its configuration. Reports the first error.
pub fn check_plan_file(text: &str) -> Result<Checked> {
    let wrong = |what: String| Error::Config(format!("this is not a plan that `plimsoll plan --out` wrote: {what}"));
    let document: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
    let configuration = document["configuration"].as_str().ok_or_else(|| wrong("it has no `configuration`".to_string()))?;
    let certificate: Certificate = match document.get("certificate") {
        Some(certificate) => serde_json::from_value(certificate.clone()).map_err(|error| wrong(format!("its certificate: {error}")))?,
        None => return Err(wrong("it has no `certificate`".to_string())),
    };
    let batch = document["plan"]["batch"].as_u64().and_then(|batch| i64::try_from(batch).ok()).filter(|batch| *batch > 0);
    let batch = batch.ok_or_else(|| wrong("its plan has no `batch`".to_string()))?;
    let stated = [
        ("arena_bytes", certificate.arena.0),
        ("lower_bound_bytes", certificate.lower_bound.0),
        ("resident_bytes", certificate.resident.0),
    ];
    for (key, certified) in stated.into_iter().chain([("micro_batch", certificate.rows as u64)]) {
        if document["plan"][key] != json!(certified) {
            let what = format!("the plan states {key} = {}, but its certificate {certified}", document["plan"][key]);
            return Err(Error::Config(format!("the plan does not hold: {what}")));
        }
    }
    let mut config = Config::from_text(configuration)?;
    config.set_value("train.batch", batch)?;
    Trainer::from(config.build()?).prove(&certificate)?;
    Ok(Checked {
        rows: certificate.rows,
        arena: certificate.arena,
        programs: certificate.programs.len(),
        steps: certificate.programs.iter().map(|program| program.steps.len()).sum(),
        repeated: certificate.programs.iter().filter(|p| !p.sequence.is_empty()).map(|p| repeated(&p.sequence)).sum(),
    })
}

/// How many entries of a sequence are repetitions.
fn repeated(sequence: &[u32]) -> usize {
    let distinct: std::collections::HashSet<u32> = sequence.iter().copied().collect();
    sequence.len() - distinct.len()
}
