//! A model as a table: the output shape and parameters of each layer.

use super::Model;
use plimsoll_core::graph::StateKind;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, GraphError};
use std::fmt;

/// One layer of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerSummary {
    /// The layer's name.
    pub layer: String,
    /// Its type.
    pub kind: &'static str,
    /// Its output shape; `B` is the batch.
    pub output: Shape,
    /// Trainable parameters; those of a shared layer are counted at its first call.
    pub parameters: u64,
    /// Non-trainable parameters.
    pub non_trainable: u64,
}

/// A model as a table, printed by `Display`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The model's name.
    pub model: String,
    /// The layers in execution order.
    pub rows: Vec<LayerSummary>,
}

impl Model {
    /// A table of its layers for float inputs of this shape, without the batch.
    ///
    /// ```
    /// use plimsoll::nn::{Dense, Model, Sequential};
    /// let model: Model = Sequential::new().add(Dense::new(8).relu()).add(Dense::new(2)).into();
    /// assert_eq!(model.summary(&[4])?.parameters(), 58);
    /// # Ok::<(), plimsoll_core::GraphError>(())
    /// ```
    pub fn summary(&self, row: &[usize]) -> Result<Summary, GraphError> {
        self.summary_for(&[TensorType::new(DType::F32, Shape::batch_of(row.iter().copied()))])
    }

    /// As [`summary`](Model::summary), for inputs of the given types.
    pub fn summary_for(&self, inputs: &[TensorType]) -> Result<Summary, GraphError> {
        let (graph, lowered) = self.graph(inputs, false)?;
        let mut rows: Vec<LayerSummary> = Vec::new();
        for (call, result) in self.layers().iter().zip(&lowered.results) {
            let (layer, kind, output) = (call.name.clone(), call.layer.kind(), graph.shape(*result).clone());
            rows.push(LayerSummary { layer, kind, output, parameters: 0, non_trainable: 0 });
        }
        for state in graph.states() {
            let count = state.ty.shape.elements().factor() as u64;
            let owner = |row: &&mut LayerSummary| state.name.strip_prefix(&row.layer).is_some_and(|rest| rest.starts_with('/'));
            // The innermost layer of that name, at its first call.
            let row = rows.iter_mut().filter(owner).min_by_key(|row| std::cmp::Reverse(row.layer.len()));
            if let Some(row) = row {
                match state.kind {
                    StateKind::Parameter => row.parameters += count,
                    _ => row.non_trainable += count,
                }
            }
        }
        Ok(Summary { model: self.title().to_string(), rows })
    }
}

impl Summary {
    /// Trainable parameters.
    pub fn parameters(&self) -> u64 {
        self.rows.iter().map(|row| row.parameters).sum()
    }

    /// Non-trainable parameters: moving statistics and frozen weights.
    pub fn non_trainable(&self) -> u64 {
        self.rows.iter().map(|row| row.non_trainable).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows: Vec<[String; 4]> = self
            .rows
            .iter()
            .map(|row| [row.layer.clone(), row.kind.to_string(), row.output.to_string(), thousands(row.parameters)])
            .collect();
        let heads = ["layer", "kind", "output", "parameters"].map(str::to_string);
        let width = |i: usize| rows.iter().chain([&heads]).map(|row| row[i].chars().count()).max().unwrap_or(0);
        let widths = [width(0), width(1), width(2), width(3)];
        writeln!(f, "{}", self.model)?;
        for [layer, kind, output, parameters] in [&heads].into_iter().chain(&rows) {
            let [a, b, c, d] = widths;
            writeln!(f, "  {layer:<a$}  {kind:<b$}  {output:<c$}  {parameters:>d$}")?;
        }
        let frozen =
            if self.non_trainable() == 0 { String::new() } else { format!(" · {} non-trainable", thousands(self.non_trainable())) };
        write!(f, "  {} parameters{frozen}", thousands(self.parameters()))
    }
}

/// An integer with thousands separators.
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
