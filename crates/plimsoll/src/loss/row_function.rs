//! Losses and metrics that code supplies: a number per row.

use super::labels::per_row;
use plimsoll_core::shape::Shape;
use plimsoll_core::{DType, Graph, GraphError, ValueId};
use std::fmt;
use std::sync::Arc;

/// A function from the predictions and labels of a row to a number: a loss or a metric of your own. The loss or metric
/// of a batch is the mean over its rows.
///
/// [`Loss::custom`](crate::Loss::custom) and [`Metric::custom`](crate::Metric::custom) implement it by closures over
/// eager tensors.
pub trait RowFunction: fmt::Debug + Send + Sync {
    /// The name in reports. A metric whose name ends in `loss` or `error` improves as it decreases.
    fn name(&self) -> &'static str;

    /// Adds its nodes to a graph, and returns one number per row, `[batch]` or `[batch, 1]`. A row's number must not
    /// depend on other rows, so that micro-batches of any size add up to the same result.
    ///
    /// # Errors
    /// If shapes or types do not go together.
    fn rows(&self, graph: &mut Graph, prediction: ValueId, labels: ValueId) -> Result<ValueId, GraphError>;
}

/// A [`RowFunction`] as a loss or a metric. It equals only itself.
#[derive(Clone, Debug)]
pub struct CustomRows(Arc<dyn RowFunction>);

impl CustomRows {
    /// From a function.
    pub fn new(function: impl RowFunction + 'static) -> CustomRows {
        CustomRows(Arc::new(function))
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.0.name()
    }

    /// Its number for each row, in single precision.
    pub(crate) fn rows(&self, g: &mut Graph, prediction: ValueId, labels: ValueId) -> Result<ValueId, GraphError> {
        let rows = g.in_scope(self.name(), |g| self.0.rows(g, prediction, labels))?;
        let ty = g.ty(rows).clone();
        if !ty.shape.has_batch() || per_row(g, rows) != 1 || !ty.dtype.is_float() {
            let what = format!("`{}` returns one number per row, of shape [batch], but returned {ty}", self.name());
            return Err(g.error(what));
        }
        let rows = g.cast(rows, DType::F32)?;
        g.reshape(rows, Shape::batch_of([1]))
    }
}

impl PartialEq for CustomRows {
    fn eq(&self, other: &CustomRows) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
