//! Maps positions of an epoch to rows of an indexed source: the composition of all stages that select or reorder
//! rows, in constant memory.

use crate::Permutation;
use crate::holdout::SplitPart;
use crate::rank_rows::RankRows;
use crate::span::Span;

/// What a stage does to the rows of an indexed source, as arithmetic on row indices.
#[derive(Clone, Debug)]
pub(crate) enum IndexStep {
    /// The first this many rows.
    Truncate(u64),
    /// All but the first this many rows.
    Offset(u64),
    /// Every `count`th row, starting at row `index`.
    Shard { count: u64, index: u64 },
    /// All rows this many times; each repetition is an epoch of the upstream stages.
    Repeat(u64),
    /// A new random order each epoch.
    Permute { seed: u64 },
    /// The rows that are held out, or the others.
    Part(SplitPart),
    /// The rows that one rank has of every batch.
    Rank(RankRows),
}

impl IndexStep {
    /// The number of output rows for `rows` input rows.
    pub fn rows(&self, rows: u64) -> u64 {
        match *self {
            IndexStep::Truncate(most) => rows.min(most),
            IndexStep::Offset(first) => rows.saturating_sub(first),
            IndexStep::Shard { count, index } => rows.saturating_sub(index).div_ceil(count.max(1)),
            IndexStep::Repeat(times) => rows.saturating_mul(times),
            IndexStep::Permute { .. } => rows,
            IndexStep::Part(ref part) => part.len(),
            IndexStep::Rank(ref own) => own.of_epoch(rows),
        }
    }

    /// Whether adjacent rows stay adjacent.
    fn is_contiguous(&self) -> bool {
        matches!(self, IndexStep::Truncate(_) | IndexStep::Offset(_))
    }
}

/// Whether an epoch is one contiguous range of rows.
pub(crate) fn is_contiguous(steps: &[IndexStep]) -> bool {
    steps.iter().all(IndexStep::is_contiguous)
}

/// The number of rows after all steps.
pub(crate) fn rows_after(rows: u64, steps: &[IndexStep]) -> u64 {
    steps.iter().fold(rows, |rows, step| step.rows(rows))
}

/// An epoch, and how many of its rows were consumed with another number of shards. The last shard step starts after
/// them.
pub(crate) type Consumed = Option<(u64, u64)>;

/// The row order of one epoch.
pub(crate) struct Order {
    /// From the consumer to the source.
    steps: Vec<OrderStep>,
    epoch: u64,
    consumed: Consumed,
}

struct OrderStep {
    step: IndexStep,
    /// Rows before the step.
    rows: u64,
    /// Of a shuffle, the permutation of this epoch; repetitions use others.
    permutation: Option<Permutation>,
}

/// The rows of the source that can occur in any epoch. Steps after a shuffle or a repeat are ignored, because any row
/// may then occur; those of one rank are spread over the epoch.
pub(crate) fn span(rows: u64, steps: &[IndexStep]) -> Span {
    let mut span = Span { part: None, first: 0, step: 1, rows };
    for (index, step) in steps.iter().enumerate() {
        let left = step.rows(span.rows);
        let (first, stride) = match *step {
            // Positions are those of the part.
            IndexStep::Part(ref part) if index == 0 => {
                span = Span { part: Some(part.clone()), first: 0, step: 1, rows: left };
                continue;
            }
            IndexStep::Part(_) => break,
            IndexStep::Truncate(_) => (0, 1),
            IndexStep::Offset(first) => (first, 1),
            IndexStep::Shard { count, index } => (index, count),
            IndexStep::Repeat(_) | IndexStep::Permute { .. } | IndexStep::Rank(_) => break,
        };
        span = match left {
            0 => Span { rows: 0, ..span },
            // If a row is left, the skipped rows come before it.
            _ => Span { first: span.first + first * span.step, step: span.step.saturating_mul(stride), rows: left, ..span },
        };
    }
    span
}

impl Order {
    /// The order of epoch 0 for a source of `rows` rows.
    pub fn new(rows: u64, steps: &[IndexStep], consumed: Consumed) -> Order {
        let mut left = rows;
        let compose = |step: &IndexStep| {
            let rows = left;
            left = step.rows(rows);
            OrderStep { step: step.clone(), rows, permutation: permutation(step, rows, 0) }
        };
        let mut steps: Vec<OrderStep> = steps.iter().map(compose).filter(|step| !matches!(step.step, IndexStep::Truncate(_))).collect();
        steps.reverse();
        Order { steps, epoch: 0, consumed }
    }

    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
        self.steps.iter_mut().for_each(|step| step.permutation = permutation(&step.step, step.rows, epoch));
    }

    /// The row at position `place`.
    pub fn row(&self, place: u64) -> u64 {
        let (mut place, mut epoch) = (place, self.epoch);
        let mut consumed = self.consumed.filter(|(consumed, _)| *consumed == epoch).map_or(0, |(_, rows)| rows);
        for OrderStep { step, rows, permutation } in &self.steps {
            match *step {
                IndexStep::Truncate(_) => {}
                IndexStep::Offset(first) => place += first,
                IndexStep::Part(ref part) => place = part.row(place),
                IndexStep::Rank(ref own) => place = own.position(place, *rows),
                IndexStep::Shard { count, index } => place = place * count + index + std::mem::take(&mut consumed),
                IndexStep::Repeat(times) => {
                    epoch = epoch.wrapping_mul(times).wrapping_add(place / rows);
                    place %= rows;
                }
                IndexStep::Permute { seed } => {
                    place = match permutation {
                        Some(permutation) if epoch == self.epoch => permutation.at(place),
                        _ => Permutation::new(*rows, seed, epoch).at(place),
                    }
                }
            }
        }
        place
    }
}

/// The permutation of an epoch, if the step is a shuffle.
fn permutation(step: &IndexStep, rows: u64, epoch: u64) -> Option<Permutation> {
    if let IndexStep::Permute { seed } = step { Some(Permutation::new(rows, *seed, epoch)) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holdout::HoldoutSplit;

    #[test]
    fn a_span_has_the_rows_of_every_epoch() {
        let shard = |count, index| IndexStep::Shard { count, index };
        let shuffle = IndexStep::Permute { seed: 1 };
        let (trained, _) = HoldoutSplit::new(50, 20, 7, &|_| Ok(false)).unwrap().parts();
        let labels = |visit: &mut dyn FnMut(i64)| {
            (0..50).for_each(|row| visit(row % 3));
            Ok(true)
        };
        let (_, held_out) = HoldoutSplit::new(50, 20, 7, &labels).unwrap().parts();
        let first = [IndexStep::Part(trained), IndexStep::Part(held_out)];
        let steps =
            [IndexStep::Offset(3), IndexStep::Truncate(11), shard(3, 1), shard(2, 0), IndexStep::Offset(40), shuffle, IndexStep::Repeat(2)];
        for (a, b, c) in (0..9).flat_map(|a| (0..7).flat_map(move |b| (0..7).map(move |c| (a, b, c)))) {
            let chosen = [steps.iter().chain(&first).nth(a).unwrap().clone(), steps[b].clone(), steps[c].clone()];
            let span = span(50, &chosen);
            let places: Vec<u64> = (0..60).filter_map(|row| span.position(row)).collect();
            assert_eq!(places, (0..span.rows).collect::<Vec<_>>(), "{chosen:?}");
            assert!(places.iter().all(|place| span.position(span.row(*place)) == Some(*place)), "{chosen:?}");
            assert!((0..60).all(|row| span.position(row).is_none() || span.range().contains(&row)));
            let mut order = Order::new(50, &chosen, None);
            let mut seen = vec![false; span.rows as usize];
            for epoch in 0..40 {
                order.set_epoch(epoch);
                let rows = rows_after(50, &chosen);
                (0..rows).for_each(|place| seen[span.position(order.row(place)).unwrap() as usize] = true);
                if rows == 0 {
                    seen.fill(true);
                }
            }
            // After a shuffle or a repeat, the span may contain rows that never occur.
            let exact = chosen[..2].iter().all(|step| !matches!(step, IndexStep::Repeat(_) | IndexStep::Permute { .. }));
            assert!(!exact || seen.iter().all(|seen| *seen), "{chosen:?}");
        }
    }
}
