//! Predicted node times on a GPU, for the planner.

use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::plan::{CostModel, Rates};
use plimsoll_core::{DType, Op};

/// Predicted node times, fitted to convolutional and language models on an H200: products run on tensor cores in 16
/// bits and in TF32, and everything else is bound by memory bandwidth. The choice of recomputation and offloading
/// depends on ratios, which are similar on other GPUs.
pub(crate) struct GpuCostModel;

/// What multiplies the operands of a product.
#[derive(Clone, Copy)]
enum Unit {
    Half,
    Tf32,
    Single,
}

impl GpuCostModel {
    pub const SINGLE: Rates = Rates { flops_per_s: 3.2e13, bytes_per_s: 2.9e12, step_s: 2e-6 };

    /// The rates of a node.
    fn rates(graph: &Graph, node: &Node) -> Rates {
        let dtype = |value| graph.ty(value).dtype;
        let unit = match () {
            () if node.inputs.iter().any(|value| dtype(*value).is_half()) => Unit::Half,
            () if graph.tf32() && node.inputs.iter().all(|value| dtype(*value) == DType::F32) => Unit::Tf32,
            () => Unit::Single,
        };
        let pick = |half, tf32, single| match unit {
            Unit::Half => half,
            Unit::Tf32 => tf32,
            Unit::Single => single,
        };
        let groups = match &node.op {
            Op::Conv2d(op) => op.groups,
            Op::Conv2dGradInput(op) => op.groups,
            Op::Conv2dGradFilter(op) => op.groups,
            _ => 1,
        };
        let (flops_per_s, bytes_per_s) = match &node.op {
            Op::MatMul(_) => (pick(6.2e14, 2.9e14, 4.5e13), 2.5e12),
            // In groups, generated kernels are bound by memory.
            Op::Conv2d(_) | Op::Conv2dGradInput(_) if groups > 1 => (2e13, 2.2e12),
            Op::Conv2dGradFilter(_) if groups > 1 => (2e13, 1.4e12),
            // Images with their few channels padded keep tensor cores busy with zeros.
            Op::Conv2d(_) if is_narrow(graph, node) => (pick(3.4e13, 1.3e13, 3.2e13), 2.2e12),
            Op::Conv2dGradFilter(_) if is_narrow(graph, node) => (pick(5.9e13, 1.3e13, 3.2e13), 2.2e12),
            Op::Conv2d(_) => (pick(6.2e14, 2.6e14, 3.2e13), 3.4e12),
            Op::Conv2dGradInput(_) => (pick(6.2e14, 2.8e14, 3.2e13), 3.4e12),
            Op::Conv2dGradFilter(_) => (pick(6e14, 2e14, 3.2e13), 3.5e12),
            Op::Attention(_) => (pick(1.8e14, 2e13, 2e13), 2.9e12),
            Op::AttentionGrad(_) => (pick(1.44e14, 2e13, 2e13), 2.9e12),
            Op::Pointwise(_) => (GpuCostModel::SINGLE.flops_per_s, 4.1e12),
            // Many are computed in pairs, in one pass over memory.
            Op::Reduce(_) => (GpuCostModel::SINGLE.flops_per_s, 4.1e12),
            _ => (GpuCostModel::SINGLE.flops_per_s, GpuCostModel::SINGLE.bytes_per_s),
        };
        Rates { flops_per_s, bytes_per_s, ..GpuCostModel::SINGLE }
    }
}

/// Whether the image of a convolution has few channels, such as those of colors.
fn is_narrow(graph: &Graph, node: &Node) -> bool {
    graph.shape(node.inputs[0]).last().and_then(|channels| channels.as_fixed()).is_some_and(|channels| channels <= 4)
}

impl CostModel for GpuCostModel {
    fn seconds(&self, graph: &Graph, node: &Node, rows: usize) -> f64 {
        GpuCostModel::rates(graph, node).seconds(graph, node, rows)
    }
}

/// The seconds of a node on a GPU by built-in rates: what measured times are compared with.
pub fn built_in_seconds(graph: &Graph, node: &Node, rows: usize) -> f64 {
    GpuCostModel.seconds(graph, node, rows)
}
