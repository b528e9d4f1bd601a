//! Pointwise expressions: compiled once into a short register program, executed tile by tile in L1.
//!
//! A tile of every input is read before a tile of any output is written, so an output may alias an input exactly.
//! Elements are independent of how the work is split, so results are bit-identical for any number of threads.

pub(crate) mod broadcast;
mod code;
mod compile;
mod math;
mod philox;

pub(crate) use code::larger;
pub(crate) use math::{exp, log, sigmoid, tanh};
pub(crate) use philox::fill as random_numbers;

use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::element::{Element, with_element};
use broadcast::offset;
use code::{Frame, LANES, execute};
use compile::{Code, FILE, SLOTS, compile};
use plimsoll_core::DType;
use plimsoll_core::expr::Expr;
use plimsoll_core::random::StepRandom;
use std::mem::MaybeUninit;

/// An input of an expression: its shape and type, without an address.
#[derive(Clone, Copy, Debug)]
pub struct InputSpec<'a> {
    /// Its own dimensions, which are broadcast to those of the expression.
    pub dims: &'a [usize],
    /// Its element type.
    pub dtype: DType,
    /// The stride of its innermost rows in elements, if it is a channel view of a wider tensor.
    pub pitch: Option<usize>,
}

/// A result of an expression: its type and layout, without an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputSpec<'a> {
    /// Its element type.
    pub dtype: DType,
    /// The inputs whose memory it overwrites: they have the same size, and no other output overwrites them. Includes
    /// inputs that are produced only while the kernel runs.
    pub over: &'a [usize],
    /// Its layout as a slice of a larger tensor, if it is one.
    pub runs: Option<PitchedRows>,
}

/// A slice of a larger tensor: runs of this length with a fixed stride.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PitchedRows {
    /// Elements per run.
    pub length: usize,
    /// Stride of the runs in elements.
    pub pitch: usize,
}

/// An expression over a shape, ready to run.
pub struct Kernel {
    isa: Isa,
    code: Code,
    elements: usize,
    /// Element sizes of each input and output in bytes.
    sizes: (Vec<usize>, Vec<usize>),
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    random: StepRandom,
    first_random: u64,
}

// SAFETY: the addresses are only used through `prepare`, `range` and `run`, whose callers guarantee them on any thread.
unsafe impl Send for Kernel {}
// SAFETY: as above; shared use reads the kernel and writes only through output addresses, to ranges that the caller
// keeps disjoint.
unsafe impl Sync for Kernel {}

/// The registers of one run of tiles, on the thread's stack.
#[repr(align(64))]
struct File(MaybeUninit<[f32; FILE]>);

/// The first result on one tile.
#[derive(Clone, Copy)]
pub(crate) struct ResultTile {
    /// Index of its first element.
    pub start: usize,
    /// Number of elements.
    pub length: usize,
    /// The values, or the single value of all elements.
    pub values: *const f32,
    pub single: bool,
}

impl ResultTile {
    /// The values, broadcast into `buffer` if there is a single one.
    ///
    /// # Safety
    ///
    /// The tile was just passed to the sink, and `buffer` has the maximum tile length.
    pub unsafe fn numbers<'a>(&self, buffer: &'a mut [f32]) -> &'a [f32] {
        if self.single {
            // SAFETY: there is one value.
            buffer[..self.length].fill(unsafe { *self.values });
            return &buffer[..self.length];
        }
        // SAFETY: the values are valid until the next tile.
        unsafe { std::slice::from_raw_parts(self.values, self.length) }
    }
}

/// Approximate cost of a task, and its maximum elements.
const TASK: usize = 60_000;
const CHUNK: usize = 16 << 10;
/// The cost below which waking other threads takes longer than the work.
const SERIAL: usize = 120_000;

impl Kernel {
    /// Compiles an expression over `dims`. A kernel without `sinks` stores nothing; reductions use it.
    ///
    /// # Errors
    ///
    /// If the expression reads too many tensors or needs too many registers.
    pub fn new(expr: &Expr, dims: &[usize], sources: &[InputSpec<'_>], sinks: &[OutputSpec<'_>]) -> Result<Kernel, String> {
        Kernel::with(Isa::best(), expr, dims, sources, sinks, 1)
    }

    /// Like [`Kernel::new`], with a given instruction set, and tiles that are a multiple of `multiple` elements if
    /// possible.
    pub(crate) fn with(
        isa: Isa,
        expr: &Expr,
        dims: &[usize],
        sources: &[InputSpec<'_>],
        sinks: &[OutputSpec<'_>],
        multiple: usize,
    ) -> Result<Kernel, String> {
        assert!(isa.supported(), "this processor has no {isa:?}");
        let code = compile(expr, dims, sources, sinks, multiple)?;
        Ok(Kernel {
            isa,
            code,
            elements: dims.iter().product(),
            sizes: (sources.iter().map(|s| s.dtype.size()).collect(), sinks.iter().map(|s| s.dtype.size()).collect()),
            inputs: vec![std::ptr::null(); sources.len()],
            outputs: vec![std::ptr::null_mut(); sinks.len()],
            random: StepRandom::default(),
            first_random: 0,
        })
    }

    /// Sets the address of input `i`.
    pub fn set_input(&mut self, i: usize, address: *const u8) {
        self.inputs[i] = address;
    }

    /// Sets the address of output `i`.
    pub fn set_output(&mut self, i: usize, address: *mut u8) {
        self.outputs[i] = address;
    }

    /// Maximum elements of a tile.
    pub(crate) fn tile(&self) -> usize {
        self.code.tile
    }

    /// Elements after which tiles restart.
    pub(crate) fn row(&self) -> usize {
        self.code.row
    }

    /// Cost of all elements, in about a tenth of a nanosecond.
    pub(crate) fn cost(&self) -> usize {
        self.elements * (self.code.cost + 1)
    }

    /// Computes uniform values. `first_random` is added to an element's index for its random number.
    ///
    /// # Safety
    ///
    /// All inputs have addresses that are readable over their extents.
    pub unsafe fn prepare(&mut self, random: StepRandom, first_random: u64) {
        (self.random, self.first_random) = (random, first_random);
        for (input, dtype, uniform) in &self.code.uniform_inputs {
            let from = self.inputs[*input as usize];
            // SAFETY: guaranteed by the caller; the input has one element.
            self.code.uniforms[*uniform as usize] = with_element!(*dtype, E => unsafe { from.cast::<E>().read_unaligned() }.load());
        }
        if self.code.prologue.is_empty() {
            return;
        }
        let frame = Frame {
            loads: &[],
            file: std::ptr::null_mut(),
            pitch: 0,
            slots: std::ptr::null(),
            inputs: &[],
            uniforms: self.code.uniforms.as_mut_ptr(),
            outputs: std::ptr::null(),
            placed: &[],
            bases: &[],
            start: 0,
            random,
            first_random,
        };
        // SAFETY: the prologue refers to uniforms only, and `isa` is supported.
        unsafe { execute(self.isa, &self.code.prologue, &frame, 1) };
    }

    /// Runs over all elements, on the pool if that is worthwhile.
    ///
    /// # Safety
    ///
    /// [`Kernel::prepare`] has been called; inputs and outputs have addresses that are valid over their extents, and
    /// alias only as their [`OutputSpec`]s state.
    pub unsafe fn run(&self, pool: &ThreadPool) {
        if self.elements == 0 {
            return;
        }
        if pool.threads() == 1 || self.cost() < SERIAL {
            // SAFETY: guaranteed by the caller.
            unsafe { self.range(0, self.elements, |_| {}) };
            return;
        }
        let worth = (TASK / (self.code.cost + 1)).min(CHUNK);
        let chunk = self.code.tile * (worth / self.code.tile).max(1);
        pool.run(self.elements.div_ceil(chunk), &|task, _| {
            let start = task * chunk;
            // SAFETY: guaranteed by the caller; tasks write disjoint elements.
            unsafe { self.range(start, self.elements.min(start + chunk), |_| {}) };
        });
    }

    /// Runs over elements `start … end`, passing the first result of each tile to `sink`.
    ///
    /// # Safety
    ///
    /// Same as [`Kernel::run`]; concurrent ranges are disjoint.
    #[inline(always)]
    pub(crate) unsafe fn range(&self, start: usize, end: usize, sink: impl FnMut(ResultTile)) {
        // SAFETY: guaranteed by the caller.
        unsafe { self.range_of(self.inputs.first().copied().unwrap_or(std::ptr::null()), start, end, sink) }
    }

    /// Like [`Kernel::range`], with another address for the first input, which has the expression's own shape and is in
    /// an output's [`OutputSpec::over`].
    ///
    /// # Safety
    ///
    /// Same as [`Kernel::range`]; the first input need only be valid over the range.
    #[inline(always)]
    pub(crate) unsafe fn range_of(&self, first: *const u8, start: usize, end: usize, mut sink: impl FnMut(ResultTile)) {
        let code = &self.code;
        let mut file = File(MaybeUninit::uninit());
        let mut slots = [const { MaybeUninit::<*const u8>::uninit() }; SLOTS];
        let mut outputs = [const { MaybeUninit::<*mut u8>::uninit() }; SLOTS];
        let mut frame = Frame {
            loads: &code.loads,
            file: file.0.as_mut_ptr().cast(),
            pitch: code.tile.next_multiple_of(LANES) + LANES,
            slots: slots.as_ptr().cast(),
            inputs: &self.inputs,
            // The body reads uniforms and never writes them.
            uniforms: code.uniforms.as_ptr().cast_mut(),
            outputs: outputs.as_ptr().cast(),
            placed: &code.placed,
            bases: &self.outputs,
            start,
            random: self.random,
            first_random: self.first_random,
        };
        let hoist = start.is_multiple_of(code.period);
        if hoist && !code.hoisted.is_empty() {
            // SAFETY: registers have the size of a tile, and the inputs are readable; one period is loaded and then
            // repeated.
            unsafe {
                execute(self.isa, &code.hoisted, &frame, code.period);
                code.hoisted.iter().for_each(|load| repeat(frame.at(load.to), code.period, code.tile));
            }
        }
        let outer = code.broadcast_dims.dims.len().saturating_sub(1);
        let (mut row, mut column) = (start / code.row, start % code.row);
        while frame.start < end {
            let length = code.tile.min(code.row - column).min(end - frame.start);
            for (slot, input) in slots.iter_mut().zip(&code.slots) {
                let strides = &code.broadcast_dims.strides[*input as usize];
                // If the row is the whole shape, slots only refer to inputs with the layout of the shape.
                let across = if row == 0 { 0 } else { offset(&code.broadcast_dims.dims[..outer], &strides[..outer], row) };
                let element = across + if strides.last() == Some(&0) { 0 } else { column };
                let base = if *input == 0 { first } else { self.inputs[*input as usize] };
                slot.write(base.wrapping_add(element * self.sizes.0[*input as usize]));
            }
            for ((now, base), size) in outputs.iter_mut().zip(&self.outputs).zip(&self.sizes.1) {
                now.write(base.wrapping_add(frame.start * size));
            }
            frame.slots = slots.as_ptr().cast();
            frame.outputs = outputs.as_ptr().cast();
            // SAFETY: the slots and outputs in the code were just set and point to this tile, which is inside of their
            // tensors; registers have its size.
            unsafe {
                if !hoist {
                    execute(self.isa, &code.hoisted, &frame, length);
                }
                execute(self.isa, &code.body, &frame, length);
            }
            if let Some(root) = code.roots.first() {
                // SAFETY: the root is a location of this kernel.
                let values = unsafe { frame.at(root.place) };
                sink(ResultTile { start: frame.start, length, values, single: root.single });
            }
            frame.start += length;
            column += length;
            if column == code.row {
                (row, column) = (row + 1, 0);
            }
        }
    }
}

/// Repeats the first `period` floats up to `length`.
///
/// # Safety
///
/// `to` is writable for `length` floats, of which the first `period` are initialized.
unsafe fn repeat(to: *mut f32, period: usize, length: usize) {
    let mut done = period;
    while done < length {
        let more = done.min(length - done);
        // SAFETY: source and destination do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(to, to.add(done), more) };
        done += more;
    }
}

#[cfg(test)]
mod tests;
