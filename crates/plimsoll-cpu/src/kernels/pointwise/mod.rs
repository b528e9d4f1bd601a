//! Pointwise expressions: compiled once into a short register program, run tile by tile in the first-level cache.
//!
//! A tile of every input is read before a tile of any output is written, so an output may stand exactly where an input does. Elements
//! do not depend on how the work is cut, so results are the same at any number of threads.

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
    /// The inputs whose memory it is written over, which have as many bytes as it has and over which no other output is written; also an input that is
    /// only there once the kernel runs.
    pub over: &'a [usize],
    /// How it lies between the parts of something wider, if it does.
    pub runs: Option<PitchedRows>,
}

/// A tensor that lies between the parts of something wider: its elements in runs of this length, which begin this far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PitchedRows {
    /// Elements of a run.
    pub length: usize,
    /// Elements from where one begins to where the next does.
    pub pitch: usize,
}

/// An expression over a shape, ready to run.
pub struct Kernel {
    isa: Isa,
    code: Code,
    elements: usize,
    /// Bytes of an element of each input and output.
    sizes: (Vec<usize>, Vec<usize>),
    inputs: Vec<*const u8>,
    outputs: Vec<*mut u8>,
    random: StepRandom,
    first_random: u64,
}

// SAFETY: the addresses are only used through `prepare`, `range` and `run`, whose callers vouch for them on whatever thread they run.
unsafe impl Send for Kernel {}
// SAFETY: as above; shared use reads the kernel and writes only through output addresses, to ranges the caller keeps apart.
unsafe impl Sync for Kernel {}

/// The registers of one run of tiles, on the stack of the thread that runs it.
#[repr(align(64))]
struct File(MaybeUninit<[f32; FILE]>);

/// The first result on one tile.
#[derive(Clone, Copy)]
pub(crate) struct Tile {
    /// Its first element's index.
    pub start: usize,
    /// How many elements.
    pub length: usize,
    /// The values, or the one value all of them have.
    pub values: *const f32,
    pub single: bool,
}

impl Tile {
    /// The numbers, spread into `buffer` if there is only one.
    ///
    /// # Safety
    /// The tile was just handed out, and `buffer` is as long as a tile can be.
    pub unsafe fn numbers<'a>(&self, buffer: &'a mut [f32]) -> &'a [f32] {
        if self.single {
            // SAFETY: there is one value.
            buffer[..self.length].fill(unsafe { *self.values });
            return &buffer[..self.length];
        }
        // SAFETY: the values stay until the next tile.
        unsafe { std::slice::from_raw_parts(self.values, self.length) }
    }
}

/// The cost of one task, about, and its most elements: large enough to be worth handing out.
const TASK: usize = 60_000;
const CHUNK: usize = 16 << 10;
/// The cost below which waking other threads takes longer than the work.
const SERIAL: usize = 120_000;

impl Kernel {
    /// Compiles an expression over `dims`. A kernel without `sinks` stores nothing; it serves reductions.
    ///
    /// # Errors
    /// When the expression reads more tensors or holds more numbers at once than there are registers for.
    pub fn new(expr: &Expr, dims: &[usize], sources: &[InputSpec<'_>], sinks: &[OutputSpec<'_>]) -> Result<Kernel, String> {
        Kernel::with(Isa::best(), expr, dims, sources, sinks, 1)
    }

    /// [`Kernel::new`] with chosen instructions, and tiles that hold a multiple of `multiple` elements where that is possible.
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

    /// Says where input `i` is.
    pub fn set_input(&mut self, i: usize, address: *const u8) {
        self.inputs[i] = address;
    }

    /// Says where output `i` goes.
    pub fn set_output(&mut self, i: usize, address: *mut u8) {
        self.outputs[i] = address;
    }

    /// Most elements of a tile.
    pub(crate) fn tile(&self) -> usize {
        self.code.tile
    }

    /// Elements after which tiles start over.
    pub(crate) fn row(&self) -> usize {
        self.code.row
    }

    /// What running over all elements costs, in about a tenth of a nanosecond.
    pub(crate) fn cost(&self) -> usize {
        self.elements * (self.code.cost + 1)
    }

    /// Computes what is the same for all elements. `first_random` is added to an element's index to find its random number.
    ///
    /// # Safety
    /// All inputs have addresses that are readable over their extents.
    pub unsafe fn prepare(&mut self, random: StepRandom, first_random: u64) {
        (self.random, self.first_random) = (random, first_random);
        for (input, dtype, uniform) in &self.code.uniform_inputs {
            let from = self.inputs[*input as usize];
            // SAFETY: the caller's promise; the input has one element.
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
        // SAFETY: the prologue names uniforms only, and `isa` was found to be supported.
        unsafe { execute(self.isa, &self.code.prologue, &frame, 1) };
    }

    /// Runs over all elements, on the pool if that is worth it.
    ///
    /// # Safety
    /// [`Kernel::prepare`] has been called; inputs and outputs have addresses valid over their extents, and overlap as their [`OutputSpec`]s say.
    pub unsafe fn run(&self, pool: &ThreadPool) {
        if self.elements == 0 {
            return;
        }
        if pool.threads() == 1 || self.cost() < SERIAL {
            // SAFETY: the caller's promise.
            unsafe { self.range(0, self.elements, |_| {}) };
            return;
        }
        let worth = (TASK / (self.code.cost + 1)).min(CHUNK);
        let chunk = self.code.tile * (worth / self.code.tile).max(1);
        pool.run(self.elements.div_ceil(chunk), &|task, _| {
            let start = task * chunk;
            // SAFETY: the caller's promise; tasks write disjoint elements.
            unsafe { self.range(start, self.elements.min(start + chunk), |_| {}) };
        });
    }

    /// Runs over elements `start … end`, handing the first result of each tile to `sink`.
    ///
    /// # Safety
    /// As for [`Kernel::run`]; ranges that run at the same time are disjoint.
    #[inline(always)]
    pub(crate) unsafe fn range(&self, start: usize, end: usize, sink: impl FnMut(Tile)) {
        // SAFETY: the caller's promise.
        unsafe { self.range_of(self.inputs.first().copied().unwrap_or(std::ptr::null()), start, end, sink) }
    }

    /// [`Kernel::range`] with another address for the first input, which has the expression's own shape and is in an output's [`OutputSpec::over`].
    ///
    /// # Safety
    /// As for [`Kernel::range`]; the first input need only be valid over the range.
    #[inline(always)]
    pub(crate) unsafe fn range_of(&self, first: *const u8, start: usize, end: usize, mut sink: impl FnMut(Tile)) {
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
            // SAFETY: registers hold a tile, and the inputs are readable; one period of them is fetched and then repeated.
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
                // A kernel whose row is the whole shape reads through slots only what lies like the shape itself.
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
            // SAFETY: the slots and outputs the code names were just written and point at this tile, which lies inside their tensors; registers hold it.
            unsafe {
                if !hoist {
                    execute(self.isa, &code.hoisted, &frame, length);
                }
                execute(self.isa, &code.body, &frame, length);
            }
            if let Some(root) = code.roots.first() {
                // SAFETY: the root is a place of this kernel.
                let values = unsafe { frame.at(root.place) };
                sink(Tile { start: frame.start, length, values, single: root.single });
            }
            frame.start += length;
            column += length;
            if column == code.row {
                (row, column) = (row + 1, 0);
            }
        }
    }
}

/// Repeats the first `period` floats until there are `length`.
///
/// # Safety
/// `to` is writable for `length` floats, of which the first `period` have been written.
unsafe fn repeat(to: *mut f32, period: usize, length: usize) {
    let mut done = period;
    while done < length {
        let more = done.min(length - done);
        // SAFETY: the part written so far does not reach into the part that follows it.
        unsafe { std::ptr::copy_nonoverlapping(to, to.add(done), more) };
        done += more;
    }
}

#[cfg(test)]
mod tests;
