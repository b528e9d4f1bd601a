//! The command line.

use crate::arena::ArenaArgs;
use crate::data::DataCommand;
use clap::{Args as ClapArgs, Parser, Subcommand};
use plimsoll::Bytes;
use std::path::PathBuf;

/// Train neural networks under a memory line that is known before the first step.
#[derive(Parser)]
#[command(
    name = "plimsoll",
    version,
    max_term_width = 110,
    after_help = "\
Examples:
  plimsoll train                                 a small network on the embedded digits
  plimsoll plan run.toml --host-memory 96MiB     what a run needs, before it runs
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
    /// State what a run needs without running it
    Plan(PlanArgs),
    /// Measure how fast this machine computes, so that predicted times are its own; kept until done again
    Calibrate(CalibrateArgs),
    /// Prove a plan that `plan --out` wrote, without trusting the planner
    Check {
        /// The file
        plan: PathBuf,

        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Look at a data pipeline, or measure it
    #[command(subcommand)]
    Data(DataCommand),
    /// Measure the model a run left in its folder
    Evaluate(TrainedArgs),
    /// Write down what the model a run left in its folder predicts
    Predict(PredictArgs),
    /// Let a trained character model write
    Generate(GenerateArgs),
    /// List the networks there are, or the layers of one
    Zoo(ZooArgs),
    /// Give offsets to buffers with known lifetimes, from a table
    Arena(ArenaArgs),
    /// List the devices there are
    Devices {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Check every op of a device against a float64 reference
    Selftest {
        /// Where to compute (see `plimsoll devices`)
        #[arg(long, value_name = "NAME", default_value = "cpu")]
        device: String,

        /// Chooses shapes and numbers
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u64,

        /// Only ops whose names begin with this; may be repeated
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
    /// The folder of the run
    pub run: PathBuf,

    /// The rows: training or held-out; without it, those held out, or those learnt from if there are no others
    #[arg(long, value_name = "WHICH", value_parser = ["training", "held-out"])]
    pub rows: Option<String>,

    /// The line for the whole process; without it, that of the run
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,

    /// Where to compute; without it, where the run did
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Set a key of the run's configuration, such as data.validation.path=FOLDER for other data; may be repeated
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

    /// The file: .npy for all numbers, .csv for a line per row
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
}

#[derive(ClapArgs)]
pub struct GenerateArgs {
    /// The folder of a run that learnt from text
    pub run: PathBuf,

    /// What to go on from
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    pub prompt: String,

    /// How many characters to write
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub length: usize,

    /// How freely: 0 always takes the likeliest, 1 draws as was learnt
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    pub temperature: f32,

    /// Draw only from this many of the likeliest characters
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    pub top_k: Option<u64>,

    /// Chooses the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(ClapArgs)]
pub struct ZooArgs {
    /// The network; without it, all of them
    pub name: Option<String>,

    /// Another size of its input, such as 416x608
    #[arg(long, value_name = "SIZE", requires = "name")]
    pub input: Option<String>,

    /// Another number of classes
    #[arg(long, value_name = "N", requires = "name")]
    pub classes: Option<usize>,

    /// Layers this many times as wide
    #[arg(long, value_name = "FACTOR", requires = "name")]
    pub width: Option<f64>,

    /// Another longest sequence
    #[arg(long, value_name = "TOKENS", requires = "name")]
    pub context: Option<usize>,

    /// Another number of tokens known
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

    /// Find the largest batch that fits in one piece, computing at most one forward pass again
    #[arg(long, conflicts_with_all = ["batch", "micro_batch"])]
    pub max_batch: bool,

    /// Plan under lower and lower lines: what a step takes for every budget
    #[arg(long, conflicts_with_all = ["max_batch", "log_placement"])]
    pub sweep: bool,

    /// Draw what --sweep found as a picture (SVG)
    #[arg(long, value_name = "FILE.svg", requires = "sweep")]
    pub plot: Option<PathBuf>,

    /// What counts towards the line: everything, or weights+activations to compare with papers
    #[arg(long, value_name = "WHAT", default_value = "everything", value_parser = ["everything", "weights+activations"])]
    pub count: String,

    /// List every operation with its lifetime, place, and whether it is computed again
    #[arg(long)]
    pub log_placement: bool,
}

#[derive(ClapArgs)]
pub struct CalibrateArgs {
    /// A run whose own operations are measured too (TOML)
    pub config: Option<PathBuf>,

    /// Or a network of the zoo
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub zoo: Option<String>,

    /// What to measure (see `plimsoll devices`)
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Threads that compute; without it, one per core
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Option<u64>,

    /// Set a key of the configuration, such as train.batch=64; may be repeated
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
    /// The run's configuration (TOML); without it, the embedded digits
    pub config: Option<PathBuf>,

    /// A network of the zoo on made-up rows instead of a configuration (see `plimsoll zoo`)
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub zoo: Option<String>,

    /// Another size of its input, such as 416x608 or 416x608x3
    #[arg(long, value_name = "HxW", requires = "zoo")]
    pub input: Option<String>,

    /// What the planner may do to make the run fit, separated by commas: recompute, split, microbatch, offload, mixed_precision,
    /// state_8bit, microbatch_batchnorm, or none. Without it, all that leaves the result as it is
    #[arg(long, value_name = "LIST")]
    pub allow: Option<String>,

    /// The line for the whole process, such as 256MiB or 2GB; without it, what the system has
    #[arg(long, value_name = "SIZE")]
    pub host_memory: Option<Bytes>,

    /// The line for the device's own memory; without it, what is free there. The CPU has none: --host-memory is its line
    #[arg(long, value_name = "SIZE")]
    pub device_memory: Option<Bytes>,

    /// Where to compute (see `plimsoll devices`)
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    /// Plan for a GPU that is not here, by a stored profile such as h200
    #[arg(long, value_name = "NAME")]
    pub device_profile: Option<String>,

    /// Rows of a batch
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub batch: Option<u64>,

    /// Rows computed at a time; gradients are summed to those of the whole batch. Without it, the most that divide the batch and fit
    #[arg(long, value_name = "ROWS", value_parser = clap::value_parser!(u64).range(1..))]
    pub micro_batch: Option<u64>,

    /// Passes over the data
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub epochs: Option<u64>,

    /// Chooses the first weights and the order of rows
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Begin with the weights of this safetensors file instead of random ones; a resumed run has its own
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Threads that compute; without it, one per core. The result is the same
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Option<u64>,

    /// The folder a training run leaves its files in (without it, the next runs/NAME-N); for `plan`, a file for the certificate
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,

    /// Go on from the newest checkpoint of the run's folder, bit for bit as if it had never stopped; begins afresh if there is none yet
    #[arg(long)]
    pub resume: bool,

    /// Set a key of the configuration, such as train.loss=mse (lists as a whole); may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Predict times by built-in rates, which are the same everywhere, instead of measured ones; so are plans then
    #[arg(long)]
    pub no_calibrate: bool,

    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub json: bool,

    /// No plan, no progress, no summary
    #[arg(long, short)]
    pub quiet: bool,
}
