//! One instruction of a loaded program: a kernel with all operands except the addresses that change between runs.

use super::lower::fixed;
use super::pairwise_sum::PairwiseSumCall;
use crate::kernels::attention::{self, AttentionShape, Backward, Forward};
use crate::kernels::conv::{self, ConvOutput, ConvShape};
use crate::kernels::gather::{self, TableShape};
use crate::kernels::gemm::{self, Matrix, OutputBlock, WriteMode};
use crate::kernels::movement::{StridedCopy, pad_with_zeros};
use crate::kernels::pointwise::Kernel;
use crate::kernels::pooling::{self, PoolShape};
use crate::kernels::recurrent::{self, BackwardArgs, ForwardArgs, RecurrentShape, TensorPtr};
use crate::kernels::reduce::Reducer;
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::float_view::{FloatView, HalfViewMut};
use plimsoll_core::DType;
use plimsoll_core::device::StepInputs;
use plimsoll_core::ops::{RecurrentGradInputs, RecurrentInputs, WeightDropout};
use plimsoll_core::random::StepRandom;
use std::ops::Range;

/// The address of a value: fixed, or in what the caller passes to each run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Fixed(*mut u8),
    Column(usize),
    Scalar(usize),
    /// A byte offset in one of the regions of an [`Executable`](plimsoll_core::device::Executable).
    Region(usize, usize),
}

/// What the caller passes to one run.
#[derive(Clone, Copy)]
pub(super) struct Bindings<'a> {
    pub columns: &'a [&'a [u8]],
    pub scalars: &'a [f32],
    pub random: StepRandom,
    pub regions: &'a [*mut u8],
}

impl<'a> Bindings<'a> {
    /// Those of a program that is bound to its memory.
    pub fn of(inputs: &StepInputs<'a>) -> Bindings<'a> {
        Bindings { columns: inputs.columns, scalars: inputs.scalars, random: inputs.random, regions: &[] }
    }
}

// SAFETY: an address is dereferenced only by `KernelCall::run`, whose caller holds the locks of the memories it points
// into.
unsafe impl Send for Address {}
// SAFETY: as above.
unsafe impl Sync for Address {}

impl Address {
    /// The address in this run. Inputs from the host are never written.
    #[inline(always)]
    fn resolve(self, inputs: &Bindings<'_>) -> *mut u8 {
        match self {
            Address::Fixed(address) => address,
            Address::Column(column) => inputs.columns[column].as_ptr().cast_mut(),
            Address::Scalar(scalar) => inputs.scalars[scalar..].as_ptr().cast_mut().cast(),
            Address::Region(region, offset) => inputs.regions[region].wrapping_add(offset),
        }
    }

    /// The address this many bytes further on, in memory that programs write.
    pub fn offset_by(self, bytes: usize) -> Result<Address, String> {
        match self {
            Address::Region(region, offset) => Ok(Address::Region(region, offset + bytes)),
            address => Ok(Address::Fixed(fixed(address)?.wrapping_add(bytes))),
        }
    }

    /// Itself, if programs may write there.
    pub fn written(self) -> Result<Address, String> {
        self.offset_by(0)
    }
}

/// A tensor of single precision.
#[derive(Clone, Copy, Debug)]
pub(super) struct F32Tensor {
    pub address: Address,
    pub count: usize,
}

/// A tensor of real numbers in single precision or 16 bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct FloatTensor {
    pub address: Address,
    pub dtype: DType,
    pub count: usize,
}

impl FloatTensor {
    /// # Safety
    ///
    /// The elements are valid in this run, and no one writes them concurrently.
    unsafe fn read<'a>(self, inputs: &Bindings<'a>) -> FloatView<'a> {
        // SAFETY: guaranteed by the caller.
        unsafe { FloatView::new(self.address.resolve(inputs), self.dtype, self.count) }
    }

    /// The output of 16-bit results; none if they are floats.
    ///
    /// # Safety
    ///
    /// The memory is valid for them in this run, and exclusive.
    unsafe fn halves<'a>(self, inputs: &Bindings<'a>) -> Option<HalfViewMut<'a>> {
        // SAFETY: guaranteed by the caller.
        self.dtype.is_half().then(|| unsafe { HalfViewMut::new(self.address.resolve(inputs), self.dtype, self.count) })
    }

    /// # Safety
    ///
    /// It is a tensor of floats that are valid in this run, and no one writes them concurrently.
    unsafe fn slice<'a>(self, inputs: &Bindings<'a>) -> &'a [f32] {
        debug_assert_eq!(self.dtype, DType::F32);
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts(self.address.resolve(inputs).cast(), self.count) }
    }

    /// # Safety
    ///
    /// It is a tensor of floats that are valid in this run and exclusive.
    unsafe fn floats<'a>(self, inputs: &Bindings<'a>) -> &'a mut [f32] {
        debug_assert_eq!(self.dtype, DType::F32);
        // SAFETY: guaranteed by the caller.
        unsafe { F32Tensor { address: self.address, count: self.count }.write(inputs) }
    }
}

impl F32Tensor {
    /// The address of the first element in this run.
    pub fn start(self, inputs: &Bindings<'_>) -> *mut f32 {
        self.address.resolve(inputs).cast()
    }

    /// # Safety
    ///
    /// The floats are valid in this run and exclusive.
    pub unsafe fn write<'a>(self, inputs: &Bindings<'a>) -> &'a mut [f32] {
        // SAFETY: guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.address.resolve(inputs).cast(), self.count) }
    }
}

/// A tensor of real numbers in any type.
#[derive(Clone, Copy, Debug)]
pub(super) struct TypedTensor {
    pub address: Address,
    pub dtype: DType,
}

impl TypedTensor {
    fn resolve(self, inputs: &Bindings<'_>) -> TensorPtr {
        TensorPtr { ptr: self.address.resolve(inputs), dtype: self.dtype }
    }
}

/// A compiled expression whose addresses may change between runs.
pub(super) struct Expression {
    pub kernel: Kernel,
    /// The inputs whose addresses change.
    pub moving: Vec<(usize, Address)>,
    /// The outputs whose addresses change.
    pub moving_outputs: Vec<(usize, Address)>,
    /// Random numbers per row of the batch.
    pub row: u64,
}

impl Expression {
    /// # Safety
    /// Same as [`Kernel::prepare`].
    unsafe fn prepare(&mut self, inputs: &Bindings<'_>) {
        self.moving.iter().for_each(|(i, address)| self.kernel.set_input(*i, address.resolve(inputs)));
        self.moving_outputs.iter().for_each(|(i, address)| self.kernel.set_output(*i, address.resolve(inputs)));
        // SAFETY: guaranteed by the caller.
        unsafe { self.kernel.prepare(inputs.random, first_random(&inputs.random, self.row)) };
    }

    /// Applies it to a block of a matrix with `columns` columns, which is its first input and its output.
    ///
    /// # Safety
    /// Same as [`Kernel::range`].
    unsafe fn finish(&self, columns: usize, rows: Range<usize>, part: Range<usize>) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if part.len() == columns {
                self.kernel.range(rows.start * columns, rows.end * columns, |_| {});
            } else {
                rows.for_each(|row| self.kernel.range(row * columns + part.start, row * columns + part.end, |_| {}));
            }
        }
    }
}

/// Stores a complete block of a result of `columns` columns in 16 bits, after applying the epilogue, if there is one.
/// With `pitch`, rows have this stride, which the epilogue includes.
///
/// # Safety
///
/// The block's range of the result is writable; otherwise same as [`Kernel::range`].
unsafe fn store(isa: Isa, finish: Option<&Expression>, to: &HalfViewMut<'_>, columns: usize, pitch: Option<usize>, block: &OutputBlock) {
    let Some(expression) = finish else {
        let pitch = pitch.unwrap_or(columns);
        // SAFETY: guaranteed by the caller.
        return block.rows.clone().for_each(|row| unsafe { to.store(isa, row * pitch + block.columns.start, block.row(row)) });
    };
    // The first input is the block, addressed as if it were a whole result.
    let origin = |values: *const f32, index: usize| values.wrapping_sub(index).cast::<u8>();
    // SAFETY: guaranteed by the caller; the block is valid over the ranges.
    unsafe {
        if block.columns.len() == columns && block.is_dense() {
            let (start, end) = (block.rows.start * columns, block.rows.end * columns);
            return expression.kernel.range_of(origin(block.values(), start), start, end, |_| {});
        }
        for row in block.rows.clone() {
            let start = row * columns + block.columns.start;
            expression.kernel.range_of(origin(block.row(row).as_ptr(), start), start, start + block.columns.len(), |_| {});
        }
    }
}

fn first_random(random: &StepRandom, row: u64) -> u64 {
    random.first_row * row
}

/// A kernel with its operands. Kernels with many operands are boxed, so that the list stays compact.
pub(super) enum KernelCall {
    Pointwise(Box<Expression>),
    Reduce {
        reducer: Box<Reducer>,
        moving: Vec<(usize, Address)>,
        output: Address,
        workspace: Address,
        /// The sum to accumulate onto; often at the address of the output.
        onto: Option<Address>,
        row: u64,
    },
    MatMul {
        /// Whether it sums over the rows of the batch.
        over_rows: bool,
        a: (FloatTensor, [usize; 2], bool),
        b: (FloatTensor, [usize; 2], bool),
        c: FloatTensor,
        /// Row stride, if it is a slice of a concat output.
        pitch: Option<usize>,
        /// The sum to accumulate onto; often at the address of `c`.
        onto: Option<F32Tensor>,
        workspace: F32Tensor,
        epilogue: Option<Box<Expression>>,
    },
    Conv {
        shape: Box<ConvShape>,
        input: FloatTensor,
        filter: FloatTensor,
        output: FloatTensor,
        /// Pixel stride, if it is a slice of a concat output.
        pitch: Option<usize>,
        workspace: F32Tensor,
        epilogue: Option<Box<Expression>>,
    },
    ConvGradInput {
        shape: Box<ConvShape>,
        filter: FloatTensor,
        gradient: FloatTensor,
        output: FloatTensor,
        /// Pixel stride, if it is a slice of a concat output.
        pitch: Option<usize>,
        workspace: F32Tensor,
    },
    ConvGradFilter {
        shape: Box<ConvShape>,
        input: FloatTensor,
        gradient: FloatTensor,
        /// The sum to accumulate onto; often at the address of the output.
        onto: Option<F32Tensor>,
        output: F32Tensor,
        workspace: F32Tensor,
    },
    MaxPool {
        shape: Box<PoolShape>,
        input: FloatTensor,
        output: FloatTensor,
        places: Address,
    },
    MaxPoolGrad {
        shape: Box<PoolShape>,
        places: Address,
        gradient: FloatTensor,
        output: FloatTensor,
    },
    AvgPool {
        shape: Box<PoolShape>,
        input: FloatTensor,
        output: FloatTensor,
    },
    AvgPoolGrad {
        shape: Box<PoolShape>,
        gradient: FloatTensor,
        output: FloatTensor,
    },
    Recurrent {
        shape: Box<RecurrentShape>,
        operands: Box<RecurrentInputs<TypedTensor>>,
        hidden: TypedTensor,
        gates: Option<TypedTensor>,
        last: Option<TypedTensor>,
        workspace: F32Tensor,
    },
    RecurrentGrad {
        shape: Box<RecurrentShape>,
        operands: Box<RecurrentGradInputs<TypedTensor>>,
        d_x: TypedTensor,
        d_recurrent: Option<TypedTensor>,
        d_first: Option<TypedTensor>,
        d_state: Option<TypedTensor>,
        workspace: F32Tensor,
    },
    Gather {
        shape: TableShape,
        table: (Address, DType),
        indices: Address,
        output: (Address, DType),
    },
    ScatterAdd {
        shape: TableShape,
        indices: Address,
        rows: (Address, DType),
        /// The sum to accumulate onto; often at the address of the output.
        onto: Option<F32Tensor>,
        output: F32Tensor,
    },
    Attention(Box<AttentionWork>),
    AttentionGrad {
        forward: Box<AttentionWork>,
        gradient: HeadsTensor,
        /// Of queries, keys and values.
        outputs: [HeadsTensor; 3],
    },
    PairwiseSum(Box<PairwiseSumCall>),
    /// Two calls in sequence.
    Sequence(Box<[KernelCall; 2]>),
    /// Copies from each source, after writing zeros to the gaps.
    Copy {
        copies: Vec<(StridedCopy, Address)>,
        output: Address,
        zeros: Option<Zeros>,
    },
}

/// Heads of a tensor.
#[derive(Clone, Copy)]
pub(super) struct HeadsTensor {
    pub address: Address,
    /// Byte offset of the first head.
    pub start: usize,
    pub dtype: DType,
    pub row: usize,
}

impl HeadsTensor {
    fn resolve(self, inputs: &Bindings<'_>) -> attention::HeadsPtr {
        let HeadsTensor { address, start, dtype, row } = self;
        attention::HeadsPtr { start: address.resolve(inputs).wrapping_add(start), dtype, row }
    }
}

/// Operands that the forward and backward pass of attention share.
pub(super) struct AttentionWork {
    pub shape: AttentionShape,
    /// Queries, keys, values, and the result.
    pub heads: [HeadsTensor; 4],
    pub mask: Option<(Address, DType)>,
    /// Dropout, and the sequences per row of the batch.
    pub dropout: Option<(WeightDropout, usize)>,
    pub lse: F32Tensor,
    pub workspace: F32Tensor,
}

impl AttentionWork {
    fn mask(&self, inputs: &Bindings<'_>) -> Option<attention::KeyMask> {
        self.mask.map(|(address, dtype)| attention::KeyMask { start: address.resolve(inputs), dtype })
    }

    fn dropout_mask(&self, inputs: &Bindings<'_>) -> Option<attention::DropoutMask> {
        let random = inputs.random;
        self.dropout.map(|(dropout, sequences)| attention::DropoutMask { dropout, random, before: random.first_row * sequences as u64 })
    }
}

/// The gaps of padding along an axis.
pub(super) struct Zeros {
    pub element: usize,
    pub dims: Vec<usize>,
    pub axis: usize,
    pub before: usize,
    pub after: usize,
}

impl KernelCall {
    /// # Safety
    ///
    /// The columns and scalars are as the program's graph declares them; every fixed address is in a memory whose lock
    /// is held, valid over the extent of its value; and values alias only as the plan's certificate allows.
    pub unsafe fn run(&mut self, pool: &ThreadPool, inputs: &Bindings<'_>) {
        // SAFETY: guaranteed by the caller, for every address below.
        unsafe {
            match self {
                KernelCall::Pointwise(expression) => {
                    expression.prepare(inputs);
                    expression.kernel.run(pool);
                }
                KernelCall::Reduce { reducer, moving, output, workspace, onto, row } => {
                    moving.iter().for_each(|(i, address)| reducer.set_input(*i, address.resolve(inputs)));
                    reducer.set_output(output.resolve(inputs), workspace.resolve(inputs).cast());
                    if let Some(before) = onto {
                        reducer.set_initial(before.resolve(inputs));
                    }
                    reducer.run(pool, inputs.random, first_random(&inputs.random, *row));
                }
                KernelCall::MatMul { over_rows, a, b, c, pitch, onto, workspace, epilogue } => {
                    let matrix = |(stored, [rows, columns], turned): &(FloatTensor, [usize; 2], bool)| {
                        let matrix = Matrix::of(&stored.read(inputs), *rows, *columns);
                        if *turned { matrix.transposed() } else { matrix }
                    };
                    let (a, b) = (matrix(a), matrix(b));
                    let finish = prepared(epilogue, inputs);
                    let workspace = workspace.write(inputs);
                    if let Some(to) = c.halves(inputs) {
                        let take = |block: &OutputBlock| store(Isa::best(), finish, &to, b.cols, *pitch, block);
                        return match over_rows {
                            true => gemm::gemm_blocks_over_rows(Isa::best(), pool, a, b, workspace, &take),
                            false => gemm::gemm_blocks(pool, a, b, workspace, &take),
                        };
                    }
                    let apply = |rows: Range<usize>, part: Range<usize>, _: usize| {
                        if let Some(expression) = finish {
                            expression.finish(b.cols, rows, part);
                        }
                    };
                    let epilogue: gemm::Epilogue = if finish.is_some() { Some(&apply) } else { None };
                    let to: *mut f32 = c.address.resolve(inputs).cast();
                    let write = resume_from(onto.as_ref(), to, inputs);
                    let pitch = pitch.unwrap_or(b.cols);
                    match over_rows {
                        true => gemm::gemm_over_rows(Isa::best(), pool, write, 1, a, b, to, pitch, workspace, epilogue),
                        false => gemm::gemm(pool, write, a, b, to, pitch, workspace, epilogue),
                    }
                }
                KernelCall::Conv { shape, input, filter, output, pitch, workspace, epilogue } => {
                    let finish = prepared(epilogue, inputs);
                    let columns = shape.out_c;
                    let (input, filter, workspace) = (input.read(inputs), filter.read(inputs), workspace.write(inputs));
                    if let Some(to) = output.halves(inputs) {
                        let take = |block: &OutputBlock| store(Isa::best(), finish, &to, columns, *pitch, block);
                        return conv::forward(pool, shape, input, filter, ConvOutput::Blocks(&take), workspace);
                    }
                    let apply = |rows: Range<usize>, part: Range<usize>, _: usize| {
                        if let Some(expression) = finish {
                            expression.finish(columns, rows, part);
                        }
                    };
                    let epilogue: gemm::Epilogue = if finish.is_some() { Some(&apply) } else { None };
                    conv::forward(pool, shape, input, filter, floats(output.floats(inputs), *pitch, epilogue), workspace);
                }
                KernelCall::ConvGradInput { shape, filter, gradient, output, pitch, workspace } => {
                    let (gradient, filter, workspace) = (gradient.read(inputs), filter.read(inputs), workspace.write(inputs));
                    match output.halves(inputs) {
                        Some(to) => {
                            let take = |block: &OutputBlock| store(Isa::best(), None, &to, shape.in_c, *pitch, block);
                            conv::grad_input(pool, shape, gradient, filter, ConvOutput::Blocks(&take), workspace);
                        }
                        None => conv::grad_input(pool, shape, gradient, filter, floats(output.floats(inputs), *pitch, None), workspace),
                    }
                }
                KernelCall::ConvGradFilter { shape, input, gradient, onto, output, workspace } => {
                    let (input, gradient) = (input.read(inputs), gradient.read(inputs));
                    let to: *mut f32 = output.address.resolve(inputs).cast();
                    let write = resume_from(onto.as_ref(), to, inputs);
                    conv::grad_filter(pool, shape, write, input, gradient, output.write(inputs), workspace.write(inputs));
                }
                KernelCall::MaxPool { shape, input, output, places } => {
                    let places = std::slice::from_raw_parts_mut(places.resolve(inputs), output.count);
                    match output.halves(inputs) {
                        Some(to) => pooling::max_pool_halves(pool, shape, input.read(inputs), to, places),
                        None => pooling::max_pool(pool, shape, input.slice(inputs), output.floats(inputs), places),
                    }
                }
                KernelCall::MaxPoolGrad { shape, places, gradient, output } => {
                    let places = std::slice::from_raw_parts(places.resolve(inputs), gradient.count);
                    match output.halves(inputs) {
                        Some(to) => pooling::max_pool_grad_halves(pool, shape, gradient.read(inputs), places, to),
                        None => pooling::max_pool_grad(pool, shape, gradient.slice(inputs), places, output.floats(inputs)),
                    }
                }
                KernelCall::AvgPool { shape, input, output } => match output.halves(inputs) {
                    Some(to) => pooling::average_pool_halves(pool, shape, input.read(inputs), to),
                    None => pooling::average_pool(pool, shape, input.slice(inputs), output.floats(inputs)),
                },
                KernelCall::AvgPoolGrad { shape, gradient, output } => match output.halves(inputs) {
                    Some(to) => pooling::average_pool_grad_halves(pool, shape, gradient.read(inputs), to),
                    None => pooling::average_pool_grad(pool, shape, gradient.slice(inputs), output.floats(inputs)),
                },
                KernelCall::Recurrent { shape, operands, hidden, gates, last, workspace } => {
                    let real = |tensor: TypedTensor| tensor.resolve(inputs);
                    let (hidden, gates, last) = (real(*hidden), gates.map(real), last.map(real));
                    let args = ForwardArgs { shape: **shape, inputs: operands.map(real), hidden, gates, last };
                    recurrent::forward(pool, &args, workspace.write(inputs));
                }
                KernelCall::RecurrentGrad { shape, operands, d_x, d_recurrent, d_first, d_state, workspace } => {
                    let real = |tensor: TypedTensor| tensor.resolve(inputs);
                    let (d_x, d_recurrent) = (real(*d_x), d_recurrent.map(real));
                    let (d_first, d_state) = (d_first.map(real), d_state.map(real));
                    let args = BackwardArgs { shape: **shape, inputs: operands.map(real), d_x, d_recurrent, d_first, d_state };
                    recurrent::backward(pool, &args, workspace.write(inputs));
                }
                KernelCall::Gather { shape, table, indices, output } => {
                    let (table, output) = ((table.0.resolve(inputs), table.1), (output.0.resolve(inputs), output.1));
                    gather::gather(pool, shape, (table.0.cast_const(), table.1), indices.resolve(inputs), output);
                }
                KernelCall::ScatterAdd { shape, indices, rows, onto, output } => {
                    let rows = (rows.0.resolve(inputs).cast_const(), rows.1);
                    let write = resume_from(onto.as_ref(), output.address.resolve(inputs).cast(), inputs);
                    gather::scatter_add(pool, shape, write, indices.resolve(inputs), rows, output.write(inputs).as_mut_ptr());
                }
                KernelCall::Attention(work) => {
                    let [q, k, v, o] = work.heads.map(|heads| heads.resolve(inputs));
                    let lse = work.lse.address.resolve(inputs).cast();
                    let tensors = Forward { q, k, v, mask: work.mask(inputs), dropout_mask: work.dropout_mask(inputs), o, lse };
                    attention::forward(pool, &work.shape, &tensors, work.workspace.write(inputs));
                }
                KernelCall::AttentionGrad { forward: work, gradient, outputs } => {
                    let [q, k, v, o] = work.heads.map(|heads| heads.resolve(inputs));
                    let [d_q, d_k, d_v] = outputs.map(|heads| heads.resolve(inputs));
                    let (lse, d_o) = (work.lse.address.resolve(inputs).cast_const().cast(), gradient.resolve(inputs));
                    let dropout_mask = work.dropout_mask(inputs);
                    let tensors = Backward { q, k, v, mask: work.mask(inputs), dropout_mask, o, lse, d_o, d_q, d_k, d_v };
                    attention::backward(pool, &work.shape, &tensors, work.workspace.write(inputs));
                }
                KernelCall::PairwiseSum(call) => call.run(pool, inputs),
                KernelCall::Sequence(works) => works.iter_mut().for_each(|work| work.run(pool, inputs)),
                KernelCall::Copy { copies, output, zeros } => {
                    let to = output.resolve(inputs);
                    if let Some(Zeros { element, dims, axis, before, after }) = zeros {
                        pad_with_zeros(*element, dims, *axis, *before, *after, to);
                    }
                    copies.iter().for_each(|(copy, from)| copy.run(pool, from.resolve(inputs), to));
                }
            }
        }
    }
}

/// The output of a convolution in single precision; its pixels are `pitch` apart if it is a slice of a concat output.
fn floats<'a>(output: &'a mut [f32], pitch: Option<usize>, epilogue: gemm::Epilogue<'a>) -> ConvOutput<'a> {
    match pitch {
        Some(pitch) => ConvOutput::Spaced(output, pitch, epilogue),
        None => ConvOutput::Floats(output, epilogue),
    }
}

/// Copies the sum to accumulate onto into the result; returns whether the result accumulates.
///
/// # Safety
/// Both tensors are valid.
unsafe fn resume_from(before: Option<&F32Tensor>, to: *mut f32, inputs: &Bindings<'_>) -> WriteMode {
    let Some(before) = before else { return WriteMode::Set };
    // SAFETY: guaranteed by the caller; the plan places them at the same or at disjoint addresses.
    unsafe {
        let from: *const f32 = before.address.resolve(inputs).cast();
        if from != to {
            to.copy_from_nonoverlapping(from, before.count);
        }
    }
    WriteMode::Add
}

/// # Safety
/// Same as [`Kernel::prepare`].
unsafe fn prepared<'a>(epilogue: &'a mut Option<Box<Expression>>, inputs: &Bindings<'_>) -> Option<&'a Expression> {
    let expression = epilogue.as_deref_mut()?;
    // SAFETY: guaranteed by the caller.
    unsafe { expression.prepare(inputs) };
    Some(expression)
}
