//! Compares reductions with a plain loop in double precision.

use super::*;
use plimsoll_core::DType;
use plimsoll_core::expr::Unary;
use proptest::prelude::*;

fn run(pool: &ThreadPool, expr: &Expr, dims: &[usize], axes: &[usize], kind: Reduction, inputs: &[(&[usize], &[f32])]) -> Vec<f32> {
    let sources: Vec<InputSpec<'_>> = inputs.iter().map(|(dims, _)| InputSpec { dims, dtype: DType::F32, pitch: None }).collect();
    // A batch has at most thousands of rows, which are added one after the other.
    let batch = dims.first().is_some_and(|first| *first < 1 << 16);
    let mut reducer = Reducer::new(expr, dims, axes, kind, batch, &sources).unwrap();
    let kept: usize = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).product();
    let mut output = vec![99.0f32; kept];
    let mut workspace = vec![0.0f32; workspace_len(dims, axes, kind, batch)];
    inputs.iter().enumerate().for_each(|(i, (_, numbers))| reducer.set_input(i, numbers.as_ptr().cast()));
    reducer.set_output(output.as_mut_ptr().cast(), workspace.as_mut_ptr());
    // SAFETY: all addresses are those of vectors of the right size.
    unsafe { reducer.run(pool, StepRandom::default(), 0) };
    output
}

/// The groups of numbers that are reduced together, in the order of the results.
fn groups(dims: &[usize], axes: &[usize], numbers: &[f64]) -> Vec<Vec<f64>> {
    let kept: usize = (0..dims.len()).filter(|axis| !axes.contains(axis)).map(|axis| dims[axis]).product();
    let mut groups = vec![vec![]; kept];
    for (i, number) in numbers.iter().enumerate() {
        let (mut rest, mut at, mut step) = (i, 0, 1);
        for axis in (0..dims.len()).rev() {
            if !axes.contains(&axis) {
                at += rest % dims[axis] * step;
                step *= dims[axis];
            }
            rest /= dims[axis];
        }
        groups[at].push(*number);
    }
    groups
}

fn check(pool: &ThreadPool, dims: &[usize], axes: &[usize], kind: Reduction, numbers: &[f32]) {
    let results = run(pool, &Expr::identity(), dims, axes, kind, &[(dims, numbers)]);
    let wide: Vec<f64> = numbers.iter().map(|x| f64::from(*x)).collect();
    for (i, group) in groups(dims, axes, &wide).iter().enumerate() {
        let largest = group.iter().fold(f64::NEG_INFINITY, |a, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(*b) });
        let ours = f64::from(results[i]);
        let context = || format!("{kind:?} along {axes:?} of {dims:?}, result {i}: {ours}");
        match kind {
            Reduction::Sum => {
                let (sum, size) = (group.iter().sum::<f64>(), group.iter().map(|x| x.abs()).sum::<f64>());
                assert!((ours - sum).abs() <= 1e-6 * size + 1e-30, "{} is not {sum}", context());
            }
            Reduction::Max => assert!(ours == largest || (ours.is_nan() && largest.is_nan()), "{} is not {largest}", context()),
            Reduction::LogSumExp => {
                let level = if largest.is_infinite() { 0.0 } else { largest };
                let truth = group.iter().map(|x| (x - level).exp()).sum::<f64>().ln() + level;
                let same = ours == truth || (ours.is_nan() && truth.is_nan()) || (ours - truth).abs() <= 1e-5 + 2e-6 * truth.abs();
                assert!(same, "{} is not {truth}", context());
            }
            Reduction::ArgMax => {
                let first = group.iter().position(|x| *x == largest || x.is_nan()).unwrap_or(0);
                assert_eq!(results[i].to_bits(), first as u32, "{}", context());
            }
        }
    }
}

const KINDS: [Reduction; 4] = [Reduction::Sum, Reduction::Max, Reduction::LogSumExp, Reduction::ArgMax];

#[test]
fn reductions_of_all_layouts_match_a_plain_walk() {
    let cases: [(&[usize], &[usize]); 16] = [
        (&[], &[]),
        (&[7], &[]),
        (&[1], &[0]),
        (&[1000], &[0]),
        (&[32, 10], &[1]),
        (&[32, 10], &[0]),
        (&[32, 10], &[0, 1]),
        (&[5, 300], &[1]),
        (&[5, 3000], &[1]),
        (&[100, 700], &[0]),
        (&[1000, 64], &[0]),
        (&[8, 5, 5, 16], &[0, 1, 2]),
        (&[8, 5, 6, 16], &[1, 2]),
        (&[8, 5, 6, 16], &[0, 2]),
        (&[4, 3, 5], &[0, 2]),
        (&[300, 4, 1030], &[0]),
    ];
    let pool = ThreadPool::new(2).unwrap();
    for (dims, axes) in cases {
        let numbers: Vec<f32> = (0..dims.iter().product()).map(|i: usize| ((i * 7919) % 1009) as f32 / 100.0 - 5.0).collect();
        for kind in KINDS.into_iter().filter(|kind| *kind != Reduction::ArgMax || axes.len() == 1) {
            check(&pool, dims, axes, kind, &numbers);
        }
    }
}

#[test]
fn long_sums_stay_accurate() {
    let pool = ThreadPool::new(2).unwrap();
    let numbers: Vec<f32> = (0..3_000_000).map(|i| 1.0 + (i % 7) as f32 * 0.1).collect();
    check(&pool, &[3_000_000], &[0], Reduction::Sum, &numbers);
    check(&pool, &[1_000_000, 3], &[0], Reduction::Sum, &numbers);
    check(&pool, &[1_000_000, 3], &[0], Reduction::ArgMax, &numbers);
    check(&pool, &[3_000_000], &[0], Reduction::LogSumExp, &numbers);
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    let numbers: Vec<f32> = (0..600_000).map(|i| (i as f32 * 0.37).sin()).collect();
    for (dims, axes) in [(&[600_000][..], &[0][..]), (&[6000, 100], &[0]), (&[6000, 100], &[1]), (&[200, 3000], &[0, 1])] {
        for kind in [Reduction::Sum, Reduction::LogSumExp] {
            let runs: Vec<Vec<u32>> = [1, 2, 3]
                .map(|threads| {
                    let results = run(&ThreadPool::new(threads).unwrap(), &Expr::identity(), dims, axes, kind, &[(dims, &numbers)]);
                    results.iter().map(|x| x.to_bits()).collect()
                })
                .to_vec();
            assert!(runs[0] == runs[1] && runs[1] == runs[2], "{kind:?} of {dims:?}");
        }
    }
}

#[test]
fn infinities_and_broken_numbers_come_through() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let pool = ThreadPool::new(1).unwrap();
    let rows = [[-inf, -inf, -inf], [-inf, 1.0, -inf], [inf, 1.0, -inf], [nan, 1.0, 2.0], [5.0, nan, inf]];
    // Short rows and columns of lanes with the same numbers.
    let flat: Vec<f32> = rows.iter().flatten().copied().collect();
    let turned: Vec<f32> = (0..3).flat_map(|i| rows.iter().map(move |row| row[i])).collect();
    for kind in [Reduction::Max, Reduction::LogSumExp, Reduction::ArgMax] {
        check(&pool, &[5, 3], &[1], kind, &flat);
        check(&pool, &[3, 5], &[0], kind, &turned);
    }
}

#[test]
fn nothing_to_reduce_gives_the_neutral_number() {
    let pool = ThreadPool::new(1).unwrap();
    assert_eq!(run(&pool, &Expr::identity(), &[0, 3], &[0], Reduction::Sum, &[(&[0, 3], &[])]), [0.0; 3]);
    assert_eq!(run(&pool, &Expr::identity(), &[0, 3], &[0], Reduction::Max, &[(&[0, 3], &[])]), [f32::NEG_INFINITY; 3]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The expression may have broadcast inputs.
    #[test]
    fn fused_expressions_are_reduced(dims in prop::collection::vec(1usize..40, 1..4), mask: u8, stretch: u8, which in 0usize..3) {
        let axes: Vec<usize> = (0..dims.len()).filter(|axis| mask >> axis & 1 == 1).collect();
        let own: Vec<usize> = dims.iter().enumerate().map(|(axis, dim)| if stretch >> axis & 1 == 1 { 1 } else { *dim }).collect();
        let full: Vec<f32> = (0..dims.iter().product()).map(|i: usize| ((i * 31) % 97) as f32 / 50.0 - 1.0).collect();
        let part: Vec<f32> = (0..own.iter().product()).map(|i: usize| ((i * 17) % 23) as f32 / 9.0).collect();
        let expr = Expr::build(|e| e.mul(e.unary(Unary::Exp, e.input(0)), e.input(1)));
        let ours = run(&ThreadPool::new(1).unwrap(), &expr, &dims, &axes, KINDS[which], &[(&dims, &full), (&own, &part)]);
        let stretched = collapse(&dims, &vec![false; dims.len()], &[(&own, None)]);
        let numbers: Vec<f64> = full.iter().enumerate().map(|(i, x)| {
            f64::from(*x).exp() * f64::from(part[offset(&stretched.dims, &stretched.strides[0], i)])
        }).collect();
        for (i, group) in groups(&dims, &axes, &numbers).iter().enumerate() {
            let truth = match KINDS[which] {
                Reduction::Sum => group.iter().sum::<f64>(),
                Reduction::Max => group.iter().copied().fold(f64::NEG_INFINITY, f64::max),
                _ => group.iter().map(|x| x.exp()).sum::<f64>().ln(),
            };
            prop_assert!((f64::from(ours[i]) - truth).abs() <= 1e-5 * (1.0 + truth.abs()), "{} is not {truth}", ours[i]);
        }
    }

    /// A sum that stops at any row and resumes is bit-identical to an uninterrupted one, at any number of threads.
    #[test]
    fn sums_resume_at_every_row(
        image in prop::collection::vec(1usize..30, 1..4), kept in 0usize..3, columns in prop::sample::select(vec![1usize, 3, 16, 300, 700]),
        multiple in 1usize..4, total in 1usize..8, each in 1usize..4, threads in 1usize..4, elsewhere: bool,
    ) {
        let image = [image, vec![columns]].concat();
        let axes: Vec<usize> = (0..=(image.len() - 1).saturating_sub(kept)).collect();
        let row: usize = multiple * image.iter().product::<usize>();
        prop_assume!(total * row <= 1 << 21);
        let results: usize = image[axes.len() - 1..].iter().product();
        let numbers: Vec<f32> = (0..total * row).map(|i| ((i * 7919) % 10_007) as f32 / 5000.0 - 1.0).collect();
        let sum = |threads: usize, each: usize| {
            let pool = ThreadPool::new(threads).unwrap();
            let mut sum: Option<Vec<f32>> = None;
            for part in numbers.chunks(each * row) {
                let dims = [vec![multiple * part.len() / row], image.clone()].concat();
                let source = InputSpec { dims: &dims, dtype: DType::F32, pitch: None };
                let mut reducer = Reducer::new(&Expr::identity(), &dims, &axes, Reduction::Sum, true, &[source]).unwrap();
                let mut workspace = vec![f32::NAN; workspace_len(&dims, &axes, Reduction::Sum, true)];
                let mut output = sum.clone().unwrap_or_else(|| vec![99.0; results]);
                reducer.set_input(0, part.as_ptr().cast());
                reducer.set_output(output.as_mut_ptr().cast(), workspace.as_mut_ptr());
                if let Some(sum) = &sum {
                    reducer.set_initial(if elsewhere { sum.as_ptr().cast() } else { output.as_ptr().cast() });
                }
                // SAFETY: all addresses are those of vectors of the right size.
                unsafe { reducer.run(&pool, StepRandom::default(), 0) };
                sum = Some(output);
            }
            sum.unwrap().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        prop_assert_eq!(sum(1, total), sum(threads, each));
    }

    /// A result is bit-identical however many others there are.
    #[test]
    fn results_do_not_depend_on_others(
        length in 1usize..700, columns in prop::sample::select(vec![1usize, 3, 20]), rows in 2usize..6, which in 0usize..3, long: bool,
    ) {
        let length = if long { length * 300 } else { length };
        let (dims, one) = ([rows, length, columns], [1, length, columns]);
        let numbers: Vec<f32> = (0..rows * length * columns).map(|i| ((i * 7919) % 10_007) as f32 / 5000.0 - 1.0).collect();
        let bias: Vec<f32> = (0..length * columns).map(|i| (i % 13) as f32).collect();
        let expr = Expr::build(|e| e.add(e.input(0), e.input(1)));
        let own = [length, columns];
        let all = run(&ThreadPool::new(2).unwrap(), &expr, &dims, &[1], KINDS[which], &[(&dims, &numbers), (&own, &bias)]);
        for row in 0..rows {
            let part = &numbers[row * length * columns..(row + 1) * length * columns];
            let alone = run(&ThreadPool::new(1).unwrap(), &expr, &one, &[1], KINDS[which], &[(&one, part), (&own, &bias)]);
            let bits = |numbers: &[f32]| numbers.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            prop_assert_eq!(bits(&alone), bits(&all[row * columns..(row + 1) * columns]));
        }
    }

    #[test]
    fn a_workspace_never_shrinks(rows in 1usize..5000, more in 1usize..5000, columns in 1usize..2000, batch: bool, middle: bool) {
        let dims = |rows: usize| if middle { vec![rows, 7, columns] } else { vec![rows, columns] };
        for axes in [&[0][..], &[1], &[0, 1]] {
            for kind in [Reduction::Sum, Reduction::Max] {
                prop_assert!(workspace_len(&dims(rows), axes, kind, batch) <= workspace_len(&dims(rows + more), axes, kind, batch));
            }
        }
    }
}
