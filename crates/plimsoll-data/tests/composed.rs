//! Everything at once: stages in any order, joins, caches, bad rows, threads, limits and positions, against a plain
//! list.

mod case_count;
mod plain_list;

use case_count::cases;
use plain_list::{interleaved, windows};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::apply;
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, FeedState, Options, Parallelism, Prefetch, Schema, Shuffle, Tensor};
use proptest::prelude::*;
use std::path::Path;
use tempfile::TempDir;

/// What comes where a row should: its numbers, or none if it failed.
type Places = Vec<Option<Vec<i32>>>;

/// The rows of epochs.
type Epochs = Vec<Vec<Vec<i32>>>;

/// The places of an epoch, worked out on a list.
type Oracle = Box<dyn Fn(u64) -> Places>;

/// A pipeline and what should come out of it.
struct Case {
    data: Dataset,
    oracle: Oracle,
    /// Whether a row is the single number `x`.
    plain: bool,
    /// Whether indexed rows are kept already.
    kept: bool,
}

fn numbers() -> Schema {
    Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap()
}

fn is_bad(n: i32, bad: u8) -> bool {
    bad > 0 && n % (3 + i32::from(bad)) == 2
}

fn source(kind: u8, rows: u8, bad: u8) -> Case {
    let rows = i32::from(rows);
    let data = match kind % 3 {
        0 => Dataset::from_fn(numbers(), rows as u64, move |n, row| match is_bad(n as i32, bad) {
            true => Err(DataError::Stage("bad".into())),
            false => row.i32(0, &[n as i32]),
        }),
        1 => Dataset::from_generator(numbers(), move |epoch| {
            (0..rows).map(move |n| match is_bad(n, bad) {
                true => Err(DataError::Stage("bad".into())),
                false => Ok(vec![Tensor::i32([], [n + 1000 * epoch as i32])?]),
            })
        }),
        _ => Dataset::range(0, rows, 1).unwrap(),
    };
    let oracle = move |epoch: u64| {
        let moved = if kind % 3 == 1 { 1000 * epoch as i32 } else { 0 };
        let row = |n| if kind % 3 < 2 && is_bad(n, bad) { None } else { Some(vec![n + moved]) };
        (0..rows).map(row).collect()
    };
    Case { data, oracle: Box::new(oracle), plain: true, kept: false }
}

/// Where indexed rows, or those that a buffer holds, come in an epoch.
fn shuffled(data: &Dataset, rows: usize, seed: u64, epoch: u64) -> Vec<usize> {
    let places = Dataset::range(0, rows as i32, 1).unwrap();
    let places = if has_numbers(data) { places } else { places.filter(|_| true) };
    let (_, rows) =
        read(&places.shuffle(Shuffle::seed(seed)).batch(7), None, Options { first_epoch: epoch, ..Options::default() }, 1).unwrap();
    rows.concat().into_iter().map(|row| row[0] as usize).collect()
}

fn has_numbers(data: &Dataset) -> bool {
    data.is_empty() || data.origin(0, 0).is_some()
}

impl Case {
    fn with(self, data: impl FnOnce(Dataset) -> Dataset, oracle: impl Fn(Places) -> Places + 'static) -> Case {
        let before = self.oracle;
        Case { data: data(self.data), oracle: Box::new(move |epoch| oracle(before(epoch))), ..self }
    }

    /// The stage that a kind and an argument stand for, if it can stand here.
    fn step(self, kind: u8, by: u8, folder: &Path, name: &str) -> Case {
        let n = usize::from(by);
        match kind % 17 {
            0 => self.with(|data| data.skip(u64::from(by % 8)), move |all| all.into_iter().skip(n % 8).collect()),
            1 => self.with(|data| data.take(u64::from(by)), move |all| all.into_iter().take(n).collect()),
            2 => {
                let (count, index) = (1 + n % 3, n % (1 + n % 3));
                self.with(|data| data.shard(count as u64, index as u64), move |all| all.into_iter().skip(index).step_by(count).collect())
            }
            3 => {
                let (times, before) = (1 + u64::from(by) % 3, self.oracle);
                let oracle = move |epoch: u64| (0..times).flat_map(|time| before(epoch * times + time)).collect();
                Case { data: self.data.repeat(times), oracle: Box::new(oracle), ..self }
            }
            4 if self.plain => {
                let bad = apply("bad", [], |_, x, out| {
                    out[0] = x[0] + 1.0;
                    if x[0] as i32 % 11 == 4 { Err("bad".into()) } else { Ok(()) }
                });
                let back = |data: Dataset| data.map("x", [bad]).filter(|_| true);
                let case = self
                    .with(back, |all| all.into_iter().map(|row| row.filter(|row| row[0] % 11 != 4).map(|row| vec![row[0] + 1])).collect());
                // As an integer again, whose bytes are those of a float.
                case.floats_to_ints()
            }
            5 => self.with(
                move |data| data.filter(move |row| row.int("x") % 4 != i64::from(by % 4)),
                move |all| all.into_iter().filter(|row| row.as_ref().is_none_or(|row| x(row) % 4 != i32::from(by % 4))).collect(),
            ),
            6 => self.with(|data| data.ignore_errors(1_000_000), |all| all.into_iter().filter(Option::is_some).collect()),
            7..=9 => self.cached(by, folder, name),
            10 => {
                let threads = |data: Dataset| data.parallelism(Parallelism::Threads(1 + n % 4)).deterministic(!by.is_multiple_of(3));
                self.with(threads, |all| all)
            }
            11 => self.shuffled(u64::from(by)),
            12 if self.plain => {
                let (cycle, block) = (1 + n % 3, 1 + n % 2);
                self.joined(
                    by,
                    move |parts| Dataset::interleave_parallel(parts, cycle, block),
                    move |parts| interleaved(parts, cycle, block),
                )
            }
            13 if self.plain => self.joined(by, Dataset::concatenate, |parts| parts.concat()),
            14 if self.plain => self.windowed(2 + n % 2, 1 + n % 3),
            15 => self.with(
                move |data| data.take_while(move |row| row.int("x") % 1000 < i64::from(by)),
                move |all| all.into_iter().take_while(|row| row.as_ref().is_none_or(|row| x(row) % 1000 < i32::from(by))).collect(),
            ),
            16 if self.plain => {
                let expand = |row: &plimsoll_data::Row<'_>| Dataset::range(row.int("x") as i32, row.int("x") as i32 + 2, 1);
                self.with(
                    |data| data.flat_map(numbers(), Bytes::kib(16), expand),
                    |all| {
                        all.into_iter()
                            .flat_map(|row| row.map_or(vec![None], |row| vec![Some(row.clone()), Some(vec![row[0] + 1])]))
                            .collect()
                    },
                )
            }
            _ => self,
        }
    }

    fn floats_to_ints(self) -> Case {
        let expand = |row: &plimsoll_data::Row<'_>| {
            let x = row.numbers("x").next().unwrap() as i32;
            Dataset::range(x, x + 1, 1)
        };
        Case { data: self.data.flat_map(numbers(), Bytes::kib(16), expand), ..self }
    }

    /// The last map, on some threads; it may have bad rows of its own. What comes out is the bytes of floats.
    fn mapped(self, threads: usize, bad: bool) -> Case {
        let is_bad = move |x: i32| bad && x % 13 == 5;
        let op = apply("last", [], move |_, x, out| {
            out[0] = x[0] * 0.5;
            if is_bad(x[0] as i32) { Err("bad".into()) } else { Ok(()) }
        });
        let halved = |x: i32| (x as f32 * 0.5).to_bits() as i32;
        self.with(
            |data| data.map("x", [op]).parallelism(Parallelism::Threads(threads)),
            move |all| all.into_iter().map(|row| row.filter(|row| !is_bad(row[0])).map(|row| vec![halved(row[0])])).collect(),
        )
    }

    fn cached(self, by: u8, folder: &Path, name: &str) -> Case {
        let cache = match by % 4 {
            0 => Cache::MemoryUpTo(Bytes::kib(64)),
            1 => Cache::MemoryUpTo(Bytes(u64::from(by) * 4)),
            2 => Cache::File(folder.join(name)),
            _ => Cache::FileIfSpace(folder.join(name)),
        };
        let before = self.oracle;
        match has_numbers(&self.data) {
            true if self.kept => Case { oracle: before, ..self },
            true => Case { data: self.data.version("1").cache(cache), oracle: before, kept: true, ..self },
            false => Case { data: self.data.version("1").cache(cache), oracle: Box::new(move |_| before(0)), ..self },
        }
    }

    fn shuffled(self, seed: u64) -> Case {
        // What is reported between rows has no place in a buffer.
        let data = if has_numbers(&self.data) { self.data.clone() } else { self.data.ignore_errors(1_000_000) };
        let (places, before) = (data.clone(), self.oracle);
        let numbered = has_numbers(&data);
        let oracle = move |epoch| {
            let all: Places = before(epoch).into_iter().filter(|row| numbered || row.is_some()).collect();
            shuffled(&places, all.len(), seed, epoch).into_iter().map(|place| all[place].clone()).collect()
        };
        Case { data: data.shuffle(Shuffle::seed(seed)), oracle: Box::new(oracle), ..self }
    }

    fn joined(self, by: u8, join: impl FnOnce([Dataset; 3]) -> Dataset, oracle: impl Fn(Vec<Places>) -> Places + 'static) -> Case {
        let others = [source(by, by % 13, by % 4), source(by / 3, by % 7, 0)];
        let [(a, of_a), (b, of_b)] = others.map(|case| (case.data, case.oracle));
        let (data, before) = (join([a, self.data, b]), self.oracle);
        let oracle = move |epoch| oracle(vec![of_a(epoch), before(epoch), of_b(epoch)]);
        Case { data, oracle: Box::new(oracle), plain: true, kept: false }
    }

    fn windowed(self, size: usize, shift: usize) -> Case {
        let oracle = move |all| windows(all, size, shift, 1).into_iter().map(|rows| rows.map(|rows| rows.concat())).collect();
        Case { plain: false, ..self.with(|data| data.window(size, shift, 1), oracle) }
    }
}

/// What filters look at.
fn x(row: &[i32]) -> i32 {
    row[0]
}

/// The rows of some epochs from where `options` say, and where the feed stood after each batch.
fn read(data: &Dataset, limit: Option<Bytes>, options: Options, epochs: u64) -> Result<(Vec<FeedState>, Epochs), DataError> {
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let (mut states, mut all) = (Vec::new(), Vec::new());
    {
        let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(epochs), ..options })?;
        for _ in 0..epochs {
            let mut rows = Vec::new();
            while let Some(batch) = feed.next()? {
                let bytes = batch.column(0);
                let ints = |row: &[u8]| row.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect();
                rows.extend(bytes.chunks_exact(bytes.len() / batch.rows).map(ints));
                states.push(feed.state());
            }
            all.push(rows);
        }
    }
    assert!(ledger.peak() <= plan.total(), "{} held, and planned was\n{plan}", ledger.peak());
    assert_eq!(ledger.used(), Bytes::ZERO);
    Ok((states, all))
}

/// The rows that are left of an epoch that `old` shards have begun are shared out among `new` ones.
fn check_shards(data: &Dataset, expected: &[Vec<i32>], (old, new): (u64, u64), taken: usize, batch: usize) -> Result<(), TestCaseError> {
    let shard = |count, index| data.clone().shard(count, index).batch(batch);
    let each = expected.len() / old as usize / batch;
    let taken = taken % (each + 1);
    let (mut rows, mut state) = (Vec::new(), None);
    for index in 0..old {
        let (states, mut came) = read(&shard(old, index), None, Options::default(), 1).unwrap();
        came[0].truncate(taken * batch);
        rows.append(&mut came[0]);
        state = taken.checked_sub(1).map(|last| states[last].clone());
    }
    let Some(state) = state else { return Ok(()) };
    for index in 0..new {
        let data = shard(new, index);
        rows.append(&mut read(&data, None, Options::resume(&state, &data).unwrap(), 1).unwrap().1[0]);
    }
    let mut expected = expected.to_vec();
    rows.sort();
    expected.sort();
    prop_assert_eq!(rows, expected, "{} shards and then {}, after {} batches of {}", old, new, taken, data.describe());
    Ok(())
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn any_pipeline_gives_the_rows_of_a_plain_list(
        first in (0u8..3, 0u8..60, 0u8..4),
        steps in prop::collection::vec((any::<u8>(), any::<u8>()), 0..7),
        batch in 1usize..9,
        ahead in prop::option::of(0usize..4),
        room in 0u64..=100,
        stop: prop::sample::Index,
        (old, new) in (1u64..4, 1u64..4),
        left_out: bool,
        last in prop::option::of(1usize..5),
    ) {
        let folder = TempDir::new().unwrap();
        let mut case = source(first.0, first.1, first.2);
        for (at, (kind, by)) in steps.iter().enumerate() {
            case = case.step(*kind, *by, folder.path(), &format!("{at}.plc"));
            // An epoch that makes sense in a test.
            let rows = (case.oracle)(0).len();
            if rows > 600 {
                case = case.with(|data| data.take(600), |all| all.into_iter().take(600).collect());
            }
        }
        if left_out {
            case = case.step(6, 0, folder.path(), "");
        }
        if case.plain && let Some(threads) = last {
            case = case.mapped(threads, !left_out);
        }
        let data = case.data.clone().deterministic(true).batch(batch);
        let data = if let Some(batches) = ahead { data.prefetch(Prefetch::Batches(batches)) } else { data };
        let places: Vec<Places> = (0..3).map(|epoch| (case.oracle)(epoch)).collect();
        let plan = data.plan(None).unwrap();
        prop_assert!(plan.minimum() <= plan.total(), "a plan below the minimum:\n{}", plan);
        let some = Bytes(plan.minimum().0 + (plan.total() - plan.minimum()).0 * room / 100);
        // Twice under the first limit: what a file has kept is then found.
        for limit in [Some(some), Some(some), Some(plan.minimum()), None] {
            let came = read(&data, limit, Options::default(), 3);
            if places.iter().flatten().any(Option::is_none) {
                // Where it is known that nothing comes, nothing is read.
                prop_assert!(came.is_err() || data.size() == Some(0), "a bad row is an error in {}", data.describe());
                continue;
            }
            let expected: Epochs = places.iter().map(|epoch| epoch.iter().flatten().cloned().collect()).collect();
            let (states, came) = came.unwrap();
            prop_assert_eq!(&came, &expected, "{} in {:?}", data.describe(), limit);
            if !states.is_empty() {
                let (at, state) = (stop.index(states.len()), stop.get(&states));
                let left = 3 - state.epoch;
                let (_, rest) = read(&data, limit, Options::resume(state, &data).unwrap(), left).unwrap();
                let mut expected = expected[state.epoch as usize..].to_vec();
                expected[0] = expected[0].iter().skip(state.batches as usize * batch).cloned().collect();
                prop_assert_eq!(rest, expected, "{} resumed after {} batches in {:?}", data.describe(), at, limit);
            }
        }
        if left_out {
            let expected: Vec<Vec<i32>> = places[0].iter().flatten().cloned().collect();
            check_shards(&case.data, &expected, (old, new), room as usize, batch)?;
        }
    }
}
