//! Lowers nodes of a planned graph to kernels and library calls, with their workspace.

use super::collective::{self, AllReduceOp};
use super::lower_attention::attention_kernels;
use super::lower_matmul;
use super::shards::{self, ShardsOp};
use crate::algorithms::convolution::{self, Convolutions};
use crate::kernels::{self, Argument, FusedExpr, Kernel, Operand, PitchedRows};
use crate::libraries::cublaslt::MatmulRequest;
use crate::libraries::cudnn::ConvRequest;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, Node, StateKind};
use plimsoll_core::ops::FusedSliceWrite;
use plimsoll_core::plan::{Place, Plan, Program};
use plimsoll_core::{Bytes, DType, Op, Shape, ValueId};

/// Error for a sum that accumulates onto another.
const ONTO: &str = "resumes from a partial sum, which GPUs support for matrix products only: their plans do not split other sums";

/// Error for a sum over micro-batches in a fixed order.
const IN_ORDER: &str = "adds micro-batches in a fixed order, which GPUs do not support yet; train on the CPU";

/// A program under lowering.
pub(super) struct Lowering<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub rows: usize,
    /// The loss, if the program updates states, which must be skipped if the loss is not finite.
    pub loss: Option<ValueId>,
    /// Whether matrix products use the library.
    pub library: bool,
    /// Whether convolutions can use cuDNN.
    pub cudnn: bool,
    /// Which implementations of convolutions may be selected.
    pub convolutions: Convolutions,
    /// Whether generated kernels may use tensor cores.
    pub tensor_cores: bool,
    /// The number of this process among the ranks of a job.
    pub rank: usize,
}

/// One operation of a node.
pub(super) enum LoweredOp {
    /// A kernel and its input values.
    Kernel(Kernel, Vec<ValueId>),
    /// Kernels with their input and output values.
    Kernels(Vec<Kernel>, Vec<ValueId>, Vec<ValueId>),
    /// Library matrix products with kernels around them.
    Matmul {
        steps: Vec<MatmulStep>,
        /// The byte of the workspace at which the bias of the products is, if they add one.
        bias_at: u64,
        /// Bytes at the start of the workspace that the steps use; the rest is the library's.
        taken: u64,
        /// The kernels to use instead if the library has no algorithm for a product.
        fallback: Vec<Kernel>,
    },
    /// A convolution through cuDNN.
    Convolution(Box<CudnnConvOp>),
    /// A sum over ranks.
    AllReduce(AllReduceOp),
    /// A collective of shards, or the copy of one.
    Shards(ShardsOp),
}

/// A step of a matrix product.
pub(super) enum MatmulStep {
    Kernel(Kernel),
    /// A product with the locations of A, B and the result, and of the matrix that it is added to, if any.
    Product(MatmulRequest, [Argument; 3], Option<Argument>),
}

/// A cuDNN convolution with the kernels around it.
pub(super) struct CudnnConvOp {
    pub request: ConvRequest,
    /// Image, filter and result.
    pub tensors: [Argument; 3],
    /// Bytes at the start of the workspace for the filter, and for a padded image.
    pub taken: u64,
    /// Kernels before and after it, with their input values.
    pub before: Vec<Kernel>,
    pub after: Vec<(Kernel, Vec<ValueId>)>,
    /// The kernels to use instead if cuDNN rejects the convolution.
    pub fallback: Vec<Kernel>,
}

/// The workspace of a node for at most `rows` rows. Identical on every GPU and without one.
pub(crate) fn workspace(graph: &Graph, node: &Node, rows: usize, convolutions: Convolutions) -> Bytes {
    let dims = |value: ValueId| graph.shape(value).bind(rows);
    Bytes(match &node.op {
        Op::Reduce(op) => kernels::reduce_workspace(&op.shape.bind(rows), &op.axes),
        Op::MatMul(op) => lower_matmul::workspace(op, graph, node, rows),
        Op::Conv2d(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradFilter(_) => {
            let (kind, conv, types) = convolution::of_node(graph, node, rows);
            convolution::workspace(kind, &conv, types, graph.tf32(), convolutions)
        }
        Op::AttentionGrad(op) => {
            let [.., o, _, _] = node.inputs[..] else { unreachable!("checked when the node was added") };
            let (heads, places) = (op.attention.heads, dims(o));
            kernels::attention_grad_workspace(places[0], heads, places[1])
        }
        Op::ScatterAdd(op) => {
            let (table, count) = (op.table.bind(rows), dims(node.inputs[0]).iter().product());
            kernels::scatter_add_workspace(count, table[0], table[1..].iter().product())
        }
        Op::Recurrent(op) => kernels::recurrent_workspace(op, dims(node.inputs[0])[0]),
        Op::RecurrentGrad(op) => {
            let sequence = dims(node.outputs[0]);
            kernels::recurrent_grad_workspace(op, sequence[0], sequence[1])
        }
        Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Pointwise(_) | Op::Attention(_) | Op::Store(_) | Op::Load(_) => 0,
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AvgPool(_) | Op::AvgPoolGrad(_) | Op::Gather(_) => 0,
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::BatchSlice(_) | Op::Concat(_) | Op::Pad(_) | Op::ChannelView(_) => 0,
        Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::PairwiseSum(_) => 0,
        Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => shards::workspace(graph, node),
        Op::AllReduce(op) => collective::workspace(*op, graph, node),
    })
}

/// Whether an op can write its output into a slice: generated kernels can, library calls cannot.
pub(crate) fn fuses_slice_write(maker: &Op) -> bool {
    matches!(maker, Op::Pointwise(_)) && FusedSliceWrite::can_fuse(maker)
}

fn nhwc(dims: &[usize]) -> [usize; 4] {
    dims.try_into().expect("images have four axes")
}

impl Lowering<'_> {
    /// Lowers a node. `after_loss` means that this step's loss is computed before it; `alarms`, that it tells other
    /// ranks of a loss that is not finite.
    pub fn lower(&self, node: &Node, after_loss: bool, alarms: bool) -> Result<Vec<LoweredOp>, String> {
        let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
        let one = |kernel: Kernel| vec![LoweredOp::Kernel(kernel, inputs.to_vec())];
        let all = |list: Vec<Kernel>| list.into_iter().map(|kernel| LoweredOp::Kernel(kernel, inputs.to_vec())).collect::<Vec<_>>();
        let guarded = self.is_guarded(node);
        let mut works = match &node.op {
            Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Reshape(_) | Op::ChannelView(_) => {
                return Err("is planned as a step, but does not run".to_string());
            }
            Op::PairwiseSum(_) => return Err(IN_ORDER.to_string()),
            Op::ReduceScatter(_) | Op::Shard(_) | Op::AllGather(_) => vec![LoweredOp::Shards(ShardsOp::new(node, self, alarms)?)],
            Op::AllReduce(op) => vec![LoweredOp::AllReduce(AllReduceOp::new(*op, node, self, alarms))],
            // Copies run in their own streams.
            Op::Store(_) | Op::Load(_) => vec![],
            Op::Pointwise(op) => {
                let dtypes: Vec<DType> = outputs.iter().map(|output| self.dtype(*output)).collect();
                one(self.with_expr(&op.expr, &op.shape, inputs, &[], |site| kernels::pointwise(site, &dtypes)))
            }
            Op::Reduce(op) if op.onto => return Err(ONTO.to_string()),
            Op::Conv2dGradFilter(op) if op.onto => return Err(ONTO.to_string()),
            Op::ScatterAdd(op) if op.onto => return Err(ONTO.to_string()),
            Op::Reduce(op) => all(self.with_expr(&op.expr, &op.shape, inputs, &[], |site| kernels::reduce(site, &op.axes, op.kind))),
            Op::MatMul(op) => self.matmul(op, node, guarded)?,
            Op::Conv2d(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradFilter(_) => self.convolution(node, guarded)?,
            Op::Recurrent(op) => {
                let (sequence, numbers): (_, Vec<usize>) = (self.dims(inputs[0]), (0..inputs.len()).collect());
                all(kernels::recurrent(op, sequence[0], sequence[1], &numbers, |i| self.dtype(inputs[i])))
            }
            Op::RecurrentGrad(op) => {
                let (sequence, numbers): (_, Vec<usize>) = (self.dims(outputs[0]), (0..inputs.len()).collect());
                let (dtype, out) = (|i: usize| self.dtype(inputs[i]), self.dtype(outputs[0]));
                all(kernels::recurrent_grad(op, sequence[0], sequence[1], &numbers, dtype, out))
            }
            Op::MaxPool(op) => {
                let [dtype] = self.float_dtypes([outputs[0]])?;
                one(kernels::max_pool(&op.window, nhwc(&self.dims(inputs[0])), nhwc(&self.dims(outputs[0])), dtype))
            }
            Op::MaxPoolGrad(op) => {
                let [dtype] = self.float_dtypes([outputs[0]])?;
                one(kernels::max_pool_grad(&op.window, nhwc(&self.dims(outputs[0])), nhwc(&self.dims(inputs[1])), dtype))
            }
            Op::AvgPool(op) => {
                let [dtype] = self.float_dtypes([outputs[0]])?;
                one(kernels::avg_pool(&op.window, nhwc(&self.dims(inputs[0])), nhwc(&self.dims(outputs[0])), dtype))
            }
            Op::AvgPoolGrad(op) => {
                let [dtype] = self.float_dtypes([outputs[0]])?;
                one(kernels::avg_pool_grad(&op.window, nhwc(&self.dims(outputs[0])), nhwc(&self.dims(inputs[0])), dtype))
            }
            Op::Transpose(op) => one(kernels::transpose(self.size(inputs[0]), &self.dims(inputs[0]), &op.order)),
            Op::Slice(op) => {
                let unit = if self.program.graph.shape(inputs[0]).dims()[op.axis].is_batch() { self.rows } else { 1 };
                one(kernels::slice(self.size(inputs[0]), &self.dims(inputs[0]), &self.dims(outputs[0]), op.axis, unit * op.start))
            }
            Op::BatchSlice(op) => {
                let start = self.program.graph.shape(inputs[0]).dims()[0].factor() * op.from.min(self.rows);
                one(kernels::slice(self.size(inputs[0]), &self.dims(inputs[0]), &self.dims(outputs[0]), 0, start))
            }
            Op::Pad(op) => one(kernels::pad(self.size(inputs[0]), &self.dims(inputs[0]), &self.dims(outputs[0]), op.axis, op.before)),
            Op::Gather(_) => {
                let (table, count) = (self.dims(inputs[0]), self.dims(inputs[1]).iter().product());
                let types = [self.dtype(inputs[0]), self.dtype(inputs[1]), self.dtype(outputs[0])];
                one(kernels::gather(count, table[0], table[1..].iter().product(), types))
            }
            Op::ScatterAdd(op) => {
                let (table, count) = (op.table.bind(self.rows), self.dims(inputs[0]).iter().product());
                let types = [self.dtype(inputs[0]), self.dtype(inputs[1])];
                all(kernels::scatter_add(count, table[0], table[1..].iter().product(), types))
            }
            Op::Attention(_) | Op::AttentionGrad(_) => all(attention_kernels(&self.program.graph, node, self.rows, self.tensor_cores)),
            Op::Concat(op) => {
                let dims: Vec<Vec<usize>> = inputs.iter().map(|input| self.dims(*input)).collect();
                one(kernels::concat(self.size(inputs[0]), &dims, &self.dims(outputs[0]), op.axis))
            }
            Op::SliceWrite(op) => {
                let (size, part, whole) = (self.size(inputs[0]), self.dims(inputs[0]), self.dims(outputs[0]));
                let start = op.first(self.program.graph.shape(inputs[0]).dims()[op.axis], self.rows);
                let copied = self.copy_of_base(inputs.get(1).copied(), outputs[0]);
                copied.into_iter().chain(one(kernels::slice_write(size, &part, &whole, op.axis, start))).collect()
            }
            Op::FusedSliceWrite(op) => {
                let effective_op = self.program.graph.effective_op(node);
                let Op::Pointwise(maker) = effective_op.op else {
                    return Err(format!("{} does not write between other results on a GPU", effective_op.op.rules().name()));
                };
                let runs = self.runs(node).ok_or("has no place in a whole")?;
                let dtype = self.dtype(outputs[0]);
                let kernel = self
                    .with_expr(&maker.expr, &maker.shape, effective_op.inputs, &[], |site| kernels::fused_slice_write(site, dtype, runs));
                let copied = self.copy_of_base(inputs.first().copied().filter(|_| op.has_base), outputs[0]);
                copied.into_iter().chain([LoweredOp::Kernel(kernel, effective_op.inputs.to_vec())]).collect()
            }
        };
        works.retain(|work| !matches!(work, LoweredOp::Kernel(kernel, _) if kernel.is_empty()));
        if guarded {
            works = works.into_iter().map(|work| work.guarded(after_loss)).collect();
        }
        Ok(works)
    }

    /// Copies the concat output so far, if the slice is not written in place because the old value is read again.
    fn copy_of_base(&self, base: Option<ValueId>, output: ValueId) -> Option<LoweredOp> {
        let place = |value: ValueId| self.program.places[value.0 as usize];
        let base = base.filter(|base| place(*base) != place(output))?;
        let whole = self.dims(output);
        Some(LoweredOp::Kernel(kernels::slice(self.size(output), &whole, &whole, 0, 0), vec![base]))
    }

    /// The layout of a fused slice write in its concat output.
    pub fn runs(&self, node: &Node) -> Option<PitchedRows> {
        let (place, part) = self.program.graph.effective_op(node).slice?;
        let (dims, whole) = (part.shape.bind(self.rows), self.dims(node.outputs[0]));
        let inner: usize = dims[place.axis + 1..].iter().product();
        let start = place.first(part.shape.dims()[place.axis], self.rows) * inner;
        // An empty piece has nothing to write.
        Some(PitchedRows { start, length: (dims[place.axis] * inner).max(1), pitch: whole[place.axis] * inner })
    }

    /// Whether the node updates a state that must stay valid after a non-finite loss. Gradient accumulators are reset
    /// with the next batch.
    pub fn is_guarded(&self, node: &Node) -> bool {
        let kept = |offset: Bytes| {
            self.plan.states.iter().any(|state| !state.stored && state.offset == offset && state.kind != StateKind::Accumulator)
        };
        let place = |value: &ValueId| self.program.places[value.0 as usize];
        let changes =
            |value: &ValueId| matches!(place(value), Some(Place::Resident(offset)) if kept(offset)) || self.updates_stored_state(*value);
        self.loss.is_some() && node.outputs.iter().any(changes)
    }

    /// Whether a value is the new value of an offloaded state that must stay valid. It reuses the buffer of the loaded
    /// value, so a skipped kernel leaves the old value to be stored.
    fn updates_stored_state(&self, value: ValueId) -> bool {
        let graph = &self.program.graph;
        graph.updates().iter().any(|(state, stored)| {
            let store = graph.producer(*stored);
            let kept = self.plan.states[state.0 as usize].kind != StateKind::Accumulator;
            matches!(store.op, Op::Store(_)) && kept && super::root(self.program, store.inputs[0]) == value
        })
    }

    pub fn with_expr<T>(
        &self,
        expr: &Expr,
        shape: &Shape,
        inputs: &[ValueId],
        in_registers: &[(usize, &str)],
        write: impl FnOnce(&FusedExpr<'_>) -> T,
    ) -> T {
        let dims: Vec<Vec<usize>> = inputs.iter().map(|input| self.dims(*input)).collect();
        let strip = |value: ValueId| match &self.program.graph.producer(value).op {
            Op::ChannelView(op) => self.dims(self.program.graph.spread(value)).last().map(|pitch| (op.start, *pitch)),
            _ => None,
        };
        let operands: Vec<Operand<'_>> =
            inputs.iter().zip(&dims).map(|(input, dims)| Operand { dtype: self.dtype(*input), dims, strip: strip(*input) }).collect();
        let row = if shape.has_batch() { shape.elements().factor() as u64 } else { 0 };
        write(&FusedExpr { expr, dims: &shape.bind(self.rows), operands: &operands, row, in_registers })
    }

    /// The types of operands of products, convolutions and poolings; arithmetic is in single precision for any storage
    /// type.
    pub(super) fn float_dtypes<const N: usize>(&self, values: [ValueId; N]) -> Result<[DType; N], String> {
        match values.iter().find(|value| self.dtype(**value) != DType::F32 && !self.dtype(**value).is_half()) {
            Some(value) => Err(format!("computes with f32, f16 and bf16, but {value} is {}; cast it first", self.program.graph.ty(*value))),
            None => Ok(values.map(|value| self.dtype(value))),
        }
    }

    pub(super) fn dims(&self, value: ValueId) -> Vec<usize> {
        self.program.graph.shape(value).bind(self.rows)
    }

    pub(super) fn dtype(&self, value: ValueId) -> DType {
        self.program.graph.ty(value).dtype
    }

    pub(super) fn size(&self, value: ValueId) -> usize {
        self.dtype(value).size()
    }
}

impl LoweredOp {
    /// All kernels that it may launch.
    pub fn into_kernels(self) -> Vec<Kernel> {
        match self {
            LoweredOp::Kernel(kernel, _) => vec![kernel],
            LoweredOp::Kernels(kernels, ..) => kernels,
            LoweredOp::Matmul { steps, fallback, .. } => {
                let kernel = |step| match step {
                    MatmulStep::Kernel(kernel) => Some(kernel),
                    MatmulStep::Product(..) => None,
                };
                steps.into_iter().filter_map(kernel).chain(fallback).collect()
            }
            LoweredOp::AllReduce(work) => work.kernels().1.into_iter().flatten().collect(),
            LoweredOp::Shards(work) => {
                let (before, after) = work.kernels();
                before.into_iter().chain(after).collect()
            }
            LoweredOp::Convolution(work) => {
                work.before.into_iter().chain(work.after.into_iter().map(|(kernel, _)| kernel)).chain(work.fallback).collect()
            }
        }
    }

    pub(super) fn guarded(self, after_loss: bool) -> LoweredOp {
        match self {
            LoweredOp::Kernel(kernel, inputs) => LoweredOp::Kernel(kernel.guarded(after_loss), inputs),
            LoweredOp::Kernels(kernels, inputs, outputs) => {
                LoweredOp::Kernels(kernels.into_iter().map(|kernel| kernel.guarded(after_loss)).collect(), inputs, outputs)
            }
            unchanged @ (LoweredOp::Matmul { .. } | LoweredOp::AllReduce(_) | LoweredOp::Shards(_)) => unchanged,
            LoweredOp::Convolution(mut work) => {
                let guard = |kernel: Kernel| kernel.guarded(after_loss);
                work.after = work.after.into_iter().map(|(kernel, seen)| (guard(kernel), seen)).collect();
                work.fallback = work.fallback.into_iter().map(guard).collect();
                LoweredOp::Convolution(work)
            }
        }
    }
}

/// The loss of a program that updates states.
pub(super) fn guarding_loss(graph: &Graph) -> Option<ValueId> {
    let (_, loss) = graph.outputs().iter().find(|(name, _)| name == "loss")?;
    let real = graph.ty(*loss).dtype == DType::F32 && graph.shape(*loss).elements().as_fixed() == Some(1);
    (real && !graph.updates().is_empty()).then_some(*loss)
}

/// The report at the end of a program.
pub(super) fn report(program: &Program, loss: Option<ValueId>) -> LoweredOp {
    let numbers: Vec<ValueId> = program.numbers().map(|(_, value)| value).collect();
    LoweredOp::Kernel(kernels::report(numbers.len(), loss.is_some()), numbers)
}
