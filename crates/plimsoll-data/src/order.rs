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

    pub(crate) fn seed_number(self) -> u64 {
        self.seed
    }
}

/// One step from places to rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reorder {
    Skip(u64),
    Take(u64),
    Shard { count: u64, index: u64 },
    Repeat(u64),
    Shuffle(Shuffle),
}

impl Reorder {
    /// Whether rows that follow each other still do.
    fn keeps_neighbours(&self) -> bool {
        matches!(self, Reorder::Skip(_) | Reorder::Take(_))
    }
}

/// Whether an epoch is one run of rows that follow each other.
pub(crate) fn is_one_run(reorders: &[Reorder]) -> bool {
    reorders.iter().all(Reorder::keeps_neighbours)
}

impl fmt::Display for Reorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reorder::Skip(rows) => write!(f, "skip({rows})"),
            Reorder::Take(rows) => write!(f, "take({rows})"),
            Reorder::Shard { count, index } => write!(f, "shard({count}, {index})"),
            Reorder::Repeat(times) => write!(f, "repeat({times})"),
            Reorder::Shuffle(Shuffle { seed }) => write!(f, "shuffle(seed {seed})"),
        }
    }
}

/// The rows of one epoch in order: the reorderings of a data set composed, in constant memory.
pub(crate) struct Order {
    /// From the consumer's end to the source's.
    steps: Vec<Step>,
    epoch: u64,
    /// In this epoch, the last shard begins after so many rows: those consumed before by other shards than these.
    begun: Option<(u64, u64)>,
}

enum Step {
    Forward(u64),
    Shard {
        count: u64,
        index: u64,
    },
    /// Each repetition of an epoch of `len` rows is an epoch of its own to what comes before.
    Repeat {
        times: u64,
        len: u64,
    },
    /// The permutation is the epoch's; repetitions need others.
    Shuffle {
        seed: u64,
        permutation: Permutation,
    },
}

/// Rows left after the reorderings, of `rows`.
pub(crate) fn length(rows: u64, reorders: impl Iterator<Item = Reorder>) -> u64 {
    reorders.fold(rows, |rows, reorder| match reorder {
        Reorder::Skip(n) => rows.saturating_sub(n),
        Reorder::Take(n) => rows.min(n),
        Reorder::Shard { count, index } => rows.saturating_sub(index).div_ceil(count),
        Reorder::Repeat(times) => rows.saturating_mul(times),
        Reorder::Shuffle(_) => rows,
    })
}

/// Rows of a source that are equally far apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub first: u64,
    pub step: u64,
    pub rows: u64,
}

impl Span {
    /// The place of a row among them.
    pub fn place(&self, row: u64) -> Option<u64> {
        let after = row.checked_sub(self.first)?;
        let place = if self.step == 1 { after } else { after.is_multiple_of(self.step).then(|| after / self.step)? };
        (place < self.rows).then_some(place)
    }

    /// The first of them.
    pub fn take(self, rows: u64) -> Span {
        Span { rows: self.rows.min(rows), ..self }
    }

    /// All rows from the first to the last of them.
    pub fn range(&self) -> Range<u64> {
        if self.rows == 0 { 0..0 } else { self.first..self.first + (self.rows - 1) * self.step + 1 }
    }
}

/// The rows of the source that can come up in some epoch; all of them once something else than their place decides which are taken.
pub(crate) fn span(rows: u64, reorders: &[Reorder]) -> Span {
    let mut span = Span { first: 0, step: 1, rows };
    for &reorder in reorders {
        let left = length(span.rows, std::iter::once(reorder));
        let (skipped, step) = match reorder {
            Reorder::Skip(n) => (n, 1),
            Reorder::Take(_) => (0, 1),
            Reorder::Shard { count, index } => (index, count),
            Reorder::Repeat(_) | Reorder::Shuffle(_) => break,
        };
        span = match left {
            0 => Span { rows: 0, ..span },
            // Where a row is left, what was passed over lies before it.
            _ => Span { first: span.first + skipped * span.step, step: span.step.saturating_mul(step), rows: left },
        };
    }
    span
}

impl Order {
    /// The order of epoch 0 of a source of `rows` rows; `begun` is an epoch and how many of its rows were consumed before the last shard.
    pub fn new(rows: u64, reorders: &[Reorder], begun: Option<(u64, u64)>) -> Order {
        let mut len = rows;
        let mut steps = Vec::new();
        for &reorder in reorders {
            match reorder {
                Reorder::Skip(n) => steps.push(Step::Forward(n)),
                Reorder::Take(_) => {}
                Reorder::Shard { count, index } => steps.push(Step::Shard { count, index }),
                Reorder::Repeat(times) => steps.push(Step::Repeat { times, len }),
                Reorder::Shuffle(Shuffle { seed }) => steps.push(Step::Shuffle { seed, permutation: Permutation::new(len, seed, 0) }),
            }
            len = length(len, std::iter::once(reorder));
        }
        steps.reverse();
        Order { steps, epoch: 0, begun }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        for step in &mut self.steps {
            if let Step::Shuffle { seed, permutation } = step {
                *permutation = Permutation::new(permutation.len(), *seed, epoch);
            }
        }
    }

    /// The row at `place`.
    pub fn row(&self, place: u64) -> u64 {
        let (mut place, mut epoch) = (place, self.epoch);
        let mut begun = self.begun.filter(|(begun, _)| *begun == epoch).map_or(0, |(_, rows)| rows);
        for step in &self.steps {
            match *step {
                Step::Forward(n) => place += n,
                Step::Shard { count, index } => place = place * count + index + std::mem::take(&mut begun),
                Step::Repeat { times, len } => {
                    epoch = epoch.wrapping_mul(times).wrapping_add(place / len);
                    place %= len;
                }
                Step::Shuffle { ref permutation, .. } if epoch == self.epoch => place = permutation.at(place),
                Step::Shuffle { seed, ref permutation } => place = Permutation::new(permutation.len(), seed, epoch).at(place),
            }
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What can come up is what comes up in some epoch, each row at its place, in order.
    #[test]
    fn a_span_has_the_rows_of_every_epoch() {
        let shard = |count, index| Reorder::Shard { count, index };
        let shuffle = Reorder::Shuffle(Shuffle::seed(1));
        let steps = [Reorder::Skip(3), Reorder::Take(11), shard(3, 1), shard(2, 0), Reorder::Skip(40), shuffle, Reorder::Repeat(2)];
        for (a, b, c) in (0..7).flat_map(|a| (0..7).flat_map(move |b| (0..7).map(move |c| (a, b, c)))) {
            let reorders = [steps[a], steps[b], steps[c]];
            let span = span(50, &reorders);
            let places: Vec<u64> = (0..60).filter_map(|row| span.place(row)).collect();
            assert_eq!(places, (0..span.rows).collect::<Vec<_>>(), "{reorders:?}");
            assert!((0..60).all(|row| span.place(row).is_none() || span.range().contains(&row)));
            let mut order = Order::new(50, &reorders, None);
            let mut seen = vec![false; span.rows as usize];
            for epoch in 0..40 {
                order.set_epoch(epoch);
                let rows = length(50, reorders.iter().copied());
                (0..rows).for_each(|place| seen[span.place(order.row(place)).unwrap() as usize] = true);
                if rows == 0 {
                    seen.fill(true);
                }
            }
            // Which rows are left of a shuffle or a repetition is not counted with.
            let exact = reorders[..2].iter().all(|step| !matches!(step, Reorder::Repeat(_) | Reorder::Shuffle(_)));
            assert!(!exact || seen.iter().all(|seen| *seen), "{reorders:?}");
        }
    }
}
