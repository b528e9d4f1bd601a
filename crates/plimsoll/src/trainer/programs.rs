//! The graphs of a run: the training step in its variants, evaluation and prediction, from one model.

use super::learning::Learning;
use crate::loss::{Objective, Prediction};
use crate::metrics::{self, Counters, Metric};
use crate::nn::{Model, PIECE_SHARE};
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, GraphError};
use plimsoll_core::passes::{optimize, split_concats};
use plimsoll_core::plan::Plan;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::step::Role;
use plimsoll_core::{Bytes, DType, ValueId};
use plimsoll_data::Schema;
use std::cell::OnceCell;

/// The name of the scalar by which each row counts: one over the rows of the whole batch.
pub(super) const ROW_SHARE: &str = "row_share";

/// The most columns a model reads.
pub(super) const MOST_INPUTS: usize = 8;

/// The output that is the share of answers that count, where some do not.
pub(super) const LOSS_WEIGHT: &str = "loss_weight";

/// The improved graphs of a run, and what the host must know about them.
pub(super) struct Programs {
    /// Without variants for micro-batches.
    pub whole: Vec<(Role, Graph)>,
    /// With them, if they were asked for.
    accumulating: OnceCell<Vec<(Role, Graph)>>,
    /// The forward part that is learnt from, its loss, and the share of answers that count.
    training: (Graph, ValueId, Option<ValueId>),
    learning: Learning,
    /// Whether pieces of a batch are normalised by other statistics than the whole.
    pub batch_statistics: bool,
    /// Which column of the batch each input is.
    pub columns: Vec<usize>,
    /// For class numbers as labels: the column and how many classes there are.
    pub classes: Option<(usize, usize)>,
    /// A label that is no class and does not count.
    pub ignored: Option<i32>,
    /// What is counted beside the loss.
    pub counters: Counters,
    /// The shape of one row's prediction.
    pub prediction: Vec<usize>,
}

/// Heap that one node of a graph costs: itself, the copies that are planned and loaded, its lines of the certificate, and what the C library
/// loses between them. Measured over networks of 1 to 600 layers and rounded up (`heap_peak_bytes` of `plimsoll train --json`).
const PER_NODE: u64 = 2048;

impl Programs {
    /// Heap for the graphs and everything that is as large as they are, if they are written in so many variants. What small graphs take is
    /// in the process's own footprint.
    pub fn footprint(&self, plan: &Plan, variants: u64) -> Bytes {
        let nodes = plan.programs.iter().map(|program| program.graph.nodes().len() as u64).sum::<u64>();
        // What is planned, and what it was made from.
        Bytes(((1 + variants) * nodes * PER_NODE).saturating_sub(SMALL.0)).align_up(4096)
    }

    /// Drops all that learns or measures.
    pub fn only_predict(&mut self) {
        self.whole.retain(|(role, _)| *role == Role::Predict);
    }

    /// The graphs with variants for micro-batches. Written when they are first needed: large networks take a while.
    pub fn accumulating(&self) -> Result<&[(Role, Graph)], GraphError> {
        if self.accumulating.get().is_none() {
            let (training, loss, counted) = &self.training;
            let mut graphs = self.learning.programs(training, *loss, *counted, true)?;
            graphs = graphs.into_iter().map(|(role, graph)| Ok((role, optimize(&graph)?))).collect::<Result<_, GraphError>>()?;
            // The rest does not learn, and stays as it is.
            graphs.extend(self.whole.iter().filter(|(role, _)| matches!(role, Role::Evaluate | Role::Predict)).cloned());
            let _ = self.accumulating.set(graphs);
        }
        Ok(self.accumulating.get().expect("set above"))
    }
}

/// What of that the process's footprint has room for.
const SMALL: Bytes = Bytes::mib(2);

/// Writes and improves all graphs of a run.
pub(super) fn programs(
    model: &Model,
    schema: &Schema,
    objective: &Objective,
    metrics: &[Metric],
    learning: &Learning,
) -> Result<Programs, GraphError> {
    let (features, y) = columns(schema, model)?;
    let weight = weights(schema, &features, y)?;
    let mut counters = Counters::default();
    let mut classes = None;
    let mut prediction_shape = Vec::new();
    let mut forward = |training: bool, with_loss: bool| -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let input = |g: &mut Graph, i: usize| {
            let column = &schema.columns()[i];
            g.input(&column.name, TensorType::new(column.dtype, Shape::batch_of(column.shape.iter().copied())))
        };
        let features: Vec<ValueId> = features.iter().map(|i| input(&mut g, *i)).collect();
        let lowered = model.lower(&mut g, &features, training)?;
        let prediction = Prediction { output: lowered.output, before_activation: lowered.before_activation };
        prediction_shape = g.shape(prediction.output).dims()[1..].iter().map(|dim| dim.factor()).collect();
        if !with_loss {
            // A copy if the model is empty: outputs are made by the step.
            let output = g.map(prediction.output, |_, x| x)?;
            g.output("prediction", output);
            return learning.precision.apply(split_concats(&g));
        }
        let labels = input(&mut g, y);
        classes = objective.classes(&g, prediction, labels).map(|classes| (y, classes));
        // Weights are for learning: held-out rows count alike, as in Keras.
        let weight = weight.filter(|_| training).map(|weight| input(&mut g, weight));
        let evenly = objective.clone().even();
        let objective = if training { objective } else { &evenly };
        g.in_scope("loss", |g| {
            let sum = objective.sum_of_rows(g, prediction, labels, weight)?;
            let share = g.scalar(ROW_SHARE);
            let counted = sum.counted.map(|counted| g.times(counted, share)).transpose()?;
            let mut loss = g.times(sum.loss, share)?;
            if let Some(penalty) = lowered.penalty {
                // Every row carries its share of what the weights cost, so that pieces of a batch add up to it once.
                let part = match counted {
                    Some(counted) => counted,
                    None => {
                        let piece = g.scalar(PIECE_SHARE);
                        g.pointwise(Expr::build(|e| e.div(e.input(0), e.input(1))), &[share, piece])?
                    }
                };
                loss = g.pointwise(Expr::build(|e| e.add(e.input(0), e.mul(e.input(1), e.input(2)))), &[loss, penalty, part])?;
            }
            g.output("loss", loss);
            if let Some(counted) = counted {
                g.output(LOSS_WEIGHT, counted);
            }
            Ok(())
        })?;
        counters = g.in_scope("metrics", |g| metrics::lower(metrics, g, objective, prediction, labels))?;
        learning.precision.apply(split_concats(&g))
    };
    let training = forward(true, true)?;
    let evaluation = forward(false, true)?;
    let prediction = forward(false, false)?;
    let output = |name: &str| training.outputs().iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let loss: ValueId = output("loss").expect("written above");
    let counted = output(LOSS_WEIGHT);
    let mut whole = learning.programs(&training, loss, counted, false)?;
    whole.push((Role::Evaluate, evaluation));
    whole.push((Role::Predict, prediction));
    let whole = whole.into_iter().map(|(role, graph)| Ok((role, optimize(&graph)?))).collect::<Result<_, GraphError>>()?;
    Ok(Programs {
        whole,
        accumulating: OnceCell::new(),
        training: (training, loss, counted),
        learning: learning.clone(),
        batch_statistics: model.has_batch_statistics(),
        columns: features.into_iter().chain([y]).chain(weight).collect(),
        classes,
        ignored: objective.ignored(),
        counters,
        prediction: prediction_shape,
    })
}

/// The column of sample weights, if there is one.
fn weights(schema: &Schema, features: &[usize], y: usize) -> Result<Option<usize>, GraphError> {
    let found = schema.index_of("weight").filter(|i| *i != y && !features.contains(i));
    match found.map(|i| &schema.columns()[i]) {
        Some(column) if matches!(column.dtype, DType::F64 | DType::I64) => Err(GraphError {
            scope: String::new(),
            what: format!("column `{}` is {}; steps compute with 32 bits", column.name, column.dtype),
        }),
        _ => Ok(found),
    }
}

/// The columns a model reads, and that of the labels: `x` and `y` if they are named so, else the first and the second.
/// A model with several inputs finds each by its name.
fn columns(schema: &Schema, model: &Model) -> Result<(Vec<usize>, usize), GraphError> {
    let error = |what: String| GraphError { scope: String::new(), what };
    if schema.columns().len() < 2 {
        return Err(error(format!("training needs a column of inputs and one of labels, but the data has only {schema}")));
    }
    let features = match model.inputs() {
        [single] => vec![schema.index_of(single).or_else(|| schema.index_of("x")).unwrap_or(0)],
        several if several.len() > MOST_INPUTS => {
            return Err(error(format!("the model reads {} columns, but a step reads at most {MOST_INPUTS}", several.len())));
        }
        several => {
            let find = |name: &String| {
                schema.index_of(name).ok_or_else(|| error(format!("the model reads a column `{name}`, but the data has only {schema}")))
            };
            several.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    let free = (0..schema.columns().len()).find(|i| !features.contains(i));
    let Some(y) = schema.index_of("y").filter(|y| !features.contains(y)).or(if features == [0] { Some(1) } else { free }) else {
        return Err(error(format!("training needs a column of labels beside what the model reads, but the data has only {schema}")));
    };
    let used = features.iter().copied().chain([y]).map(|i| &schema.columns()[i]);
    match used.into_iter().find(|column| matches!(column.dtype, DType::F64 | DType::I64)) {
        Some(column) => Err(error(format!("column `{}` is {}; steps compute with 32 bits", column.name, column.dtype))),
        None => Ok((features, y)),
    }
}
