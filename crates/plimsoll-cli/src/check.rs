//! `plimsoll check`: proves a plan from its file alone.

use crate::Command;
use crate::output::{print, say};
use anyhow::Result;
use clap::Args;
use plimsoll::{Bytes, check_plan_file};
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;

/// Verify a plan written by `plan --out`, independently of the planner
#[derive(Args)]
pub struct Check {
    /// Plan file
    plan: PathBuf,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

impl Command for Check {
    const NAME: &'static str = "check";

    fn run(&self) -> Result<ExitCode> {
        let path = &self.plan;
        let text = std::fs::read_to_string(path).map_err(|error| anyhow::anyhow!("cannot read {}: {error}", path.display()))?;
        let checked = check_plan_file(&text).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
        if self.json {
            print(&json!({
                "holds": true,
                "peak_bytes": { "host": checked.host_peak.0, "device": checked.device_peak.0 },
                "rows": checked.rows,
                "arena_bytes": checked.arena.0,
                "programs": checked.programs,
                "steps": checked.steps,
                "recomputed": checked.repeated,
                "assumptions": checked.assumptions,
            }))?;
        } else {
            let (steps, programs, again) = (checked.steps, checked.programs, checked.repeated);
            let on_device =
                if checked.device_peak > Bytes::ZERO { format!(" and {} of device memory", checked.device_peak) } else { String::new() };
            say(&format!(
                "holds: {} of host memory{on_device} at the peak; {steps} steps of {programs} programs for {} rows in an arena of {}; \
                 {again} of them recompute something\n",
                checked.host_peak, checked.rows, checked.arena
            ))?;
        }
        Ok(ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.json
    }
}
