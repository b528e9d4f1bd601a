//! Rows of a stream are prefetched, by blocks or by other threads, as far as the limit allows. None of that shows.

use collect::{column, column_and_peak, complaint};
use plimsoll_core::{Bytes, DType};
use plimsoll_data::ops::apply;
use plimsoll_data::{Cache, Column, DataError, Dataset, Parallelism, Schema, Shuffle};
use std::path::Path;
use std::thread;
use std::time::Duration;

mod collect;

/// Rows 0, 1, 2 … with a column that makes them large; every fifth from row 3 on cannot be created, and some take long.
fn slow(rows: u64) -> Dataset {
    let schema = Schema::new(vec![Column::new("x", DType::I32, []), Column::new("wide", DType::F32, [10_000])]).unwrap();
    Dataset::from_fn(schema, rows, |n, row| {
        if n % 5 == 3 {
            return Err(DataError::Stage(format!("{n} is bad")));
        }
        thread::sleep(Duration::from_micros(if n % 50 < 16 { 1000 } else { 0 }));
        row.i32(0, &[n as i32])
    })
}

fn range(end: i32) -> Dataset {
    Dataset::range(0, end, 1).unwrap()
}

fn stream(end: i32) -> Dataset {
    range(end).filter(|_| true)
}

/// The rows of an epoch, or what is wrong, which is the same under each limit.
fn rows(data: &Dataset) -> Result<Vec<i32>, String> {
    let data = data.clone().batch(4);
    let plan = data.plan(None).map_err(|error| error.to_string())?;
    let half = Bytes((plan.minimum().0 + plan.total().0) / 2);
    let read = |limit| match column(&data, 0, 0, limit) {
        Ok(rows) => Ok(rows.iter().map(|row| i32::from_ne_bytes(row[..4].try_into().unwrap())).collect::<Vec<_>>()),
        Err(error) => Err(error.to_string()),
    };
    let [most, middle, least] = [None, Some(half), Some(plan.minimum())].map(read);
    assert_eq!(most, middle, "{}", data.describe());
    assert_eq!(most, least, "{}", data.describe());
    most
}

#[test]
fn what_concerns_batches_stops_at_the_first_stage_that_takes_rows() {
    let good = |threads| slow(300).deterministic(false).parallelism(Parallelism::Threads(threads)).ignore_errors(100);
    let expected: Vec<i32> = (0..300).filter(|n| n % 5 != 3).collect();
    for threads in [1, 4] {
        assert_eq!(rows(&good(threads)).unwrap(), expected);
    }
    let whole = range(21).drop_remainder().parallelism(Parallelism::Threads(2)).filter(|_| true);
    assert_eq!(rows(&whole).unwrap(), (0..21).collect::<Vec<_>>());
}

#[test]
fn a_bad_row_that_nobody_asks_for_is_no_error() {
    let bad = |x: f32| {
        apply("bad", [], move |_, row, out| {
            out[0] = row[0];
            if row[0] == x { Err("bad".into()) } else { Ok(()) }
        })
    };
    let threads = |data: Dataset, threads| data.parallelism(Parallelism::Threads(threads));
    for data in [
        slow(20).filter(|_| true),
        threads(slow(20), 3).filter(|_| true),
        stream(20).map("x", [bad(3.0)]).filter(|_| true),
        Dataset::interleave_parallel([slow(20), slow(20)], 1, 30),
        slow(20).filter(|_| true).cache(Cache::Memory),
    ] {
        assert_eq!(rows(&data.clone().take(3)).unwrap().len(), 3, "{}", data.describe());
        assert_eq!(rows(&data.clone().skip(4).take(1)).unwrap().len(), 1, "{}", data.describe());
        assert_eq!(rows(&data.clone().shard(5, 4).take(3)).unwrap().len(), 3, "{}", data.describe());
        assert!(rows(&data.clone().take(4)).unwrap_err().contains("bad"), "{}", data.describe());
    }
}

#[test]
fn a_number_of_rows_that_was_said_is_checked_wherever_it_stands() {
    type Behind = fn(Dataset) -> Dataset;
    let behind: [Behind; 7] = [
        |data| data,
        |data| data.filter(|_| true),
        |data| data.shuffle(Shuffle::seed(1)),
        |data| data.cache(Cache::Memory),
        |data| data.repeat(2),
        |data| Dataset::concatenate([data, range(3)]),
        |data| Dataset::interleave_parallel([data, range(3)], 2, 1),
    ];
    for stage in behind {
        assert!(rows(&stage(stream(10).assert_cardinality(10))).is_ok());
        let more = rows(&stage(stream(10).assert_cardinality(5))).unwrap_err();
        assert_eq!(more, "epoch 0 has more than 5 rows where assert_cardinality(5) was said");
        let fewer = rows(&stage(stream(10).assert_cardinality(15))).unwrap_err();
        assert_eq!(fewer, "epoch 0 has 10 rows where assert_cardinality(15) was said");
    }
    // An epoch that is left early has nothing to say about it, and rows that are left out counted when it was said.
    assert_eq!(rows(&stream(10).assert_cardinality(15).take(3)).unwrap(), [0, 1, 2]);
    assert_eq!(rows(&slow(10).filter(|_| true).assert_cardinality(10).ignore_errors(2)).unwrap().len(), 8);
    // Where rows have numbers it is known at once.
    let known = complaint(range(10).take(7).assert_cardinality(5).batch(4).plan(None), Path::new("/"));
    assert_eq!(
        known,
        "7 rows come where assert_cardinality(5) was said in 10 numbers from 0 by 1 → take(7) → assert_cardinality(5) → batch(4)"
    );
    assert_eq!(rows(&range(10).take(7).assert_cardinality(7).skip(6)).unwrap(), [6]);
}

#[test]
fn threads_further_up_are_planned_with_their_stacks() {
    let data = range(40).parallelism(Parallelism::Threads(3)).filter(|_| true).skip(1).batch(4);
    let plan = data.plan(None).unwrap();
    let (least, more) = (plan.minimum().0, plan.total().0 - plan.minimum().0);
    for part in 0..=40 {
        let plan = data.plan(Some(Bytes(least + more * part / 40))).unwrap();
        // What is held is compared with what is planned.
        assert_eq!(column(&data, 0, 0, Some(Bytes(least + more * part / 40))).unwrap().len(), 39, "{plan}");
    }
}

#[test]
fn what_was_read_to_its_end_gives_back_its_threads_before_the_next_begins() {
    // Threads of each of the four are further up, behind a stage; two of the four are open at a time, and planned.
    let threads = || range(40).parallelism(Parallelism::Threads(2));
    let stages: [fn(Dataset) -> Dataset; 4] = [
        |data| data.filter(|_| true),
        |data| data.filter(|_| true).skip(3).window(2, 1, 1).unbatch(),
        |data| Dataset::zip([data.enumerate("n")]).repeat(2).map("n", []),
        |data| data.filter(|_| true).shuffle_buffer(Shuffle::seed(1), Bytes(100)).ignore_errors(3),
    ];
    for stage in stages {
        let data = Dataset::interleave_parallel([0; 4].map(|_| stage(threads())), 2, 1).batch(4);
        let plan = data.plan(None).unwrap();
        let (least, more) = (plan.minimum().0, plan.total().0 - plan.minimum().0);
        // When threads further up give back what they hold is for them to say: at the end of what they make, which may
        // be before another begins.
        let rows = |limit: Option<Bytes>| {
            let (rows, peak, planned) = column_and_peak(&data, 0, 0, limit).unwrap();
            assert!(peak <= planned, "{peak} of {planned}: {} in {limit:?}", data.describe());
            rows
        };
        let expected = rows(None);
        for part in 0..=40 {
            let limit = Bytes(least + more * part / 40);
            assert_eq!(rows(Some(limit)), expected, "{} in {limit}", data.describe());
        }
    }
}
