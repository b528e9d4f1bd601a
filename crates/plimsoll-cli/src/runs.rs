//! `plimsoll runs`: the runs in a folder with their best scores.

use crate::output::{print, say};
use crate::{Command, text};
use anyhow::{Result, bail};
use clap::Args;
use plimsoll::{Bytes, RunState, RunStatus};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The default folder of runs.
const USUAL: &str = "runs";

/// List runs with their state, best scores, memory and speed
#[derive(Args)]
pub struct Runs {
    /// Folder with the folders of runs
    #[arg(default_value = USUAL)]
    folder: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Command for Runs {
    const NAME: &'static str = "runs";

    fn run(&self) -> Result<ExitCode> {
        // The usual folder is created by the first run.
        let usual = self.folder == Path::new(USUAL);
        if !self.folder.is_dir() && !usual {
            bail!("there is no folder {}; name the folder that has the run folders in it", self.folder.display());
        }
        if RunStatus::read(&self.folder).is_ok() {
            bail!("{0} is a run folder itself; name the folder it is in, or use `plimsoll watch {0}`", self.folder.display());
        }
        let runs = RunStatus::all(&self.folder);
        if self.json {
            print(&Value::Array(runs.iter().map(document).collect()))?;
        } else if runs.is_empty() {
            say(&format!("there are no runs in {}\n", self.folder.display()))?;
        } else {
            say(&table(&runs))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.json
    }
}

pub fn state(state: RunState) -> &'static str {
    match state {
        RunState::Running => "running",
        RunState::Done => "done",
        RunState::Stopped => "stopped",
    }
}

fn name(run: &RunStatus) -> String {
    run.path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned())
}

fn document(run: &RunStatus) -> Value {
    let best = run.best().map(|(name, value, epoch)| json!({ "score": name, "value": value, "epoch": epoch }));
    json!({
        "run": run.path,
        "state": state(run.state),
        "model": run.plan["model"],
        "epochs": run.epochs.len(),
        "best": best,
        "planned_bytes": run.planned().0,
        "measured_peak_rss_bytes": run.report.as_ref().map(|report| &report["measured_peak_rss_bytes"]),
        "examples_per_s": run.epochs.last().map(|epoch| &epoch["examples_per_s"]),
    })
}

fn table(runs: &[RunStatus]) -> String {
    let heads = ["run", "state", "model", "epochs", "best", "at epoch", "planned", "measured", "examples/s"];
    let mut rows = vec![heads.map(str::to_string)];
    for run in runs {
        let best = run.best();
        let measured = run.report.as_ref().and_then(|report| report["measured_peak_rss_bytes"].as_u64());
        let speed = run.epochs.last().and_then(|epoch| epoch["examples_per_s"].as_f64());
        rows.push([
            name(run),
            state(run.state).to_string(),
            run.plan["model"].as_str().unwrap_or("").to_string(),
            run.epochs.len().to_string(),
            best.map_or("–".to_string(), |(name, value, _)| format!("{name} {value:.4}")),
            best.map_or("–".to_string(), |(_, _, epoch)| epoch.to_string()),
            run.planned().to_string(),
            measured.map_or("–".to_string(), |bytes| Bytes(bytes).to_string()),
            speed.map_or("–".to_string(), text::thousands),
        ]);
    }
    let widths: Vec<usize> = (0..heads.len()).map(|i| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0)).collect();
    let line = |row: &[String; 9]| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, width))| match i {
            0 | 1 | 2 | 4 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}
