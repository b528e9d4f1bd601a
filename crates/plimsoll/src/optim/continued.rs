//! An optimizer that another program has begun with.

use super::Optimizer;
use plimsoll_core::ValueId;
use plimsoll_core::graph::{Graph, GraphError, StateId};
use std::sync::Arc;

/// An optimizer whose moments are those of a file: its steps count on from those made there, which bias correction
/// depends on.
#[derive(Clone, Debug)]
pub(crate) struct Continued {
    optimizer: Arc<dyn Optimizer>,
    steps: u64,
}

impl Continued {
    /// After this many steps.
    pub fn new(optimizer: Arc<dyn Optimizer>, steps: u64) -> Continued {
        Continued { optimizer, steps }
    }
}

impl Optimizer for Continued {
    fn name(&self) -> &'static str {
        self.optimizer.name()
    }

    fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    fn scalar_names(&self) -> &'static [&'static str] {
        self.optimizer.scalar_names()
    }

    fn scalars(&self, step: u64, lr: f64, numbers: &mut [f32]) {
        self.optimizer.scalars(step.saturating_add(self.steps), lr, numbers);
    }

    fn undivided(&self) -> Option<&'static str> {
        self.optimizer.undivided()
    }

    // No state of 8 bits: the moments of the file would be lost.

    fn update(&self, graph: &mut Graph, parameter: StateId, gradient: ValueId) -> Result<(), GraphError> {
        self.optimizer.update(graph, parameter, gradient)
    }
}
