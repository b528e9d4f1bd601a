//! Which row of the source stands at which place of an epoch.

use crate::Permutation;
use std::fmt;
use std::ops::Range;

/// A random order, new in each epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shuffle {
    seed: u64,
}

impl Shuffle {
    /// Epoch `e` has the order chosen by `seed` and `e`: exact over all rows, the same on every machine.
    pub fn seed(seed: u64) -> Shuffle {
        Shuffle { seed }
    }
}

/// One step from places to rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reorder {
    Skip(u64),
    Take(u64),
    Shuffle(Shuffle),
}

impl fmt::Display for Reorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reorder::Skip(rows) => write!(f, "skip({rows})"),
            Reorder::Take(rows) => write!(f, "take({rows})"),
            Reorder::Shuffle(Shuffle { seed }) => write!(f, "shuffle(seed {seed})"),
        }
    }
}

/// The rows of one epoch in order: the reorderings of a data set composed, in constant memory.
pub(crate) struct Order {
    /// From the consumer's end to the source's.
    steps: Vec<Step>,
}

enum Step {
    Forward(u64),
    Shuffle { seed: u64, permutation: Permutation },
}

/// Rows left after the reorderings, of `rows`.
pub(crate) fn length(rows: u64, reorders: impl Iterator<Item = Reorder>) -> u64 {
    reorders.fold(rows, |rows, reorder| match reorder {
        Reorder::Skip(n) => rows.saturating_sub(n),
        Reorder::Take(n) => rows.min(n),
        Reorder::Shuffle(_) => rows,
    })
}

/// The rows of the source that can come up in some epoch; all of them once a shuffle decides which are taken.
pub(crate) fn span(rows: u64, reorders: &[Reorder]) -> Range<u64> {
    let mut span = 0..rows;
    for reorder in reorders {
        match *reorder {
            Reorder::Skip(n) => span.start = span.end.min(span.start.saturating_add(n)),
            Reorder::Take(n) => span.end = span.end.min(span.start.saturating_add(n)),
            Reorder::Shuffle(_) => break,
        }
    }
    span
}

impl Order {
    /// The order of epoch 0 of a source of `rows` rows.
    pub fn new(rows: u64, reorders: &[Reorder]) -> Order {
        let mut len = rows;
        let mut steps = Vec::new();
        for &reorder in reorders {
            match reorder {
                Reorder::Skip(n) => steps.push(Step::Forward(n)),
                Reorder::Take(_) => {}
                Reorder::Shuffle(Shuffle { seed }) => steps.push(Step::Shuffle { seed, permutation: Permutation::new(len, seed, 0) }),
            }
            len = length(len, std::iter::once(reorder));
        }
        steps.reverse();
        Order { steps }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        for step in &mut self.steps {
            if let Step::Shuffle { seed, permutation } = step {
                *permutation = Permutation::new(permutation.len(), *seed, epoch);
            }
        }
    }

    /// The row at `place`.
    pub fn row(&self, place: u64) -> u64 {
        self.steps.iter().fold(place, |place, step| match step {
            Step::Forward(n) => place + n,
            Step::Shuffle { permutation, .. } => permutation.at(place),
        })
    }
}
