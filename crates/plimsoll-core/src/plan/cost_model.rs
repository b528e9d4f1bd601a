//! Predicted times of nodes and copies, which the planner trades against bytes.

use crate::ir::graph::{Graph, Node};
use crate::ir::op::Op;
use serde::{Deserialize, Serialize};

/// Predicts how long a node runs. A measured profile of a device is one; [`Rates`] is one made of three numbers.
pub trait CostModel: Send + Sync {
    /// Seconds of one run of the node over `rows` rows.
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64;

    /// Seconds of one run of a program beside its nodes: starting it, and its last launches, which small nodes share.
    fn start_seconds(&self) -> f64 {
        0.0
    }
}

/// A roofline model: the slower of arithmetic and memory traffic, plus a fixed overhead per node.
///
/// ```
/// use plimsoll_core::plan::{CostModel, Rates};
/// use plimsoll_core::{Graph, GraphError, Shape, TensorType, expr::Unary};
/// let mut graph = Graph::new();
/// let x = graph.input("x", TensorType::f32(Shape::batch_of([1000])));
/// let y = graph.unary(Unary::Neg, x)?;
/// let rates = Rates { flops_per_s: 1e9, bytes_per_s: 1e6, step_s: 0.0 };
/// assert_eq!(rates.seconds(&graph, graph.producer(y), 2), 0.016, "sixteen kilobytes at a megabyte a second");
/// # Ok::<(), GraphError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Floating-point operations per second.
    pub flops_per_s: f64,
    /// Bytes read and written per second.
    pub bytes_per_s: f64,
    /// Launch overhead per node, in seconds.
    pub step_s: f64,
}

impl Default for Rates {
    /// A small CPU. Only the ratios matter for choosing what to recompute.
    fn default() -> Rates {
        Rates { flops_per_s: 1e11, bytes_per_s: 2e10, step_s: 2e-6 }
    }
}

impl CostModel for Rates {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        let bytes = graph.moved(node, rows);
        let computing = graph.node_flops(node, rows) as f64 / self.flops_per_s;
        computing.max(bytes as f64 / self.bytes_per_s) + self.step_s
    }
}

/// A cost model in which loads from the backing store block.
pub(super) struct WithCopies<'a> {
    pub cost_model: &'a dyn CostModel,
    pub bytes_per_s: f64,
}

impl CostModel for WithCopies<'_> {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        match node.op {
            Op::Load(_) => graph.ty(node.outputs[0]).bytes(rows).0 as f64 / self.bytes_per_s,
            _ => self.cost_model.seconds(graph, node, rows),
        }
    }

    fn start_seconds(&self) -> f64 {
        self.cost_model.start_seconds()
    }
}

/// Bandwidth to and from a backing store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyRate {
    /// Bytes per second in one direction.
    pub bytes_per_s: f64,
    /// Whether both directions run concurrently.
    pub both_ways: bool,
    /// Seconds by which each copied byte slows down concurrent computation, because copying uses the same cores.
    pub compute_s_per_byte: f64,
}

impl Default for CopyRate {
    /// A file on a disk, copied by a core.
    fn default() -> CopyRate {
        CopyRate { bytes_per_s: 1e9, both_ways: false, compute_s_per_byte: 6e-10 }
    }
}
