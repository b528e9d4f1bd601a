//! Plan files: written by `plan --out`, verified by `check`.
//!
//! A file has the statement (`plan`), the run's configuration, what the plan assumes about the machine, and the
//! certificate. The checker trusts nothing of the planner. It builds the model's graphs from the configuration; the
//! certificate has to execute them, byte by byte; and every number of the statement has to follow from the certificate,
//! the configuration, the data and the assumptions.

mod assumptions;
mod pipelines;
mod statement;
mod subject;

use crate::error::{Error, Result};
use crate::files;
use crate::plan::{DataSummary, RunPlan};
use crate::spec::RunSpec;
use assumptions::Stated;
use plimsoll_core::Bytes;
use plimsoll_core::plan::{Certificate, Plan};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use subject::Subject;

/// What was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Rows of the micro-batch.
    pub rows: usize,
    /// The peak of host memory.
    pub host_peak: Bytes,
    /// The budget that it is within.
    pub host_budget: Bytes,
    /// The peak of device memory; zero if the device has none of its own.
    pub device_peak: Bytes,
    /// The arena's size.
    pub arena: Bytes,
    /// The number of programs.
    pub programs: usize,
    /// Steps in all programs.
    pub steps: usize,
    /// Steps that recompute.
    pub repeated: usize,
    /// What the statement assumes about the machine, as it is in the file.
    pub assumptions: Value,
}

/// A plan file. Written as it is: as a tree of JSON values, the certificate of a large model would take more memory
/// than its planning.
#[derive(Serialize)]
struct PlanFile<'a> {
    plan: Value,
    configuration: &'a str,
    assumptions: Stated,
    certificate: Certificate,
    /// The largest batch is not the one of the configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_batch: Option<usize>,
}

/// Writes the plan of a run from a configuration, as a document that can be verified by itself.
///
/// # Errors
/// If the data cannot be read, or the file not be written: nothing is left of it then.
pub fn write_plan_file(spec: &RunSpec, plan: &RunPlan, path: &Path) -> Result<()> {
    let data = DataSummary::read(spec)?;
    let file = PlanFile {
        plan: plan.to_json(),
        configuration: &spec.config,
        assumptions: Stated::of(plan, &data),
        certificate: plan.memory.certificate(),
        max_batch: (plan.ranks == 1 && data.training.batch_rows()? != plan.batch).then_some(plan.batch),
    };
    let error = |source| Error::Io { action: "write", path: path.to_path_buf(), source };
    let write = |destination: &File| {
        let mut writer = BufWriter::new(destination);
        serde_json::to_writer_pretty(&mut writer, &file).map_err(|source| error(source.into()))?;
        writer.write_all(b"\n").and_then(|()| writer.flush()).map_err(error)
    };
    // Pipes and terminals have no contents to keep.
    match fs::metadata(path) {
        Ok(existing) if !existing.is_file() => write(&File::create(path).map_err(error)?),
        _ => files::replace(path, write),
    }
}

/// The plan of a document of [`write_plan_file`] with its graphs, proven, and the run that it is for.
///
/// # Errors
/// If the certificate is no plan of the model of the configuration, or if the data it names cannot be read.
pub(crate) fn proven_plan(
    plan: &Map<String, Value>,
    configuration: &str,
    assumptions: &Value,
    certificate: &Certificate,
    max_batch: Option<usize>,
) -> Result<(Plan, RunSpec)> {
    let subject = Subject::read(configuration, plan, &exactly("assumptions", assumptions)?, max_batch)?;
    Ok((subject.prove(certificate)?.plan, subject.spec))
}

/// Verifies a document of [`write_plan_file`]: that its certificate is an exact plan of the model of its configuration,
/// and that everything it states follows from that. Reports the first error.
///
/// # Errors
/// If the text is no such document, if what it states does not hold, or if the data it names cannot be read.
pub fn check_plan_file(text: &str) -> Result<Checked> {
    let document: Map<String, Value> = serde_json::from_str(text).map_err(|error| unreadable(error.to_string()))?;
    let part = |key: &str| document.get(key).ok_or_else(|| unreadable(format!("it has no `{key}`")));
    let configuration = part("configuration")?.as_str().ok_or_else(|| unreadable("its `configuration` is no text".to_string()))?;
    let certificate: Certificate = exactly("certificate", part("certificate")?)?;
    let assumptions: Stated = exactly("assumptions", part("assumptions")?)?;
    let plan = part("plan")?.as_object().ok_or_else(|| unreadable("its `plan` is no object".to_string()))?;
    let max_batch = document.get("max_batch").map(|rows| exactly("max_batch", rows)).transpose()?;
    if let Some(key) = document.keys().find(|key| !["plan", "configuration", "certificate", "assumptions", "max_batch"].contains(&&key[..]))
    {
        return Err(unreadable(format!("it has `{key}`, which is no part of one")));
    }
    statement::matches_certificate(plan, &certificate)?;
    let subject = Subject::read(configuration, plan, &assumptions, max_batch)?;
    let proven = subject.prove(&certificate)?;
    let statement = statement::derive(&subject, plan, &assumptions, &certificate, &proven)?;
    statement::compare("", &Value::Object(plan.clone()), &statement.document)?;
    Ok(Checked {
        rows: certificate.rows,
        host_peak: Bytes(statement.host_peak),
        host_budget: Bytes(statement.host_budget),
        device_peak: Bytes(statement.device_peak),
        arena: certificate.arena,
        programs: certificate.programs.len(),
        steps: certificate.programs.iter().map(|program| program.steps.len()).sum(),
        repeated: certificate.programs.iter().filter(|p| !p.sequence.is_empty()).map(|p| repeated(&p.sequence)).sum(),
        assumptions: json!(assumptions),
    })
}

/// A part of the document, which must be written exactly as `plan_file` writes it: nothing is left out, added, or of
/// another type.
fn exactly<T: serde::de::DeserializeOwned + serde::Serialize>(name: &str, value: &Value) -> Result<T> {
    let read = T::deserialize(value).map_err(|error| unreadable(format!("its {name}: {error}")))?;
    if json!(read) == *value { Ok(read) } else { Err(untrue(format!("its {name} has more than a plan has there"))) }
}

fn unreadable(what: String) -> Error {
    Error::Config(format!("this is not a plan that `plimsoll plan --out` wrote: {what}"))
}

fn untrue(what: impl std::fmt::Display) -> Error {
    Error::Config(format!("the plan does not hold: {what}"))
}

/// How many entries of a sequence are repetitions.
fn repeated(sequence: &[u32]) -> usize {
    let distinct: std::collections::HashSet<u32> = sequence.iter().copied().collect();
    sequence.len() - distinct.len()
}
