//! The rows of a batch that one rank trains on.

use std::ops::Range;

/// The part of every batch that one of several ranks has: consecutive rows, so that the order of samples does not
/// depend on the number of ranks. The first ranks have one row more where the rows cannot be divided equally.
///
/// ```
/// use plimsoll_data::RankRows;
/// let rows: Vec<_> = (0..3).map(|rank| RankRows::new(32, 3, rank).of_batch(32)).collect();
/// assert_eq!(rows, [0..11, 11..22, 22..32]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankRows {
    batch: u64,
    share: Share,
    /// Whether a rank without rows of a batch repeats the last row of it.
    repeats: bool,
}

/// How the rows of a rank follow from those of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Share {
    /// As many as others have, or one more.
    Equal { ranks: u64, rank: u64 },
    /// Those at the positions from the first to the second, as far as the batch has them.
    Fixed(u64, u64),
}

impl RankRows {
    /// Those of batches of `batch` rows; `rank` is below `ranks`.
    pub fn new(batch: u64, ranks: u64, rank: u64) -> RankRows {
        let ranks = ranks.max(1);
        RankRows { batch: batch.max(1), share: Share::Equal { ranks, rank: rank.min(ranks - 1) }, repeats: false }
    }

    /// The rows at the same positions of every batch, of those that it has.
    ///
    /// ```
    /// use plimsoll_data::RankRows;
    /// let rows = RankRows::fixed(32, 8..16);
    /// assert_eq!((rows.of_batch(32), rows.of_batch(10), rows.of_batch(5)), (8..16, 8..10, 5..5));
    /// ```
    pub fn fixed(batch: u64, rows: Range<u64>) -> RankRows {
        let batch = batch.max(1);
        let end = rows.end.min(batch);
        RankRows { batch, share: Share::Fixed(rows.start.min(end), end), repeats: false }
    }

    /// The same, but a rank without rows of a batch has the last row of it: all ranks then have equally many batches.
    ///
    /// ```
    /// use plimsoll_data::RankRows;
    /// let rows = RankRows::new(32, 4, 3).repeating();
    /// assert_eq!((rows.of_batch(3), rows.repeats(3)), (2..3, true));
    /// ```
    pub fn repeating(self) -> RankRows {
        RankRows { repeats: true, ..self }
    }

    /// Rows of a batch that is not the last of an epoch.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// The positions in a batch of this many rows.
    pub fn of_batch(&self, rows: u64) -> Range<u64> {
        if self.repeats(rows) {
            return rows - 1..rows;
        }
        match self.share {
            Share::Equal { ranks, rank } => {
                let (each, more) = (rows / ranks, rows % ranks);
                let start = rank * each + rank.min(more);
                start..start + each + u64::from(rank < more)
            }
            Share::Fixed(start, end) => start.min(rows)..end.min(rows),
        }
    }

    /// Whether the row of a batch of this many rows is repeated: another rank has it too.
    pub fn repeats(&self, rows: u64) -> bool {
        let first = match self.share {
            Share::Equal { rank, .. } => rank,
            // None of its own, whatever the batch.
            Share::Fixed(start, end) if start == end => u64::MAX,
            Share::Fixed(start, _) => start,
        };
        self.repeats && rows > 0 && rows <= first
    }

    /// The most rows that a rank has of a batch of this many rows: those of the first, where ranks have equal shares.
    ///
    /// ```
    /// use plimsoll_data::RankRows;
    /// assert_eq!(RankRows::new(32, 3, 2).most(32), 11);
    /// ```
    pub fn most(&self, rows: u64) -> u64 {
        match self.share {
            Share::Equal { ranks, .. } => rows.div_ceil(ranks),
            Share::Fixed(start, end) => end.min(rows) - start.min(rows),
        }
    }

    /// Rows of a batch that is not the last of an epoch. The last one has no more of them.
    pub fn rows(&self) -> u64 {
        let rows = self.of_batch(self.batch);
        rows.end - rows.start
    }

    /// Rows of an epoch of this many rows.
    pub fn of_epoch(&self, rows: u64) -> u64 {
        let last = self.of_batch(rows % self.batch);
        rows / self.batch * self.rows() + (last.end - last.start)
    }

    /// The position in an epoch of `epoch` rows of the rank's row at position `place`.
    pub fn position(&self, place: u64, epoch: u64) -> u64 {
        let rows = self.rows();
        let whole = epoch / self.batch;
        let number = place.checked_div(rows).map_or(whole, |number| number.min(whole));
        let first = number * self.batch;
        first + self.of_batch(self.batch.min(epoch - first)).start + (place - number * rows)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of some ranks: equal ones, or those of blocks of some rows, the first block last.
    fn shares(batch: u64, ranks: u64, block: u64) -> Vec<RankRows> {
        let fixed = |rank: u64| RankRows::fixed(batch, rank * block..if rank + 1 < ranks { (rank + 1) * block } else { u64::MAX });
        match block {
            0 => (0..ranks).map(|rank| RankRows::new(batch, ranks, rank)).collect(),
            _ => (1..ranks).chain([0]).map(fixed).collect(),
        }
    }

    #[test]
    fn ranks_divide_every_batch() {
        let batches = (1..9).flat_map(|batch| (1..7).flat_map(move |ranks| (0..30).map(move |epoch| (batch, ranks, epoch))));
        for (block, (batch, ranks, epoch)) in batches.flat_map(|batch| [(0, batch), (1, batch), (3, batch)]) {
            let mut places = Vec::new();
            for rows in shares(batch, ranks, block) {
                places.extend((0..rows.of_epoch(epoch)).map(|place| rows.position(place, epoch)));
                let padded = rows.repeating();
                assert!((0..=batch).all(|last| rows.of_batch(last).end - rows.of_batch(last).start <= rows.rows()));
                assert_eq!(padded.of_epoch(epoch).div_ceil(padded.rows()), epoch.div_ceil(batch), "equally many batches");
                let position = |place| padded.position(place, epoch);
                let batches: Vec<u64> = (0..padded.of_epoch(epoch)).map(|place| position(place) / batch).collect();
                assert!(batches.iter().enumerate().all(|(place, number)| place as u64 / padded.rows() == *number));
                let repeated = |number: &u64| padded.repeats(batch.min(epoch - number * batch));
                let repeats = batches.iter().filter(|number| repeated(number)).count() as u64;
                assert_eq!(padded.of_epoch(epoch) - repeats, rows.of_epoch(epoch));
            }
            places.sort_unstable();
            assert_eq!(places, (0..epoch).collect::<Vec<_>>(), "every row once: batch {batch}, {ranks} ranks, blocks of {block}");
        }
    }
}
