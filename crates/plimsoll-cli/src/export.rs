//! `plimsoll export` and `plimsoll convert`: networks as files of other programs.

use crate::Command;
use crate::output::{print, say};
use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use plimsoll::config::Config;
use plimsoll::{Evaluated, ExportOptions, Exported, Opset, SmallReport, TfliteNumbers, Verified, WeightSparsity, export, export_zoo};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Write the trained network of a run as ONNX, Keras, safetensors or TFLite
#[derive(Args)]
pub struct Export {
    /// Run folder, or a model of another program
    #[arg(required_unless_present = "zoo")]
    run: Option<PathBuf>,

    /// File to write: .onnx, .keras, .safetensors or .tflite
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

    /// File to write: .onnx, .keras, .safetensors or .tflite
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

    /// TFLite: weights in half precision
    #[arg(long, conflicts_with_all = ["dynamic", "int8"])]
    f16: bool,

    /// TFLite: weights of convolutions and products in int8, activations in single precision
    #[arg(long, conflicts_with = "int8")]
    dynamic: bool,

    /// TFLite: weights and activations in int8, with the ranges of a run that was trained with [quantize], or with
    /// --calibrate
    #[arg(long)]
    int8: bool,

    /// Configuration whose training data gives the ranges of activations
    #[arg(long, value_name = "CONFIG", requires = "int8")]
    calibrate: Option<PathBuf>,

    /// Rows of the calibration
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..), requires = "int8")]
    calibrate_rows: u64,

    /// Inputs and outputs in int8 too
    #[arg(long, requires = "int8")]
    int8_io: bool,

    /// Layers that stay in single precision: a name, or a pattern with *
    #[arg(long, value_name = "PATTERN")]
    keep_float: Vec<String>,

    /// TFLite: configuration on whose labelled rows the network and the file are scored [default: the run's validation
    /// rows]
    #[arg(long, value_name = "CONFIG")]
    evaluate: Option<PathBuf>,

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
        let numbers = match (self.int8, self.f16, self.dynamic) {
            (true, ..) => {
                let (calibrate, rows) = (self.calibrate.clone(), self.calibrate_rows as usize);
                TfliteNumbers::Int8 { calibrate, rows, integer_io: self.int8_io }
            }
            (false, true, _) => TfliteNumbers::Half,
            (false, false, true) => TfliteNumbers::Dynamic,
            (false, false, false) => TfliteNumbers::Single,
        };
        ExportOptions { opset, rows: self.rows as usize, numbers, keep_float: self.keep_float.clone(), evaluate: self.evaluate.clone() }
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
                "gzip_bytes": gzip_size(exported),
                "sparsity": exported.sparsity.iter().map(WeightSparsity::to_json).collect::<Vec<_>>(),
                "int8": exported.small.as_ref().map(small_json),
                "evaluated": exported.evaluated.as_ref().map(evaluated_json),
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
        if let Some(evaluated) = &exported.evaluated {
            let Evaluated { data, rows, metric, before, after } = evaluated;
            text += &format!("  {metric} {before:.4} before, {after:.4} after, on {rows} {data}\n");
        }
        if let Some(share) = WeightSparsity::overall(&exported.sparsity) {
            let gzip = gzip_size(exported).map_or(String::new(), |bytes| format!("; {} after gzip", plimsoll::Bytes(bytes)));
            text += &format!("  {:.1} % of the pruned weights are zero (--json lists each){gzip}\n", 100.0 * share);
        }
        if let Some(small) = &exported.small {
            text += &small_text(exported, small);
        }
        say(&text)?;
        Ok(ExitCode::SUCCESS)
    }
}

/// The bytes of a smaller or pruned file after gzip, as in an application package.
fn gzip_size(exported: &Exported) -> Option<u64> {
    exported.small.as_ref().and_then(|small| small.gzip_bytes).or(exported.gzip_bytes)
}

fn evaluated_json(evaluated: &Evaluated) -> serde_json::Value {
    let Evaluated { data, rows, metric, before, after } = evaluated;
    json!({ "data": data, "rows": rows, "metric": metric, "before": before, "after": after })
}

fn small_json(small: &SmallReport) -> serde_json::Value {
    let tensor = |tensor: &plimsoll::TensorReport| {
        json!({
            "name": tensor.name,
            "min": tensor.range.0,
            "max": tensor.range.1,
            "scale": tensor.scale,
            "zero_point": tensor.zero_point,
            "snr_db": tensor.snr,
            "cosine": tensor.cosine,
        })
    };
    let float = |(layer, why): &(String, String)| json!({ "layer": layer, "why": why });
    json!({
        "calibrated_rows": small.calibrated,
        "calibration_bytes": small.calibration_memory.0,
        "single_precision_bytes": small.single_bytes,
        "tensors": small.tensors.iter().map(tensor).collect::<Vec<_>>(),
        "float": small.float.iter().map(float).collect::<Vec<_>>(),
    })
}

/// Tensors that are listed on the screen; JSON has them all.
const WORST: usize = 8;

fn small_text(exported: &Exported, small: &SmallReport) -> String {
    let bytes = std::fs::metadata(&exported.path).map_or(0, |file| file.len());
    let smaller = small.single_bytes as f64 / bytes.max(1) as f64;
    let mut text = format!("  {smaller:.1} times smaller than in single precision");
    if let Some(gzip) = gzip_size(exported) {
        text += &format!("; {} after gzip", plimsoll::Bytes(gzip));
    }
    text.push('\n');
    let measured = small.tensors.iter().any(|tensor| tensor.snr.is_some());
    if small.calibrated > 0 {
        text += &format!("  calibrated on {} rows within {}\n", small.calibrated, small.calibration_memory);
    }
    if measured {
        text += "  tensors that lose most (--json lists all):\n";
        let mut worst: Vec<_> = small.tensors.iter().filter_map(|tensor| Some((tensor, tensor.snr?, tensor.cosine?))).collect();
        worst.sort_by(|(_, a, _), (_, b, _)| a.total_cmp(b));
        for (tensor, snr, cosine) in worst.iter().take(WORST) {
            let (low, high) = tensor.range;
            text += &format!("    {:<48} {low:>9.3} … {high:<9.3} SNR {snr:>5.1} dB, cosine {cosine:.5}\n", tensor.name);
        }
    }
    let mut reasons: std::collections::BTreeMap<&str, Vec<&str>> = std::collections::BTreeMap::new();
    small.float.iter().for_each(|(layer, why)| reasons.entry(why).or_default().push(layer));
    for (why, layers) in reasons {
        let more = if layers.len() > 3 { format!(" and {} more", layers.len() - 3) } else { String::new() };
        text += &format!("  in single precision ({why}): {}{more}\n", layers[..layers.len().min(3)].join(", "));
    }
    text
}
