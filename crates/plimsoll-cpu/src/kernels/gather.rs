//! Gather and scatter-add of table rows.

use crate::kernels::gemm::{WriteMode, run};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;
use crate::simd::convert;
use plimsoll_core::DType;

/// A table and indices of its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableShape {
    /// Rows of the table.
    pub rows: usize,
    /// Elements per row.
    pub width: usize,
    /// Number of indices.
    pub count: usize,
    /// Type of the indices: `I32` or `U8`.
    pub indices: DType,
}

/// Approximate elements moved per task.
const GRAIN: usize = 1 << 14;
/// Columns per task of a scatter-add: eight cache lines.
const COLUMNS: usize = 128;

/// A pointer that may cross threads: tasks access disjoint parts.
#[derive(Clone, Copy)]
struct TaskPtr<T>(T);

// SAFETY: tasks write disjoint rows or columns, and only read the rest. Restricted to pointers to plain elements, so
// that no other type becomes `Send` by being wrapped.
unsafe impl<T> Send for TaskPtr<*const T> {}
// SAFETY: as above.
unsafe impl<T> Sync for TaskPtr<*const T> {}
// SAFETY: as above.
unsafe impl<T> Send for TaskPtr<*mut T> {}
// SAFETY: as above.
unsafe impl<T> Sync for TaskPtr<*mut T> {}

impl<T: Copy> TaskPtr<T> {
    fn get(&self) -> T {
        self.0
    }
}

impl TableShape {
    /// The row of index `i`, if it is in range.
    ///
    /// # Safety
    ///
    /// `indices` is readable for more than `i` elements of its type, which is `I32` or `U8`, and aligned for it.
    #[inline(always)]
    unsafe fn row(&self, indices: *const u8, i: usize) -> Option<usize> {
        // SAFETY: guaranteed by the caller.
        let row = unsafe {
            match self.indices {
                DType::U8 => usize::from(*indices.add(i)),
                // A negative index is out of range.
                _ => usize::try_from(*indices.cast::<i32>().add(i)).unwrap_or(usize::MAX),
            }
        };
        (row < self.rows).then_some(row)
    }
}

/// Gathers rows; zeros for an out-of-range index.
///
/// # Safety
///
/// The table has `rows · width` elements of `from`, `indices` has `count` aligned elements of type `shape.indices`,
/// which is `I32` or `U8`, `to` is writable for `count · width` elements of `into` and overlaps neither.
pub unsafe fn gather(
    pool: &ThreadPool,
    shape: &TableShape,
    (table, from): (*const u8, DType),
    indices: *const u8,
    (to, into): (*mut u8, DType),
) {
    let isa = Isa::best();
    let TableShape { width, count, .. } = *shape;
    let each = (GRAIN / width.max(1)).max(1);
    let (table, indices, to) = (TaskPtr(table), TaskPtr(indices), TaskPtr(to));
    run(pool, count * width > 2 * GRAIN, count.div_ceil(each), &|task, _| {
        let mut single = [0.0; COLUMNS];
        for i in task * each..count.min((task + 1) * each) {
            // SAFETY: the row is inside of the table, position `i` inside of the result, and no other task writes
            // there.
            unsafe {
                let to = to.get().add(i * width * into.size());
                let Some(row) = shape.row(indices.get(), i) else {
                    to.write_bytes(0, width * into.size());
                    continue;
                };
                let row = table.get().add(row * width * from.size());
                if from == into {
                    std::ptr::copy_nonoverlapping(row, to, width * from.size());
                    continue;
                }
                for start in (0..width).step_by(COLUMNS) {
                    let part = &mut single[..COLUMNS.min(width - start)];
                    convert::load(isa, from, row.add(start * from.size()), 1.0, part);
                    convert::store(isa, into, part, 1.0, to.add(start * into.size()));
                }
            }
        }
    });
}

/// Zeroes the table with `WriteMode::Set`, and adds each row at its index, in order. Out-of-range indices are ignored.
///
/// Tasks own columns of the table and scan all indices, so that sums are the same for any number of threads, and for
/// indices in several calls of which all but the first add.
///
/// # Safety
///
/// `indices` has `count` aligned elements of type `shape.indices`, which is `I32` or `U8`, `rows` has `count · width`
/// elements of the type, `table` is writable for `rows · width` aligned floats and overlaps neither.
pub unsafe fn scatter_add(
    pool: &ThreadPool,
    shape: &TableShape,
    write: WriteMode,
    indices: *const u8,
    (rows, dtype): (*const u8, DType),
    table: *mut f32,
) {
    let isa = Isa::best();
    let TableShape { width, count, .. } = *shape;
    let (indices, rows, table) = (TaskPtr(indices), TaskPtr(rows), TaskPtr(table));
    let total = if write == WriteMode::Set { shape.rows * width } else { 0 };
    // Large chunks: this is memory-bound.
    let piece = 64 * GRAIN;
    run(pool, total > 2 * piece, total.div_ceil(piece), &|task, _| {
        let start = task * piece;
        // SAFETY: chunks are disjoint parts of the table.
        unsafe { table.get().add(start).write_bytes(0, piece.min(total - start)) };
    });
    run(pool, count * width > 2 * GRAIN, width.div_ceil(COLUMNS), &|task, _| {
        let start = task * COLUMNS;
        let columns = COLUMNS.min(width - start);
        for i in 0..count {
            // SAFETY: the row is inside of the table, its columns are exclusive to this task, and position `i` is
            // inside of the rows.
            unsafe {
                if let Some(row) = shape.row(indices.get(), i) {
                    let to = std::slice::from_raw_parts_mut(table.get().add(row * width + start), columns);
                    convert::add(isa, dtype, rows.get().add((i * width + start) * dtype.size()), to);
                }
            }
        }
    });
}
