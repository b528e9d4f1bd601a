//! TFLite files: opened for reading, with the names of what this program stores in their metadata.

use crate::error::{Error, Result};
use plimsoll_formats::source::Region;
use plimsoll_formats::tflite::TfliteModel;
use std::fs::File;
use std::path::Path;

/// The preprocessing that a run's configuration describes: its `[data]`, without paths.
pub(crate) const PREPARATION: &str = "plimsoll.data";

/// What was fitted to the training data.
pub(crate) const FITTED: &str = "plimsoll.preprocessing";

/// What the outputs mean.
pub(crate) const OUTPUTS: &str = "plimsoll.outputs";

/// Reads the description of a model; constants stay in the file.
pub(crate) fn open(path: &Path) -> Result<TfliteModel> {
    let about = |source| Error::Io { action: "read", path: path.to_path_buf(), source };
    let region = File::open(path).and_then(Region::file).map_err(about)?;
    TfliteModel::open(region).map_err(|error| Error::Config(format!("{} cannot be read: {error}", path.display())))
}
