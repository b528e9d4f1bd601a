//! Accumulators of metrics: their nodes in a graph, and the metrics computed from them.

use super::{Metric, Scores};
use crate::loss::labels::{Labels, class_logits, label_format, labels_like, per_row, predictions_per_row};
use crate::loss::{ModelOutput, Objective};
use crate::nn::Activation;
use plimsoll_core::expr::{Binary, Expr, Unary};
use plimsoll_core::graph::{Init, StateKind};
use plimsoll_core::ops::Reduction;
use plimsoll_core::{Graph, GraphError, Shape, TensorType, ValueId};

/// Counts per class: true positives, predictions, labels.
const PER_CLASS: [&str; 3] = ["true_positives", "predicted", "labelled"];

/// The accumulators of one output's metrics.
#[derive(Clone, Debug, Default)]
pub(crate) struct Accumulators {
    metrics: Vec<Metric>,
    /// The scalar outputs that accumulate it, by name.
    pub sums: Vec<String>,
    /// Predictions per row.
    predictions: usize,
    /// Elements of the output per row.
    width: usize,
    /// Classes with counts of their own.
    pub classes: usize,
    /// The prefix of the names of its sums.
    prefix: String,
    /// The scope of its states.
    pub scope: String,
}

impl Accumulators {
    /// The states with counts per class, by name.
    pub fn states(&self) -> impl Iterator<Item = String> {
        PER_CLASS.iter().filter(|_| self.classes > 0).map(|name| format!("metrics/{}{name}", self.scope))
    }

    /// The metrics.
    pub fn metrics(&self) -> &[Metric] {
        &self.metrics
    }

    /// Predictions per row.
    pub fn predictions(&self) -> u64 {
        self.predictions as u64
    }

    fn sum(&self, sums: &[f64], name: &str) -> Option<f64> {
        self.sums.iter().position(|own| own.strip_prefix(&self.prefix) == Some(name)).map(|i| sums[i])
    }

    /// The accuracy, if it is among the metrics.
    pub fn accuracy(&self, sums: &[f64], rows: u64) -> Option<f64> {
        self.sum(sums, "correct").filter(|_| self.metrics.contains(&Metric::Accuracy)).map(|correct| correct / self.counted(sums, rows))
    }

    /// Predictions that count.
    fn counted(&self, sums: &[f64], rows: u64) -> f64 {
        self.sum(sums, "predictions").unwrap_or(rows as f64 * self.predictions as f64).max(1.0)
    }

    /// All metrics from the sums over some rows and the counts per class.
    pub fn scores(&self, loss: f64, sums: &[f64], rows: u64, counts: &[f64]) -> Scores {
        let sum = |name: &str| self.sum(sums, name).unwrap_or(0.0);
        let (predictions, numbers) = (self.counted(sums, rows), (rows as f64 * self.width as f64).max(1.0));
        let mut scores = Scores { loss, accuracy: self.accuracy(sums, rows), ..Scores::default() };
        for metric in &self.metrics {
            let value = match metric {
                Metric::Accuracy => continue,
                Metric::TopK(_) => sum(&metric.to_string()) / predictions,
                Metric::Perplexity => (sum("entropy") / predictions).exp(),
                Metric::MeanAbsoluteError => sum("absolute_error") / numbers,
                Metric::MeanSquaredError => sum("squared_error") / numbers,
                Metric::Custom(own) => sum(own.name()) / rows.max(1) as f64,
                Metric::R2 => {
                    let spread = sum("labels_squared") - sum("labels") * sum("labels") / numbers;
                    1.0 - sum("squared_error") / spread
                }
                per_class => {
                    let of = |correct: f64, predicted: f64, labelled: f64| match per_class {
                        Metric::Precision => correct / predicted,
                        Metric::Recall => correct / labelled,
                        Metric::F1 => 2.0 * correct / (predicted + labelled),
                        _ => correct / (predicted + labelled - correct),
                    };
                    let class = |c: usize| of(counts[c], counts[self.classes + c], counts[2 * self.classes + c]);
                    let each: Vec<f64> = (0..self.classes).map(class).collect();
                    // IoU is the mean over classes that occur; precision of a class that is never predicted is 0.
                    let known: Vec<f64> = each.iter().copied().filter(|value| *per_class != Metric::MeanIou || !value.is_nan()).collect();
                    let mean = known.iter().map(|value| if value.is_nan() { 0.0 } else { *value }).sum::<f64>() / known.len().max(1) as f64;
                    scores
                        .per_class
                        .push((metric.to_string(), each.iter().map(|value| if value.is_nan() { 0.0 } else { *value }).collect()));
                    mean
                }
            };
            scores.more.push((metric.to_string(), value));
        }
        scores
    }
}

/// Adds the accumulators of an output's metrics to a graph: scalar outputs, and states with counts per class.
pub(crate) fn lower(
    metrics: &[Metric],
    g: &mut Graph,
    objective: &Objective,
    prediction: ModelOutput,
    labels: ValueId,
    prefix: &str,
) -> Result<Accumulators, GraphError> {
    let mut accumulators = Accumulators {
        metrics: metrics.to_vec(),
        predictions: 1,
        width: per_row(g, prediction.output),
        prefix: prefix.to_string(),
        ..Accumulators::default()
    };
    let has = |wanted: Metric| metrics.contains(&wanted);
    let binary = objective.loss().is_binary();
    let over_answers =
        metrics.iter().any(|metric| matches!(metric, Metric::Accuracy | Metric::TopK(_) | Metric::Perplexity) || metric.is_per_class());
    let mut put = |g: &mut Graph, name: &str, value: ValueId| {
        let name = format!("{prefix}{name}");
        g.output(&name, value);
        accumulators.sums.push(name);
    };
    if over_answers && !binary {
        let (scores, classes) = class_logits(g, prediction.logits(Activation::Softmax))?;
        let predictions = predictions_per_row(g, scores);
        let numbers = objective.class_ids(g, prediction, labels)?;
        let counts = objective.ignored_class().map(|_| objective.count_mask(g, prediction, labels)).transpose()?;
        let counting = |g: &mut Graph, value: ValueId| counts.map_or(Ok(value), |counts| g.times(value, counts));
        let chosen = g.reduce(Reduction::ArgMax, scores, &[1])?;
        if let Some(counts) = counts {
            let all = g.sum(counts)?;
            put(g, "predictions", all);
        }
        if has(Metric::Accuracy) {
            let equal = g.binary(Binary::Equal, chosen, numbers)?;
            let equal = counting(g, equal)?;
            let correct = g.sum(equal)?;
            put(g, "correct", correct);
        }
        let here = || Expr::build(|e| e.select(e.binary(Binary::Equal, e.coordinate(1), e.input(1)), e.input(0), e.constant(0.0)));
        for metric in metrics {
            let Metric::TopK(k) = metric else { continue };
            let own = g.pointwise(here(), &[scores, numbers])?;
            let own = g.reduce(Reduction::Sum, own, &[1])?;
            let better = g.binary(Binary::Less, own, scores)?;
            let better = g.reduce(Reduction::Sum, better, &[1])?;
            let among = g.map(better, |e, better| e.binary(Binary::Less, better, e.constant(*k as f32)))?;
            let among = counting(g, among)?;
            let among = g.sum(among)?;
            put(g, &metric.to_string(), among);
        }
        if has(Metric::Perplexity) {
            let log_sum = g.reduce(Reduction::LogSumExp, scores, &[1])?;
            let entropy = match label_format(g, labels, scores, classes)? {
                Labels::ClassIds(labels) => {
                    let own = Expr::build(|e| {
                        let here = e.binary(Binary::Equal, e.coordinate(1), e.input(1));
                        e.select(here, e.sub(e.input(2), e.input(0)), e.constant(0.0))
                    });
                    g.pointwise(own, &[scores, labels, log_sum])?
                }
                Labels::Probabilities(labels) => {
                    g.pointwise(Expr::build(|e| e.mul(e.input(1), e.sub(e.input(2), e.input(0)))), &[scores, labels, log_sum])?
                }
            };
            let entropy = counting(g, entropy)?;
            let entropy = g.sum(entropy)?;
            put(g, "entropy", entropy);
        }
        if metrics.iter().any(|metric| metric.is_per_class()) {
            let hot = |g: &mut Graph, number: ValueId| {
                let shape = Shape::new([g.shape(number).dims()[0], classes.into()]);
                let hot = g.pointwise_over(Expr::build(|e| e.binary(Binary::Equal, e.coordinate(1), e.input(0))), &[number], shape)?;
                counting(g, hot)
            };
            let (predicted, labelled) = (hot(g, chosen)?, hot(g, numbers)?);
            count_classes(g, predicted, labelled, classes)?;
            accumulators.classes = classes;
        }
        accumulators.predictions = predictions;
    } else if over_answers {
        if let Some(metric) = metrics.iter().find(|metric| matches!(metric, Metric::TopK(_) | Metric::Perplexity)) {
            return Err(
                g.error(format!("the metric {metric} needs a categorical loss, but the loss {} is binary", objective.loss().name()))
            );
        }
        let scores = prediction.logits(Activation::Sigmoid);
        let labels = labels_like(g, labels, scores)?;
        // A logit above zero is positive.
        let yes = g.map(scores, |e, score| e.binary(Binary::Less, e.constant(0.0), score))?;
        let wanted = g.map(labels, |e, label| e.binary(Binary::Less, e.constant(0.5), label))?;
        accumulators.predictions = per_row(g, scores);
        if has(Metric::Accuracy) {
            let equal = g.binary(Binary::Equal, yes, wanted)?;
            let correct = g.sum(equal)?;
            put(g, "correct", correct);
        }
        if metrics.iter().any(|metric| metric.is_per_class()) {
            let width = per_row(g, scores);
            let rows = Shape::batch_of([width]);
            let (predicted, labelled) = (g.reshape(yes, rows.clone())?, g.reshape(wanted, rows)?);
            count_classes(g, predicted, labelled, width)?;
            accumulators.classes = width;
        }
    }
    if has(Metric::MeanAbsoluteError) || has(Metric::MeanSquaredError) || has(Metric::R2) {
        let labels = labels_like(g, labels, prediction.output)?;
        let difference = |g: &mut Graph| g.binary(Binary::Sub, prediction.output, labels);
        if has(Metric::MeanAbsoluteError) {
            let sizes = difference(g)?;
            let sizes = g.unary(Unary::Abs, sizes)?;
            let sum = g.sum(sizes)?;
            put(g, "absolute_error", sum);
        }
        if has(Metric::MeanSquaredError) || has(Metric::R2) {
            let squares = difference(g)?;
            let squares = g.times(squares, squares)?;
            let sum = g.sum(squares)?;
            put(g, "squared_error", sum);
        }
        if has(Metric::R2) {
            let copied = g.map(labels, |_, x| x)?;
            let sum = g.sum(copied)?;
            put(g, "labels", sum);
            let squares = g.times(labels, labels)?;
            let sum = g.sum(squares)?;
            put(g, "labels_squared", sum);
        }
    }
    for metric in metrics {
        let Metric::Custom(own) = metric else { continue };
        if metrics.iter().filter(|other| other.name() == own.name()).count() > 1 {
            return Err(g.error(format!("two metrics are called `{}`; names should be unique", own.name())));
        }
        let rows = own.rows(g, prediction.output, labels)?;
        let sum = g.sum(rows)?;
        put(g, own.name(), sum);
    }
    Ok(accumulators)
}

/// Accumulates true positives, predictions and labels per class.
fn count_classes(g: &mut Graph, predicted: ValueId, labelled: ValueId, classes: usize) -> Result<(), GraphError> {
    let both = g.times(predicted, labelled)?;
    for (name, counted) in PER_CLASS.iter().zip([both, predicted, labelled]) {
        let here = g.reduce(Reduction::Sum, counted, &[0])?;
        let before = g.state(name, StateKind::Metric, TensorType::f32(Shape::fixed([1, classes])), Init::Constant(0.0))?;
        let after = g.plus(before, here)?;
        let state = g.as_state(before).expect("just declared");
        g.update(state, after);
    }
    Ok(())
}
