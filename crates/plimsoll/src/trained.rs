//! The trained model of a run folder, to evaluate and to predict with.

use crate::class_report::ClassReport;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::metrics::Scores;
use crate::output_columns::ModelColumns;
use crate::output_kind::OutputKind;
use crate::preprocessing::Preprocessing;
use crate::spec::{FitSpec, RunSpec};
use crate::trainer::{Prediction, Trainer};
use plimsoll_data::Dataset;
use std::path::{Path, PathBuf};

/// Which data of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// The training data, in the order of its source.
    Training,
    /// The validation data.
    HeldOut,
    /// The test data.
    Test,
}

/// A trained model and the data to use it on.
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
    fitted: Preprocessing,
    columns: ModelColumns,
}

impl Trained {
    /// Opens the model of a run folder. Without a choice of rows, the validation data is used, or the training data if
    /// there is none. `change` may edit the run's configuration first, to name other data or another budget.
    pub fn open(folder: &Path, rows: Option<Rows>, change: impl FnOnce(&mut Config) -> Result<()>) -> Result<Trained> {
        let weights = folder.join("weights.safetensors");
        let mut config = Config::read(&folder.join("config.toml"))?;
        if !weights.exists() {
            return Err(Error::Config(format!("{} has no weights.safetensors yet; train the run to its end", folder.display())));
        }
        config.remove_teacher();
        config.name_paths_from_current_folder();
        change(&mut config)?;
        if matches!(rows, None | Some(Rows::HeldOut)) {
            config.prefer_validation_data();
        }
        // What was fitted in training, not what other data would give.
        let fitted = Preprocessing::read(&weights)?.unwrap_or_default();
        if !fitted.is_empty() {
            config.set_preprocessing(fitted.clone());
        }
        let spec = config.build()?;
        let columns = config.model_columns(&fitted, &spec.losses)?;
        if rows == Some(Rows::Test) {
            let Some(data) = spec.test.clone() else {
                let what = "the run has no test data: name some as `data.test`, or set a share aside with `data.holdout = { share = 0.1, test = 0.1 }`";
                return Err(Error::Config(what.to_string()));
            };
            let fit = FitSpec { validation: None, ..spec.fit };
            let trainer = Trainer::from(RunSpec { data: data.clone(), fit, ..spec });
            return Ok(Trained { trainer, data, rows: Rows::Test, weights, fitted, columns });
        }
        match (spec.fit.validation.clone(), rows) {
            (Some(data), None | Some(Rows::HeldOut)) => {
                // The plan covers the rows that are read.
                let fit = FitSpec { validation: None, ..spec.fit };
                let trainer = Trainer::from(RunSpec { data: data.clone(), fit, ..spec });
                Ok(Trained { trainer, data, rows: Rows::HeldOut, weights, fitted, columns })
            }
            (None, Some(Rows::HeldOut)) => {
                Err(Error::Config("the run has no validation data: name some as `data.validation`, or use the training data".to_string()))
            }
            (_, _) => {
                // Predictions are in the order of the source.
                config.set_source_order()?;
                let trainer = Trainer::from(config.build()?);
                Ok(Trained { data: trainer.data().clone(), trainer, rows: Rows::Training, weights, fitted, columns })
            }
        }
    }

    /// The preprocessing that was stored with the weights.
    pub fn preprocessing(&self) -> &Preprocessing {
        &self.fitted
    }

    /// The columns that the outputs of the model predict.
    pub fn columns(&self) -> &ModelColumns {
        &self.columns
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

    /// How well classes are distinguished; none if the model is no classifier with one output, or the memory does not
    /// suffice.
    pub fn class_report(&mut self) -> Result<Option<ClassReport>> {
        self.trainer.load_weights(&self.weights)?;
        self.trainer.class_report(&self.data)
    }

    /// Passes the predictions to `sink`, one micro-batch at a time, in the order of the rows. Memory does not grow with
    /// their number. Where labels were standardized, predictions are in their original units. `sink` also gets what the
    /// outputs mean.
    pub fn predict(self, mut sink: impl FnMut(&Prediction<'_>, &[OutputKind])) -> Result<()> {
        let mut trainer = self.trainer.for_prediction();
        trainer.load_weights(&self.weights)?;
        let kinds = trainer.output_kinds()?;
        trainer.predict_rescaled(&self.data, &self.columns, |prediction| sink(prediction, &kinds))
    }
}
