//! Kernels from closures: an operation states what it does to a block or to a row, and the epoch is kept here.

use super::{Kernel, Op};
use crate::block::Rows;
use crate::{Column, DataError};

struct Mapping<F> {
    epoch: u64,
    run: F,
}

struct InPlace<F> {
    epoch: u64,
    run: F,
}

impl<F: FnMut(u64, Rows<'_>, &[u8], &mut [u8]) -> Result<(), DataError> + Send> Kernel for Mapping<F> {
    fn run(&mut self, rows: Rows<'_>, input: &[u8], output: &mut [u8]) -> Result<(), DataError> {
        (self.run)(self.epoch, rows, input, output)
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }
}

impl<F: FnMut(u64, Rows<'_>, &mut [u8]) -> Result<(), DataError> + Send> Kernel for InPlace<F> {
    fn run_in_place(&mut self, rows: Rows<'_>, data: &mut [u8]) -> Result<(), DataError> {
        (self.run)(self.epoch, rows, data)
    }

    fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }
}

/// Maps blocks: `run(epoch, rows, input, output)`.
pub(super) fn each_block<F>(run: F) -> Box<dyn Kernel>
where
    F: FnMut(u64, Rows<'_>, &[u8], &mut [u8]) -> Result<(), DataError> + Send + 'static,
{
    Box::new(Mapping { epoch: 0, run })
}

/// Changes blocks in place: `run(epoch, rows, data)`.
pub(super) fn each_block_in_place<F>(run: F) -> Box<dyn Kernel>
where
    F: FnMut(u64, Rows<'_>, &mut [u8]) -> Result<(), DataError> + Send + 'static,
{
    Box::new(InPlace { epoch: 0, run })
}

/// Maps the rows of a column that `op` accepts: `run(epoch, row, input, output)`.
pub(super) fn each_row<F>(op: &dyn Op, input: &Column, mut run: F) -> Box<dyn Kernel>
where
    F: FnMut(u64, u64, &[u8], &mut [u8]) + Send + 'static,
{
    let output = op.output(input).expect("a kernel is made for a column that is accepted");
    let (from, to) = (input.row_bytes().get(), output.row_bytes().get());
    each_block(move |epoch, rows, input, output| {
        for (index, (row, out)) in input.chunks_exact(from).zip(output.chunks_exact_mut(to)).enumerate() {
            run(epoch, rows.row(index), row, out);
        }
        Ok(())
    })
}

/// Changes the rows of a column in place: `run(epoch, row, data)`.
pub(super) fn each_row_in_place<F>(input: &Column, mut run: F) -> Box<dyn Kernel>
where
    F: FnMut(u64, u64, &mut [u8]) + Send + 'static,
{
    let bytes = input.row_bytes().get();
    each_block_in_place(move |epoch, rows, data| {
        data.chunks_exact_mut(bytes).enumerate().for_each(|(index, row)| run(epoch, rows.row(index), row));
        Ok(())
    })
}
