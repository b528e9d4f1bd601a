//! Convolution and its gradients against double-precision loops: every instruction set, any number of threads.

use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_core::DType;
use plimsoll_cpu::kernels::conv::{
    ConvOutput, ConvShape, HalfOperands, forward_with, forward_workspace, grad_filter_with, grad_filter_workspace, grad_input_with,
    grad_input_workspace,
};
use plimsoll_cpu::kernels::gemm::{OutputBlock, WriteMode};
use plimsoll_cpu::runtime::threads::ThreadPool;
use plimsoll_cpu::simd::Isa;
use plimsoll_cpu::simd::float_view::FloatView;
use proptest::prelude::*;

/// Values in [-1, 1) from a counter: the same on every run.
fn noise(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Visits every multiply-add: indices into input, filter and output.
fn for_each_product(s: &ConvShape, mut visit: impl FnMut(usize, usize, usize)) {
    let (group_in, group_out) = (s.in_c / s.groups, s.out_c / s.groups);
    for n in 0..s.batch {
        for (oy, ox) in (0..s.out_h).flat_map(|y| (0..s.out_w).map(move |x| (y, x))) {
            for (ky, kx) in (0..s.k_h).flat_map(|y| (0..s.k_w).map(move |x| (y, x))) {
                let iy = (oy * s.stride.0 + ky * s.dilation.0) as isize - s.pad.0 as isize;
                let ix = (ox * s.stride.1 + kx * s.dilation.1) as isize - s.pad.1 as isize;
                if iy < 0 || ix < 0 || iy as usize >= s.in_h || ix as usize >= s.in_w {
                    continue;
                }
                for (o, i) in (0..s.out_c).flat_map(|o| (0..group_in).map(move |i| (o, i))) {
                    visit(
                        ((n * s.in_h + iy as usize) * s.in_w + ix as usize) * s.in_c + o / group_out * group_in + i,
                        ((ky * s.k_w + kx) * group_in + i) * s.out_c + o,
                        ((n * s.out_h + oy) * s.out_w + ox) * s.out_c + o,
                    );
                }
            }
        }
    }
}

/// A double-precision result and the sum of the magnitudes that went into it.
type Reference = Vec<(f64, f64)>;

fn add(to: &mut (f64, f64), a: f32, b: f32) {
    let product = f64::from(a) * f64::from(b);
    to.0 += product;
    to.1 += product.abs();
}

fn compare(what: &str, isa: Isa, shape: &ConvShape, got: &[f32], expected: &Reference) {
    for (at, (got, (sum, scale))) in got.iter().zip(expected).enumerate() {
        assert!((f64::from(*got) - sum).abs() <= 1e-5 * scale + 1e-30, "{what} {isa:?} {shape:?} at {at}: {got} for {sum}");
    }
}

/// PitchedRows a pass on pools of one, two and three threads; the results must agree to the bit.
fn at_any_thread_count(what: &str, mut pass: impl FnMut(&ThreadPool) -> Vec<f32>) -> Vec<f32> {
    let first = pass(&ThreadPool::new(1).unwrap());
    for threads in [2, 3] {
        let again = pass(&ThreadPool::new(threads).unwrap());
        assert!(first.iter().zip(&again).all(|(a, b)| a.to_bits() == b.to_bits()), "{what} on {threads} threads");
    }
    first
}

fn check(shape: ConvShape) {
    let s = &shape;
    // Numbers that two bytes hold, so that the same reference serves both.
    let (input, filter, grad_out) = (coarse(s.input_len(), 1), coarse(s.filter_len(), 2), coarse(s.output_len(), 3));
    let before = noise(s.filter_len(), 4);
    let mut output = vec![(0.0, 0.0); s.output_len()];
    let mut grad_in = vec![(0.0, 0.0); s.input_len()];
    let mut grad_filter: Reference = before.iter().map(|&x| (f64::from(x), f64::from(x.abs()))).collect();
    for_each_product(s, |i, f, o| {
        add(&mut output[o], input[i], filter[f]);
        add(&mut grad_in[i], grad_out[o], filter[f]);
        add(&mut grad_filter[f], grad_out[o], input[i]);
    });

    for isa in Isa::available() {
        let got = at_any_thread_count("forward", |pool| {
            let mut output = vec![f32::NAN; s.output_len()];
            let mut workspace = vec![f32::NAN; forward_workspace(s, FLOATS, pool.threads())];
            let visits: Vec<AtomicU32> = output.iter().map(|_| AtomicU32::new(0)).collect();
            let count = |pixels: std::ops::Range<usize>, channels: std::ops::Range<usize>, _: usize| {
                assert_eq!(channels, 0..s.out_c);
                visits[pixels.start * s.out_c..pixels.end * s.out_c].iter().for_each(|v| {
                    v.fetch_add(1, Ordering::Relaxed);
                });
            };
            let target = ConvOutput::Floats(&mut output, Some(&count));
            forward_with(isa, pool, s, input[..].into(), filter[..].into(), target, &mut workspace);
            assert!(visits.iter().all(|v| v.load(Ordering::Relaxed) == 1), "{s:?}: each element finished once");
            output
        });
        compare("forward", isa, s, &got, &output);

        let got = at_any_thread_count("grad_input", |pool| {
            let mut grad_in = vec![f32::NAN; s.input_len()];
            let mut workspace = vec![f32::NAN; grad_input_workspace(s, FLOATS, pool.threads())];
            let target = ConvOutput::Floats(&mut grad_in, None);
            grad_input_with(isa, pool, s, grad_out[..].into(), filter[..].into(), target, &mut workspace);
            grad_in
        });
        compare("grad_input", isa, s, &got, &grad_in);

        let got = at_any_thread_count("grad_filter", |pool| {
            let mut grad = before.clone();
            let mut workspace = vec![f32::NAN; grad_filter_workspace(s, WriteMode::Add, pool.threads())];
            grad_filter_with(isa, pool, s, WriteMode::Add, input[..].into(), grad_out[..].into(), &mut grad, &mut workspace);
            grad
        });
        compare("grad_filter", isa, s, &got, &grad_filter);

        let mut set = vec![f32::NAN; s.filter_len()];
        let mut workspace = vec![f32::NAN; grad_filter_workspace(s, WriteMode::Set, 1)];
        grad_filter_with(
            isa,
            &ThreadPool::new(1).unwrap(),
            s,
            WriteMode::Set,
            input[..].into(),
            grad_out[..].into(),
            &mut set,
            &mut workspace,
        );
        let fresh = grad_filter.iter().zip(&before).map(|(&(sum, scale), &b)| (sum - f64::from(b), scale)).collect();
        compare("grad_filter set", isa, s, &set, &fresh);
        check_halves(isa, s, [&input, &filter, &grad_out], [&output, &grad_in, &fresh]);
    }
}

/// All three passes over operands in two bytes, and results taken in blocks.
fn check_halves(isa: Isa, s: &ConvShape, [input, filter, grad_out]: [&[f32]; 3], [output, grad_in, grad_filter]: [&Reference; 3]) {
    let (input, narrow_filter, grad_out) = (bits(input), bits(filter), bits(grad_out));
    let [input, narrow_filter, grad_out] = [&input, &narrow_filter, &grad_out].map(|bits| FloatView::of_bits(bits, DType::BF16));
    for (filter, blocks) in [(FloatView::from(filter), true), (narrow_filter, false), (narrow_filter, true)] {
        let halves = HalfOperands { input: true, filter: filter.is_half(), output: blocks };
        let pass = |len: usize, columns: usize, run: &dyn Fn(ConvOutput<'_>)| {
            let mut floats = vec![f32::NAN; len];
            if !blocks {
                run(ConvOutput::Floats(&mut floats, None));
                return floats;
            }
            let taken: Vec<AtomicU32> = floats.iter().map(|x| AtomicU32::new(x.to_bits())).collect();
            run(ConvOutput::Blocks(&|block: &OutputBlock| {
                for row in block.rows.clone() {
                    for (value, taken) in block.row(row).iter().zip(&taken[row * columns + block.columns.start..]) {
                        assert!(f32::from_bits(taken.swap(value.to_bits(), Ordering::Relaxed)).is_nan(), "{s:?}: each element taken once");
                    }
                }
            }));
            taken.iter().map(|bits| f32::from_bits(bits.load(Ordering::Relaxed))).collect()
        };
        let got = at_any_thread_count("forward in halves", |pool| {
            pass(s.output_len(), s.out_c, &|target| {
                let mut workspace = vec![f32::NAN; forward_workspace(s, halves, pool.threads())];
                forward_with(isa, pool, s, input, filter, target, &mut workspace);
            })
        });
        compare("forward in halves", isa, s, &got, output);
        let got = at_any_thread_count("grad_input in halves", |pool| {
            pass(s.input_len(), s.in_c, &|target| {
                let mut workspace = vec![f32::NAN; grad_input_workspace(s, halves, pool.threads())];
                grad_input_with(isa, pool, s, grad_out, filter, target, &mut workspace);
            })
        });
        compare("grad_input in halves", isa, s, &got, grad_in);
    }
    let got = at_any_thread_count("grad_filter in halves", |pool| {
        let mut grad = vec![f32::NAN; s.filter_len()];
        let mut workspace = vec![f32::NAN; grad_filter_workspace(s, WriteMode::Set, pool.threads())];
        grad_filter_with(isa, pool, s, WriteMode::Set, input, grad_out, &mut grad, &mut workspace);
        grad
    });
    compare("grad_filter in halves", isa, s, &got, grad_filter);
}

const FLOATS: HalfOperands = HalfOperands { input: false, filter: false, output: false };
const HALVES: HalfOperands = HalfOperands { input: true, filter: true, output: true };

/// Noise that bf16 holds exactly.
fn coarse(len: usize, seed: u64) -> Vec<f32> {
    noise(len, seed).into_iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
}

fn bits(floats: &[f32]) -> Vec<u16> {
    floats.iter().map(|x| (x.to_bits() >> 16) as u16).collect()
}

/// The output extent for padding on both sides; `None` when the filter does not fit.
fn extent(input: usize, before: usize, after: usize, k: usize, dilation: usize, stride: usize) -> Option<usize> {
    (input + before + after).checked_sub((k - 1) * dilation + 1).map(|room| room / stride + 1)
}

fn shape() -> impl Strategy<Value = ConvShape> {
    let pair = |range: std::ops::Range<usize>| (range.clone(), range);
    let channels = prop_oneof![(Just(1usize), 1usize..20, 1usize..60), (2usize..4, 1usize..9, 1usize..9), (1usize..40, Just(1), 1usize..4)];
    ((0usize..4, pair(1..13)), channels, pair(1..4), pair(1..4), pair(0..3), pair(0..3), pair(1..3)).prop_filter_map(
        "the filter fits",
        |((batch, (in_h, in_w)), (groups, group_in, group_out), k, stride, pad, after, dilation)| {
            let out_h = extent(in_h, pad.0, after.0, k.0, dilation.0, stride.0)?;
            let out_w = extent(in_w, pad.1, after.1, k.1, dilation.1, stride.1)?;
            let (in_c, out_c) = (groups * group_in, groups * group_out);
            Some(ConvShape { batch, in_h, in_w, in_c, out_h, out_w, out_c, k_h: k.0, k_w: k.1, stride, pad, dilation, groups })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_shape(shape in shape()) { check(shape) }
}

fn square((batch, side): (usize, usize), (in_c, out_c): (usize, usize), [k, stride, pad]: [usize; 3], groups: usize) -> ConvShape {
    let out = (side + 2 * pad - k) / stride + 1;
    ConvShape {
        batch,
        in_h: side,
        in_w: side,
        in_c,
        out_h: out,
        out_w: out,
        out_c,
        k_h: k,
        k_w: k,
        stride: (stride, stride),
        pad: (pad, pad),
        dilation: (1, 1),
        groups,
    }
}

#[test]
fn shapes_from_models() {
    for shape in [
        square((3, 30), (1, 32), [3, 1, 0], 1),
        square((3, 28), (1, 32), [3, 1, 1], 1),
        square((2, 20), (3, 64), [7, 2, 3], 1),
        square((3, 7), (300, 70), [3, 1, 1], 1),
        square((2, 12), (24, 64), [1, 1, 0], 1),
        square((2, 12), (24, 64), [1, 2, 0], 1),
        square((4, 16), (48, 48), [3, 2, 1], 48),
        square((2, 15), (40, 40), [5, 1, 2], 40),
        square((2, 13), (37, 74), [5, 2, 2], 37),
        square((1, 11), (3, 3), [7, 1, 3], 3),
        square((2, 9), (64, 96), [3, 1, 1], 2),
    ] {
        check(shape);
    }
}

#[test]
fn workspace_never_shrinks_with_the_batch() {
    for shape in [
        square((1, 30), (1, 32), [3, 1, 0], 1),
        square((1, 14), (64, 64), [3, 1, 1], 1),
        square((1, 14), (64, 64), [1, 1, 0], 1),
        square((1, 14), (32, 32), [3, 1, 1], 32),
        square((1, 14), (32, 64), [3, 1, 1], 32),
    ] {
        let forward = |shape: &ConvShape, threads| [FLOATS, HALVES].map(|halves| forward_workspace(shape, halves, threads)).iter().sum();
        let input = |shape: &ConvShape, threads| [FLOATS, HALVES].map(|halves| grad_input_workspace(shape, halves, threads)).iter().sum();
        let set = |shape: &ConvShape, threads| grad_filter_workspace(shape, WriteMode::Set, threads);
        let add = |shape: &ConvShape, threads| grad_filter_workspace(shape, WriteMode::Add, threads);
        for measure in [&forward as &dyn Fn(&ConvShape, usize) -> usize, &input, &set, &add] {
            let lens: Vec<usize> = (0..600).map(|batch| measure(&ConvShape { batch, ..shape }, 3)).collect();
            assert!(lens.is_sorted(), "{shape:?}");
        }
    }
}

/// Lengths that wrap around must not pass for those of the operands: the kernels would then write out of bounds.
#[test]
fn extents_that_overflow_are_refused() {
    let shape = square((2, 4), (1, 1), [3, 1, 0], 1);
    let huge = usize::MAX / 2 + 1;
    for shape in [
        ConvShape { batch: huge, ..shape },
        ConvShape { in_c: huge, out_c: huge, ..shape },
        ConvShape { k_h: huge, k_w: 2, ..shape },
        ConvShape { stride: (1, huge), out_w: 3, ..shape },
        ConvShape { pad: (0, usize::MAX), ..shape },
    ] {
        let refused = std::panic::catch_unwind(|| {
            let pool = ThreadPool::new(1).unwrap();
            let (input, filter) = ([0.0f32; 0], [0.0f32; 9]);
            forward_with(Isa::Portable, &pool, &shape, input[..].into(), filter[..].into(), ConvOutput::Floats(&mut [], None), &mut []);
        });
        let message = *refused.unwrap_err().downcast::<String>().unwrap();
        assert!(message.ends_with("exceed the address space"), "{message}");
    }
}

/// Rows with a stride must all lie in the output and not overlap, also if the output has as many elements as the
/// result.
#[test]
fn strides_that_leave_the_output_are_refused() {
    let pool = ThreadPool::new(2).unwrap();
    // 32 pixels of three channels: a convolution, a plain product and a depthwise convolution.
    for shape in [square((2, 4), (3, 3), [3, 1, 1], 1), square((2, 4), (3, 3), [1, 1, 0], 1), square((2, 4), (3, 3), [3, 1, 1], 3)] {
        let (input, filter) = (noise(shape.input_len(), 1), noise(shape.filter_len(), 2));
        let halves = HalfOperands { input: false, filter: false, output: false };
        let accepted = |pitch: usize, len: usize| {
            let workspaces = [forward_workspace(&shape, halves, 2), grad_input_workspace(&shape, halves, 2)];
            let [mut there, mut back] = workspaces.map(|len| vec![0.0; len]);
            let (mut output, mut grad_in) = (vec![7.0; len], vec![7.0; len]);
            let forward = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let target = ConvOutput::Spaced(&mut output, pitch, None);
                forward_with(Isa::best(), &pool, &shape, input[..].into(), filter[..].into(), target, &mut there);
            }));
            let backward = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let target = ConvOutput::Spaced(&mut grad_in, pitch, None);
                grad_input_with(Isa::best(), &pool, &shape, input[..].into(), filter[..].into(), target, &mut back);
            }));
            assert_eq!(forward.is_ok(), backward.is_ok(), "{shape:?}");
            // Elements between rows belong to other tensors.
            let between = |output: &[f32]| output.iter().enumerate().all(|(i, x)| i % pitch.max(1) < 3 || *x == 7.0);
            assert!(forward.is_err() || between(&output) && between(&grad_in), "{shape:?}");
            forward.is_ok()
        };
        assert!(accepted(3, 96) && accepted(5, 31 * 5 + 3) && accepted(5, 32 * 5), "{shape:?}");
        for (pitch, len) in [(5, 96), (5, 31 * 5 + 2), (2, 96), (0, 96), (usize::MAX, 96), (3, 95)] {
            assert!(!accepted(pitch, len), "{shape:?} with rows {pitch} apart in {len}");
        }
    }
}
