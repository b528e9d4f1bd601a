//! `plimsoll profile`: where the time and the memory of a run's steps go.

use crate::calibrate::Rates;
use crate::output::{create_binary, print, say};
use crate::run_args::RunArgs;
use crate::{Command, kernel_profile, refused};
use anyhow::Result;
use clap::Args;
use plimsoll::{Count, Report, Trainer};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Measure some steps of a run: time per op, roofline, memory, input pipeline
#[derive(Args)]
pub struct Profile {
    #[command(flatten)]
    run: RunArgs,

    /// Steps to measure
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    steps: u64,

    /// Time the step alone, without data, op by op with the clock of a GPU
    #[arg(long)]
    kernels: bool,

    /// With --kernels: number of ops to list, the slowest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    top: usize,

    /// Only write the generated source of every GPU kernel into this folder; works with --device-profile
    #[arg(long, value_name = "DIR")]
    sources: Option<PathBuf>,

    /// Write a trace for Chrome and Perfetto: ops, threads, copies, memory counters
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,

    /// Write a snapshot for PyTorch's memory viewer
    #[arg(long, value_name = "FILE.pickle")]
    memory_viz: Option<PathBuf>,
}

impl Command for Profile {
    const NAME: &'static str = "profile";

    fn run(&self) -> Result<ExitCode> {
        refused::explained(&self.run, Count::Everything, self.profile())
    }

    fn json(&self) -> bool {
        self.run.json
    }
}

impl Profile {
    fn profile(&self) -> Result<ExitCode> {
        let args = &self.run;
        let trainer: Trainer = args.config()?.build()?.into();
        if let Some(folder) = &self.sources {
            kernel_profile::write_sources(&trainer, folder)?;
            return Ok(ExitCode::SUCCESS);
        }
        if self.kernels {
            kernel_profile::time_ops(&trainer, self.top, args.json)?;
            return Ok(ExitCode::SUCCESS);
        }
        let (trainer, rates) = Rates::stored(trainer, args, None)?;
        let trainer = rates.measured(trainer)?;
        let spec = trainer.spec().clone();
        let profile = trainer.profile(self.steps)?;
        if let Some(path) = &self.trace {
            write(path, |file| profile.write_trace(file))?;
        }
        if let Some(path) = &self.memory_viz {
            write(path, |file| profile.write_memory_snapshot(file))?;
        }
        if let Some(path) = &args.report {
            Report::of_plan(profile.plan.clone(), &spec).profile(profile.to_json()).write(path)?;
        }
        if args.json {
            print(&profile.to_json())?;
        } else if !args.quiet {
            say(&format!("{profile}\n"))?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes a file through a buffer.
fn write(path: &Path, fill: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>) -> Result<()> {
    let mut writer = BufWriter::new(create_binary(path)?);
    fill(&mut writer).and_then(|()| writer.flush()).map_err(|error| anyhow::anyhow!("cannot write {}: {error}", path.display()))
}
