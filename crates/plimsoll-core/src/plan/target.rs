//! The planner's view of a device. It needs no hardware, so plans for a device can be created on any machine.

use super::Plan;
use super::cost_model::{CopyRate, CostModel, Rates};
use crate::Bytes;
use crate::base::budget::DeviceRuntime;
use crate::base::shape::TensorType;
use crate::ir::graph::{Graph, Node};
use crate::ir::op::Op;
use crate::ir::ops::SliceWrite;
use std::sync::Arc;

/// A device as the planner sees it.
pub trait Target: Send + Sync {
    /// The name used to select it, such as `cpu` or `cuda:0`.
    fn name(&self) -> String;

    /// A human-readable description of the hardware.
    fn description(&self) -> String;

    /// Properties that do not depend on a graph.
    fn capabilities(&self) -> Capabilities;

    /// Predicts node times without measurements.
    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(self.capabilities().rates)
    }

    /// The workspace of a node's kernel for at most `rows` rows. Monotone in `rows`.
    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes;

    /// Whether a node is bit-identical when its rows (the first axis, a multiple of the batch) are split, for any batch
    /// of at most `rows`. Rows are computed independently, or a reduction over rows accumulates onto the previous split
    /// ([`MatMul::onto`](crate::ops::MatMul::onto)).
    fn can_split_rows(&self, graph: &Graph, node: &Node, split: RowSplit, rows: usize) -> bool {
        let _ = (graph, node, split, rows);
        false
    }

    /// Whether the kernel of `producer` can write its output, of type `part`, straight into a slice of a larger tensor
    /// ([`FusedSliceWrite`](crate::ops::FusedSliceWrite)), bit-identical to a separate output.
    fn fuses_slice_write(&self, producer: &Op, part: &TensorType, slice: &SliceWrite) -> bool {
        let _ = (producer, part, slice);
        false
    }

    /// Memory that executing the plan takes in addition to the plan's buffers.
    fn footprint(&self, plan: &Plan) -> Footprint {
        Footprint { host_backing: plan.backing, ..Footprint::default() }
    }
}

/// Properties of a device that do not depend on a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capabilities {
    /// Whether it uses host memory, so that both budgets are one.
    pub shares_host_memory: bool,
    /// Alignment of all offsets; a power of two.
    pub alignment: Bytes,
    /// Whether pointwise and reduction kernels read [channel views](crate::ops::ChannelView) without a copy.
    pub reads_channel_views: bool,
    /// Whether sums over the rows of a batch resume from those of earlier rows, with the bits of all rows at once, and
    /// every row is computed with the same bits in any micro-batch.
    pub resumes_sums: bool,
    /// Whether updates of small parameters that follow each other run together: they are then the last nodes of a step.
    pub groups_updates: bool,
    /// Whether it runs [sums over ranks](crate::ops::AllReduce).
    pub collectives: bool,
    /// Whether it runs collectives of [shards](crate::ops::ReduceScatter).
    pub shards: bool,
    /// Whether it adds micro-batches and ranks in the order of a fixed tree.
    pub fixed_order: bool,
    /// The rates of the default [cost model](Target::cost_model), against which measured times are compared before they
    /// are scaled to other sizes.
    pub rates: Rates,
    /// Bandwidth to and from the backing store.
    pub copy_rate: CopyRate,
    /// The device runtime, if it takes memory independent of any plan.
    pub runtime: Option<&'static DeviceRuntime>,
}

impl Capabilities {
    /// A device that computes in host memory, with default rates.
    pub fn host(alignment: Bytes) -> Capabilities {
        let (rates, copy_rate) = (Rates::default(), CopyRate::default());
        Capabilities {
            shares_host_memory: true,
            alignment,
            reads_channel_views: false,
            resumes_sums: false,
            groups_updates: false,
            collectives: false,
            shards: false,
            fixed_order: false,
            rates,
            copy_rate,
            runtime: None,
        }
    }
}

/// Memory that executing a plan takes in addition to the plan's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The device runtime.
    pub runtime: Overhead,
    /// Host memory for staging batches.
    pub host_staging: Bytes,
    /// Host memory for the plan's backing store.
    pub host_backing: Bytes,
}

/// Memory of a device runtime, independent of any plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overhead {
    /// On the device.
    pub device: Bytes,
    /// On the host.
    pub host: Bytes,
}

impl std::ops::Add for Overhead {
    type Output = Overhead;

    fn add(self, other: Overhead) -> Overhead {
        Overhead { device: self.device + other.device, host: self.host + other.host }
    }
}

/// How rows are split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowSplit {
    /// Each piece has this multiple of the batch.
    Multiple(usize),
    /// Each piece has this many rows of the batch. The last piece has the remainder, possibly a single row; if the
    /// batch is short, trailing pieces are empty.
    Rows(usize),
}
