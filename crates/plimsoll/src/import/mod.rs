//! Models of other programs: descriptions of [`plimsoll_formats`] mapped to layers, and their weights to the weights of
//! those.
//!
//! No code in a file is run. What has no counterpart is refused, all of it at once, by name.

mod keras;
mod onnx;
mod permuted;
mod safetensors;
#[cfg(test)]
mod tests;
mod transposed;
mod weights;

use crate::error::{Error, Result};
use crate::nn::Model;
use crate::optim::Optimizer;
use crate::output_loss::OutputLosses;
pub(crate) use keras::Numbered;
#[cfg(test)]
pub(crate) use onnx::operators as onnx_operators;
use plimsoll_core::Bytes;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_formats::FormatError;
use plimsoll_formats::keras::{KerasModel, Weights};
use plimsoll_formats::onnx::OnnxModel;
use plimsoll_formats::source::Region;
pub(crate) use safetensors::open as open_safetensors;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::sync::Arc;
pub(crate) use weights::{Assembly, ImportedWeights, load_matching_weights, load_weights, load_weights_and_optimizer};

/// A model of another program.
///
/// ```no_run
/// let imported = plimsoll::import("mobilenet.keras".as_ref())?;
/// println!("{}", imported.summary()?);
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Debug)]
pub struct Imported {
    /// The model.
    pub model: Model,
    /// Its inputs: columns of the data.
    pub inputs: Vec<ImportedInput>,
    /// The optimizer, if the model was compiled.
    pub optimizer: Option<Arc<dyn Optimizer>>,
    /// The losses and metrics of the outputs, if the model was compiled with ones that exist here.
    pub losses: Option<OutputLosses>,
    /// What the file has and the model has not, such as constraints; one sentence each.
    pub notes: Vec<String>,
    pub(crate) weights: ImportedWeights,
    pub(crate) optimizer_state: Option<OptimizerState>,
    /// Heap that reading the file takes at its peak.
    pub(crate) heap: Bytes,
}

/// The heap of reading a file, beside the constants that it computes: descriptions of layers and the parsed file.
/// Measured over the models of the tests and rounded up; `plimsoll/tests/import_memory.rs` compares.
fn heap_of(metadata_bytes: u64) -> Bytes {
    Bytes::kib(256) + Bytes(metadata_bytes * HEAP_PER_METADATA)
}

/// Bytes of heap per byte of metadata.
const HEAP_PER_METADATA: u64 = 8;

/// The state of the optimizer that a model was saved with.
#[derive(Debug)]
pub(crate) struct OptimizerState {
    /// The steps it has made.
    pub steps: u64,
    /// Its moments, by the names of the states of our optimizer.
    pub slots: ImportedWeights,
}

/// An input of an imported model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedInput {
    /// The column of the data: `x` for the only input, the input's name for several.
    pub column: String,
    /// Its name in the file.
    pub name: String,
    /// The shape of a row.
    pub row: Vec<usize>,
    /// Whether it has integers, such as token IDs.
    pub integers: bool,
    /// Whether it has images whose channels come first; rows of data may have them last.
    pub channels_first: bool,
}

impl ImportedInput {
    /// Its type in a graph.
    pub(crate) fn ty(&self) -> TensorType {
        let shape = Shape::batch_of(self.row.iter().copied());
        let dtype = if self.integers { plimsoll_core::DType::I32 } else { plimsoll_core::DType::F32 };
        TensorType::new(dtype, shape)
    }
}

impl Imported {
    /// The types of the inputs.
    pub(crate) fn types(&self) -> Vec<TensorType> {
        self.inputs.iter().map(ImportedInput::ty).collect()
    }

    /// The layers as a table.
    pub fn summary(&self) -> Result<crate::nn::Summary> {
        Ok(self.model.summary_for(&self.types())?)
    }

    /// How many steps the optimizer has made whose state the file has. Training by
    /// [`Config::imported`](crate::config::Config::imported) or `[model] file` continues from it.
    pub fn optimizer_steps(&self) -> Option<u64> {
        self.optimizer_state.as_ref().map(|state| state.steps)
    }

    /// Whether the file has weights.
    pub fn has_weights(&self) -> bool {
        !self.weights.is_empty()
    }

    /// That every weight of the model is in the file with its shape; a bare configuration has none.
    fn check_weights(&self) -> Result<()> {
        if self.weights.is_empty() {
            return Ok(());
        }
        for (name, ty) in self.model.weights_for(&self.types())? {
            let wanted: Vec<u64> = ty.shape.bind(1).iter().map(|dim| *dim as u64).collect();
            self.weights.check(&name, &wanted).map_err(Error::Config)?;
        }
        Ok(())
    }
}

/// That a model of ONNX can be imported, or everything about it that cannot.
pub(crate) fn importable_onnx(saved: &OnnxModel) -> Result<(), Vec<String>> {
    onnx::model(saved, "model").map(|_| ())
}

/// That a configuration of Keras can be imported, or everything about it that cannot.
pub(crate) fn importable_keras(config: serde_json::Value) -> Result<(), Vec<String>> {
    let saved = KerasModel { config, compile_config: None, keras_version: None, weights: Weights::None, metadata_bytes: 0 };
    keras::model(&saved).map(|_| ())
}

/// The extension of a path in lower case.
fn extension(path: &Path) -> String {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default().to_ascii_lowercase()
}

/// Whether a path is a model that can be imported, by its name.
pub(crate) fn is_importable(path: &Path) -> bool {
    matches!(extension(path).as_str(), "keras" | "h5" | "hdf5" | "json" | "onnx")
}

/// Whether a path is a model of another program, by its name; also one that [`import`] refuses with what to do instead.
pub(crate) fn is_foreign(path: &Path) -> bool {
    is_importable(path) || is_pickle(path) || extension(path) == "safetensors"
}

/// Whether a path is a checkpoint of PyTorch, by its name.
fn is_pickle(path: &Path) -> bool {
    matches!(extension(path).as_str(), "pt" | "pth" | "bin" | "ckpt")
}

/// PyTorch's own checkpoints are refused, with the line that converts one.
pub(crate) fn refuse_pickles(path: &Path) -> Result<()> {
    if is_pickle(path) {
        return Err(Error::Config(format!(
            "{} is a PyTorch checkpoint, a pickle that can run code when it is read. Convert it: python -c \"import torch; from \
             safetensors.torch import save_file; save_file(torch.load('{0}', weights_only=True), 'model.safetensors')\"",
            path.display()
        )));
    }
    Ok(())
}

/// Files that are no models, or are models of another kind than their name says, are refused with what to do.
fn refuse_others(path: &Path, mut file: &File) -> Result<()> {
    let name = path.display();
    if extension(path) == "safetensors" {
        return Err(Error::Config(format!(
            "{name} has weights and no network. Name the network too: `plimsoll train --zoo NAME --weights {name}`, or `weights` of `[train]` \
             in a configuration"
        )));
    }
    let failed = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let mut head = Vec::new();
    file.take(4).read_to_end(&mut head).and_then(|_| file.rewind()).map_err(failed)?;
    if extension(path) == "onnx" && (head == b"PK\x03\x04" || head == b"\x89HDF") {
        let (kind, right) = if head[0] == b'P' { ("an archive, as Keras writes them", "keras") } else { ("an HDF5 file", "h5") };
        return Err(Error::Config(format!("{name} is not an ONNX model but {kind}; if it is a model of Keras, rename it to .{right}")));
    }
    Ok(())
}

/// Reads a model of Keras (a `.keras` archive, an `.h5` file or a `config.json`) or of ONNX. Weights are read when a
/// run starts.
pub fn import(path: &Path) -> Result<Imported> {
    let about = |error: FormatError| match error {
        FormatError::Io(source) => Error::Io { action: "read", path: path.to_path_buf(), source },
        FormatError::Damaged(what) => Error::Config(format!("{} is damaged: {what}", path.display())),
        FormatError::Unsupported(what) => Error::Config(format!("cannot import {}: {what}", path.display())),
    };
    refuse_pickles(path)?;
    let file = File::open(path).map_err(|source| Error::Io { action: "read", path: path.to_path_buf(), source })?;
    refuse_others(path, &file)?;
    let region = Region::file(file).map_err(|source| Error::Io { action: "read", path: path.to_path_buf(), source })?;
    let imported = match path.extension() {
        Some(extension) if extension.eq_ignore_ascii_case("onnx") => {
            let folder = path.parent().unwrap_or(Path::new(""));
            let mut external = |name: &str| {
                let file = File::open(folder.join(name)).and_then(Region::file);
                file.map_err(|error| {
                    let what = "copy it into the folder of the model, under this name";
                    FormatError::Unsupported(format!("its data is in `{name}`, which cannot be read ({error}); {what}"))
                })
            };
            let saved = OnnxModel::open(region, &mut external).map_err(about)?;
            let title = path.file_stem().map_or("model".to_string(), |stem| stem.to_string_lossy().into_owned());
            onnx::model(&saved, &title)
        }
        _ => keras::model(&KerasModel::open(region).map_err(about)?),
    };
    let imported = imported.map_err(|problems| {
        let list = problems.join("\n  ");
        Error::Config(format!("cannot import {}:\n  {list}", path.display()))
    })?;
    imported.check_weights().map_err(|error| Error::Config(format!("cannot import {}: {error}", path.display())))?;
    Ok(imported)
}
