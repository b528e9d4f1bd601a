//! Caches behind anything: what is kept and what is not, in memory and in files, and never a stale or half one.

mod cache_files;
mod image_files;

use cache_files::{counted, csv, epochs, file, folder, left, path, read, write_csv};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{Method, apply, decode, fill, flip_left_right, resize, scale};
use plimsoll_data::source::{CsvSpec, Feature};
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, Options, PadTo, Prefetch, Schema, Shuffle, Split, Tensor};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[test]
fn a_row_that_was_kept_is_not_made_again() {
    let (data, made) = counted(40);
    let data = data.shuffle(Shuffle::seed(1));
    epochs(&data.clone().cache(Cache::Memory).batch(7), None, 3);
    assert_eq!(made.swap(0, Relaxed), 40, "all fit");
    let kept = data.clone().cache(Cache::Memory).batch(7);
    let least = kept.plan(None).unwrap().minimum();
    let ten = (0..4000).map(|room| least + Bytes(room)).find(|limit| kept.plan(Some(*limit)).unwrap().cached_rows() == 10).unwrap();
    let plan = kept.plan(Some(ten)).unwrap();
    // Sixteen bytes each, and one that says whether they are there.
    assert!(plan.stages().contains(&("cache (10 of 40 rows)".into(), Bytes(170))), "{plan}");
    epochs(&kept, Some(ten), 3);
    assert_eq!(made.swap(0, Relaxed), 40 + 30 + 30, "ten fit");
    assert_eq!(kept.plan(Some(least)).unwrap().cached_rows(), 0, "nothing has to");
    let bounded = data.clone().cache(Cache::MemoryUpTo(Bytes(5 * 17))).batch(7);
    assert_eq!(bounded.plan(None).unwrap().cached_rows(), 5);
    made.store(0, Relaxed);

    let stream = data.filter(|row| row.int("y") != 3).cache(Cache::Memory).batch(7);
    epochs(&stream, None, 3);
    assert_eq!(made.swap(0, Relaxed), 40, "of a stream an epoch fits");
    let (_, _, given_up) = read(&stream, Some(stream.plan(None).unwrap().minimum()), Options::default(), 3).unwrap();
    assert_eq!(made.swap(0, Relaxed), 120, "or nothing is kept");
    assert_eq!(
        given_up.unwrap(),
        "the limit leaves no space for the 640 B that a cache of 40 rows of a function → shuffle(seed 1) → filter may take"
    );
}

#[test]
fn maps_before_are_done_once_and_maps_after_each_time() {
    let calls = Arc::new(AtomicU64::new(0));
    let count = |calls: &Arc<AtomicU64>| {
        let calls = Arc::clone(calls);
        apply("count", [], move |_, x, out| {
            calls.fetch_add(1, Relaxed);
            out[0] = x[0] + 1.0;
            Ok(())
        })
    };
    let after = Arc::new(AtomicU64::new(0));
    let data = Dataset::range(0, 30, 1).unwrap().map("x", [count(&calls)]).cache(Cache::Memory).map("x", [count(&after)]).batch(4);
    let rows = epochs(&data, None, 3);
    assert_eq!((calls.load(Relaxed), after.load(Relaxed)), (30, 90));
    let first: Vec<f32> = rows[0][0].as_chunks().0.iter().map(|four| f32::from_ne_bytes(*four)).collect();
    assert_eq!(first, [2.0, 3.0, 4.0, 5.0]);
}

#[test]
fn rows_that_differ_in_length_are_kept_with_their_lengths() {
    let folder = folder();
    let schema = Schema::new(vec![Column::up_to("x", DType::I32, [9]), Column::new("y", DType::U8, [])]).unwrap();
    let words = || {
        let rows = (0..25).map(|n| Ok(vec![Tensor::i32([n % 10], (0..n as i32 % 10).collect::<Vec<_>>())?, Tensor::u8([], [n as u8])?]));
        let schema = schema.clone();
        Dataset::from_generator(schema, move |_| rows.clone().collect::<Vec<Result<Vec<Tensor>, DataError>>>().into_iter())
    };
    let plain = epochs(&words().padded_batch(4, PadTo::Longest, -1.0), None, 3);
    for cache in [Cache::MemoryUpTo(Bytes::kib(2)), file(&folder)] {
        let kept = words().version("1").cache(cache).padded_batch(4, PadTo::Longest, -1.0);
        assert_eq!(epochs(&kept, None, 3), plain);
    }
    // The same of records, which have numbers.
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/examples.tfrecord");
    let features = [("x", Feature::i32("words", [5]).up_to()), ("y", Feature::i32("label", []))];
    let records = || Dataset::tfrecord(&reference, &features).unwrap().shuffle(Shuffle::seed(1));
    let expected = epochs(&records().padded_batch(4, PadTo::Longest, -1.0), None, 3);
    for cache in [Cache::Memory, file(&folder), file(&folder)] {
        assert_eq!(epochs(&records().cache(cache).padded_batch(4, PadTo::Longest, -1.0), None, 3), expected);
    }
    let filled = words().map("x", [fill(0.0)]).version("1").cache(file(&folder)).batch(4);
    assert_eq!(epochs(&filled, None, 2), epochs(&words().padded_batch(4, PadTo::Declared, 0.0), None, 2));
}

/// Every epoch behind the cache of a stream is the first before it, whether there was space or not, and wherever it
/// begins.
#[test]
fn a_shuffle_before_the_cache_of_a_stream_is_frozen() {
    let folder = folder();
    let shuffled = || Dataset::range(0, 50, 1).unwrap().filter(|_| true).shuffle_buffer(Shuffle::seed(9), Bytes(80));
    let first = epochs(&shuffled().batch(6), None, 1);
    assert_ne!(epochs(&shuffled().batch(6), None, 2)[9..], first[..]);
    for cache in [Cache::Memory, Cache::MemoryUpTo(Bytes(60)), file(&folder), file(&folder)] {
        let kept = shuffled().version("1").cache(cache).batch(6);
        for limit in [None, Some(kept.plan(None).unwrap().minimum())] {
            let from = Options { first_epoch: 5, ..Options::default() };
            assert_eq!(read(&kept, limit, from, 1).unwrap().0, first);
            assert_eq!(epochs(&kept, limit, 3), [&first[..]; 3].concat());
        }
    }
}

#[test]
fn an_epoch_that_does_not_fit_is_not_kept_and_that_is_said() {
    let stream = Dataset::range(0, 50, 1).unwrap().filter(|_| true);
    let kept = stream.clone().cache(Cache::MemoryUpTo(Bytes(199))).batch(6);
    let (rows, _, given_up) = read(&kept, None, Options::default(), 3).unwrap();
    assert_eq!(rows, epochs(&stream.batch(6), None, 3));
    assert_eq!(
        given_up.unwrap(),
        "an epoch of 50 numbers from 0 by 1 → filter takes more than the 199 B of its cache, so rows are made each time"
    );
    assert!(kept.plan(None).unwrap().to_string().contains("cache (≤ 199 B)"));
}

#[test]
fn a_file_is_filled_once_and_found_by_later_runs_without_the_input() {
    for stream in [false, true] {
        let folder = folder();
        let build = || {
            let (data, made) = counted(40);
            let data = if stream { data.filter(|row| row.int("y") < 5).version("1") } else { data.version("1") };
            (data.cache(file(&folder)).shuffle(Shuffle::seed(2)).batch(7), made)
        };
        let (data, made) = build();
        assert!(!data.cache_file().unwrap().unwrap().whole);
        let rows = epochs(&data, None, 2);
        assert_eq!(made.load(Relaxed), 40);
        let found = data.cache_file().unwrap().unwrap();
        let held = if stream { 30 } else { 40 };
        assert!(found.whole && found.rows == Some(held), "{found:?}");
        assert_eq!(found.bytes.unwrap().0, fs::metadata(path(&folder)).unwrap().len());
        assert_eq!(left(&folder), ["rows.plc"]);
        let (data, made) = build();
        assert_eq!(epochs(&data, None, 2), rows);
        assert_eq!(made.load(Relaxed), 0, "nothing is recomputed");
        let limit = Some(data.plan(None).unwrap().minimum());
        assert_eq!(epochs(&data, limit, 2), rows, "with as little as works");
    }
}

#[test]
fn a_cache_of_nothing_is_whole() {
    for stream in [false, true] {
        let folder = folder();
        let rows = |end| Dataset::range(5, end, 1).unwrap();
        let data = if stream { rows(9).filter(|_| false).version("1") } else { rows(5) }.cache(file(&folder)).batch(3);
        assert!(epochs(&data, None, 2).is_empty() && is_found(&data));
        assert!(epochs(&data, None, 2).is_empty());
    }
}

/// Whether the file in the folder is of this very data.
fn is_found(data: &Dataset) -> bool {
    data.cache_file().unwrap().unwrap().whole
}

#[test]
fn whatever_changes_upstream_makes_a_new_cache() {
    let folder = folder();
    let table = folder.path().join("t.csv");
    write_csv(&table, 30, 1.0);
    let open = |targets: &[&str]| Dataset::csv(&table, &CsvSpec::new().targets(targets.iter().copied())).unwrap();
    let rows = |by: f32| open(&["y"]).map("x", [scale(by)]).cache(file(&folder)).map("x", [scale(2.0)]).batch(4);
    let stream = |by: f32, size: usize, version: &str| {
        let rows = open(&["y"]).map("x", [scale(by)]).enumerate("n").filter(|row| row.int("n") != 4).version(version);
        rows.window(size, 1, 1).cache(file(&folder)).batch(4)
    };
    let fill = |data: &Dataset| {
        assert!(!is_found(data), "{}", data.describe());
        epochs(data, None, 1);
        assert!(is_found(data), "{}", data.describe());
    };
    fill(&rows(0.5));
    assert!(is_found(&rows(0.5).rebatch(3)), "what comes after makes no difference");
    fill(&rows(0.25));
    fill(&open(&["y"]).take(20).map("x", [scale(0.25)]).cache(file(&folder)).batch(4));
    fill(&open(&["b"]).map("x", [scale(0.25)]).cache(file(&folder)).batch(4));
    fill(&rows(0.25));
    write_csv(&table, 30, 3.0);
    fill(&rows(0.25));
    // Of a stream every stage counts, and a row cache of the same name is replaced.
    fill(&stream(0.5, 2, "1"));
    fill(&stream(0.25, 2, "1"));
    fill(&stream(0.25, 3, "1"));
    fill(&stream(0.25, 3, "2"));
    write_csv(&table, 31, 3.0);
    fill(&stream(0.25, 3, "2"));
    let sampled = |weight| Dataset::sample_from([(open(&["y"]), weight), (open(&["y"]), 1.0)], 3).cache(file(&folder)).batch(4);
    fill(&sampled(0.5));
    fill(&sampled(0.75));
    let shuffled = |bytes| open(&["y"]).enumerate("n").shuffle_buffer(Shuffle::seed(1), Bytes(bytes)).cache(file(&folder)).batch(4);
    fill(&shuffled(1 << 20));
    fill(&shuffled((1 << 20) + 1));
    // Which images are too large decides which are left out.
    let pictures = image_files::twelve();
    let lenient = |most| {
        let rows = pictures.data().map("x", [decode(), resize(8, 8, Method::Area)]).max_item(Bytes::kib(most));
        rows.ignore_errors(12).cache(file(&folder)).batch(4)
    };
    fill(&lenient(300));
    fill(&lenient(301));
    let tensors = |last: f32| {
        Dataset::from_tensor_slices([("x", Tensor::f32([3], [0.0, 1.0, last]).unwrap())]).unwrap().cache(file(&folder)).batch(2)
    };
    fill(&tensors(2.0));
    fill(&tensors(2.5));
}

#[test]
fn behind_user_code_a_file_needs_a_version() {
    let folder = folder();
    let refused = |data: Dataset| data.cache(file(&folder)).batch(4).cache_file().unwrap_err().to_string();
    let range = || Dataset::range(0, 9, 1).unwrap();
    let schema = || range().output_schema().unwrap();
    insta::assert_snapshot!(refused(counted(5).0), @r#"a cache in a file behind 5 rows of a function would not notice when that code changes; say which version it is (.version("1") before the cache), or keep it in memory"#);
    let closures = [
        range().map("x", [apply("f", [], |_, _, _| Ok(()))]),
        range().filter(|_| true),
        range().take_while(|_| true).skip(1),
        range().flat_map(schema(), Bytes::mib(1), |_| Dataset::range(0, 1, 1)),
        Dataset::from_generator(schema(), |_| std::iter::empty()),
        Dataset::concatenate([range(), range().filter(|_| true)]),
        // What was versioned before does not speak for what follows.
        range().version("1").filter(|_| true),
    ];
    for data in closures {
        let error = refused(data.clone());
        assert!(error.contains("say which version it is"), "{error}");
        let started = Feed::start(
            &data.clone().cache(file(&folder)).batch(4),
            &data.clone().cache(file(&folder)).batch(4).plan(None).unwrap(),
            &Ledger::new("host", None),
            Options::default(),
        );
        assert_eq!(started.err().unwrap().to_string(), error);
        assert!(data.clone().version("7").cache(file(&folder)).cache_file().is_ok());
        epochs(&data.cache(Cache::MemoryUpTo(Bytes::kib(4))).batch(4), None, 2);
    }
    assert!(left(&folder).is_empty());
}

#[test]
fn refusals_say_what_to_do() {
    let refused = |data: Dataset| data.batch(4).plan(None).unwrap_err().to_string();
    let range = || Dataset::range(0, 9, 1).unwrap();
    let generator = || Dataset::from_generator(range().output_schema().unwrap(), |_| std::iter::empty());
    insta::assert_snapshot!(refused(generator().cache(Cache::Memory)), @r#"how many rows come out of generator is not known beforehand, so a cache in memory behind it needs a limit: say how much it may hold (Cache::MemoryUpTo, in a configuration { memory = "256MiB" }) or how many rows there are (assert_cardinality), or keep it in a file"#);
    assert!(generator().assert_cardinality(0).cache(Cache::Memory).batch(4).plan(None).is_ok());
    let turned = || Dataset::digits(Split::Test).map("x", [flip_left_right(1)]);
    insta::assert_snapshot!(refused(turned().cache(Cache::Memory)), @"flip_left_right(seed 1) cannot be applied to column `x`: it differs from epoch to epoch and stands before the cache; put it after");
    insta::assert_snapshot!(refused(turned().enumerate("n").cache(Cache::Memory)), @"flip_left_right(seed 1) cannot be applied to column `x`: it differs from epoch to epoch and stands before the cache; put it after");
    insta::assert_snapshot!(refused(range().cache(Cache::Memory).cache(Cache::Memory)), @"rows are cached once; leave one cache out");
    insta::assert_snapshot!(refused(range().filter(|_| true).batch(2).cache(Cache::Memory)), @"rows are counted after batch(2) in 9 numbers from 0 by 1 → filter → batch(2); put the batch last");
    let endless = Dataset::from_fn(range().output_schema().unwrap(), 1 << 60, |_, _| Ok(()));
    insta::assert_snapshot!(refused(endless.clone().cache(Cache::Memory)), @"a cache of 1152921504606846976 rows would take more than 1024 TiB; ask for less");
    let error = refused(endless.enumerate("n").cache(Cache::Memory));
    assert!(error.starts_with("a cache behind 1152921504606846976 rows of a function → enumerate(n) would take up to "), "{error}");
    assert!(refused(generator().cache(Cache::MemoryUpTo(Bytes(u64::MAX)))).ends_with("of memory; ask for less"));
    assert_eq!(generator().cache(Cache::Auto).describe(), "generator", "nobody asked for a stream to be kept");
}

#[test]
fn a_damaged_or_foreign_file_is_never_served() {
    for stream in [false, true] {
        let folder = folder();
        let data = || {
            let rows = csv(folder.path(), 30);
            if stream { rows.enumerate("n") } else { rows }.cache(file(&folder)).batch(4)
        };
        let good = epochs(&data(), None, 1);
        let whole = fs::read(path(&folder)).unwrap();
        // A changed row is noticed, wherever it is.
        for at in [4096, whole.len() - 1, whole.len() - 20] {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            fs::write(path(&folder), bytes).unwrap();
            let error = read(&data(), None, Options::default(), 1).unwrap_err().to_string();
            assert!(error.contains("checksum; the file is damaged: remove it, and it is recomputed"), "{error}");
        }
        // What is cut off, longer or has another header is recomputed.
        let mut other = whole.clone();
        other[20] ^= 1;
        for bytes in [&whole[..whole.len() - 1], &whole[..4096], &[&whole[..], &[0]].concat(), &other] {
            fs::write(path(&folder), bytes).unwrap();
            assert!(!is_found(&data()));
            assert_eq!(epochs(&data(), None, 1), good);
            assert_eq!(fs::read(path(&folder)).unwrap(), whole);
        }
        fs::write(path(&folder), "my diary").unwrap();
        let error = read(&data(), None, Options::default(), 1).unwrap_err().to_string();
        assert!(error.ends_with("there is already a file of another kind; give the cache a name of its own"), "{error}");
        assert_eq!(fs::read(path(&folder)).unwrap(), b"my diary");
    }
}

#[test]
fn half_a_file_is_never_left() {
    for stream in [false, true] {
        let folder = folder();
        let start = |data: &Dataset| Feed::start(data, &data.plan(None)?, &Ledger::new("host", None), Options::default());
        // Left early: of forty rows one at a time, the ring holds a few.
        let (rows, _) = counted(100_000);
        let rows = if stream { rows.enumerate("n").version("1") } else { rows.version("1") };
        let data = rows.cache(file(&folder)).batch(1);
        let mut feed = start(&data).unwrap();
        assert!(feed.next().unwrap().is_some());
        assert_eq!(left(&folder).len(), 1, "it is being written");
        assert_ne!(left(&folder), ["rows.plc"]);
        drop(feed);
        assert!(left(&folder).is_empty());
        // An error, and a panic.
        for panics in [false, true] {
            let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
            let broken = Dataset::from_fn(schema, 50, move |n, _| match n {
                33 if panics => panic!("row 33"),
                33 => Err(DataError::Stage("row 33".into())),
                _ => Ok(()),
            });
            let broken = if stream { broken.enumerate("n") } else { broken };
            let data = broken.version("1").cache(file(&folder)).batch(5);
            let error = read(&data, None, Options::default(), 1).unwrap_err().to_string();
            assert!(error.contains("row 33"), "{error}");
            assert!(left(&folder).is_empty() && !is_found(&data));
        }
        // Where no file can be made.
        let (rows, _) = counted(9);
        let rows = if stream { rows.enumerate("n") } else { rows };
        let missing = rows.version("1").cache(Cache::File(folder.path().join("no/such/rows.plc"))).batch(2);
        let error = start(&missing).err().unwrap().to_string();
        assert!(error.starts_with("cannot make the cache ") && error.contains("No such file or directory"), "{error}");
    }
}

#[test]
fn a_part_of_the_rows_is_a_cache_of_its_own() {
    let folder = folder();
    let part = |count, index| {
        let name = folder.path().join(format!("{count}-{index}.plc"));
        csv(folder.path(), 60).skip(3).shard(count, index).shuffle(Shuffle::seed(4)).cache(Cache::File(name)).batch(4)
    };
    for index in 0..3 {
        let plain = csv(folder.path(), 60).skip(3).shard(3, index).shuffle(Shuffle::seed(4)).batch(4);
        let expected = epochs(&plain, None, 2);
        assert_eq!(epochs(&part(3, index), None, 2), expected);
        assert!(is_found(&part(3, index)), "19 rows are all it has");
        assert_eq!(epochs(&part(3, index), None, 2), expected);
    }
    // After a shuffle, a part has other rows each epoch: all of them have a place.
    let late = csv(folder.path(), 60).shuffle(Shuffle::seed(4)).shard(3, 0).cache(file(&folder)).batch(4);
    assert_eq!(late.cache_file().unwrap().unwrap().rows, Some(60));
    epochs(&late, None, 40);
    assert!(is_found(&late));
}

#[test]
fn rows_that_are_left_out_are_not_kept() {
    let folder = folder();
    let table = folder.path().join("t.csv");
    fs::write(&table, "a,y\n1,0\nx,1\n3,0\n4,1\n").unwrap();
    let rows = || Dataset::csv(&table, &CsvSpec::new().targets(["y"]).lenient()).unwrap();
    let plain = epochs(&rows().ignore_errors(1).batch(2), None, 2);
    let kept = rows().cache(file(&folder)).ignore_errors(1).batch(2);
    assert_eq!(epochs(&kept, None, 2), plain);
    assert!(!is_found(&kept) && left(&folder).is_empty(), "it does not become whole");
    // Behind it, the rows there were are kept.
    let behind = rows().ignore_errors(1).cache(file(&folder)).batch(2);
    assert_eq!(epochs(&behind, None, 2), plain);
    assert!(is_found(&behind));
    assert_eq!(epochs(&behind, None, 2), plain);
}

/// Twelve rows, of which two cannot be created; counts how many were asked for.
fn with_bad_rows(asked: &Arc<AtomicU64>) -> Dataset {
    let asked = Arc::clone(asked);
    let schema = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let rows = move |_epoch| {
        let asked = Arc::clone(&asked);
        (0..12).map(move |n| {
            asked.fetch_add(1, Relaxed);
            if n % 5 == 3 { Err(DataError::Stage(format!("{n} is bad"))) } else { Ok(vec![Tensor::i32([], [n])?]) }
        })
    };
    Dataset::from_generator(schema, rows)
}

#[test]
fn an_epoch_of_a_stream_is_kept_only_with_all_its_rows() {
    let asked = Arc::new(AtomicU64::new(0));
    let plain = epochs(&with_bad_rows(&asked).ignore_errors(2).batch(3), None, 3);
    assert_eq!(plain.len(), 3 * 4);
    for cache in [Cache::MemoryUpTo(Bytes::kib(1)), file(&folder())] {
        let folder = folder();
        let cache = cache.path().map_or(cache.clone(), |_| file(&folder));
        // Whatever leaves rows out is informed of them in each epoch.
        let before = with_bad_rows(&asked).version("1").cache(cache.clone()).ignore_errors(2).batch(3);
        let (rows, _, given_up) = read(&before, None, Options::default(), 3).unwrap();
        assert_eq!(rows, plain);
        assert_eq!(
            given_up.unwrap(),
            "not every row of an epoch could be made, so it is not kept; put ignore_errors before the cache (row 3 of the generator: 3 is bad)"
        );
        assert_eq!((before.ignored_in(2).0, left(&folder)), (2, Vec::new()));
        // What is left after that is an epoch like any other.
        asked.store(0, Relaxed);
        let behind = with_bad_rows(&asked).ignore_errors(2).version("1").cache(cache).batch(3);
        let (rows, _, given_up) = read(&behind, None, Options::default(), 3).unwrap();
        assert_eq!((rows, given_up, asked.load(Relaxed)), (plain.clone(), None, 12));
    }
}

#[test]
fn what_was_left_out_before_a_cache_is_left_out_of_each_epoch() {
    // Kept, and read again each time as it does not fit.
    for room in [Bytes::kib(1), Bytes(1)] {
        let asked = Arc::default();
        let data = with_bad_rows(&asked).ignore_errors(10).cache(Cache::MemoryUpTo(room));
        epochs(&data.clone().batch(2), None, 3);
        assert_eq!([0, 1, 2].map(|epoch| data.ignored_in(epoch).0), [2, 2, 2], "{room}");
    }
}

#[test]
fn an_epoch_that_is_begun_again_is_not_forgotten() {
    let asked = Arc::default();
    let data = with_bad_rows(&asked).ignore_errors(10).cache(Cache::MemoryUpTo(Bytes(1)));
    let batched = data.clone().batch(1).prefetch(Prefetch::Batches(1));
    let mut feed = Feed::start(&batched, &batched.plan(None).unwrap(), &Ledger::new("host", None), Options::default()).unwrap();
    while feed.next().unwrap().is_some() {}
    // The next epoch reads the same rows again, and has not come to the last bad one when its first batch is here.
    feed.next().unwrap();
    assert_eq!(data.ignored_in(0).0, 2);
}

#[test]
fn caches_share_what_a_limit_leaves() {
    let ranges = || [Dataset::range(0, 1000, 1).unwrap().enumerate("n"), Dataset::range(1000, 2000, 1).unwrap().enumerate("n")];
    let [first, second] = ranges();
    let both = Dataset::concatenate([first.cache(Cache::Memory), second.cache(Cache::Memory)]).batch(10);
    let least = both.plan(None).unwrap().minimum();
    let held = |limit: Option<Bytes>| {
        let plan = both.plan(limit).unwrap();
        let kept = plan.stages().iter().filter(|(name, _)| name.starts_with("cache")).map(|(_, bytes)| *bytes).sum::<Bytes>();
        (kept, plan.total())
    };
    assert_eq!(held(None).0, Bytes(16_000));
    assert_eq!(held(Some(least)), (Bytes::ZERO, least));
    let expected = epochs(&Dataset::concatenate(ranges()).batch(10), None, 2);
    for room in [0, 7_999, 8_000, 15_999, 16_000, 400_000] {
        let limit = least + Bytes(room);
        let (kept, total) = held(Some(limit));
        assert!(total <= limit && (kept == Bytes(16_000) || room < 400_000), "{room}: {kept}");
        assert_eq!(epochs(&both, Some(limit), 2), expected);
    }
}
