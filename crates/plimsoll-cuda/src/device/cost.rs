//! Predicted node times on a GPU, for the planner.

use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::{CostModel, Rates};

/// Predicted node times, fitted to convolutional and language models on an H200: 16-bit products run on tensor cores.
/// The choice of recomputation and offloading depends on ratios, which are similar on other GPUs.
pub(crate) struct GpuPace;

impl GpuPace {
    pub const SINGLE: Rates = Rates { flops_per_s: 3.2e13, bytes_per_s: 2.6e12, step_s: 2.5e-6 };
    const HALVES: Rates = Rates { flops_per_s: 2.5e14, ..GpuPace::SINGLE };
    const TF32: Rates = Rates { flops_per_s: 1.5e14, ..GpuPace::SINGLE };
}

impl CostModel for GpuPace {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        let halves = node.inputs.iter().any(|value| graph.ty(*value).dtype.is_half());
        let rates = match () {
            () if halves => GpuPace::HALVES,
            () if graph.tf32() => GpuPace::TF32,
            () => GpuPace::SINGLE,
        };
        rates.seconds(graph, node, rows)
    }
}
