//! Lowers nodes of a planned graph to instructions, with their workspace.

use super::instruction::{Address, AttentionWork, F32Tensor, FloatTensor, HeadsTensor, KernelCall, TypedTensor, Zeros};
use super::pairwise_sum::PairwiseSumCall;
use super::{collective, shards};
use crate::kernels::attention::{self, AttentionShape};
use crate::kernels::conv::{self, ConvShape, HalfOperands};
use crate::kernels::gather::TableShape;
use crate::kernels::gemm::{self, WriteMode};
use crate::kernels::movement::StridedCopy;
use crate::kernels::pointwise::InputSpec;
use crate::kernels::pooling::PoolShape;
use crate::kernels::recurrent::{self, RecurrentShape};
use crate::kernels::reduce::{self, Reducer};
use crate::runtime::memory::HostBuffer;
use plimsoll_core::graph::{Graph, Node};
use plimsoll_core::ops::{Attention, Cell, Recurrent, RecurrentGrad, Window};
use plimsoll_core::plan::{Place, Program, Resident};
use plimsoll_core::{Bytes, DType, Op, Shape, ValueId};

/// A program under lowering.
pub(super) struct Lowering<'a> {
    pub program: &'a Program,
    pub rows: usize,
    pub threads: usize,
    pub memory: ProgramMemory<'a>,
}

/// The memory of a program under lowering.
pub(super) enum ProgramMemory<'a> {
    /// The same for every run.
    Bound { resident: &'a HostBuffer, arena: &'a HostBuffer },
    /// Given for every run: a region per column, a region per state, and one for the arena, of this size.
    Given { states: &'a [Resident], arena: Bytes },
}

/// The workspace of a node's kernel for at most `rows` rows on `threads` threads.
pub(crate) fn workspace(graph: &Graph, node: &Node, rows: usize, threads: usize) -> Bytes {
    let dims = |value: ValueId| graph.shape(value).bind(rows);
    let half = |value: ValueId| graph.ty(value).dtype.is_half();
    let effective_op = graph.effective_op(node);
    let (inputs, made) = (effective_op.inputs, || effective_op.result(graph).shape.bind(rows));
    let floats = match effective_op.op {
        Op::Reduce(op) => reduce::workspace_len(&op.shape.bind(rows), &op.axes, op.kind, has_batch_first(&op.shape)),
        Op::MatMul(op) => {
            let (m, n, k) = op.dims(graph.shape(inputs[0]), graph.shape(inputs[1])).expect("checked when the node was added");
            let len = if half(node.outputs[0]) { gemm::blocks_workspace_len } else { gemm::workspace_len };
            len(m.bind(rows), n.bind(rows), k.bind(rows), threads)
        }
        Op::Conv2d(op) => {
            let shape = conv_shape(&op.window, op.groups, &dims(inputs[0]), &made());
            conv::forward_workspace(
                &shape,
                HalfOperands { input: half(inputs[0]), filter: half(inputs[1]), output: half(node.outputs[0]) },
                threads,
            )
        }
        Op::Conv2dGradInput(op) => {
            let shape = conv_shape(&op.window, op.groups, &made(), &dims(inputs[1]));
            conv::grad_input_workspace(
                &shape,
                HalfOperands { input: half(inputs[1]), filter: half(inputs[0]), output: half(node.outputs[0]) },
                threads,
            )
        }
        Op::Conv2dGradFilter(op) => {
            let shape = conv_shape(&op.window, op.groups, &dims(node.inputs[0]), &dims(node.inputs[1]));
            conv::grad_filter_workspace(&shape, if op.onto { WriteMode::Add } else { WriteMode::Set }, threads)
        }
        Op::Recurrent(op) => recurrent::forward_workspace(&walk_shape(op, &dims(node.inputs[0])), threads),
        Op::RecurrentGrad(op) => recurrent::backward_workspace(&walk_back_shape(op, &dims(node.outputs[0])), threads),
        Op::Attention(op) => attention::forward_workspace(&attention_shape(op, graph, node, rows), threads),
        Op::AttentionGrad(op) => {
            let shape = attention_shape(&op.attention, graph, node, rows);
            attention::backward_workspace(&shape, graph.ty(node.outputs[0]).dtype, threads)
        }
        Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Pointwise(_) | Op::Store(_) | Op::Load(_) => 0,
        Op::MaxPool(_) | Op::MaxPoolGrad(_) | Op::AvgPool(_) | Op::AvgPoolGrad(_) | Op::Gather(_) | Op::ScatterAdd(_) => 0,
        Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::BatchSlice(_) | Op::Concat(_) | Op::Pad(_) | Op::ChannelView(_) => 0,
        Op::SliceWrite(_) | Op::FusedSliceWrite(_) | Op::PairwiseSum(_) => 0,
        Op::AllReduce(op) => {
            let sizes: Vec<usize> = inputs[..op.tensors(inputs.len())].iter().map(|input| dims(*input).iter().product()).collect();
            collective::workspace_len(*op, &sizes)
        }
        Op::Shard(_) => 0,
        Op::ReduceScatter(op) => {
            let (tensors, _) = op.operands(inputs);
            shards::workspace_len(op.ranks as usize, tensors.iter().map(|input| dims(*input).iter().product()))
        }
        Op::AllGather(op) => shards::workspace_len(op.ranks as usize, op.shapes.iter().map(|shape| shape.elements().factor())),
    };
    Bytes((floats * size_of::<f32>()) as u64)
}

fn attention_shape(op: &Attention, graph: &Graph, node: &Node, rows: usize) -> AttentionShape {
    let tensors: Vec<&Shape> = node.inputs[..op.packing.tensors()].iter().map(|input| graph.shape(*input)).collect();
    let shape = op.shape(&tensors).expect("checked when the node was added");
    AttentionShape {
        batch: shape.batch.bind(rows),
        queries: shape.queries,
        keys: shape.keys,
        heads: op.heads,
        kv_heads: op.kv_heads,
        depth: shape.depth,
        causal: op.causal,
        scale: op.scale(),
        drops: op.dropout.is_some(),
    }
}

pub(super) fn conv_shape(window: &Window, groups: usize, input: &[usize], output: &[usize]) -> ConvShape {
    ConvShape {
        batch: input[0],
        in_h: input[1],
        in_w: input[2],
        in_c: input[3],
        out_h: output[1],
        out_w: output[2],
        out_c: output[3],
        k_h: window.size.0,
        k_w: window.size.1,
        stride: window.stride,
        pad: (window.pad_rows.0, window.pad_columns.0),
        dilation: window.dilation,
        groups,
    }
}

fn walk_shape(op: &Recurrent, x: &[usize]) -> RecurrentShape {
    RecurrentShape { cell: op.cell, batch: x[0], steps: x[1], units: op.units, reverse: op.reverse }
}

fn walk_back_shape(op: &RecurrentGrad, d_x: &[usize]) -> RecurrentShape {
    RecurrentShape { cell: op.cell, batch: d_x[0], steps: d_x[1], units: op.units, reverse: op.reverse }
}

fn pool_shape(window: &Window, input: &[usize], output: &[usize]) -> Box<PoolShape> {
    Box::new(PoolShape {
        batch: input[0],
        in_h: input[1],
        in_w: input[2],
        channels: input[3],
        out_h: output[1],
        out_w: output[2],
        window: window.size,
        stride: window.stride,
        pad: (window.pad_rows.0, window.pad_columns.0),
    })
}

impl Lowering<'_> {
    /// The instruction for a node whose workspace is at this offset of the arena and has this size.
    pub fn lower(&self, node: &Node, workspace: (Bytes, Bytes)) -> Result<KernelCall, String> {
        let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
        let workspace = self.workspace(node, workspace)?;
        if !outputs.is_empty() && outputs.iter().all(|output| self.dims(*output).contains(&0)) {
            // An empty piece: the batch ended before it.
            return Ok(KernelCall::Copy { copies: vec![], output: self.address(outputs[0])?, zeros: None });
        }
        Ok(match &node.op {
            Op::Input(_)
            | Op::State(_)
            | Op::Scalar(_)
            | Op::Reshape(_)
            | Op::ChannelView(_)
            | Op::Store(_)
            | Op::Load(_)
            | Op::AllReduce(_)
            | Op::ReduceScatter(_)
            | Op::Shard(_)
            | Op::AllGather(_) => {
                return Err("is planned as a step of the kernels, but does not run there".to_string());
            }
            Op::Pointwise(op) => {
                let to = outputs.iter().map(|output| self.own(*output)).collect::<Result<Vec<_>, _>>()?;
                KernelCall::Pointwise(Box::new(self.expression(&op.expr, &op.shape, inputs, &to)?))
            }
            Op::MatMul(_) | Op::Conv2d(_) | Op::Conv2dGradInput(_) => self.make(&node.op, inputs, &self.own(outputs[0])?, workspace)?,
            Op::FusedSliceWrite(op) => self.fused_slice_write(op, node, workspace)?,
            Op::Reduce(op) => {
                let (inputs, before) = inputs.split_at(inputs.len() - usize::from(op.onto));
                let dims: Vec<Vec<usize>> = inputs.iter().map(|input| self.dims(*input)).collect();
                let mut reducer = {
                    let (dims_of_op, sources) = (op.shape.bind(self.rows), self.sources(inputs, &dims));
                    Reducer::new(&op.expr, &dims_of_op, &op.axes, op.kind, has_batch_first(&op.shape), &sources)?
                };
                let moving = self.bind(inputs, |i, address| reducer.set_input(i, address))?;
                let onto = before.first().map(|before| self.address(*before)?.written()).transpose()?;
                let (output, workspace) = (self.address(outputs[0])?.written()?, workspace.address);
                KernelCall::Reduce { reducer: Box::new(reducer), moving, output, workspace, onto, row: random_row(&op.shape) }
            }
            Op::Conv2dGradFilter(op) => KernelCall::ConvGradFilter {
                shape: Box::new(conv_shape(&op.window, op.groups, &self.dims(inputs[0]), &self.dims(inputs[1]))),
                input: self.stored(inputs[0])?,
                gradient: self.stored(inputs[1])?,
                onto: if op.onto { Some(self.floats(inputs[2])?) } else { None },
                output: self.floats(outputs[0])?,
                workspace,
            },
            Op::MaxPool(op) => {
                // The largest byte means "none".
                if op.window.size.0 * op.window.size.1 > 255 {
                    return Err(format!("a window of {}×{} has more than 255 places", op.window.size.0, op.window.size.1));
                }
                KernelCall::MaxPool {
                    shape: pool_shape(&op.window, &self.dims(inputs[0]), &self.dims(outputs[0])),
                    input: self.stored(inputs[0])?,
                    output: self.stored(outputs[0])?,
                    places: self.address(outputs[1])?,
                }
            }
            Op::MaxPoolGrad(op) => KernelCall::MaxPoolGrad {
                shape: pool_shape(&op.window, &self.dims(outputs[0]), &self.dims(inputs[1])),
                places: self.address(inputs[0])?,
                gradient: self.stored(inputs[1])?,
                output: self.stored(outputs[0])?,
            },
            Op::AvgPool(op) => KernelCall::AvgPool {
                shape: pool_shape(&op.window, &self.dims(inputs[0]), &self.dims(outputs[0])),
                input: self.stored(inputs[0])?,
                output: self.stored(outputs[0])?,
            },
            Op::AvgPoolGrad(op) => KernelCall::AvgPoolGrad {
                shape: pool_shape(&op.window, &self.dims(outputs[0]), &self.dims(inputs[0])),
                gradient: self.stored(inputs[0])?,
                output: self.stored(outputs[0])?,
            },
            Op::Recurrent(op) => {
                let operands = op.operands(&self.typed_all(inputs)?).ok_or("has inputs too many or too few")?;
                let results = self.typed_all(outputs)?;
                KernelCall::Recurrent {
                    shape: Box::new(walk_shape(op, &self.dims(inputs[0]))),
                    operands: Box::new(operands),
                    hidden: results[0],
                    gates: results.get(1).copied(),
                    last: results.get(2).copied(),
                    workspace,
                }
            }
            Op::RecurrentGrad(op) => {
                let operands = op.operands(&self.typed_all(inputs)?).ok_or("has inputs too many or too few")?;
                let mut results = self.typed_all(outputs)?.into_iter();
                let d_x = results.next().ok_or("has no result")?;
                let d_recurrent = if op.cell == Cell::Gru { results.next() } else { None };
                KernelCall::RecurrentGrad {
                    shape: Box::new(walk_back_shape(op, &self.dims(outputs[0]))),
                    operands: Box::new(operands),
                    d_x,
                    d_recurrent,
                    d_first: results.next(),
                    d_state: results.next(),
                    workspace,
                }
            }
            Op::Transpose(op) => {
                let copy = StridedCopy::transpose(self.size(inputs[0]), &self.dims(inputs[0]), &op.order);
                KernelCall::Copy { copies: vec![(copy, self.address(inputs[0])?)], output: self.address(outputs[0])?, zeros: None }
            }
            Op::Slice(op) => {
                let unit = if self.program.graph.shape(inputs[0]).dims()[op.axis].is_batch() { self.rows } else { 1 };
                let from = (self.dims(inputs[0])[op.axis], unit * op.start);
                let copy = StridedCopy::along(self.size(inputs[0]), &self.dims(outputs[0]), op.axis, from, (unit * op.length, 0));
                KernelCall::Copy { copies: vec![(copy, self.address(inputs[0])?)], output: self.address(outputs[0])?, zeros: None }
            }
            Op::BatchSlice(op) => {
                let (dims, own) = (self.dims(inputs[0]), self.dims(outputs[0]));
                let start = self.program.graph.shape(inputs[0]).dims()[0].factor() * op.from.min(self.rows);
                let copy = StridedCopy::along(self.size(inputs[0]), &own, 0, (dims[0], start), (own[0], 0));
                KernelCall::Copy { copies: vec![(copy, self.address(inputs[0])?)], output: self.address(outputs[0])?, zeros: None }
            }
            Op::Concat(op) => {
                let total = self.dims(outputs[0])[op.axis];
                let mut start = 0;
                let mut copies = Vec::new();
                for input in inputs {
                    let dims = self.dims(*input);
                    let own = dims[op.axis];
                    let copy = StridedCopy::along(self.size(*input), &dims, op.axis, (own, 0), (total, start));
                    copies.push((copy, self.address(*input)?));
                    start += own;
                }
                KernelCall::Copy { copies, output: self.address(outputs[0])?, zeros: None }
            }
            Op::SliceWrite(op) => {
                let (whole, dims) = (self.dims(outputs[0]), self.dims(inputs[0]));
                let start = op.first(self.program.graph.shape(inputs[0]).dims()[op.axis], self.rows);
                let (element, own) = (self.size(inputs[0]), (dims[op.axis], 0));
                let part = StridedCopy::along(element, &dims, op.axis, own, (whole[op.axis], start));
                let mut copies = Vec::new();
                if let Some(base) = inputs.get(1)
                    && self.address(*base)? != self.address(outputs[0])?
                {
                    let all = (whole[op.axis], 0);
                    copies.push((StridedCopy::along(element, &whole, op.axis, all, all), self.address(*base)?));
                }
                copies.push((part, self.address(inputs[0])?));
                KernelCall::Copy { copies, output: self.address(outputs[0])?, zeros: None }
            }
            Op::Pad(op) => {
                let (dims, element) = (self.dims(inputs[0]), self.size(inputs[0]));
                let own = dims[op.axis];
                let copy = StridedCopy::along(element, &dims, op.axis, (own, 0), (op.before + own + op.after, op.before));
                let zeros = Zeros { element, dims, axis: op.axis, before: op.before, after: op.after };
                KernelCall::Copy { copies: vec![(copy, self.address(inputs[0])?)], output: self.address(outputs[0])?, zeros: Some(zeros) }
            }
            Op::PairwiseSum(op) => KernelCall::PairwiseSum(Box::new(PairwiseSumCall::new(*op, node, self)?)),
            Op::Gather(_) => KernelCall::Gather {
                shape: self.table(inputs[0], inputs[1]),
                table: self.typed(inputs[0])?,
                indices: self.address(inputs[1])?,
                output: self.typed(outputs[0])?,
            },
            Op::ScatterAdd(op) => KernelCall::ScatterAdd {
                shape: self.table(outputs[0], inputs[0]),
                indices: self.address(inputs[0])?,
                rows: self.typed(inputs[1])?,
                onto: if op.onto { Some(self.floats(inputs[2])?) } else { None },
                output: self.floats(outputs[0])?,
            },
            Op::Attention(op) => KernelCall::Attention(Box::new(self.attention(op, node, (outputs[0], outputs[1]), 0, workspace)?)),
            Op::AttentionGrad(op) => {
                let op = &op.attention;
                let [.., o, lse, d_o] = inputs else { return Err("has too few inputs".to_string()) };
                let forward = self.attention(op, node, (*o, *lse), 3, workspace)?;
                let [d_q, d_k, d_v] = op.parts(forward.shape.depth).map(|(tensor, start)| self.heads(outputs[tensor], start));
                KernelCall::AttentionGrad { forward: Box::new(forward), gradient: self.heads(*d_o, 0)?, outputs: [d_q?, d_k?, d_v?] }
            }
        })
    }

    /// Operands that the forward and backward pass of attention share; `behind` inputs follow operands and mask.
    fn attention(
        &self,
        op: &Attention,
        node: &Node,
        (o, lse): (ValueId, ValueId),
        behind: usize,
        workspace: F32Tensor,
    ) -> Result<AttentionWork, String> {
        let shape = attention_shape(op, &self.program.graph, node, self.rows);
        let [q, k, v] = op.parts(shape.depth).map(|(tensor, start)| self.heads(node.inputs[tensor], start));
        let mask = node.inputs[op.packing.tensors()..node.inputs.len() - behind].first();
        let mask = mask.map(|mask| self.typed(*mask)).transpose()?;
        let sequences = self.program.graph.shape(node.inputs[0]).dims()[0].factor();
        let dropout = op.dropout.map(|dropout| (dropout, sequences));
        Ok(AttentionWork { shape, heads: [q?, k?, v?, self.heads(o, 0)?], mask, dropout, lse: self.floats(lse)?, workspace })
    }

    /// Heads that start at element `start` of each position of a tensor `[batch, length, width]`.
    fn heads(&self, value: ValueId, start: usize) -> Result<HeadsTensor, String> {
        let (address, dtype) = self.typed(value)?;
        Ok(HeadsTensor { address, start: start * dtype.size(), dtype, row: self.dims(value)[2] })
    }

    fn table(&self, table: ValueId, indices: ValueId) -> TableShape {
        let dims = self.dims(table);
        let count = self.dims(indices).iter().product();
        TableShape { rows: dims[0], width: dims[1..].iter().product(), count, indices: self.program.graph.ty(indices).dtype }
    }

    /// The address of a value, and its type.
    fn typed(&self, value: ValueId) -> Result<(Address, DType), String> {
        Ok((self.address(value)?, self.program.graph.ty(value).dtype))
    }

    /// The tensor that a value is a channel view of, and its first channel, if it is one.
    fn strip(&self, value: ValueId) -> Option<(ValueId, usize)> {
        let producer = self.program.graph.producer(value);
        if let Op::ChannelView(op) = &producer.op { Some((producer.inputs[0], op.start)) } else { None }
    }

    /// The address of a value, checked against the bounds of its memory.
    pub fn address(&self, value: ValueId) -> Result<Address, String> {
        if let Some((whole, start)) = self.strip(value) {
            return self.address(whole)?.offset_by(start * self.size(value));
        }
        match self.program.places.get(value.0 as usize).copied().flatten() {
            Some(Place::Arena(offset)) => self.in_arena(offset, self.bytes(value)).ok_or_else(|| outside(value)),
            Some(Place::Resident(offset)) => self.in_resident(offset, self.bytes(value)).ok_or_else(|| outside(value)),
            Some(Place::Input(column)) => match self.memory {
                ProgramMemory::Bound { .. } => Ok(Address::Column(column.0 as usize)),
                ProgramMemory::Given { .. } => Ok(Address::Region(column.0 as usize, 0)),
            },
            Some(Place::Scalar(scalar)) => Ok(Address::Scalar(scalar.0 as usize)),
            Some(Place::Backing(_)) => Err(format!("{value} is in the backing store, where only loads reach")),
            None => Err(format!("{value} has no place in the plan")),
        }
    }

    fn bytes(&self, value: ValueId) -> Bytes {
        self.program.graph.ty(value).bytes(self.rows)
    }

    /// The address of a range of the arena, if it is inside.
    fn in_arena(&self, offset: Bytes, size: Bytes) -> Option<Address> {
        match self.memory {
            ProgramMemory::Bound { arena, .. } => within(arena, offset, size),
            ProgramMemory::Given { states, arena } => {
                let inside = offset.0.checked_add(size.0).is_some_and(|end| end <= arena.0);
                inside.then(|| Address::Region(self.program.graph.inputs().len() + states.len(), offset.0 as usize))
            }
        }
    }

    /// The address of a range that persists across steps, if it is inside.
    fn in_resident(&self, offset: Bytes, size: Bytes) -> Option<Address> {
        match self.memory {
            ProgramMemory::Bound { resident, .. } => within(resident, offset, size),
            ProgramMemory::Given { states, .. } => {
                // Only states of no bytes share an offset with others.
                let state = states.iter().position(|state| !state.stored && state.offset == offset && size <= state.size)?;
                Some(Address::Region(self.program.graph.inputs().len() + state, 0))
            }
        }
    }

    /// A value that a kernel reads or writes as real numbers, in single precision or 16 bits.
    pub fn stored(&self, value: ValueId) -> Result<FloatTensor, String> {
        let ty = self.program.graph.ty(value);
        if ty.dtype != DType::F32 && !ty.dtype.is_half() {
            return Err(format!("computes with f32, f16 and bf16, but {value} is {ty}; cast it first"));
        }
        Ok(FloatTensor { address: self.address(value)?, dtype: ty.dtype, count: ty.shape.elements().bind(self.rows) })
    }

    /// A value that a kernel reads or writes as single precision.
    pub fn floats(&self, value: ValueId) -> Result<F32Tensor, String> {
        let ty = self.program.graph.ty(value);
        if ty.dtype != DType::F32 {
            return Err(format!("is computed in f32, but {value} is {ty}; cast it first"));
        }
        Ok(F32Tensor { address: self.address(value)?, count: ty.shape.elements().bind(self.rows) })
    }

    /// Values that a kernel reads or writes in their own types.
    fn typed_all(&self, values: &[ValueId]) -> Result<Vec<TypedTensor>, String> {
        let typed = |value: &ValueId| Ok(TypedTensor { address: self.address(*value)?, dtype: self.program.graph.ty(*value).dtype });
        values.iter().map(typed).collect()
    }

    /// The planned workspace, with the length that the kernel requires for these rows.
    pub fn workspace(&self, node: &Node, (offset, size): (Bytes, Bytes)) -> Result<F32Tensor, String> {
        let needed = workspace(&self.program.graph, node, self.rows, self.threads);
        let address = self.in_arena(offset, needed).filter(|_| needed <= size);
        let address = address.ok_or_else(|| format!("needs {needed} of workspace, but the plan gives it {size}"))?;
        Ok(F32Tensor { address, count: needed.0 as usize / size_of::<f32>() })
    }

    pub fn dims(&self, value: ValueId) -> Vec<usize> {
        self.program.graph.shape(value).bind(self.rows)
    }

    pub fn size(&self, value: ValueId) -> usize {
        self.program.graph.ty(value).dtype.size()
    }

    pub fn sources<'d>(&self, inputs: &[ValueId], dims: &'d [Vec<usize>]) -> Vec<InputSpec<'d>> {
        let graph = &self.program.graph;
        let pitch = |input: ValueId| self.strip(input).and_then(|(whole, _)| graph.shape(whole).last()).map(|dim| dim.bind(self.rows));
        let source = |(input, dims): (&ValueId, &'d Vec<usize>)| InputSpec { dims, dtype: graph.ty(*input).dtype, pitch: pitch(*input) };
        inputs.iter().zip(dims).map(source).collect()
    }

    /// Sets the fixed addresses, and returns those that change between runs.
    pub fn bind(&self, inputs: &[ValueId], mut set: impl FnMut(usize, *const u8)) -> Result<Vec<(usize, Address)>, String> {
        let mut moving = Vec::new();
        for (i, input) in inputs.iter().enumerate() {
            match self.address(*input)? {
                Address::Fixed(address) => set(i, address),
                address => moving.push((i, address)),
            }
        }
        Ok(moving)
    }
}

/// The address of a range of a memory, if it is inside.
fn within(block: &HostBuffer, offset: Bytes, size: Bytes) -> Option<Address> {
    let inside = offset.0.checked_add(size.0).is_some_and(|end| end <= block.size() as u64);
    inside.then(|| Address::Fixed(block.start().wrapping_add(offset.0 as usize)))
}

fn outside(value: ValueId) -> String {
    format!("{value} is planned outside of its memory")
}

/// Whether the first dimension of a shape is a multiple of the batch.
fn has_batch_first(shape: &Shape) -> bool {
    shape.dims().first().is_some_and(|dim| dim.is_batch())
}

/// Random numbers of a tensor per row of the batch.
pub(super) fn random_row(shape: &Shape) -> u64 {
    if shape.has_batch() { shape.elements().factor() as u64 } else { 0 }
}

pub(super) fn fixed(address: Address) -> Result<*mut u8, String> {
    match address {
        Address::Fixed(address) => Ok(address),
        Address::Column(_) | Address::Scalar(_) => Err("is planned to write where only the host writes".to_string()),
        Address::Region(..) => Err("has another address in every run".to_string()),
    }
}
