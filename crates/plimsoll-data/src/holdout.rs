//! Which rows are held out for validation: a random sample, spread evenly over the rows or over their classes.

use crate::DataError;
use crate::rng::mix64;
use plimsoll_core::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One of the two parts of a split: the rows that are held out, or the others, in the order of the source.
#[derive(Clone, Debug)]
pub(crate) struct SplitPart {
    split: HoldoutSplit,
    /// Whether this is the part that is held out.
    held_out: bool,
}

/// A split of `rows` rows.
///
/// Rows are divided into as many strata of consecutive rows as are held out, and a hash of seed and stratum chooses one
/// row of each. That needs no memory, and rows sorted by class are stratified by class. If rows have classes in another
/// order, the strata are those of the rows sorted by class, and the choice is stored as one bit per row.
#[derive(Clone, Debug)]
pub(crate) struct HoldoutSplit {
    strata: Strata,
    /// Whether each row is held out, if that does not follow from its index.
    chosen: Option<Arc<Bitmap>>,
}

/// With more distinct labels, integers are numbers rather than classes.
const MOST_CLASSES: usize = 1 << 16;

/// Calls a function with the class of every row, in order; `false` if rows have no classes that can be read alone.
pub(crate) type VisitClasses<'a> = dyn Fn(&mut dyn FnMut(i64)) -> Result<bool, DataError> + 'a;

impl HoldoutSplit {
    /// Holds out `held` of `rows` rows, stratified by class where there are classes.
    pub fn new(rows: u64, held: u64, seed: u64, classes: &VisitClasses<'_>) -> Result<HoldoutSplit, DataError> {
        let strata = Strata { rows, held, seed };
        let Some(mut next) = ClassCounts::count(rows, classes)?.and_then(ClassCounts::unsorted) else {
            return Ok(HoldoutSplit { strata, chosen: None });
        };
        let mut bits = RowBits { words: vec![0; rows.div_ceil(64) as usize], row: 0 };
        classes(&mut |class| {
            // A file that changed since it was counted has other classes; its rows are then no longer stratified.
            let rank = next.get_mut(&class).map_or(bits.row, |next| {
                *next += 1;
                *next - 1
            });
            bits.push(strata.is_chosen(rank.min(rows - 1)));
        })?;
        let chosen = Bitmap::new(bits.words, rows);
        let strata = Strata { held: chosen.held(), ..strata };
        Ok(HoldoutSplit { strata, chosen: Some(Arc::new(chosen)) })
    }

    /// The rows to train on, and those that are held out.
    pub fn parts(self) -> (SplitPart, SplitPart) {
        (SplitPart { split: self.clone(), held_out: false }, SplitPart { split: self, held_out: true })
    }
}

impl SplitPart {
    /// The rows whose bits are set.
    pub fn of_rows(words: Vec<u64>, rows: u64) -> SplitPart {
        let chosen = Bitmap::new(words, rows);
        let strata = Strata { rows, held: chosen.held(), seed: 0 };
        SplitPart { split: HoldoutSplit { strata, chosen: Some(Arc::new(chosen)) }, held_out: true }
    }

    pub fn is_held_out(&self) -> bool {
        self.held_out
    }

    /// The number of rows of the part.
    pub fn len(&self) -> u64 {
        let Strata { rows, held, .. } = self.split.strata;
        if self.held_out { held } else { rows - held }
    }

    /// The row of the source at a position of the part.
    pub fn row(&self, place: u64) -> u64 {
        match (&self.split.chosen, self.held_out) {
            (Some(chosen), held_out) => chosen.row(place, held_out),
            (None, true) => self.split.strata.held_row(place),
            (None, false) => self.split.strata.other_row(place),
        }
    }

    /// The position of a row of the source, if the part has it.
    pub fn place(&self, row: u64) -> Option<u64> {
        let (held, before) = match &self.split.chosen {
            Some(chosen) => chosen.held_before(row),
            None => self.split.strata.held_before(row),
        };
        (held == self.held_out).then_some(if held { before } else { row - before })
    }

    /// The memory of the choice.
    pub fn bytes(&self) -> Bytes {
        self.split.chosen.as_ref().map_or(Bytes::ZERO, |chosen| chosen.bytes())
    }
}

/// Strata of consecutive rows, one row of each chosen.
#[derive(Clone, Copy, Debug)]
struct Strata {
    rows: u64,
    held: u64,
    seed: u64,
}

/// `⌊a · b / c⌋`, which fits.
fn scale(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => (u128::from(a) * u128::from(b) / u128::from(c)) as u64,
    }
}

/// `⌈a · b / c⌉ − 1` for positive numbers.
fn scale_below(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => (product - 1) / c,
        None => ((u128::from(a) * u128::from(b) - 1) / u128::from(c)) as u64,
    }
}

impl Strata {
    /// The first row of a stratum.
    fn start(&self, stratum: u64) -> u64 {
        scale(stratum, self.rows, self.held)
    }

    /// The stratum of a row.
    fn of(&self, row: u64) -> u64 {
        scale_below(row + 1, self.held, self.rows)
    }

    /// The chosen row of a stratum.
    fn held_row(&self, stratum: u64) -> u64 {
        let (start, end) = (self.start(stratum), self.start(stratum + 1));
        let hash = mix64(self.seed ^ mix64(stratum.wrapping_add(SALT)));
        start + ((u128::from(hash) * u128::from(end - start)) >> 64) as u64
    }

    /// The other row at this position among the others.
    fn other_row(&self, place: u64) -> u64 {
        let others = self.rows - self.held;
        if self.held == 0 {
            return place;
        }
        // ⌊stratum · others / held⌋ others come before a stratum.
        let stratum = scale_below(place + 1, self.held, others);
        let row = self.start(stratum) + place - scale(stratum, others, self.held);
        row + u64::from(row >= self.held_row(stratum))
    }

    fn is_chosen(&self, row: u64) -> bool {
        self.held_before(row).0
    }

    /// Whether a row is chosen, and how many before it are.
    fn held_before(&self, row: u64) -> (bool, u64) {
        if self.held == 0 {
            return (false, 0);
        }
        let stratum = self.of(row);
        let chosen = self.held_row(stratum);
        (row == chosen, stratum + u64::from(row > chosen))
    }
}

/// Keeps the choice independent of other uses of the same seed.
const SALT: u64 = 0x5EED_0F0A_B1A5_ED01;

/// The number of rows of each class.
struct ClassCounts {
    counts: BTreeMap<i64, u64>,
    is_sorted: bool,
}

impl ClassCounts {
    /// Counts classes; `None` if labels are no classes.
    fn count(rows: u64, classes: &VisitClasses<'_>) -> Result<Option<ClassCounts>, DataError> {
        let mut found = ClassCounts { counts: BTreeMap::new(), is_sorted: true };
        let (mut seen, mut before) = (0, i64::MIN);
        let known = classes(&mut |class| {
            found.is_sorted &= before <= class;
            (seen, before) = (seen + 1, class);
            // Beyond the limit only the row is counted.
            if found.counts.len() <= MOST_CLASSES || found.counts.contains_key(&class) {
                *found.counts.entry(class).or_default() += 1;
            }
        })?;
        let are_classes = found.counts.len() <= MOST_CLASSES && found.counts.len() as u64 <= (rows / 2).max(1);
        Ok(Some(found).filter(|_| known && seen == rows && are_classes))
    }

    /// The rank of the first row of each class among the rows sorted by class; `None` if they are sorted.
    fn unsorted(self) -> Option<BTreeMap<i64, u64>> {
        let mut counts = self.counts;
        let mut rank = 0;
        for count in counts.values_mut() {
            rank += std::mem::replace(count, rank);
        }
        (!self.is_sorted).then_some(counts)
    }
}

/// The number of rows of each class, if labels are classes.
pub(crate) fn class_counts(rows: u64, classes: &VisitClasses<'_>) -> Result<Option<BTreeMap<i64, u64>>, DataError> {
    Ok(ClassCounts::count(rows, classes)?.map(|found| found.counts))
}

/// The classes among the first `rows` rows and among all, if rows are sorted by class.
pub(crate) fn sorted_classes(rows: u64, total: u64, classes: &VisitClasses<'_>) -> Result<Option<(u64, u64)>, DataError> {
    let (mut seen, mut before, mut sorted) = (0, i64::MIN, true);
    let (mut first, mut all) = (0, 0);
    let known = classes(&mut |class| {
        sorted &= before <= class;
        let is_new = seen == 0 || before != class;
        all += u64::from(is_new);
        first += u64::from(is_new && seen < rows);
        (seen, before) = (seen + 1, class);
    })?;
    Ok((known && sorted && seen == total).then_some((first, all)))
}

struct RowBits {
    words: Vec<u64>,
    row: u64,
}

impl RowBits {
    fn push(&mut self, is_set: bool) {
        if let Some(word) = self.words.get_mut((self.row / 64) as usize) {
            *word |= u64::from(is_set) << (self.row % 64);
        }
        self.row += 1;
    }
}

/// One bit per row, with the number of set bits before every block of words.
#[derive(Debug)]
struct Bitmap {
    words: Vec<u64>,
    before: Vec<u64>,
    rows: u64,
}

/// Words per block.
const BLOCK: usize = 8;

/// Rows per block.
const BLOCK_ROWS: u64 = 64 * BLOCK as u64;

impl Bitmap {
    fn new(words: Vec<u64>, rows: u64) -> Bitmap {
        let mut sum = 0;
        let mut before: Vec<u64> = Vec::with_capacity(words.len().div_ceil(BLOCK) + 1);
        before.push(0);
        for block in words.chunks(BLOCK) {
            sum += block.iter().map(|word| u64::from(word.count_ones())).sum::<u64>();
            before.push(sum);
        }
        Bitmap { words, before, rows }
    }

    fn held(&self) -> u64 {
        self.before[self.before.len() - 1]
    }

    fn bytes(&self) -> Bytes {
        Bytes((size_of_val(&self.words[..]) + size_of_val(&self.before[..])) as u64)
    }

    /// Whether a row is set, and how many before it are.
    fn held_before(&self, row: u64) -> (bool, u64) {
        let (word, bit) = ((row / 64) as usize, row % 64);
        let block = word / BLOCK;
        let whole: u64 = self.words[block * BLOCK..word].iter().map(|word| u64::from(word.count_ones())).sum();
        let below = self.words[word] & ((1 << bit) - 1);
        (self.words[word] >> bit & 1 == 1, self.before[block] + whole + u64::from(below.count_ones()))
    }

    /// The row at a position among those that are set, or among the others.
    fn row(&self, place: u64, set: bool) -> u64 {
        let others = |block: usize| (block as u64 * BLOCK_ROWS).min(self.rows) - self.before[block];
        let before = |block: usize| if set { self.before[block] } else { others(block) };
        // The last block with at most `place` such rows before it.
        let (mut low, mut high) = (0, self.before.len() - 1);
        while high - low > 1 {
            let middle = (low + high) / 2;
            if before(middle) <= place { low = middle } else { high = middle }
        }
        let mut left = place - before(low);
        for (index, &word) in self.words[low * BLOCK..].iter().enumerate() {
            let mut bits = if set { word } else { !word };
            let count = u64::from(bits.count_ones());
            if left < count {
                for _ in 0..left {
                    bits &= bits - 1;
                }
                return ((low * BLOCK + index) as u64) * 64 + u64::from(bits.trailing_zeros());
            }
            left -= count;
        }
        unreachable!("a position is below the number of rows of its part")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn no_classes(_: &mut dyn FnMut(i64)) -> Result<bool, DataError> {
        Ok(false)
    }

    fn of_labels(labels: &[i64]) -> impl Fn(&mut dyn FnMut(i64)) -> Result<bool, DataError> + '_ {
        |visit| {
            labels.iter().for_each(|label| visit(*label));
            Ok(true)
        }
    }

    fn rows(part: &SplitPart) -> Vec<u64> {
        (0..part.len()).map(|place| part.row(place)).collect()
    }

    /// No row is in both parts, none is lost, positions and rows are inverse, and the order is that of the source.
    fn check(split: HoldoutSplit, total: u64) -> (Vec<u64>, Vec<u64>) {
        let (training, held) = split.parts();
        let both = (rows(&training), rows(&held));
        for (part, rows) in [(&training, &both.0), (&held, &both.1)] {
            assert!(rows.is_sorted_by(|a, b| a < b), "{rows:?}");
            rows.iter().enumerate().for_each(|(place, row)| assert_eq!(part.place(*row), Some(place as u64)));
        }
        let mut all: Vec<u64> = both.0.iter().chain(&both.1).copied().collect();
        all.sort_unstable();
        assert_eq!(all, (0..total).collect::<Vec<_>>());
        assert!((0..total).all(|row| training.place(row).is_some() != held.place(row).is_some()));
        both
    }

    proptest! {
        #[test]
        fn parts_are_complementary(total in 1u64..3000, share in 0.0f64..1.0, seed: u64, classes in prop::option::of(1i64..40)) {
            let held = ((total as f64 * share) as u64).min(total - 1);
            let labels: Vec<i64> = (0..total).map(|row| (mix64(seed ^ row) % classes.unwrap_or(1) as u64) as i64).collect();
            let visit = of_labels(&labels);
            let split = if classes.is_some() { HoldoutSplit::new(total, held, seed, &visit) } else { HoldoutSplit::new(total, held, seed, &no_classes) };
            let (training, out) = check(split.unwrap(), total);
            prop_assert_eq!(out.len() as u64, held);
            prop_assert_eq!(training.len() as u64, total - held);
            // Each class is held out in proportion: at most one stratum overlaps each of its ends.
            for class in 0..classes.unwrap_or(0) {
                let all = labels.iter().filter(|label| **label == class).count() as f64;
                let found = out.iter().filter(|row| labels[**row as usize] == class).count() as f64;
                prop_assert!((found - all * held as f64 / total as f64).abs() < 2.0, "class {}: {} of {}", class, found, all);
            }
        }

        #[test]
        fn huge_numbers_of_rows_do_not_overflow(total in (1u64 << 40)..(1 << 62), divisor in 2u64..1000, seed: u64, at: u64) {
            let (training, held) = HoldoutSplit::new(total, total / divisor, seed, &no_classes).unwrap().parts();
            for part in [training, held] {
                let place = at % part.len();
                prop_assert!(part.row(place) < total);
                prop_assert_eq!(part.place(part.row(place)), Some(place));
            }
        }
    }

    #[test]
    fn another_seed_holds_out_other_rows() {
        let held = |seed| rows(&HoldoutSplit::new(1000, 250, seed, &no_classes).unwrap().parts().1);
        assert_eq!(held(1), held(1));
        let same = held(1).iter().filter(|row| held(2).contains(row)).count();
        assert!((30..100).contains(&same), "about a quarter of 250, not {same}");
    }

    #[test]
    fn every_row_of_a_stratum_is_equally_likely() {
        let mut counts = [0; 12];
        for seed in 0..6000 {
            rows(&HoldoutSplit::new(12, 3, seed, &no_classes).unwrap().parts().1).iter().for_each(|row| counts[*row as usize] += 1);
        }
        assert!(counts.iter().all(|count| (1350..1650).contains(count)), "{counts:?}");
    }

    #[test]
    fn classes_of_one_row_are_pooled() {
        // Forty classes of two rows each: half of the classes have a row held out, none is refused.
        let labels: Vec<i64> = (0..80).map(|row| row % 40).collect();
        let (_, held) = check(HoldoutSplit::new(80, 20, 7, &of_labels(&labels)).unwrap(), 80);
        assert_eq!(held.len(), 20);
    }

    #[test]
    fn rows_sorted_by_class_need_no_memory() {
        let labels: Vec<i64> = (0..400).map(|row| row / 100).collect();
        let split = HoldoutSplit::new(400, 100, 0, &of_labels(&labels)).unwrap();
        let (_, held) = split.parts();
        assert_eq!(held.bytes(), Bytes::ZERO);
        for class in 0..4 {
            assert_eq!(rows(&held).iter().filter(|row| **row / 100 == class).count(), 25);
        }
        assert_eq!(sorted_classes(150, 400, &of_labels(&labels)).unwrap(), Some((2, 4)));
        assert_eq!(sorted_classes(150, 4, &of_labels(&[1, 0, 1, 0])).unwrap(), None);
    }
}
