//! Streams: what each stage gives, in which order, under any limit, and after resuming.

use collect::{column, complaint, numbers};
use image_files::Folder;
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{Method, cast_f32, decode, resize, scale};
use plimsoll_data::source::RowMut;
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, Options, Parallelism, Schema, Shuffle, Split, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

mod collect;
mod image_files;

fn range(end: i32) -> Dataset {
    Dataset::range(0, end, 1).unwrap()
}

/// A stream with the rows of a range.
fn stream(end: i32) -> Dataset {
    range(end).filter(|_| true)
}

fn all(data: Dataset) -> Vec<i32> {
    numbers(&data.batch(3), 0)
}

fn epoch(data: &Dataset, epoch: u64, limit: Option<Bytes>) -> Vec<Vec<u8>> {
    column(data, 0, epoch, limit).unwrap()
}

#[test]
fn nothing_repeated_for_ever_is_nothing() {
    let nothing = Dataset::range(0, 9, 1).unwrap().filter(|_| false).repeat(u64::MAX);
    assert_eq!(nothing.batch(4).count_rows().unwrap(), 0);
    // Epochs without rows are passed over.
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let rare = Dataset::from_generator(schema, |epoch| (0..i32::from(epoch % 100 == 7)).map(|n| Ok(vec![Tensor::i32([], [n])?])));
    assert_eq!(rare.repeat(1000).batch(4).count_rows().unwrap(), 10);
}

#[test]
fn rows_are_chosen_the_same_by_number_and_one_after_the_other() {
    for data in [range(20), stream(20)] {
        assert_eq!(all(data.clone().filter(|row| row.int("x") % 3 == 1)), [1, 4, 7, 10, 13, 16, 19]);
        assert_eq!(all(data.clone().take_while(|row| row.int("x") != 4)), [0, 1, 2, 3]);
        assert_eq!(all(data.clone().skip(17)), [17, 18, 19]);
        assert_eq!(all(data.clone().take(2).repeat(3)), [0, 1, 0, 1, 0, 1]);
        assert_eq!(all(data.clone().shard(6, 1)), [1, 7, 13, 19]);
        assert_eq!(all(data.clone().shard(6, 2).skip(1).take(5)), [8, 14]);
        assert_eq!(all(data.clone().skip(30)), [0; 0]);
        assert_eq!(numbers(&data.clone().take(4).enumerate("n").skip(2).batch(3), 0), [2, 3]);
        assert_eq!(numbers(&data.clone().batch(6).drop_remainder(), 0), (0..18).collect::<Vec<_>>());
        assert_eq!(numbers(&data.clone().batch(6).drop_remainder().rebatch(3), 0), (0..18).collect::<Vec<_>>());
        assert_eq!(all(data.clone().window(3, 8, 2)), [0, 2, 4, 8, 10, 12]);
        assert_eq!(all(data.clone().window(2, 9, 1)), [0, 1, 9, 10, 18, 19]);
        assert_eq!(all(data.clone().window(4, 4, 1).unbatch()), (0..20).collect::<Vec<_>>());
        assert_eq!(all(data.clone().batch(4).unbatch()), (0..20).collect::<Vec<_>>());
    }
}

#[test]
fn sizes_are_known_where_they_can_be() {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let known = [
        range(20).window(3, 8, 2),
        range(20).window(4, 4, 1).unbatch(),
        range(20).enumerate("n").shard(6, 1).repeat(2),
        Dataset::concatenate([range(20).enumerate("n"), range(5).enumerate("n").skip(1)]),
        Dataset::interleave([range(3), range(4)], 2, 1),
        range(9).enumerate("n").batch(4).drop_remainder(),
    ];
    for data in known {
        assert_eq!(data.size(), Some(data.clone().rebatch(3).count_rows().unwrap()), "{}", data.describe());
    }
    assert_eq!(range(9).enumerate("n").batch(4).drop_remainder().size(), Some(8));
    assert_eq!((stream(9).size(), stream(9).len(), stream(9).batch(4).drop_remainder().len()), (None, 9, 8));
    assert_eq!(stream(9).assert_cardinality(9).size(), Some(9));
    assert_eq!(range(3).flat_map(schema, Bytes::mib(1), |_| Ok(range(2))).size(), None);
}

#[test]
fn shuffled_rows_that_are_repeated_come_in_another_order_each_time() {
    let data = range(50).shuffle(Shuffle::seed(3)).repeat(2).batch(7);
    let mut seen = Vec::new();
    for time in 0..3 {
        let rows = epoch(&data, time, None);
        for part in rows.chunks(50) {
            let mut sorted: Vec<i32> = part.iter().map(|row| i32::from_ne_bytes(row[..].try_into().unwrap())).collect();
            assert!(!seen.contains(&sorted));
            seen.push(sorted.clone());
            sorted.sort_unstable();
            assert_eq!(sorted, (0..50).collect::<Vec<_>>());
        }
    }
}

#[test]
fn shards_of_a_shuffled_epoch_have_every_row_once() {
    let mut rows: Vec<i32> = (0..4).flat_map(|index| all(range(50).shuffle(Shuffle::seed(1)).shard(4, index))).collect();
    assert_ne!(rows, (0..50).collect::<Vec<_>>());
    rows.sort_unstable();
    assert_eq!(rows, (0..50).collect::<Vec<_>>());
}

#[test]
fn data_sets_are_put_together() {
    let tens = || Dataset::range(10, 13, 1).unwrap();
    for (a, b) in [(range(4), tens()), (stream(4), tens()), (range(4), tens().filter(|_| true))] {
        assert_eq!(all(Dataset::concatenate([a.clone(), b.clone()])), [0, 1, 2, 3, 10, 11, 12]);
        assert_eq!(all(Dataset::interleave([a.clone(), b.clone(), a.clone()], 2, 2)), [0, 1, 10, 11, 2, 3, 12, 0, 1, 2, 3]);
        let parallel = Dataset::interleave_parallel([a.clone(), b.clone(), a.clone()], 2, 2);
        assert_eq!(all(parallel.clone()), [0, 1, 10, 11, 2, 3, 12, 0, 1, 2, 3]);
        assert_eq!(all(parallel.repeat(2).skip(11)), [0, 1, 10, 11, 2, 3, 12, 0, 1, 2, 3]);
        let mut sampled = all(Dataset::sample_from([(a, 1.0), (b, 3.0)], 5));
        sampled.sort_unstable();
        assert_eq!(sampled, [0, 1, 2, 3, 10, 11, 12]);
    }
    let names = Dataset::from_tensor_slices([("name", Tensor::i32([3], [7, 8, 9]).unwrap())]).unwrap();
    for (zipped, size) in [(Dataset::zip([range(5), names.clone()]), Some(3)), (Dataset::zip([stream(5), names]), None)] {
        assert_eq!(zipped.size(), size);
        assert_eq!((all(zipped.clone()), numbers(&zipped.batch(2), 1)), (vec![0, 1, 2], vec![7, 8, 9]));
    }
    // Indexed rows keep them: any order of what was put together is exact.
    let shuffled = Dataset::concatenate([range(40), Dataset::range(40, 100, 1).unwrap()]).shuffle(Shuffle::seed(2));
    assert!(shuffled.size().is_some() && shuffled.plan_is_small());
    let mut rows = all(shuffled);
    assert!(rows[..40].iter().any(|row| *row >= 40));
    rows.sort_unstable();
    assert_eq!(rows, (0..100).collect::<Vec<_>>());
}

#[test]
fn threads_of_an_interleave_are_planned_for_as_many_as_are_open_at_a_time() {
    let parts = || (0..20).map(|part| Dataset::range(part * 100, part * 100 + 50, 1).unwrap());
    let rows = all(Dataset::interleave(parts(), 3, 4));
    let planned = |cycle| Dataset::interleave_parallel(parts(), cycle, 4).batch(3).plan(None).unwrap();
    let ahead = |cycle| planned(cycle).stages().iter().find(|(name, _)| name.contains("ahead")).unwrap().1;
    assert_eq!(ahead(6), ahead(3) * 2);
    for limit in [None, Some(Bytes::mib(8)), Some(planned(3).minimum())] {
        // Every feed reserves what it holds, so one too many at a time is refused by the ledger.
        assert_eq!(epoch(&Dataset::interleave_parallel(parts(), 3, 4).batch(3), 1, limit).len(), rows.len());
    }
    assert_eq!(all(Dataset::interleave_parallel(parts(), 3, 4)), rows);
}

#[test]
fn an_interleave_holds_the_inputs_that_are_open_at_a_time_and_no_plan_is_below_the_least_that_works() {
    let schema = || Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let large = |part: i32| {
        let rows = move |_| (0..5).map(move |row| Ok(vec![Tensor::i32([], [part * 10 + row])?]));
        Dataset::from_generator_holding(schema(), Bytes::mib(1), rows)
    };
    let rows = all(Dataset::interleave((0..20).map(large), 20, 1));
    type Join = fn(Vec<Dataset>, usize) -> Dataset;
    let joins: [Join; 2] =
        [|parts, cycle| Dataset::interleave(parts, cycle, 1), |parts, cycle| Dataset::interleave_parallel(parts, cycle, 1)];
    for join in joins {
        for cycle in [1, 3, 20] {
            let data = join((0..20).map(large).collect(), cycle).batch(3);
            let (plan, least) = (data.plan(None).unwrap(), data.plan(None).unwrap().minimum());
            let of_inputs = Bytes::mib(cycle as u64);
            assert!((of_inputs..of_inputs + Bytes::mib(1)).contains(&least), "{least} for {cycle}:\n{plan}");
            assert!(least <= plan.total(), "{plan}");
            for limit in [None, Some(least), Some(Bytes((least.0 + plan.total().0) / 2))] {
                let mut came = epoch(&data, 0, limit);
                came.sort_unstable();
                assert_eq!(came.len(), rows.len(), "{limit:?}");
                assert_eq!(epoch(&data, 1, limit).len(), rows.len());
                came.dedup();
                assert_eq!(came.len(), rows.len(), "each once");
            }
        }
    }
    // What is wrong with an input is reported at the start, and not when its turn comes.
    let wrong = Dataset::interleave([range(3), range(3), range(3).bucket_by_length("x", [3, 2], 1)], 1, 1).batch(1);
    let told = wrong.plan(None).err().unwrap();
    assert!(told.to_string().contains("boundaries that grow"), "{told}");
}

#[test]
fn rows_kept_by_an_input_of_an_interleave_are_there_the_next_time() {
    let made = Arc::new(AtomicU64::new(0));
    let counted = |part: i32| {
        let (made, schema) = (Arc::clone(&made), Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap());
        Dataset::from_fn(schema, 5, move |n, row| {
            made.fetch_add(1, Relaxed);
            row.i32(0, &[part * 10 + n as i32])
        })
    };
    let data = Dataset::interleave((0..4).map(|part| counted(part).cache(Cache::Memory)), 2, 1).batch(3);
    let plan = data.plan(None).unwrap();
    let mut feed = Feed::start(&data, &plan, &Ledger::new("host", None), Options { epochs: Some(3), ..Options::default() }).unwrap();
    for _ in 0..3 {
        while feed.next().unwrap().is_some() {}
    }
    assert_eq!(made.load(Relaxed), 20);
}

trait Small {
    fn plan_is_small(&self) -> bool;
}

impl Small for Dataset {
    /// No buffer but a few rows.
    fn plan_is_small(&self) -> bool {
        self.clone().batch(3).plan(None).unwrap().total() < Bytes::kib(520)
    }
}

#[test]
fn samples_are_drawn_in_proportion() {
    let (few, many) = (Dataset::range(0, 10_000, 1).unwrap(), Dataset::range(10_000, 40_000, 1).unwrap());
    let rows = all(Dataset::sample_from([(few, 1.0), (many, 3.0)], 5).take(10_000));
    let share = rows.iter().filter(|row| **row < 10_000).count();
    assert!((2_350..2_650).contains(&share), "{share} of 10,000");
    // Each keeps its own order.
    let firsts: Vec<i32> = rows.iter().copied().filter(|row| *row < 10_000).collect();
    assert!(firsts.is_sorted());
}

#[test]
fn a_row_becomes_a_data_set() {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let expand = |row: &plimsoll_data::Row<'_>| Dataset::range(0, row.int("x") as i32, 1);
    let data = range(4).flat_map(schema.clone(), Bytes::mib(1), expand);
    assert_eq!(all(data), [0, 0, 1, 0, 1, 2]);
    let other = range(4).flat_map(schema.clone(), Bytes::mib(1), |_| Ok(Dataset::digits(Split::Test)));
    let tight = range(4).flat_map(schema, Bytes(3), expand);
    let complaints = [other, tight].map(|data| complaint(column(&data.batch(2), 0, 0, None), Path::new("/")));
    insta::assert_snapshot!(complaints.join("\n"), @"
    flat_map was to give x: i32[] and gave x: u8[8, 8, 1], y: i32[]; declare what it gives
    flat_map may hold 3 B and 0 numbers from 0 by 1 needs 133 B; allow it more
    ");
}

#[test]
fn a_buffer_shuffles_as_far_as_it_reaches() {
    let data = stream(1000).shuffle_buffer(Shuffle::seed(4), Bytes(400)).batch(16);
    let rows = |time| -> Vec<i32> { epoch(&data, time, None).iter().map(|row| i32::from_ne_bytes(row[..].try_into().unwrap())).collect() };
    let (first, second) = (rows(0), rows(1));
    assert_ne!(first, second);
    assert!(first.iter().enumerate().all(|(place, &row)| row as usize <= place + 100), "nothing comes before it was read");
    let moved = first.iter().enumerate().filter(|(place, row)| place.abs_diff(**row as usize) > 20).count();
    assert!(moved > 500, "{moved}");
    for mut rows in [first, second] {
        rows.sort_unstable();
        assert_eq!(rows, (0..1000).collect::<Vec<_>>());
    }
    assert!(data.plan(None).unwrap().stages().iter().any(|(name, bytes)| name == "shuffle(seed 4, 400 B)" && bytes.0 == 400));
}

#[test]
fn batches_have_rows_of_one_bucket() {
    let lengths = Dataset::range(0, 60, 1).unwrap().enumerate("n").map("n", []);
    let schema = Schema::new(vec![Column::new("length", DType::I32, [])]).unwrap();
    let data = lengths.flat_map(schema, Bytes::mib(1), |row| {
        let n = row.int("n") as i32;
        Dataset::from_tensor_slices([("length", Tensor::i32([1], [n * 37 % 20])?)])
    });
    let data = data.bucket_by_length("length", [5, 10], 4).batch(4);
    let rows = numbers(&data, 0);
    let bucket = |length: i32| usize::from(length >= 5) + usize::from(length >= 10);
    let whole = rows.chunks(4).take_while(|batch| batch.iter().all(|length| bucket(*length) == bucket(batch[0]))).count();
    assert!(whole >= 13, "{rows:?}");
    assert_eq!(rows.len(), 60);
    let complaints = [range(3).bucket_by_length("y", [5], 4), range(3).bucket_by_length("x", [5, 5], 4)];
    let complaints = complaints.map(|data| complaint(column(&data.batch(2), 0, 0, None), Path::new("/")));
    insta::assert_snapshot!(complaints.join("\n"), @"
    there is no column `y` to look at; the columns are x
    bucket_by_length(x, [5, 5], 4) needs boundaries that grow and batches of at least one row
    ");
}

/// A pipeline with most of the stages in it.
fn everything() -> Dataset {
    let digits = Dataset::digits(Split::Train).shuffle(Shuffle::seed(1)).map("x", [scale(1.0 / 16.0)]);
    let kept = digits.filter(|row| row.int("y") != 3).shuffle_buffer(Shuffle::seed(2), Bytes::kib(20)).map("x", [scale(2.0)]);
    let other = Dataset::digits(Split::Test).map("x", [cast_f32()]).shuffle(Shuffle::seed(9));
    let sampled = Dataset::sample_from([(kept, 2.0), (other, 1.0)], 3).skip(5).shard(2, 1);
    sampled.window(2, 1, 1).unbatch().repeat(2).enumerate("n").map("n", [scale(0.5)]).batch(32)
}

#[test]
fn a_stream_resumes_exactly_wherever_it_was_left() {
    let data = everything();
    let (plan, ledger) = (data.plan(None).unwrap(), Ledger::new("host", None));
    let mut feed = Feed::start(&data, &plan, &ledger, Options::default()).unwrap();
    // All batches of the first epoch and some of the second, and where the feed stood before each.
    let (mut states, mut batches) = (vec![feed.state()], Vec::new());
    while batches.len() < 120 {
        if let Some(batch) = feed.next().unwrap() {
            batches.push((batch.epoch, batch.column(1).to_vec()));
            states.push(feed.state());
        } else {
            *states.last_mut().unwrap() = feed.state();
        }
    }
    assert!(batches[119].0 == 1);
    for at in [0, 1, 7, 50, 106, 110] {
        let state = serde_json::from_str(&serde_json::to_string(&states[at]).unwrap()).unwrap();
        let mut resumed = Feed::start(&data, &plan, &ledger, Options::resume(&state, &data).unwrap()).unwrap();
        for expected in &batches[at..(at + 9).min(120)] {
            let batch = resumed.next().unwrap();
            let batch = match batch {
                Some(batch) => (batch.epoch, batch.column(1).to_vec()),
                None => {
                    let batch = resumed.next().unwrap().unwrap();
                    (batch.epoch, batch.column(1).to_vec())
                }
            };
            assert!(batch == *expected, "resumed at batch {at}");
        }
    }
}

#[test]
fn a_stream_is_the_same_under_any_limit() {
    let data = everything();
    let expected = epoch(&data, 1, None);
    let plan = data.plan(None).unwrap();
    for limit in [plan.minimum(), plan.minimum() + Bytes::kib(40), plan.total()] {
        assert!(epoch(&data, 1, Some(limit)) == expected, "{limit}");
    }
    assert!(data.plan(Some(plan.minimum() - Bytes(1))).is_err());
}

#[test]
fn what_cannot_be_read_is_left_out_counted_and_named() {
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let make = |n: u64, row: &mut RowMut<'_, '_, '_>| match n {
        4 | 9 => Err(DataError::Stage(format!("row {n} is broken"))),
        12 => panic!("row {n} is rotten"),
        _ => row.i32(0, &[n as i32]),
    };
    let broken = Dataset::from_fn(schema, 15, make);
    for threads in [1, 3] {
        let data = broken.clone().parallelism(Parallelism::Threads(threads)).ignore_errors(3);
        assert_eq!(all(data.clone()), [0, 1, 2, 3, 5, 6, 7, 8, 10, 11, 13, 14]);
        let (count, names) = data.ignored();
        assert_eq!((count, names.len()), (3, 3));
        assert_eq!(names[..2], ["row 4 is broken", "row 9 is broken"]);
        assert!(names[2].contains("row 12 is rotten"), "{}", names[2]);
        let strict = broken.clone().parallelism(Parallelism::Threads(threads)).ignore_errors(1).batch(3);
        assert_eq!(
            complaint(column(&strict, 0, 0, None), Path::new("/")),
            "more than 1 rows of epoch 0 could not be read; the last: row 9 is broken"
        );
    }
}

#[test]
fn broken_pictures_are_left_out_by_all_threads() {
    let folder: Folder = image_files::twelve();
    folder.write("cat/00-broken.png", b"not an image");
    folder.write("dog/zz-empty.jpg", b"");
    let whole = folder.data().map("x", [decode(), resize(8, 8, Method::Bilinear)]).batch(4);
    assert!(column(&whole, 0, 0, None).is_err());
    let kept = |threads| {
        let data = folder.data().map("x", [decode(), resize(8, 8, Method::Bilinear)]).parallelism(Parallelism::Threads(threads));
        let data = data.ignore_errors(10);
        let rows = column(&data.clone().batch(4), 0, 2, None).unwrap();
        (rows, data.ignored().1.iter().map(|name| folder.text(name)).collect::<Vec<_>>())
    };
    let (rows, names) = kept(1);
    assert_eq!(rows.len(), 12);
    assert!(kept(3) == (rows, names.clone()));
    insta::assert_snapshot!(names.join("\n"), @"
    FOLDER/data/cat/00-broken.png cannot be decoded: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder
    FOLDER/data/dog/zz-empty.jpg cannot be decoded: it is empty; replace the file or take it out of the folder
    ");
}

#[test]
fn generators_begin_anew_each_epoch_and_are_held_to_what_they_declare() {
    let schema = || Schema::new(vec![Column::new("x", DType::I32, []), Column::new("z", DType::F32, [2])]).unwrap();
    let row = |n: i32| Ok(vec![Tensor::i32([], [n])?, Tensor::f32([2], [n as f32, 0.5])?]);
    let data = Dataset::from_generator(schema(), move |epoch| (0..5).map(move |n| row(n + 10 * epoch as i32))).batch(2);
    assert_eq!(numbers(&data, 0), [0, 1, 2, 3, 4]);
    assert_eq!(epoch(&data, 3, None).last().unwrap(), &34i32.to_ne_bytes());
    let given = |give: fn(i32) -> Result<Vec<Tensor>, DataError>| {
        let data = Dataset::from_generator(schema(), move |_| (0..5).map(give)).batch(2);
        complaint(column(&data, 0, 0, None), Path::new("/"))
    };
    let complaints = [
        given(|n| Ok(vec![Tensor::i32([], [n])?])),
        given(|n| Ok(vec![Tensor::i32([1], [n])?, Tensor::f32([2], [0.5, 0.5])?])),
        given(|n| Ok(vec![Tensor::f32([], [n as f32])?, Tensor::f32([2], [0.5, 0.5])?])),
        given(|_| Err(DataError::Stage("the data base has gone".into()))),
        given(|_| panic!("the data base is on fire")),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    a generator gave 1 columns where 2 are declared (x: i32[], z: f32[2])
    column `x` is declared as x: i32[], and i32[1] was given for it
    column `x` is declared as x: i32[], and f32[] was given for it
    the data base has gone
    a source or an operation panicked: the data base is on fire; correct it if the code is yours, otherwise please report a bug
    ");
}

#[test]
fn stages_that_make_no_sense_say_so() {
    let batched = |data: Dataset| data.batch(2).plan(None);
    let complaints = [
        batched(range(5).shard(3, 3)),
        batched(range(5).batch(2).filter(|_| true)),
        batched(Dataset::zip([range(5), range(5)])),
        batched(Dataset::zip([stream(5), range(5)])),
        batched(Dataset::concatenate([range(5), Dataset::digits(Split::Test)])),
        batched(Dataset::concatenate([])),
        batched(range(5).window(0, 1, 1)),
        batched(range(5).window(2, 1, usize::MAX)),
        batched(range(5).unbatch()),
        Dataset::sample_from([(range(5), 0.0)], 1).batch(2).count_rows().map(|_| range(1).batch(1).plan(None).unwrap()),
        Dataset::interleave([range(5)], 0, 1).batch(2).count_rows().map(|_| range(1).batch(1).plan(None).unwrap()),
        stream(5).assert_cardinality(6).batch(2).count_rows().map(|_| range(1).batch(1).plan(None).unwrap()),
        stream(5).assert_cardinality(4).batch(2).count_rows().map(|_| range(1).batch(1).plan(None).unwrap()),
        range(5).filter(|row| row.int("z") == 0).batch(2).count_rows().map(|_| range(1).batch(1).plan(None).unwrap()),
    ];
    insta::assert_snapshot!(complaints.map(|result| complaint(result, Path::new("/"))).join("\n"), @"
    shard(3, 3) is none of 3; number them from 0
    rows are counted after batch(2) in 5 numbers from 0 by 1 → batch(2); put the batch last
    column `x` appears twice; give each column its own name
    column `x` appears twice; give each column its own name
    concatenate puts rows of one kind together, not x: i32[] and x: u8[8, 8, 1], y: i32[]; map them to be alike
    concatenate of no data sets has no rows; give it at least one
    window(0, 1, 1) holds nothing; give numbers of at least 1
    window(2, 1, 18446744073709551615) reaches over more rows than can be held; ask for fewer
    column `x` has rows of shape [], and unbatch takes rows apart that all begin with one dimension
    sample_from has 1 data sets and the weights [0.0]; give each one above 0
    interleave(0, 1) takes nothing; give numbers of at least 1
    epoch 0 has 5 rows where assert_cardinality(6) was said
    epoch 0 has more than 4 rows where assert_cardinality(4) was said
    there is no column `z`; the columns are x
    ");
}

#[test]
fn a_position_among_samples_means_nothing_with_other_weights() {
    let sampled = |weight: f64| Dataset::sample_from([(range(20), 1.0), (range(20), weight)], 3).batch(4);
    let data = sampled(2.0);
    let mut feed = Feed::start(&data, &data.plan(None).unwrap(), &Ledger::new("host", None), Options::default()).unwrap();
    feed.next().unwrap();
    assert!(Options::resume(&feed.state(), &sampled(2.0)).is_ok());
    let told = Options::resume(&feed.state(), &sampled(5.0)).err().unwrap().to_string();
    assert!(told.contains("sample_from(1 : 2, seed 3)") && told.contains("sample_from(1 : 5, seed 3)"), "{told}");
}
