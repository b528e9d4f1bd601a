//! Rows that vary in length, and batches that come in any order.

use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{fill, scale};
use plimsoll_data::{Column, DataError, Dataset, Feed, FeedState, Options, PadTo, Parallelism, Schema, Shuffle, Tensor};
use std::sync::{Arc, Condvar, Mutex};

/// Rows of so many pairs, each with its number; the i32 column says how many.
fn pairs(lengths: &'static [usize], most: usize) -> Dataset {
    let schema = Schema::new(vec![Column::up_to("x", DType::F32, [most, 2]), Column::new("y", DType::I32, [])]).unwrap();
    Dataset::from_generator(schema, |_| {
        lengths.iter().enumerate().map(|(number, &length)| {
            let pair = |at: usize| [number as f32, at as f32];
            Ok(vec![Tensor::f32([length, 2], (0..length).flat_map(pair).collect::<Vec<_>>())?, Tensor::i32([], [length as i32])?])
        })
    })
}

/// A shape and the numbers in it.
type Shaped = (Vec<usize>, Vec<f32>);

/// What each batch is.
fn batches(data: &Dataset, limit: Option<Bytes>) -> Result<Vec<Shaped>, DataError> {
    let plan = data.plan(limit)?;
    let ledger = Ledger::new("host", limit);
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(1), ..Options::default() })?;
    let mut batches = Vec::new();
    while let Some(batch) = feed.next()? {
        let numbers = batch.column(0).as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
        batches.push((batch.shape(0), numbers));
    }
    assert_eq!(ledger.peak(), plan.total());
    Ok(batches)
}

#[test]
fn rows_are_padded_to_the_longest_of_their_batch_under_any_limit() {
    let data = pairs(&[1, 3, 0, 2, 5], 5).padded_batch(2, PadTo::Longest, 9.0);
    let free = batches(&data, None).unwrap();
    assert_eq!(
        free,
        [
            (vec![2, 3, 2], vec![0., 0., 9., 9., 9., 9., 1., 0., 1., 1., 1., 2.]),
            (vec![2, 2, 2], vec![9., 9., 9., 9., 3., 0., 3., 1.]),
            (vec![1, 5, 2], vec![4., 0., 4., 1., 4., 2., 4., 3., 4., 4.]),
        ]
    );
    assert_eq!(batches(&data, Some(data.plan(None).unwrap().minimum())).unwrap(), free);
    // All of it in another order, and looked at on the way.
    let shuffled = pairs(&[1, 3, 0, 2, 5], 5).filter(|row| row.numbers("x").count() == 2 * row.int("y") as usize);
    let shuffled = batches(&shuffled.shuffle(Shuffle::seed(3)).padded_batch(5, PadTo::Longest, 0.0), None).unwrap();
    assert_eq!(shuffled[0].0, [5, 5, 2]);
}

#[test]
fn rows_are_padded_to_what_was_declared_so_that_batches_are_alike() {
    let data = pairs(&[1, 0, 2], 2).padded_batch(2, PadTo::Declared, -1.0);
    assert_eq!(data.output_schema().unwrap().to_string(), "x: f32[2, 2], y: i32[]");
    let shown = batches(&data, None).unwrap();
    assert_eq!(shown, [(vec![2, 2, 2], vec![0., 0., -1., -1., -1., -1., -1., -1.]), (vec![1, 2, 2], vec![2., 0., 2., 1.])]);
    // Filled up, they can be mapped like any others.
    let mapped = pairs(&[1, 0, 2], 2).map("x", [fill(0.0), scale(2.0)]).batch(3);
    assert_eq!(batches(&mapped, None).unwrap()[0].1, [0., 0., 0., 0., 0., 0., 0., 0., 4., 0., 4., 2.]);
}

#[test]
fn a_row_longer_than_declared_and_a_batch_without_padding_are_refused() {
    let complaint = |data: Dataset| batches(&data, None).unwrap_err().to_string();
    insta::assert_snapshot!(complaint(pairs(&[1, 3], 2).padded_batch(2, PadTo::Longest, 0.0)), @"column `x` is declared as x: f32[≤ 2, 2], and f32[3, 2] was given for it; declare the longest row there is");
    insta::assert_snapshot!(complaint(pairs(&[1], 2).batch(2)), @"column `x` has rows that vary in length; batch it with padded_batch");
    insta::assert_snapshot!(complaint(pairs(&[1], 2).map("x", [scale(2.0)]).batch(2)), @"scale(2) cannot be applied to column `x`: its rows vary in length; put fill before it");
    insta::assert_snapshot!(complaint(pairs(&[1], 2).map("y", [fill(0.0)]).batch(2)), @"fill(0) cannot be applied to column `y`: its rows are all of one length; leave it out");
}

#[test]
fn rows_that_a_function_makes_are_as_long_as_what_it_writes() {
    fn rows(most: usize) -> Dataset {
        let columns = vec![Column::up_to("x", DType::F32, [3, 2]), Column::up_to("b", DType::U8, [3]), Column::new("y", DType::I32, [])];
        Dataset::from_fn(Schema::new(columns).unwrap(), 5, move |n, row| {
            let long = n as usize % (most + 1);
            row.f32(0, &vec![n as f32; 2 * long])?;
            row.u8(1, &vec![n as u8; long])?;
            row.i32(2, &[long as i32])
        })
    }
    let expected =
        [(vec![3, 2, 2], vec![9., 9., 9., 9., 1., 1., 9., 9., 2., 2., 2., 2.]), (vec![2, 3, 2], [vec![3.; 6], vec![9.; 6]].concat())];
    let data = rows(3).padded_batch(3, PadTo::Longest, 9.0);
    assert_eq!(batches(&data, None).unwrap(), expected);
    // By number in any order, by threads, kept, and looked at on the way.
    let looked_at = rows(3).cache(plimsoll_data::Cache::Memory).parallelism(Parallelism::Threads(2));
    let looked_at = looked_at.filter(|row| row.numbers("b").count() == row.int("y") as usize);
    assert_eq!(batches(&looked_at.padded_batch(3, PadTo::Longest, 9.0), None).unwrap(), expected);
    let complaint = |data: Dataset| batches(&data.padded_batch(2, PadTo::Longest, 0.0), None).unwrap_err().to_string();
    insta::assert_snapshot!(complaint(rows(4)), @"column `x` is declared as x: f32[≤ 3, 2], and 8 values of f32 were written to it");
    let uneven = |_, row: &mut plimsoll_data::source::RowMut<'_, '_, '_>| row.f32(0, &[0.0; 3]);
    let uneven = Dataset::from_fn(Schema::new(vec![Column::up_to("x", DType::F32, [3, 2])]).unwrap(), 1, uneven);
    insta::assert_snapshot!(complaint(uneven), @"column `x` is declared as x: f32[≤ 3, 2], and 3 values of f32 were written to it");
}

#[test]
fn taking_a_padded_batch_back_takes_its_padding_back() {
    let rows = |n: u64, row: &mut plimsoll_data::source::RowMut<'_, '_, '_>| row.f32(0, &vec![n as f32; n as usize]);
    let rows = Dataset::from_fn(Schema::new(vec![Column::up_to("x", DType::F32, [4])]).unwrap(), 5, rows);
    let expected = batches(&rows.clone().padded_batch(2, PadTo::Longest, 9.0), None).unwrap();
    let again = rows.padded_batch(3, PadTo::Longest, 0.0).unbatch();
    // Prefetched by threads as well, where rows come in batches on the way.
    for data in [again.clone(), again.clone().parallelism(Parallelism::Threads(2)).filter(|_| true)] {
        assert_eq!(batches(&data.padded_batch(2, PadTo::Longest, 9.0), None).unwrap(), expected);
    }
    let complaint = batches(&again.batch(2), None).unwrap_err();
    insta::assert_snapshot!(complaint, @"column `x` has rows that vary in length; batch it with padded_batch");
}

#[test]
fn what_needs_rows_of_one_length_refuses_others() {
    let rows = || pairs(&[1, 0, 2], 2);
    let complaint = |data: Dataset| batches(&data, None).unwrap_err().to_string();
    insta::assert_snapshot!(complaint(rows().window(2, 1, 1).padded_batch(2, PadTo::Longest, 0.0)), @"column `x` has rows that differ in length, and window puts rows together that are all of one length; put fill before it");
    insta::assert_snapshot!(complaint(rows().unbatch().padded_batch(2, PadTo::Longest, 0.0)), @"column `x` has rows that differ in length, and unbatch takes rows apart that are all of one length; put fill before it");
    let ragged = [Column::up_to("x", DType::F32, [2]), Column::new("y", DType::F32, [2])];
    for names in [["x", "y"], ["y", "x"]] {
        let schema =
            Schema::new(ragged.iter().zip(names).map(|(column, name)| Column { name: name.into(), ..column.clone() }).collect()).unwrap();
        let rows = Dataset::from_fn(schema, 4, |n, row| row.f32(0, &[n as f32]));
        let mixed = rows.clone().padded_batch(2, PadTo::Longest, 0.0).mix(plimsoll_data::Mix::up(1.0));
        let said = complaint(mixed);
        assert!(said.contains(&format!("column {}: f32[≤ 2] has rows that vary in length", names[0])), "{said}");
        assert!(batches(&rows.padded_batch(2, PadTo::Declared, 0.0).mix(plimsoll_data::Mix::up(1.0)), None).is_ok());
    }
    insta::assert_snapshot!(complaint(rows().padded_batch(2, PadTo::Longest, 0.0).mix(plimsoll_data::Mix::cut(1.0).columns("y", "x"))), @"cutmix(1, seed 0) cannot be done: column x: f32[≤ 2, 2] has rows that vary in length; pad them to what is declared, or put fill before");
    // Filled up, they are of one length.
    let filled = rows().map("x", [fill(0.0)]).window(2, 1, 1).batch(2);
    assert_eq!(batches(&filled, None).unwrap()[0].0, [2, 2, 2, 2]);
}

#[test]
fn batches_have_rows_of_like_length() {
    let lengths: &'static [usize] = &[1, 7, 2, 9, 0, 3, 8, 2, 7, 1, 9, 5, 4];
    let data = pairs(lengths, 9).bucket_by_length("x", [3, 6], 3).padded_batch(3, PadTo::Longest, -1.0);
    let free = batches(&data, None).unwrap();
    // What is full first comes first; what is left at the end, the shortest first, fills batches across boundaries.
    let shapes: Vec<&[usize]> = free.iter().map(|(shape, _)| &shape[..]).collect();
    assert_eq!(shapes, [&[3, 2, 2][..], &[3, 9, 2], &[3, 5, 2], &[3, 7, 2], &[1, 9, 2]]);
    assert_eq!(batches(&data, Some(data.plan(None).unwrap().minimum())).unwrap(), free);
    // A plain oracle: each row's length is beside it.
    let by_number = pairs(lengths, 9).bucket_by_length("y", [3, 6], 3).padded_batch(3, PadTo::Longest, -1.0);
    assert_eq!(batches(&by_number, None).unwrap(), free);
    let complaint = batches(&Dataset::range(0, 9, 1).unwrap().window(2, 1, 1).bucket_by_length("x", [3], 3).batch(3), None);
    insta::assert_snapshot!(complaint.unwrap_err(), @"bucket_by_length(x, [3], 3) needs a column whose rows vary in length, or one with one integer a row");
}

/// Rows whose first is only made once others were.
fn held_up(held: Arc<(Mutex<bool>, Condvar)>) -> Dataset {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    Dataset::from_fn(schema, 12, move |n, row| {
        if n == 0 {
            let (go_on, changed) = &*held;
            let mut go_on = go_on.lock().unwrap();
            while !*go_on {
                go_on = changed.wait(go_on).unwrap();
            }
        }
        row.i32(0, &[n as i32])
    })
}

#[test]
fn batches_overtake_one_that_is_held_up_where_the_order_does_not_matter() {
    let held = Arc::new((Mutex::new(false), Condvar::new()));
    let data = held_up(Arc::clone(&held)).parallelism(Parallelism::Threads(2)).deterministic(false).batch(2);
    let data = data.prefetch(plimsoll_data::Prefetch::Batches(2));
    let plan = data.plan(None).unwrap();
    let mut feed = Feed::start(&data, &plan, &Ledger::new("host", None), Options { epochs: Some(2), ..Options::default() }).unwrap();
    for epoch in 0..2 {
        let mut rows = Vec::new();
        while let Some(batch) = feed.next().unwrap() {
            assert_eq!(batch.epoch, epoch);
            rows.extend(batch.column(0).as_chunks().0.iter().map(|four| i32::from_ne_bytes(*four)));
            if epoch == 0 && rows.len() == 2 {
                assert_ne!(rows[0], 0, "the first is still held up");
                *held.0.lock().unwrap() = true;
                held.1.notify_all();
            }
        }
        rows.sort_unstable();
        assert_eq!(rows, (0..12).collect::<Vec<_>>(), "each once");
    }
}

#[test]
fn a_position_inside_an_epoch_of_any_order_is_refused() {
    let data = Dataset::range(0, 10, 1).unwrap().deterministic(false).batch(2);
    let inside = FeedState { epoch: 1, batches: 2, first_row: 0, shards: 1, batch: 2, rows: 10, order: "file order".into() };
    insta::assert_snapshot!(Options::resume(&inside, &data).unwrap_err(), @"the saved position is inside an epoch whose batches came in any order, so it does not say which are left; save at the end of an epoch, or leave out deterministic(false)");
    assert_eq!(Options::resume(&FeedState { batches: 0, ..inside }, &data).unwrap().first_epoch, 1);
}
