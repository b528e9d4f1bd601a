//! The command line.

use crate::arena::ArenaArgs;
use crate::data::DataCommand;
use clap::{Args as ClapArgs, Parser, Subcommand};
use plimsoll::Bytes;
use std::path::PathBuf;

/// Train neural networks within a memory budget that is planned before the first step.
#[derive(Parser)]
#[command(
    name = "plimsoll",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  plimsoll train                                 a small network on the embedded digits
  plimsoll plan run.toml --host-memory 96MiB     the memory of a run, before it runs
  plimsoll train run.toml --set train.loss=mse   any key of the configuration from the command line"
)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Train a model: plan, run, report
    Train(RunArgs),
    /// Plan the memory of a run without running it
    Plan(PlanArgs),
    /// Measure the speed of this machine once, for predicted step times
    Calibrate(CalibrateArgs),
    /// Verify a plan written by `plan --out`, independently of the planner
    Check {
        /// Plan file
        plan: PathBuf,

        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Inspect, benchmark or cache an input pipeline
    #[command(subcommand)]
    Data(DataCommand),
    /// Evaluate the trained model of a run
    Evaluate(TrainedArgs),
    /// Write the predictions of the trained model of a run
    Predict(PredictArgs),
    /// Generate text with a trained character model
    Generate(GenerateArgs),
    /// List the networks of the zoo, or the layers of one
    Zoo(ZooArgs),
    /// Assign offsets to buffers with known lifetimes, from a table
    Arena(ArenaArgs),
    /// List devices and the libraries found
    Devices {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Compare every op of a device with a float64 reference
    Selftest {
        /// Device to run on (see `plimsoll devices`)
        #[arg(long, value_name = "NAME", default_value = "cpu")]
        device: String,

        /// Seed of shapes and values
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,

        /// Only ops whose names start with this; may be repeated
        #[arg(long, value_name = "OP")]
        only: Vec<String>,
    },
}

impl Command {
    /// Whether one JSON document is wanted on standard output.
    pub fn json(&self) -> bool {
        match self {
            Command::Train(run) => run.json,
            Command::Plan(plan) => plan.run.json,
            Command::Calibrate(args) => args.json,
            Command::Check { json, .. } => *json,
            Command::Evaluate(trained) => trained.json,
            Command::Predict(predict) => predict.trained.json,
            Command::Generate(_) => false,
            Command::Data(data) => data.json(),
            Command::Zoo(zoo) => zoo.json,
            Command::Arena(arena) => arena.json,
            Command::Devices { json } => *json,
            Command::Selftest { .. } => false,
        }
    }
}

#[derive(ClapArgs)]
pub struct TrainedArgs {
    /// Run folder
    pub run: PathBuf,

    /// Rows to use: training or held-out (validation) [default: held-out, or training if there are none]
    #[arg(long, value_name = "WHICH", value_parser = ["training", "held-out"])]
    pub rows: Option<String>,

    /// Memory budget of the process [default: that of the run]
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,

    /// Device to run on [default: that of the run]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Override a key of the run's configuration, such as data.validation.path=FOLDER; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct PredictArgs {
    #[command(flatten)]
    pub trained: TrainedArgs,

    /// Output file: .npy for an array, .csv for one line per row
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(ClapArgs)]
pub struct GenerateArgs {
    /// Run folder of a model trained on text
    pub run: PathBuf,

    /// Text to continue
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    pub prompt: String,

    /// Number of characters to generate
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub length: usize,

    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temperature: f32,

    /// Sample only from the K most likely characters
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub top_k: Option<u64>,

    /// Seed of the sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(ClapArgs)]
pub struct ZooArgs {
    /// Network [default: all]
    pub name: Option<String>,

    /// Input size, such as 416x608
    #[arg(long, value_name = "SIZE", requires = "name")]
    pub input: Option<String>,

    /// Number of classes
    #[arg(long, value_name = "N", requires = "name")]
    pub classes: Option<usize>,

    /// Width multiplier of all layers
    #[arg(long, value_name = "FACTOR", requires = "name")]
    pub width: Option<f64>,

    /// Maximum sequence length
    #[arg(long, value_name = "TOKENS", requires = "name")]
    pub context: Option<usize>,

    /// Vocabulary size
    #[arg(long, value_name = "N", requires = "name")]
    pub vocabulary: Option<usize>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,
}

#[derive(ClapArgs)]
pub struct PlanArgs {
    #[command(flatten)]
    pub run: RunArgs,

    /// Find the largest batch that fits without micro-batches, recomputing at most one forward pass
    #[arg(long, conflicts_with_all = ["batch", "micro_batch"])]
    pub max_batch: bool,

    /// Plan with smaller and smaller budgets: step time against memory
    #[arg(long, conflicts_with_all = ["max_batch", "log_placement"])]
    pub sweep: bool,

    /// Plot the result of --sweep as SVG
    #[arg(long, value_name = "FILE.svg", requires = "sweep")]
    pub plot: Option<PathBuf>,

    /// What counts towards the budget: everything, or weights+activations to compare with papers
    #[arg(long, value_name = "WHAT", default_value = "everything", value_parser = ["everything", "weights+activations"])]
    pub count: String,

    /// List every op with its lifetime, offset, and whether it is recomputed
    #[arg(long)]
    pub log_placement: bool,
}

#[derive(ClapArgs)]
pub struct CalibrateArgs {
    /// Configuration (TOML) of a run whose ops are measured too
    pub config: Option<PathBuf>,

    /// Network of the zoo instead of a configuration
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub zoo: Option<String>,

    /// Device to measure (see `plimsoll devices`)
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Compute threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Option<u64>,

    /// Override a configuration key, such as train.batch=64; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Print one JSON document
    #[arg(long)]
    pub json: bool,

    /// Print nothing
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(ClapArgs)]
pub struct RunArgs {
    /// Configuration of the run (TOML) [default: the embedded digits]
    pub config: Option<PathBuf>,

    /// Network of the zoo on synthetic data, instead of a configuration (see `plimsoll zoo`)
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub zoo: Option<String>,

    /// Input size of the network, such as 416x608 or 416x608x3
    #[arg(long, value_name = "HxW", requires = "zoo")]
    pub input: Option<String>,

    /// Strategies the planner may use to fit the budget, separated by commas: recompute, split, microbatch, offload, mixed_precision,
    /// state_8bit, microbatch_batchnorm, or none [default: all that leave results unchanged]
    #[arg(long, value_name = "LIST")]
    pub allow: Option<String>,

    /// Memory budget of the process, such as 256MiB or 2GB [default: available memory]
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,

    /// Memory budget of the GPU [default: free device memory]; the CPU uses --host-memory
    #[arg(long, value_name = "SIZE")]
    pub device_memory: Option<Bytes>,

    /// Device to run on (see `plimsoll devices`)
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Plan for a GPU that is not present, with a stored profile such as h200
    #[arg(long, value_name = "NAME")]
    pub device_profile: Option<String>,

    /// Batch size
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: Option<u64>,

    /// Micro-batch size for gradient accumulation [default: the largest that divides the batch and fits]
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub micro_batch: Option<u64>,

    /// Number of epochs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,

    /// Seed of the initial weights and of shuffling
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Initial weights, from a safetensors file; ignored when a run is resumed
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Compute threads [default: one per core]; results do not depend on it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Option<u64>,

    /// Run folder [default: the next runs/NAME-N]; for `plan`, the file for plan and certificate
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,

    /// Resume from the newest checkpoint in the run folder, bit for bit; starts a new run if there is none
    #[arg(long)]
    pub resume: bool,

    /// Override a configuration key, such as train.loss=mse (a list as a whole); may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Plan with built-in rates instead of measured ones, for the same plan on every machine
    #[arg(long)]
    pub no_calibrate: bool,

    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub json: bool,

    /// No plan, no progress, no summary
    #[arg(long, short)]
    pub quiet: bool,
}
