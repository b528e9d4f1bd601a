//! Magnitude pruning: which weights are masked, when and how many. The schedules and masks are those of the TensorFlow
//! Model Optimization Toolkit (tfmot).

mod masks;
mod read;
#[cfg(test)]
mod tests;

use crate::nn::{Model, matches_layer};
use plimsoll_core::graph::{Graph, GraphError, Init, State, StateKind};
use plimsoll_core::{DType, TensorType, ValueId};

pub(crate) use masks::MaskUpdates;

/// The last component of the name of a weight's mask: 1 where the weight is pruned.
const MASK: &str = "pruned";

/// The share of zeros at every step. Masks are updated at step `begin` and every `frequency` steps until `end`; steps
/// are counted from 0.
///
/// ```
/// use plimsoll::Sparsity;
/// let sparsity = Sparsity::polynomial(0.0, 0.8, 1000).frequency(100);
/// assert_eq!((sparsity.at(0), sparsity.at(500), sparsity.at(1000)), (0.0, 0.7, 0.8));
/// assert!(sparsity.updates(900) && !sparsity.updates(950));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sparsity {
    initial: f64,
    last: f64,
    begin: u64,
    end: Option<u64>,
    /// None for a constant sparsity.
    power: Option<f64>,
    frequency: u64,
}

impl Sparsity {
    /// tfmot's `ConstantSparsity`: the same share at every update, until the end of training.
    pub fn constant(share: f64) -> Sparsity {
        Sparsity { initial: share, last: share, begin: 0, end: None, power: None, frequency: 100 }
    }

    /// tfmot's `PolynomialDecay`: from `initial` to `last` at step `end`, with power 3.
    pub fn polynomial(initial: f64, last: f64, end: u64) -> Sparsity {
        Sparsity { initial, last, begin: 0, end: Some(end), power: Some(3.0), frequency: 100 }
    }

    /// Sets the step of the first update.
    pub fn begin(self, begin: u64) -> Sparsity {
        Sparsity { begin, ..self }
    }

    /// Sets the step after which masks stay as they are.
    pub fn end(self, end: u64) -> Sparsity {
        Sparsity { end: Some(end), ..self }
    }

    /// Sets the exponent of a polynomial; a constant has none.
    pub fn power(self, power: f64) -> Sparsity {
        Sparsity { power: self.power.map(|_| power), ..self }
    }

    /// Sets the steps between updates.
    pub fn frequency(self, frequency: u64) -> Sparsity {
        Sparsity { frequency, ..self }
    }

    /// The share of zeros at a step, in single precision as tfmot computes it.
    pub fn at(&self, step: u64) -> f32 {
        let (Some(power), Some(end)) = (self.power, self.end) else { return self.last as f32 };
        let done = step.saturating_sub(self.begin) as f32 / end.saturating_sub(self.begin) as f32;
        // Nothing is between a begin and an end at the same step.
        let done = if done.is_nan() { 1.0 } else { done.min(1.0) };
        (self.initial - self.last) as f32 * (1.0 - done).powf(power as f32) + self.last as f32
    }

    /// Whether masks are updated before a step.
    pub fn updates(&self, step: u64) -> bool {
        step >= self.begin && self.end.is_none_or(|end| step <= end) && (step - self.begin).is_multiple_of(self.frequency.max(1))
    }

    /// What is wrong with it, if anything.
    fn problem(&self) -> Option<String> {
        let share = |share: f64| !(0.0..1.0).contains(&share);
        if let Some(wrong) = [self.initial, self.last].into_iter().find(|number| share(*number)) {
            return Some(format!("a sparsity is {wrong}, but should be at least 0 and below 1"));
        }
        match self.end {
            Some(end) if end < self.begin => {
                Some(format!("pruning begins at step {} and ends at step {end}; begin before the end", self.begin))
            }
            _ if self.frequency == 0 => Some("masks are updated every 0 steps; use 1 or more".to_string()),
            _ => None,
        }
    }
}

/// How the magnitudes of a block are combined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pooling {
    /// Their mean.
    #[default]
    Average,
    /// The largest.
    Max,
}

impl Pooling {
    const NAMES: [(&'static str, Pooling); 2] = [("avg", Pooling::Average), ("max", Pooling::Max)];
}

/// Which weights of a tensor are pruned together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SparsityPattern {
    /// Each by itself.
    #[default]
    Unstructured,
    /// Blocks of rows and columns of a matrix.
    Block {
        /// Rows and columns of a block.
        size: (usize, usize),
        /// How the magnitudes of a block are combined.
        pooling: Pooling,
    },
    /// The smallest `zeros` of every `of` consecutive inputs of a unit or filter, such as 2:4. The mask is computed
    /// once, at the first update.
    MByN {
        /// Zeros of a group.
        zeros: usize,
        /// Weights of a group.
        of: usize,
    },
}

/// How the weights of some layers are pruned.
#[derive(Clone, Copy, Debug, PartialEq)]
struct LayerPruning {
    sparsity: Sparsity,
    pattern: SparsityPattern,
}

/// Magnitude pruning of a model: kernels and embeddings lose their smallest weights while it trains. Biases,
/// normalization and depthwise kernels are not pruned, as in tfmot. A pruned weight is zero from the update of its mask
/// on; the exported model needs no masks.
///
/// ```
/// use plimsoll::{Prune, Sparsity};
/// use plimsoll::prelude::*;
///
/// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).batch(32);
/// let prune = Prune::new(Sparsity::polynomial(0.0, 0.8, 40).frequency(10)).keep("dense_1");
/// let mut trainer = Trainer::new(zoo::mlp(10), &data).prune(prune);
/// trainer.fit(Fit::epochs(1))?;
/// # Ok::<(), plimsoll::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Prune {
    /// The layers that no pattern matches; none are pruned without it.
    others: Option<LayerPruning>,
    /// Patterns of layer names; the first that matches counts. None: those layers are not pruned.
    layers: Vec<(String, Option<LayerPruning>)>,
}

impl Prune {
    /// Prunes every layer by this schedule, each weight by itself.
    pub fn new(sparsity: Sparsity) -> Prune {
        Prune { others: Some(LayerPruning { sparsity, pattern: SparsityPattern::default() }), layers: Vec::new() }
    }

    /// Prunes no layers but those of [`layers`](Prune::layers).
    pub fn none() -> Prune {
        Prune { others: None, layers: Vec::new() }
    }

    /// Sets which weights of a tensor are pruned together, for layers that no pattern matches.
    pub fn pattern(mut self, pattern: SparsityPattern) -> Prune {
        self.others = self.others.map(|others| LayerPruning { pattern, ..others });
        self
    }

    /// Prunes the layers whose name matches (`*` stands for any characters) in another way. The first match counts.
    pub fn layers(mut self, matching: &str, sparsity: Sparsity, pattern: SparsityPattern) -> Prune {
        self.layers.push((matching.to_string(), Some(LayerPruning { sparsity, pattern })));
        self
    }

    /// Leaves the layers whose name matches as they are.
    pub fn keep(mut self, matching: &str) -> Prune {
        self.layers.push((matching.to_string(), None));
        self
    }

    fn of(&self, layer: &str) -> Option<LayerPruning> {
        let found = self.layers.iter().find(|(pattern, _)| matches_layer(pattern, layer));
        found.map_or(self.others, |(_, pruning)| *pruning)
    }

    /// The weights of a model that are pruned.
    ///
    /// # Errors
    /// If a schedule is impossible, a pattern matches no layer, or a layer's weights do not have the shape for its
    /// pattern.
    pub(crate) fn weights_of(&self, model: &Model, states: &[State]) -> Result<Vec<PrunedWeight>, GraphError> {
        let refused = |scope: &str, what: String| GraphError { scope: scope.to_string(), what };
        let all = self.layers.iter().filter_map(|(_, pruning)| *pruning).chain(self.others);
        if let Some(what) = all.into_iter().find_map(|pruning| pruning.pattern.problem().or_else(|| pruning.sparsity.problem())) {
            return Err(refused("", format!("pruning: {what}")));
        }
        let prunable = states.iter().filter(|state| state.kind == StateKind::Parameter && state.ty.shape.rank() >= 2);
        let prunable: Vec<(&str, &State)> = prunable.filter_map(|state| Some((model.layer_pruned(&state.name)?, state))).collect();
        if let Some((pattern, _)) = self.layers.iter().find(|(pattern, _)| !prunable.iter().any(|(layer, _)| matches_layer(pattern, layer)))
        {
            let mut known: Vec<&str> = prunable.iter().map(|(layer, _)| *layer).collect();
            known.dedup();
            let more = if known.len() > 8 { ", …" } else { "" };
            known.truncate(8);
            let what = format!("pruning: no layer that can be pruned matches `{pattern}`; those are {}{more}", known.join(", "));
            return Err(refused("", what));
        }
        let mut weights = Vec::new();
        for (layer, state) in prunable {
            let Some(pruning) = self.of(layer) else { continue };
            let shape: Vec<usize> = state.ty.shape.dims().iter().map(|dim| dim.factor()).collect();
            let weight = PrunedWeight { name: state.name.clone(), shape, pruning };
            if matches!(pruning.pattern, SparsityPattern::Block { .. }) && weight.shape.iter().filter(|extent| **extent > 1).count() > 2 {
                let what = format!("its weight has the shape {}, but blocks need a matrix", state.ty.shape);
                return Err(refused(layer, format!("{what}; prune dense layers and 1×1 convolutions in blocks, others without")));
            }
            weights.push(weight);
        }
        if weights.is_empty() {
            return Err(refused("", "pruning: the model has no trainable kernel or embedding that could be pruned".to_string()));
        }
        Ok(weights)
    }
}

impl SparsityPattern {
    fn problem(self) -> Option<String> {
        match self {
            SparsityPattern::Block { size: (0, _) | (_, 0), .. } => {
                Some("a block has no elements; use 1 or more rows and columns".to_string())
            }
            SparsityPattern::MByN { zeros, of } if zeros >= of => {
                Some(format!("{zeros} of {of} weights would be zero; use fewer zeros than weights, such as 2 of 4"))
            }
            _ => None,
        }
    }
}

/// A weight that is pruned.
#[derive(Clone, Debug)]
pub(crate) struct PrunedWeight {
    /// Its name.
    pub name: String,
    shape: Vec<usize>,
    pruning: LayerPruning,
}

impl PrunedWeight {
    /// The name of its mask.
    pub fn mask(&self) -> String {
        format!("{}/{MASK}", self.name)
    }

    /// Declares its mask in a graph whose scope is the name of the weight.
    pub fn declare_mask(&self, graph: &mut Graph) -> Result<ValueId, GraphError> {
        let ty = TensorType::new(DType::U8, plimsoll_core::Shape::fixed(self.shape.iter().copied()));
        graph.state(MASK, StateKind::Mask, ty, Init::Constant(0.0))
    }

    /// Rows and columns as a matrix: the last axis has the outputs.
    fn matrix(&self) -> (usize, usize) {
        let columns = self.shape.last().copied().unwrap_or(1);
        (self.shape.iter().product::<usize>() / columns.max(1), columns)
    }
}
