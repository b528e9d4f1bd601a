//! The instructions of a compiled expression, and the loops that execute them on one tile.
//!
//! Every instruction is a loop over groups of lanes, written once and compiled for each vector instruction set.

use super::broadcast::offset;
use super::{PitchedRows, math, philox};
use crate::simd::Isa;
use crate::simd::element::{Element, with_element};
use plimsoll_core::DType;
use plimsoll_core::expr::{Binary, Unary};
use plimsoll_core::random::StepRandom;

/// Elements per loop iteration. Registers have this many floats more than a tile, so that fills may overrun.
pub(super) const LANES: usize = 16;

/// The location of an operand or result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A register: one tile of floats.
    Register(u16),
    /// An input in memory, at the tile.
    Slot(u16),
    /// A value that is the same for all elements.
    Uniform(u16),
    /// An output in memory, at the tile.
    Output(u16),
}

/// A location to read, and whether a single value there serves the whole tile.
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
    /// Loads by the entry of this index in the list of loads.
    Load(u16),
    /// Stores to an output of this type.
    Store(DType),
    /// Stores to a strided output, by its index in the list of strided outputs.
    Place(u16),
}

/// A strided output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed {
    pub output: u16,
    pub dtype: DType,
    pub runs: PitchedRows,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct ExprInstruction {
    pub op: Op,
    pub to: Place,
    pub operands: [Operand; 3],
}

/// How elements are loaded into a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// From a slot, with conversion.
    Convert { slot: u16, dtype: DType, single: bool },
    /// From a broadcast input, run by run of the innermost dimension.
    Stretched { input: u16, dtype: DType, dims: Vec<usize>, strides: Vec<usize>, run: usize, step: usize },
    /// Random numbers.
    Random { stream: u32 },
    /// The coordinate along a dimension of `extent` with stride `inner`.
    Coordinate { inner: usize, extent: usize },
}

/// The context of the instructions of one tile.
pub(super) struct Frame<'a> {
    pub loads: &'a [Load],
    pub file: *mut f32,
    /// Floats between registers.
    pub pitch: usize,
    pub slots: *const *const u8,
    pub inputs: &'a [*const u8],
    pub uniforms: *mut f32,
    pub outputs: *const *mut u8,
    pub placed: &'a [Placed],
    /// Base addresses of the outputs.
    pub bases: &'a [*mut u8],
    /// The tile's first element.
    pub start: usize,
    pub random: StepRandom,
    /// Added to an element's index for its random number.
    pub first_random: u64,
}

impl Frame<'_> {
    /// # Safety
    ///
    /// The frame's kernel was compiled with this location.
    #[inline(always)]
    pub unsafe fn at(&self, place: Place) -> *mut f32 {
        // SAFETY: guaranteed by the caller: the tables cover all indices of the kernel.
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
///
/// The processor supports the instructions; all locations in the code are valid in the frame for `n` elements
/// (registers for [`LANES`] more), inputs are readable and outputs writable.
#[inline(always)]
pub(super) unsafe fn execute(isa: Isa, code: &[ExprInstruction], frame: &Frame<'_>, n: usize) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::execute(code, frame, n),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::execute(code, frame, n),
            _ => portable::execute(code, frame, n),
        }
    }
}

/// The loops compiled for one instruction set. Each kind is a separate function: in one body the compiler would load
/// the constants of all of them for every instruction.
macro_rules! family {
    ($name:ident, $fma:literal $(, $features:literal)?) => {
        mod $name {
            use super::*;

            /// # Safety
            /// Same as [`super::execute`].
            $(#[target_feature(enable = $features)])?
            pub unsafe fn execute(code: &[ExprInstruction], frame: &Frame<'_>, n: usize) {
                for instruction in code {
                    // SAFETY: the locations are those of the frame's kernel and valid for `n` elements, or for one if
                    // an operand is single.
                    unsafe {
                        let t = Resolved::new(instruction, frame, n);
                        match instruction.op {
                            Op::Load(load) => fetch(&frame.loads[load as usize], frame, t.to, n),
                            Op::Place(placed) => place(&frame.placed[placed as usize], frame, &t),
                            op => match instruction.to {
                                Place::Output(output) if !frame.placed.is_empty() => {
                                    let placed = frame.placed.iter().find(|placed| placed.output == output);
                                    placed.map_or_else(|| apply(op, &t), |placed| t.each_run(placed, frame, |run| apply(op, run)));
                                }
                                _ => apply(op, &t),
                            },
                        }
                    }
                }
            }

            /// # Safety
            /// Same as [`super::execute`].
            #[inline(always)]
            unsafe fn apply(op: Op, t: &Resolved) {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    match op {
                        Op::Unary(op) => unary(op, t),
                        Op::Binary(Binary::Pow) => power(t),
                        Op::Binary(op) => binary(op, t),
                        Op::Select => select(t),
                        Op::Copy | Op::Store(DType::F32) => copy(t),
                        Op::Store(dtype) => store(dtype, t),
                        Op::Load(_) | Op::Place(_) => unreachable!("these have addresses of their own"),
                    }
                }
            }
            family!(@loop $fma, unary, unary_loop::<$fma>, (op: Unary, t: &Resolved) $(, $features)?);
            family!(@loop $fma, binary, binary_loop, (op: Binary, t: &Resolved) $(, $features)?);
            family!(@loop $fma, power, power_loop::<$fma>, (t: &Resolved) $(, $features)?);
            family!(@loop $fma, select, select_loop, (t: &Resolved) $(, $features)?);
            family!(@loop $fma, copy, copy_loop, (t: &Resolved) $(, $features)?);
            family!(@loop $fma, store, store_loop, (dtype: DType, t: &Resolved) $(, $features)?);
            family!(@loop $fma, place, place_loop, (placed: &Placed, frame: &Frame<'_>, t: &Resolved) $(, $features)?);
            family!(@loop $fma, fetch, fetch_loop, (load: &Load, frame: &Frame<'_>, to: *mut f32, n: usize) $(, $features)?);
        }
    };
    (@loop $fma:literal, $name:ident, $body:expr, ($($argument:ident: $ty:ty),*) $(, $features:literal)?) => {
        /// # Safety
        /// Same as [`super::execute`].
        #[inline(never)]
        $(#[target_feature(enable = $features)])?
        unsafe fn $name($($argument: $ty),*) {
            // SAFETY: guaranteed by the caller.
            unsafe { $body($($argument),*) }
        }
    };
}
#[cfg(target_arch = "x86_64")]
family!(avx512, true, "avx512f,avx2,fma");
#[cfg(target_arch = "x86_64")]
family!(avx2, true, "avx2,fma");
family!(portable, false);

/// The element at `i`, or the single one.
///
/// # Safety
///
/// `from` is readable there.
#[inline(always)]
unsafe fn read<const SINGLE: bool>(from: *const f32, i: usize) -> f32 {
    // SAFETY: guaranteed by the caller.
    unsafe { *from.add(if SINGLE { 0 } else { i }) }
}

/// The lanes at `i`, or the single element in every lane.
///
/// # Safety
///
/// `from` is readable there.
#[inline(always)]
unsafe fn read_group<const SINGLE: bool>(from: *const f32, i: usize) -> [f32; LANES] {
    // SAFETY: guaranteed by the caller.
    unsafe { if SINGLE { [*from; LANES] } else { from.add(i).cast::<[f32; LANES]>().read_unaligned() } }
}

/// A loop over all lanes. The last group is moved back to end with the tile, so some elements are computed twice: a
/// result must not alias an operand unless it is the operand itself.
macro_rules! each_lane {
    ($to:expr, $n:expr, $($x:ident: $single:literal = $from:expr),+ => $body:expr) => {{
        if $n < LANES {
            for i in 0..$n {
                $(let $x = read::<$single>($from, i);)+
                *$to.add(i) = $body;
            }
        } else {
            let (mut i, mut end) = (0, $n - $n % LANES);
            loop {
                while i < end {
                    $(let $x = read_group::<$single>($from, i);)+
                    let mut result = [0f32; LANES];
                    for lane in 0..LANES {
                        $(let $x = $x[lane];)+
                        result[lane] = $body;
                    }
                    $to.add(i).cast::<[f32; LANES]>().write_unaligned(result);
                    i += LANES;
                }
                if end == $n {
                    break;
                }
                (i, end) = ($n - LANES, $n);
            }
        }
    }};
}

/// A loop for one operand.
macro_rules! unary {
    ($t:expr, |$x:ident| $body:expr) => {
        each_lane!($t.to, $t.n, $x: false = $t.a => $body)
    };
}

/// Loops for two operands, of which one may be a single value.
macro_rules! binary {
    ($t:expr, |$x:ident, $y:ident| $body:expr) => {
        match $t.single {
            [true, _, _] => each_lane!($t.to, $t.n, $x: true = $t.a, $y: false = $t.b => $body),
            [_, true, _] => each_lane!($t.to, $t.n, $x: false = $t.a, $y: true = $t.b => $body),
            _ => each_lane!($t.to, $t.n, $x: false = $t.a, $y: false = $t.b => $body),
        }
    };
}

/// An instruction with resolved addresses.
struct Resolved {
    to: *mut f32,
    a: *const f32,
    b: *const f32,
    c: *const f32,
    single: [bool; 3],
    n: usize,
}

impl Resolved {
    /// # Safety
    ///
    /// The instruction belongs to the frame's kernel.
    #[inline(always)]
    unsafe fn new(instruction: &ExprInstruction, frame: &Frame<'_>, n: usize) -> Resolved {
        let [a, b, c] = instruction.operands;
        // SAFETY: guaranteed by the caller.
        unsafe {
            Resolved {
                to: frame.at(instruction.to),
                a: frame.at(a.place),
                b: frame.at(b.place),
                c: frame.at(c.place),
                single: [a.single, b.single, c.single],
                n,
            }
        }
    }
}

impl Resolved {
    /// The instruction for each run of a strided output.
    #[inline(always)]
    fn each_run(&self, placed: &Placed, frame: &Frame<'_>, mut each: impl FnMut(&Resolved)) {
        let (PitchedRows { length, pitch }, base) = (placed.runs, frame.bases[placed.output as usize]);
        runs(frame.start, self.n, length, |row, column, done, n| {
            let to = base.wrapping_add((row * pitch + column) * placed.dtype.size()).cast();
            let from = |operand: *const f32, i: usize| operand.wrapping_add(if self.single[i] { 0 } else { done });
            each(&Resolved { to, a: from(self.a, 0), b: from(self.b, 1), c: from(self.c, 2), single: self.single, n });
        });
    }
}

/// # Safety
/// Same as [`execute`].
#[inline(always)]
unsafe fn unary_loop<const FMA: bool>(op: Unary, t: &Resolved) {
    // SAFETY: the locations are valid for `n` elements.
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
/// Same as [`execute`].
#[inline(always)]
unsafe fn binary_loop(op: Binary, t: &Resolved) {
    let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
    // SAFETY: the locations are valid for `n` elements, or for one if an operand is single.
    unsafe {
        match op {
            Binary::Add => binary!(t, |x, y| x + y),
            Binary::Sub => binary!(t, |x, y| x - y),
            Binary::Mul => binary!(t, |x, y| x * y),
            Binary::Div => binary!(t, |x, y| x / y),
            Binary::Max => binary!(t, |x, y| larger(x, y)),
            Binary::Min => binary!(t, |x, y| -larger(-x, -y)),
            Binary::Pow => unreachable!("has a loop of its own"),
            Binary::Less => binary!(t, |x, y| truth(x < y)),
            Binary::LessEq => binary!(t, |x, y| truth(x <= y)),
            Binary::Equal => binary!(t, |x, y| truth(x == y)),
        }
    }
}

/// # Safety
/// Same as [`execute`].
#[inline(always)]
unsafe fn power_loop<const FMA: bool>(t: &Resolved) {
    // SAFETY: the locations are valid for `n` elements, or for one if an operand is single.
    unsafe { binary!(t, |x, y| math::pow::<FMA>(x, y)) }
}

/// # Safety
/// Same as [`execute`].
#[inline(always)]
unsafe fn select_loop(t: &Resolved) {
    // SAFETY: the locations are valid for `n` elements, or for one if an operand is single.
    unsafe {
        match t.single {
            [_, true, true] => each_lane!(t.to, t.n, c: false = t.a, x: true = t.b, y: true = t.c => if c != 0.0 { x } else { y }),
            [_, true, _] => each_lane!(t.to, t.n, c: false = t.a, x: true = t.b, y: false = t.c => if c != 0.0 { x } else { y }),
            [_, _, true] => each_lane!(t.to, t.n, c: false = t.a, x: false = t.b, y: true = t.c => if c != 0.0 { x } else { y }),
            _ => each_lane!(t.to, t.n, c: false = t.a, x: false = t.b, y: false = t.c => if c != 0.0 { x } else { y }),
        }
    }
}

/// # Safety
/// Same as [`execute`].
#[inline(always)]
unsafe fn copy_loop(t: &Resolved) {
    // SAFETY: the locations are valid for `n` elements, or for one if an operand is single.
    unsafe {
        match t.single[0] {
            true => each_lane!(t.to, t.n, x: true = t.a => x),
            false => each_lane!(t.to, t.n, x: false = t.a => x),
        }
    }
}

/// # Safety
/// Same as [`execute`].
#[inline(always)]
unsafe fn store_loop(dtype: DType, t: &Resolved) {
    with_element!(dtype, E => {
        let to = t.to.cast::<E>();
        for i in 0..t.n {
            // SAFETY: the locations are valid for `n` elements, or for one if an operand is single.
            unsafe { to.add(i).write_unaligned(E::store(*t.a.add(if t.single[0] { 0 } else { i }))) };
        }
    })
}

/// # Safety
///
/// Same as [`execute`]; the output is valid at all of its runs.
#[inline(always)]
unsafe fn place_loop(placed: &Placed, frame: &Frame<'_>, t: &Resolved) {
    // SAFETY: guaranteed by the caller, for a run.
    t.each_run(placed, frame, |run| unsafe {
        match placed.dtype {
            DType::F32 => copy_loop(run),
            dtype => store_loop(dtype, run),
        }
    });
}

/// The maximum of two numbers; NaN propagates.
#[inline(always)]
pub(crate) fn larger(x: f32, y: f32) -> f32 {
    let larger = if x > y { x } else { y };
    if x.is_nan() { x } else { larger }
}

/// # Safety
/// `to` is writable for `n + LANES` floats; the inputs are readable over their extents.
#[inline(always)]
unsafe fn fetch_loop(load: &Load, frame: &Frame<'_>, to: *mut f32, n: usize) {
    // SAFETY: slots are readable for the tile, inputs over their extents.
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
                        // Whole groups: the overrun is overwritten by the next run, or is beyond the tile.
                        let lanes = [from.read_unaligned().load(); LANES];
                        for group in (0..length).step_by(LANES) {
                            to.add(done + group).cast::<[f32; LANES]>().write_unaligned(lanes);
                        }
                    } else if step == 1 {
                        for i in 0..length {
                            *to.add(done + i) = from.add(column + i).read_unaligned().load();
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

/// Splits elements `start … start + n` into runs that do not cross a multiple of `run`: calls with row, column,
/// elements done and length.
#[inline(always)]
fn runs(start: usize, n: usize, run: usize, mut each: impl FnMut(usize, usize, usize, usize)) {
    let (mut row, mut column, mut done) = (start / run, start % run, 0);
    while done < n {
        let length = (run - column).min(n - done);
        each(row, column, done, length);
        (row, column, done) = (row + 1, 0, done + length);
    }
}
