//! `plimsoll generate`: text from a trained character model, written as it is sampled.

use crate::Command;
use crate::output::say;
use anyhow::Result;
use clap::Args;
use plimsoll::{Generator, Sampling};
use std::path::PathBuf;
use std::process::ExitCode;

/// Generate text with a trained character model
#[derive(Args)]
pub struct Generate {
    /// Run folder of a model trained on text
    run: PathBuf,

    /// Text to continue
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    prompt: String,

    /// Number of characters to generate
    #[arg(long, value_name = "N", default_value_t = 500)]
    length: usize,

    /// Sampling temperature; 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.8)]
    temperature: f32,

    /// Sample only from the K most likely characters
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    top_k: Option<u64>,

    /// Seed of the sampling
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Command for Generate {
    const NAME: &'static str = "generate";

    fn run(&self) -> Result<ExitCode> {
        if !self.temperature.is_finite() || self.temperature < 0.0 {
            anyhow::bail!("`--temperature` is {}, but should be a number of at least 0", self.temperature);
        }
        let mut generator = Generator::open(&self.run)?;
        let sampling = Sampling { temperature: self.temperature, top_k: self.top_k.map(|k| k as usize), seed: self.seed };
        let mut written = say(&self.prompt);
        generator.generate(&self.prompt, self.length, &sampling, |char| {
            if written.is_ok() {
                written = say(char.encode_utf8(&mut [0; 4]));
            }
        })?;
        written.and_then(|()| say("\n"))?;
        Ok(ExitCode::SUCCESS)
    }
}
