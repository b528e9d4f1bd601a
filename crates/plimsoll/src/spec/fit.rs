//! How long a run trains, what it measures meanwhile, and what it reads and writes.

use crate::callbacks::EarlyStopping;
use crate::checkpoint::Checkpoints;
use plimsoll_data::Dataset;
use std::path::{Path, PathBuf};

/// Epochs, validation, checkpoints and callbacks of a run.
#[derive(Clone, Debug)]
pub struct FitSpec {
    /// Passes over the training data.
    pub epochs: u64,
    /// Data on which loss and metrics are measured after every epoch.
    pub validation: Option<Dataset>,
    /// Where and when checkpoints are written.
    pub checkpoints: Option<Checkpoints>,
    /// Whether the run continues from the newest checkpoint.
    pub resume: bool,
    /// Weights to start from, instead of random ones.
    pub initial_weights: Option<InitialWeights>,
    /// Whether the run ends with the weights of its best epoch.
    pub restore_best: bool,
    /// Stops the run when a score no longer improves.
    pub early_stopping: Option<EarlyStopping>,
    /// A file for one line of scores per epoch.
    pub csv_log: Option<PathBuf>,
}

impl Default for FitSpec {
    fn default() -> FitSpec {
        FitSpec {
            epochs: 1,
            validation: None,
            checkpoints: None,
            resume: false,
            initial_weights: None,
            restore_best: false,
            early_stopping: None,
            csv_log: None,
        }
    }
}

impl FitSpec {
    /// The same with the files the run writes in a folder, unless their paths are absolute.
    pub(crate) fn in_folder(&self, folder: &Path) -> FitSpec {
        FitSpec {
            checkpoints: self.checkpoints.as_ref().map(|checkpoints| checkpoints.in_folder(folder)),
            csv_log: self.csv_log.as_ref().map(|path| folder.join(path)),
            ..self.clone()
        }
    }
}

/// Weights to start from: a safetensors file, such as one that an earlier run wrote.
///
/// ```
/// use plimsoll::{Fit, InitialWeights};
/// // All but a head with another number of classes.
/// let fit = Fit::epochs(3).initial_weights(InitialWeights::new("runs/large/weights.safetensors").partial(true));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitialWeights {
    pub(crate) path: PathBuf,
    pub(crate) partial: bool,
}

impl InitialWeights {
    /// From this file, which must have all weights of the model, by name and shape.
    pub fn new(path: impl Into<PathBuf>) -> InitialWeights {
        InitialWeights { path: path.into(), partial: false }
    }

    /// Loads the weights that the file has with the same name and shape, and reports the others, which start random.
    pub fn partial(self, partial: bool) -> InitialWeights {
        InitialWeights { partial, ..self }
    }
}
