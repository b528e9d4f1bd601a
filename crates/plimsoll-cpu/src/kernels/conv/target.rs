//! Where the result of a convolution goes: into floats, where an epilogue may follow, or block by block to whoever stores it in two bytes.

use std::ops::Range;

use crate::kernels::gemm::{self, Block, Epilogue, Matrix, Out, Take, Write};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;

/// Where a result goes.
pub enum Target<'a> {
    /// Into floats, and then through an epilogue.
    Floats(&'a mut [f32], Epilogue<'a>),
    /// So, with what others made between its rows: their beginnings are this far apart.
    Spaced(&'a mut [f32], usize, Epilogue<'a>),
    /// To whoever takes its blocks.
    Blocks(Take<'a>),
}

/// Rows of floats, each without gaps.
#[derive(Clone, Copy)]
pub(super) struct Rows {
    first: Out,
    /// Floats from the beginning of one to that of the next.
    pub pitch: usize,
}

impl Rows {
    /// Where a row begins.
    ///
    /// # Safety
    /// It is there.
    #[inline(always)]
    pub unsafe fn row(self, row: usize) -> *mut f32 {
        // SAFETY: the caller's promise.
        unsafe { self.first.add(row * self.pitch) }
    }
}

/// A target that tasks share, each for rows of its own.
#[derive(Clone, Copy)]
pub(super) enum Shared<'a> {
    Floats(Rows, Epilogue<'a>),
    Blocks(Take<'a>),
}

impl<'a> Target<'a> {
    pub(super) fn is_blocks(&self) -> bool {
        matches!(self, Target::Blocks(_))
    }

    /// Elements there is room for, if there are to be so many rows and columns.
    pub(super) fn len(&self, rows: usize, columns: usize) -> usize {
        match self {
            Target::Floats(output, _) => output.len(),
            Target::Spaced(output, pitch, _)
                if *pitch >= columns && rows.saturating_sub(1).saturating_mul(*pitch).saturating_add(columns) <= output.len() =>
            {
                rows * columns
            }
            Target::Spaced(output, ..) => output.len(),
            Target::Blocks(_) => rows * columns,
        }
    }

    /// For tasks that write rows of so many columns.
    pub(super) fn shared(self, columns: usize) -> Shared<'a> {
        match self {
            Target::Floats(output, epilogue) => Shared::Floats(Rows { first: Out(output.as_mut_ptr()), pitch: columns }, epilogue),
            Target::Spaced(output, pitch, epilogue) => Shared::Floats(Rows { first: Out(output.as_mut_ptr()), pitch }, epilogue),
            Target::Blocks(take) => Shared::Blocks(take),
        }
    }

    /// The result of sums without terms.
    pub(super) fn zeros(self, rows: usize, columns: usize) {
        match self.shared(columns) {
            Shared::Floats(output, epilogue) => {
                // SAFETY: the target has room for the rows.
                (0..rows).for_each(|row| unsafe { output.row(row).write_bytes(0, columns) });
                if let Some(finish) = epilogue {
                    finish(0..rows, 0..columns, 0);
                }
            }
            Shared::Blocks(take) => gemm::zeros(rows, columns, take),
        }
    }

    /// A plain product of `columns` columns.
    ///
    /// # Safety
    /// As for [`gemm::gemm`].
    pub(super) unsafe fn multiply(self, isa: Isa, pool: &ThreadPool, a: Matrix, b: Matrix, columns: usize, workspace: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.shared(columns) {
                Shared::Floats(output, epilogue) => {
                    gemm::gemm_with(isa, pool, Write::Set, a, b, output.row(0), output.pitch, workspace, epilogue);
                }
                Shared::Blocks(take) => gemm::gemm_blocks_with(isa, pool, a, b, workspace, take),
            }
        }
    }
}

impl Shared<'_> {
    /// The floats, if it goes there.
    pub fn floats(&self) -> Option<Rows> {
        match self {
            Shared::Floats(output, _) => Some(*output),
            Shared::Blocks(_) => None,
        }
    }

    /// What follows finished rows, which stand in `block` without gaps if they do not stand where they belong.
    ///
    /// # Safety
    /// They do.
    pub unsafe fn finish(&self, rows: Range<usize>, columns: Range<usize>, block: *const f32, worker: usize) {
        match self {
            Shared::Floats(_, Some(finish)) => finish(rows, columns, worker),
            Shared::Floats(_, None) => {}
            Shared::Blocks(take) => {
                let stride = columns.len();
                // SAFETY: the caller's promise.
                take(&unsafe { Block::new(rows, columns, block, stride) });
            }
        }
    }
}
