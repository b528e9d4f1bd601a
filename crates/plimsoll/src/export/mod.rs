//! Trained networks as files of other programs: ONNX, Keras and safetensors.
//!
//! An export holds one weight at a time in memory, beside the description of the network. After it was written, the file and the network
//! are run on the same sample rows.

mod keras;
mod network;
mod onnx;
mod safetensors;
#[cfg(test)]
mod tests;
mod verify;

use crate::config::Config;
use crate::error::{Error, Result};
use crate::preprocessing::Preprocessing;
use crate::trainer::Trainer;
pub(crate) use network::{Origin, TrainedNetwork};
pub use onnx::Opset;
use std::path::{Path, PathBuf};
pub use verify::Verified;

/// How to export.
#[derive(Clone, Copy, Debug)]
pub struct ExportOptions {
    /// The operator set of ONNX files.
    pub opset: Opset,
    /// How many sample rows the network and the file are compared on; 0 compares nothing.
    pub rows: usize,
}

impl Default for ExportOptions {
    fn default() -> ExportOptions {
        ExportOptions { opset: Opset::V18, rows: 4 }
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
}

/// Exports the trained network of a run folder, or a model of another program, to `.onnx`, `.keras` or `.safetensors`.
///
/// ```no_run
/// use plimsoll::{ExportOptions, export};
/// let exported = export("runs/digits-1".as_ref(), "digits.onnx".as_ref(), &ExportOptions::default())?;
/// println!("{}", exported.verified);
/// # Ok::<(), plimsoll::Error>(())
/// ```
///
/// # Errors
/// If the network or its weights cannot be read, the format has no counterpart for a layer, or the file cannot be written.
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
    // The weights are drawn by the engine itself, then exported like trained ones.
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let drawn = folder.join(format!(".{}.initial", to.file_name().unwrap_or_default().to_string_lossy()));
    let exported = (|| {
        Trainer::from(spec.clone()).for_prediction().save_weights(&drawn)?;
        export_network(&TrainedNetwork::of_run(spec, &drawn, &Preprocessing::default())?, to, format, options)
    })();
    let _ = std::fs::remove_file(&drawn);
    exported
}

fn export_network(network: &TrainedNetwork, to: &Path, format: ExportFormat, options: &ExportOptions) -> Result<Exported> {
    let about = |error: Error| match error {
        Error::Config(what) => Error::Config(format!("cannot write {}: {what}", to.display())),
        other => other,
    };
    let data = match format {
        ExportFormat::Onnx => onnx::convert(network, options.opset).and_then(|converted| converted.write(network, to)).map_err(about)?,
        ExportFormat::Keras => keras::write(network, to).map(|()| None).map_err(about)?,
        ExportFormat::SafeTensors => safetensors::write(network, to).map(|()| None).map_err(about)?,
    };
    let verified = verify::compare(network, to, format, options.rows)?;
    Ok(Exported {
        path: to.to_path_buf(),
        data: data.map(|name| to.with_file_name(name)),
        format: format.name(),
        inputs: network.inputs.iter().map(|input| (input.name.clone(), input.ty.to_string())).collect(),
        outputs: network.model.outputs().map(str::to_string).collect(),
        verified,
    })
}

/// A format that networks are exported to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportFormat {
    Onnx,
    Keras,
    SafeTensors,
}

impl ExportFormat {
    /// The format that a file's name says.
    fn of(path: &Path) -> Result<ExportFormat> {
        match path.extension().and_then(|extension| extension.to_str()).unwrap_or_default() {
            "onnx" => Ok(ExportFormat::Onnx),
            "keras" => Ok(ExportFormat::Keras),
            "safetensors" => Ok(ExportFormat::SafeTensors),
            _ => {
                Err(Error::Config(format!("{} should end in .onnx, .keras or .safetensors, the formats that are written", path.display())))
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            ExportFormat::Onnx => "ONNX",
            ExportFormat::Keras => "Keras",
            ExportFormat::SafeTensors => "safetensors",
        }
    }
}
