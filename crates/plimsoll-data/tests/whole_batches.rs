//! What is said of whole batches is true of them however their rows are handed out: mixed, overtaken, dropped.

use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::one_hot;
use plimsoll_data::{Column, DataError, Dataset, Feed, Mix, Options, Parallelism, Prefetch, Schema, Shuffle, Tensor};
use std::sync::{Arc, Condvar, Mutex};

const ROWS: usize = 45;

/// Images with the number of their row in every pixel, and as many classes as rows.
fn numbered() -> Dataset {
    let x = (0..ROWS).flat_map(|row| vec![row as f32; 24]).collect::<Vec<_>>();
    let y = Tensor::i32([ROWS], (0..ROWS as i32).collect::<Vec<_>>()).unwrap();
    let data = Dataset::from_tensor_slices([("x", Tensor::f32([ROWS, 4, 3, 2], x).unwrap()), ("y", y)]).unwrap();
    data.shuffle(Shuffle::seed(3)).map("y", [one_hot(ROWS)])
}

/// Both columns of two epochs, and how many rows each batch had.
fn rows(data: &Dataset, limit: Option<Bytes>, options: Options) -> Result<([Vec<u8>; 2], Vec<usize>), DataError> {
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let mut feed = Feed::start(data, &plan, &ledger, options)?;
    let (mut columns, mut batches) = ([Vec::new(), Vec::new()], Vec::new());
    for _ in 0..2 {
        while let Some(batch) = feed.next()? {
            columns.iter_mut().enumerate().for_each(|(index, column)| column.extend_from_slice(batch.column(index)));
            batches.push(batch.rows);
        }
    }
    assert_eq!(ledger.peak(), plan.total(), "what is planned is what is taken");
    Ok((columns, batches))
}

#[test]
fn rows_are_mixed_with_those_of_their_batch_however_they_are_handed_out() {
    let two = || Options { epochs: Some(2), ..Options::default() };
    for mix in [Mix::up(0.4).seed(5), Mix::cut(1.0)] {
        for drops in [false, true] {
            let batched = |data: Dataset| if drops { data.batch(12).drop_remainder() } else { data.batch(12) };
            let known = batched(numbered()).mix(mix.clone());
            let stream = batched(numbered().filter(|_| true)).mix(mix.clone());
            let expected = rows(&known, None, two()).unwrap().0;
            assert_ne!(expected, rows(&batched(numbered()), None, two()).unwrap().0, "{mix} does something");
            for data in [&known, &stream, &known.clone().parallelism(Parallelism::Threads(3))] {
                for at_a_time in [1, 3, 4, 5, 12, 24, 100] {
                    let again = data.clone().rebatch(at_a_time);
                    let least = again.plan(None).unwrap().minimum();
                    for limit in [None, Some(least), Some(least + Bytes::kib(8))] {
                        let (columns, batches) = rows(&again, limit, two()).unwrap();
                        assert!(columns == expected, "{} in {limit:?}", again.describe());
                        let of_epoch = if drops { 36 } else { ROWS };
                        let whole = vec![at_a_time; of_epoch / at_a_time];
                        let rest = [of_epoch % at_a_time].into_iter().filter(|rest| *rest > 0);
                        let epoch: Vec<usize> = whole.into_iter().chain(rest).collect();
                        assert_eq!(batches, epoch.repeat(2), "{}", again.describe());
                    }
                }
                // Cut twice, the batch is still the one that was mixed.
                assert!(rows(&data.clone().rebatch(7).rebatch(4), None, two()).unwrap().0 == expected);
            }
        }
    }
    let mixed_after = numbered().batch(12).rebatch(4).mix(Mix::up(0.4));
    assert_eq!(rows(&mixed_after, None, two()).unwrap(), rows(&numbered().batch(4).mix(Mix::up(0.4)), None, two()).unwrap());
}

#[test]
fn a_position_inside_a_mixed_batch_can_be_gone_on_from() {
    let known = numbered().batch(12).mix(Mix::up(0.4));
    let stream = numbered().filter(|_| true).batch(12).mix(Mix::up(0.4));
    for data in [known, stream] {
        for at_a_time in [4, 5] {
            let data = data.clone().rebatch(at_a_time);
            let (plan, ledger) = (data.plan(None).unwrap(), Ledger::new("host", None));
            let (whole, _) = rows(&data, None, Options { epochs: Some(2), ..Options::default() }).unwrap();
            let mut feed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(2), ..Options::default() }).unwrap();
            let (mut done, mut epochs) = (0, 0);
            while epochs < 2 {
                let state = feed.state();
                let left = Options { epochs: Some(2 - epochs), ..Options::resume(&state, &data).unwrap() };
                let (rest, _) = rows(&data, None, left).unwrap();
                assert!(rest[0] == whole[0][done..], "after {} batches of epoch {}", state.batches, state.epoch);
                match feed.next().unwrap() {
                    Some(batch) => done += batch.column(0).len(),
                    None => epochs += 1,
                }
            }
        }
    }
}

#[test]
fn a_batch_that_is_mixed_lies_in_one_slot_and_that_is_planned() {
    let whole = numbered().batch(12).mix(Mix::up(0.4));
    let pieces = whole.clone().rebatch(4);
    let (plan, of_whole) = (pieces.plan(None).unwrap(), whole.plan(None).unwrap());
    assert_eq!(plan.minimum(), of_whole.minimum());
    assert!(plan.minimum() > numbered().batch(4).plan(None).unwrap().minimum());
    assert_eq!((plan.total(), plan.batches_per_slot()), (of_whole.total(), 3 * of_whole.batches_per_slot()));
    let ahead = pieces.clone().prefetch(Prefetch::Batches(5)).plan(None).unwrap();
    assert_eq!(ahead.batches_ahead(), 6, "two batches of three pieces");
    let refused = pieces.plan(Some(plan.minimum() - Bytes(1))).unwrap_err().to_string();
    assert!(refused.contains(&format!("it needs at least {}", plan.minimum())), "{refused}");

    let unmixed = numbered().batch(4);
    let other = Feed::start(&pieces, &unmixed.plan(None).unwrap(), &Ledger::new("host", None), Options::default());
    assert!(matches!(other, Err(DataError::OtherPlan { .. })), "a plan whose slots may end inside a batch");
    let absurd = numbered().batch(usize::MAX / 3).deterministic(false).rebatch(1 << 40);
    assert!(absurd.plan(None).is_ok(), "a slot never holds more than an epoch");
}

/// Rows of which the first is only made once others were handed out.
fn held_up(held: Arc<(Mutex<bool>, Condvar)>) -> Dataset {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    Dataset::from_fn(schema, 60, move |n, row| {
        let (go_on, changed) = &*held;
        drop(changed.wait_while(go_on.lock().unwrap(), |go_on| n == 0 && !*go_on).unwrap());
        row.i32(0, &[n as i32])
    })
}

#[test]
fn what_overtakes_is_a_whole_batch() {
    // What was in batches of four and then of three stays together by twelve.
    for [first, second, together] in [[2, 1, 4], [3, 1, 12], [4, 2, 4]] {
        let held = Arc::new((Mutex::new(false), Condvar::new()));
        let data = held_up(Arc::clone(&held)).parallelism(Parallelism::Threads(2)).deterministic(false).batch(4);
        // Two slots that hold no more than they must.
        let data = data.rebatch(first).rebatch(second).prefetch(Prefetch::Batches(1));
        let plan = data.plan(None).unwrap();
        assert_eq!((plan.workers(), plan.slots(), plan.batches_per_slot() * second), (2, 2, together));
        let ledger = Ledger::new("host", None);
        let mut feed = Feed::start(&data, &plan, &ledger, Options { epochs: Some(1), ..Options::default() }).unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = feed.next().unwrap() {
            rows.extend(batch.column(0).as_chunks().0.iter().map(|four| i32::from_ne_bytes(*four)));
            *held.0.lock().unwrap() = true;
            held.1.notify_all();
        }
        assert_ne!(rows[0], 0, "the first was held up");
        let mut batches: Vec<&[i32]> = rows.chunks(4).collect();
        assert!(batches.iter().all(|batch| batch[0] % 4 == 0 && batch.is_sorted_by(|a, b| a + 1 == *b)), "{rows:?}");
        batches.sort_unstable();
        assert_eq!(batches.concat(), (0..60).collect::<Vec<_>>(), "each once");
    }
}

#[test]
fn epochs_without_rows_end_at_once() {
    let none = Dataset::range(0, 0, 1).unwrap();
    let dropped = Dataset::range(0, 3, 1).unwrap().enumerate("n").batch(4).drop_remainder();
    for data in [none.clone().batch(4), none.enumerate("n").batch(4), dropped] {
        for data in [data.clone(), data.deterministic(false).rebatch(2)] {
            let plan = data.plan(None).unwrap();
            let mut feed = Feed::start(&data, &plan, &Ledger::new("host", None), Options::default()).unwrap();
            for epoch in 0..3 {
                assert_eq!(feed.state().epoch, epoch, "{}", data.describe());
                assert!(feed.next().unwrap().is_none());
            }
        }
    }
}
