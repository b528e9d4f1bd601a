//! What a stream and all before it hold.

use super::{Held, Room, Spec, cache, input, reshape, shuffle};
use crate::DataError;
use crate::dataset::{Dataset, Stage};
use plimsoll_core::Bytes;

impl Spec {
    /// What it and all before it hold.
    pub fn cost(&self, room: Room) -> Result<Vec<Held>, DataError> {
        let mut held = Vec::new();
        let (mut here, mut ahead) = (Vec::new(), Vec::new());
        for input in self.inputs() {
            let in_turn = self.opens_in_turn(input);
            let (elsewhere, own): (Vec<Held>, Vec<Held>) =
                input::cost(input, self.room(room))?.into_iter().partition(|held| held.elsewhere && (in_turn || self.in_turns().is_some()));
            ahead.push(elsewhere.iter().map(|held| held.bytes).sum());
            match in_turn {
                true => here.push(own.iter().map(|held| held.bytes).sum()),
                false => held.extend(own),
            }
        }
        // Only so many are open at a time; which, is not known.
        let largest = |mut each: Vec<Bytes>| {
            each.sort_unstable_by(|a, b| b.cmp(a));
            each.into_iter().take(self.cycle()).sum::<Bytes>()
        };
        for (name, bytes, elsewhere) in [(self.name(), largest(here), false), (format!("{} ahead", self.name()), largest(ahead), true)] {
            if bytes > Bytes::ZERO {
                held.push(Held { name, bytes, elsewhere });
            }
        }
        if let Spec::Pictures(pictures) = self {
            held.extend(pictures.cost(room)?);
        }
        if let Spec::Cache { input, cache, .. } = self {
            let cache::Holding { name, bytes } = cache::holding(input, cache, room)?;
            held.push(Held::here(name, bytes));
        }
        let row = self.schema()?.row_bytes();
        let own = match self {
            Spec::Shuffle { input, bytes, .. } => shuffle::rows(*bytes, row, input) * row.0,
            // The rows a window is cut out of; a whole row that is taken apart.
            Spec::Window { input, size, stride, .. } => input.output_schema()?.row_bytes().0 * reshape::span(*size, *stride) as u64,
            Spec::Unbatch { input } => input.output_schema()?.row_bytes().0,
            Spec::FlatMap { limit, .. } => limit.0,
            Spec::Source(source) => source.held.0,
            Spec::Buckets { buckets, .. } => buckets.rows().saturating_mul(row.0),
            _ => 0,
        };
        if own > 0 {
            held.push(Held::here(self.name(), Bytes(own)));
        }
        Ok(held)
    }

    /// How many of its inputs are read at a time.
    fn cycle(&self) -> usize {
        match self {
            Spec::Interleave { cycle, inputs, .. } => (*cycle).min(inputs.len()),
            _ => self.inputs().len(),
        }
    }

    /// The same, where each has a thread of its own.
    pub(super) fn in_turns(&self) -> Option<usize> {
        matches!(self, Spec::Interleave { parallel: true, .. }).then(|| self.cycle())
    }

    /// Whether one of its inputs is open only while it is being read. One that keeps rows stays open, so that it has them the next time; made
    /// ahead by a thread of its own it has not, as they go with the thread.
    pub(super) fn opens_in_turn(&self, input: &Dataset) -> bool {
        self.cycle() < self.inputs().len() && (self.in_turns().is_some() || !keeps_rows(input))
    }
}

/// Whether rows are kept here or before.
pub(super) fn keeps_rows(data: &Dataset) -> bool {
    let before = |spec: &Spec| matches!(spec, Spec::Cache { .. }) || spec.inputs().iter().any(keeps_rows);
    data.stages.iter().any(|stage| matches!(stage, Stage::Cache(..))) || data.stream.as_deref().is_some_and(before)
}
