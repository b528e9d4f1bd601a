//! Tables: rows taken and rows added, numbers that are no row, any number of threads.

use plimsoll_core::DType;
use plimsoll_cpu::kernels::gather::{TableShape, gather, scatter_add};
use plimsoll_cpu::kernels::gemm::WriteMode;
use plimsoll_cpu::runtime::threads::ThreadPool;

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 37 % 101) as f32 / 7.0 - 6.0).collect()
}

/// Rows of a table of 40, with some numbers below and above it.
fn names(count: usize) -> Vec<i32> {
    let mut names: Vec<i32> = (0..count).map(|i| (i * 29 % 43) as i32 - 2).collect();
    names[..3].copy_from_slice(&[i32::MIN, i32::MAX, -1]);
    names
}

const ROWS: usize = 40;

fn row_of(name: i32) -> Option<usize> {
    usize::try_from(name).ok().filter(|row| *row < ROWS)
}

#[test]
fn rows_are_taken_and_strays_are_zeros() {
    for (width, count) in [(1, 50), (130, 1000)] {
        let (table, names) = (numbers(ROWS * width), names(count));
        let shape = TableShape { rows: ROWS, width, count, indices: DType::I32 };
        let want: Vec<f32> = names
            .iter()
            .flat_map(|name| match row_of(*name) {
                Some(row) => table[row * width..(row + 1) * width].to_vec(),
                None => vec![0.0; width],
            })
            .collect();
        let mut got = vec![f32::NAN; count * width];
        let (from, to) = ((table.as_ptr().cast(), DType::F32), (got.as_mut_ptr().cast(), DType::F32));
        // SAFETY: the shape describes the vectors above.
        unsafe { gather(&ThreadPool::new(3).unwrap(), &shape, from, names.as_ptr().cast(), to) };
        assert_eq!(got, want);
    }
}

#[test]
fn rows_are_added_in_their_order_on_any_number_of_threads() {
    for (width, count) in [(1, 50), (300, 1000)] {
        let (rows, names) = (numbers(count * width), names(count));
        let shape = TableShape { rows: ROWS, width, count, indices: DType::I32 };
        let mut want = vec![0.0; ROWS * width];
        for (name, row) in names.iter().zip(rows.chunks(width)) {
            if let Some(to) = row_of(*name) {
                want[to * width..(to + 1) * width].iter_mut().zip(row).for_each(|(to, x)| *to += x);
            }
        }
        for threads in [1, 2, 3, 7] {
            let mut got = vec![f32::NAN; ROWS * width];
            // SAFETY: the shape describes the vectors above.
            unsafe {
                scatter_add(
                    &ThreadPool::new(threads).unwrap(),
                    &shape,
                    WriteMode::Set,
                    names.as_ptr().cast(),
                    (rows.as_ptr().cast(), DType::F32),
                    got.as_mut_ptr(),
                )
            };
            assert_eq!(got, want, "{threads} threads");
            // Rows in two calls give the same sums.
            let mut got = vec![f32::NAN; ROWS * width];
            for (part, write) in [(0..count / 3, WriteMode::Set), (count / 3..count, WriteMode::Add)] {
                let (shape, at) = (TableShape { count: part.len(), ..shape }, part.start * width);
                let (names, rows) = (names[part.start..].as_ptr().cast(), (rows[at..].as_ptr().cast(), DType::F32));
                // SAFETY: the shape describes parts of the vectors above.
                unsafe { scatter_add(&ThreadPool::new(threads).unwrap(), &shape, write, names, rows, got.as_mut_ptr()) };
            }
            assert_eq!(got, want, "{threads} threads, two calls");
        }
    }
}
