//! What an export costs: the network and the file it was written to, scored on the same labelled rows.

use super::{ExportOptions, Origin, TrainedNetwork};
use crate::config::{Config, usual_losses};
use crate::error::{Error, Result};
use crate::metrics::Metric;
use crate::output_kind::{OutputKind, top};
use crate::predictor::TfliteFile;
use crate::spec::{FitSpec, RunSpec};
use crate::trainer::{Predicted, Trainer};
use plimsoll_data::{Dataset, Schema};
use std::path::Path;

/// A score of a network and of the file it was written to.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluated {
    /// Which rows: of the run, or of a configuration.
    pub data: String,
    /// How many rows.
    pub rows: u64,
    /// `accuracy`, or for values `mae`, the mean absolute error.
    pub metric: &'static str,
    /// The score of the network.
    pub before: f64,
    /// The score of the file.
    pub after: f64,
}

/// Scores a TFLite file and its network on the rows that are named, or on the validation rows of the run; none if there
/// are no labels.
pub(super) fn evaluate(network: &TrainedNetwork, file: &Path, options: &ExportOptions) -> Result<Option<Evaluated>> {
    let Some((spec, data)) = labelled(network, options.evaluate.as_deref())? else { return Ok(None) };
    let file = TfliteFile::open(file)?;
    let kinds = file.kinds();
    let asked = |what: &str| match &options.evaluate {
        Some(path) => Err(Error::Config(format!("cannot evaluate on {}: {what}", path.display()))),
        None => Ok(None),
    };
    let [kind] = kinds[..] else { return asked("the model has several outputs") };
    let names: Vec<&str> = network.model.outputs().collect();
    let label = spec.losses.of(&names)?[0].labels.clone().unwrap_or_else(|| "y".to_string());
    let Some(column) = data.rows.output_schema()?.index_of(&label) else {
        return asked(&format!("its rows have no labels `{label}`"));
    };
    let metric = if kind == OutputKind::Values { Metric::MeanAbsoluteError } else { Metric::Accuracy };
    let mut tally = ScoreSum::new(kind, column, &data.rows.output_schema()?);
    let budget = spec.budget.host;
    file.predict_rows(&data.rows, budget, |_, rows, outputs| tally.add(rows, &outputs[0]))?;
    if tally.rows == 0 {
        return asked("it has no rows");
    }
    let fit = FitSpec { validation: None, ..FitSpec::default() };
    let mut trainer = Trainer::from(RunSpec { data: data.rows.clone(), metrics: Some(vec![metric.clone()]), fit, test: None, ..spec });
    trainer.load_weights(match &network.origin {
        Origin::Run { weights, .. } => weights,
        Origin::File(path) => path,
    })?;
    let scores = trainer.evaluate(&data.rows)?;
    let Some(before) = scores.get(metric.name()) else { return asked("the network has no such score") };
    Ok(Some(Evaluated { data: data.name, rows: tally.rows, metric: metric.name(), before, after: tally.score() }))
}

/// Labelled rows, and what they are called.
struct Labelled {
    rows: Dataset,
    name: String,
}

/// The rows to evaluate on, with a description of the network that can be evaluated on them.
fn labelled(network: &TrainedNetwork, named: Option<&Path>) -> Result<Option<(RunSpec, Labelled)>> {
    let of_network = match &network.origin {
        Origin::Run { spec, .. } => (**spec).clone(),
        Origin::File(_) => RunSpec { losses: usual_losses(&network.model), model: network.model.clone(), ..RunSpec::default() },
    };
    let Some(path) = named else {
        let rows = of_network.fit.validation.clone();
        return Ok(rows.map(|rows| (of_network, Labelled { rows, name: "validation rows of the run".to_string() })));
    };
    let mut config = Config::read(path)?;
    if !network.fitted.is_empty() {
        config.set_preprocessing(network.fitted.clone());
    }
    let given = config.labelled_data()?;
    let spec = RunSpec { budget: given.budget, ..of_network };
    Ok(Some((spec, Labelled { rows: given.rows, name: format!("{} rows of {}", given.which, path.display()) })))
}

/// Sums over rows and their labels.
struct ScoreSum {
    kind: OutputKind,
    column: usize,
    /// Labels of a row.
    labels: usize,
    rows: u64,
    count: u64,
    sum: f64,
}

impl ScoreSum {
    fn new(kind: OutputKind, column: usize, schema: &Schema) -> ScoreSum {
        let labels = schema.columns()[column].shape.iter().product();
        ScoreSum { kind, column, labels, rows: 0, count: 0, sum: 0.0 }
    }

    fn add(&mut self, rows: &[Vec<Vec<f32>>], output: &Predicted) -> Result<()> {
        let per_row: usize = output.shape.iter().product();
        for (row, values) in rows.iter().zip(output.values.chunks_exact(per_row.max(1))) {
            let labels = &row[self.column];
            self.rows += 1;
            match self.kind {
                OutputKind::Classes { count, .. } => {
                    // A label is a class, or a score for each of them.
                    let wide = if self.labels == per_row { count } else { 1 };
                    for (scores, label) in values.chunks_exact(count).zip(labels.chunks_exact(wide)) {
                        let best = |scores: &[f32]| top(scores, 1).first().map(|(class, _)| *class);
                        let wanted = if wide == 1 { Some(label[0] as usize) } else { best(label) };
                        self.score_one(f64::from(u8::from(best(scores) == wanted)));
                    }
                }
                OutputKind::Binary { logits } => {
                    let middle = if logits { 0.0 } else { 0.5 };
                    for (value, label) in values.iter().zip(labels) {
                        self.score_one(f64::from(u8::from((*value >= middle) == (*label >= 0.5))));
                    }
                }
                OutputKind::Values => {
                    for (value, label) in values.iter().zip(labels) {
                        self.score_one(f64::from((value - label).abs()));
                    }
                }
            }
        }
        Ok(())
    }

    fn score_one(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn score(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }
}
