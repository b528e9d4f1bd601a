//! Features of a node for the cost model: its class, its amount of work, and its sizes.

use crate::gpu;
use plimsoll_core::expr::{Binary, Expr, Term, Unary};
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::shape::{Shape, TensorType};
use plimsoll_core::{DType, Op};

/// The suffix of classes that read or write 16-bit floats.
pub(super) const HALF_PRECISION: &str = " in 16 bits";

/// The suffix of classes whose products may round to TF32.
pub(super) const TF32: &str = " in TF32";

/// The features of a node that determine its run time.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Features {
    /// The op, and what selects a different kernel.
    pub class: String,
    /// Logarithms of sizes, the same number for all of a class.
    pub sizes: Vec<f64>,
    /// Operations, transcendental functions weighted by their cost.
    pub work: f64,
    /// Bytes read and written.
    pub bytes: f64,
    /// Its seconds on a GPU by built-in rates.
    pub gpu_seconds: f64,
    /// Whether it is compute-bound: a matrix product or a dense convolution.
    pub compute_bound: bool,
}

impl Features {
    /// The squared distance between the sizes of two nodes of a class.
    pub fn distance(&self, other: &Features) -> f64 {
        self.sizes.iter().zip(&other.sizes).map(|(a, b)| (a - b).powi(2)).sum()
    }
}

/// The features of a node over `rows` rows.
pub(super) fn features(graph: &Graph, node: &Node, rows: usize) -> Features {
    let types = || node.inputs.iter().chain(&node.outputs).map(|value| graph.ty(*value));
    let bytes = graph.moved(node, rows);
    let narrow = types().any(|ty| matches!(ty.dtype, DType::F16 | DType::BF16));
    // A fused slice write takes as long as its op by itself.
    let effective = graph.effective_op(node);
    let input = |i: usize| graph.ty(effective.inputs[i]);
    let output = || effective.result(graph);
    let of = |ty: &TensorType| ty.shape.elements().bind(rows) as f64;
    let per = |expr: &Expr| cost(expr);
    let mut work = graph.node_flops(node, rows) as f64;
    let (class, sizes, compute_bound) = match effective.op {
        Op::MatMul(op) => {
            let (m, n, k) =
                op.dims(&input(0).shape, &input(1).shape).map_or((1, 1, 1), |(m, n, k)| (m.bind(rows), n.bind(rows), k.bind(rows)));
            let epilogue = op.epilogue.as_ref().map_or(0.0, per);
            work += epilogue * (m * n) as f64;
            let class = match (op.transpose_a, op.transpose_b) {
                (false, false) => "matmul",
                (true, false) => "matmul aᵀ",
                (false, true) => "matmul bᵀ",
                (true, true) => "matmul aᵀbᵀ",
            };
            (class.to_string(), vec![m as f64, n as f64, k as f64, 1.0 + epilogue], true)
        }
        Op::Conv2d(op) => {
            let epilogue = op.epilogue.as_ref().map_or(0.0, per);
            work += epilogue * of(output());
            convolution("conv2d", &input(0).shape, &output().shape, op.window.size, op.groups, epilogue, rows)
        }
        Op::Conv2dGradInput(op) => convolution("conv2d_grad_input", &op.input, &input(1).shape, op.window.size, op.groups, 0.0, rows),
        Op::Conv2dGradFilter(op) => {
            convolution("conv2d_grad_filter", &input(0).shape, &input(1).shape, op.window.size, op.groups, 0.0, rows)
        }
        Op::Pointwise(op) => {
            let elements = op.shape.elements().bind(rows) as f64;
            work = per(&op.expr) * elements;
            let last = op.shape.last().map_or(1, |dim| dim.bind(rows)) as f64;
            let sizes = vec![elements, bytes as f64 / elements.max(1.0), 1.0 + per(&op.expr), last.min(64.0)];
            ("pointwise".to_string(), sizes, false)
        }
        Op::Reduce(op) => {
            let elements = op.shape.elements().bind(rows) as f64;
            work = (per(&op.expr) + graph.node_flops(node, rows) as f64 / elements.max(1.0) - op.expr.flops() as f64) * elements;
            let inner = op.axes.last().is_some_and(|axis| axis + 1 == op.shape.rank());
            let class = format!("{}{}", node.op.rules().name(), if inner { " of rows" } else { "" });
            (class, vec![elements, bytes as f64 / elements.max(1.0), 1.0 + per(&op.expr), of(output())], false)
        }
        Op::Attention(_) | Op::AttentionGrad(_) => {
            let last = |shape: &Shape| shape.last().map_or(1, |dim| dim.bind(rows)) as f64;
            let name = node.op.rules().name().to_string();
            (name, vec![work, bytes as f64, last(&input(0).shape)], false)
        }
        Op::Recurrent(_) | Op::RecurrentGrad(_) => {
            let units = output().shape.last().map_or(1, |dim| dim.bind(rows)) as f64;
            (node.op.rules().name().to_string(), vec![work, bytes as f64, units, rows as f64], false)
        }
        // Bound by the bytes they move.
        op @ (Op::Input(_)
        | Op::State(_)
        | Op::Scalar(_)
        | Op::MaxPool(_)
        | Op::MaxPoolGrad(_)
        | Op::AvgPool(_)
        | Op::AvgPoolGrad(_)
        | Op::Reshape(_)
        | Op::Transpose(_)
        | Op::Slice(_)
        | Op::BatchSlice(_)
        | Op::Concat(_)
        | Op::SliceWrite(_)
        | Op::FusedSliceWrite(_)
        | Op::ChannelView(_)
        | Op::Pad(_)
        | Op::Gather(_)
        | Op::ScatterAdd(_)
        | Op::AllReduce(_)
        | Op::ReduceScatter(_)
        | Op::Shard(_)
        | Op::AllGather(_)
        | Op::PairwiseSum(_)
        | Op::Store(_)
        | Op::Load(_)) => {
            let last = output().shape.last().map_or(1, |dim| dim.bind(rows)) as f64;
            (op.rules().name().to_string(), vec![bytes as f64, last.min(256.0)], false)
        }
    };
    let class = match () {
        () if narrow => class + HALF_PRECISION,
        () if compute_bound && graph.tf32() => class + TF32,
        () => class,
    };
    let gpu_seconds = gpu::built_in_seconds(graph, node, rows);
    let sizes = sizes.into_iter().map(|size| size.max(1.0).ln()).collect();
    Features { class, sizes, work, bytes: bytes as f64, gpu_seconds, compute_bound }
}

/// Class and sizes of a convolution: pixels, input and output channels per group, kernel size.
fn convolution(
    name: &str,
    image: &Shape,
    result: &Shape,
    size: (usize, usize),
    groups: usize,
    epilogue: f64,
    rows: usize,
) -> (String, Vec<f64>, bool) {
    let (image, result) = (image.bind(rows), result.bind(rows));
    let (channels, filters) = (image[3] as f64, result[3] as f64);
    let (pixels, window) = ((result[0] * result[1] * result[2]) as f64, (size.0 * size.1) as f64);
    // With strides there are more input than output pixels.
    let stride = (image[1] * image[2]) as f64 / (result[1] * result[2]).max(1) as f64;
    if groups > 1 {
        let grouped = if groups as f64 == channels { "depthwise" } else { "grouped" };
        return (format!("{name} {grouped}"), vec![pixels, filters, window, stride, 1.0 + epilogue], false);
    }
    let single = if window == 1.0 { " 1×1" } else { "" };
    (format!("{name}{single}"), vec![pixels, channels, filters, window, stride, 1.0 + epilogue], true)
}

/// Operations of an expression per element, transcendental functions weighted by their cost.
fn cost(expr: &Expr) -> f64 {
    let term = |term: &Term| match term {
        Term::Input(_) | Term::Const(_) => 0.0,
        Term::Coordinate(_) | Term::Select(..) => 1.0,
        Term::Random(_) => 24.0,
        Term::Unary(Unary::Neg | Unary::Abs | Unary::Sign | Unary::Floor, _) => 1.0,
        Term::Unary(Unary::Sqrt | Unary::Recip, _) | Term::Binary(Binary::Div, ..) => 4.0,
        Term::Unary(..) => 12.0,
        Term::Binary(Binary::Pow, ..) => 24.0,
        Term::Binary(..) => 1.0,
    };
    expr.terms().iter().map(term).sum()
}
