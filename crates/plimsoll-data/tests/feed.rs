//! The feed: order, epochs, ragged ends, resuming, stopping, failing, and the books.

use plimsoll_core::DType;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{cast_f32, normalize, one_hot, scale};
use plimsoll_data::source::Gather;
use plimsoll_data::{
    AlignedBuf, BlockMut, Column, DataError, Dataset, Feed, FeedState, Options, Prefetch, RandomSpec, Schema, Shuffle, SlotMemory, Source,
    Split,
};
use proptest::prelude::*;
use std::sync::Arc;

/// A source whose only column is the row's number; fails or panics where told.
struct Count {
    rows: u64,
    schema: Schema,
    broken: Option<(u64, Broken)>,
}

#[derive(Clone, Copy)]
enum Broken {
    Fails,
    Panics,
}

fn count(rows: u64, broken: Option<(u64, Broken)>) -> Dataset {
    let schema = Schema::new(vec![Column::new("row", DType::I32, [])]).unwrap();
    Dataset::from_source(Arc::new(Count { rows, schema, broken }))
}

impl Count {
    fn write(&self, rows: impl Iterator<Item = u64>, out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        for (row, place) in rows.zip(out.column(0).as_chunks_mut::<4>().0) {
            match self.broken {
                Some((at, Broken::Fails)) if at == row => return Err(DataError::Stage(format!("row {row} is broken"))),
                Some((at, Broken::Panics)) if at == row => panic!("row {row} is rotten"),
                _ => *place = (row as i32).to_ne_bytes(),
            }
        }
        Ok(())
    }
}

impl Source for Count {
    fn schema(&self) -> &Schema {
        &self.schema
    }
    fn len(&self) -> u64 {
        self.rows
    }
    fn scratch_bytes(&self, _rows: usize) -> Bytes {
        Bytes::ZERO
    }
    fn read(&self, first_row: u64, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(first_row..first_row + out.rows() as u64, out)
    }
    fn gather(&self, rows: Gather<'_>, _scratch: &mut [u8], out: &mut BlockMut<'_, '_>) -> Result<(), DataError> {
        self.write(rows.rows.iter().copied(), out)
    }
    fn describe(&self) -> String {
        "counted rows".into()
    }
}

fn start(data: &Dataset, limit: Option<Bytes>, options: Options) -> Feed {
    Feed::start(data, &data.plan(limit).unwrap(), &Ledger::new("host", None), options).unwrap()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes)).collect()
}

/// The batches up to the end of the epoch.
fn epoch(feed: &mut Feed) -> Vec<Vec<i32>> {
    let mut batches = Vec::new();
    while let Some(batch) = feed.next().unwrap() {
        batches.push(ints(batch.column(0)));
    }
    batches
}

/// Every geometry the limit can force, from the smallest to the one for speed.
fn limits(data: &Dataset) -> Vec<Option<Bytes>> {
    let free = data.plan(None).unwrap();
    let middle = Bytes((free.total().0 + free.minimum().0) / 2);
    vec![Some(free.minimum()), Some(middle), None]
}

#[test]
fn rows_come_in_order_and_the_last_batch_is_ragged() {
    let data = count(10, None).batch(4);
    for limit in limits(&data) {
        let mut feed = start(&data, limit, Options { epochs: Some(2), ..Options::default() });
        for _ in 0..2 {
            assert_eq!(epoch(&mut feed), [vec![0, 1, 2, 3], vec![4, 5, 6, 7], vec![8, 9]]);
        }
        assert!(feed.next().unwrap().is_none(), "after the last epoch there is nothing more");
        assert!(feed.next().unwrap().is_none());
    }
}

#[test]
fn a_batch_says_where_it_stands() {
    let data = count(10, None).batch(4);
    let mut feed = start(&data, None, Options { first_epoch: 5, ..Options::default() });
    let mut seen = Vec::new();
    for _ in 0..8 {
        seen.push(feed.next().unwrap().map(|batch| (batch.epoch, batch.first_row, batch.rows, batch.columns())));
    }
    let of = |epoch| [Some((epoch, 0, 4, 1)), Some((epoch, 4, 4, 1)), Some((epoch, 8, 2, 1)), None];
    assert_eq!(seen, [of(5), of(6)].concat());
}

#[test]
fn skip_take_and_shuffle_mean_what_they_mean_in_this_order() {
    let rows = |data: Dataset| epoch(&mut start(&data.batch(100), None, Options::default())).concat();
    let sorted = |mut rows: Vec<i32>| {
        rows.sort_unstable();
        rows
    };
    assert_eq!(rows(count(10, None).skip(2).take(3)), [2, 3, 4]);
    assert_eq!(rows(count(10, None).take(3).skip(2)), [2]);
    assert_eq!(rows(count(10, None).skip(20)), [0; 0]);
    // Taken before the shuffle, always the same rows; after it, the first of a random order of all.
    assert_eq!(sorted(rows(count(10, None).take(5).shuffle(Shuffle::seed(1)))), [0, 1, 2, 3, 4]);
    let whole = rows(count(10, None).shuffle(Shuffle::seed(1)));
    assert_eq!(rows(count(10, None).shuffle(Shuffle::seed(1)).take(5)), whole[..5]);
    assert_eq!(rows(count(10, None).shuffle(Shuffle::seed(1)).skip(5)), whole[5..]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn each_epoch_is_a_permutation_whatever_the_geometry(rows in 0u64..2000, batch in 1usize..300, seed: u64, tight: bool) {
        let data = count(rows, None).shuffle(Shuffle::seed(seed)).batch(batch);
        let limit = tight.then(|| data.plan(None).unwrap().minimum());
        let mut feed = start(&data, limit, Options { epochs: Some(2), ..Options::default() });
        let epochs = [epoch(&mut feed), epoch(&mut feed)];
        for batches in &epochs {
            prop_assert!(batches.iter().rev().skip(1).all(|rows| rows.len() == batch));
            let mut all = batches.concat();
            all.sort_unstable();
            prop_assert!(all.iter().copied().eq(0..rows as i32));
        }
        prop_assert!(rows < 20 || epochs[0] != epochs[1], "epochs have orders of their own");
        let mut roomy = start(&data, None, Options::default());
        prop_assert_eq!(epoch(&mut roomy), &epochs[0][..], "the limit does not change the order");
    }

    #[test]
    fn resuming_anywhere_gives_the_same_remaining_batches(rows in 1u64..300, batch in 1usize..40, taken in 0usize..40, seed: u64) {
        let data = count(rows, None).shuffle(Shuffle::seed(seed)).batch(batch);
        let mut feed = start(&data, None, Options { epochs: Some(3), ..Options::default() });
        for _ in 0..taken {
            feed.next().unwrap();
        }
        let saved = serde_json::to_string(&feed.state()).unwrap();
        prop_assert!(saved.len() < 200);

        let state: FeedState = serde_json::from_str(&saved).unwrap();
        let left = 3u64.saturating_sub(state.epoch);
        let mut resumed = start(&data, None, Options { epochs: Some(left), ..Options::resume(&state, &data).unwrap() });
        for _ in 0..left {
            prop_assert_eq!(epoch(&mut resumed), epoch(&mut feed));
            prop_assert_eq!(resumed.state(), feed.state());
        }
    }
}

#[test]
fn a_position_of_another_data_set_is_refused() {
    let data = |rows, seed, batch| count(rows, None).shuffle(Shuffle::seed(seed)).batch(batch);
    let state = start(&data(10, 7, 4), None, Options::default()).state();
    let refusal = |data| Options::resume(&state, &data).unwrap_err().to_string();
    insta::assert_snapshot!(refusal(data(11, 7, 4)), @"the saved position was taken with an epoch of 10 rows, but this data set has 11 rows; resume with the data set the position was saved from");
    insta::assert_snapshot!(refusal(data(10, 8, 4)), @"the saved position was taken with the row order shuffle(seed 7), but this data set has shuffle(seed 8); resume with the data set the position was saved from");
    insta::assert_snapshot!(refusal(data(10, 7, 5)), @"the saved position was taken with a batch size of 4, but this data set has 5; resume with the data set the position was saved from");
}

#[test]
fn leaving_in_the_middle_gives_everything_back() {
    let data = Dataset::random(RandomSpec::new(u64::MAX).floats("x", [1000])).unwrap().batch(32);
    let plan = data.plan(None).unwrap();
    for taken in [0, 1, 100] {
        let ledger = Ledger::new("host", None);
        let mut feed = Feed::start(&data, &plan, &ledger, Options::default()).unwrap();
        for _ in 0..taken {
            assert!(feed.next().unwrap().is_some());
        }
        assert_eq!(ledger.used(), plan.total());
        drop(feed);
        assert_eq!((ledger.used(), ledger.peak()), (Bytes::ZERO, plan.total()));
    }
}

#[test]
fn an_error_comes_after_the_good_batches_and_stays() {
    let data = count(100, Some((50, Broken::Fails))).batch(10).prefetch(Prefetch::Batches(1));
    let mut feed = start(&data, None, Options::default());
    for _ in 0..5 {
        assert_eq!(feed.next().unwrap().unwrap().rows, 10);
    }
    for _ in 0..2 {
        assert_eq!(feed.next().err().unwrap().to_string(), "row 50 is broken");
    }
}

#[test]
fn a_panic_is_an_error() {
    let data = count(100, Some((50, Broken::Panics))).batch(100);
    let mut feed = start(&data, None, Options::default());
    insta::assert_snapshot!(feed.next().err().unwrap(), @"a source or an operation panicked: row 50 is rotten; correct it if the code is yours, otherwise please report a bug");
}

#[test]
fn a_label_out_of_range_is_named_by_its_row_in_the_source() {
    let data = count(100, None).skip(5).map("row", [one_hot(50)]).batch(10);
    let mut feed = start(&data, None, Options::default());
    let error = std::iter::from_fn(|| feed.next().map(|batch| batch.map(|_| ())).transpose()).find_map(Result::err).unwrap();
    insta::assert_snapshot!(error, @"column `row` holds the label 50 in row 50, outside 0..50; correct the row or raise the number of classes");
}

#[test]
fn maps_run_through_buffers_and_in_place_alike() {
    let expected: Vec<f32> = (0..1000).map(|row| (row as f32 * 0.5 - 3.0) / 4.0 * 2.0).collect();
    let ops = [cast_f32(), scale(0.5), normalize([3.0], [4.0]), scale(2.0)];
    let data = count(1000, None).map("row", ops).batch(64);
    for limit in limits(&data) {
        let mut feed = start(&data, limit, Options::default());
        let mut all = Vec::new();
        while let Some(batch) = feed.next().unwrap() {
            all.extend(batch.column(0).as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)));
        }
        assert_eq!(all, expected);
    }
}

#[test]
fn slots_lie_in_the_memory_that_was_supplied() {
    let data = count(1000, None).batch(10);
    let plan = data.plan(None).unwrap();
    let mut asked = Vec::new();
    let mut supply = |bytes: Bytes| -> Result<Box<dyn SlotMemory>, DataError> {
        asked.push(bytes);
        Ok(Box::new(AlignedBuf::new(bytes.get())))
    };
    let mut feed = Feed::start_in(&data, &plan, &Ledger::new("host", None), Options::default(), &mut supply).unwrap();
    assert_eq!(epoch(&mut feed).concat(), (0..1000).collect::<Vec<_>>());
    assert_eq!(asked, vec![Bytes(4032); plan.slots()]);
}

#[test]
fn a_ledger_without_room_refuses_before_anything_is_made() {
    let data = Dataset::digits(Split::Train).batch(32);
    let plan = data.plan(None).unwrap();
    let ledger = Ledger::new("host", Some(Bytes::kib(600)));
    let refused = Feed::start(&data, &plan, &ledger, Options::default()).err().unwrap();
    insta::assert_snapshot!(refused, @"the input pipeline's memory was refused: data: staging ring asked for 286 KiB of host memory, but 512 KiB of the 600 KiB budget is in use; the largest owners are data: producer stack 512 KiB");
    assert_eq!(ledger.used(), Bytes::ZERO);
}

#[test]
fn a_plan_of_another_data_set_is_refused() {
    let plan = Dataset::digits(Split::Train).batch(32).plan(None).unwrap();
    let other = Dataset::digits(Split::Train).map("x", [scale(0.0625)]).batch(32);
    let refused = Feed::start(&other, &plan, &Ledger::new("host", None), Options::default()).err().unwrap();
    insta::assert_snapshot!(refused, @"the plan was made for another data set (it counts 798 KiB, this one needs 1.66 MiB); call plan() on the data set that is fed");
}

/// Each number of shards in turn takes some batches of what is left; then the next takes over.
#[test]
fn another_number_of_shards_goes_on_with_the_rows_that_are_left() {
    let check = |name: &str, data: &dyn Fn() -> Dataset, rows: u64| {
        let data = |shards: u64, shard: u64| data().shard(shards, shard).batch(8);
        for turns in [[(4u64, 3usize), (2, 5), (3, usize::MAX)], [(1, 9), (5, 2), (5, usize::MAX)], [(2, 62), (7, 1), (1, usize::MAX)]] {
            let (mut seen, mut state) = (Vec::new(), None::<FeedState>);
            for (shards, batches) in turns {
                let mut next = None;
                for shard in 0..shards {
                    let data = data(shards, shard);
                    let options = state.as_ref().map_or(Options::default(), |state| Options::resume(state, &data).unwrap());
                    let mut feed = start(&data, None, options);
                    for _ in 0..batches {
                        let Some(batch) = feed.next().unwrap() else { break };
                        assert_eq!(batch.epoch, 0);
                        seen.extend(ints(batch.column(0)));
                    }
                    if batches == usize::MAX {
                        let whole = epoch(&mut feed).concat().len() as u64;
                        assert_eq!(whole, (rows - shard).div_ceil(shards), "the epoch after it is whole again, {name}");
                    }
                    next = Some(feed.state());
                    assert_eq!(next.as_ref().unwrap().shards, shards);
                }
                state = next.map(|state| serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap());
            }
            seen.sort_unstable();
            let mut all = epoch(&mut start(&data(1, 0), None, Options::default())).concat();
            all.sort_unstable();
            assert_eq!(seen, all, "every row once, {turns:?}, {name}");
            assert_eq!(all.len() as u64, rows);
        }
    };
    check("by number", &|| count(1000, None).shuffle(Shuffle::seed(3)), 1000);
    // The same of rows that come one after the other.
    check("filtered", &|| count(1200, None).filter(|row| row.int("row") % 6 != 5), 1000);
    check("a buffer", &|| count(1000, None).filter(|_| true).shuffle_buffer(Shuffle::seed(1), Bytes(400)), 1000);
    let parts = || (0..5).map(|part| count(1000, None).skip(part * 200).take(200).shuffle(Shuffle::seed(part)));
    check("in turns", &move || Dataset::interleave(parts(), 2, 3), 1000);
    let sampled = || Dataset::sample_from([(count(600, None), 1.0), (count(1000, None).skip(600).filter(|_| true), 2.0)], 9);
    check("at random, some missing", &move || sampled().shuffle_buffer(Shuffle::seed(2), Bytes(64)).ignore_errors(0), 1000);
    let holes = || count(1010, Some((77, Broken::Fails))).skip(9).filter(|_| true).ignore_errors(1);
    check("all but one that cannot be read", &holes, 1000);
}

/// A position of shards that were not the last stage says nothing about others.
#[test]
fn a_stream_that_is_not_sharded_last_is_resumed_by_the_same_shards_only() {
    let data = |count_of, index| count(100, None).filter(|_| true).shard(count_of, index).window(1, 1, 1).unbatch().batch(4);
    let mut feed = start(&data(2, 1), None, Options::default());
    feed.next().unwrap();
    let state = feed.state();
    assert_eq!(Options::resume(&state, &data(2, 1)).unwrap().first_batch, 1);
    insta::assert_snapshot!(Options::resume(&state, &data(4, 1)).unwrap_err(), @"the saved position was taken with the row order counted rows → filter → shard(2, 1) → window(1, 1, 1) → unbatch, but this data set has counted rows → filter → shard(4, 1) → window(1, 1, 1) → unbatch; resume with the data set the position was saved from");
    // Nor can another stream be sharded with it.
    let sharded = |seed, count_of| {
        let rows = count(100, None).filter(|_| true).shuffle_buffer(Shuffle::seed(seed), Bytes(40));
        rows.shard(count_of, 0).batch(4)
    };
    let state = start(&sharded(1, 2), None, Options::default()).state();
    insta::assert_snapshot!(Options::resume(&state, &sharded(2, 3)).unwrap_err(), @"the saved position was taken with the row order counted rows → filter → shuffle(seed 1, 40 B), but this data set has counted rows → filter → shuffle(seed 2, 40 B); resume with the data set the position was saved from");
}
