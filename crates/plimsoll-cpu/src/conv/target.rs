//! Where the result of a convolution goes: into floats, where an epilogue may follow, or block by block to whoever stores it in two bytes.

use std::ops::Range;

use crate::gemm::{self, Block, Epilogue, Matrix, Out, Take, Write};
use crate::simd::Isa;
use crate::threads::Pool;

/// Where a result goes.
pub enum Target<'a> {
    /// Into floats, and then through an epilogue.
    Floats(&'a mut [f32], Epilogue<'a>),
    /// To whoever takes its blocks.
    Blocks(Take<'a>),
}

/// A target that tasks share, each for rows of its own.
#[derive(Clone, Copy)]
pub(super) enum Shared<'a> {
    Floats(Out, Epilogue<'a>),
    Blocks(Take<'a>),
}

impl<'a> Target<'a> {
    pub(super) fn is_blocks(&self) -> bool {
        matches!(self, Target::Blocks(_))
    }

    /// Elements there is room for, if that is known.
    pub(super) fn len(&self) -> Option<usize> {
        match self {
            Target::Floats(output, _) => Some(output.len()),
            Target::Blocks(_) => None,
        }
    }

    pub(super) fn shared(self) -> Shared<'a> {
        match self {
            Target::Floats(output, epilogue) => Shared::Floats(Out(output.as_mut_ptr()), epilogue),
            Target::Blocks(take) => Shared::Blocks(take),
        }
    }

    /// The result of sums without terms.
    pub(super) fn zeros(self, rows: usize, columns: usize) {
        match self {
            Target::Floats(output, epilogue) => {
                output.fill(0.0);
                if let Some(finish) = epilogue {
                    finish(0..rows, 0..columns, 0);
                }
            }
            Target::Blocks(take) => gemm::zeros(rows, columns, take),
        }
    }

    /// A plain product of `columns` columns.
    ///
    /// # Safety
    /// As for [`gemm::gemm`].
    pub(super) unsafe fn multiply(self, isa: Isa, pool: &Pool, a: Matrix, b: Matrix, columns: usize, workspace: &mut [f32]) {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Target::Floats(output, epilogue) => {
                    gemm::gemm_with(isa, pool, Write::Set, a, b, output.as_mut_ptr(), columns, workspace, epilogue);
                }
                Target::Blocks(take) => gemm::gemm_blocks_with(isa, pool, a, b, workspace, take),
            }
        }
    }
}

impl Shared<'_> {
    /// The floats, if it goes there.
    pub fn floats(&self) -> Option<Out> {
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
