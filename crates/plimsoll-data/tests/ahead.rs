//! Rows of a stream are made ahead, by blocks or by other threads, as far as the limit allows. None of that shows.

use collect::column;
use plimsoll_core::{Bytes, DType};
use plimsoll_data::{Column, DataError, Dataset, Parallelism, Schema};
use std::thread;
use std::time::Duration;

mod collect;

/// Rows 0, 1, 2 … with a column that makes them large; every fifth from row 3 on cannot be made, and some take long.
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
