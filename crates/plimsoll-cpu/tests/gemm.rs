//! Matrix products against a double-precision loop: every layout, every instruction set, any number of threads.

use std::sync::atomic::{AtomicU32, Ordering};

use plimsoll_core::DType;
use plimsoll_cpu::kernels::gemm::{Matrix, OutputBlock, WriteMode, blocks_workspace_len, gemm_blocks_with, gemm_with, workspace_len};
use plimsoll_cpu::runtime::threads::ThreadPool;
use plimsoll_cpu::simd::Isa;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
struct Case {
    m: usize,
    n: usize,
    k: usize,
    /// Whether the operand is stored transposed, and unused floats between its rows.
    a: (bool, usize),
    b: (bool, usize),
    c_gap: usize,
    write: WriteMode,
}

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

fn operand(rows: usize, cols: usize, (transposed, gap): (bool, usize), seed: u64) -> (Vec<f32>, Matrix) {
    let (r, c) = if transposed { (cols, rows) } else { (rows, cols) };
    let data = noise(r * (c + gap) + 1, seed);
    let stored = Matrix { row_stride: (c + gap) as isize, ..Matrix::new(data.as_ptr(), r, c) };
    (data, if transposed { stored.transposed() } else { stored })
}

fn at(matrix: &Matrix, i: usize, j: usize) -> f64 {
    // SAFETY: `i` and `j` are inside the matrix, whose memory the caller keeps.
    f64::from(unsafe { *matrix.ptr.offset(i as isize * matrix.row_stride + j as isize * matrix.col_stride) })
}

/// Runs the case on each instruction set and each pool size, compares all of them and counts the epilogue's visits.
fn check(case: Case) {
    let Case { m, n, k, .. } = case;
    let (_a, a) = operand(m, k, case.a, 1);
    let (_b, b) = operand(k, n, case.b, 2);
    let ldc = n + case.c_gap;
    let before = noise(m * ldc, 3);

    for isa in Isa::available() {
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 2, 3] {
            let pool = ThreadPool::new(threads).unwrap();
            let mut c = before.clone();
            let len = workspace_len(m, n, k, threads);
            let mut workspace = vec![f32::NAN; len + 256];
            let visits: Vec<AtomicU32> = (0..m * n).map(|_| AtomicU32::new(0)).collect();
            let count = |rows: std::ops::Range<usize>, columns: std::ops::Range<usize>, worker: usize| {
                assert!(worker < threads);
                assert!(rows.end <= m && columns.end <= n);
                for i in rows {
                    for j in columns.clone() {
                        visits[i * n + j].fetch_add(1, Ordering::Relaxed);
                    }
                }
            };
            // SAFETY: the matrices describe vectors that outlive the call.
            unsafe { gemm_with(isa, &pool, case.write, a, b, c.as_mut_ptr(), ldc, &mut workspace[..len], Some(&count)) };
            assert!(workspace[len..].iter().all(|x| x.is_nan()), "{isa:?} {case:?}: the workspace suffices");
            assert!(visits.iter().all(|v| v.load(Ordering::Relaxed) == 1), "{isa:?} {case:?}: each element finished once");
            match &first {
                None => first = Some(c),
                Some(first) => {
                    assert!(first.iter().zip(&c).all(|(x, y)| x.to_bits() == y.to_bits()), "{isa:?} {case:?}: {threads} threads")
                }
            }
        }
        let c = first.unwrap();
        for i in 0..m {
            for j in 0..n {
                let start = if case.write == WriteMode::Add { f64::from(before[i * ldc + j]) } else { 0.0 };
                let (mut sum, mut scale) = (start, start.abs());
                for l in 0..k {
                    let product = at(&a, i, l) * at(&b, l, j);
                    sum += product;
                    scale += product.abs();
                }
                let got = f64::from(c[i * ldc + j]);
                assert!((got - sum).abs() <= 1e-5 * scale + 1e-30, "{isa:?} {case:?} at ({i}, {j}): {got} for {sum}");
            }
            for j in n..ldc {
                assert_eq!(c[i * ldc + j], before[i * ldc + j], "the gap between rows stays untouched");
            }
        }
    }
}

/// The case with operands in two bytes on either side or both, stored as floats and taken in blocks; the result must
/// not depend on the threads.
fn check_halves(case: Case) {
    let Case { m, n, k, .. } = case;
    let narrow = |matrix: Matrix, data: &mut Vec<f32>| {
        // Numbers that two bytes hold, so that the same reference serves all.
        data.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xffff_0000));
        let bits: Vec<u16> = data.iter().map(|x| (x.to_bits() >> 16) as u16).collect();
        (Matrix { ptr: bits.as_ptr().cast(), dtype: DType::BF16, ..matrix }, bits)
    };
    let (mut a_data, a) = operand(m, k, case.a, 1);
    let (mut b_data, b) = operand(k, n, case.b, 2);
    let (half_a, _a) = narrow(a, &mut a_data);
    let (half_b, _b) = narrow(b, &mut b_data);
    let reference: Vec<(f64, f64)> = (0..m * n)
        .map(|e| {
            let products = (0..k).map(|l| at(&a, e / n, l) * at(&b, l, e % n));
            products.fold((0.0, 0.0), |(sum, scale), product| (sum + product, scale + product.abs()))
        })
        .collect();
    for isa in Isa::available() {
        for (a, b) in [(half_a, half_b), (half_a, b), (a, half_b), (a, b)] {
            for blocks in [false, true] {
                let run = |threads: usize| {
                    let pool = ThreadPool::new(threads).unwrap();
                    let len = if blocks { blocks_workspace_len(m, n, k, threads) } else { workspace_len(m, n, k, threads) };
                    let mut workspace = vec![f32::NAN; len + 256];
                    let mut c = vec![f32::NAN; m * n];
                    let taken: Vec<AtomicU32> = c.iter().map(|x| AtomicU32::new(x.to_bits())).collect();
                    let take = |block: &OutputBlock| {
                        for row in block.rows.clone() {
                            for (value, taken) in block.row(row).iter().zip(&taken[row * n + block.columns.start..]) {
                                assert!(f32::from_bits(taken.swap(value.to_bits(), Ordering::Relaxed)).is_nan(), "{case:?}: taken once");
                            }
                        }
                    };
                    // SAFETY: the matrices describe vectors that outlive the call.
                    unsafe {
                        if blocks {
                            gemm_blocks_with(isa, &pool, a, b, &mut workspace[..len], &take);
                            c = taken.iter().map(|bits| f32::from_bits(bits.load(Ordering::Relaxed))).collect();
                        } else {
                            gemm_with(isa, &pool, WriteMode::Set, a, b, c.as_mut_ptr(), n, &mut workspace[..len], None);
                        }
                    }
                    assert!(workspace[len..].iter().all(|x| x.is_nan()), "{isa:?} {case:?}: the workspace suffices");
                    c
                };
                let c = run(1);
                assert!(run(3).iter().zip(&c).all(|(x, y)| x.to_bits() == y.to_bits()), "{isa:?} {case:?}: three threads");
                for (e, (got, (sum, scale))) in c.iter().zip(&reference).enumerate() {
                    let types = (a.dtype, b.dtype, blocks);
                    assert!((f64::from(*got) - sum).abs() <= 1e-5 * scale + 1e-30, "{isa:?} {case:?} {types:?} at {e}: {got} for {sum}");
                }
            }
        }
    }
}

fn layout() -> impl Strategy<Value = (bool, usize)> {
    (any::<bool>(), prop_oneof![Just(0usize), 1usize..9])
}

fn case(m: impl Strategy<Value = usize>, n: impl Strategy<Value = usize>, k: impl Strategy<Value = usize>) -> impl Strategy<Value = Case> {
    (m, n, k, layout(), layout(), 0usize..4, prop_oneof![Just(WriteMode::Set), Just(WriteMode::Add)])
        .prop_map(|(m, n, k, a, b, c_gap, write)| Case { m, n, k, a, b, c_gap, write })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn small_products(case in case(0usize..40, 0usize..70, 0usize..40)) { check(case) }

    #[test]
    fn small_products_of_halves(case in case(0usize..40, 0usize..70, 0usize..40)) { check_halves(case) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_cut_along_rows(case in case(100usize..400, 1usize..150, 30usize..300)) { check(case) }

    #[test]
    fn products_cut_along_columns(case in case(1usize..40, 1000usize..2500, 10usize..40)) { check(case) }

    #[test]
    fn a_matrix_times_a_column(case in case(1usize..3000, Just(1usize), 1usize..700)) { check(case) }

    #[test]
    fn a_row_times_a_matrix(case in case(Just(1usize), 1usize..3000, 1usize..700)) { check(case) }

    #[test]
    fn tall_products_of_few_columns(case in case(2000usize..6000, 2usize..20, 1usize..100)) { check(case) }

    #[test]
    fn products_cut_along_k(case in case(1usize..50, 1usize..30, 4000usize..20000)) { check(case) }
}

#[test]
fn shapes_from_models() {
    for (m, n, k, a, b) in [
        (32, 10, 100, false, false),
        (100, 10, 32, true, false),
        (32, 10, 12300, false, false),
        (12300, 10, 32, true, false),
        (32, 12300, 10, false, true),
        (256, 256, 256, false, false),
        (130, 1030, 600, true, true),
        (1, 1, 600_000, false, false),
        (300, 70, 700, false, false),
    ] {
        check(Case { m, n, k, a: (a, 0), b: (b, 0), c_gap: 0, write: WriteMode::Set });
        check_halves(Case { m, n, k, a: (a, 0), b: (b, 0), c_gap: 0, write: WriteMode::Set });
    }
}

#[test]
fn strides_beyond_row_and_column_major() {
    let data = noise(4000, 4);
    let a = Matrix { row_stride: 3, col_stride: 40, ..Matrix::new(data.as_ptr(), 9, 20) };
    let b = Matrix { row_stride: 7, col_stride: 150, ..Matrix::new(data.as_ptr(), 20, 13) };
    for isa in Isa::available() {
        let mut c = vec![0.0; 9 * 13];
        let mut workspace = vec![0.0; workspace_len(9, 13, 20, 1)];
        // SAFETY: the largest offsets are 24 + 760 and 133 + 1800, inside `data`.
        unsafe { gemm_with(isa, &ThreadPool::new(1).unwrap(), WriteMode::Set, a, b, c.as_mut_ptr(), 13, &mut workspace, None) };
        for i in 0..9 {
            for j in 0..13 {
                let sum: f64 = (0..20).map(|l| at(&a, i, l) * at(&b, l, j)).sum();
                assert!((f64::from(c[i * 13 + j]) - sum).abs() < 1e-4);
            }
        }
    }
}

#[test]
fn workspace_never_shrinks_with_the_batch() {
    for (n, k) in [(10, 100), (10, 123_008), (512, 2048), (3000, 40)] {
        for threads in [1, 2, 8] {
            let lens: Vec<usize> = (0..3000).map(|m| workspace_len(m, n, k, threads)).collect();
            assert!(lens.is_sorted());
            let lens: Vec<usize> = (0..3000).map(|m| blocks_workspace_len(m, n, k, threads)).collect();
            assert!(lens.is_sorted());
        }
    }
}

/// A block hands out its own rows only: a row of another block lies outside of its memory.
#[test]
fn a_block_refuses_rows_that_it_does_not_have() {
    let (a, b) = (vec![1.0; 4], vec![1.0; 4]);
    let (a, b) = (Matrix::new(a.as_ptr(), 2, 2), Matrix::new(b.as_ptr(), 2, 2));
    let pool = ThreadPool::new(1).unwrap();
    let mut workspace = vec![0.0; blocks_workspace_len(2, 2, 2, 1)];
    let take = |block: &OutputBlock| {
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| block.row(block.rows.end).len()));
        assert_eq!(*refused.unwrap_err().downcast::<String>().unwrap(), "row 2 of a block of rows 0..2");
    };
    // SAFETY: the matrices describe vectors that outlive the call.
    unsafe { gemm_blocks_with(Isa::best(), &pool, a, b, &mut workspace, &take) };
}
