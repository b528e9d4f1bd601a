//! The arguments of commands that use what a run trained.

use crate::run_args::whole;
use anyhow::Result;
use clap::Args;
use plimsoll::config::Config;
use plimsoll::{Bytes, Rows, Trained};
use std::path::PathBuf;

#[derive(Args)]
pub struct TrainedArgs {
    /// Run folder; for `predict` with new data also a model (.keras, .h5, .onnx, .tflite)
    pub run: PathBuf,

    /// Rows to use: training, held-out (also: validation) or test [default: held-out, or training if there are none]
    #[arg(long, value_name = "WHICH", visible_alias = "split", value_parser = ["training", "held-out", "validation", "test"], hide_possible_values = true)]
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

impl TrainedArgs {
    /// The model and the rows of the run.
    pub fn open(&self) -> Result<Trained> {
        let rows = self.rows.as_deref().map(|rows| match rows {
            "training" => Rows::Training,
            "test" => Rows::Test,
            _ => Rows::HeldOut,
        });
        Ok(Trained::open(&self.run, rows, |config| self.change(config))?)
    }

    /// Applies the flags to the run's configuration.
    pub fn change(&self, config: &mut Config) -> plimsoll::Result<()> {
        if let Some(line) = self.host_memory {
            let line = whole("budget.host", line.0).map_err(|error| plimsoll::Error::Config(error.to_string()))?;
            config.set_value("budget.host", line)?;
        }
        if let Some(device) = &self.device {
            config.set_value("train.device", device.as_str())?;
        }
        self.set.iter().try_for_each(|assignment| config.set(assignment))
    }
}

pub fn name(rows: Rows) -> &'static str {
    match rows {
        Rows::Training => "training",
        Rows::HeldOut => "held-out",
        Rows::Test => "test",
    }
}
