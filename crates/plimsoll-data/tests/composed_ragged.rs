//! Rows of several columns, some of which vary in length: joins, buckets, windows and padding in any order, under any
//! limit, against a plain list.

mod case_count;
mod plain_list;
mod ragged_rows;

use case_count::cases;
use plain_list::{bucketed, interleaved, windows};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::fill;
use plimsoll_data::{
    Cache, Column, DataError, Dataset, Extent, Feed, FeedState, Options, PadTo, Parallelism, Prefetch, Row, Schema, Shuffle,
};
use proptest::prelude::*;
use ragged_rows::{Cells, Kind, Places, kinds, tensors};
use std::path::Path;
use std::rc::Rc;
use tempfile::TempDir;

/// The shape and the numbers of each column of a batch.
type Shown = Vec<(Vec<usize>, Vec<i32>)>;

/// A pipeline and what should come out of it.
#[derive(Clone)]
struct Case {
    data: Dataset,
    oracle: Rc<dyn Fn(u64) -> Places>,
    /// Whether indexed rows are kept already.
    kept: bool,
    /// Whether some are kept in a file, which has one reader at a time.
    filed: bool,
}

fn has_numbers(data: &Dataset) -> bool {
    data.is_empty() || data.origin(0, 0).is_some()
}

/// Where rows come, as a plain pipeline of their places has it.
fn order(data: &Dataset, epoch: u64) -> Vec<usize> {
    let data = data.clone().batch(7);
    let read = read(&data, None, Options { first_epoch: epoch, ..Options::default() }, 1).unwrap();
    read.1[0].iter().flat_map(|batch| batch[0].1.iter().map(|place| *place as usize)).collect()
}

fn range(rows: usize) -> Dataset {
    Dataset::range(0, rows as i32, 1).unwrap()
}

fn at(all: &Places, places: Vec<usize>) -> Places {
    places.into_iter().map(|place| all[place].clone()).collect()
}

impl Case {
    fn new(kind: Kind, x: &str, y: &str) -> Case {
        let (data, oracle) = kind.source(x, y);
        Case { data, oracle: Rc::new(oracle), kept: false, filed: false }
    }

    fn columns(&self) -> Vec<Column> {
        self.data.output_schema().unwrap().columns().to_vec()
    }

    fn place_of(&self, name: &str) -> Option<usize> {
        self.columns().iter().position(|column| column.name == name)
    }

    fn is_ragged(&self) -> bool {
        self.columns().iter().any(|column| column.extent == Extent::UpTo)
    }

    fn of(self, data: Dataset, oracle: impl Fn(u64) -> Places + 'static) -> Case {
        Case { kept: self.kept && has_numbers(&data), data, oracle: Rc::new(oracle), ..self }
    }

    fn with(self, data: impl FnOnce(Dataset) -> Dataset, oracle: impl Fn(Places) -> Places + 'static) -> Case {
        let before = Rc::clone(&self.oracle);
        let data = data(self.data.clone());
        self.of(data, move |epoch| oracle(before(epoch)))
    }

    /// The stage that a kind and an argument stand for, if it can stand here.
    fn step(self, kind: u8, by: u8, other: Kind, folder: &Path, number: usize) -> Case {
        let n = usize::from(by);
        let y = self.place_of("y").expect("every row has it");
        match kind % 20 {
            0 => self.with(|data| data.skip(u64::from(by % 5)), move |all| all.into_iter().skip(n % 5).collect()),
            1 => self.with(|data| data.take(u64::from(by)), move |all| all.into_iter().take(n).collect()),
            2 => {
                let (count, index) = (1 + n % 3, n % (1 + n % 3));
                self.with(|data| data.shard(count as u64, index as u64), move |all| all.into_iter().skip(index).step_by(count).collect())
            }
            3 => {
                let (times, before) = (1 + u64::from(by) % 2, Rc::clone(&self.oracle));
                let data = self.data.clone().repeat(times);
                self.of(data, move |epoch| (0..times).flat_map(|time| before(epoch * times + time)).collect())
            }
            4 => self.with(
                move |data| data.filter(move |row| row.int("y") % 4 != i64::from(by % 4)),
                move |all| all.into_iter().filter(|row| row.as_ref().is_none_or(|row| row[y][0] % 4 != i32::from(by % 4))).collect(),
            ),
            5 => match self.place_of("x") {
                Some(x) => self.with(
                    move |data| data.filter(move |row| row.numbers("x").sum::<f64>() as usize % 3 != n % 3),
                    move |all| {
                        let keeps = |row: &Cells| row[x].iter().sum::<i32>() as usize % 3 != n % 3;
                        all.into_iter().filter(|row| row.as_ref().is_none_or(keeps)).collect()
                    },
                ),
                None => self,
            },
            6 => self.with(|data| data.ignore_errors(1_000_000), |all| all.into_iter().filter(Option::is_some).collect()),
            7 | 8 => self.cached(by, folder, number),
            9 => {
                let threads = |data: Dataset| data.parallelism(Parallelism::Threads(1 + n % 4)).deterministic(!by.is_multiple_of(3));
                self.with(threads, |all| all)
            }
            10 => self.shuffled(by),
            11 => self.zipped(by, other, number),
            12 => {
                let name = format!("n{number}");
                self.with(
                    |data| data.enumerate(name),
                    |all| {
                        let numbered = |(number, row): (usize, Option<Cells>)| Some([vec![vec![number as i32]], row?].concat());
                        all.into_iter().enumerate().map(numbered).collect()
                    },
                )
            }
            13 => self.sampled(by),
            14 => {
                let (cycle, block) = (1 + n % 3, 1 + n % 2);
                let join = move |parts: Vec<Dataset>| match by % 5 {
                    0 => Dataset::interleave(parts, cycle, block),
                    _ => Dataset::interleave_parallel(parts, cycle, block),
                };
                self.joined(by, join, move |parts, _| interleaved(parts, cycle, block))
            }
            15 => self.joined(by, Dataset::concatenate, |parts, _| parts.concat()),
            16 => self.bucketed(by),
            17 => match self.place_of("x").filter(|_| self.is_ragged()) {
                Some(x) if self.columns()[x].extent == Extent::UpTo => {
                    let most = self.columns()[x].elements();
                    let filled = move |mut row: Cells| {
                        row[x].resize(most, i32::from(by % 50));
                        row
                    };
                    self.with(
                        |data| data.map("x", [fill(f32::from(by % 50))]).parallelism(Parallelism::Threads(1 + n % 5)),
                        move |all| all.into_iter().map(|row| row.map(filled)).collect(),
                    )
                }
                _ => self,
            },
            18 => self.reshaped(by),
            _ => self.expanded(),
        }
    }

    fn cached(self, by: u8, folder: &Path, number: usize) -> Case {
        let path = folder.join(format!("{number}.plc"));
        let cache = match by % 4 {
            0 => Cache::MemoryUpTo(Bytes::kib(64)),
            1 => Cache::MemoryUpTo(Bytes(u64::from(by) * 16)),
            2 => Cache::File(path),
            _ => Cache::FileIfSpace(path),
        };
        let (before, filed) = (Rc::clone(&self.oracle), self.filed || by % 4 > 1);
        let data = self.data.clone().version("1").cache(cache);
        match has_numbers(&self.data) {
            true if self.kept => self,
            true => Case { data, kept: true, filed, ..self },
            false => Case { filed, ..self }.of(data, move |_| before(0)),
        }
    }

    fn shuffled(self, by: u8) -> Case {
        let (seed, before) = (Shuffle::seed(u64::from(by)), Rc::clone(&self.oracle));
        if has_numbers(&self.data) {
            let data = self.data.clone().shuffle(seed);
            return self.of(data, move |epoch| {
                let all = before(epoch);
                at(&all, order(&range(all.len()).shuffle(seed), epoch))
            });
        }
        // What is reported between rows has no place in a buffer.
        let data = self.data.clone().ignore_errors(1_000_000);
        let (held, row) = (1 + u64::from(by % 20), data.output_schema().unwrap().row_bytes());
        let data = data.shuffle_buffer(seed, row * held);
        self.of(data, move |epoch| {
            let all: Places = before(epoch).into_iter().filter(Option::is_some).collect();
            at(&all, order(&range(all.len()).shuffle_buffer(seed, Bytes(4) * held), epoch))
        })
    }

    fn zipped(self, by: u8, other: Kind, number: usize) -> Case {
        let other = Case::new(other, &format!("x{number}"), &format!("y{number}"));
        let (mine, others) = (Rc::clone(&self.oracle), other.oracle);
        let swapped = by.is_multiple_of(2);
        let mut inputs = [self.data.clone(), other.data];
        if swapped {
            inputs.reverse();
        }
        self.of(Dataset::zip(inputs), move |epoch| {
            let beside = |(mine, others): (Option<Cells>, Option<Cells>)| {
                Some(if swapped { [others?, mine?].concat() } else { [mine?, others?].concat() })
            };
            mine(epoch).into_iter().zip(others(epoch)).map(beside).collect()
        })
    }

    /// This data set, and two parts of it, as several.
    fn joined(self, by: u8, join: impl FnOnce(Vec<Dataset>) -> Dataset, oracle: impl Fn(Vec<Places>, u64) -> Places + 'static) -> Case {
        if self.filed {
            return self;
        }
        let n = usize::from(by);
        let y = self.place_of("y").expect("every row has it");
        let threads = || self.data.clone().parallelism(Parallelism::Threads(1 + n % 3));
        let some = threads().filter(move |row| row.int("y") % 3 != i64::from(by % 3));
        let data = join(vec![threads().take(u64::from(by % 9)), threads().filter(|_| true), some]);
        let before = Rc::clone(&self.oracle);
        self.of(data, move |epoch| {
            let all = before(epoch);
            let keeps = |row: &&Option<Cells>| row.as_ref().is_none_or(|row| row[y][0] % 3 != i32::from(by % 3));
            let (few, some) = (all.iter().take(n % 9).cloned().collect(), all.iter().filter(keeps).cloned().collect());
            oracle(vec![few, all, some], epoch)
        })
    }

    fn sampled(self, by: u8) -> Case {
        let weights = [0.3, 1.0, f64::from(by) / 64.0 + 0.1];
        let sample = move |parts: Vec<Dataset>| Dataset::sample_from(parts.into_iter().zip(weights), u64::from(by));
        self.joined(by, sample, move |parts, epoch| {
            let mut first = 0;
            let places = parts.iter().map(|part| {
                first += part.len() as i32;
                Dataset::range(first - part.len() as i32, first, 1).unwrap()
            });
            at(&parts.concat(), order(&sample(places.collect()), epoch))
        })
    }

    fn bucketed(self, by: u8) -> Case {
        let n = usize::from(by);
        let ragged = self.columns().iter().rposition(|column| column.extent == Extent::UpTo).filter(|_| by.is_multiple_of(2));
        let column = ragged.or(self.place_of("y")).expect("every row has one");
        let kind = self.columns()[column].clone();
        let boundaries: Vec<i64> = [1 + i64::from(by % 3), 4, 30].into_iter().skip(n % 2).collect();
        let (batch, each) = (1 + n % 4, kind.elements() / kind.shape.first().unwrap_or(&1));
        if kind.extent != Extent::UpTo && kind.elements() != 1 {
            return self;
        }
        let by_length = boundaries.clone();
        self.with(
            |data| data.bucket_by_length(kind.name, by_length, batch),
            move |all| {
                bucketed(all, &boundaries, batch, |row: &Cells| match ragged {
                    Some(_) => (row[column].len() / each) as i64,
                    None => i64::from(row[column][0]),
                })
            },
        )
    }

    /// Windows, or rows taken apart that are windows.
    fn reshaped(self, by: u8) -> Case {
        let columns = self.columns();
        let first = columns[0].shape.first().copied();
        if self.is_ragged() || columns.iter().any(|column| column.shape.len() > 3) {
            return self;
        }
        if let Some(size) = first
            && columns.iter().all(|column| column.shape.first() == Some(&size))
            && !by.is_multiple_of(4)
        {
            let part =
                move |row: &Cells, at: usize| row.iter().map(|cell| cell[at * cell.len() / size..][..cell.len() / size].to_vec()).collect();
            let parts = move |row: Option<Cells>| match row {
                Some(row) => (0..size).map(|at| Some(part(&row, at))).collect(),
                None => vec![None],
            };
            return self.with(Dataset::unbatch, move |all| all.into_iter().flat_map(parts).collect());
        }
        let (size, shift, stride) = (1 + usize::from(by) % 3, 1 + usize::from(by) % 4, 1 + usize::from(by / 16) % 3);
        let together =
            |rows: Vec<Cells>| (0..rows[0].len()).map(|column| rows.iter().flat_map(|row| row[column].clone()).collect()).collect();
        self.with(
            |data| data.window(size, shift, stride),
            move |all| windows(all, size, shift, stride).into_iter().map(|rows| rows.map(together)).collect(),
        )
    }

    /// Each row twice, by user code that makes it a data set.
    fn expanded(self) -> Case {
        let columns = self.columns();
        let schema = Schema::new(columns.clone()).unwrap();
        let of = schema.clone();
        let expand = move |row: &Row<'_>| {
            let cells: Cells = columns.iter().map(|column| row.numbers(&column.name).map(|number| number as i32).collect()).collect();
            let rows = vec![tensors(&columns, &cells)?; 2];
            Ok(Dataset::from_generator(of.clone(), move |_| rows.clone().into_iter().map(Ok)))
        };
        let twice = |row: Option<Cells>| if row.is_some() { vec![row; 2] } else { vec![None] };
        self.with(|data| data.flat_map(schema, Bytes::kib(256), expand), move |all| all.into_iter().flat_map(twice).collect())
    }
}

fn shown(dtype: DType, bytes: &[u8]) -> Vec<i32> {
    match dtype {
        DType::U8 => bytes.iter().map(|byte| i32::from(*byte)).collect(),
        DType::F32 => bytes.as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four) as i32).collect(),
        _ => bytes.as_chunks().0.iter().map(|four| i32::from_ne_bytes(*four)).collect(),
    }
}

/// The batches of some epochs from where `options` say, and where the feed stood after each.
fn read(data: &Dataset, limit: Option<Bytes>, options: Options, epochs: u64) -> Result<(Vec<FeedState>, Vec<Vec<Shown>>), DataError> {
    let plan = data.plan(limit)?;
    assert!(limit.is_none_or(|limit| plan.total() <= limit), "{limit:?} and\n{plan}");
    let ledger = Ledger::new("host", limit);
    let (mut states, mut all) = (Vec::new(), Vec::new());
    {
        let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(epochs), ..options })?;
        let columns = feed.schema().columns().to_vec();
        for epoch in 1..=epochs {
            let mut batches = Vec::new();
            while let Some(batch) = feed.next()? {
                let column = |(index, column): (usize, &Column)| (batch.shape(index), shown(column.dtype, batch.column(index)));
                batches.push(columns.iter().enumerate().map(column).collect());
                states.push(feed.state());
            }
            all.push(batches);
            if epoch < epochs {
                states.push(feed.state());
            }
        }
    }
    assert!(ledger.peak() <= plan.total(), "{} held, and planned was\n{plan}", ledger.peak());
    assert_eq!(ledger.used(), Bytes::ZERO);
    Ok((states, all))
}

/// What a batch of these rows is, padded with `value`.
fn batched(rows: &[Cells], columns: &[Column], to: PadTo, value: i32) -> Shown {
    let one = |(index, column): (usize, &Column)| {
        let mut shape = vec![rows.len()];
        shape.extend(&column.shape);
        if column.extent == Extent::UpTo {
            let each = column.elements() / column.shape[0];
            let longest = rows.iter().map(|row| row[index].len() / each).max().unwrap_or(0);
            shape[1] = if to == PadTo::Longest { longest } else { column.shape[0] };
        }
        let width: usize = shape[1..].iter().product();
        let padded = |row: &Cells| [&row[index][..], &vec![value; width - row[index].len()]].concat();
        (shape, rows.iter().flat_map(padded).collect())
    };
    columns.iter().enumerate().map(one).collect()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn any_pipeline_of_ragged_rows_gives_the_batches_of_a_plain_list(
        first in kinds(),
        steps in prop::collection::vec((any::<u8>(), any::<u8>(), kinds()), 0..7),
        (batch, again, drops, ordered) in (1usize..7, prop::option::of(1usize..7), any::<bool>(), prop::bool::weighted(0.8)),
        longest: bool,
        ahead in prop::option::of(0usize..4),
        room in 0u64..=100,
        stop: prop::sample::Index,
        left_out in prop::bool::weighted(0.8),
    ) {
        let folder = TempDir::new().unwrap();
        let mut case = Case::new(first, "x", "y");
        for (at, (kind, by, other)) in steps.iter().enumerate() {
            case = case.step(*kind, *by, *other, folder.path(), at);
            // An epoch that makes sense in a test.
            if (case.oracle)(0).len() > 150 {
                case = case.with(|data| data.take(150), |all| all.into_iter().take(150).collect());
            }
        }
        if left_out {
            case = case.with(|data| data.ignore_errors(1_000_000), |all| all.into_iter().filter(Option::is_some).collect());
        }
        let to = if longest { PadTo::Longest } else { PadTo::Declared };
        let data = case.data.clone().deterministic(ordered).padded_batch(batch, to, 7.0);
        let data = if drops { data.drop_remainder() } else { data };
        let data = again.into_iter().fold(data, Dataset::rebatch);
        let data = if let Some(batches) = ahead { data.prefetch(Prefetch::Batches(batches)) } else { data };
        let columns = case.columns();
        let places: Vec<Places> = (0..3).map(|epoch| (case.oracle)(epoch)).collect();
        let expected = |epoch: &Places| {
            let mut rows: Vec<Cells> = epoch.iter().flatten().cloned().collect();
            if drops {
                rows.truncate(rows.len() / batch * batch);
            }
            rows.chunks(again.unwrap_or(batch)).map(|rows| batched(rows, &columns, to, 7)).collect()
        };
        let expected: Vec<Vec<Shown>> = places.iter().map(expected).collect();
        let plan = data.plan(None).unwrap();
        let least = plan.minimum();
        prop_assert!(least <= plan.total(), "a plan below the minimum:\n{}", plan);
        match data.plan(Some(least - Bytes(1))) {
            Err(DataError::OverLimit { minimum, .. }) => prop_assert_eq!(minimum, least),
            other => prop_assert!(false, "a byte less than works: {other:?}"),
        }
        let some = Bytes(least.0 + (plan.total() - least).0 * room / 100);
        // Twice under the first limit: what a file has kept is then found.
        for limit in [Some(some), Some(some), Some(least), None] {
            let came = read(&data, limit, Options::default(), 3);
            if places.iter().flatten().any(Option::is_none) {
                // What is dropped at the end may be all that is bad, and where it is known that nothing comes, nothing
                // is read.
                let never_read = drops || case.data.size() == Some(0);
                prop_assert!(came.is_err() || never_read, "a bad row is an error in {}", data.describe());
                continue;
            }
            let (states, mut came) = came.unwrap();
            let mut expected = expected.clone();
            if !ordered {
                came.iter_mut().chain(&mut expected).for_each(|epoch| epoch.sort_unstable());
                prop_assert_eq!(&came, &expected, "{} in {:?}", data.describe(), limit);
                continue;
            }
            prop_assert_eq!(&came, &expected, "{} in {:?}", data.describe(), limit);
            if !states.is_empty() {
                let state = stop.get(&states);
                let (_, rest) = read(&data, limit, Options::resume(state, &data).unwrap(), 3 - state.epoch).unwrap();
                let mut expected = expected[state.epoch as usize..].to_vec();
                expected[0].drain(..state.batches as usize);
                prop_assert_eq!(rest, expected, "{} resumed in {:?} at {:?}", data.describe(), limit, state);
            }
        }
    }
}
