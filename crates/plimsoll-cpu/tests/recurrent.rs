//! Recurrent layers against the float64 reference: every cell, type and instruction set, any number of threads, in
//! place and apart.

use plimsoll_core::ops::{Activation, Cell, Recurrent, RecurrentGrad};
use plimsoll_core::random::StepRandom;
use plimsoll_core::{DType, Graph, Op, Shape, TensorType, ValueId, reference};
use plimsoll_cpu::kernels::recurrent::{
    BackwardArgs, ForwardArgs, RecurrentShape, TensorPtr, backward_with, backward_workspace, forward_with, forward_workspace,
};
use plimsoll_cpu::runtime::threads::ThreadPool;
use plimsoll_cpu::simd::Isa;

const CELLS: [Cell; 4] = [Cell::Lstm, Cell::Gru, Cell::Simple(Activation::Tanh), Cell::Simple(Activation::Relu)];

/// A tensor as bytes of its type.
#[derive(Clone, PartialEq)]
struct Tensor {
    dtype: DType,
    bytes: Vec<u8>,
}

impl Tensor {
    fn new(dtype: DType, numbers: &[f64]) -> Tensor {
        let encode = |x: &f64| match dtype {
            DType::F32 => (*x as f32).to_ne_bytes().to_vec(),
            DType::BF16 => (((*x as f32).to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
            // Exact for the few binary digits of what is drawn below.
            DType::F16 if *x == 0.0 => vec![0, 0],
            DType::F16 => {
                let bits = (*x as f32).to_bits();
                let exponent = (bits >> 23 & 0xff) + 15 - 127;
                ((bits >> 16 & 0x8000 | exponent << 10 | bits >> 13 & 0x3ff) as u16).to_ne_bytes().to_vec()
            }
            DType::U8 => vec![*x as u8],
            other => unreachable!("no tensors of {other} here"),
        };
        Tensor { dtype, bytes: numbers.iter().flat_map(encode).collect() }
    }

    fn unset(dtype: DType, count: usize) -> Tensor {
        Tensor { dtype, bytes: vec![0x7f; count * dtype.size()] }
    }

    fn numbers(&self) -> Vec<f64> {
        let half = |bits: u16| {
            let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 0x3ff));
            let size = if exponent == 0 { mantissa * 2f64.powi(-24) } else { (1024.0 + mantissa) * 2f64.powi(exponent - 25) };
            if bits >> 15 == 1 { -size } else { size }
        };
        let decode = |bytes: &[u8]| match (self.dtype, bytes) {
            (DType::F32, &[a, b, c, d]) => f64::from(f32::from_ne_bytes([a, b, c, d])),
            (DType::BF16, &[a, b]) => f64::from(f32::from_bits(u32::from(u16::from_ne_bytes([a, b])) << 16)),
            (DType::F16, &[a, b]) => half(u16::from_ne_bytes([a, b])),
            (DType::U8, &[byte]) => f64::from(byte),
            (other, _) => unreachable!("no tensors of {other} here"),
        };
        self.bytes.chunks_exact(self.dtype.size()).map(decode).collect()
    }

    fn reals(&mut self) -> TensorPtr {
        TensorPtr { ptr: self.bytes.as_mut_ptr(), dtype: self.dtype }
    }

    /// How far results of this type may be off, relative to the largest.
    fn allowed(&self) -> f64 {
        match self.dtype {
            DType::F16 => 1e-3,
            DType::BF16 => 5e-3,
            _ => 2e-5,
        }
    }
}

/// Sixty-fourths between -1 and 1: numbers that every type holds exactly.
fn drawn(count: usize, seed: &mut u64) -> Vec<f64> {
    (0..count)
        .map(|_| {
            *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((*seed >> 40) % 129) as f64 / 64.0 - 1.0
        })
        .collect()
}

/// An op over leaves of the given shapes and what they hold.
struct Setup {
    shape: RecurrentShape,
    op: Op,
    inputs: Vec<Tensor>,
    results: Vec<TensorType>,
    want: Vec<Vec<f64>>,
}

fn setup(op: Op, shape: RecurrentShape, dtype: DType, shapes: &[(Vec<usize>, DType)]) -> Setup {
    let mut seed = 7;
    let mut graph = Graph::new();
    let mut numbers = Vec::new();
    let mut leaves: Vec<ValueId> = Vec::new();
    for (i, (dims, own)) in shapes.iter().enumerate() {
        leaves.push(graph.input(&format!("x{i}"), TensorType::new(*own, Shape::fixed(dims.iter().copied()))));
        let drawn = drawn(dims.iter().product(), &mut seed);
        numbers.push(if *own == DType::U8 { drawn.iter().map(|x| f64::from(*x > -0.4)).collect() } else { drawn });
    }
    let outputs = graph.add(op.clone(), &leaves).unwrap();
    let outcome = reference::run(&graph, 1, &numbers, &[], &[], &StepRandom::default());
    let results: Vec<TensorType> = outputs.iter().map(|output| graph.ty(*output).clone()).collect();
    assert_eq!(results[0].dtype, dtype);
    let inputs = shapes.iter().zip(&numbers).map(|((_, dtype), numbers)| Tensor::new(*dtype, numbers)).collect();
    Setup { shape, op, inputs, results, want: outputs.iter().map(|output| outcome.value(*output).to_vec()).collect() }
}

/// What the kernel makes, with result `in_place.1` written over input `in_place.0` if asked for.
fn run(setup: &Setup, isa: Isa, threads: usize, in_place: Option<(usize, usize)>) -> Vec<Tensor> {
    let pool = ThreadPool::new(threads).unwrap();
    let mut inputs = setup.inputs.clone();
    let mut outputs: Vec<Tensor> = setup.results.iter().map(|ty| Tensor::unset(ty.dtype, ty.shape.elements().bind(1))).collect();
    let given: Vec<TensorPtr> = inputs.iter_mut().map(Tensor::reals).collect();
    let mut made: Vec<TensorPtr> = outputs.iter_mut().map(Tensor::reals).collect();
    if let Some((input, output)) = in_place {
        made[output] = given[input];
    }
    let result = |i: usize| made.get(i).copied();
    match &setup.op {
        Op::Recurrent(op) => {
            let inputs = op.operands(&given).unwrap();
            let args = ForwardArgs { shape: setup.shape, inputs, hidden: made[0], gates: result(1), last: result(2) };
            let mut workspace = vec![f32::NAN; forward_workspace(&setup.shape, threads)];
            // SAFETY: the tensors have the types and extents that the graph found for them.
            unsafe { forward_with(isa, &pool, &args, &mut workspace) };
        }
        Op::RecurrentGrad(op) => {
            let inputs = op.operands(&given).unwrap();
            let gru = op.cell == Cell::Gru;
            let next = 1 + usize::from(gru);
            let d_recurrent = if gru { result(1) } else { None };
            let args =
                BackwardArgs { shape: setup.shape, inputs, d_x: made[0], d_recurrent, d_first: result(next), d_state: result(next + 1) };
            let mut workspace = vec![f32::NAN; backward_workspace(&setup.shape, threads)];
            // SAFETY: as above.
            unsafe { backward_with(isa, &pool, &args, &mut workspace) };
        }
        _ => unreachable!("only recurrent layers are tested here"),
    }
    if let Some((input, output)) = in_place {
        outputs[output] = inputs.swap_remove(input);
    }
    outputs
}

/// Every instruction set is close enough to the reference, and gives the same bits at any number of threads and in
/// place.
fn check(setup: &Setup, in_place: (usize, usize)) {
    for isa in Isa::available() {
        let first = run(setup, isa, 1, None);
        for (i, (got, want)) in first.iter().zip(&setup.want).enumerate() {
            let largest = want.iter().fold(1.0, |largest: f64, x| largest.max(x.abs()));
            for (at, (got, want)) in got.numbers().iter().zip(want).enumerate() {
                let error = (got - want).abs() / largest;
                assert!(error <= first[i].allowed(), "{:?} {isa:?}: result {i} at {at} is {got}, not {want}", setup.op);
            }
        }
        assert!(run(setup, isa, 3, None) == first, "{:?} {isa:?} on three threads", setup.op);
        assert!(run(setup, isa, 2, Some(in_place)) == first, "{:?} {isa:?} in place", setup.op);
    }
}

fn each_setting(mut visit: impl FnMut(RecurrentShape, DType, bool, bool)) {
    for cell in CELLS {
        for (dtype, batch, steps, units) in
            [(DType::F32, 21, 9, 33), (DType::F32, 1, 1, 3), (DType::BF16, 5, 4, 20), (DType::F16, 9, 3, 17)]
        {
            for (reverse, masked, initial) in [(false, false, false), (true, true, true)] {
                visit(RecurrentShape { cell, batch, steps, units, reverse }, dtype, masked, initial);
            }
        }
    }
}

#[test]
fn walks_match_the_reference() {
    each_setting(|shape, dtype, masked, initial| {
        let RecurrentShape { cell, batch, steps, units, reverse } = shape;
        let wide = cell.gates() * units;
        let mut shapes = vec![(vec![batch, steps, wide], dtype), (vec![units, wide], dtype)];
        shapes.extend((cell == Cell::Gru).then(|| (vec![wide], DType::F32)));
        shapes.extend(masked.then(|| (vec![batch, steps], DType::U8)));
        let states = if initial { 1 + usize::from(cell == Cell::Lstm) } else { 0 };
        shapes.extend(std::iter::repeat_n((vec![batch, units], dtype), states));
        let op = Op::Recurrent(Recurrent { cell, units, reverse, masked, initial });
        let over = usize::from(!matches!(cell, Cell::Simple(_)));
        check(&setup(op, shape, dtype, &shapes), (0, over));
    });
}

#[test]
fn walks_back_match_the_reference() {
    each_setting(|shape, dtype, masked, initial| {
        let RecurrentShape { cell, batch, steps, units, reverse } = shape;
        let wide = cell.gates() * units;
        let simple = matches!(cell, Cell::Simple(_));
        let mut shapes = vec![(vec![units, wide], dtype)];
        shapes.extend((cell == Cell::Gru).then(|| (vec![wide], DType::F32)));
        let kept = shapes.len();
        shapes.extend((!simple).then(|| (vec![batch, steps, wide], dtype)));
        shapes.extend((cell != Cell::Lstm).then(|| (vec![batch, steps, units], dtype)));
        shapes.extend(masked.then(|| (vec![batch, steps], DType::U8)));
        shapes.extend((initial && !simple).then(|| (vec![batch, units], DType::F32)));
        shapes.push((vec![batch, steps, units], dtype));
        let last_state = cell == Cell::Lstm && initial;
        shapes.extend(last_state.then(|| (vec![batch, units], dtype)));
        let op = Op::RecurrentGrad(RecurrentGrad { cell, units, reverse, masked, initial, last_state });
        check(&setup(op, shape, dtype, &shapes), (kept, 0));
    });
}

#[test]
fn workspaces_never_shrink_with_the_batch() {
    for cell in CELLS {
        for units in [3, 64, 400] {
            for measure in [forward_workspace, backward_workspace] {
                let shape = RecurrentShape { cell, batch: 0, steps: 5, units, reverse: false };
                let lens: Vec<usize> = (0..200).map(|batch| measure(&RecurrentShape { batch, ..shape }, 4)).collect();
                assert!(lens.is_sorted(), "{shape:?}");
            }
        }
    }
}
