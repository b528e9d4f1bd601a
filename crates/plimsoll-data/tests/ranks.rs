//! The rows of several ranks: together the batches of one process, at any number of ranks, also after resuming with
//! another number.

use plimsoll_core::Ledger;
use plimsoll_data::ops::{random_brightness, scale};
use plimsoll_data::{Dataset, Feed, Options, RankRows, Shuffle, Split};

/// The digits in a shuffled order, with augmentation by random numbers.
fn indexed(rows: u64) -> Dataset {
    Dataset::digits(Split::Train).take(rows).shuffle(Shuffle::seed(7)).map("x", [scale(1.0 / 16.0), random_brightness(0.2, 5)])
}

/// The same rows one after the other.
fn streamed(rows: u64) -> Dataset {
    let stream = Dataset::digits(Split::Train).take(rows).filter(|_| true).assert_cardinality(rows);
    stream.shuffle_buffer(Shuffle::seed(3), plimsoll_core::Bytes::kib(16)).map("x", [scale(1.0 / 16.0), random_brightness(0.2, 5)])
}

fn start(data: &Dataset, options: Options) -> Feed {
    Feed::start(data, &data.plan(None).unwrap(), &Ledger::new("host", None), options).unwrap()
}

/// The bytes of each row of the batches of an epoch.
fn batches(data: &Dataset, options: Options) -> Vec<Vec<Vec<u8>>> {
    let mut feed = start(data, options);
    let columns: Vec<usize> = data.output_schema().unwrap().columns().iter().map(|column| column.row_bytes().get()).collect();
    let mut batches = Vec::new();
    while let Some(batch) = feed.next().unwrap() {
        let row = |row: usize| -> Vec<u8> {
            columns.iter().enumerate().flat_map(|(i, bytes)| &batch.column(i)[row * bytes..][..*bytes]).copied().collect()
        };
        batches.push((0..batch.rows).map(row).collect());
    }
    batches
}

/// Checks the second epoch, from a batch on, of all ranks against that of one process.
fn check(data: &Dataset, rows: u64, batch: usize, ranks: u64, first_batch: u64) {
    let data = data.clone().batch(batch);
    let options = Options { first_epoch: 1, first_batch, epochs: Some(1), ..Options::default() };
    let expected = batches(&data, options);
    let mut found: Vec<Vec<Vec<u8>>> = vec![Vec::new(); expected.len()];
    for rank in 0..ranks {
        let own = batches(&data.rows_of_rank(ranks, rank, true).unwrap(), options);
        assert_eq!(own.len(), expected.len(), "every rank has all batches");
        let share = RankRows::new(batch as u64, ranks, rank).repeating();
        for ((number, own), found) in (first_batch..).zip(own).zip(&mut found) {
            let whole = (rows - number * batch as u64).min(batch as u64);
            match share.repeats(whole) {
                true => assert_eq!(own, [found.last().unwrap().clone()], "the last row again"),
                false => {
                    assert_eq!(share.of_batch(whole).start, found.len() as u64, "consecutive rows");
                    found.extend(own);
                }
            }
        }
    }
    assert!(found == expected, "batch {batch}, {ranks} ranks, from batch {first_batch}");
}

#[test]
fn ranks_have_the_batches_of_one_process_from_any_batch_on() {
    for (rows, batch) in [(100, 32), (67, 16), (64, 8), (5, 3)] {
        let batches = u64::div_ceil(rows, batch as u64);
        for (ranks, first_batch) in [(1, 1), (2, 0), (3, 1), (4, batches - 1), (7, 0)] {
            check(&indexed(rows), rows, batch, ranks, first_batch);
            check(&streamed(rows), rows, batch, ranks, first_batch);
        }
    }
}

#[test]
fn dropped_rows_are_those_of_one_process() {
    for data in [indexed(70), streamed(70)] {
        let parts: Vec<Vec<_>> = (0..3)
            .map(|rank| {
                batches(
                    &data.clone().batch(32).drop_remainder().rows_of_rank(3, rank, true).unwrap(),
                    Options { epochs: Some(1), ..Options::default() },
                )
            })
            .collect();
        let whole = batches(&data.clone().batch(32).drop_remainder(), Options { epochs: Some(1), ..Options::default() });
        assert_eq!(whole.len(), 2);
        for (number, expected) in whole.iter().enumerate() {
            assert!(&parts.iter().flat_map(|part| part[number].clone()).collect::<Vec<_>>() == expected);
        }
    }
}

#[test]
fn validation_rows_come_once_also_where_their_number_is_not_known() {
    let stream = |rows: u64| Dataset::digits(Split::Test).take(rows).filter(|_| true);
    for (data, rows) in [(indexed(37), 37), (stream(37), 37), (stream(2), 2)] {
        let data = data.batch(8);
        let of = |rank| batches(&data.rows_of_rank(5, rank, false).unwrap(), Options { epochs: Some(1), ..Options::default() }).concat();
        let (mut found, mut expected): (Vec<_>, _) =
            ((0..5).flat_map(of).collect(), batches(&data, Options { epochs: Some(1), ..Options::default() }).concat());
        found.sort_unstable();
        expected.sort_unstable();
        assert!(found.len() == rows && found == expected);
    }
}
