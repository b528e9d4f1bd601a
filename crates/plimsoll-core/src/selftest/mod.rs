//! The op table: cases of every op in odd shapes, inside of a graph, with their expected results. The table is data:
//! the core's tests check its gradients and passes; each device's tests and the `selftest` command check that device's
//! kernels.

mod all_reduce;
mod attention;
mod bytes;
mod check;
mod draw;
mod fused_slice_write;
mod gather;
mod leaves;
mod movement;
mod offload;
mod pairwise_sum;
mod pointwise;
mod pooling;
mod products;
mod recurrent;
mod reduce;
mod shards;
mod stage;
mod windows;

use crate::base::random::StepRandom;
use crate::ir::graph::{Graph, GraphError, ValueId};
use crate::ir::op::Op;
use crate::{DType, Device};
use draw::Draw;
use std::fmt;
use std::sync::Arc;

pub use bytes::{decode, encode};
pub use check::{Failure, Mismatch, Why, check_device_gradient, check_forward, check_gradient, check_passes};

/// One test case of an op: a graph around it and its inputs.
#[derive(Clone, Debug)]
pub struct Case {
    /// The op's name in the table.
    pub op: &'static str,
    /// Label of the case.
    pub name: String,
    /// The graph. Its outputs and final states are compared.
    pub graph: Graph,
    /// Rows in the batch.
    pub rows: usize,
    /// Columns of the batch; the column's type represents every number exactly.
    pub inputs: Vec<Vec<f64>>,
    /// Initial states.
    pub states: Vec<Vec<f64>>,
    /// Scalars from the host.
    pub scalars: Vec<f64>,
    /// State of the random streams.
    pub random: StepRandom,
    /// A weighted sum of the op's outputs, for cases whose gradient is checked.
    pub loss: Option<ValueId>,
    /// The values to differentiate the sum with respect to.
    pub wrt: Vec<ValueId>,
}

/// The outcome of all cases of one op.
#[derive(Clone, Debug)]
pub struct CaseReport {
    /// The op.
    pub op: &'static str,
    /// Number of cases.
    pub cases: usize,
    /// Largest error of a result, relative to the tensor's largest magnitude.
    pub forward: f64,
    /// Largest error of a gradient, likewise.
    pub gradient: f64,
    /// Failed checks, one line each.
    pub failures: Vec<String>,
}

impl fmt::Display for CaseReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.failures.is_empty() { "ok" } else { "FAILED" };
        write!(f, "{:<18} {:>3} cases   forward {:.0e}   gradient {:.0e}   {verdict}", self.op, self.cases, self.forward, self.gradient)?;
        self.failures.iter().try_for_each(|failure| write!(f, "\n  {failure}"))
    }
}

/// Runs every case on a device: one report per op.
pub fn run(device: &Arc<dyn Device>, seed: u64) -> Vec<CaseReport> {
    let mut reports = Vec::new();
    run_each(device, seed, |report| reports.push(report.clone()));
    reports
}

/// Runs every case on a device and passes each op's report to `tell` as soon as it is complete.
pub fn run_each(device: &Arc<dyn Device>, seed: u64, mut tell: impl FnMut(&CaseReport)) {
    let all = cases(seed);
    for op in ops() {
        let mut report = CaseReport::new(op);
        all.iter().filter(|case| case.op == op).for_each(|case| report.run(case, device));
        tell(&report);
    }
}

/// The ops of the table, in its order.
pub fn ops() -> impl Iterator<Item = &'static str> {
    TABLE.iter().map(|(op, _)| *op)
}

impl Case {
    /// Whether the planner would give this case to the device: slice writes are fused only where the device supports
    /// it, and so are collectives, shards and sums in their order.
    pub fn is_for(&self, device: &dyn Device) -> bool {
        let of_shards = |op: &Op| matches!(op, Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_));
        if !device.capabilities().shards && self.graph.nodes().any(|(_, node)| of_shards(&node.op)) {
            return false;
        }
        self.graph.nodes().all(|(_, node)| {
            let effective_op = self.graph.effective_op(node);
            let collective = matches!(node.op, Op::AllReduce(_) | Op::PairwiseSum(_));
            (!collective || device.capabilities().collectives)
                && effective_op.slice.as_ref().is_none_or(|(place, part)| device.fuses_slice_write(effective_op.op, part, place))
        })
    }
}

impl CaseReport {
    /// An empty report.
    pub fn new(op: &'static str) -> CaseReport {
        CaseReport { op, cases: 0, forward: 0.0, gradient: 0.0, failures: Vec::new() }
    }

    /// Runs the forward and gradient checks of a case, if the device supports it.
    pub fn run(&mut self, case: &Case, device: &Arc<dyn Device>) {
        if !case.is_for(&**device) {
            return;
        }
        self.cases += 1;
        match check_forward(case, device) {
            Ok(error) => self.forward = self.forward.max(error),
            Err(failure) => self.failures.push(failure.to_string()),
        }
        match check_gradient(case).and_then(|_| check_device_gradient(case, device)) {
            Ok(error) => self.gradient = self.gradient.max(error),
            Err(failure) => self.failures.push(failure.to_string()),
        }
    }

    /// Merges the report of other cases of the same op.
    pub fn join(&mut self, other: CaseReport) {
        self.cases += other.cases;
        self.forward = self.forward.max(other.forward);
        self.gradient = self.gradient.max(other.gradient);
        self.failures.extend(other.failures);
    }
}

/// All cases of all ops. The same seed gives the same cases.
pub fn cases(seed: u64) -> Vec<Case> {
    let rows = TABLE.iter().enumerate();
    rows.flat_map(|(row, (op, build))| {
        let build = |types: &'static [DType]| {
            let mut cases = build(&mut Draw::new(seed, row as u32, types)).expect("the table's graphs are legal");
            cases.iter_mut().for_each(|case| case.op = op);
            cases
        };
        let mut cases = build(&[DType::F32]);
        // Repeats the cases with 16-bit operands and results; cases without real operands would be duplicates.
        for types in TWO_BYTES {
            cases.extend(build(types).into_iter().filter(Case::stores_halves));
        }
        // And the products once more with operands that may be rounded to TF32.
        if TF32.contains(op) {
            cases.extend(build(&[DType::F32]).into_iter().map(Case::in_tf32));
        }
        cases
    })
    .collect()
}

/// Element types of real operands and results: as in bf16 training, then all types mixed.
const TWO_BYTES: [&[DType]; 2] = [&[DType::BF16, DType::F32], &[DType::F16, DType::F16, DType::BF16, DType::F32]];

/// The ops that may round single-precision operands to TF32.
const TF32: [&str; 4] = ["matmul", "conv2d", "conv2d_grad_input", "conv2d_grad_filter"];

type Row = fn(&mut Draw) -> Result<Vec<Case>, GraphError>;

/// Expands the table to a list of cases and to a `match` over all ops: an op without cases does not compile.
macro_rules! table {
    ($($op:ident => $name:literal, $cases:path;)*) => {
        const TABLE: &[(&str, Row)] = &[$(($name, $cases)),*];

        /// The table's name of an op.
        pub fn name_in_table(op: &Op) -> &'static str {
            match op {
                $(Op::$op(_) => $name,)*
            }
        }
    };
}

table! {
    Input => "input", leaves::input;
    State => "state", leaves::state;
    Scalar => "scalar", leaves::scalar;
    Pointwise => "pointwise", pointwise::cases;
    Reduce => "reduce", reduce::cases;
    MatMul => "matmul", products::matmul;
    Conv2d => "conv2d", products::conv2d;
    Conv2dGradInput => "conv2d_grad_input", products::conv2d_grad_input;
    Conv2dGradFilter => "conv2d_grad_filter", products::conv2d_grad_filter;
    MaxPool => "max_pool", pooling::max_pool;
    MaxPoolGrad => "max_pool_grad", pooling::max_pool_grad;
    AvgPool => "avg_pool", pooling::avg_pool;
    AvgPoolGrad => "avg_pool_grad", pooling::avg_pool_grad;
    Recurrent => "recurrent", recurrent::recurrent;
    RecurrentGrad => "recurrent_grad", recurrent::recurrent_grad;
    Reshape => "reshape", movement::reshape;
    Transpose => "transpose", movement::transpose;
    Slice => "slice", movement::slice;
    BatchSlice => "batch_slice", movement::batch_slice;
    Concat => "concat", movement::concat;
    SliceWrite => "slice_write", movement::slice_write;
    FusedSliceWrite => "fused_slice_write", fused_slice_write::cases;
    ChannelView => "channel_view", movement::channel_view;
    Pad => "pad", movement::pad;
    Gather => "gather", gather::gather;
    ScatterAdd => "scatter_add", gather::scatter_add;
    Attention => "attention", attention::attention;
    AttentionGrad => "attention_grad", attention::attention_grad;
    AllReduce => "all_reduce", all_reduce::cases;
    ReduceScatter => "reduce_scatter", shards::reduce_scatter;
    Shard => "shard", shards::shard;
    AllGather => "all_gather", shards::all_gather;
    PairwiseSum => "pairwise_sum", pairwise_sum::cases;
    Store => "store", offload::store;
    Load => "load", offload::load;
}
