//! Stages that look at rows before their images are decoded: the same rows as if they stood behind, and only those they
//! keep are opened.

mod case_count;
mod collect;
mod image_files;
mod sample_files;

use case_count::cases;
use collect::{column, column_and_peak, complaint, numbers};
use image_files::{Folder, picture, png, twelve};
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, Op, apply, decode, flip_left_right, random_brightness, random_crop, resize, scale};
use plimsoll_data::source::Feature;
use plimsoll_data::{Cache, Condition, Dataset, Feed, Options, Parallelism, Shuffle};
use proptest::prelude::*;
use sample_files::{Value, example, record};
use std::fs;
use std::sync::{Arc, LazyLock};

const THREADS: [Parallelism; 4] = [Parallelism::Threads(1), Parallelism::Threads(2), Parallelism::Threads(5), Parallelism::Auto];

fn odd(data: Dataset) -> Dataset {
    data.filter(|row| row.int("y") % 2 == 1)
}

type Ops = Vec<Arc<dyn Op>>;

fn small() -> Ops {
    vec![decode(), resize(6, 5, Method::Bilinear), scale(0.5)]
}

/// Both columns of one epoch.
fn rows(data: &Dataset, epoch: u64, limit: Option<Bytes>) -> [Vec<Vec<u8>>; 2] {
    ["x", "y"].map(|name| {
        let at = data.output_schema().unwrap().index_of(name).unwrap();
        let (rows, peak, planned) = column_and_peak(data, at, epoch, limit).unwrap();
        // Threads of a stage that nothing is wanted of are not begun.
        assert!(peak <= planned && (rows.is_empty() || peak == planned), "{peak} of {planned} in {}", data.describe());
        rows
    })
}

/// A folder of twelve images, and the same as records: the label is their number.
fn records() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let all = (0..12usize).flat_map(|n| {
        let encoded = png(&picture(20 + n, 30 - n, n as u8), 20 + n, 30 - n, png::ColorType::Rgb);
        record(&example(&[("image", Value::Bytes(&encoded)), ("label", Value::Ints(&[n as i64]))]))
    });
    fs::write(folder.path().join("a.tfrecord"), all.collect::<Vec<u8>>()).unwrap();
    folder
}

#[test]
fn before_or_behind_the_decoding_the_rows_are_the_same() {
    let (folder, records) = (twelve(), records());
    let in_records = [("x", Feature::image("image")), ("y", Feature::i32("label", []))];
    let in_records = Dataset::tfrecord(records.path().join("*.tfrecord"), &in_records).unwrap();
    let ways: [fn() -> Ops; 3] =
        [small, || vec![decode(), flip_left_right(3), resize(7, 7, Method::Area)], || vec![decode(), random_crop(12, 11, 4)]];
    for source in [folder.data(), folder.data().shuffle(Shuffle::seed(4)).repeat(2).skip(3), in_records] {
        for ops in ways {
            let behind = odd(source.clone().map("x", ops())).batch(3);
            for epoch in [0, 2] {
                let expected = rows(&behind, epoch, None);
                assert!(!expected[0].is_empty() && expected[0].len() < source.len() as usize);
                for threads in THREADS {
                    let before = odd(source.clone()).map("x", ops()).parallelism(threads).batch(3);
                    let least = before.plan(None).unwrap().minimum();
                    for limit in [None, Some(least), Some(least + Bytes::mib(6))] {
                        assert!(rows(&before, epoch, limit) == expected, "{} by {threads:?} in {limit:?}", before.describe());
                    }
                }
            }
        }
    }
}

#[test]
fn a_stage_may_stand_anywhere_on_the_way_of_a_picture() {
    let folder = twelve();
    let expected = rows(&odd(folder.data().map("x", small())).batch(4), 0, None);
    let between = odd(folder.data().map("x", [decode()])).map("x", [resize(6, 5, Method::Bilinear), scale(0.5)]);
    assert!(rows(&between.batch(4), 0, None) == expected);
    // Further stages that do not look at rows stand between as well.
    let some = odd(folder.data()).skip(2).enumerate("n").take(3).map("x", small());
    assert_eq!(numbers(&some.clone().batch(4), 0), [0, 1, 2]);
    assert!(rows(&some.batch(4), 0, None)[0] == expected[0][2..5]);
    // And such that do, once images are of one size.
    let again = odd(folder.data()).map("x", small()).filter(|row| row.numbers("x").count() == 90).map("x", [scale(2.0)]);
    let again = again.map("x", [apply("half", [6, 5, 3], |_, x, out| halve(x, out))]).batch(4);
    for limit in [None, Some(again.plan(None).unwrap().minimum())] {
        assert!(rows(&again, 0, limit) == expected);
    }
    let both = odd(folder.data()).skip(1).filter(|row| row.int("y") == 1).take_while(|_| true).map("x", small()).batch(4);
    assert!(rows(&both, 0, None)[0] == expected[0][1..]);
    let turned = odd(folder.data().map("x", [decode()])).shuffle_buffer(Shuffle::seed(1), Bytes(60)).filter(|_| true);
    let turned = turned.map("x", [resize(6, 5, Method::Bilinear), scale(0.5)]).batch(4);
    assert_eq!(rows(&turned, 0, None)[0].len(), expected[0].len());
    let while_cats = folder.data().take_while(|row| row.int("y") == 0).map("x", small()).batch(4);
    assert!(rows(&while_cats, 0, None)[0] == rows(&folder.data().map("x", small()).take(5).batch(4), 0, None)[0]);
    let shuffled = odd(folder.data()).shuffle_buffer(Shuffle::seed(1), Bytes::kib(4)).map("x", small()).batch(4);
    let (mut sorted, mut all) = (rows(&shuffled, 0, None)[0].clone(), expected[0].clone());
    sorted.sort();
    all.sort();
    assert!(sorted == all && rows(&shuffled, 0, None) != expected);
}

fn halve(x: &[f32], out: &mut [f32]) -> Result<(), String> {
    out.iter_mut().zip(x).for_each(|(out, x)| *out = 0.5 * x);
    Ok(())
}

/// Two classes; one of the cats is no image, and one of the dogs.
fn damaged() -> Folder {
    let folder = twelve();
    folder.write("cat/02.png", b"no image");
    folder.write("dog/08.png", b"no image either");
    folder
}

#[test]
fn only_pictures_of_rows_that_are_kept_are_opened() {
    let folder = damaged();
    for threads in THREADS {
        let of = |class: f64| {
            let data = folder.data().filter_where(Condition::on("y").is([class])).map("x", [decode(), random_crop(10, 10, 1)]);
            data.parallelism(threads)
        };
        let told = complaint(column(&of(0.0).batch(2), 0, 0, None), folder.path());
        assert_eq!(
            told,
            "data/cat/02.png cannot be decoded: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder"
        );
        let lenient = of(1.0).ignore_errors(1);
        assert_eq!(column(&lenient.clone().batch(2), 0, 0, None).unwrap().len(), 6);
        let (left_out, names) = lenient.ignored();
        assert_eq!((left_out, names.len()), (1, 1));
        assert!(names[0].contains("dog/08.png") && !names[0].contains("stream"), "{names:?}");
    }
    // Files that are gone are no one's concern, either.
    fs::remove_file(folder.path().join("data/cat/02.png")).unwrap();
    let dogs = Dataset::image_folder(folder.path().join("data")).unwrap();
    fs::remove_file(folder.path().join("data/cat/01.png")).unwrap();
    assert_eq!(dogs.filter(|row| row.int("y") == 1).map("x", small()).ignore_errors(1).batch(2).count_rows().unwrap(), 6);
}

#[test]
fn a_buffer_of_rows_whose_pictures_are_not_decoded_reaches_far() {
    let folder = twelve();
    let data = odd(folder.data()).shuffle(Shuffle::seed(1)).map("x", small()).batch(4);
    let plan = data.plan(None).unwrap();
    let held = plan.stages().iter().find(|(name, _)| name.starts_with("shuffle")).unwrap().1;
    assert_eq!(held, Bytes(12 * 12), "twelve rows at most, each with a label and a number");
    let orders: Vec<_> = (0..4).map(|epoch| rows(&data, epoch, None)[0].clone()).collect();
    assert!(orders.iter().any(|order| *order != orders[0]));
    for mut order in orders {
        order.sort();
        let mut all = rows(&odd(folder.data().map("x", small())).batch(4), 0, None)[0].clone();
        all.sort();
        assert!(order == all);
    }
}

#[test]
fn a_shard_opens_the_pictures_of_its_own_rows_and_others_may_go_on_with_it() {
    let folder = damaged();
    let shard = |count, index| {
        let rows = folder.data().filter(|row| row.int("y") >= 0).shard(count, index);
        rows.map("x", [decode(), random_crop(10, 10, 1)]).batch(1)
    };
    // Of twelve, number 2 and number 8 are bad, and shard 2 of 6 has both.
    for index in [0, 1, 3, 4, 5] {
        assert_eq!(column(&shard(6, index), 0, 0, None).unwrap().len(), 2);
    }
    assert!(column(&shard(6, 2), 0, 0, None).is_err());
    let sound = twelve();
    let shard = |count, index| sound.data().filter(|_| true).shard(count, index).map("x", small()).batch(2);
    let all = rows(&sound.data().map("x", small()).batch(2), 0, None)[0].clone();
    let ledger = Ledger::new("host", None);
    let read = |data: &Dataset, options: Options, most: usize| {
        let plan = data.plan(None).unwrap();
        let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(1), ..options }).unwrap();
        let mut came = Vec::new();
        while let Some(batch) = if came.len() < most { feed.next().unwrap() } else { None } {
            came.extend(batch.column(0).chunks_exact(6 * 5 * 3 * 4).map(<[u8]>::to_vec));
        }
        (came, feed.state())
    };
    let begun: Vec<_> = (0..2).map(|index| read(&shard(2, index), Options::default(), 2)).collect();
    let mut came: Vec<_> = begun.iter().flat_map(|(rows, _)| rows.clone()).collect();
    for index in 0..3 {
        let data = shard(3, index);
        came.extend(read(&data, Options::resume(&begun[0].1, &data).unwrap(), usize::MAX).0);
    }
    let mut all = all;
    came.sort();
    all.sort();
    assert!(came == all, "each row comes once");
}

proptest! {
    #![proptest_config(cases(24))]

    /// None of these stages looks at images, so it makes no difference to rows where images are decoded.
    #[test]
    fn stages_before_the_decoding_do_what_they_do_behind_it(
        steps in prop::collection::vec((0u8..7, 0u8..20), 1..6),
        decoded_after: prop::sample::Index,
        threads in 1usize..4,
        room in 0u64..=100,
        epoch in 0u64..3,
    ) {
        static FOLDER: LazyLock<Folder> = LazyLock::new(twelve);
        let step = |data: Dataset, (kind, by): (u8, u8)| match kind {
            0 => data.filter(move |row| row.int("y") != i64::from(by % 4)),
            1 => data.filter(|_| true).skip(u64::from(by % 5)),
            2 => data.take(u64::from(by)),
            3 => data.shard(1 + u64::from(by % 3), u64::from(by % (1 + by % 3))),
            4 => data.filter(|_| true).repeat(1 + u64::from(by % 2)),
            5 => data.shuffle_buffer(Shuffle::seed(u64::from(by)), Bytes::mib(64)),
            _ => data.take_while(move |row| row.int("y") < i64::from(by)),
        };
        let first = steps.iter().fold(FOLDER.data().map("x", small()), |data, by| step(data, *by)).batch(3);
        let at = decoded_after.index(steps.len() + 1);
        let some = steps[..at].iter().fold(FOLDER.data(), |data, by| step(data, *by)).map("x", small());
        let later = steps[at..].iter().fold(some, |data, by| step(data, *by)).parallelism(Parallelism::Threads(threads)).batch(3);
        let expected = rows(&first, epoch, None);
        let plan = later.plan(None).unwrap();
        let limit = plan.minimum() + Bytes((plan.total() - plan.minimum()).0 * room / 100);
        for limit in [None, Some(limit)] {
            prop_assert!(rows(&later, epoch, limit) == expected, "{} in {:?}", later.describe(), limit);
        }
    }
}

#[test]
fn what_such_pictures_may_take_is_said_and_planned() {
    let folder = twelve();
    folder.write("dog/20.png", &png(&picture(900, 800, 1), 900, 800, png::ColorType::Rgb));
    let data = |said: Option<Bytes>| {
        let dogs = folder.data().filter(|row| row.int("y") == 1);
        said.into_iter().fold(dogs, Dataset::max_item).map("x", small()).batch(4)
    };
    assert_eq!(data(None).count_rows().unwrap(), 8);
    let told = complaint(data(Some(Bytes::mib(1))).count_rows(), folder.path());
    assert!(told.contains("data/dog/20.png is 900 × 800 pixels") && told.contains("a single item may take 1.00 MiB"), "{told}");
    // Wherever it is said.
    let behind = folder.data().filter(|row| row.int("y") == 1).shuffle_buffer(Shuffle::seed(1), Bytes::kib(4)).max_item(Bytes::mib(1));
    let told = complaint(behind.map("x", small()).batch(4).count_rows(), folder.path());
    assert!(told.contains("a single item may take 1.00 MiB"), "{told}");
    let plan = data(None).parallelism(Parallelism::Threads(2)).plan(None).unwrap();
    let decode = plan.stages().iter().find(|(name, _)| name.starts_with("decode")).unwrap();
    assert!(plan.workers() == 2 && decode.1 > Bytes::mib(2) && decode.1 < Bytes::mib(5), "the large one and a small one: {plan}");
}

#[test]
fn rows_that_are_chosen_first_are_kept_like_any_others() {
    let folder = twelve();
    let cache = Cache::File(folder.path().join("dogs.plc"));
    let dogs = || folder.data().filter_where(Condition::on("y").is([1.0])).map("x", small());
    let kept = || dogs().cache(cache.clone()).map("x", [random_brightness(0.1, 3)]).batch(3);
    let plain = dogs().map("x", [random_brightness(0.1, 3)]).batch(3);
    let found = || kept().cache_file().unwrap().unwrap().whole;
    assert!(!found());
    let expected = column(&plain, 0, 0, None).unwrap();
    assert!(column(&kept(), 0, 0, None).unwrap() == expected && found());
    folder.write("dog/20.png", &png(&picture(30, 20, 1), 30, 20, png::ColorType::Rgb));
    assert!(!found(), "another image");
}

#[test]
fn pictures_that_are_never_decoded_are_refused_as_ever() {
    let folder = twelve();
    let dogs = || folder.data().filter_where(Condition::on("y").is([1.0]));
    let complaints = [
        dogs().batch(2),
        dogs().map("x", [decode()]).batch(2),
        dogs().ignore_errors(2).batch(2),
        folder.data().filter_where(Condition::on("x").is([1.0])).map("x", small()).batch(2),
        folder.data().cache(Cache::Memory).filter(|_| true).map("x", small()).batch(2),
    ];
    let complaints = complaints.map(|data| complaint(data.plan(None), folder.path()));
    let looked = folder.data().filter(|row| row.numbers("x").all(|x| x < 0.5)).map("x", small()).batch(2);
    let told = column(&looked, 0, 0, None).unwrap_err().to_string();
    assert!(told.contains("there is no column `x` of decoded images; the columns are y"), "{told}");
    insta::assert_snapshot!(complaints.join("\n"), @"
    column `x` has rows that differ in size and cannot be batched; map it with decode and resize
    column `x` has rows that differ in size and cannot be batched; map it with resize or a crop
    column `x` has rows that differ in size, which ignore_errors(2) cannot hold; put decode and resize before it
    column `x` is to be asked for its numbers, and its rows are not of one size yet; map it first
    column `x` has rows that differ in size, which filter cannot hold; put decode and resize before it
    ");
}
