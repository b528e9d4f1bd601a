//! What the host looks up once to run a program: its scalars, columns and results.

use super::Piece;
use crate::graphs::{LOSS_WEIGHT, MAX_COLUMNS, PENALTY_SHARE, ProgramInterface, ROW_SHARE};
use crate::nn::{COUNTED_ROWS, FIRST_MICRO_BATCH, LAST_MICRO_BATCH, MICRO_BATCH_RECIPROCAL};
use crate::spec::Optimization;
use plimsoll_core::fixed_order::{HELD_SUMS, MERGED_SUMS, MICRO_BATCHES};
use plimsoll_core::plan::NUMBERS;
use plimsoll_core::step::Role;
use plimsoll_core::{Executor, Graph};
use plimsoll_data::Schema;

/// Lookups that the host needs to run a program, done once.
pub(super) struct Prepared {
    pub role: Role,
    pub scalars: Vec<Scalar>,
    pub numbers: Vec<f32>,
    pub columns: Vec<usize>,
    pub at: ResultIndices,
}

impl Prepared {
    /// The bytes of the columns that the program reads.
    pub fn columns_of<'a>(&self, piece: &Piece<'a>, schema: &Schema) -> [&'a [u8]; MAX_COLUMNS] {
        let mut columns: [&[u8]; MAX_COLUMNS] = [&[]; MAX_COLUMNS];
        for (column, index) in columns.iter_mut().zip(&self.columns) {
            let bytes = schema.columns()[*index].row_bytes().get();
            *column = &piece.batch.column(*index)[piece.at * bytes..(piece.at + piece.rows) * bytes];
        }
        columns
    }
}

/// The indices of a program's results.
#[derive(Clone, Copy, Default)]
pub(super) struct ResultIndices {
    pub loss: Option<usize>,
    pub weight: Option<usize>,
    /// In the order of the counters.
    pub sums: [Option<usize>; NUMBERS],
}

/// A number that the host supplies for every micro-batch.
#[derive(Clone, Copy)]
pub(super) enum Scalar {
    RowShare,
    MicroBatchReciprocal,
    PenaltyShare,
    /// One, or zero where the rows are those of another rank.
    CountedRows,
    /// Whether it is the first micro-batch of its batch.
    FirstMicroBatch,
    /// Whether it is the last.
    LastMicroBatch,
    /// Of a reproducible run: partial sums that are held, those that the micro-batch is added to, and the micro-batches
    /// of the batch.
    HeldSums,
    MergedSums,
    MicroBatches,
    /// An index into the scalars of the step.
    Rate(usize),
}

pub(super) fn prepare(
    executor: &Executor,
    role: Role,
    graph: &Graph,
    interface: &ProgramInterface,
    optimization: &Optimization,
) -> Prepared {
    let names = optimization.scalar_names();
    let scalars: Vec<Scalar> = graph
        .scalars()
        .iter()
        .map(|name| match names.iter().position(|own| own == name) {
            Some(index) => Scalar::Rate(index),
            None if name == MICRO_BATCH_RECIPROCAL => Scalar::MicroBatchReciprocal,
            None if name == PENALTY_SHARE => Scalar::PenaltyShare,
            None if name == COUNTED_ROWS => Scalar::CountedRows,
            None if name == FIRST_MICRO_BATCH => Scalar::FirstMicroBatch,
            None if name == LAST_MICRO_BATCH => Scalar::LastMicroBatch,
            None if name == HELD_SUMS => Scalar::HeldSums,
            None if name == MERGED_SUMS => Scalar::MergedSums,
            None if name == MICRO_BATCHES => Scalar::MicroBatches,
            None => {
                assert_eq!(name, ROW_SHARE, "every scalar is the optimizer's or the trainer's");
                Scalar::RowShare
            }
        })
        .collect();
    let columns = interface.columns[..graph.inputs().len()].to_vec();
    let numbers = vec![0.0; scalars.len()];
    let program = executor.plan().program(role).expect("it is being prepared");
    let number = |wanted: &str| program.numbers().position(|(name, _)| name == wanted);
    let mut at = ResultIndices { loss: number("loss"), weight: number(LOSS_WEIGHT), ..ResultIndices::default() };
    at.sums.iter_mut().zip(interface.model_metrics.sums()).for_each(|(at, name)| *at = number(name));
    Prepared { role, scalars, numbers, columns, at }
}
