//! What a run left in its folder, to measure it and to predict with it.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::metrics::Scores;
use crate::trainer::{Prediction, Trainer};
use plimsoll_data::Dataset;
use std::path::{Path, PathBuf};

/// Which rows of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Those it learns from, in the order of their source.
    Training,
    /// Those it holds out.
    HeldOut,
}

/// A trained model and the rows to use it on.
///
/// ```no_run
/// use plimsoll::{Rows, Trained};
/// let scores = Trained::open("runs/digits-1".as_ref(), Some(Rows::HeldOut), |_| Ok(()))?.evaluate()?;
/// println!("{:?}", scores.accuracy);
/// # Ok::<(), plimsoll::Error>(())
/// ```
pub struct Trained {
    trainer: Trainer,
    data: Dataset,
    rows: Rows,
    weights: PathBuf,
}

impl Trained {
    /// The model that a run of [`Run::train`](crate::Run::train) left in its folder. Without a choice of rows, those that are held out are taken, or those it learnt
    /// from if there are no others. `change` sees the run's configuration first, to name other data or another line.
    pub fn open(folder: &Path, rows: Option<Rows>, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<Trained> {
        let weights = folder.join("weights.safetensors");
        let mut config = Config::read(&folder.join("config.toml"))?;
        if !weights.exists() {
            return Err(Error::Config(format!("{} has no weights.safetensors yet; train the run to its end", folder.display())));
        }
        change(&mut config)?;
        let spec = config.build()?;
        match (spec.fit.validation.clone(), rows) {
            (Some(data), None | Some(Rows::HeldOut)) => Ok(Trained { trainer: spec.into(), data, rows: Rows::HeldOut, weights }),
            (None, Some(Rows::HeldOut)) => {
                Err(Error::Config("the run holds no rows out: name them as `data.validation`, or take those it learnt from".to_string()))
            }
            (_, None | Some(Rows::Training)) => {
                // Predictions belong to rows, so they come in the order of the rows.
                config.set_source_order()?;
                let trainer = Trainer::from(config.build()?);
                Ok(Trained { data: trainer.data().clone(), trainer, rows: Rows::Training, weights })
            }
        }
    }

    /// Which rows are used.
    pub fn rows(&self) -> Rows {
        self.rows
    }

    /// Loss and metrics.
    pub fn evaluate(&mut self) -> Result<Scores> {
        self.trainer.load_weights(&self.weights)?;
        self.trainer.evaluate(&self.data)
    }

    /// Hands the predictions to `sink` piece by piece, in the order of the rows. Memory does not grow with their number.
    pub fn predict(self, sink: impl FnMut(&Prediction<'_>)) -> Result<()> {
        let mut trainer = self.trainer.for_prediction();
        trainer.load_weights(&self.weights)?;
        trainer.predict_with(&self.data, sink)
    }
}
