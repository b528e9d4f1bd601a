//! The metrics of all outputs of a model.

use super::accumulators::{Accumulators, lower};
use super::{Metric, Scores};
use crate::loss::{ModelOutput, Objective};
use plimsoll_core::plan::NUMBERS;
use plimsoll_core::{Graph, GraphError, ValueId};

/// The metrics of all outputs. With several outputs, the sums of each begin with its own loss, and names are prefixed.
#[derive(Clone, Debug, Default)]
pub(crate) struct ModelMetrics {
    outputs: Vec<OutputMetrics>,
}

#[derive(Clone, Debug)]
struct OutputMetrics {
    /// The prefix of its names: empty, or the output's name and a `_`.
    prefix: String,
    accumulators: Accumulators,
}

/// An output of a model with its labels and loss, in a graph.
pub(crate) struct LabelledOutput<'a> {
    pub name: &'a str,
    pub objective: &'a Objective,
    pub metrics: &'a [Metric],
    pub prediction: ModelOutput,
    pub labels: ValueId,
    /// The sum of the rows' losses.
    pub loss: ValueId,
}

impl ModelMetrics {
    /// Adds the accumulators of all outputs' metrics to a graph.
    pub fn lower(g: &mut Graph, results: &[LabelledOutput<'_>]) -> Result<ModelMetrics, GraphError> {
        let mut all = ModelMetrics::default();
        let single = results.len() == 1;
        for result in results {
            let LabelledOutput { name, objective, metrics, prediction, labels, loss } = *result;
            let prefix = if single { String::new() } else { format!("{name}_") };
            let accumulators = match single {
                true => lower(metrics, g, objective, prediction, labels, &prefix)?,
                false => g.in_scope(name, |g| {
                    let own = format!("{prefix}loss");
                    g.output(&own, loss);
                    let mut accumulators = lower(metrics, g, objective, prediction, labels, &prefix)?;
                    accumulators.sums.insert(0, own);
                    accumulators.scope = format!("{name}/");
                    Ok(accumulators)
                })?,
            };
            all.outputs.push(OutputMetrics { prefix, accumulators });
        }
        // The loss and its divisor take two of them.
        let sums = all.sums().count();
        if sums + 2 > NUMBERS {
            return Err(g.error(format!("the metrics need {sums} accumulators, but a step has {}; request fewer", NUMBERS - 2)));
        }
        Ok(all)
    }

    /// The scalar outputs that accumulate metrics, by name.
    pub fn sums(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().flat_map(|output| output.accumulators.sums.iter().map(String::as_str))
    }

    /// The states with counts per class, by name, and the number of classes.
    pub fn states(&self) -> impl Iterator<Item = (String, usize)> {
        self.outputs.iter().flat_map(|output| output.accumulators.states().map(|name| (name, output.accumulators.classes)))
    }

    /// The maximum number of predictions per row.
    pub fn predictions(&self) -> u64 {
        self.outputs.iter().map(|output| output.accumulators.predictions()).max().unwrap_or(0)
    }

    /// Scalars of an epoch, at most.
    pub fn scalars(&self) -> usize {
        self.outputs.iter().map(|output| 1 + output.accumulators.metrics().len()).sum::<usize>() + 1
    }

    /// Values per class of an epoch, and counts that they are computed from.
    pub fn class_values(&self) -> (usize, usize) {
        let own = |accumulators: &Accumulators| {
            let metrics = accumulators.metrics().iter().filter(|metric| metric.is_per_class()).count();
            (metrics * accumulators.classes, accumulators.states().count() * accumulators.classes)
        };
        self.outputs.iter().map(|output| own(&output.accumulators)).fold((0, 0), |all, own| (all.0 + own.0, all.1 + own.1))
    }

    /// The losses and accuracies of no rows, with their names.
    pub fn no_scores(&self) -> Scores {
        let mut scores = Scores::default();
        if self.outputs.len() > 1 {
            let named = |score: &'static str| move |output: &OutputMetrics| (format!("{}{score}", output.prefix), 0.0);
            let no_sums = |output: &OutputMetrics| vec![0.0; output.accumulators.sums.len()];
            let accuracies = self.outputs.iter().filter(|output| output.accumulators.accuracy(&no_sums(output), 0).is_some());
            scores.more = self.outputs.iter().map(named("loss")).chain(accuracies.map(named("accuracy"))).collect();
        }
        scores
    }

    /// Sets the losses and accuracies so far, which are cheap at any time, in scores of
    /// [`no_scores`](ModelMetrics::no_scores). Allocates nothing.
    pub fn update_running(&self, scores: &mut Scores, loss: f64, sums: &[f64], rows: u64) {
        scores.loss = loss;
        if let [OutputMetrics { accumulators, .. }] = &self.outputs[..] {
            scores.accuracy = accumulators.accuracy(sums, rows);
            return;
        }
        let losses = self.parts(sums, &[]).map(|(_, sums, _)| sums[0] / rows.max(1) as f64);
        let accuracies = self.parts(sums, &[]).filter_map(|(output, sums, _)| output.accumulators.accuracy(sums, rows));
        scores.more.iter_mut().zip(losses.chain(accuracies)).for_each(|((_, known), value)| *known = value);
    }

    /// All metrics from the sums over some rows and the counts per class.
    pub fn scores(&self, loss: f64, sums: &[f64], rows: u64, counts: &[f64]) -> Scores {
        if let [OutputMetrics { accumulators, .. }] = &self.outputs[..] {
            return accumulators.scores(loss, sums, rows, counts);
        }
        let mut scores = Scores { loss, ..Scores::default() };
        self.put_losses(&mut scores, sums, rows);
        for (OutputMetrics { prefix, accumulators }, sums, counts) in self.parts(sums, counts) {
            let own = accumulators.scores(0.0, sums, rows, counts);
            let named = |name: &str| format!("{prefix}{name}");
            scores.more.extend(own.iter().skip(1).map(|(name, value)| (named(name), value)));
            scores.per_class.extend(own.per_class.iter().map(|(name, values)| (named(name), values.clone())));
        }
        scores
    }

    fn put_losses(&self, scores: &mut Scores, sums: &[f64], rows: u64) {
        for (output, sums, _) in self.parts(sums, &[]) {
            scores.more.push((format!("{}loss", output.prefix), sums[0] / rows.max(1) as f64));
        }
    }

    /// Each output with its sums and counts.
    fn parts<'a>(&'a self, mut sums: &'a [f64], mut counts: &'a [f64]) -> impl Iterator<Item = (&'a OutputMetrics, &'a [f64], &'a [f64])> {
        self.outputs.iter().map(move |output| {
            let (own, rest) = sums.split_at(output.accumulators.sums.len());
            let (own_counts, other_counts) =
                counts.split_at((output.accumulators.states().count() * output.accumulators.classes).min(counts.len()));
            (sums, counts) = (rest, other_counts);
            (output, own, own_counts)
        })
    }
}
