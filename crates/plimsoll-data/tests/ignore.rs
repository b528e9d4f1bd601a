//! Streams whose rows cannot all be made: which are left out, how they are counted and named, and what comes after
//! them.

use collect::{column, complaint, ints, numbers};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::apply;
use plimsoll_data::{Column, DataError, Dataset, Feed, Options, PadTo, Parallelism, Schema, Shuffle, Tensor};
use proptest::prelude::*;
use std::path::Path;

mod collect;

fn one_number() -> Schema {
    Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap()
}

/// What can be wrong with a row of a generator.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bad {
    Error,
    Panic,
    Type,
    Columns,
}

fn give(n: i32, bad: Option<Bad>) -> Result<Vec<Tensor>, DataError> {
    match bad {
        Some(Bad::Error) => Err(DataError::Stage("the comma is missing".into())),
        Some(Bad::Panic) => panic!("out of bounds"),
        Some(Bad::Type) => Ok(vec![Tensor::f32([], [0.5])?]),
        Some(Bad::Columns) => Ok(vec![]),
        None => Ok(vec![Tensor::i32([], [n])?]),
    }
}

/// Rows 0, 1, 2 … of which some are bad.
fn generator(rows: Vec<Option<Bad>>) -> Dataset {
    Dataset::from_generator(one_number(), move |_| rows.clone().into_iter().enumerate().map(|(n, bad)| give(n as i32, bad)))
}

/// Panics that are meant are not shown; those of tests are.
fn quiet() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let shown = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if std::thread::current().name() != Some("plimsoll-data") {
                shown(panic);
            }
        }));
    });
}

fn all(data: &Dataset) -> Vec<i32> {
    numbers(&data.clone().batch(4), 0)
}

/// Each limit that matters, and none.
fn limits(data: &Dataset) -> [Option<Bytes>; 3] {
    let plan = data.plan(None).unwrap();
    [Some(plan.minimum()), Some(Bytes((plan.minimum().0 + plan.total().0) / 2)), None]
}

#[test]
fn rows_of_a_generator_are_left_out_by_themselves_and_named_by_their_number() {
    let rows = [None, Some(Bad::Error), None, Some(Bad::Panic), Some(Bad::Type), None, Some(Bad::Columns)];
    let data = generator(rows.to_vec()).ignore_errors(4);
    assert_eq!(all(&data), [0, 2, 5]);
    let (count, names) = data.ignored_in(0);
    assert_eq!(count, 4);
    insta::assert_snapshot!(names.join("\n"), @"
    row 1 of the generator: the comma is missing
    row 3 of the generator: a source or an operation panicked: out of bounds; correct it if the code is yours, otherwise please report a bug
    row 4 of the generator: column `x` is declared as x: i32[], and f32[] was given for it
    row 6 of the generator: a generator gave 0 columns where 1 are declared (x: i32[])
    ");
    let strict = generator(rows.to_vec()).ignore_errors(2).batch(2);
    insta::assert_snapshot!(complaint(column(&strict, 0, 3, None), Path::new("/")), @"more than 2 rows of epoch 3 could not be read; the last: row 4 of the generator: column `x` is declared as x: i32[], and f32[] was given for it");
    // Without being asked to leave them out, the first ends it.
    assert_eq!(complaint(column(&generator(rows.to_vec()).batch(2), 0, 0, None), Path::new("/")), "the comma is missing");
}

#[test]
fn a_failure_that_only_repeats_itself_is_stopped() {
    let stuck = Dataset::from_generator(one_number(), |_| {
        (0..3).map(|n| give(n, None)).chain(std::iter::repeat_with(|| give(0, Some(Bad::Error))))
    });
    let told = complaint(column(&stuck.ignore_errors(u64::MAX).batch(2), 0, 0, None), Path::new("/"));
    insta::assert_snapshot!(told, @"1000 failures of epoch 0 one after the other are the same, and no row comes: row 1002 of the generator: the comma is missing");
    // As many with rows between them, or in other words, are bad rows.
    let often = |n: i32| if n % 2 == 0 { Some(Bad::Error) } else { None };
    let data = Dataset::from_generator(one_number(), move |_| (0..2500).map(move |n| give(n, often(n)))).ignore_errors(u64::MAX);
    assert_eq!((all(&data).len(), data.ignored().0), (1250, 1250));
    let numbered = |n: i32| Err::<Vec<Tensor>, _>(DataError::Stage(format!("line {n} is empty")));
    let data = Dataset::from_generator(one_number(), move |_| (0..1500).map(numbered)).ignore_errors(1500);
    assert_eq!((all(&data).len(), data.ignored().0, data.ignored().1.len()), (0, 1500, 100));
}

/// One stage of a pipeline, and what it makes of places that hold a row or do not. A row that failed keeps its place.
#[derive(Clone, Debug)]
enum Step {
    /// Panics at numbers that leave 3 by 7, keeps those that are not multiples of 4.
    Filter,
    /// Refuses numbers that leave 5 by 11, adds a thousand to others.
    Map,
    Take(usize),
    Skip(usize),
    Shard(usize, usize),
    Window(usize, usize, usize),
    FlatMap,
    Zip,
    Repeat,
    /// As it is, through a thread of its own.
    Ahead,
}

type Places = Vec<Option<i32>>;

impl Step {
    fn on(&self, data: Dataset) -> Dataset {
        match *self {
            Step::Filter => data.filter(|row| {
                assert_ne!(row.int("x") % 7, 3, "three");
                row.int("x") % 4 != 0
            }),
            Step::Map => {
                let add = |_row, x: &[f32], out: &mut [f32]| match x[0] as i32 % 11 {
                    5 => Err("five".to_string()),
                    _ => {
                        out[0] = x[0] + 1000.0;
                        Ok(())
                    }
                };
                let data = data.map("x", [plimsoll_data::ops::cast_f32(), apply("add", [], add)]);
                let back = |row: &plimsoll_data::Row<'_>| {
                    let n = row.numbers("x").next().unwrap() as i32;
                    Dataset::from_tensor_slices([("x", Tensor::i32([1], [n])?)])
                };
                data.flat_map(one_number(), Bytes::mib(1), back)
            }
            Step::Take(rows) => data.take(rows as u64),
            Step::Skip(rows) => data.skip(rows as u64),
            Step::Shard(count, index) => data.shard(count as u64, index as u64),
            Step::Window(size, shift, stride) => data.window(size, shift, stride).unbatch(),
            Step::FlatMap => data.flat_map(one_number(), Bytes::mib(1), |row| match row.int("x") % 5 {
                2 => Err(DataError::Stage("two".into())),
                left => Dataset::range(0, left as i32, 1),
            }),
            Step::Zip => {
                let schema = Schema::new(vec![Column::new("n", DType::I32, [])]).unwrap();
                let bad = |n: i32| if n % 6 == 4 { Err(DataError::Stage("four".into())) } else { Ok(vec![Tensor::i32([], [n])?]) };
                let beside = Dataset::from_generator(schema, move |_| (0..1000).map(bad));
                Dataset::zip([data, beside]).flat_map(one_number(), Bytes::mib(1), |row| {
                    Dataset::from_tensor_slices([("x", Tensor::i32([1], [row.int("x") as i32 * 2 + row.int("n") as i32])?)])
                })
            }
            Step::Repeat => data.repeat(2),
            Step::Ahead => Dataset::interleave_parallel([data], 1, 3),
        }
    }

    fn oracle(&self, places: Places) -> Places {
        let bad = |place: Option<i32>, is_bad: fn(i32) -> bool| place.filter(|n| !is_bad(*n));
        match *self {
            Step::Filter => {
                places.into_iter().map(|place| bad(place, |n| n % 7 == 3)).filter(|place| place.is_none_or(|n| n % 4 != 0)).collect()
            }
            Step::Map => places.into_iter().map(|place| bad(place, |n| n % 11 == 5).map(|n| n + 1000)).collect(),
            Step::Take(rows) => places.into_iter().take(rows).collect(),
            Step::Skip(rows) => places.into_iter().skip(rows).collect(),
            Step::Shard(count, index) => places.into_iter().skip(index).step_by(count).collect(),
            Step::Window(size, shift, stride) => {
                let span = (size - 1) * stride + 1;
                let mut out = Vec::new();
                // Each that is missing is reported once, when it is come to; and no window reaches over it.
                let (mut told, mut from) = (0, 0);
                while from + span <= places.len() {
                    out.extend(places[told..from + span].iter().filter(|place| place.is_none()));
                    told = told.max(from + span);
                    let window = &places[from..from + span];
                    if window.iter().all(Option::is_some) {
                        out.extend(window.iter().step_by(stride));
                    }
                    from += shift;
                }
                out.extend(places[told.min(places.len())..].iter().filter(|place| place.is_none()));
                out
            }
            Step::FlatMap => places
                .into_iter()
                .flat_map(|place| match bad(place, |n| n % 5 == 2) {
                    None => vec![None],
                    Some(n) => (0..n % 5).map(Some).collect(),
                })
                .collect(),
            Step::Zip => places.into_iter().zip(0..1000).map(|(place, n)| place.filter(|_| n % 6 != 4).map(|x| x * 2 + n)).collect(),
            Step::Repeat => [places.clone(), places].concat(),
            Step::Ahead => places,
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::Filter),
        Just(Step::Map),
        (0usize..60).prop_map(Step::Take),
        (0usize..20).prop_map(Step::Skip),
        (1usize..4).prop_flat_map(|count| (Just(count), 0..count)).prop_map(|(count, index)| Step::Shard(count, index)),
        (1usize..4, 1usize..5, 1usize..3).prop_map(|(size, shift, stride)| Step::Window(size, shift, stride)),
        Just(Step::FlatMap),
        Just(Step::Zip),
        Just(Step::Repeat),
        Just(Step::Ahead),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever the stages between the bad rows and where they are left out, the rest comes, in order, under any limit.
    #[test]
    fn the_rows_that_are_left_are_those_of_a_plain_list(
        bad in prop::collection::vec(prop::option::weighted(0.2, prop_oneof![Just(Bad::Error), Just(Bad::Panic), Just(Bad::Type)]), 0..60),
        steps in prop::collection::vec(step(), 0..4),
        numbered: bool,
    ) {
        quiet();
        let places: Places = bad.iter().zip(0..).map(|(bad, n)| if bad.is_none() { Some(n) } else { None }).collect();
        let source = match numbered {
            false => generator(bad),
            // Indexed rows, and stages on them that have none.
            true => Dataset::from_fn(one_number(), bad.len() as u64, move |n, row| match bad[n as usize] {
                Some(Bad::Panic) => panic!("rotten"),
                Some(_) => Err(DataError::Stage("broken".into())),
                None => row.i32(0, &[n as i32]),
            }).filter(|_| true),
        };
        let data = steps.iter().fold(source, |data, step| step.on(data)).ignore_errors(100_000);
        let expected = steps.iter().fold(places, |places, step| step.oracle(places));
        let rows: Vec<i32> = expected.iter().flatten().copied().collect();
        let missing = (expected.len() - rows.len()) as u64;
        let batched = data.clone().batch(4);
        for limit in limits(&batched) {
            let came: Vec<i32> = column(&batched, 0, 1, limit).unwrap().iter().map(|row| i32::from_ne_bytes(row[..].try_into().unwrap())).collect();
            prop_assert_eq!(&came, &rows, "{:?} {:?}", &steps, limit);
            prop_assert_eq!(data.ignored_in(1).0, missing, "{:?} {:?}", &steps, limit);
        }
    }

    /// A buffer draws from the same rows in the same order, whatever is missing between them.
    #[test]
    fn shuffles_and_samples_have_every_row_that_is_left(bad in prop::collection::vec(prop::bool::weighted(0.2), 1..80), seed: u64) {
        quiet();
        let good: Vec<i32> = bad.iter().zip(0..).filter(|(bad, _)| !**bad).map(|(_, n)| n).collect();
        let missing = (bad.len() - good.len()) as u64;
        let rows = generator(bad.iter().map(|bad| bad.then_some(Bad::Error)).collect());
        let shuffled = rows.clone().shuffle_buffer(Shuffle::seed(seed), Bytes(40)).ignore_errors(100);
        let after = rows.clone().ignore_errors(100).shuffle_buffer(Shuffle::seed(seed), Bytes(40));
        prop_assert_eq!(all(&shuffled), all(&after));
        let sampled = Dataset::sample_from([(rows.clone(), 1.0), (rows.clone(), 2.0)], seed).ignore_errors(200);
        let bucketed = rows.clone().bucket_by_length("x", [20, 40], 3).ignore_errors(100);
        let interleaved = Dataset::interleave([rows.clone(), rows], 2, 2).ignore_errors(200);
        for (data, times) in [(shuffled, 1), (sampled, 2), (bucketed, 1), (interleaved, 2)] {
            let mut came = all(&data);
            came.sort_unstable();
            prop_assert_eq!(came, good.iter().flat_map(|n| vec![*n; times]).collect::<Vec<_>>());
            prop_assert_eq!(data.ignored_in(0).0, missing * times as u64);
        }
    }
}

/// All batches with what was left out when the epoch was over.
fn epoch_of(feed: &mut Feed) -> Vec<Vec<u8>> {
    let mut batches = Vec::new();
    while let Some(batch) = feed.next().unwrap() {
        batches.push(batch.column(0).to_vec());
    }
    batches
}

#[test]
fn a_resumed_epoch_leaves_out_the_same_rows_and_counts_each_once() {
    let bad = |n: i32| if n % 9 == 4 { Some(Bad::Error) } else { None };
    let make = move || {
        let rows = generator((0..300).map(bad).collect());
        let ranged = Dataset::from_fn(one_number(), 200, |n, row| match n % 10 {
            3 => Err(DataError::Stage(format!("row {n} is broken"))),
            _ => row.i32(0, &[1000 + n as i32]),
        });
        let ranged = ranged.shuffle(Shuffle::seed(4)).parallelism(Parallelism::Threads(2));
        let mixed = Dataset::interleave_parallel([rows, ranged.filter(|_| true)], 2, 3);
        mixed.shuffle_buffer(Shuffle::seed(1), Bytes(80)).ignore_errors(60).batch(16)
    };
    let (data, ledger) = (make(), Ledger::new("host", None));
    let plan = data.plan(None).unwrap();
    let mut feed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(2), ..Options::default() }).unwrap();
    let (mut states, mut batches) = (Vec::new(), Vec::new());
    loop {
        states.push(feed.state());
        match feed.next().unwrap() {
            Some(batch) => batches.push(batch.column(0).to_vec()),
            None => break,
        }
    }
    drop(feed);
    let left_out = data.ignored_in(0);
    assert_eq!(left_out.0, 33 + 20);
    for at in [0, 1, 5, 17, batches.len()] {
        // Another process, and one that continues with the same data set.
        for resumed in [make(), data.clone()] {
            let options = Options { epochs: Some(1), ..Options::resume(&states[at], &resumed).unwrap() };
            let mut feed = Feed::start(&resumed, &resumed.plan(None).unwrap(), &ledger, options).unwrap();
            assert!(epoch_of(&mut feed) == batches[at..], "resumed at {at}");
            assert_eq!(resumed.ignored_in(0).0, left_out.0, "resumed at {at}");
        }
    }
}

#[test]
fn the_cap_is_reached_at_the_same_row_however_rows_come() {
    let rows = || generator((0..200).map(|n| (n % 10 == 7).then_some(Bad::Error)).collect());
    let ranged = |threads| {
        let make = |n: u64, row: &mut plimsoll_data::source::RowMut<'_, '_, '_>| match n % 10 {
            7 => Err(DataError::Stage("the comma is missing".into())),
            _ => row.i32(0, &[n as i32]),
        };
        Dataset::from_fn(one_number(), 200, make).parallelism(Parallelism::Threads(threads)).filter(|_| true)
    };
    for data in [rows(), Dataset::interleave_parallel([rows()], 1, 1), ranged(1), ranged(3)] {
        for limit in limits(&data.clone().ignore_errors(20).batch(1)) {
            let data = data.clone().ignore_errors(11).batch(1);
            let plan = data.plan(limit).unwrap();
            let mut feed = Feed::start(&data, &plan, &Ledger::new("host", None), Options::default()).unwrap();
            let (mut seen, told) = (
                0,
                loop {
                    match feed.next() {
                        Ok(_) => {}
                        Err(error) => break error.to_string(),
                    }
                },
            );
            seen += data.ignored().0;
            assert!(
                told.starts_with("more than 11 rows of epoch 0 could not be read; the last: ") && told.ends_with("the comma is missing"),
                "{told}"
            );
            assert_eq!(seen, 11);
        }
    }
}

#[test]
fn rows_that_are_repeated_are_counted_each_time() {
    let data = generator(vec![None, Some(Bad::Error), None]).ignore_errors(1).repeat(3);
    assert_eq!(all(&data), [0, 2, 0, 2, 0, 2]);
    assert_eq!((data.ignored_in(0).0, data.ignored_in(1).0), (3, 0));
}

#[test]
fn rows_of_differing_length_are_left_out_too() {
    let schema = Schema::new(vec![Column::up_to("x", DType::I32, [3])]).unwrap();
    let rows = [1usize, 4, 2, 9, 3];
    let data =
        Dataset::from_generator(schema, move |_| rows.into_iter().map(|n| Ok(vec![Tensor::i32([n], vec![n as i32; n])?]))).ignore_errors(5);
    assert_eq!(ints(&data.clone().padded_batch(3, PadTo::Longest, 0.0), 0), [vec![1, 0, 0], vec![2, 2, 0], vec![3, 3, 3]]);
    assert_eq!(data.ignored().0, 2);
}
