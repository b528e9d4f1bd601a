//! `plimsoll data`: a configuration's pipeline by itself.

use crate::print;
use anyhow::Result;
use clap::{Args, Subcommand};
use plimsoll::config::Config;
use plimsoll::{Bytes, Pipeline};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum DataCommand {
    /// Read the data as fast as it goes: throughput, memory, where the time goes
    Bench(BenchArgs),
    /// Show columns, sizes and the first rows; pictures as one sheet with --out
    Inspect(InspectArgs),
}

#[derive(Args)]
pub struct BenchArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// Passes over the data
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: u64,
}

#[derive(Args)]
pub struct InspectArgs {
    #[command(flatten)]
    source: SourceArgs,

    /// How many rows to look at
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1024))]
    rows: u64,

    /// Draw the pictures among them to this PNG file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

#[derive(Args)]
struct SourceArgs {
    /// A configuration with a [data] table; a model is not needed
    config: PathBuf,

    /// The line for the whole process, such as 64MiB; without it, what the system has
    #[arg(long, value_name = "SIZE")]
    host_memory: Option<Bytes>,

    /// Set any key of the configuration, such as data.batch=64; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,

    /// Print one JSON document on standard output
    #[arg(long)]
    json: bool,
}

impl DataCommand {
    pub fn json(&self) -> bool {
        match self {
            DataCommand::Bench(bench) => bench.source.json,
            DataCommand::Inspect(inspect) => inspect.source.json,
        }
    }
}

pub fn run(command: &DataCommand) -> Result<()> {
    match command {
        DataCommand::Bench(args) => {
            let bench = args.source.pipeline()?.bench(args.epochs)?;
            if args.source.json {
                print(&bench.to_json());
            } else {
                crate::say(&format!("{bench}\n"));
            }
        }
        DataCommand::Inspect(args) => {
            let sample = args.source.pipeline()?.sample(args.rows as usize)?;
            if let Some(path) = &args.out {
                sample.write_sheet(path)?;
            }
            if args.source.json {
                print(&sample.to_json());
            } else {
                crate::say(&format!("{sample}\n"));
            }
        }
    }
    Ok(())
}

impl SourceArgs {
    fn pipeline(&self) -> Result<Pipeline> {
        let mut config = Config::read(&self.config)?;
        if let Some(size) = self.host_memory {
            config.set_value("budget.host", i64::try_from(size.0)?)?;
        }
        for assignment in &self.set {
            config.set(assignment)?;
        }
        Ok(config.pipeline()?)
    }
}
