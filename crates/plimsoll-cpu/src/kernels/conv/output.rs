//! The output of a convolution: floats with an optional epilogue, or blocks for a consumer that stores them in 16 bits.

use std::ops::Range;

use crate::kernels::gemm::{self, BlockConsumer, Epilogue, Matrix, Out, OutputBlock, WriteMode};
use crate::runtime::threads::ThreadPool;
use crate::simd::Isa;

/// Where the result of a convolution is written.
pub enum ConvOutput<'a> {
    /// Floats, followed by an epilogue.
    Floats(&'a mut [f32], Epilogue<'a>),
    /// Rows of floats with this stride: the elements between them belong to other tensors.
    Spaced(&'a mut [f32], usize, Epilogue<'a>),
    /// A consumer of blocks.
    Blocks(BlockConsumer<'a>),
}

/// Rows of floats, each contiguous.
#[derive(Clone, Copy)]
pub(super) struct OutputRows {
    first: Out,
    /// Row stride in floats.
    pub pitch: usize,
}

impl OutputRows {
    /// The start of a row.
    ///
    /// # Safety
    ///
    /// It is in bounds.
    #[inline(always)]
    pub unsafe fn row(self, row: usize) -> *mut f32 {
        // SAFETY: guaranteed by the caller.
        unsafe { self.first.add(row * self.pitch) }
    }
}

/// An output shared by tasks that write disjoint rows.
#[derive(Clone, Copy)]
pub(super) enum SharedOutput<'a> {
    Floats(OutputRows, Epilogue<'a>),
    Blocks(BlockConsumer<'a>),
}

impl<'a> ConvOutput<'a> {
    pub(super) fn is_blocks(&self) -> bool {
        matches!(self, ConvOutput::Blocks(_))
    }

    /// Elements of a result of `rows` × `columns` that the output has space for; not those of the result if it has too
    /// few or too many, or if its rows overlap.
    pub(super) fn len(&self, rows: usize, columns: usize) -> usize {
        match self {
            ConvOutput::Floats(output, _) => output.len(),
            ConvOutput::Spaced(_, pitch, _) if *pitch < columns => 0,
            ConvOutput::Spaced(output, pitch, _) => {
                let whole_rows = output.len().checked_sub(columns).map_or(0, |behind| behind / (*pitch).max(1) + 1);
                rows.min(whole_rows) * columns
            }
            ConvOutput::Blocks(_) => rows * columns,
        }
    }

    /// Shares the output among tasks that write rows of this many columns.
    pub(super) fn shared(self, columns: usize) -> SharedOutput<'a> {
        match self {
            ConvOutput::Floats(output, epilogue) => {
                SharedOutput::Floats(OutputRows { first: Out(output.as_mut_ptr()), pitch: columns }, epilogue)
            }
            ConvOutput::Spaced(output, pitch, epilogue) => {
                SharedOutput::Floats(OutputRows { first: Out(output.as_mut_ptr()), pitch }, epilogue)
            }
            ConvOutput::Blocks(take) => SharedOutput::Blocks(take),
        }
    }

    /// Writes the result of empty sums.
    pub(super) fn zeros(self, rows: usize, columns: usize) {
        match self.shared(columns) {
            SharedOutput::Floats(output, epilogue) => {
                // Rows without columns need not lie in the output.
                let written = if columns > 0 { rows } else { 0 };
                // SAFETY: the caller checked with `len` that the output has these rows.
                (0..written).for_each(|row| unsafe { output.row(row).write_bytes(0, columns) });
                if let Some(finish) = epilogue {
                    finish(0..rows, 0..columns, 0);
                }
            }
            SharedOutput::Blocks(take) => gemm::zeros(rows, columns, take),
        }
    }

    /// Computes a plain product of `columns` columns.
    ///
    /// # Safety
    /// Same as [`gemm::gemm`].
    pub(super) unsafe fn multiply(self, isa: Isa, pool: &ThreadPool, a: Matrix, b: Matrix, columns: usize, workspace: &mut [f32]) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self.shared(columns) {
                SharedOutput::Floats(output, epilogue) => {
                    gemm::gemm_with(isa, pool, WriteMode::Set, a, b, output.row(0), output.pitch, workspace, epilogue);
                }
                SharedOutput::Blocks(take) => gemm::gemm_blocks_with(isa, pool, a, b, workspace, take),
            }
        }
    }
}

impl SharedOutput<'_> {
    /// The floats, if the output is floats.
    pub fn floats(&self) -> Option<OutputRows> {
        match self {
            SharedOutput::Floats(output, _) => Some(*output),
            SharedOutput::Blocks(_) => None,
        }
    }

    /// Runs the epilogue or consumer for complete rows, which are contiguous in `block` unless they are in place.
    ///
    /// # Safety
    ///
    /// The rows are complete and at that location.
    pub unsafe fn finish(&self, rows: Range<usize>, columns: Range<usize>, block: *const f32, worker: usize) {
        match self {
            SharedOutput::Floats(_, Some(finish)) => finish(rows, columns, worker),
            SharedOutput::Floats(_, None) => {}
            SharedOutput::Blocks(take) => {
                let stride = columns.len();
                // SAFETY: guaranteed by the caller.
                take(&unsafe { OutputBlock::new(rows, columns, block, stride) });
            }
        }
    }
}
