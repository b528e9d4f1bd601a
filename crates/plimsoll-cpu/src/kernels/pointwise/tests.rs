//! Compares kernels with the expression's own evaluation in double precision.

use super::*;
use broadcast::{collapse, offset};
use plimsoll_core::expr::{Binary, Element as Position, ExprBuilder, TermId, Unary};
use proptest::prelude::*;

const DTYPES: [DType; 8] = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8, DType::Bool];
const UNARY: [Unary; 12] = [
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Floor,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Recip,
    Unary::Tanh,
    Unary::Sigmoid,
    Unary::Softplus,
    Unary::Erf,
];
const BINARY: [Binary; 10] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Max,
    Binary::Min,
    Binary::Pow,
    Binary::Less,
    Binary::LessEq,
    Binary::Equal,
];

/// A tensor in memory.
#[derive(Clone, Debug)]
struct Tensor {
    dims: Vec<usize>,
    dtype: DType,
    bytes: Vec<u8>,
}

impl Tensor {
    fn new(dims: &[usize], dtype: DType, number: impl Fn(usize) -> f32) -> Tensor {
        let count: usize = dims.iter().product();
        let mut bytes = vec![0; count * dtype.size()];
        for i in 0..count {
            // SAFETY: element `i` is inside of the bytes.
            with_element!(dtype, E => unsafe { bytes.as_mut_ptr().cast::<E>().add(i).write_unaligned(E::store(number(i))) });
        }
        Tensor { dims: dims.to_vec(), dtype, bytes }
    }

    fn number(&self, i: usize) -> f32 {
        assert!((i + 1) * self.dtype.size() <= self.bytes.len());
        // SAFETY: just checked.
        with_element!(self.dtype, E => unsafe { self.bytes.as_ptr().cast::<E>().add(i).read_unaligned() }.load())
    }
}

/// Runs an expression; an output overwrites the input given beside its type, if any.
fn run(
    isa: Isa,
    pool: &ThreadPool,
    expr: &Expr,
    dims: &[usize],
    inputs: &[Tensor],
    results: &[(DType, Option<usize>)],
    random: StepRandom,
) -> Vec<Tensor> {
    let mut inputs = inputs.to_vec();
    let mut outputs: Vec<Tensor> = results.iter().map(|(dtype, _)| Tensor::new(dims, *dtype, |_| 99.0)).collect();
    let shapes: Vec<(Vec<usize>, DType)> = inputs.iter().map(|tensor| (tensor.dims.clone(), tensor.dtype)).collect();
    let sources: Vec<InputSpec<'_>> = shapes.iter().map(|(dims, dtype)| InputSpec { dims, dtype: *dtype, pitch: None }).collect();
    let sinks: Vec<OutputSpec<'_>> =
        results.iter().map(|(dtype, over)| OutputSpec { dtype: *dtype, over: over.as_slice(), runs: None }).collect();
    let mut kernel = Kernel::with(isa, expr, dims, &sources, &sinks, 1).unwrap();
    inputs.iter().enumerate().for_each(|(i, tensor)| kernel.set_input(i, tensor.bytes.as_ptr()));
    for (i, (_, over)) in results.iter().enumerate() {
        let address = match over {
            Some(input) => {
                let address = inputs[*input].bytes.as_mut_ptr();
                kernel.set_input(*input, address);
                address
            }
            None => outputs[i].bytes.as_mut_ptr(),
        };
        kernel.set_output(i, address);
    }
    // SAFETY: all addresses are those of tensors of the right size, and alias as stated.
    unsafe {
        kernel.prepare(random, 0);
        kernel.run(pool);
    }
    for (output, (_, over)) in outputs.iter_mut().zip(results) {
        if let Some(input) = over {
            output.bytes.clone_from(&inputs[*input].bytes);
        }
    }
    outputs
}

/// An expression over `inputs` inputs, built from a list of choices.
fn expression(choices: &[(u8, u8, u8, u8)], inputs: usize, rank: usize, results: usize) -> Expr {
    Expr::build_many(|e: &ExprBuilder| {
        let mut terms: Vec<TermId> = (0..inputs as u16).map(|i| e.input(i)).collect();
        terms.push(e.constant(0.75));
        for (kind, a, b, c) in choices {
            let at = |i: &u8| terms[*i as usize % terms.len()];
            terms.push(match kind % 16 {
                0 => e.constant(f32::from(*a) / 16.0 - 4.0),
                1 => e.random(u32::from(*a)),
                2 if rank > 0 => e.coordinate(*a % rank as u8),
                3 => e.select(at(a), at(b), at(c)),
                4..8 => e.unary(UNARY[*a as usize % UNARY.len()], at(b)),
                _ => e.binary(BINARY[*a as usize % BINARY.len()], at(b), at(c)),
            });
        }
        (0..results).map(|i| terms[terms.len() - 1 - i % terms.len()]).collect()
    })
}

/// Whether a single-precision result matches a double-precision evaluation within the error of single-precision
/// arithmetic: the evaluation is repeated on inputs perturbed by a rounding error, and results may differ by that much.
fn agrees(ours: f32, truth: f64, nudged: f64) -> bool {
    if truth.is_nan() || ours.is_nan() {
        return truth.is_nan() && ours.is_nan();
    }
    let slack = 2e-5 * truth.abs() + 64.0 * (truth - nudged).abs() + 1e-5;
    (f64::from(ours) - truth).abs() <= slack || truth.abs() > 1e30 || f64::from(ours).abs() > 1e30
}

/// The expression's terms computed in single precision, with a rounding after every function.
fn single(expr: &Expr, inputs: &[f32], position: &Position<'_>) -> Vec<f32> {
    use plimsoll_core::expr::Term;
    let mut values: Vec<f32> = vec![];
    for term in expr.terms() {
        let at = |id: TermId| values[id as usize];
        let value = match *term {
            Term::Input(i) => inputs[i as usize],
            Term::Const(bits) => f32::from_bits(bits),
            Term::Random(stream) => position.random.uniform(stream, position.index),
            Term::Coordinate(axis) => position.coordinates[axis as usize] as f32,
            Term::Unary(op, a) => op.evaluate(f64::from(at(a))) as f32,
            Term::Binary(op, a, b) => op.evaluate(f64::from(at(a)), f64::from(at(b))) as f32,
            Term::Select(c, a, b) => at(if at(c) != 0.0 { a } else { b }),
        };
        values.push(value);
    }
    expr.roots().iter().map(|root| values[*root as usize]).collect()
}

/// The index in a broadcast tensor for element `i` of the shape.
fn source_index(dims: &[usize], own: &[usize], i: usize) -> usize {
    let broadcast_dims = collapse(dims, &vec![false; dims.len()], &[(own, None)]);
    offset(&broadcast_dims.dims, &broadcast_dims.strides[0], i)
}

fn coordinates(dims: &[usize], mut i: usize) -> Vec<usize> {
    let mut coordinates = vec![0; dims.len()];
    for axis in (0..dims.len()).rev() {
        coordinates[axis] = i % dims[axis];
        i /= dims[axis];
    }
    coordinates
}

fn shapes() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![
        Just(vec![]),
        Just(vec![32, 10]),
        Just(vec![7, 300]),
        Just(vec![3, 1, 700]),
        Just(vec![1010]),
        Just(vec![5, 3, 4, 16]),
        Just(vec![2, 600, 3]),
        prop::collection::vec(1usize..9, 1..4),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Discontinuous functions (floor, comparisons, …) amplify a rounding error to a whole step, so results may also
    /// equal term-by-term single-precision arithmetic.
    #[test]
    fn kernels_compute_what_the_expression_says(
        dims in shapes(),
        stretches in prop::collection::vec((any::<u8>(), 0usize..7, any::<bool>()), 1..5),
        choices in prop::collection::vec(any::<(u8, u8, u8, u8)>(), 0..12),
        results in 1usize..4,
        over in any::<[bool; 3]>(),
        seed: u64,
    ) {
        let inputs: Vec<Tensor> = stretches.iter().enumerate().map(|(k, (mask, dtype, shorter))| {
            let own: Vec<usize> = dims.iter().enumerate().map(|(axis, dim)| if mask >> axis & 1 == 1 { 1 } else { *dim }).collect();
            let skip = own.iter().take_while(|dim| **dim == 1).count();
            let own = if *shorter { &own[skip..] } else { &own[..] };
            Tensor::new(own, DTYPES[*dtype], |i| ((i * 37 + k * 11) % 61) as f32 / 7.0 - 2.0)
        }).collect();
        let expr = expression(&choices, inputs.len(), dims.len(), results);
        let count: usize = dims.iter().product();
        let random = StepRandom { seed, step: 3, first_row: 0 };
        // An output may overwrite an input of the same size that no other output overwrites.
        let mut taken = vec![];
        let in_place: Vec<Option<usize>> = (0..results).map(|k| {
            let found = (0..inputs.len()).find(|i| over[k] && inputs[*i].bytes.len() == count * 4 && inputs[*i].dtype.size() == 4 && !taken.contains(i));
            taken.extend(found);
            found
        }).collect();
        let dtypes: Vec<DType> = (0..results).map(|k| if k == 1 { DType::I32 } else { DType::F32 }).collect();
        let outputs: Vec<(DType, Option<usize>)> = dtypes.iter().copied().zip(in_place).collect();

        let mut first: Option<Vec<Tensor>> = None;
        for isa in Isa::available() {
            let outputs = run(isa, &ThreadPool::new(1).unwrap(), &expr, &dims, &inputs, &outputs, random);
            for i in 0..count {
                let numbers: Vec<f32> = inputs.iter().map(|tensor| tensor.number(source_index(&dims, &tensor.dims, i))).collect();
                let position = Position { random: &random, index: i as u64, coordinates: &coordinates(&dims, i) };
                let wide: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
                let nudged: Vec<f64> = wide.iter().map(|x| x * (1.0 + 1e-7)).collect();
                let truth = expr.evaluate(&wide, &position);
                let nudged = expr.evaluate(&nudged, &position);
                let stepwise = single(&expr, &numbers, &position);
                for (k, output) in outputs.iter().enumerate() {
                    let ours = output.number(i);
                    let cut = |x: f64| if dtypes[k] == DType::I32 { f64::from(i32::store(x as f32) as f32) } else { x };
                    let fine = agrees(ours, cut(truth[k]), cut(nudged[k]))
                        || agrees(ours, cut(f64::from(stepwise[k])), cut(f64::from(stepwise[k])))
                        || (dtypes[k] == DType::I32 && (f64::from(ours) - truth[k]).abs() <= 1.0 + 1e-4 * truth[k].abs());
                    prop_assert!(fine, "{expr} over {dims:?}, element {i}: {} is not {} ({isa:?})", ours, truth[k]);
                }
            }
            first.get_or_insert(outputs);
        }

        // Results are bit-identical for any split of the work.
        let first = first.expect("there is always an instruction set");
        for threads in [2, 3] {
            let outputs = run(Isa::best(), &ThreadPool::new(threads).unwrap(), &expr, &dims, &inputs, &outputs, random);
            for (a, b) in first.iter().zip(&outputs) {
                prop_assert_eq!(&a.bytes, &b.bytes);
            }
        }
    }
}

#[test]
fn large_kernels_give_the_same_bits_on_any_number_of_threads() {
    let dims = [300, 1000];
    let inputs = [Tensor::new(&dims, DType::F32, |i| i as f32 * 1e-4), Tensor::new(&[300, 1], DType::U8, |i| i as f32)];
    let expr = Expr::build(|e| {
        let noisy = e.add(e.unary(Unary::Exp, e.unary(Unary::Neg, e.input(0))), e.random(5));
        e.mul(noisy, e.input(1))
    });
    let random = StepRandom { seed: 1, step: 2, first_row: 0 };
    let runs: Vec<Tensor> = [1, 2, 3]
        .map(|threads| {
            run(Isa::best(), &ThreadPool::new(threads).unwrap(), &expr, &dims, &inputs, &[(DType::F32, Some(0))], random).remove(0)
        })
        .to_vec();
    assert!(runs.iter().all(|run| run.bytes == runs[0].bytes));
    let at = 123_456;
    let expected = ((-(at as f32) * 1e-4).exp() + random.uniform(5, at as u64)) * ((at / 1000) % 256) as f32;
    assert!((runs[0].number(at) - expected).abs() < 1e-4 * expected.abs());
}

/// Matrix products pass their results block by block, from any start.
#[test]
fn blocks_of_a_result_are_finished_like_the_whole() {
    for dims in [[40, 10], [9, 64], [6, 300], [3, 1500], [1, 1]] {
        let inputs = [
            Tensor::new(&dims, DType::F32, |i| (i as f32 * 0.37).sin()),
            Tensor::new(&[dims[1]], DType::F32, |i| i as f32 * 0.01),
            Tensor::new(&[dims[0], 1], DType::BF16, |i| 0.5 + i as f32),
        ];
        let expr = Expr::build(|e| {
            let biased = e.add(e.input(0), e.input(1));
            e.mul(e.unary(Unary::Tanh, biased), e.input(2))
        });
        let whole = run(Isa::best(), &ThreadPool::new(1).unwrap(), &expr, &dims, &inputs, &[(DType::F32, Some(0))], StepRandom::default())
            .remove(0);
        for cut in [1, 7, 10, 64, 333, 1024] {
            let mut result = inputs[0].clone();
            let sources: Vec<InputSpec<'_>> =
                inputs.iter().map(|tensor| InputSpec { dims: &tensor.dims, dtype: tensor.dtype, pitch: None }).collect();
            let mut kernel = Kernel::new(&expr, &dims, &sources, &[OutputSpec { dtype: DType::F32, over: &[0], runs: None }]).unwrap();
            inputs.iter().enumerate().skip(1).for_each(|(i, tensor)| kernel.set_input(i, tensor.bytes.as_ptr()));
            let address = result.bytes.as_mut_ptr();
            kernel.set_input(0, address);
            kernel.set_output(0, address);
            let count = dims[0] * dims[1];
            // SAFETY: all addresses are those of tensors of the right size, and alias as stated.
            unsafe {
                kernel.prepare(StepRandom::default(), 0);
                (0..count).step_by(cut).for_each(|start| kernel.range(start, count.min(start + cut), |_| {}));
            }
            assert_eq!(result.bytes, whole.bytes, "{dims:?} in blocks of {cut}");
        }
    }
}

/// A strided output equals the contiguous one, and elements between runs are not touched: runs of any length, in every
/// type, on every instruction set.
#[test]
fn a_result_in_runs_is_the_same_and_leaves_what_lies_between() {
    let expr = Expr::build(|e| e.binary(Binary::Max, e.add(e.mul(e.input(0), e.input(1)), e.coordinate(1)), e.constant(0.0)));
    for (rows, length) in [(1, 5), (40, 1), (37, 3), (300, 17), (9, 63), (33, 64), (7, 300), (3, 1000)] {
        for dtype in [DType::F32, DType::BF16, DType::F16, DType::I32] {
            let dims = [rows, length];
            let inputs =
                [Tensor::new(&dims, DType::F32, |i| (i as f32 * 0.37).sin()), Tensor::new(&[length], DType::F32, |i| i as f32 * 0.01)];
            for isa in [Isa::Portable, Isa::best()] {
                let wanted =
                    run(isa, &ThreadPool::new(1).unwrap(), &expr, &dims, &inputs, &[(dtype, None)], StepRandom::default()).remove(0);
                let (before, pitch, size) = (2, length + 5, dtype.size());
                let sources: Vec<InputSpec<'_>> =
                    inputs.iter().map(|tensor| InputSpec { dims: &tensor.dims, dtype: tensor.dtype, pitch: None }).collect();
                let sink = OutputSpec { dtype, over: &[], runs: Some(PitchedRows { length, pitch }) };
                let mut kernel = Kernel::with(isa, &expr, &dims, &sources, &[sink], 1).unwrap();
                let mut whole = vec![0xA5u8; rows * pitch * size];
                inputs.iter().enumerate().for_each(|(i, tensor)| kernel.set_input(i, tensor.bytes.as_ptr()));
                kernel.set_output(0, whole[before * size..].as_mut_ptr());
                // SAFETY: all addresses are those of tensors of the right size, and the runs are inside of the larger
                // tensor.
                unsafe {
                    kernel.prepare(StepRandom::default(), 0);
                    kernel.run(&ThreadPool::new(2).unwrap());
                }
                for (row, own) in whole.chunks_exact(pitch * size).zip(wanted.bytes.chunks_exact(length * size)) {
                    let (between, rest) = row.split_at(before * size);
                    let (made, behind) = rest.split_at(length * size);
                    assert_eq!(made, own, "{rows} runs of {length} {dtype}, {isa:?}");
                    assert!(between.iter().chain(behind).all(|byte| *byte == 0xA5), "{rows} runs of {length} {dtype}, {isa:?}");
                }
            }
        }
    }
}

#[test]
fn a_broken_number_stays_broken() {
    let x = Tensor::new(&[3], DType::F32, |i| [f32::NAN, 1.0, -1.0][i]);
    for op in [Binary::Max, Binary::Min] {
        let expr = Expr::build_many(|e| vec![e.binary(op, e.input(0), e.constant(0.0)), e.binary(op, e.constant(0.0), e.input(0))]);
        let outputs = run(
            Isa::best(),
            &ThreadPool::new(1).unwrap(),
            &expr,
            &[3],
            std::slice::from_ref(&x),
            &[(DType::F32, None); 2],
            StepRandom::default(),
        );
        assert!(outputs[0].number(0).is_nan() && outputs[1].number(0).is_nan());
        assert_eq!((outputs[0].number(1), outputs[1].number(2)), if op == Binary::Max { (1.0, 0.0) } else { (0.0, -1.0) });
    }
}

#[test]
fn too_many_inputs_are_an_error_and_not_a_crash() {
    let expr = Expr::build(|e| (1..100).fold(e.input(0), |sum, i| e.add(sum, e.input(i))));
    let sources = vec![InputSpec { dims: &[4], dtype: DType::F32, pitch: None }; 100];
    let error = Kernel::new(&expr, &[4], &sources, &[OutputSpec { dtype: DType::F32, over: &[], runs: None }]).err();
    assert_eq!(error.as_deref(), Some("an expression reads more than 64 tensors"));
}
