//! Lowers nodes of a planned graph to kernels and library calls, with their workspace.

use crate::algorithms::ComputeType;
use crate::algorithms::convolution::{self, ConvAlgorithm, ConvPass, Convolutions};
use crate::algorithms::matmul::{self, Unaligned};
use crate::kernels::{self, Argument, AttentionShape, ConvShape, FusedExpr, Kernel, Operand, Part, PitchedRows};
use crate::libraries::cublaslt::MatmulRequest;
use crate::libraries::cudnn::ConvRequest;
use plimsoll_core::expr::{Binary, Expr, Term};
use plimsoll_core::graph::{Graph, Node, StateKind};
use plimsoll_core::ops::{Attention, Conv2d, FusedSliceWrite, MatMul};
use plimsoll_core::plan::{Place, Plan, Program};
use plimsoll_core::{Bytes, DType, Op, Shape, ValueId};

/// Error for a sum that accumulates onto another.
const ONTO: &str = "resumes from a partial sum, which GPUs support for matrix products only: their plans do not split other sums";

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
        Op::MatMul(op) => {
            let extents = extents(op, graph, node, rows);
            let padded = unaligned(op, graph, node, rows).map_or(0, |matrix| matmul::padded_bytes(extents, matrix));
            let bias = bias(op, graph, node, rows).map_or(0, |(_, bytes)| bytes);
            matmul::workspace(extents.0, extents.1) + cast(graph, node, rows).map_or(0, |(_, bytes, _)| bytes) + bias + padded
        }
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
        Op::SliceWrite(_) | Op::FusedSliceWrite(_) => 0,
    })
}

fn extents(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> (usize, usize, usize) {
    let (m, n, k) = op.dims(graph.shape(node.inputs[0]), graph.shape(node.inputs[1])).expect("checked when the node was added");
    (m.bind(rows), n.bind(rows), k.bind(rows))
}

/// The matrix of a product that is copied into padded rows.
fn unaligned(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> Option<Unaligned> {
    let [a, b, result] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|value| graph.ty(value).dtype);
    let common = matmul::common_type(a, b, result)?;
    let found = matmul::unaligned(extents(op, graph, node, rows), (op.transpose_a, op.transpose_b), common, result)?;
    // The copies move 16-bit elements, and the rows of zeros that complete the other operand need a copy of it.
    let fits = !op.onto
        && match found {
            Unaligned::LeftTransposed => a == common,
            Unaligned::Left | Unaligned::Result => a == common && b == DType::F32,
        };
    fits.then_some(found)
}

/// Which operand of a product must be cast to the other's type, the bytes it takes, and that type.
fn cast(graph: &Graph, node: &Node, rows: usize) -> Option<(usize, u64, DType)> {
    let [a, b, result] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|value| graph.ty(value).dtype);
    let common = matmul::common_type(a, b, result)?;
    let operand = [a, b].iter().position(|dtype| *dtype != common)?;
    Some((operand, matmul::cast_bytes(DType::F32, common, cast_elements(graph, node, operand, rows)), common))
}

/// The type and bytes of a bias that the library adds to a product, if that is all the epilogue does. It is read in the type
/// of the result, as other operands are.
fn bias(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> Option<(DType, u64)> {
    let (expr, (m, n, _)) = (op.epilogue.as_ref()?, extents(op, graph, node, rows));
    let (row, result) = (graph.ty(*node.inputs.get(2)?), graph.ty(node.outputs[0]).dtype);
    let adds = matches!(expr.terms(), [Term::Input(a), Term::Input(b), Term::Binary(Binary::Add, 0, 1)] if a + b == 1);
    let [a, b] = [node.inputs[0], node.inputs[1]].map(|value| graph.ty(value).dtype);
    let product = matmul::common_type(a, b, result).is_some_and(|common| common == result && common.is_half());
    let is_row =
        row.dtype == DType::F32 && row.shape.last().is_some_and(|last| last.bind(rows) == n) && row.shape.elements().bind(rows) == n;
    let large = m.saturating_mul(n) >= LARGE_RESULT && n.is_multiple_of(8);
    let fits = adds && product && is_row && large && node.inputs.len() == 3 && unaligned(op, graph, node, rows).is_none();
    fits.then(|| (result, matmul::cast_bytes(DType::F32, result, n)))
}

/// Minimum results for a bias in the library: a copy of the bias must cost less than a pass over the results.
const LARGE_RESULT: usize = 1 << 20;

/// Elements of a cast operand, with rows of zeros up to a multiple of eight if the other matrix is padded too.
fn cast_elements(graph: &Graph, node: &Node, operand: usize, rows: usize) -> usize {
    let elements = graph.shape(node.inputs[operand]).elements().bind(rows);
    match &node.op {
        Op::MatMul(op) if operand == 1 && matches!(unaligned(op, graph, node, rows), Some(Unaligned::Left | Unaligned::Result)) => {
            let height = graph.shape(node.inputs[1]).bind(rows)[0];
            elements / height.max(1) * height.next_multiple_of(8)
        }
        _ => elements,
    }
}

/// Whether a program uses cuDNN for at most `rows` rows, if it is available.
pub(crate) fn wants_cudnn(program: &Program, rows: usize, convolutions: Convolutions) -> bool {
    let wanted = |node: &Node| {
        matches!(node.op, Op::Conv2d(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradFilter(_)) && {
            let (kind, conv, types) = convolution::of_node(&program.graph, node, rows);
            matches!(convolution::select(kind, &conv, types, program.graph.tf32(), convolutions), ConvAlgorithm::Cudnn(_))
        }
    };
    convolutions != Convolutions::Generated && program.order.iter().any(|id| wanted(program.graph.node(*id)))
}

/// Whether an op can write its output into a slice: generated kernels can, library calls cannot.
pub(crate) fn fuses_slice_write(maker: &Op) -> bool {
    matches!(maker, Op::Pointwise(_)) && FusedSliceWrite::can_fuse(maker)
}

fn nhwc(dims: &[usize]) -> [usize; 4] {
    dims.try_into().expect("images have four axes")
}

impl Lowering<'_> {
    /// Lowers a node. `after_loss` means that this step's loss is computed before it.
    pub fn lower(&self, node: &Node, after_loss: bool) -> Result<Vec<LoweredOp>, String> {
        let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
        let one = |kernel: Kernel| vec![LoweredOp::Kernel(kernel, inputs.to_vec())];
        let all = |list: Vec<Kernel>| list.into_iter().map(|kernel| LoweredOp::Kernel(kernel, inputs.to_vec())).collect::<Vec<_>>();
        let guarded = self.is_guarded(node);
        let mut works = match &node.op {
            Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Reshape(_) | Op::ChannelView(_) => {
                return Err("is planned as a step, but does not run".to_string());
            }
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
            Op::Attention(op) => one(kernels::attention(&self.heads(op, inputs, 0))),
            Op::AttentionGrad(op) => {
                let dy = self.dtype(inputs[inputs.len() - 1]);
                all(kernels::attention_grad(&self.heads(&op.attention, inputs, 3), dy))
            }
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

    fn matmul(&self, op: &MatMul, node: &Node, guarded: bool) -> Result<Vec<LoweredOp>, String> {
        let (inputs, output) = (&node.inputs[..], node.outputs[0]);
        let types = self.float_dtypes([inputs[0], inputs[1], output])?;
        let extents = extents(op, &self.program.graph, node, self.rows);
        let fallback = kernels::matmul(extents, op.transpose_a, op.transpose_b, types, op.onto);
        let bias = bias(op, &self.program.graph, node, self.rows);
        let mut fused = false;
        let mut works = match matmul::common_type(types[0], types[1], types[2]).filter(|_| self.library && !guarded) {
            Some(common) => {
                let cast = cast(&self.program.graph, node, self.rows);
                let mut steps = Vec::new();
                if let Some((operand, _, dtype)) = cast {
                    let elements = self.dims(inputs[operand]).iter().product();
                    let padded = cast_elements(&self.program.graph, node, operand, self.rows);
                    steps.push(MatmulStep::Kernel(kernels::cast(operand, elements, padded, dtype)));
                }
                let operand = |i: usize| if cast.is_some_and(|(cast, ..)| cast == i) { Argument::Workspace } else { Argument::Input(i) };
                let mut taken = cast.map_or(0, |(_, bytes, _)| bytes);
                let request = MatmulRequest {
                    extents,
                    transpose: (op.transpose_a, op.transpose_b),
                    types: (ComputeType::new(common, self.program.graph.tf32()), types[2]),
                    pitches: [None; 2],
                    bias: bias.is_some(),
                };
                let onto = op.onto.then_some(Argument::Input(2));
                let bias_at = taken;
                if let Some((dtype, bytes)) = bias {
                    steps.push(MatmulStep::Kernel(kernels::cast_to(2, extents.1, dtype, Argument::WorkspaceAt(taken as usize))));
                    taken += bytes;
                }
                match unaligned(op, &self.program.graph, node, self.rows) {
                    Some(matrix) => {
                        steps.extend(padded_steps(request, matrix, operand(0), operand(1), taken));
                        taken += matmul::padded_bytes(extents, matrix);
                    }
                    None => steps.push(MatmulStep::Product(request, [operand(0), operand(1), Argument::Output(0)], onto)),
                }
                let mut fallback = vec![fallback];
                if bias.is_some() {
                    fallback.extend(self.matmul_epilogue(op, node).map(|(kernel, _)| in_place_of_library(kernel)));
                    fused = true;
                }
                vec![LoweredOp::Matmul { steps, bias_at, taken, fallback }]
            }
            // A library call cannot depend on the loss; a generated kernel can.
            None => vec![LoweredOp::Kernel(fallback, inputs.to_vec())],
        };
        if let Some((kernel, seen)) = self.matmul_epilogue(op, node).filter(|_| !fused) {
            works.push(LoweredOp::Kernel(kernel, seen));
        }
        Ok(works)
    }

    /// The epilogue of a product as a separate kernel over results in memory, with its inputs.
    fn matmul_epilogue(&self, op: &MatMul, node: &Node) -> Option<(Kernel, Vec<ValueId>)> {
        let (expr, output) = (op.epilogue.as_ref()?, node.outputs[0]);
        let seen: Vec<ValueId> = [&[output], &node.inputs[2..]].concat();
        let (shape, dtypes) = (self.program.graph.shape(output), [self.dtype(output)]);
        Some((self.with_expr(expr, shape, &seen, &[], |site| kernels::pointwise(site, &dtypes)), seen))
    }

    /// Lowers a convolution or a gradient of one with the selected implementation, if it is available.
    fn convolution(&self, node: &Node, guarded: bool) -> Result<Vec<LoweredOp>, String> {
        let (inputs, output) = (&node.inputs[..], node.outputs[0]);
        let (kind, conv, types) = convolution::of_node(&self.program.graph, node, self.rows);
        self.float_dtypes([inputs[0], inputs[1], output])?;
        let fallback = self.generated(kind, &conv, types, node);
        let in_arena = matches!(self.program.places.get(output.0 as usize).copied().flatten(), Some(Place::Arena(_)));
        match convolution::select(kind, &conv, types, self.program.graph.tf32(), self.convolutions) {
            _ if self.convolutions == Convolutions::Generated => {}
            ConvAlgorithm::Generated => {}
            // A library call cannot depend on the loss; a generated kernel can.
            ConvAlgorithm::Matmul(ty) if self.library && !guarded => {
                return Ok(self.conv_as_matmul(kind, &conv, types, ty, node, fallback));
            }
            // A generated kernel writes the filter gradient to its destination. Otherwise the result must be
            // overwritable while the library is tried.
            ConvAlgorithm::Cudnn(ty) if self.cudnn && (kind == ConvPass::GradFilter || in_arena && !guarded) => {
                return Ok(vec![self.conv_with_cudnn(kind, &conv, types, ty, node, fallback)]);
            }
            ConvAlgorithm::Matmul(_) | ConvAlgorithm::Cudnn(_) => {}
        }
        Ok(fallback.into_iter().map(|kernel| LoweredOp::Kernel(kernel, inputs.to_vec())).collect())
    }

    /// A convolution in generated kernels.
    fn generated(&self, kind: ConvPass, conv: &ConvShape, [image, filter, result]: [DType; 3], node: &Node) -> Vec<Kernel> {
        match (kind, &node.op) {
            (ConvPass::GradInput, _) => vec![kernels::grad_input(conv, [filter, result, image])],
            (ConvPass::GradFilter, _) => kernels::grad_filter(conv, [image, result]),
            (ConvPass::Forward, Op::Conv2d(Conv2d { epilogue: Some(expr), .. })) => {
                let seen: Vec<ValueId> = [&node.outputs[..1], &node.inputs[2..]].concat();
                let shape = self.program.graph.shape(node.outputs[0]);
                let write = |site: &FusedExpr<'_>| kernels::forward(conv, [image, filter, result], Some(site));
                vec![self.with_expr(expr, shape, &seen, &[(0, "value")], write)]
            }
            (ConvPass::Forward, _) => vec![kernels::forward(conv, [image, filter, result], None)],
        }
    }

    /// A 1×1 convolution as a matrix product.
    fn conv_as_matmul(
        &self,
        kind: ConvPass,
        conv: &ConvShape,
        types: [DType; 3],
        ty: ComputeType,
        node: &Node,
        fallback: Vec<Kernel>,
    ) -> Vec<LoweredOp> {
        let dtype = ty.dtype;
        // Filters are matrices of input channels × output channels.
        let (operands, transpose, filter, result) = match kind {
            ConvPass::Forward => ([0, 1], (false, false), Some(1), types[2]),
            ConvPass::GradInput => ([1, 0], (false, true), Some(0), types[0]),
            ConvPass::GradFilter => ([0, 1], (true, false), None, types[1]),
        };
        let cast = filter.filter(|_| types[1] != dtype);
        let mut steps = Vec::new();
        if let Some(filter) = cast {
            let elements = self.dims(node.inputs[filter]).iter().product();
            steps.push(MatmulStep::Kernel(kernels::cast(filter, elements, elements, dtype)));
        }
        let taken = if cast.is_some() { convolution::cast_bytes(kind, conv, types[1], dtype) } else { 0 };
        let operand = |i: usize| if cast == Some(operands[i]) { Argument::Workspace } else { Argument::Input(operands[i]) };
        let extents = convolution::matmul_extents(kind, conv);
        // The epilogue is a separate kernel, so the fallback of the product must not include it.
        let plain = match &node.op {
            Op::Conv2d(op) if op.epilogue.is_some() => vec![kernels::forward(conv, types, None)],
            _ => fallback,
        };
        let request = MatmulRequest { extents, transpose, types: (ty, result), pitches: [None; 2], bias: false };
        steps.push(MatmulStep::Product(request, [operand(0), operand(1), Argument::Output(0)], None));
        let product = LoweredOp::Matmul { steps, bias_at: 0, taken, fallback: plain };
        let after = self.epilogue(node).into_iter().map(|(kernel, seen)| LoweredOp::Kernel(kernel, seen));
        [product].into_iter().chain(after).collect()
    }

    /// A cuDNN convolution, which needs filters in its own layout and one type for all tensors.
    fn conv_with_cudnn(
        &self,
        kind: ConvPass,
        conv: &ConvShape,
        types: [DType; 3],
        ty: ComputeType,
        node: &Node,
        fallback: Vec<Kernel>,
    ) -> LoweredOp {
        let (dtype, taps, out) = (ty.dtype, conv.taps(), conv.result[3]);
        let (filter, inputs) = (Argument::Workspace, node.inputs.clone());
        let padded = convolution::padded(kind, conv, ty);
        let brought = |operand: usize| match &padded {
            None => kernels::transpose_matrix((taps, out), (types[1], Argument::Input(operand)), (dtype, filter)),
            Some(padded) => kernels::pad_filter(conv, padded.image[3], (types[1], Argument::Input(operand)), (dtype, filter), false),
        };
        let (used, taken) = convolution::copies(kind, conv, ty);
        let image = match padded {
            None => Argument::Input(0),
            Some(padded) => Argument::WorkspaceAt(convolution::filter_bytes(&padded, dtype) as usize),
        };
        let mut before: Vec<Kernel> =
            padded.iter().map(|padded| kernels::pad_image(conv, padded, dtype, Argument::Input(0), image)).collect();
        let (tensors, after) = match kind {
            ConvPass::Forward => {
                before.push(brought(1));
                ([image, filter, Argument::Output(0)], self.epilogue(node))
            }
            ConvPass::GradInput => {
                before.push(brought(0));
                ([Argument::Output(0), filter, Argument::Input(1)], vec![])
            }
            ConvPass::GradFilter => {
                let (from, to) = ((dtype, filter), (types[1], Argument::Output(0)));
                let back = match &padded {
                    None => kernels::transpose_matrix((out, taps), from, to),
                    Some(padded) => kernels::pad_filter(conv, padded.image[3], from, to, true),
                };
                ([image, filter, Argument::Input(1)], vec![(back, inputs)])
            }
        };
        let request = ConvRequest { kind, conv: used, ty };
        LoweredOp::Convolution(Box::new(CudnnConvOp { request, tensors, taken, before, after, fallback }))
    }

    /// The epilogue of a convolution as a separate kernel over results in memory.
    fn epilogue(&self, node: &Node) -> Vec<(Kernel, Vec<ValueId>)> {
        let (Op::Conv2d(Conv2d { epilogue: Some(expr), .. }), output) = (&node.op, node.outputs[0]) else { return vec![] };
        let seen: Vec<ValueId> = [&[output], &node.inputs[2..]].concat();
        let dtypes = [self.dtype(output)];
        let kernel = self.with_expr(expr, self.program.graph.shape(output), &seen, &[], |site| kernels::pointwise(site, &dtypes));
        vec![(kernel, seen)]
    }

    /// An attention whose inputs are the packing's tensors, optionally a mask, and further inputs.
    fn heads<'a>(&self, op: &'a Attention, inputs: &[ValueId], behind: usize) -> AttentionShape<'a> {
        let tensors = &inputs[..op.packing.tensors()];
        let shapes: Vec<&Shape> = tensors.iter().map(|tensor| self.program.graph.shape(*tensor)).collect();
        let shape = op.shape(&shapes).expect("checked when the node was added");
        let mask = inputs[tensors.len()..inputs.len() - behind].first();
        AttentionShape {
            op,
            batch: shape.batch.bind(self.rows),
            queries: shape.queries,
            keys: shape.keys,
            depth: shape.depth,
            types: tensors.iter().map(|tensor| self.dtype(*tensor)).collect(),
            mask: mask.map(|mask| self.dtype(*mask)),
            sequences: shape.batch.factor(),
            tensor_cores: self.tensor_cores,
        }
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
    fn float_dtypes<const N: usize>(&self, values: [ValueId; N]) -> Result<[DType; N], String> {
        match values.iter().find(|value| self.dtype(**value) != DType::F32 && !self.dtype(**value).is_half()) {
            Some(value) => Err(format!("computes with f32, f16 and bf16, but {value} is {}; cast it first", self.program.graph.ty(*value))),
            None => Ok(values.map(|value| self.dtype(value))),
        }
    }

    fn dims(&self, value: ValueId) -> Vec<usize> {
        self.program.graph.shape(value).bind(self.rows)
    }

    fn dtype(&self, value: ValueId) -> DType {
        self.program.graph.ty(value).dtype
    }

    fn size(&self, value: ValueId) -> usize {
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
            product @ LoweredOp::Matmul { .. } => product,
            LoweredOp::Convolution(mut work) => {
                let guard = |kernel: Kernel| kernel.guarded(after_loss);
                work.after = work.after.into_iter().map(|(kernel, seen)| (guard(kernel), seen)).collect();
                work.fallback = work.fallback.into_iter().map(guard).collect();
                LoweredOp::Convolution(work)
            }
        }
    }
}

/// An epilogue kernel that is launched with the inputs of its node instead of its own.
fn in_place_of_library(mut kernel: Kernel) -> Kernel {
    for (_, argument) in &mut kernel.parameters {
        *argument = match *argument {
            Argument::Input(0) => Argument::Output(0),
            Argument::Input(i) => Argument::Input(i + 1),
            other => other,
        };
    }
    kernel
}

/// The steps of a product with an unaligned matrix, block by block; the block is at byte `block` of the workspace.
fn padded_steps(request: MatmulRequest, matrix: Unaligned, a: Argument, b: Argument, block: u64) -> Vec<MatmulStep> {
    let MatmulRequest { extents: (m, n, k), types: (common, result), .. } = request;
    let here = Argument::WorkspaceAt(block as usize);
    // Byte offset `bytes` in A or in the result.
    let behind = |argument: Argument, bytes: usize| match argument {
        Argument::Input(i) => Argument::InputAt(i, bytes),
        Argument::Workspace => Argument::WorkspaceAt(bytes),
        other => unreachable!("{other:?} is no operand"),
    };
    let (dims, along_rows) = match matrix {
        Unaligned::Left => ((m, k), true),
        Unaligned::LeftTransposed => ((k, m), false),
        Unaligned::Result => ((m, n), true),
    };
    let steps = matmul::padded_blocks(dims, along_rows).into_iter().flat_map(|(first, length)| {
        let part = match along_rows {
            true => Part { width: dims.1, rows: length, columns: dims.1 },
            false => Part { width: dims.1, rows: dims.0, columns: length },
        };
        let start = 2 * if along_rows { first * dims.1 } else { first };
        let pitch = Some(part.pitch());
        let out = |row: usize| Argument::OutputAt(0, row * n * result.size());
        match matrix {
            Unaligned::Left | Unaligned::LeftTransposed => {
                // Zeros behind the rows are multiplied with the zeros behind the other operand.
                let k = if matrix == Unaligned::Left { k.next_multiple_of(8) } else { k };
                let request = MatmulRequest { extents: (length, n, k), pitches: [pitch, None], ..request };
                let pad = kernels::pad_rows(&part, behind(a, start), here);
                vec![MatmulStep::Kernel(pad), MatmulStep::Product(request, [here, b, out(first)], None)]
            }
            Unaligned::Result => {
                let request = MatmulRequest { extents: (length, n.next_multiple_of(8), k), pitches: [None, pitch], ..request };
                let rows = behind(a, first * k * common.dtype.size());
                let unpad = kernels::unpad_rows(&part, here, Argument::OutputAt(0, start));
                vec![MatmulStep::Product(request, [rows, b, here], None), MatmulStep::Kernel(unpad)]
            }
        }
    });
    steps.collect()
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

/// The location of a kernel argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// A fixed address.
    Fixed(u64),
    /// Offset in the run's slot.
    Slot(u64),
    /// The results of the run.
    Results,
}

/// Resolves arguments to addresses.
pub(super) struct Addresses<'a> {
    pub lowering: &'a Lowering<'a>,
    pub resident: (u64, u64),
    pub arena: (u64, u64),
    pub columns: &'a [usize],
    pub header: usize,
    pub scalars: usize,
    pub non_finite_flag: u64,
}

impl Addresses<'_> {
    /// The address of a value, checked against the bounds of its memory.
    pub fn value(&self, value: ValueId) -> Result<Address, String> {
        let within = |(start, size): (u64, u64), offset: Bytes| {
            let end = offset.0.checked_add(self.lowering.program.graph.ty(value).bytes(self.lowering.rows).0);
            if end.is_none_or(|end| end > size) {
                return Err(format!("{value} is planned outside of its memory"));
            }
            Ok(Address::Fixed(start + offset.0))
        };
        match self.lowering.program.places.get(value.0 as usize).copied().flatten() {
            Some(Place::Arena(offset)) => within(self.arena, offset),
            Some(Place::Resident(offset)) => within(self.resident, offset),
            Some(Place::Input(column)) => Ok(Address::Slot(self.columns[column.0 as usize] as u64)),
            Some(Place::Scalar(scalar)) => Ok(Address::Slot(self.scalars as u64 + 4 * u64::from(scalar.0))),
            Some(Place::Backing(_)) => Err(format!("{value} is in the backing store, where only loads reach")),
            None => Err(format!("{value} has no place in the plan")),
        }
    }

    /// The address of an argument, for a node with these outputs and workspace at `workspace`.
    pub fn argument(&self, argument: Argument, inputs: &[ValueId], outputs: &[ValueId], workspace: Bytes) -> Result<Address, String> {
        match argument {
            Argument::Input(i) => self.value(inputs[i]),
            Argument::InputAt(i, bytes) => Ok(match self.value(inputs[i])? {
                Address::Fixed(address) => Address::Fixed(address + bytes as u64),
                Address::Slot(offset) => Address::Slot(offset + bytes as u64),
                Address::Results => unreachable!("no value is an answer"),
            }),
            Argument::Output(i) => self.argument(Argument::OutputAt(i, 0), inputs, outputs, workspace),
            Argument::OutputAt(i, bytes) => match self.value(outputs[i])? {
                Address::Fixed(address) => Ok(Address::Fixed(address + bytes as u64)),
                _ => Err("is planned to write where only the host writes".to_string()),
            },
            Argument::Workspace => Ok(Address::Fixed(self.arena.0 + workspace.0)),
            Argument::WorkspaceAt(bytes) => Ok(Address::Fixed(self.arena.0 + workspace.0 + bytes as u64)),
            Argument::Header => Ok(Address::Slot(self.header as u64)),
            Argument::NonFiniteFlag => Ok(Address::Fixed(self.non_finite_flag)),
            Argument::Loss => self.value(self.lowering.loss.expect("only programs with a loss have guards")),
            Argument::Results => Ok(Address::Results),
        }
    }
}
