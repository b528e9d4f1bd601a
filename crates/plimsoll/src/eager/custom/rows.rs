//! Losses and metrics from closures.

use super::add_to_graph;
use crate::eager::error::Result;
use crate::eager::tensor::Tensor;
use crate::loss::{CustomRows, Loss, RowFunction};
use crate::metrics::Metric;
use plimsoll_core::{Graph, GraphError, ValueId};
use std::fmt;

/// A closure as a function of rows.
struct FromClosure<F> {
    name: &'static str,
    closure: F,
}

impl<F> fmt::Debug for FromClosure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl<F: Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync> RowFunction for FromClosure<F> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn rows(&self, graph: &mut Graph, prediction: ValueId, labels: ValueId) -> Result<ValueId, GraphError> {
        let values = add_to_graph(graph, &[prediction, labels], |t| Ok(vec![(self.closure)(&t[0], &t[1])?]))?;
        Ok(values[0])
    }
}

impl Loss {
    /// A loss from a closure over eager tensors: it maps the model's output, after its final activation, and the labels
    /// to one number per row, of shape `[batch]`. The loss of a batch is the mean over its rows, with any
    /// micro-batches. Its gradient is derived.
    ///
    /// The same closure computes with eager tensors, of which it is written and tested:
    ///
    /// ```
    /// use plimsoll::eager::{Result, Tensor};
    /// use plimsoll::prelude::*;
    ///
    /// fn squared(prediction: &Tensor, labels: &Tensor) -> Result<Tensor> {
    ///     prediction.sub(labels)?.square()?.mean_axes(&[1])
    /// }
    /// let (p, y) = (Tensor::zeros([2, 2])?, Tensor::ones([2, 2])?);
    /// assert_eq!(squared(&p, &y)?.to_vec::<f32>()?, [1.0, 1.0]);
    ///
    /// let data = Dataset::digits(Split::Train).map("x", [scale(1.0 / 16.0)]).map("y", [one_hot(10)]).batch(32);
    /// let mut trainer = Trainer::new(zoo::mlp(10), &data).loss(Loss::custom("squared", squared));
    /// assert!(trainer.fit(Fit::epochs(1))?.last().unwrap().training.loss < 0.2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn custom(name: &'static str, closure: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Loss {
        Loss::Custom(CustomRows::new(FromClosure { name, closure }))
    }
}

impl Metric {
    /// A metric from a closure over eager tensors: it maps the model's output, after its final activation, and the
    /// labels to one number per row, of shape `[batch]`. The metric is the mean over all rows of an epoch. If its name
    /// ends in `loss` or `error`, callbacks take lower values as better.
    ///
    /// ```
    /// use plimsoll::prelude::*;
    /// let largest = Metric::custom("largest_error", |p, y| p.sub(y)?.abs()?.max_axes(&[1]));
    /// # let _ = largest;
    /// ```
    pub fn custom(name: &'static str, closure: impl Fn(&Tensor, &Tensor) -> Result<Tensor> + Send + Sync + 'static) -> Metric {
        Metric::Custom(CustomRows::new(FromClosure { name, closure }))
    }
}
