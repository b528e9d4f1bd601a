//! Trained networks as files of other programs: ONNX, Keras, safetensors and TFLite.
//!
//! An export holds one weight at a time in memory, beside the description of the network. What the format or its reader
//! cannot express is an error before anything is written. The file is written in a folder of its own, where it and the
//! network are run on the same sample rows; then it is moved to its place.

mod accuracy;
mod fold;
mod keras;
mod network;
mod onnx;
mod recipe;
mod safetensors;
#[cfg(test)]
mod tests;
mod tflite;
mod verify;
mod walk;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::files::{self, INCOMPLETE};
use crate::history::WeightSparsity;
use crate::import::{importable_keras, importable_onnx};
use crate::preprocessing::Preprocessing;
use crate::trainer::Trainer;
pub use accuracy::Evaluated;
pub(crate) use network::{Origin, TrainedNetwork};
pub use onnx::Opset;
use plimsoll_formats::gzip;
use std::path::{Path, PathBuf};
pub use tflite::{SmallReport, TensorReport};
pub use verify::Verified;

/// How to export.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The operator set of ONNX files.
    pub opset: Opset,
    /// How many sample rows the network and the file are compared on; 0 compares nothing.
    pub rows: usize,
    /// The numbers of TFLite files.
    pub numbers: TfliteNumbers,
    /// Layers that stay in single precision in TFLite files with smaller numbers: patterns in which `*` stands for any
    /// characters.
    pub keep_float: Vec<String>,
    /// A configuration on whose labelled rows a TFLite file and its network are scored: its test rows, its validation
    /// rows, or all. The default is the validation rows of the run.
    pub evaluate: Option<PathBuf>,
}

/// The numbers of a TFLite file.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum TfliteNumbers {
    /// Everything in single precision.
    #[default]
    Single,
    /// Weights in half precision.
    Half,
    /// Weights of convolutions and products in int8, activations in single precision.
    Dynamic,
    /// Weights and activations in int8.
    Int8 {
        /// A configuration whose training data gives the ranges of activations; without it, they are those that the run
        /// was trained with.
        calibrate: Option<PathBuf>,
        /// How many of its rows.
        rows: usize,
        /// Whether inputs and outputs of the file are int8 too.
        integer_io: bool,
    },
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions { opset: Opset::V18, rows: 4, numbers: TfliteNumbers::Single, keep_float: Vec::new(), evaluate: None }
    }
}

/// A file that was written.
#[derive(Debug)]
pub struct Exported {
    /// The file.
    pub path: PathBuf,
    /// A second file with the weights, where one file cannot hold them.
    pub data: Option<PathBuf>,
    /// What the file format is called.
    pub format: &'static str,
    /// Inputs: name and shape, whose first dimension is the batch.
    pub inputs: Vec<(String, String)>,
    /// The names of the outputs.
    pub outputs: Vec<String>,
    /// The comparison of the network and the file on sample rows.
    pub verified: Verified,
    /// What a TFLite file with smaller numbers keeps and loses.
    pub small: Option<SmallReport>,
    /// The scores of the network and of a TFLite file on labelled rows, where there are some.
    pub evaluated: Option<Evaluated>,
    /// The weights of a pruned network that have zeros.
    pub sparsity: Vec<WeightSparsity>,
    /// Bytes of the file after gzip, of a pruned network.
    pub gzip_bytes: Option<u64>,
}

/// Exports the trained network of a run folder, or a model of another program, to `.onnx`, `.keras`, `.safetensors` or
/// `.tflite`.
///
/// ```no_run
/// use plimsoll::{ExportOptions, export};
/// let exported = export("runs/digits-1".as_ref(), "digits.onnx".as_ref(), &ExportOptions::default())?;
/// println!("{}", exported.verified);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// If the network or its weights cannot be read, the format has no counterpart for a layer, or the file cannot be
/// written.
pub fn export(from: &Path, to: &Path, options: &ExportOptions) -> Result<Exported> {
    let format = ExportFormat::of(to)?;
    export_network(&TrainedNetwork::open(from)?, to, format, options)
}

/// Exports a network of the zoo with its initial weights, as a starting point for other programs.
///
/// # Errors
/// As [`export`].
pub fn export_zoo(config: &Config, to: &Path, options: &ExportOptions) -> Result<Exported> {
    let format = ExportFormat::of(to)?;
    let spec = config.build()?;
    check(&TrainedNetwork::of_zeros(&spec)?, to, format, options)?;
    // The weights are drawn by the engine itself, then exported like trained ones.
    let scratch = Scratch::beside(to, "initial")?;
    let drawn = scratch.0.join("initial.safetensors");
    Trainer::from(spec.clone()).for_prediction().save_weights(&drawn)?;
    export_network(&TrainedNetwork::of_run(spec, &drawn, &Preprocessing::default())?, to, format, options)
}

/// A folder for files that are not complete yet, beside their place; it is removed in the end.
struct Scratch(PathBuf);

impl Scratch {
    fn beside(to: &Path, purpose: &str) -> Result<Scratch> {
        let name = to.file_name().unwrap_or_default().to_string_lossy();
        let path = to.with_file_name(format!(".{name}-{purpose}-{}{INCOMPLETE}", std::process::id()));
        std::fs::create_dir(&path).map_err(|source| Error::Io { action: "write", path: to.to_path_buf(), source })?;
        Ok(Scratch(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Names the file that could not be written.
fn about(to: &Path) -> impl Fn(Error) -> Error {
    move |error| match error {
        Error::Config(what) => Error::Config(format!("cannot write {}: {what}", to.display())),
        other => other,
    }
}

/// That the format has a counterpart for every layer. Writes nothing. Returns why the file cannot be read back for a
/// comparison, if so: other programs may run what is not imported here.
fn check(network: &TrainedNetwork, to: &Path, format: ExportFormat, options: &ExportOptions) -> Result<Option<String>> {
    let readable = match format {
        ExportFormat::Onnx => importable_onnx(&onnx::convert(network, options.opset).map_err(about(to))?.without_data()),
        ExportFormat::Keras => importable_keras(keras::configuration(network).map_err(about(to))?),
        ExportFormat::SafeTensors => Ok(()),
        ExportFormat::Tflite => tflite::convert(network).map(|_| Ok(())).map_err(about(to))?,
    };
    let listed = |problems: Vec<String>| format!("the file is not imported here because of\n    {}", problems.join("\n    "));
    Ok(readable.err().map(listed))
}

fn export_network(network: &TrainedNetwork, to: &Path, format: ExportFormat, options: &ExportOptions) -> Result<Exported> {
    if format != ExportFormat::Tflite && (options.numbers != TfliteNumbers::Single || !options.keep_float.is_empty()) {
        return Err(Error::Config(format!("{} has one type of numbers: smaller ones are written to .tflite files", to.display())));
    }
    if format != ExportFormat::Tflite && options.evaluate.is_some() {
        return Err(Error::Config(format!("{} is not evaluated: .tflite files are", to.display())));
    }
    let unread = check(network, to, format, options)?;
    let scratch = Scratch::beside(to, "export")?;
    let path = scratch.0.join(to.file_name().unwrap_or_default());
    let mut small = None;
    let data = match format {
        ExportFormat::Onnx => onnx::convert(network, options.opset).and_then(|converted| converted.write(network, &path)),
        ExportFormat::Keras => keras::write(network, &path).map(|()| None),
        ExportFormat::SafeTensors => safetensors::write(network, &path).map(|()| None),
        ExportFormat::Tflite => tflite::convert(network).and_then(|converted| {
            if options.numbers == TfliteNumbers::Single {
                return converted.write(network, &path).map(|()| None);
            }
            small = Some(tflite::write_small(network, &converted, &scratch.0.join("single.tflite"), &path, options)?);
            Ok(None)
        }),
    };
    let data = data.map_err(about(to))?;
    let verified = match unread {
        Some(why) if options.rows > 0 => Verified::Not(why),
        _ => verify::compare(network, &path, format, options.rows)?,
    };
    let evaluated = match format {
        ExportFormat::Tflite if options.rows > 0 || options.evaluate.is_some() => accuracy::evaluate(network, &path, options)?,
        _ => None,
    };
    let sparsity = network.sparsity()?;
    let gzip_bytes = if sparsity.is_empty() { None } else { std::fs::File::open(&path).and_then(gzip::compressed_size).ok() };
    for name in data.iter().map(String::as_ref).chain(to.file_name()) {
        files::put(&scratch.0.join(name), &to.with_file_name(name))?;
    }
    Ok(Exported {
        path: to.to_path_buf(),
        data: data.map(|name| to.with_file_name(name)),
        format: format.name(),
        inputs: network.inputs.iter().map(|input| (input.name.clone(), input.ty.to_string())).collect(),
        outputs: network.model.outputs().map(str::to_string).collect(),
        verified,
        small,
        evaluated,
        sparsity,
        gzip_bytes,
    })
}

/// A format that networks are exported to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportFormat {
    Onnx,
    Keras,
    SafeTensors,
    Tflite,
}

impl ExportFormat {
    /// The format that a file's name says.
    fn of(path: &Path) -> Result<ExportFormat> {
        match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
            "onnx" => Ok(ExportFormat::Onnx),
            "keras" => Ok(ExportFormat::Keras),
            "safetensors" => Ok(ExportFormat::SafeTensors),
            "tflite" => Ok(ExportFormat::Tflite),
            _ => Err(Error::Config(format!(
                "{} should end in .onnx, .keras, .safetensors or .tflite, the formats that are written",
                path.display()
            ))),
        }
    }

    fn name(self) -> &'static str {
        match self {
            ExportFormat::Onnx => "ONNX",
            ExportFormat::Keras => "Keras",
            ExportFormat::SafeTensors => "safetensors",
            ExportFormat::Tflite => "TFLite",
        }
    }
}
