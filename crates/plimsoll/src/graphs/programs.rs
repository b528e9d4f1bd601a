//! The graphs of a run: the training step in its variants, evaluation and prediction, from one model.

use super::training::{Update, training_programs};
use crate::error::Error;
use crate::loss::{Loss, ModelOutput};
use crate::metrics::{LabelledOutput, ModelMetrics};
use crate::nn::{Activation, Model};
use crate::output_loss::{OutputLoss, OutputLosses};
use crate::prune::PrunedWeight;
use crate::spec::{Optimization, RunSpec};
use plimsoll_core::expr::Expr;
use plimsoll_core::fixed_order::FixedOrder;
use plimsoll_core::graph::{Graph, GraphError, State, StateKind};
use plimsoll_core::passes::{Columns, optimize, pad_classes, split_concats};
use plimsoll_core::plan::offload::candidates;
use plimsoll_core::plan::split::logits_in_blocks;
use plimsoll_core::plan::{Plan, Program};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::sharding::Sharding;
use plimsoll_core::step::{Role, accumulators_resume};
use plimsoll_core::{Bytes, DType, ValueId, verify};
use plimsoll_data::Schema;
use std::sync::{Arc, OnceLock};

/// The scalar with the weight of each row: one over the rows of the whole batch.
pub(crate) const ROW_SHARE: &str = "row_share";

/// The scalar with the share of the weight regularization that a micro-batch includes: the last one of a training step
/// includes all of it, so that it is the same in any micro-batches.
pub(crate) const PENALTY_SHARE: &str = "penalty_share";

/// The size of a block of logits on a GPU: large enough for matrix products at full speed.
const LOGIT_BLOCK: Bytes = Bytes::mib(512);

/// Larger predictions of a batch are not computed beside training on a GPU.
const LARGEST_PREDICTIONS: Bytes = Bytes::gib(1);

/// The maximum number of columns a model reads.
const MAX_INPUTS: usize = 8;

/// The maximum number of outputs with a loss.
const MAX_OUTPUTS: usize = 8;

/// The maximum number of columns a step reads: features, labels and sample weights.
pub(crate) const MAX_COLUMNS: usize = MAX_INPUTS + MAX_OUTPUTS + 1;

/// The output with the fraction of labels that are not ignored.
pub(crate) const LOSS_WEIGHT: &str = "loss_weight";

/// The optimized graphs of a run, and how the host feeds them.
pub(crate) struct Programs {
    /// Without variants for micro-batches.
    pub whole: Vec<(Role, Graph)>,
    /// With them, if they were requested.
    accumulating: OnceLock<Vec<(Role, Graph)>>,
    /// The training graph's forward part, its loss, and the fraction of labels that are not ignored.
    /// None of programs that only predict.
    training: Option<(Graph, ValueId, Option<ValueId>)>,
    pub optimization: Optimization,
    /// Ranks that gradients are summed over, and the order of sums, if it is fixed.
    ranks: usize,
    order: Option<FixedOrder>,
    /// What is divided over the ranks.
    pub sharding: Option<Sharding>,
    /// Whether the device's sums over rows resume from those of earlier micro-batches.
    resumes: bool,
    /// Whether batch normalization sees other statistics in a micro-batch than in the whole batch.
    pub batch_statistics: bool,
    /// Whether it has the statistics of the rows of all ranks.
    pub synchronized: bool,
    pub interface: Arc<ProgramInterface>,
}

/// What the host must know to feed the programs and to read their results.
#[derive(Clone, Debug)]
pub(crate) struct ProgramInterface {
    /// Which column of the batch each input is.
    pub columns: Vec<usize>,
    /// The columns that hold class numbers or tokens, with their ranges.
    pub ranges: Vec<ValueRange>,
    /// The metrics computed beside the loss.
    pub model_metrics: ModelMetrics,
    /// The model's outputs: the name of each and the shape of one row of it.
    pub outputs: Vec<(String, Vec<usize>)>,
    /// The activation that each of them ends in, if there is one.
    pub activations: Vec<Option<Activation>>,
    /// The weights that training prunes.
    pub pruned: Vec<PrunedWeight>,
}

/// A column whose integers must be below a bound.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValueRange {
    pub column: usize,
    /// The number of classes or tokens.
    pub count: usize,
    pub kind: ValueKind,
}

/// What such integers are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ValueKind {
    /// Class labels, and perhaps an ignored label.
    Labels(Option<i32>),
    /// Rows of an embedding.
    Tokens,
}

/// Heap of a run per node of its planned graphs, with its buffers and its certificate while that is written; and for
/// each time that it is loaded.
const RUN_PER_NODE: u64 = 400;
const LOADED_PER_NODE: u64 = 850;

/// The same per node of a program with split layers, whose nodes have slices.
const RUN_PER_NODE_SPLIT: u64 = 600;
const LOADED_PER_NODE_SPLIT: u64 = 1_250;

/// Memory of planning whatever the graphs: tables and code of the searches, what the allocator keeps of freed blocks,
/// and graphs of split layers before they are counted. Debug builds count all code with the process.
const SEARCH: u64 = if cfg!(debug_assertions) { 9 << 18 } else { 12 << 18 };

/// Gaps that a search for strategies leaves between blocks that the run still uses.
pub(crate) const GAPS_OF_SEARCH: Bytes = Bytes::kib(1024);

/// What a process holds at its start, beside its footprint: more code is resident until the mappings of the program
/// file are divided.
const START: u64 = 6 << 18;

/// Heap of planning a run as it is specified: in all, and per node.
const AS_SPECIFIED: u64 = 2 << 17;
const AS_SPECIFIED_PER_NODE: u64 = 2_350;

/// Heap of planning per node of the graphs that plans are made from.
const SOURCE_PER_NODE: u64 = 720;

/// Heap of planning per node of the plans that are compared: the best so far, a sketch, and its smallest layout. Plans
/// that recompute and offload nothing share the nodes of the source; the programs of micro-batches share much with each
/// other.
const PLANNED_PER_NODE: u64 = 3_150;
const PLANNED_PER_NODE_SHARED: u64 = 2_050;
const PLANNED_PER_NODE_ACCUMULATING: u64 = 1_750;

/// Nodes of the programs for micro-batches, at most, in multiples of those for whole batches.
const ACCUMULATING_NODES: u64 = 3;

/// Micro-batches that take no more memory to plan than this are always considered.
const SMALL_PLANNING: Bytes = Bytes::mib(4);

/// Smaller tensors are not offloaded: a copy has a fixed cost.
pub(crate) const SMALLEST_OFFLOADED: Bytes = Bytes::kib(4);

/// A plan, as far as the memory of planning it depends on it.
pub(crate) struct PlannedRun {
    /// Nodes of its programs.
    pub nodes: u64,
    /// Whether it accumulates gradients.
    pub accumulates: bool,
    /// What a run of whole batches without any strategy holds beside the process; none for other runs.
    pub as_specified: Option<Bytes>,
}

/// What planning compares, as far as its memory depends on it.
#[derive(Clone, Copy)]
pub(crate) struct PlanSpace {
    /// Rows of the batch.
    pub batch: usize,
    /// Whether batches may be divided into micro-batches.
    pub micro_batches: bool,
    /// Whether tensors may be offloaded.
    pub offload: bool,
    /// Whether there is more than one variant: those as specified and one other are held.
    pub several_variants: bool,
    /// Memory of the opened datasets, which they hold while the run is planned.
    pub data: Bytes,
}

impl Programs {
    /// Heap of the graphs and loaded programs of a run, and of all data proportional to them. A program is loaded for
    /// `loads` numbers of rows.
    pub fn heap(plan: &Plan, loads: impl Fn(Role) -> usize) -> Bytes {
        let of_program = |program: &Program| {
            let (planned, loaded) = match program.graph.pieces() > 1 {
                true => (RUN_PER_NODE_SPLIT, LOADED_PER_NODE_SPLIT),
                false => (RUN_PER_NODE, LOADED_PER_NODE),
            };
            program.graph.nodes().len() as u64 * (planned + loads(program.role) as u64 * loaded)
        };
        Bytes(plan.programs.iter().map(of_program).sum()).align_up(4096)
    }

    /// Heap per node of a plan while it is compared with others.
    pub fn heap_per_node(accumulating: bool) -> Bytes {
        Bytes(if accumulating { PLANNED_PER_NODE_ACCUMULATING } else { PLANNED_PER_NODE })
    }

    /// Peak heap of planning. Measured over networks of 1 to 1,000 layers (`heap_peak_bytes` of
    /// `plimsoll train --json`) and rounded up.
    pub fn planning_heap(&self, planned: &PlannedRun, compared: PlanSpace) -> Result<Bytes, GraphError> {
        if planned.as_specified.is_some_and(|run| run <= self.search_heap(compared)) {
            return Ok(self.planning_heap_as_specified(compared));
        }
        let whole = self.whole_nodes();
        let accumulating = if compared.micro_batches { nodes(self.accumulating()?.iter().map(|(_, graph)| graph)) } else { 0 };
        let of_whole = self.per_node(planned.nodes, compared) * if planned.accumulates { whole } else { whole.max(planned.nodes) };
        // Rewritten for splitting and offloading, the programs of micro-batches share nothing.
        let of_micro_batches = match planned.accumulates && planned.nodes > accumulating {
            true => PLANNED_PER_NODE * planned.nodes,
            false => PLANNED_PER_NODE_ACCUMULATING * accumulating,
        };
        Ok(searching(whole + accumulating, of_whole.max(of_micro_batches), compared))
    }

    /// Peak heap of planning a run as it is specified, without comparing strategies.
    pub fn planning_heap_as_specified(&self, compared: PlanSpace) -> Bytes {
        (Bytes(AS_SPECIFIED + self.whole_nodes() * AS_SPECIFIED_PER_NODE) + compared.data).max(Bytes(START)).align_up(4096)
    }

    /// Heap of a search for strategies, at least. A run that holds no more as it is specified is planned without a
    /// search: that could not lower the peak.
    pub fn search_heap(&self, compared: PlanSpace) -> Bytes {
        searching(self.whole_nodes(), self.per_node(0, compared) * self.whole_nodes(), compared)
    }

    /// The same, at most.
    pub fn search_heap_at_most(&self, compared: PlanSpace) -> Bytes {
        let whole = self.whole_nodes();
        let accumulating = if compared.micro_batches { ACCUMULATING_NODES * whole } else { 0 };
        let planned = (PLANNED_PER_NODE * whole).max(PLANNED_PER_NODE_ACCUMULATING * accumulating);
        searching(whole + accumulating, planned, compared)
    }

    fn per_node(&self, planned: u64, compared: PlanSpace) -> u64 {
        let rewritten = planned > self.whole_nodes() || (compared.offload && self.has_offloadable(compared.batch));
        if rewritten { PLANNED_PER_NODE } else { PLANNED_PER_NODE_SHARED }
    }

    /// Whether micro-batches can save more memory than it takes to plan them: all values of a step of `batch` rows are
    /// larger.
    pub fn worth_dividing(&self, batch: usize) -> bool {
        let accumulating = ACCUMULATING_NODES * self.whole_nodes();
        let planning = Bytes((self.whole_nodes() + accumulating) * SOURCE_PER_NODE + accumulating * PLANNED_PER_NODE_ACCUMULATING);
        let values =
            |graph: &Graph| graph.nodes().flat_map(|(_, node)| &node.outputs).map(|value| graph.ty(*value).bytes(batch)).sum::<Bytes>();
        planning <= SMALL_PLANNING || self.whole.first().is_some_and(|(_, step)| planning <= values(step))
    }

    fn whole_nodes(&self) -> u64 {
        nodes(self.whole.iter().map(|(_, graph)| graph))
    }

    /// Whether a tensor of the step is large enough to be offloaded.
    fn has_offloadable(&self, batch: usize) -> bool {
        let large = |state: &State| matches!(state.kind, StateKind::Optimizer) && state.ty.bytes(1) >= SMALLEST_OFFLOADED;
        let value = |graph: &Graph| candidates(graph, batch).first().is_some_and(|(_, size)| *size >= SMALLEST_OFFLOADED);
        self.whole.first().is_some_and(|(_, step)| step.states().iter().any(large) || value(step))
    }

    /// Computes the losses over large vocabularies in blocks of rows, with their classes padded to whole vectors.
    pub fn compute_logits_in_blocks(&mut self, rows: usize) -> Result<(), GraphError> {
        // Predictions are returned whole: those of a large vocabulary would take more memory than training, which needs
        // none.
        let outputs = |graph: &Graph| graph.outputs().iter().map(|(_, value)| graph.ty(*value).bytes(rows)).sum::<Bytes>();
        let trains = self.training.is_some();
        self.whole.retain(|(role, graph)| *role != Role::Predict || !trains || outputs(graph) <= LARGEST_PREDICTIONS);
        for (_, graph) in self.whole.iter_mut().filter(|(role, _)| *role != Role::Predict) {
            *graph = pad_classes(graph);
            if let Some(blocks) = logits_in_blocks(graph, rows, LOGIT_BLOCK) {
                *graph = blocks;
            }
            verify(graph)?;
        }
        Ok(())
    }

    /// Whether micro-batches of any size give the same bits as whole batches: every sum over rows resumes where the
    /// previous micro-batch stopped, and nothing else depends on how the batch is divided.
    pub fn accumulates_exactly(&self) -> Result<bool, GraphError> {
        if self.order.is_some() {
            // Micro-batches are those of the run itself.
            return Ok(!self.batch_statistics);
        }
        let resumes = |(role, graph): &(Role, Graph)| *role != Role::Middle || accumulators_resume(graph);
        Ok(self.resumes && !self.batch_statistics && self.accumulating()?.iter().all(resumes))
    }

    /// The training step before any pass. None of programs that only predict.
    fn unoptimized_step(&self) -> Result<Option<Graph>, GraphError> {
        let Some((training, loss, counted)) = &self.training else { return Ok(None) };
        let programs = training_programs(self.update(), training, *loss, *counted, false, self.resumes)?;
        Ok(programs.into_iter().find(|(role, _)| *role == Role::Step).map(|(_, graph)| graph))
    }

    fn update(&self) -> Update<'_> {
        let Programs { optimization, ranks, order, sharding, .. } = self;
        Update { optimization, pruned: &self.interface.pruned, ranks: *ranks, order: *order, sharding: *sharding }
    }

    /// The graphs with variants for micro-batches. Built on first use, because large networks take a while.
    pub fn accumulating(&self) -> Result<&[(Role, Graph)], GraphError> {
        if self.accumulating.get().is_none() {
            let mut graphs = match &self.training {
                Some((training, loss, counted)) => training_programs(self.update(), training, *loss, *counted, true, self.resumes)?,
                None => Vec::new(),
            };
            graphs = graphs.into_iter().map(|(role, graph)| Ok((role, optimize(&graph)?))).collect::<Result<_, GraphError>>()?;
            // Evaluation and prediction are unchanged.
            graphs.extend(self.whole.iter().filter(|(role, _)| matches!(role, Role::Evaluate | Role::Predict)).cloned());
            let _ = self.accumulating.set(graphs);
        }
        Ok(self.accumulating.get().expect("set above"))
    }
}

/// Heap of a search over graphs with this many nodes, whose plans take `planned` bytes.
fn searching(nodes: u64, planned: u64, compared: PlanSpace) -> Bytes {
    let sources = nodes * if compared.several_variants { 2 } else { 1 };
    (Bytes(SEARCH + sources * SOURCE_PER_NODE + planned) + compared.data).align_up(4096)
}

/// Nodes of some graphs in all.
pub(crate) fn nodes<'a>(graphs: impl Iterator<Item = &'a Graph>) -> u64 {
    graphs.map(|graph| graph.nodes().len() as u64).sum()
}

impl RunSpec {
    /// The training step before any pass: forward, backward and update in the order in which an eager framework
    /// computes them. None of a run that only predicts.
    ///
    /// ```
    /// use plimsoll::prelude::*;
    /// use plimsoll::RunSpec;
    /// let network = zoo::find("mlp")?.build(&zoo::Options::default())?;
    /// let spec = RunSpec::new(network.model.clone(), &network.synthetic(32)?.batch(32));
    /// assert!(spec.unoptimized_step(&network.schema)?.is_some_and(|step| step.nodes().len() > 20));
    /// # Ok::<(), plimsoll::Error>(())
    /// ```
    pub fn unoptimized_step(&self, schema: &Schema) -> Result<Option<Graph>, Error> {
        let losses = self.losses_with_metrics()?;
        Ok(programs(self, schema, &losses, self.optimization.clone(), Columns::AsTheyAre, false)?.unoptimized_step()?)
    }
}

/// Builds and optimizes all graphs of a run.
pub(crate) fn programs(
    spec: &RunSpec,
    schema: &Schema,
    targets: &OutputLosses,
    optimization: Optimization,
    by_products: Columns,
    resumes: bool,
) -> Result<Programs, GraphError> {
    let RunSpec { model, inference_only: predicts_only, distill, .. } = spec;
    let model = &model.clone().synchronized(spec.synchronized_ranks());
    let (predicts_only, distill) = (*predicts_only, distill.as_ref());
    let names: Vec<&str> = model.outputs().collect();
    let targets = targets.of(&names)?;
    let read = if predicts_only { inputs_only(schema, model)? } else { columns(schema, model, &names, &targets)? };
    let mut model_metrics = ModelMetrics::default();
    let mut ranges = Vec::new();
    let (mut outputs, mut activations) = (Vec::new(), Vec::new());
    let mut forward = |training: bool, with_loss: bool| -> Result<Graph, GraphError> {
        let mut g = Graph::new();
        let input = |g: &mut Graph, i: usize| {
            let column = &schema.columns()[i];
            g.input(&column.name, TensorType::new(column.dtype, Shape::batch_of(column.shape.iter().copied())))
        };
        let mut columns: Vec<ValueId> = read.all[..read.features].iter().map(|i| input(&mut g, *i)).collect();
        let lowered = model.lower(&mut g, &columns, training)?;
        // In every graph, so that states have the same numbers; nothing but the loss of training reads its predictions.
        let inputs: Vec<(&str, ValueId)> = model.inputs().iter().map(String::as_str).zip(columns.iter().copied()).collect();
        let teacher = distill.filter(|_| !predicts_only).map(|distill| Ok((distill, distill.lower(&mut g, &inputs)?))).transpose()?;
        let results: Vec<ModelOutput> = lowered.outputs.iter().map(|output| (*output).into()).collect();
        let shape = |value: ValueId| g.shape(value).dims()[1..].iter().map(|dim| dim.factor()).collect();
        outputs = names.iter().zip(&results).map(|(name, result)| (name.to_string(), shape(result.output))).collect();
        activations = results.iter().map(|result| result.before_activation.map(|(activation, _)| activation)).collect();
        if !with_loss {
            if predicts_only {
                ranges = tokens(model, schema, &read.all);
            }
            for (name, result) in names.iter().zip(&results) {
                // A copy if the model is empty: outputs must be computed by the step.
                let output = g.map(result.output, |_, x| x)?;
                g.output(name, output);
            }
            return optimization.precision.apply(split_concats(&g), by_products);
        }
        for i in &read.all[read.features..] {
            columns.push(input(&mut g, *i));
        }
        let labels: Vec<ValueId> = read.labels.iter().map(|at| columns[*at]).collect();
        ranges = tokens(model, schema, &read.all);
        for ((target, result), (value, at)) in targets.iter().zip(&results).zip(labels.iter().zip(&read.labels)) {
            let objective = &target.objective;
            let found = objective.classes(&g, *result, *value);
            let found = found.map(|count| ValueRange { column: read.all[*at], count, kind: ValueKind::Labels(objective.ignored_class()) });
            ranges.extend(found.filter(|found| !ranges.contains(found)));
        }
        // Sample weights apply to training only; evaluation rows count equally, as in Keras.
        let weight = read.weight.filter(|_| training).map(|weight| input(&mut g, weight));
        let objectives: Vec<_> = targets
            .iter()
            .map(|target| if training { target.objective.clone() } else { target.objective.clone().without_class_weights() })
            .collect();
        let sums = g.in_scope("loss", |g| {
            let (mut row_share, mut total, mut counted, mut sums) = (None, None, None, Vec::new());
            for (i, objective) in objectives.iter().enumerate() {
                let write = |g: &mut Graph| objective.batch_loss(g, results[i], labels[i], weight);
                let sum = if names.len() == 1 { write(g)? } else { g.in_scope(names[i], write)? };
                sums.push(sum.loss);
                let share = *row_share.get_or_insert_with(|| g.scalar(ROW_SHARE));
                // Only a single loss can have ignored labels.
                counted = sum.counted.map(|counted| g.times(counted, share)).transpose()?;
                let factor = targets[i].weight;
                if let Some((distill, teacher)) = teacher.filter(|_| training) {
                    if names.len() > 1 || counted.is_some() || objective.loss != Loss::SoftmaxCrossEntropy {
                        return Err(g.error("distillation needs one output, the loss softmax_cross_entropy, and no ignored class"));
                    }
                    let soft = distill.loss(g, results[i], teacher)?;
                    let alpha = distill.share_of_labels();
                    let both = Expr::build(|e| {
                        let (hard, soft) = (e.mul(e.input(0), e.constant(alpha)), e.mul(e.input(1), e.constant(1.0 - alpha)));
                        e.mul(e.add(hard, soft), e.input(2))
                    });
                    total = Some(g.pointwise(both, &[sum.loss, soft, share])?);
                    continue;
                }
                let part = g.pointwise(
                    Expr::build(|e| {
                        let part = e.mul(e.input(0), e.input(1));
                        if factor == 1.0 { part } else { e.mul(part, e.constant(factor)) }
                    }),
                    &[sum.loss, share],
                )?;
                total = Some(total.map_or(Ok(part), |before| g.plus(before, part))?);
            }
            let Some(mut loss) = total else { unreachable!("a model has a result") };
            if let Some(penalty) = lowered.penalty {
                // The micro-batches of a batch sum to the weight regularization once.
                let part = counted.unwrap_or_else(|| g.scalar(PENALTY_SHARE));
                loss = g.pointwise(Expr::build(|e| e.add(e.input(0), e.mul(e.input(1), e.input(2)))), &[loss, penalty, part])?;
            }
            g.output("loss", loss);
            if let Some(counted) = counted {
                g.output(LOSS_WEIGHT, counted);
            }
            Ok::<_, GraphError>(sums)
        })?;
        let metrics: Vec<_> = targets.iter().map(|target| target.counted()).collect();
        let compared: Vec<LabelledOutput<'_>> = (0..names.len())
            .map(|i| LabelledOutput {
                name: names[i],
                objective: &objectives[i],
                metrics: &metrics[i],
                prediction: results[i],
                labels: labels[i],
                loss: sums[i],
            })
            .collect();
        model_metrics = g.in_scope("metrics", |g| ModelMetrics::lower(g, &compared))?;
        optimization.precision.apply(split_concats(&g), by_products)
    };
    if predicts_only {
        let prediction = forward(false, false)?;
        let interface = ProgramInterface { columns: read.all, ranges, model_metrics, outputs, activations, pruned: Vec::new() };
        let whole = vec![(Role::Predict, optimize(&prediction)?)];
        let (training, interface, batch_statistics) = (None, Arc::new(interface), model.has_batch_statistics());
        let (ranks, order) = (spec.ranks, None);
        return Ok(Programs {
            whole,
            accumulating: OnceLock::new(),
            training,
            optimization,
            ranks,
            order,
            sharding: None,
            resumes,
            batch_statistics,
            synchronized: false,
            interface,
        });
    }
    let training = forward(true, true)?;
    let evaluation = forward(false, true)?;
    let prediction = forward(false, false)?;
    let output = |name: &str| training.outputs().iter().find(|(known, _)| known == name).map(|(_, value)| *value);
    let loss: ValueId = output("loss").expect("written above");
    let counted = output(LOSS_WEIGHT);
    let pruned = optimization.prune.as_ref().map_or(Ok(Vec::new()), |prune| prune.weights_of(model, training.states()))?;
    let order = spec.fixed_micro_batches().map(|fixed| fixed.order(spec.ranks));
    let mut whole = training_programs(
        Update { optimization: &optimization, pruned: &pruned, ranks: spec.ranks, order, sharding: spec.sharding() },
        &training,
        loss,
        counted,
        false,
        false,
    )?;
    whole.push((Role::Evaluate, evaluation));
    whole.push((Role::Predict, prediction));
    let whole = whole.into_iter().map(|(role, graph)| Ok((role, optimize(&graph)?))).collect::<Result<_, GraphError>>()?;
    Ok(Programs {
        whole,
        accumulating: OnceLock::new(),
        training: Some((training, loss, counted)),
        optimization,
        ranks: spec.ranks,
        order,
        sharding: spec.sharding(),
        resumes,
        batch_statistics: model.has_batch_statistics(),
        synchronized: spec.synchronized_ranks().is_some(),
        interface: Arc::new(ProgramInterface {
            columns: read.all.into_iter().chain(read.weight).collect(),
            ranges,
            model_metrics,
            outputs,
            activations,
            pruned,
        }),
    })
}

/// The columns that embeddings look up; the first columns read are the model's inputs.
fn tokens(model: &Model, schema: &Schema, read: &[usize]) -> Vec<ValueRange> {
    let whole = |column: usize| matches!(schema.columns()[column].dtype, DType::I32 | DType::U8);
    let bound = |(input, count): (usize, usize)| ValueRange { column: read[input], count, kind: ValueKind::Tokens };
    model.bounded_inputs().map(bound).filter(|range| whole(range.column)).collect()
}

/// The columns of the data that a run reads.
struct Read {
    /// The columns that the model reads, then further label columns.
    all: Vec<usize>,
    /// How many of these the model reads.
    features: usize,
    /// For each output of the model, the index of its label column.
    labels: Vec<usize>,
    /// The column of sample weights, if there is one.
    weight: Option<usize>,
}

/// The columns of a model alone, to predict without labels.
fn inputs_only(schema: &Schema, model: &Model) -> Result<Read, GraphError> {
    let all = input_columns(schema, model)?;
    Ok(Read { features: all.len(), all, labels: Vec::new(), weight: None })
}

/// The columns of a model and of its labels. The labels of a single output are `y`, or else the second column; those of
/// several outputs are named like the outputs by default.
fn columns(schema: &Schema, model: &Model, names: &[&str], targets: &[&OutputLoss]) -> Result<Read, GraphError> {
    let error = |what: String| GraphError { scope: String::new(), what };
    let features = input_columns(schema, model)?;
    if names.len() > MAX_OUTPUTS {
        return Err(error(format!("the model has {} outputs, but a step trains at most {MAX_OUTPUTS}", names.len())));
    }
    let (read, mut all, mut labels) = (features.len(), features, Vec::with_capacity(names.len()));
    for (name, target) in names.iter().zip(targets) {
        let column = match (&target.labels, names) {
            (Some(column), _) => schema
                .index_of(column)
                .ok_or_else(|| error(format!("the loss of `{name}` compares with a column `{column}`, but the data has only {schema}")))?,
            (None, [_]) => only_labels(schema, &all)?,
            (None, _) => schema.index_of(name).ok_or_else(|| {
                error(format!(
                    "the output `{name}` needs a label column of that name, but the data has only {schema}; \
                     name another with `labels`"
                ))
            })?,
        };
        labels.push(all.iter().position(|known| *known == column).unwrap_or_else(|| {
            all.push(column);
            all.len() - 1
        }));
    }
    let weight = schema.index_of("weight").filter(|i| !all.contains(i));
    let used = all.iter().copied().chain(weight).map(|i| &schema.columns()[i]);
    match used.into_iter().find(|column| matches!(column.dtype, DType::F64 | DType::I64)) {
        Some(column) => Err(error(format!("column `{}` is {}; steps compute with 32 bits", column.name, column.dtype))),
        None => Ok(Read { all, features: read, labels, weight }),
    }
}

/// The columns that a model reads. A single input is `x`, or else the first column; several inputs are found by name.
pub(crate) fn input_columns(schema: &Schema, model: &Model) -> Result<Vec<usize>, GraphError> {
    let error = |what: String| GraphError { scope: String::new(), what };
    let columns: Vec<usize> = match model.inputs() {
        [single] => vec![schema.index_of(single).or_else(|| schema.index_of("x")).unwrap_or(0)],
        several if several.len() > MAX_INPUTS => {
            return Err(error(format!("the model reads {} columns, but a step reads at most {MAX_INPUTS}", several.len())));
        }
        several => {
            let find = |name: &String| {
                schema.index_of(name).ok_or_else(|| error(format!("the model reads a column `{name}`, but the data has only {schema}")))
            };
            several.iter().map(find).collect::<Result<_, _>>()?
        }
    };
    match columns.iter().map(|i| &schema.columns()[*i]).find(|column| matches!(column.dtype, DType::F64 | DType::I64)) {
        Some(column) => Err(error(format!("column `{}` is {}; steps compute with 32 bits", column.name, column.dtype))),
        None => Ok(columns),
    }
}

/// The default label column of a model with one output.
fn only_labels(schema: &Schema, features: &[usize]) -> Result<usize, GraphError> {
    let error = |what: String| GraphError { scope: String::new(), what };
    if schema.columns().len() < 2 {
        return Err(error(format!("training needs a column of inputs and one of labels, but the data has only {schema}")));
    }
    let free = (0..schema.columns().len()).find(|i| !features.contains(i));
    let found = schema.index_of("y").filter(|y| !features.contains(y)).or(if features == [0] { Some(1) } else { free });
    found.ok_or_else(|| error(format!("training needs a column of labels beside what the model reads, but the data has only {schema}")))
}
