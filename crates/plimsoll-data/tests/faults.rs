//! What goes wrong in the middle of a run: each fault is an error that names it, or a row that is left out and counted.

mod image_files;

use image_files::{Folder, epochs, picture, png, twelve};
use jpeg_encoder::{ColorType, Encoder};
use plimsoll_core::{Bytes, DType, Ledger};
use plimsoll_data::ops::{Method, apply, decode, finite, resize};
use plimsoll_data::{Cache, Column, DataError, Dataset, Feed, Options, Parallelism, Schema, Shuffle, Tensor};
use std::fs;

fn build(folder: &Folder) -> Dataset {
    folder.data().map("x", [decode(), resize(8, 8, Method::Area)])
}

/// Twelve good images and one of each kind of bad one, after the twelfth was listed and then removed.
fn bad(folder: &Folder) -> Dataset {
    let good = png(&picture(60, 50, 1), 60, 50, png::ColorType::Rgb);
    let mut jpeg = Vec::new();
    Encoder::new(&mut jpeg, 90).encode(&picture(60, 50, 1), 60, 50, ColorType::Rgb).unwrap();
    let mut bomb = good.clone();
    bomb[16..24].copy_from_slice(&[0, 0, 0xEA, 0x60, 0, 0, 0xEA, 0x60]);
    let mut corrupt = good.clone();
    corrupt[60] ^= 0xFF;
    folder.write("cat/a-bomb.png", &bomb);
    folder.write("cat/b-corrupt.png", &corrupt);
    folder.write("cat/c-empty.jpg", b"");
    folder.write("cat/d-text.jpg", b"a text that is called an image");
    folder.write("dog/x-truncated.jpg", &jpeg[..jpeg.len() / 2]);
    // A PNG by another name is an image all the same.
    folder.write("dog/y-renamed.jpg", &good);
    folder.write("dog/z-gone.png", &good);
    let data = build(folder);
    fs::remove_file(folder.path().join("data/dog/z-gone.png")).unwrap();
    data
}

#[test]
fn bad_pictures_are_left_out_and_counted_within_the_plan() {
    let (folder, clean) = (twelve(), twelve());
    clean.write("dog/y-renamed.jpg", &png(&picture(60, 50, 1), 60, 50, png::ColorType::Rgb));
    let expected = epochs(&build(&clean).batch(4), None, 1).unwrap();
    for threads in [1, 3] {
        let data = bad(&folder).max_item(Bytes::mib(4)).parallelism(Parallelism::Threads(threads)).ignore_errors(10);
        let limit = Some(Bytes::mib(32));
        let batched = data.clone().batch(4);
        let plan = batched.plan(limit).unwrap();
        let ledger = Ledger::new("host", limit);
        let mut feed = Feed::start(&batched, &plan, &ledger, Options { epochs: Some(1), ..Options::default() }).unwrap();
        let mut rows = Vec::new();
        while let Some(batch) = feed.next().unwrap() {
            rows.extend_from_slice(batch.column(0));
        }
        assert!(rows == expected[0], "the good ones are all there, in order");
        assert!(ledger.peak() <= plan.total());
        let (count, names) = data.ignored();
        assert_eq!(count, 6);
        let names: Vec<String> = names.iter().map(|name| folder.text(name)).collect();
        insta::allow_duplicates! { insta::assert_snapshot!(names.join("\n"), @"
        FOLDER/data/cat/a-bomb.png is 60000 × 60000 pixels and takes 10.1 GiB to read and decode, but a single item may take 4.00 MiB; raise max_item, or make the image smaller
        FOLDER/data/cat/b-corrupt.png cannot be decoded: its data is broken (Corrupt deflate stream. InvalidCodeLengthRepeat); replace the file or take it out of the folder
        FOLDER/data/cat/c-empty.jpg cannot be decoded: it is empty; replace the file or take it out of the folder
        FOLDER/data/cat/d-text.jpg cannot be decoded: it begins like no JPEG, PNG, WebP, GIF, BMP or TIFF; replace the file or take it out of the folder
        FOLDER/data/dog/x-truncated.jpg cannot be decoded: it is truncated: the end of its data is missing; replace the file or take it out of the folder
        cannot open FOLDER/data/dog/z-gone.png: No such file or directory (os error 2)
        ") }
    }
}

#[test]
fn which_pictures_are_left_out_depends_on_no_limit() {
    let folder = twelve();
    folder.write("cat/giant.png", &png(&picture(1900, 1900, 7), 1900, 1900, png::ColorType::Rgb));
    let data = || build(&folder).parallelism(Parallelism::Threads(1));
    let rows = |data: Dataset, limit| epochs(&data.ignore_errors(3).batch(4), limit, 1).map(|columns| columns[1].len() / 4);
    assert_eq!(rows(data(), None).unwrap(), 13);
    let least = data().ignore_errors(3).batch(4).plan(None).unwrap().minimum() + Bytes::kib(16);
    assert_eq!(rows(data(), Some(least)).unwrap(), 13, "the minimum is enough for the giant");
    for limit in [None, Some(least)] {
        assert_eq!(rows(data().max_item(Bytes::mib(4)), limit).unwrap(), 12);
        assert_eq!(rows(data().filter(|_| true).max_item(Bytes::mib(4)), limit).unwrap(), 12, "also where it stands behind other stages");
    }
}

#[test]
fn each_bad_picture_is_an_error_that_names_it_where_none_may_be_left_out() {
    let folder = twelve();
    let error = epochs(&bad(&folder).batch(4), None, 1).unwrap_err();
    insta::assert_snapshot!(folder.text(error), @"FOLDER/data/cat/a-bomb.png is 60000 × 60000 pixels and takes 10.1 GiB to read and decode, but a single item may take 128 MiB; raise max_item, or make the image smaller");
    // The cap on what may be left out is one, too.
    let error = epochs(&bad(&folder).ignore_errors(2).batch(4), None, 1).unwrap_err();
    insta::assert_snapshot!(folder.text(error), @"more than 2 rows of epoch 0 could not be read; the last: FOLDER/data/cat/c-empty.jpg cannot be decoded: it is empty; replace the file or take it out of the folder");
}

#[test]
fn a_panic_of_user_code_is_an_error_or_a_row_left_out() {
    let schema = || Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let make = |threads| {
        let rows = Dataset::from_fn(schema(), 10, |n, row| {
            assert!(n != 6, "six is too many");
            row.i32(0, &[n as i32])
        });
        rows.parallelism(Parallelism::Threads(threads))
    };
    for threads in [1, 4] {
        let error = epochs(&make(threads).batch(3), None, 1).unwrap_err();
        assert!(matches!(&error, DataError::Panic { message } if message.contains("six is too many")), "{error}");
        let kept = epochs(&make(threads).ignore_errors(1).batch(3), None, 1).unwrap();
        assert_eq!(kept[0].len(), 9 * 4);
    }
}

#[test]
fn labels_that_are_no_numbers_are_named_or_left_out() {
    let labels = [1.0, f32::NAN, 2.0, f32::INFINITY, 3.0];
    let data = || {
        let y = Tensor::f32([5], labels.to_vec()).unwrap();
        Dataset::from_tensor_slices([("y", y)]).unwrap().map("y", [finite()])
    };
    insta::assert_snapshot!(epochs(&data().batch(2), None, 1).unwrap_err(), @"column `y` holds NaN in row 1; correct the row or leave it out");
    let lenient = data().ignore_errors(5);
    let kept = epochs(&lenient.clone().batch(2), None, 1).unwrap();
    assert_eq!(kept[0], [1.0f32, 2.0, 3.0].iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>());
    assert_eq!(lenient.ignored().0, 2);
}

#[test]
fn a_label_in_a_file_is_named_by_file_and_byte_also_when_shuffled() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("y.npy");
    let header = format!("{:117}\n", "{'descr': '<f8', 'fortran_order': False, 'shape': (50,), }");
    let labels = (0..50).flat_map(|row| if row == 37 { f64::NAN } else { f64::from(row) }.to_le_bytes());
    let head = [b"\x93NUMPY\x01\x00", &118u16.to_le_bytes()[..], header.as_bytes()].concat();
    fs::write(&path, head.into_iter().chain(labels).collect::<Vec<u8>>()).unwrap();
    let data = || Dataset::npy(&[("y", &path)]).unwrap().map("y", [finite()]);
    for data in [data().batch(8), data().shuffle(Shuffle::seed(3)).parallelism(Parallelism::Threads(2)).batch(8)] {
        let told = epochs(&data, None, 1).unwrap_err().to_string().replace(folder.path().to_str().unwrap(), "FOLDER");
        assert_eq!(told, "column `y` holds NaN in row 37 (FOLDER/y.npy, byte 424); correct the row or leave it out");
    }
    let lenient = data().shuffle(Shuffle::seed(3)).ignore_errors(1);
    assert_eq!(epochs(&lenient.clone().batch(7), None, 1).unwrap()[0].len(), 49 * 4);
    assert!(lenient.ignored().1[0].contains("row 37"));
}

#[test]
fn a_cache_of_pictures_that_are_left_out_is_never_half_read() {
    let folder = twelve();
    folder.write("cat/a-text.jpg", b"no image");
    let file = folder.path().join("cache.plc");
    for _ in 0..2 {
        let data = build(&folder).cache(Cache::File(file.clone())).ignore_errors(3).batch(4);
        assert_eq!(epochs(&data, None, 2).unwrap()[1].len(), 2 * 12 * 4);
        assert!(!file.exists(), "it is never whole");
        assert!(!data.cache_file().unwrap().unwrap().whole);
    }
}

#[test]
fn an_error_or_a_panic_of_a_mapped_function_names_its_row() {
    let make = |threads| {
        let roots = apply("root", [2], |row, x, out| {
            assert!(row != 4, "four is too many");
            out.copy_from_slice(&[x[0].sqrt(), row as f32]);
            if x[0] < 0.0 { Err(format!("{} has no root", x[0])) } else { Ok(()) }
        });
        Dataset::range(9, -2, -1).unwrap().map("x", [roots]).parallelism(Parallelism::Threads(threads))
    };
    for threads in [1, 4] {
        insta::allow_duplicates! {
            insta::assert_snapshot!(epochs(&make(threads).batch(3), None, 1).unwrap_err(), @"apply(root) failed on column `x` in row 4: it panicked: four is too many; correct the row or the function, or leave it out");
            insta::assert_snapshot!(epochs(&make(threads).skip(6).batch(3), None, 1).unwrap_err(), @"apply(root) failed on column `x` in row 10: -1 has no root; correct the row or the function, or leave it out");
        }
        let lenient = make(threads).ignore_errors(2);
        let kept = epochs(&lenient.clone().batch(3), None, 1).unwrap();
        let rows = [0.0f32, 1.0, 2.0, 3.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let expected = rows.iter().flat_map(|row| [(9.0 - row).sqrt(), *row]).flat_map(f32::to_ne_bytes).collect::<Vec<u8>>();
        assert_eq!(kept[0], expected);
        assert_eq!(lenient.ignored().0, 2);
    }
}

#[test]
fn pictures_by_pattern_are_those_of_the_folder() {
    let folder = twelve();
    let sized = |data: Dataset| data.map("x", [decode(), resize(8, 8, Method::Area)]).batch(4);
    let by_pattern = || Dataset::image_files(folder.path().join("data/**/*.png")).unwrap();
    let expected = epochs(&build(&folder).batch(4), None, 1).unwrap();
    assert_eq!(epochs(&sized(by_pattern()), None, 1).unwrap()[0], expected[0]);
    // Labels from somewhere else, and a cache that notices another file.
    let labels = Dataset::from_tensor_slices([("y", Tensor::i32([12], (0..12).collect::<Vec<_>>()).unwrap())]).unwrap();
    let beside = Dataset::zip([by_pattern(), labels]);
    let both = epochs(&sized(beside.clone()), None, 1).unwrap();
    assert_eq!((&both[0], both[1].len()), (&expected[0], 48));
    // Also one after the other, in any order, and as a stream where they were decoded before.
    let twice = epochs(&sized(Dataset::concatenate([by_pattern(), by_pattern()])), None, 1).unwrap();
    assert_eq!(twice[0], expected[0].repeat(2));
    let shuffled = |threads| sized(beside.clone().shuffle(Shuffle::seed(3))).parallelism(Parallelism::Threads(threads));
    assert_eq!(epochs(&shuffled(1), None, 2).unwrap(), epochs(&shuffled(3), None, 2).unwrap());
    let labels = Dataset::from_tensor_slices([("y", Tensor::i32([12], (0..12).collect::<Vec<_>>()).unwrap())]).unwrap();
    let pictures = by_pattern().map("x", [decode(), resize(8, 8, Method::Area)]);
    assert_eq!(epochs(&Dataset::zip([pictures, labels]).batch(4), None, 1).unwrap(), both);
    let cached = || sized(by_pattern()).cache(Cache::File(folder.path().join("cache.plc")));
    epochs(&cached(), None, 1).unwrap();
    assert!(cached().cache_file().unwrap().unwrap().whole);
    folder.write("cat/00.png", &png(&picture(33, 31, 3), 33, 31, png::ColorType::Rgb));
    assert!(!cached().cache_file().unwrap().unwrap().whole);
}
