//! Compiles an expression over a shape to instructions over tiles.
//!
//! Uniform values are computed once per run. Inputs with a suitable layout are read in place; all others are loaded
//! into registers first. Registers are allocated by last use.

use super::broadcast::{Stretched, collapse};
use super::code::{ExprInstruction, LANES, Load, Op, Operand, Place, Placed};
use super::{InputSpec, OutputSpec};
use plimsoll_core::DType;
use plimsoll_core::expr::{Binary, Expr, Term, TermId, Unary};

/// Maximum elements of a tile: long enough to amortize the dispatch of an instruction, short enough for L1.
const TILE: usize = 512;
/// Floats of all registers of a kernel: the size of L1.
pub(super) const FILE: usize = 8192;
/// Minimum row length for row-wise iteration: broadcast operands are then a single value or a slice.
const LONG_ROW: usize = 256;
/// Minimum run length of a strided output for direct stores; shorter runs are stored together from a register.
const LONG_RUN: usize = 64;
/// Maximum number of inputs and of outputs: their addresses are in tables on the stack.
pub(super) const SLOTS: usize = 64;

/// A compiled kernel without addresses.
#[derive(Debug)]
pub(super) struct Code {
    pub broadcast_dims: Stretched,
    /// Elements of a row: tiles do not cross its end.
    pub row: usize,
    pub tile: usize,
    /// Tiles that start at a multiple of this share the contents of all hoisted registers.
    pub period: usize,
    pub registers: usize,
    /// Initial values of the uniforms; constants are final.
    pub uniforms: Vec<f32>,
    /// Scalar inputs: input, type, uniform.
    pub uniform_inputs: Vec<(u16, DType, u16)>,
    /// Instructions on uniforms, executed once.
    pub prologue: Vec<ExprInstruction>,
    /// Loads whose result is the same for every tile.
    pub hoisted: Vec<ExprInstruction>,
    pub body: Vec<ExprInstruction>,
    pub loads: Vec<Load>,
    /// Strided outputs.
    pub placed: Vec<Placed>,
    /// The input of each slot.
    pub slots: Vec<u16>,
    /// The location of each result after the body.
    pub roots: Vec<Operand>,
    /// Cost per element, in about a tenth of a nanosecond.
    pub cost: usize,
}

pub(super) fn compile(
    expr: &Expr,
    dims: &[usize],
    sources: &[InputSpec<'_>],
    sinks: &[OutputSpec<'_>],
    multiple: usize,
) -> Result<Code, String> {
    let mut most = TILE;
    loop {
        let code = Compiler::new(expr, dims, sources, sinks, multiple, most).compile()?;
        if code.registers * (code.tile + LANES) <= FILE {
            return Ok(code);
        }
        if most <= LANES {
            return Err(format!("an expression needs {} numbers at once, which is more than there are registers for", code.registers));
        }
        most /= 2;
    }
}

struct Compiler<'a> {
    expr: &'a Expr,
    dims: &'a [usize],
    sources: &'a [InputSpec<'a>],
    sinks: &'a [OutputSpec<'a>],
    code: Code,
    values: Vec<Operand>,
    /// For every term, the last term that reads it; results are read at the end.
    last_use: Vec<usize>,
    free: Vec<u16>,
}

impl<'a> Compiler<'a> {
    fn new(
        expr: &'a Expr,
        dims: &'a [usize],
        sources: &'a [InputSpec<'a>],
        sinks: &'a [OutputSpec<'a>],
        multiple: usize,
        most: usize,
    ) -> Compiler<'a> {
        let read: Vec<(&[usize], Option<usize>)> = sources.iter().map(|source| (source.dims, source.pitch)).collect();
        let broadcast_dims = collapse(dims, &vec![false; dims.len()], &read);
        let elements: usize = dims.iter().product();
        let innermost = broadcast_dims.dims.last().copied().unwrap_or(1);
        let long = innermost >= LONG_ROW || broadcast_dims.dims.len() <= 1;
        let row = if long { innermost } else { elements }.max(1);
        let period = if long { 1 } else { period(&broadcast_dims, most) };
        let tile = tile(row, period, multiple, most);
        let period = if tile.is_multiple_of(period) || row <= tile { period } else { 1 };
        let mut last_use = vec![0; expr.terms().len()];
        for (id, term) in expr.terms().iter().enumerate() {
            term.operands().for_each(|operand| last_use[operand as usize] = id);
        }
        expr.roots().iter().for_each(|root| last_use[*root as usize] = usize::MAX);
        let code = Code {
            broadcast_dims,
            row,
            tile,
            period,
            registers: 0,
            uniforms: vec![],
            uniform_inputs: vec![],
            prologue: vec![],
            hoisted: vec![],
            body: vec![],
            loads: vec![],
            placed: vec![],
            slots: vec![],
            roots: vec![],
            cost: 0,
        };
        Compiler { expr, dims, sources, sinks, code, values: vec![], last_use, free: vec![] }
    }

    fn compile(mut self) -> Result<Code, String> {
        let terms = self.expr.terms();
        for (id, term) in terms.iter().enumerate() {
            let value = match *term {
                Term::Const(bits) => self.uniform(f32::from_bits(bits)),
                Term::Input(i) => self.input(i)?,
                Term::Random(stream) => self.fetch(Load::Random { stream }, 40),
                Term::Coordinate(axis) => self.coordinate(axis as usize),
                Term::Unary(op, a) => self.compute(id, Op::Unary(op), &[a]),
                Term::Binary(op, a, b) => self.compute(id, Op::Binary(op), &[a, b]),
                Term::Select(c, a, b) => self.compute(id, Op::Select, &[c, a, b]),
            };
            self.values.push(value);
        }
        self.code.roots = self.expr.roots().iter().map(|root| self.values[*root as usize]).collect();
        self.finish()?;
        Ok(self.code)
    }

    fn uniform(&mut self, value: f32) -> Operand {
        self.code.uniforms.push(value);
        Operand { place: Place::Uniform((self.code.uniforms.len() - 1) as u16), single: true }
    }

    fn input(&mut self, i: u16) -> Result<Operand, String> {
        let strides = &self.code.broadcast_dims.strides[i as usize];
        let dtype = self.sources[i as usize].dtype;
        // An input that an output overwrites may be produced after the run has started (by the product whose epilogue
        // this is), so it is never hoisted.
        let written_over = self.sinks.iter().any(|sink| sink.over.contains(&(i as usize)));
        if strides.iter().all(|stride| *stride == 0) && !written_over {
            let value = self.uniform(0.0);
            let Place::Uniform(place) = value.place else { unreachable!("just made") };
            self.code.uniform_inputs.push((i, dtype, place));
            return Ok(value);
        }
        let single = strides.last() == Some(&0);
        let whole = self.code.row == self.code.broadcast_dims.dims.last().copied().unwrap_or(1);
        // A run of one element is read by strides.
        let steps = strides.last().is_some_and(|stride| *stride > 1);
        if !steps && (whole || self.is_contiguous(i)) {
            if self.code.slots.len() == SLOTS {
                return Err(format!("an expression reads more than {SLOTS} tensors"));
            }
            self.code.slots.push(i);
            let slot = (self.code.slots.len() - 1) as u16;
            self.code.cost += 1;
            return Ok(match dtype {
                DType::F32 => Operand { place: Place::Slot(slot), single },
                _ => Operand { single, ..self.fetch(Load::Convert { slot, dtype, single }, 2) },
            });
        }
        let (dims, strides) = (&self.code.broadcast_dims.dims, strides.clone());
        let outer = dims.len() - 1;
        let own_period: usize = dims.iter().zip(&strides).skip_while(|(_, stride)| **stride == 0).map(|(dim, _)| dim).product();
        let load = Load::Stretched {
            input: i,
            dtype,
            dims: dims[..outer].to_vec(),
            strides: strides[..outer].to_vec(),
            run: dims[outer],
            step: strides[outer],
        };
        if self.code.period.is_multiple_of(own_period) {
            self.code.loads.push(load);
            // Never released: a hoisted load must not be overwritten by a later tile.
            let to = Place::Register(self.new_register());
            let none = Operand { place: to, single: false };
            self.code.hoisted.push(ExprInstruction { op: Op::Load((self.code.loads.len() - 1) as u16), to, operands: [none; 3] });
            return Ok(none);
        }
        Ok(self.fetch(load, 4))
    }

    fn is_contiguous(&self, i: u16) -> bool {
        let broadcast_dims = &self.code.broadcast_dims;
        let mut step = 1;
        broadcast_dims.dims.iter().zip(&broadcast_dims.strides[i as usize]).rev().all(|(dim, stride)| {
            let same = *stride == step;
            step *= dim;
            same
        })
    }

    fn coordinate(&mut self, axis: usize) -> Operand {
        let inner: usize = self.dims[axis + 1..].iter().product();
        match self.dims[axis] {
            1 => self.uniform(0.0),
            extent => self.fetch(Load::Coordinate { inner, extent }, 8),
        }
    }

    fn fetch(&mut self, load: Load, cost: usize) -> Operand {
        self.code.loads.push(load);
        self.code.cost += cost;
        let to = Place::Register(self.register());
        let operand = Operand { place: to, single: false };
        self.code.body.push(ExprInstruction { op: Op::Load((self.code.loads.len() - 1) as u16), to, operands: [operand; 3] });
        operand
    }

    fn compute(&mut self, id: usize, op: Op, terms: &[TermId]) -> Operand {
        let mut operands = [self.values[terms[0] as usize]; 3];
        terms.iter().enumerate().for_each(|(i, term)| operands[i] = self.values[*term as usize]);
        let is_uniform = |operand: &Operand| matches!(operand.place, Place::Uniform(_));
        if operands.iter().all(is_uniform) {
            let to = self.uniform(0.0);
            let operands = operands.map(|operand| Operand { single: false, ..operand });
            self.code.prologue.push(ExprInstruction { op, to: to.place, operands });
            return to;
        }
        self.code.cost += cost(op);
        // The loops require one operand, and a condition, that is not a single value.
        let must_spread = match op {
            Op::Select => operands[0].single,
            Op::Unary(_) => operands[0].single,
            _ => operands[0].single && operands[1].single,
        };
        let spread = must_spread.then(|| {
            let to = Operand { place: Place::Register(self.register()), single: false };
            self.code.body.push(ExprInstruction { op: Op::Copy, to: to.place, operands: [operands[0]; 3] });
            operands[0] = to;
            to
        });
        // Allocated before the operands are released: a result must not alias its operands.
        let to = match self.direct(id) {
            Some(output) => Place::Output(output),
            None => Place::Register(self.register()),
        };
        self.release(id, terms);
        if let Some(Operand { place: Place::Register(register), .. }) = spread {
            self.free.push(register);
        }
        self.code.body.push(ExprInstruction { op, to, operands });
        Operand { place: to, single: false }
    }

    /// The output that a term may be stored to directly: single precision, contiguous or in long runs, overwriting no
    /// input, or only inputs whose last read is earlier.
    fn direct(&self, id: usize) -> Option<u16> {
        let read_before = |input: &usize| {
            let term = self.expr.terms().iter().position(|term| *term == Term::Input(*input as u16));
            term.is_none_or(|term| term < id && (!matches!(self.values[term].place, Place::Slot(_)) || self.last_use[term] < id))
        };
        // A strided output cannot be read back by other terms.
        let last = || !self.expr.terms()[id + 1..].iter().any(|term| term.operands().any(|operand| operand as usize == id));
        let mut results = self.expr.roots().iter().zip(self.sinks).enumerate();
        let found = results.find(|(_, (root, sink))| {
            **root as usize == id
                && sink.dtype == DType::F32
                && sink.runs.is_none_or(|runs| runs.length >= LONG_RUN && last())
                && sink.over.iter().all(read_before)
        });
        found.map(|(output, _)| output as u16)
    }

    /// Stores come last: until then every input that an output overwrites may be read.
    fn finish(&mut self) -> Result<(), String> {
        if self.sinks.len() > SLOTS {
            return Err(format!("an expression has more than {SLOTS} results"));
        }
        if self.sinks.len() > 1 {
            // An earlier store may overwrite the input that a later one only copies.
            for i in 0..self.code.roots.len() {
                if let Operand { place: Place::Slot(_), .. } = self.code.roots[i] {
                    let to = Place::Register(self.new_register());
                    self.code.body.push(ExprInstruction { op: Op::Copy, to, operands: [self.code.roots[i]; 3] });
                    self.code.roots[i] = Operand { place: to, single: false };
                }
            }
        }
        for (i, sink) in self.sinks.iter().enumerate() {
            let (root, to) = (self.code.roots[i], Place::Output(i as u16));
            if let Some(runs) = sink.runs {
                self.code.placed.push(Placed { output: i as u16, dtype: sink.dtype, runs });
            }
            if root.place != to {
                let op = sink.runs.map_or(Op::Store(sink.dtype), |_| Op::Place((self.code.placed.len() - 1) as u16));
                self.code.body.push(ExprInstruction { op, to, operands: [root; 3] });
            }
            self.code.cost += 1;
        }
        Ok(())
    }

    fn register(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| self.new_register())
    }

    fn new_register(&mut self) -> u16 {
        self.code.registers += 1;
        (self.code.registers - 1) as u16
    }

    /// Releases the registers of terms whose last use is here.
    fn release(&mut self, id: usize, terms: &[TermId]) {
        for (i, term) in terms.iter().enumerate() {
            let value = self.values[*term as usize];
            let hoisted = self.code.hoisted.iter().any(|load| load.to == value.place);
            if let Place::Register(register) = value.place
                && self.last_use[*term as usize] == id
                && !terms[..i].contains(term)
                && !hoisted
            {
                self.free.push(register);
            }
        }
    }
}

/// The elements of a tile: whole periods and multiples if they fit, otherwise an even share of the row.
fn tile(row: usize, period: usize, multiple: usize, most: usize) -> usize {
    if row <= most {
        return row;
    }
    let both = if period.is_multiple_of(multiple) { period } else { period * multiple };
    match [both, multiple, period].into_iter().find(|unit| *unit > 1 && *unit <= most) {
        Some(unit) => most / unit * unit,
        None => row.div_ceil(row.div_ceil(most)).next_multiple_of(LANES).min(most),
    }
}

/// The longest period, if any fits in a tile, after which a broadcast input repeats.
fn period(broadcast_dims: &Stretched, most: usize) -> usize {
    let elements: usize = broadcast_dims.dims.iter().product();
    let periods = broadcast_dims.strides.iter().map(|strides| {
        broadcast_dims.dims.iter().zip(strides).skip_while(|(_, stride)| **stride == 0).map(|(dim, _)| dim).product::<usize>()
    });
    periods.filter(|period| *period > 1 && *period < elements && *period <= most / 2).max().unwrap_or(1)
}

fn cost(op: Op) -> usize {
    match op {
        Op::Unary(Unary::Exp | Unary::Log | Unary::Tanh | Unary::Sigmoid | Unary::Erf) => 8,
        Op::Unary(Unary::Softplus) => 14,
        Op::Unary(Unary::Sqrt | Unary::Recip) | Op::Binary(Binary::Div) => 3,
        Op::Binary(Binary::Pow) => 50,
        _ => 1,
    }
}
