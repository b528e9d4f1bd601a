//! Pooling and its gradients against plain loops, at any number of threads.

use plimsoll_cpu::kernels::pooling::{NO_POSITION, PoolShape, average_pool, average_pool_grad, max_pool, max_pool_grad};
use plimsoll_cpu::runtime::threads::ThreadPool;
use proptest::prelude::*;

/// A few distinct values, so that ties and their order matter.
fn values(len: usize, seed: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 + seed * 104_729) % 23) as f32 - 11.0).collect()
}

/// Window positions of an output that are not padding: (number in the window, input pixel).
fn positions(s: &PoolShape, y: usize, x: usize) -> Vec<(usize, usize)> {
    let mut found = vec![];
    for (ky, kx) in (0..s.window.0).flat_map(|ky| (0..s.window.1).map(move |kx| (ky, kx))) {
        let (iy, ix) = ((y * s.stride.0 + ky) as isize - s.pad.0 as isize, (x * s.stride.1 + kx) as isize - s.pad.1 as isize);
        if (0..s.in_h as isize).contains(&iy) && (0..s.in_w as isize).contains(&ix) {
            found.push((ky * s.window.1 + kx, iy as usize * s.in_w + ix as usize));
        }
    }
    found
}

fn check(s: PoolShape) {
    let input = values(s.input_len(), 1);
    let grad_out = values(s.output_len(), 2);
    let (mut best, mut at) = (vec![0.0; s.output_len()], vec![NO_POSITION; s.output_len()]);
    let (mut mean, mut max_grad, mut mean_grad) = (vec![0.0f64; s.output_len()], vec![0.0f32; s.input_len()], vec![0.0f64; s.input_len()]);
    for n in 0..s.batch {
        for (y, x) in (0..s.out_h).flat_map(|y| (0..s.out_w).map(move |x| (y, x))) {
            let window = positions(&s, y, x);
            for c in 0..s.channels {
                let out = ((n * s.out_h + y) * s.out_w + x) * s.channels + c;
                let input_at = |pixel: usize| (n * s.in_h * s.in_w + pixel) * s.channels + c;
                for &(number, pixel) in &window {
                    let value = input[input_at(pixel)];
                    if at[out] == NO_POSITION || value > best[out] {
                        (best[out], at[out]) = (value, number as u8);
                    }
                    mean[out] += f64::from(value) / window.len() as f64;
                    mean_grad[input_at(pixel)] += f64::from(grad_out[out]) / window.len() as f64;
                }
                if let Some(&(_, pixel)) = window.iter().find(|(number, _)| *number == usize::from(at[out])) {
                    max_grad[input_at(pixel)] += grad_out[out];
                }
            }
        }
    }
    let close = |got: &[f32], expected: &[f64]| got.iter().zip(expected).all(|(g, e)| (f64::from(*g) - e).abs() <= 1e-4);
    for threads in [1, 2, 3] {
        let pool = ThreadPool::new(threads).unwrap();
        let (mut output, mut found) = (vec![f32::NAN; s.output_len()], vec![7; s.output_len()]);
        max_pool(&pool, &s, &input, &mut output, &mut found);
        assert_eq!((&output, &found), (&best, &at), "{s:?}");
        let mut grad_in = vec![f32::NAN; s.input_len()];
        max_pool_grad(&pool, &s, &grad_out, &found, &mut grad_in);
        assert_eq!(grad_in, max_grad, "{s:?}");
        average_pool(&pool, &s, &input, &mut output);
        assert!(close(&output, &mean), "{s:?}");
        average_pool_grad(&pool, &s, &grad_out, &mut grad_in);
        assert!(close(&grad_in, &mean_grad), "{s:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_shape(
        batch in 0usize..4, in_h in 1usize..12, in_w in 1usize..12, channels in 1usize..40,
        window in (1usize..4, 1usize..4), stride in (1usize..4, 1usize..4), pad in (0usize..3, 0usize..3), after in (0usize..3, 0usize..3),
    ) {
        let extent = |n: usize, before: usize, after: usize, k: usize, stride: usize| (n + before + after).checked_sub(k).map(|room| room / stride + 1);
        let (Some(out_h), Some(out_w)) = (extent(in_h, pad.0, after.0, window.0, stride.0), extent(in_w, pad.1, after.1, window.1, stride.1)) else {
            return Ok(());
        };
        check(PoolShape { batch, in_h, in_w, channels, out_h, out_w, window, stride, pad });
    }
}

#[test]
fn shapes_large_enough_for_threads() {
    check(PoolShape { batch: 5, in_h: 62, in_w: 62, channels: 32, out_h: 31, out_w: 31, window: (2, 2), stride: (2, 2), pad: (0, 0) });
    check(PoolShape { batch: 3, in_h: 32, in_w: 32, channels: 33, out_h: 16, out_w: 16, window: (3, 3), stride: (2, 2), pad: (0, 0) });
}

#[test]
fn nan_propagates_and_infinities_count() {
    let shape = PoolShape { batch: 1, in_h: 1, in_w: 4, channels: 1, out_h: 1, out_w: 2, window: (1, 2), stride: (1, 2), pad: (0, 0) };
    let (mut output, mut positions) = ([0.0; 2], [0; 2]);
    max_pool(&ThreadPool::new(1).unwrap(), &shape, &[1.0, f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY], &mut output, &mut positions);
    assert!(output[0].is_nan());
    assert_eq!((output[1], positions), (f32::NEG_INFINITY, [1, 0]));
    max_pool(&ThreadPool::new(1).unwrap(), &shape, &[f32::NAN, 2.0, f32::NEG_INFINITY, 3.0], &mut output, &mut positions);
    assert!(output[0].is_nan());
    assert_eq!((output[1], positions), (3.0, [0, 1]));
}

/// Lengths that wrap around must not pass for those of the slices: the kernels would then write out of bounds.
#[test]
#[should_panic(expected = "exceed the address space")]
fn extents_that_overflow_are_refused() {
    let batch = usize::MAX / 2 + 1;
    let shape = PoolShape { batch, in_h: 1, in_w: 2, channels: 1, out_h: 1, out_w: 2, window: (1, 1), stride: (1, 1), pad: (0, 0) };
    average_pool(&ThreadPool::new(1).unwrap(), &shape, &[], &mut []);
}
