//! `plimsoll data`: a configuration's pipeline by itself.

use crate::Command;
use crate::output::{print, say};
use anyhow::Result;
use clap::{Args, Subcommand};
use plimsoll::config::{Config, path_sources};
use plimsoll::{Bytes, Pipeline};
use serde_json::json;
use std::io::{IsTerminal, Write, stderr};
use std::path::PathBuf;
use std::process::ExitCode;

/// Inspect, benchmark or cache an input pipeline
#[derive(Args)]
pub struct Data {
    #[command(subcommand)]
    command: DataCommand,
}

impl Command for Data {
    const NAME: &'static str = "data";

    fn run(&self) -> Result<ExitCode> {
        run(&self.command).map(|()| ExitCode::SUCCESS)
    }

    fn json(&self) -> bool {
        self.command.json()
    }
}

#[derive(Subcommand)]
enum DataCommand {
    /// Benchmark an input pipeline: throughput, memory, bottleneck
    Bench(BenchArgs),
    /// Show columns, sizes and the first rows; images as a contact sheet with --out
    Inspect(InspectArgs),
    /// Fill the cache file of a configuration (data.cache) ahead of training
    Cache(CacheArgs),
}

#[derive(Args)]
struct CacheArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// No progress
    #[arg(long, short)]
    quiet: bool,
}

#[derive(Args)]
struct BenchArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Number of epochs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
}

#[derive(Args)]
struct InspectArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Number of rows to show; 0 reads none
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(..=1024))]
    rows: u64,

    /// Write the images among them to this PNG file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct SourceArgs {
    /// Configuration with a [data] table; no model is needed
    #[arg(required_unless_present = "source")]
    config: Option<PathBuf>,

    #[arg(long, value_name = "KIND", requires = "path", conflicts_with = "config", help = source_help())]
    source: Option<String>,

    /// Path of that source
    #[arg(long, value_name = "PATH", requires = "source")]
    path: Option<PathBuf>,

    /// Memory budget of the process, such as 64MiB [default: available memory]
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<Bytes>,

    /// Override a configuration key, such as data.batch=64; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

fn source_help() -> String {
    format!("Source instead of a configuration: {}", path_sources().join(", "))
}

impl DataCommand {
    fn json(&self) -> bool {
        match self {
            DataCommand::Bench(bench) => bench.source.json,
            DataCommand::Inspect(inspect) => inspect.source.json,
            DataCommand::Cache(cache) => cache.source.json,
        }
    }
}

fn run(command: &DataCommand) -> Result<()> {
    match command {
        DataCommand::Bench(args) => {
            let bench = args.source.pipeline()?.bench(args.epochs)?;
            if args.source.json {
                print(&bench.to_json())?;
            } else {
                say(&format!("{bench}\n"))?;
            }
        }
        DataCommand::Inspect(args) => {
            let sample = args.source.pipeline()?.sample(args.rows as usize)?;
            if let Some(path) = &args.out {
                sample.write_contact_sheet(path)?;
            }
            if args.source.json {
                print(&sample.to_json())?;
            } else {
                say(&format!("{sample}\n"))?;
            }
        }
        DataCommand::Cache(args) => {
            let filled = args.source.pipeline()?.fill_cache(&mut progress(args.quiet))?;
            let (path, rows, size) = (filled.path.display(), filled.rows, filled.bytes);
            if args.source.json {
                print(&json!({ "path": path.to_string(), "rows": rows, "bytes": size.0, "found": filled.found }))?;
            } else {
                let how = if filled.found { "was complete already" } else { "filled" };
                say(&format!("{path} {how}: {rows} rows, {size}\n"))?;
            }
        }
    }
    Ok(())
}

/// A line on standard error: live on a terminal, one for each tenth elsewhere.
fn progress(quiet: bool) -> impl FnMut(u64, u64) {
    let (terminal, mut tenth) = (stderr().is_terminal(), 0);
    move |done, total| {
        // Where nobody knows how many there are, a line for each million.
        let known = total < u64::MAX;
        let now = if known { 10 * done / total.max(1) } else { done / 1_000_000 };
        if quiet || (!terminal && now == tenth) {
            return;
        }
        tenth = now;
        let of = if known { format!(" of {total}") } else { String::new() };
        let end = if !terminal || done == total { "\n" } else { "" };
        let start = if terminal { "\r" } else { "" };
        // Progress that cannot be shown is no reason to stop.
        let _ = write!(stderr(), "{start}{done}{of} rows cached{end}");
    }
}

impl SourceArgs {
    fn pipeline(&self) -> Result<Pipeline> {
        let mut config = match (&self.config, &self.source, &self.path) {
            (_, Some(kind), Some(path)) => Config::source(kind, path)?,
            (Some(file), ..) => Config::read(file)?,
            _ => unreachable!("one of them is required"),
        };
        if let Some(size) = self.host_memory {
            config.set_value("budget.host", i64::try_from(size.0)?)?;
        }
        for assignment in &self.set {
            config.set(assignment)?;
        }
        Ok(config.pipeline()?)
    }
}
