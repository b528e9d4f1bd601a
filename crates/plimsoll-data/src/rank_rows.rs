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
    ranks: u64,
    rank: u64,
    /// Whether a rank without rows of a batch repeats the last row of it.
    repeats: bool,
}

impl RankRows {
    /// Those of batches of `batch` rows; `rank` is below `ranks`.
    pub fn new(batch: u64, ranks: u64, rank: u64) -> RankRows {
        let ranks = ranks.max(1);
        RankRows { batch: batch.max(1), ranks, rank: rank.min(ranks - 1), repeats: false }
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
        let (each, more) = (rows / self.ranks, rows % self.ranks);
        let start = self.rank * each + self.rank.min(more);
        start..start + each + u64::from(self.rank < more)
    }

    /// Whether the row of a batch of this many rows is repeated: another rank has it too.
    pub fn repeats(&self, rows: u64) -> bool {
        self.repeats && rows > 0 && rows <= self.rank
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

    #[test]
    fn ranks_divide_every_batch() {
        for (batch, ranks, epoch) in (1..9).flat_map(|batch| (1..7).flat_map(move |ranks| (0..30).map(move |epoch| (batch, ranks, epoch))))
        {
            let mut places = Vec::new();
            for rank in 0..ranks {
                let rows = RankRows::new(batch, ranks, rank);
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
            assert_eq!(places, (0..epoch).collect::<Vec<_>>(), "every row once: batch {batch}, {ranks} ranks");
        }
    }
}
