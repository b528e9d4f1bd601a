//! The report of a run or a plan: one HTML page without any other file. A run collects its data in files as it goes;
//! the page is put together from them through small buffers, so that a long run or a large plan takes no more memory
//! than a small one.

mod classes;
mod map;
mod page;
mod progress_log;
mod refused;
mod samples;

use crate::error::{Error, Result};
use crate::files;
use crate::nn::LayerSummary;
use crate::plan::{RunPlan, Sweep};
use crate::plan_file::proven_plan;
use crate::spec::RunSpec;
use page::Page;
use plimsoll_core::plan::{Certificate, Plan};
use plimsoll_core::step::Role;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

pub(crate) use classes::{Classes, PredictedRows, rows_to_count};
pub(crate) use map::write_map;
pub(crate) use progress_log::{ProgressLog, STATUS};
pub use refused::{Change, Refusal, cheapest_changes};
pub(crate) use samples::{Sampled, write_samples};

/// The page in a run folder.
pub(crate) const PAGE: &str = "report.html";

/// The folder of a run with what only the page shows.
pub(crate) const DETAILS: &str = "details";

/// Its files: the memory of the programs, rows of the first batch, predictions by class, rows with the largest loss,
/// and loss within epochs.
pub(crate) const MEMORY: &str = "details/memory.json";
pub(crate) const SAMPLES: &str = "details/samples.json";
pub(crate) const CLASSES: &str = "details/classes.json";
pub(crate) const WORST: &str = "details/worst.json";
pub(crate) const PROGRESS: &str = "details/progress.jsonl";

/// Bytes that are copied at a time.
const COPIED: usize = 16 << 10;

/// A report of one run or plan, or of two side by side.
///
/// ```no_run
/// use plimsoll::Report;
/// Report::of("runs/digits-1".as_ref())?.write("report.html".as_ref())?;
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct Report {
    subjects: Vec<ReportSource>,
    samples: bool,
    curve: Option<Value>,
    refusal: Option<Value>,
    profile: Option<Value>,
}

/// What a report shows.
enum ReportSource {
    /// A run folder.
    Run(PathBuf),
    /// A plan file.
    File(PathBuf),
    /// A plan, and the run it is for.
    Plan(Box<RunPlan>, Box<RunSpec>),
}

impl Report {
    /// Of a run folder, or of a plan that `plimsoll plan --out` wrote.
    ///
    /// # Errors
    /// If the path is neither.
    pub fn of(path: &Path) -> Result<Report> {
        Ok(Report::with(ReportSource::at(path)?))
    }

    /// Of a plan that has not run, and the run it is for.
    pub fn of_plan(plan: RunPlan, spec: &RunSpec) -> Report {
        Report::with(ReportSource::Plan(Box::new(plan), Box::new(spec.clone())))
    }

    fn with(subject: ReportSource) -> Report {
        Report { subjects: vec![subject], samples: true, curve: None, refusal: None, profile: None }
    }

    /// Beside another run or plan.
    ///
    /// # Errors
    /// If the path is neither.
    pub fn beside(mut self, path: &Path) -> Result<Report> {
        self.subjects.push(ReportSource::at(path)?);
        Ok(self)
    }

    /// Leaves out rows of the training data.
    pub fn without_samples(self) -> Report {
        Report { samples: false, ..self }
    }

    /// With the step time under smaller budgets.
    pub fn curve(self, sweep: &Sweep) -> Report {
        Report { curve: Some(sweep.to_json()), ..self }
    }

    /// With the reason for which a budget was refused.
    pub fn refusal(self, refusal: &Refusal) -> Report {
        Report { refusal: Some(refusal.to_json()), ..self }
    }

    /// With a profile.
    pub fn profile(self, profile: Value) -> Report {
        Report { profile: Some(profile), ..self }
    }

    /// Writes the page, whole or not at all.
    ///
    /// # Errors
    /// If a file of the run cannot be read, or the page cannot be written.
    pub fn write(&self, out: &Path) -> Result<()> {
        files::replace(out, |file| {
            let wrong = |source| Error::Io { action: "write", path: out.to_path_buf(), source };
            let mut page = Page::begin(BufWriter::with_capacity(COPIED, file), &self.title()).map_err(wrong)?;
            for subject in &self.subjects {
                page.begin_run().map_err(wrong)?;
                self.write_subject(subject, &mut page)?;
                page.end_run().map_err(wrong)?;
            }
            page.finish().map_err(wrong)
        })
    }

    fn title(&self) -> String {
        let names: Vec<String> = self.subjects.iter().map(ReportSource::name).collect();
        names.join(" and ")
    }

    fn write_subject<W: Write>(&self, subject: &ReportSource, page: &mut Page<W>) -> Result<()> {
        let extras = [("curve", &self.curve), ("refusal", &self.refusal), ("profile", &self.profile)];
        let written = |done: io::Result<()>| done.map_err(|source| Error::Io { action: "write", path: "the report".into(), source });
        written(page.value("name", &json!(subject.name())))?;
        for (key, value) in extras {
            if let Some(value) = value {
                written(page.value(key, value))?;
            }
        }
        match subject {
            ReportSource::Run(folder) => {
                for (key, name) in [("plan", "plan.json"), ("memory", MEMORY), ("report", "report.json"), ("classes", CLASSES)] {
                    page.file(key, &folder.join(name))?;
                }
                if self.samples {
                    page.file("samples", &folder.join(SAMPLES))?;
                    page.file("worst", &folder.join(WORST))?;
                }
                page.lines("log", &folder.join("log.jsonl"))?;
                page.lines("progress", &folder.join(PROGRESS))?;
                page.text("config", &folder.join("config.toml"))
            }
            ReportSource::File(path) => {
                let ReportedPlan { plan, certificate, configuration, assumptions, max_batch } = ReportedPlan::read(path)?;
                // A certificate has neither types nor FLOPs nor layers: they follow from the graphs of the
                // configuration.
                match proven_plan(&plan, &configuration, &assumptions, &certificate, max_batch) {
                    Ok((proven, spec)) => {
                        let layers = layers(&spec, &proven);
                        written(page.stream("memory", |writer| map::write_map(writer, &proven, &layers)))?;
                    }
                    Err(error) => {
                        written(page.value("unknown", &json!(error.to_string())))?;
                        written(page.stream("memory", |writer| map::write_map_of(writer, &certificate)))?;
                    }
                }
                written(page.value("plan", &Value::Object(plan)))?;
                written(page.value("config", &json!(configuration)))
            }
            ReportSource::Plan(plan, spec) => {
                written(page.value("plan", &plan.to_json()))?;
                let layers = layers(spec, &plan.memory);
                written(page.stream("memory", |writer| map::write_map(writer, &plan.memory, &layers)))?;
                written(page.value("config", &json!(spec.config)))
            }
        }
    }
}

impl ReportSource {
    fn at(path: &Path) -> Result<ReportSource> {
        if path.join("plan.json").is_file() {
            return Ok(ReportSource::Run(path.to_path_buf()));
        }
        if path.is_file() {
            return Ok(ReportSource::File(path.to_path_buf()));
        }
        let what = if path.is_dir() { "has no plan.json: it is no run folder" } else { "does not exist" };
        Err(Error::Config(format!("{} {what}; name the folder of a run, or a plan that `plimsoll plan --out` wrote", path.display())))
    }

    fn name(&self) -> String {
        match self {
            ReportSource::Run(path) | ReportSource::File(path) => {
                let name = std::path::absolute(path).ok().and_then(|path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
                name.unwrap_or_else(|| path.display().to_string())
            }
            ReportSource::Plan(plan, _) => plan.model.clone(),
        }
    }
}

/// The layers of the model, with the shapes they have in a plan.
pub(crate) fn layers(spec: &RunSpec, plan: &Plan) -> Vec<LayerSummary> {
    let inputs = plan.program(Role::Predict).into_iter().flat_map(|program| program.graph.inputs());
    let inputs: Vec<_> = inputs.map(|input| input.ty.clone()).collect();
    spec.model.summary_for(&inputs).map(|summary| summary.rows).unwrap_or_default()
}

/// A plan file.
#[derive(serde::Deserialize)]
struct ReportedPlan {
    plan: Map<String, Value>,
    certificate: Certificate,
    configuration: String,
    assumptions: Value,
    max_batch: Option<usize>,
}

impl ReportedPlan {
    fn read(path: &Path) -> Result<ReportedPlan> {
        let io = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
        serde_json::from_reader(BufReader::new(File::open(path).map_err(io)?))
            .map_err(|error| Error::Config(format!("{} is not a plan that `plimsoll plan --out` wrote: {error}", path.display())))
    }
}

/// Copies a file through a buffer of its own.
fn copy(mut from: File, to: &mut impl Write) -> io::Result<()> {
    let mut buffer = [0; COPIED];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(()),
            read => to.write_all(&buffer[..read])?,
        }
    }
}
