//! From a node of a planned graph to kernels and products, and how much scratch those will need.

use crate::kernels::{self, Argument, Conv, Heads, Kernel, Operand, Site};
use crate::products;
use plimsoll_core::expr::Expr;
use plimsoll_core::graph::{Graph, Node, StateKind};
use plimsoll_core::ops::{Attention, MatMul, Window};
use plimsoll_core::plan::{Place, Plan, Program};
use plimsoll_core::{Bytes, DType, Op, Shape, ValueId};

/// A program on its way to becoming kernels.
pub(super) struct Lowering<'a> {
    pub plan: &'a Plan,
    pub program: &'a Program,
    pub rows: usize,
    /// The loss, if the program changes state and must not when that is not finite.
    pub loss: Option<ValueId>,
    /// Whether matrix products go through the library.
    pub library: bool,
}

/// One piece of a node's work.
pub(super) enum Work {
    /// A kernel, and the values that its inputs are.
    Kernel(Kernel, Vec<ValueId>),
    /// A matrix product through the library: rows, columns, length of the sums, and which operands are transposed.
    Product {
        extents: (usize, usize, usize),
        transpose: (bool, bool),
        /// Of both operands and of the result.
        types: (DType, DType),
        /// The operand that was narrowed to the beginning of the scratch, and how many bytes of that it takes.
        narrowed: Option<(usize, u64)>,
        fallback: Kernel,
    },
}

/// The scratch of a node for at most `rows` rows. The same on every GPU and without one.
pub(crate) fn workspace(graph: &Graph, node: &Node, rows: usize) -> Bytes {
    let dims = |value: ValueId| graph.shape(value).bind(rows);
    Bytes(match &node.op {
        Op::Reduce(op) => kernels::reduce_workspace(&op.shape.bind(rows), &op.axes),
        Op::MatMul(op) => {
            let (m, n, _) = extents(op, graph, node, rows);
            products::workspace(m, n) + narrowed(graph, node, rows).map_or(0, |(_, bytes, _)| bytes)
        }
        Op::Conv2dGradFilter(op) => {
            kernels::grad_filter_workspace(&conv(&op.window, op.groups, &dims(node.inputs[0]), &dims(node.inputs[1])))
        }
        Op::AttentionGrad(op) => {
            let [.., o, _, _] = node.inputs[..] else { unreachable!("checked when the node was added") };
            let (heads, places) = (op.attention.heads, dims(o));
            kernels::attention_grad_workspace(places[0], heads, places[1])
        }
        Op::Recurrent(op) => kernels::recurrent_workspace(op, dims(node.inputs[0])[0]),
        Op::RecurrentGrad(op) => {
            let sequence = dims(node.outputs[0]);
            kernels::recurrent_grad_workspace(op, sequence[0], sequence[1])
        }
        _ => 0,
    })
}

fn extents(op: &MatMul, graph: &Graph, node: &Node, rows: usize) -> (usize, usize, usize) {
    let (m, n, k) = op.dims(graph.shape(node.inputs[0]), graph.shape(node.inputs[1])).expect("checked when the node was added");
    (m.bind(rows), n.bind(rows), k.bind(rows))
}

/// Which operand of a product the library wants narrowed to the other's type, the bytes that takes, and that type.
fn narrowed(graph: &Graph, node: &Node, rows: usize) -> Option<(usize, u64, DType)> {
    let [a, b, result] = [node.inputs[0], node.inputs[1], node.outputs[0]].map(|value| graph.ty(value).dtype);
    let common = products::common_type(a, b, result)?;
    let operand = [a, b].iter().position(|dtype| *dtype != common)?;
    let elements = graph.shape(node.inputs[operand]).elements().bind(rows);
    Some((operand, products::narrowed_bytes(DType::F32, common, elements), common))
}

fn conv(window: &Window, groups: usize, image: &[usize], result: &[usize]) -> Conv {
    Conv { window: *window, groups, image: four(image), result: four(result) }
}

fn four(dims: &[usize]) -> [usize; 4] {
    dims.try_into().expect("images have four axes")
}

impl Lowering<'_> {
    /// What a node does. `after_loss` says that this step's loss is known before it.
    pub fn lower(&self, node: &Node, after_loss: bool) -> Result<Vec<Work>, String> {
        let (inputs, outputs) = (&node.inputs[..], &node.outputs[..]);
        let one = |kernel: Kernel| vec![Work::Kernel(kernel, inputs.to_vec())];
        let all = |list: Vec<Kernel>| list.into_iter().map(|kernel| Work::Kernel(kernel, inputs.to_vec())).collect::<Vec<_>>();
        let guarded = self.is_guarded(node);
        let mut works = match &node.op {
            Op::Input(_) | Op::State(_) | Op::Scalar(_) | Op::Reshape(_) => {
                return Err("is planned as a step, but does not run".to_string());
            }
            Op::Pointwise(op) => {
                let dtypes: Vec<DType> = outputs.iter().map(|output| self.dtype(*output)).collect();
                one(self.with_site(&op.expr, &op.shape, inputs, &[], |site| kernels::pointwise(site, &dtypes)))
            }
            Op::Reduce(op) => all(self.with_site(&op.expr, &op.shape, inputs, &[], |site| kernels::reduce(site, &op.axes, op.kind))),
            Op::MatMul(op) => self.matmul(op, node, guarded)?,
            Op::Conv2d(op) => {
                let types = self.reals([inputs[0], inputs[1], outputs[0]])?;
                let conv = conv(&op.window, op.groups, &self.dims(inputs[0]), &self.dims(outputs[0]));
                one(match &op.epilogue {
                    None => kernels::forward(&conv, types, None),
                    Some(expr) => {
                        let seen: Vec<ValueId> = [&outputs[..1], &inputs[2..]].concat();
                        let shape = self.program.graph.shape(outputs[0]);
                        self.with_site(expr, shape, &seen, &[(0, "value")], |site| kernels::forward(&conv, types, Some(site)))
                    }
                })
            }
            Op::Conv2dGradInput(op) => {
                let types = self.reals([inputs[0], inputs[1], outputs[0]])?;
                one(kernels::grad_input(&conv(&op.window, op.groups, &self.dims(outputs[0]), &self.dims(inputs[1])), types))
            }
            Op::Conv2dGradFilter(op) => {
                let types = self.reals([inputs[0], inputs[1]])?;
                all(kernels::grad_filter(&conv(&op.window, op.groups, &self.dims(inputs[0]), &self.dims(inputs[1])), types))
            }
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
                let [dtype] = self.reals([outputs[0]])?;
                one(kernels::max_pool(&op.window, four(&self.dims(inputs[0])), four(&self.dims(outputs[0])), dtype))
            }
            Op::MaxPoolGrad(op) => {
                let [dtype] = self.reals([outputs[0]])?;
                one(kernels::max_pool_grad(&op.window, four(&self.dims(outputs[0])), four(&self.dims(inputs[1])), dtype))
            }
            Op::AvgPool(op) => {
                let [dtype] = self.reals([outputs[0]])?;
                one(kernels::avg_pool(&op.window, four(&self.dims(inputs[0])), four(&self.dims(outputs[0])), dtype))
            }
            Op::AvgPoolGrad(op) => {
                let [dtype] = self.reals([outputs[0]])?;
                one(kernels::avg_pool_grad(&op.window, four(&self.dims(outputs[0])), four(&self.dims(inputs[0])), dtype))
            }
            Op::Transpose(op) => one(kernels::transpose(self.size(inputs[0]), &self.dims(inputs[0]), &op.order)),
            Op::Slice(op) => {
                let unit = if self.program.graph.shape(inputs[0]).dims()[op.axis].is_batch() { self.rows } else { 1 };
                one(kernels::slice(self.size(inputs[0]), &self.dims(inputs[0]), &self.dims(outputs[0]), op.axis, unit * op.start))
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
                one(kernels::scatter_add(count, table[0], table[1..].iter().product(), types))
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
        };
        works.retain(|work| !matches!(work, Work::Kernel(kernel, _) if kernel.is_empty()));
        if guarded {
            works = works.into_iter().map(|work| work.guarded(after_loss)).collect();
        }
        Ok(works)
    }

    fn matmul(&self, op: &MatMul, node: &Node, guarded: bool) -> Result<Vec<Work>, String> {
        let (inputs, output) = (&node.inputs[..], node.outputs[0]);
        if op.onto {
            return Err("goes on from a sum, which is not done on a GPU: nothing is cut there".to_string());
        }
        let types = self.reals([inputs[0], inputs[1], output])?;
        let extents = extents(op, &self.program.graph, node, self.rows);
        let fallback = kernels::matmul(extents, op.transpose_a, op.transpose_b, types);
        let mut works = match products::common_type(types[0], types[1], types[2]).filter(|_| self.library && !guarded) {
            Some(common) => {
                let narrowed = narrowed(&self.program.graph, node, self.rows);
                let copy = narrowed.map(|(operand, _, dtype)| {
                    let elements = self.dims(inputs[operand]).iter().product();
                    Work::Kernel(kernels::narrowed(operand, elements, dtype), inputs.to_vec())
                });
                let narrowed = narrowed.map(|(operand, bytes, _)| (operand, bytes));
                let transpose = (op.transpose_a, op.transpose_b);
                copy.into_iter().chain([Work::Product { extents, transpose, types: (common, types[2]), narrowed, fallback }]).collect()
            }
            // The library cannot be told to leave a state alone; our own kernel can.
            None => vec![Work::Kernel(fallback, inputs.to_vec())],
        };
        if let Some(expr) = &op.epilogue {
            let seen: Vec<ValueId> = [&[output], &inputs[2..]].concat();
            let shape = self.program.graph.shape(output);
            let kernel = self.with_site(expr, shape, &seen, &[], |site| kernels::pointwise(site, &types[2..]));
            works.push(Work::Kernel(kernel, seen));
        }
        Ok(works)
    }

    /// An attention whose inputs are the packing's tensors, perhaps a mask, and some more behind.
    fn heads<'a>(&self, op: &'a Attention, inputs: &[ValueId], behind: usize) -> Heads<'a> {
        let tensors = &inputs[..op.packing.tensors()];
        let shapes: Vec<&Shape> = tensors.iter().map(|tensor| self.program.graph.shape(*tensor)).collect();
        let shape = op.shape(&shapes).expect("checked when the node was added");
        let mask = inputs[tensors.len()..inputs.len() - behind].first();
        Heads {
            op,
            batch: shape.batch.bind(self.rows),
            queries: shape.queries,
            keys: shape.keys,
            depth: shape.depth,
            types: tensors.iter().map(|tensor| self.dtype(*tensor)).collect(),
            mask: mask.map(|mask| self.dtype(*mask)),
        }
    }

    /// Whether the node changes a state that must stay good when the loss is not finite. Sums of gradients begin anew with the next batch.
    fn is_guarded(&self, node: &Node) -> bool {
        let kept = |offset: Bytes| self.plan.states.iter().any(|state| state.offset == offset && state.kind != StateKind::Accumulator);
        let place = |value: &ValueId| self.program.places[value.0 as usize];
        self.loss.is_some() && node.outputs.iter().any(|value| matches!(place(value), Some(Place::Resident(offset)) if kept(offset)))
    }

    fn with_site<T>(
        &self,
        expr: &Expr,
        shape: &Shape,
        inputs: &[ValueId],
        at_hand: &[(usize, &str)],
        write: impl FnOnce(&Site<'_>) -> T,
    ) -> T {
        let dims: Vec<Vec<usize>> = inputs.iter().map(|input| self.dims(*input)).collect();
        let operands: Vec<Operand<'_>> =
            inputs.iter().zip(&dims).map(|(input, dims)| Operand { dtype: self.dtype(*input), dims }).collect();
        let row = if shape.has_batch() { shape.elements().factor() as u64 } else { 0 };
        write(&Site { expr, dims: &shape.bind(self.rows), operands: &operands, row, at_hand })
    }

    /// The types of values that products, convolutions and pools compute with: in single precision, whatever they are stored in.
    fn reals<const N: usize>(&self, values: [ValueId; N]) -> Result<[DType; N], String> {
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

impl Work {
    fn guarded(self, after_loss: bool) -> Work {
        match self {
            Work::Kernel(kernel, inputs) => Work::Kernel(kernel.guarded(after_loss), inputs),
            product @ Work::Product { .. } => product,
        }
    }
}

/// The loss of a program that changes state.
pub(super) fn guarding_loss(graph: &Graph) -> Option<ValueId> {
    let (_, loss) = graph.outputs().iter().find(|(name, _)| name == "loss")?;
    let real = graph.ty(*loss).dtype == DType::F32 && graph.shape(*loss).elements().as_fixed() == Some(1);
    (real && !graph.updates().is_empty()).then_some(*loss)
}

/// The report at the end of a program.
pub(super) fn report(program: &Program, loss: Option<ValueId>) -> Work {
    let numbers: Vec<ValueId> = program.numbers().map(|(_, value)| value).collect();
    Work::Kernel(kernels::report(numbers.len(), loss.is_some()), numbers)
}

/// Where an argument of a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    /// Always here.
    Fixed(u64),
    /// At this byte of the run's slot.
    Slot(u64),
    /// Where the run's answer goes.
    Answer,
}

/// Turns arguments into addresses.
pub(super) struct Addresses<'a> {
    pub lowering: &'a Lowering<'a>,
    pub resident: (u64, u64),
    pub arena: (u64, u64),
    pub columns: &'a [usize],
    pub header: usize,
    pub scalars: usize,
    pub alarm: u64,
}

impl Addresses<'_> {
    /// Where a value is. What the plan places in a memory lies inside it.
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
            None => Err(format!("{value} has no place in the plan")),
        }
    }

    /// Where an argument is, for a node with these outputs and scratch at `workspace`.
    pub fn argument(&self, argument: Argument, inputs: &[ValueId], outputs: &[ValueId], workspace: Bytes) -> Result<Address, String> {
        match argument {
            Argument::Input(i) => self.value(inputs[i]),
            Argument::InputAt(i, bytes) => Ok(match self.value(inputs[i])? {
                Address::Fixed(address) => Address::Fixed(address + bytes as u64),
                Address::Slot(offset) => Address::Slot(offset + bytes as u64),
                Address::Answer => unreachable!("no value is an answer"),
            }),
            Argument::Output(i) => self.argument(Argument::OutputAt(i, 0), inputs, outputs, workspace),
            Argument::OutputAt(i, bytes) => match self.value(outputs[i])? {
                Address::Fixed(address) => Ok(Address::Fixed(address + bytes as u64)),
                _ => Err("is planned to write where only the host writes".to_string()),
            },
            Argument::Workspace => Ok(Address::Fixed(self.arena.0 + workspace.0)),
            Argument::WorkspaceBehind(bytes) => Ok(Address::Fixed(self.arena.0 + workspace.0 + bytes as u64)),
            Argument::Header => Ok(Address::Slot(self.header as u64)),
            Argument::Alarm => Ok(Address::Fixed(self.alarm)),
            Argument::Loss => self.value(self.lowering.loss.expect("only programs with a loss have guards")),
            Argument::Numbers => Ok(Address::Answer),
        }
    }
}
