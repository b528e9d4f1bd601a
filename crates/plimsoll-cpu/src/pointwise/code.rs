//! The instructions of a compiled expression, and the loops that execute them on one tile.
//!
//! Every instruction is a loop over groups of lanes, written once and compiled for each family of vector instructions.

use super::element::{Element, with_element};
use super::stretch::offset;
use super::{math, philox};
use crate::simd::Isa;
use plimsoll_core::DType;
use plimsoll_core::expr::{Binary, Unary};
use plimsoll_core::random::StepRandom;

/// Elements a loop handles at once. Registers have this many floats more than a tile, so that fills may run over.
pub(super) const LANES: usize = 16;

/// Where an instruction reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A register: one tile of floats.
    Register(u16),
    /// An input in its own memory, at the tile.
    Slot(u16),
    /// A number that is the same for all elements.
    Uniform(u16),
    /// An output in its own memory, at the tile.
    Output(u16),
}

/// A place to read, and whether one number there serves the whole tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operand {
    pub place: Place,
    pub single: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Unary(Unary),
    Binary(Binary),
    Select,
    Copy,
    /// Fetches by the entry of this number in the list of loads.
    Load(u16),
    /// Writes to an output of this type.
    Store(DType),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Instruction {
    pub op: Op,
    pub to: Place,
    pub operands: [Operand; 3],
}

/// How elements get into a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// From a slot, converted.
    Convert { slot: u16, dtype: DType, single: bool },
    /// From an input that stretches, run by run of the innermost dimension.
    Stretched { input: u16, dtype: DType, dims: Vec<usize>, strides: Vec<usize>, run: usize, step: usize },
    /// Random numbers.
    Random { stream: u32 },
    /// The coordinate along a dimension of `extent` in which a step is `inner` elements long.
    Coordinate { inner: usize, extent: usize },
}

/// What the instructions of one tile refer to.
pub(super) struct Frame<'a> {
    pub loads: &'a [Load],
    pub file: *mut f32,
    /// Floats from one register to the next.
    pub pitch: usize,
    pub slots: *const *const u8,
    pub inputs: &'a [*const u8],
    pub uniforms: *mut f32,
    pub outputs: *const *mut u8,
    /// The tile's first element.
    pub start: usize,
    pub random: StepRandom,
    /// What is added to an element's index for its random number.
    pub first_random: u64,
}

impl Frame<'_> {
    /// # Safety
    /// The place is one that this frame's kernel was compiled with.
    #[inline(always)]
    pub unsafe fn at(&self, place: Place) -> *mut f32 {
        // SAFETY: the caller's promise: the tables are as long as the kernel's numbers reach.
        unsafe {
            match place {
                Place::Register(i) => self.file.add(i as usize * self.pitch),
                Place::Slot(i) => (*self.slots.add(i as usize)).cast_mut().cast(),
                Place::Uniform(i) => self.uniforms.add(i as usize),
                Place::Output(i) => (*self.outputs.add(i as usize)).cast(),
            }
        }
    }
}

/// Executes instructions on the `n` elements of one tile.
///
/// # Safety
/// The processor has the instructions; all places the code names are valid in the frame for `n` elements (registers for
/// [`LANES`] more), inputs may be read and outputs written.
#[inline(always)]
pub(super) unsafe fn execute(isa: Isa, code: &[Instruction], frame: &Frame<'_>, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => execute_avx512(code, frame, n),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => execute_avx2(code, frame, n),
            _ => body::<false>(code, frame, n),
        }
    }
}

/// # Safety
/// As for [`execute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,fma")]
unsafe fn execute_avx512(code: &[Instruction], frame: &Frame<'_>, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { body::<true>(code, frame, n) }
}

/// # Safety
/// As for [`execute`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn execute_avx2(code: &[Instruction], frame: &Frame<'_>, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { body::<true>(code, frame, n) }
}

/// The lanes at `i` of `n` elements; zeros behind the last.
///
/// # Safety
/// `from` is readable for `n` floats, or for one if `SINGLE`.
#[inline(always)]
unsafe fn read<const SINGLE: bool>(from: *const f32, i: usize, n: usize) -> [f32; LANES] {
    // SAFETY: whole groups end before `n`, partial ones are copied only so far.
    unsafe {
        if SINGLE {
            [*from; LANES]
        } else if n - i >= LANES {
            from.add(i).cast::<[f32; LANES]>().read_unaligned()
        } else {
            let mut lanes = [0.0; LANES];
            std::ptr::copy_nonoverlapping(from.add(i), lanes.as_mut_ptr(), n - i);
            lanes
        }
    }
}

/// # Safety
/// `to` is writable for `n` floats.
#[inline(always)]
unsafe fn write(to: *mut f32, i: usize, n: usize, lanes: [f32; LANES]) {
    // SAFETY: whole groups end before `n`, partial ones are copied only so far.
    unsafe {
        if n - i >= LANES {
            to.add(i).cast::<[f32; LANES]>().write_unaligned(lanes);
        } else {
            std::ptr::copy_nonoverlapping(lanes.as_ptr(), to.add(i), n - i);
        }
    }
}

/// One loop over all lanes. A group is read whole before it is written, so the result may stand where an operand does.
macro_rules! each_lane {
    ($to:expr, $n:expr, $($x:ident: $single:literal = $from:expr),+ => $body:expr) => {{
        let mut i = 0;
        while i < $n {
            $(let $x = read::<$single>($from, i, $n);)+
            let mut result = [0f32; LANES];
            for lane in 0..LANES {
                $(let $x = $x[lane];)+
                result[lane] = $body;
            }
            write($to, i, $n, result);
            i += LANES;
        }
    }};
}

/// A loop for one operand.
macro_rules! unary {
    ($t:expr, |$x:ident| $body:expr) => {
        each_lane!($t.to, $t.n, $x: false = $t.a => $body)
    };
}

/// Loops for two operands, of which one may be a single number.
macro_rules! binary {
    ($t:expr, |$x:ident, $y:ident| $body:expr) => {
        match $t.single {
            [true, _, _] => each_lane!($t.to, $t.n, $x: true = $t.a, $y: false = $t.b => $body),
            [_, true, _] => each_lane!($t.to, $t.n, $x: false = $t.a, $y: true = $t.b => $body),
            _ => each_lane!($t.to, $t.n, $x: false = $t.a, $y: false = $t.b => $body),
        }
    };
}

/// An instruction with its places resolved.
struct Resolved {
    to: *mut f32,
    a: *const f32,
    b: *const f32,
    c: *const f32,
    single: [bool; 3],
    n: usize,
}

/// # Safety
/// As for [`execute`]; inlined into functions that have the instructions.
#[inline(always)]
unsafe fn body<const FMA: bool>(code: &[Instruction], frame: &Frame<'_>, n: usize) {
    for instruction in code {
        let [a, b, c] = instruction.operands;
        // SAFETY: the places are those of the frame's kernel.
        let t = unsafe {
            Resolved {
                to: frame.at(instruction.to),
                a: frame.at(a.place),
                b: frame.at(b.place),
                c: frame.at(c.place),
                single: [a.single, b.single, c.single],
                n,
            }
        };
        // SAFETY: the places are valid for `n` elements, or for one where an operand is single.
        unsafe {
            match instruction.op {
                Op::Unary(op) => unary_loop::<FMA>(op, &t),
                Op::Binary(op) => binary_loop::<FMA>(op, &t),
                Op::Select => match t.single {
                    [_, true, true] => {
                        each_lane!(t.to, n, c: false = t.a, x: true = t.b, y: true = t.c => if c != 0.0 { x } else { y })
                    }
                    [_, true, _] => each_lane!(t.to, n, c: false = t.a, x: true = t.b, y: false = t.c => if c != 0.0 { x } else { y }),
                    [_, _, true] => each_lane!(t.to, n, c: false = t.a, x: false = t.b, y: true = t.c => if c != 0.0 { x } else { y }),
                    _ => each_lane!(t.to, n, c: false = t.a, x: false = t.b, y: false = t.c => if c != 0.0 { x } else { y }),
                },
                Op::Copy if a.single => each_lane!(t.to, n, x: true = t.a => x),
                Op::Copy => each_lane!(t.to, n, x: false = t.a => x),
                Op::Load(load) => fetch(&frame.loads[load as usize], frame, t.to, n),
                Op::Store(DType::F32) if a.single => each_lane!(t.to, n, x: true = t.a => x),
                Op::Store(DType::F32) => each_lane!(t.to, n, x: false = t.a => x),
                Op::Store(dtype) => with_element!(dtype, E => {
                    let to = t.to.cast::<E>();
                    for i in 0..n {
                        let value = *t.a.add(if a.single { 0 } else { i });
                        to.add(i).write_unaligned(E::store(value));
                    }
                }),
            }
        }
    }
}

/// # Safety
/// As for [`execute`].
#[inline(always)]
unsafe fn unary_loop<const FMA: bool>(op: Unary, t: &Resolved) {
    // SAFETY: the places are valid for `n` elements.
    unsafe {
        match op {
            Unary::Neg => unary!(t, |x| -x),
            Unary::Abs => unary!(t, |x| x.abs()),
            Unary::Sign => unary!(t, |x| if x > 0.0 {
                1.0
            } else if x < 0.0 {
                -1.0
            } else {
                x
            }),
            Unary::Floor => unary!(t, |x| x.floor()),
            Unary::Exp => unary!(t, |x| math::exp::<FMA>(x)),
            Unary::Log => unary!(t, |x| math::log::<FMA>(x)),
            Unary::Sqrt => unary!(t, |x| x.sqrt()),
            Unary::Recip => unary!(t, |x| 1.0 / x),
            Unary::Tanh => unary!(t, |x| math::tanh::<FMA>(x)),
            Unary::Sigmoid => unary!(t, |x| math::sigmoid::<FMA>(x)),
            Unary::Softplus => unary!(t, |x| math::softplus::<FMA>(x)),
            Unary::Erf => unary!(t, |x| math::erf::<FMA>(x)),
        }
    }
}

/// # Safety
/// As for [`execute`].
#[inline(always)]
unsafe fn binary_loop<const FMA: bool>(op: Binary, t: &Resolved) {
    let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
    // SAFETY: the places are valid for `n` elements, or for one where an operand is single.
    unsafe {
        match op {
            Binary::Add => binary!(t, |x, y| x + y),
            Binary::Sub => binary!(t, |x, y| x - y),
            Binary::Mul => binary!(t, |x, y| x * y),
            Binary::Div => binary!(t, |x, y| x / y),
            Binary::Max => binary!(t, |x, y| larger(x, y)),
            Binary::Min => binary!(t, |x, y| -larger(-x, -y)),
            Binary::Pow => binary!(t, |x, y| math::pow::<FMA>(x, y)),
            Binary::Less => binary!(t, |x, y| truth(x < y)),
            Binary::LessEq => binary!(t, |x, y| truth(x <= y)),
            Binary::Equal => binary!(t, |x, y| truth(x == y)),
        }
    }
}

/// The larger of two numbers; NaN wins.
#[inline(always)]
pub(crate) fn larger(x: f32, y: f32) -> f32 {
    let larger = if x > y { x } else { y };
    if x.is_nan() { x } else { larger }
}

/// # Safety
/// `to` is writable for `n + LANES` floats; the inputs are readable over their extents.
#[inline(always)]
unsafe fn fetch(load: &Load, frame: &Frame<'_>, to: *mut f32, n: usize) {
    // SAFETY: slots are readable for the tile, inputs everywhere.
    unsafe {
        match *load {
            Load::Convert { slot, dtype, single } => with_element!(dtype, E => {
                let from = (*frame.slots.add(slot as usize)).cast::<E>();
                for i in 0..if single { 1 } else { n } {
                    *to.add(i) = from.add(i).read_unaligned().load();
                }
            }),
            Load::Stretched { input, dtype, ref dims, ref strides, run, step } => with_element!(dtype, E => {
                let from = frame.inputs[input as usize].cast::<E>();
                runs(frame.start, n, run, |row, column, done, length| {
                    let from = from.add(offset(dims, strides, row));
                    if step == 0 {
                        // Whole groups: what runs over is written again by the next run, or lies behind the tile.
                        let lanes = [from.read_unaligned().load(); LANES];
                        for group in (0..length).step_by(LANES) {
                            to.add(done + group).cast::<[f32; LANES]>().write_unaligned(lanes);
                        }
                    } else {
                        for i in 0..length {
                            *to.add(done + i) = from.add((column + i) * step).read_unaligned().load();
                        }
                    }
                });
            }),
            Load::Random { stream } => philox::fill(to, n, &frame.random, stream, frame.first_random + frame.start as u64),
            Load::Coordinate { inner: 1, extent } => runs(frame.start, n, extent, |_, column, done, length| {
                (0..length).for_each(|i| *to.add(done + i) = (column + i) as f32);
            }),
            Load::Coordinate { inner, extent } => runs(frame.start, n, inner, |row, _, done, length| {
                (0..length).for_each(|i| *to.add(done + i) = (row % extent) as f32);
            }),
        }
    }
}

/// Cuts elements `start … start + n` into runs that do not cross a multiple of `run`: calls with row, column, elements done and length.
#[inline(always)]
fn runs(start: usize, n: usize, run: usize, mut each: impl FnMut(usize, usize, usize, usize)) {
    let (mut row, mut column, mut done) = (start / run, start % run, 0);
    while done < n {
        let length = (run - column).min(n - done);
        each(row, column, done, length);
        (row, column, done) = (row + 1, 0, done + length);
    }
}
