//! `shuffle`: random row order.

use super::kind::{Key, KeyKind, StageKind, Validation};
use crate::DataError;
use crate::dataset::{BlockIterator, Dataset, Holding, IndexStep, Input, Opening, RowStage, Stage, StreamBudget};
use crate::fault::Fault;
use crate::rng::random_bits;
use plimsoll_core::Bytes;
use std::hash::Hasher;

/// A random order, new in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    seed: u64,
}

impl Shuffle {
    /// The order of epoch `e` is a function of `seed` and `e`: a permutation of all rows, the same on every machine.
    pub fn seed(seed: u64) -> Shuffle {
        Shuffle { seed }
    }
}

/// A permutation of row indices, or a shuffle buffer of this many bytes.
struct ShuffleRows {
    seed: u64,
    buffer: Option<Bytes>,
}

pub(super) const KIND: StageKind = StageKind {
    name: "shuffle",
    summary: "indexed rows: exact, without memory. Streams, or with a `buffer`: a shuffle buffer, default 16 MiB, of at least two rows; before `decode`, a row in it is a few bytes",
    keys: &[Key::optional("seed", KeyKind::Seed), Key::optional("buffer", KeyKind::Size)],
    counts_rows: true,
    reorders: true,
    has_short_form: true,
    validation: Validation::Omitted,
    build: |data, args| {
        let shuffle = Shuffle::seed(args.rows("seed"));
        let Some(buffer) = args.size("buffer") else { return Ok(data.shuffle(shuffle)) };
        let row = data.output_schema().map_or(Bytes::ZERO, |schema| schema.row_bytes());
        if buffer.0 < 2 * row.0.max(1) {
            return Err(format!("with a buffer of {buffer} leaves rows as they are: it takes two of {row} at least"));
        }
        Ok(data.shuffle_buffer(shuffle, buffer))
    },
    ..StageKind::DEFAULT
};

impl Dataset {
    /// Shuffles rows, in a new order each epoch. The shuffle is a full permutation and needs no memory; only a
    /// [stream](Dataset#streams) is shuffled with a buffer of 16 MiB (see
    /// [`shuffle_buffer`](Dataset::shuffle_buffer)).
    pub fn shuffle(self, shuffle: Shuffle) -> Dataset {
        match self.node {
            Some(_) => self.shuffle_buffer(shuffle, Bytes::mib(16)),
            None => self.then(ShuffleRows { seed: shuffle.seed, buffer: None }),
        }
    }

    /// Shuffles rows with a buffer of this size, in a new order each epoch: each row is drawn at random from the
    /// buffer and replaced by the next one.
    pub fn shuffle_buffer(self, shuffle: Shuffle, bytes: Bytes) -> Dataset {
        self.then(ShuffleRows { seed: shuffle.seed, buffer: Some(bytes) })
    }
}

impl ShuffleRows {
    /// Rows in the buffer, at most those of an epoch.
    fn buffer_rows(&self, row: Bytes, input: &Dataset) -> u64 {
        (self.buffer.unwrap_or_default().0 / row.0.max(1)).min(input.len()).max(1)
    }
}

impl Stage for ShuffleRows {
    fn describe(&self) -> String {
        match self.buffer {
            Some(bytes) => format!("shuffle(seed {}, {bytes})", self.seed),
            None => format!("shuffle(seed {})", self.seed),
        }
    }

    fn index_step(&self) -> Option<IndexStep> {
        self.buffer.is_none().then_some(IndexStep::Permute { seed: self.seed })
    }

    fn defers_decoding(&self) -> bool {
        true
    }

    fn ignores_values(&self) -> bool {
        true
    }

    fn identify(&self, hash: &mut dyn Hasher, _ignores_errors: bool) -> Result<Option<String>, DataError> {
        hash.write(&self.buffer.unwrap_or_default().0.to_le_bytes());
        Ok(None)
    }

    fn holdings(&self, inputs: &[Dataset], row: Bytes, _budget: StreamBudget) -> Result<Vec<Holding>, DataError> {
        Ok(vec![Holding::here(self.describe(), row * self.buffer_rows(row, &inputs[0]))])
    }

    fn open(&self, inputs: &Opening<'_>) -> Result<Box<dyn BlockIterator>, DataError> {
        let row = inputs.row_bytes()?;
        let rows = self.buffer_rows(Bytes(row as u64), &inputs.node.inputs[0]);
        inputs.map_rows(Shuffling::new(self.seed, rows as usize, row))
    }
}

/// Draws each row at random from a buffer and replaces it by the next one.
struct Shuffling {
    seed: u64,
    epoch: u64,
    drawn: u64,
    buffer: Vec<u8>,
    row: usize,
    /// Rows in the buffer.
    held: usize,
    /// The position of the row drawn last, which the next one fills.
    hole: Option<usize>,
    over: bool,
}

impl Shuffling {
    fn new(seed: u64, rows: usize, row: usize) -> Shuffling {
        Shuffling { seed, epoch: 0, drawn: 0, buffer: vec![0; rows * row], row, held: 0, hole: None, over: false }
    }
}

impl RowStage for Shuffling {
    fn begin(&mut self, epoch: u64) {
        (self.epoch, self.drawn, self.held, self.over) = (epoch, 0, 0, false);
        self.hole = None;
    }

    fn row(&mut self, input: &mut Input, out: &mut [u8]) -> Result<bool, Fault> {
        let row = self.row;
        // One row at a time, because an error may come between two rows.
        while !self.over && (self.held + 1) * row <= self.buffer.len() {
            let place = self.hole.unwrap_or(self.held);
            match input.copy(&mut self.buffer[place * row..][..row])? {
                true => (self.held, self.hole) = (self.held + 1, None),
                false => self.over = true,
            }
        }
        if let Some(hole) = self.hole.take() {
            // The input is exhausted, so the last row fills the gap.
            self.buffer.copy_within(self.held * row..(self.held + 1) * row, hole * row);
        }
        if self.held == 0 {
            return Ok(false);
        }
        let random = random_bits(self.seed, self.epoch, self.drawn);
        self.drawn += 1;
        let chosen = ((u128::from(random) * self.held as u128) >> 64) as usize;
        out.copy_from_slice(&self.buffer[chosen * row..][..row]);
        (self.held, self.hole) = (self.held - 1, Some(chosen));
        Ok(true)
    }
}
