//! A model as a table: what each layer makes and how much it learns.

use super::Model;
use plimsoll_core::graph::StateKind;
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, GraphError};
use std::fmt;

/// One layer of a summary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The layer's name.
    pub layer: String,
    /// What kind it is.
    pub kind: &'static str,
    /// The shape of its result, `B` being the batch.
    pub output: Shape,
    /// Numbers it learns; those of a layer that is used again are counted where it was used first.
    pub parameters: u64,
    /// Numbers it keeps without learning them.
    pub kept: u64,
}

/// A model as a table. Prints as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// The model's name.
    pub model: String,
    /// The layers in the order they run.
    pub rows: Vec<Row>,
}

impl Model {
    /// A table of its layers for rows of the given shape in single precision.
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

    /// The same for inputs of the given types.
    pub fn summary_for(&self, inputs: &[TensorType]) -> Result<Summary, GraphError> {
        let (graph, lowered) = self.graph(inputs, false)?;
        let mut rows: Vec<Row> = Vec::new();
        for (placed, result) in self.layers().iter().zip(&lowered.results) {
            let (layer, kind, output) = (placed.name.clone(), placed.layer.kind(), graph.shape(*result).clone());
            rows.push(Row { layer, kind, output, parameters: 0, kept: 0 });
        }
        for state in graph.states() {
            let count = state.ty.shape.elements().factor() as u64;
            let owner = |row: &&mut Row| state.name.strip_prefix(&row.layer).is_some_and(|rest| rest.starts_with('/'));
            // The innermost layer of that name, where it was used first.
            let row = rows.iter_mut().filter(owner).min_by_key(|row| std::cmp::Reverse(row.layer.len()));
            if let Some(row) = row {
                match state.kind {
                    StateKind::Parameter => row.parameters += count,
                    _ => row.kept += count,
                }
            }
        }
        Ok(Summary { model: self.title().to_string(), rows })
    }
}

impl Summary {
    /// Numbers that are learnt.
    pub fn parameters(&self) -> u64 {
        self.rows.iter().map(|row| row.parameters).sum()
    }

    /// Numbers that are kept without being learnt: moving statistics and frozen weights.
    pub fn kept(&self) -> u64 {
        self.rows.iter().map(|row| row.kept).sum()
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
        let kept = if self.kept() == 0 { String::new() } else { format!(" · {} kept without learning", thousands(self.kept())) };
        write!(f, "  {} parameters{kept}", thousands(self.parameters()))
    }
}

/// A whole number with its thousands apart.
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
