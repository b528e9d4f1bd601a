//! The arguments of a run, shared by `train` and `plan`: a configuration with flags on top.

use anyhow::Result;
use clap::Args;
use plimsoll::config::Config;
use plimsoll::{Bytes, RunFolder};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct RunArgs {
    /// Configuration of the run (TOML), the folder of a run, or a model (.keras, .h5, .onnx) on synthetic data
    /// [default: the embedded digits]
    pub config: Option<PathBuf>,

    /// Network of the zoo on synthetic data, instead of a configuration (see `plimsoll zoo`)
    #[arg(long, value_name = "NAME", conflicts_with = "config")]
    pub zoo: Option<String>,

    /// Input size of the network, such as 416x608 or 416x608x3
    #[arg(long, value_name = "HxW", requires = "zoo")]
    pub input: Option<String>,

    /// Strategies the planner may use to fit the budget, separated by commas: recompute, split, microbatch, offload,
    /// mixed_precision, state_8bit, microbatch_batchnorm, or none [default: all that leave results unchanged]
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

    /// Fold of a cross-validation to validate on, such as 3/5
    #[arg(long, value_name = "K/N")]
    pub fold: Option<String>,

    /// Initial weights, from a safetensors file; ignored when a run is resumed
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Compute threads [default: one per core]; results do not depend on it, unless --allow lets the plan change them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub threads: Option<u64>,

    /// Run folder [default: the next runs/NAME-N]; for `plan`, the file for plan and certificate
    #[arg(long, value_name = "PATH")]
    pub out: Option<PathBuf>,

    /// Resume from the newest checkpoint in the run folder, bit for bit; with a configuration, start the run if it has
    /// not begun
    #[arg(long)]
    pub resume: bool,

    /// Override a configuration key, such as train.loss=mse (a list as a whole); may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,

    /// Plan with built-in rates instead of measured ones, for the same plan on every machine
    #[arg(long)]
    pub no_calibrate: bool,

    /// Write the report of the plan to this HTML file; of a refused budget, what holds the peak and the cheapest
    /// changes
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,

    /// Print one JSON document on standard output, everything else on standard error
    #[arg(long)]
    pub json: bool,

    /// No plan, no progress, no summary; warnings and where a stopped run continues are still printed
    #[arg(long, short)]
    pub quiet: bool,
}

impl RunArgs {
    /// The configuration with the flags on top.
    pub fn config(&self) -> Result<Config> {
        // A run that goes on has its configuration in its folder.
        self.config_or(self.out.as_deref().filter(|_| self.resume).and_then(RunFolder::config_in).as_deref())
    }

    /// The name of the configuration.
    pub fn title(&self) -> String {
        let file = self.config.as_deref().and_then(|path| path.file_stem()).map(|stem| stem.to_string_lossy().into_owned());
        self.zoo.clone().or(file).unwrap_or_else(|| "digits".to_string())
    }

    /// The configuration that is named, or else a run's own, with the flags on top.
    pub fn config_or(&self, own: Option<&Path>) -> Result<Config> {
        let mut config = match (&self.zoo, self.config.as_deref().or(own)) {
            (Some(name), _) => Config::zoo(name)?,
            (None, Some(path)) if Config::is_model_file(path) => Config::imported(path)?,
            // A run folder has its configuration.
            (None, Some(path)) if path.is_dir() => match RunFolder::config_in(path) {
                Some(file) => Config::read(&file)?,
                None => {
                    anyhow::bail!("{} is a folder without a config.toml; name a configuration, a model or a run folder", path.display())
                }
            },
            (None, Some(path)) => Config::read(path)?,
            (None, None) => Config::digits(),
        };
        if let Some(size) = &self.input {
            let sizes: Result<Vec<i64>, _> = size.split('x').map(str::parse).collect();
            let sizes = sizes.map_err(|_| anyhow::anyhow!("`--input {size}` is not a size such as 416x608"))?;
            config.set_value("model.input", sizes)?;
        }
        if let Some(allow) = &self.allow {
            config.set_value("budget.allow", allow.as_str())?;
        }
        let counts = [
            ("train.batch", self.batch),
            ("train.micro_batch", self.micro_batch),
            ("train.epochs", self.epochs),
            ("train.seed", self.seed),
            ("train.threads", self.threads),
        ];
        for (key, count) in counts.into_iter().filter_map(|(key, count)| Some((key, count?))) {
            config.set_value(key, whole(key, count)?)?;
        }
        for (key, size) in [("budget.host", self.host_memory), ("budget.device", self.device_memory)] {
            if let Some(size) = size {
                config.set_value(key, whole(key, size.0)?)?;
            }
        }
        for (key, name) in [("train.device", &self.device), ("train.device_profile", &self.device_profile)] {
            if let Some(name) = name {
                config.set_value(key, name.as_str())?;
            }
        }
        if let Some(fold) = &self.fold {
            config.set_value("data.fold", fold.as_str())?;
        }
        if let Some(path) = &self.weights {
            // Like every path on a command line, it begins where the command is given.
            config.set_value("train.weights", std::path::absolute(path)?.to_string_lossy().into_owned())?;
        }
        for assignment in &self.set {
            config.set(assignment)?;
        }
        Ok(config)
    }
}

/// A number as configurations hold it.
pub fn whole(key: &str, number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| anyhow::anyhow!("`{key}` is {number}, but should be at most {}", i64::MAX))
}
