//! What the planner has to know about a device. Needs no hardware, so plans for a device can be made anywhere.

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
    /// The name it is chosen by, such as `cpu` or `cuda:0`.
    fn name(&self) -> String;

    /// The hardware, for people.
    fn description(&self) -> String;

    /// Facts that do not depend on a graph.
    fn capabilities(&self) -> Capabilities;

    /// Predicts how long nodes take where nothing was measured.
    fn cost_model(&self) -> Arc<dyn CostModel> {
        Arc::new(self.capabilities().rates)
    }

    /// The workspace a node's kernel needs for at most `rows` rows. Never less for more rows.
    fn workspace(&self, graph: &Graph, node: &Node, rows: usize) -> Bytes;

    /// Whether a node computes the same bits if its rows (the first axis, a multiple of the batch) are split, for any batch of at most `rows`: each row as if all
    /// others were beside it, or, for a reduction over the rows, each split accumulating onto the one before ([`MatMul::onto`](crate::ops::MatMul::onto)).
    fn can_split_rows(&self, graph: &Graph, node: &Node, split: RowSplit, rows: usize) -> bool {
        let _ = (graph, node, split, rows);
        false
    }

    /// Whether the kernel of `producer` can write its result, of type `part`, straight into a slice of a larger tensor
    /// ([`FusedSliceWrite`](crate::ops::FusedSliceWrite)), with the bits it would have by itself.
    fn fuses_slice_write(&self, producer: &Op, part: &TensorType, slice: &SliceWrite) -> bool {
        let _ = (producer, part, slice);
        false
    }

    /// Memory that running the plan takes beside what the plan places.
    fn footprint(&self, plan: &Plan) -> Footprint {
        Footprint { host_backing: plan.backing, ..Footprint::default() }
    }
}

/// Facts about a device that do not depend on a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capabilities {
    /// Whether its memory is the host's, so that both budgets are one.
    pub shares_host_memory: bool,
    /// What every offset must be a multiple of; a power of two.
    pub alignment: Bytes,
    /// Whether pointwise and reduction kernels read [channel views](crate::ops::ChannelView) without a copy.
    pub reads_channel_views: bool,
    /// The plain rates behind the [cost model](Target::cost_model), with which measured times are compared before they are scaled to other sizes.
    pub rates: Rates,
    /// How fast tensors move to the backing store and back.
    pub copy_rate: CopyRate,
    /// The device's own software, where it takes memory beside any plan.
    pub runtime: Option<&'static DeviceRuntime>,
}

impl Capabilities {
    /// A device that computes in host memory, with default rates.
    pub fn host(alignment: Bytes) -> Capabilities {
        let (rates, copy_rate) = (Rates::default(), CopyRate::default());
        Capabilities { shares_host_memory: true, alignment, reads_channel_views: false, rates, copy_rate, runtime: None }
    }
}

/// Memory that running a plan takes beside what the plan places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The device's own software.
    pub runtime: Overhead,
    /// Host memory in which batches are handed over.
    pub host_staging: Bytes,
    /// Host memory for the plan's backing store.
    pub host_backing: Bytes,
}

/// What a device's own software takes beside any plan.
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
    /// Each has this many times the batch.
    Multiple(usize),
    /// Each has what belongs to this many rows of the batch. The last has what is left, which may be a single row; where the batch ends early, some have none.
    Rows(usize),
}
