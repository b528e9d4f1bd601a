//! `plimsoll export` and `plimsoll convert`: networks as files of other programs.

use crate::Command;
use crate::output::{print, say};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use plimsoll::config::Config;
use plimsoll::{ExportOptions, Exported, Opset, Verified, export, export_zoo};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write the trained network of a run as ONNX, Keras or safetensors
#[derive(Args)]
pub struct Export {
    /// Run folder, or a model of another program
    #[arg(required_unless_present = "zoo")]
    run: Option<PathBuf>,

    /// File to write: .onnx, .keras or .safetensors
    #[arg(long, value_name = "FILE")]
    to: PathBuf,

    /// A network of the zoo with its initial weights, instead of a run
    #[arg(long, value_name = "NETWORK", conflicts_with = "run")]
    zoo: Option<String>,

    /// Set a key of the zoo network's configuration, such as model.classes=10
    #[arg(long, value_name = "KEY=VALUE", requires = "zoo")]
    set: Vec<String>,

    #[command(flatten)]
    written: Written,
}

/// Write a model of another program in another format
#[derive(Args)]
pub struct Convert {
    /// Model to read: .keras, .h5 or a run folder
    from: PathBuf,

    /// File to write: .onnx, .keras or .safetensors
    to: PathBuf,

    #[command(flatten)]
    written: Written,
}

#[derive(Args)]
struct Written {
    /// ONNX operator set: 18 is read by most runtimes
    #[arg(long, value_enum, default_value_t = OpsetArg::V18)]
    opset: OpsetArg,

    /// Sample rows on which the network and the file are compared; 0 compares nothing
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(0..=1024))]
    rows: u64,

    /// Print one JSON document
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum OpsetArg {
    #[value(name = "18")]
    V18,
    #[value(name = "23")]
    V23,
}

impl Command for Export {
    const NAME: &'static str = "export";

    fn run(&self) -> Result<ExitCode> {
        let options = self.written.options();
        let exported = match (&self.run, &self.zoo) {
            (Some(run), _) => export(run, &self.to, &options)?,
            (None, Some(name)) => {
                let mut config = Config::zoo(name)?;
                self.set.iter().try_for_each(|assignment| config.set(assignment))?;
                export_zoo(&config, &self.to, &options)?
            }
            (None, None) => bail!("name a run folder, or a network with --zoo"),
        };
        self.written.report(&exported)
    }

    fn json(&self) -> bool {
        self.written.json
    }
}

impl Command for Convert {
    const NAME: &'static str = "convert";

    fn run(&self) -> Result<ExitCode> {
        self.written.report(&export(&self.from, &self.to, &self.written.options())?)
    }

    fn json(&self) -> bool {
        self.written.json
    }
}

impl Written {
    fn options(&self) -> ExportOptions {
        let opset = match self.opset {
            OpsetArg::V18 => Opset::V18,
            OpsetArg::V23 => Opset::V23,
        };
        ExportOptions { opset, rows: self.rows as usize }
    }

    fn report(&self, exported: &Exported) -> Result<ExitCode> {
        let size = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
        if self.json {
            let verified = match &exported.verified {
                Verified::Measured { rows, difference } => json!({ "rows": rows, "greatest_difference": difference }),
                Verified::Not(why) => json!({ "not_compared": why }),
            };
            let inputs: Vec<_> = exported.inputs.iter().map(|(name, ty)| json!({ "name": name, "type": ty })).collect();
            print(&json!({
                "file": exported.path,
                "bytes": size(&exported.path),
                "data": exported.data,
                "format": exported.format,
                "inputs": inputs,
                "outputs": exported.outputs,
                "verified": verified,
            }))?;
            return Ok(ExitCode::SUCCESS);
        }
        let bytes = plimsoll::Bytes(size(&exported.path) + exported.data.as_deref().map_or(0, size));
        let mut text = format!("wrote {} ({}, {bytes})\n", exported.path.display(), exported.format);
        if let Some(data) = &exported.data {
            text += &format!("  weights: {}, which belongs beside it\n", data.display());
        }
        for (name, ty) in &exported.inputs {
            text += &format!("  input {name}: {ty}\n");
        }
        text += &format!("  outputs: {}\n  {}\n", exported.outputs.join(", "), exported.verified);
        say(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}
