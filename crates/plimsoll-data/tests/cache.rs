//! Caches: what they keep, what they cost, and that a stale or half one is never served.

mod image_files;

use image_files::{Folder, epochs, picture, png, twelve};
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{Method, center_crop, decode, flip_left_right, random_crop, resize, scale};
use plimsoll_data::{Cache, Dataset, Feed, Options, Parallelism, Prefetch, Shuffle};
use std::fs;
use std::path::PathBuf;

fn build(folder: &Folder) -> Dataset {
    folder.data().shuffle(Shuffle::seed(7)).map("x", [decode(), resize(16, 16, Method::Bilinear), scale(1.0 / 255.0)]).batch(5)
}

fn cache_file(folder: &Folder) -> PathBuf {
    folder.path().join("images.plc")
}

/// What lies beside the data.
fn left(folder: &Folder) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != "data")
        .collect();
    names.sort();
    names
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
}

#[test]
fn a_cache_that_may_choose_keeps_what_is_the_same_in_each_epoch_and_fits() {
    let folder = twelve();
    let sized = || folder.data().map("x", [decode(), resize(8, 8, Method::Area)]).parallelism(Parallelism::Threads(2));
    let (auto, memory) = (sized().cache(Cache::Auto).batch(4), sized().cache(Cache::Memory).batch(4));
    assert_eq!(auto.plan(None).unwrap().cached_rows(), 12);
    assert_eq!(epochs(&auto, None, 3).unwrap(), epochs(&memory, None, 3).unwrap());
    // As many rows as there is space for.
    let rest = auto.plan(None).unwrap().minimum() + Bytes(5 * 193);
    assert_eq!(auto.plan(Some(rest)).unwrap().cached_rows(), 5);
    // Random numbers that are drawn before all are of one size, numbers, and streams: nothing is kept, and nothing is
    // wrong.
    let turned = folder.data().map("x", [decode(), flip_left_right(1), resize(8, 8, Method::Area)]).cache(Cache::Auto).batch(4);
    let numbers = Dataset::range(0, 9, 1).unwrap().cache(Cache::Auto).batch(4);
    for data in [turned, numbers, sized().cache(Cache::Auto).ignore_errors(2).batch(4)] {
        assert_eq!(data.plan(None).unwrap().cached_rows(), 0);
        epochs(&data, None, 2).unwrap();
    }
}

#[test]
fn every_epoch_is_the_same_whichever_cache_and_however_much_fits() {
    let folder = twelve();
    let plain = floats(&epochs(&build(&folder), None, 3).unwrap()[0]);
    let memory = build(&folder).cache(Cache::Memory);
    let whole = epochs(&memory, None, 3).unwrap();
    // Rounded to integers before they were scaled.
    for (kept, exact) in floats(&whole[0]).iter().zip(&plain) {
        assert!((kept * 255.0 - (exact * 255.0 + 0.5).floor()).abs() < 1e-3, "{kept} {exact}");
    }
    let least = memory.plan(None).unwrap().minimum();
    for (room, rows) in [(0, 0), (769, 1), (769 * 5, 5)] {
        let limit = least + Bytes(room);
        let plan = memory.plan(Some(limit)).unwrap();
        assert_eq!(plan.cached_rows(), rows);
        assert_eq!(epochs(&memory, Some(limit), 3).unwrap(), whole);
    }
    assert_eq!(memory.plan(None).unwrap().cached_rows(), 12);
    let filed = build(&folder).cache(Cache::File(cache_file(&folder)));
    assert_eq!(epochs(&filed, None, 3).unwrap(), whole);
    assert_eq!(left(&folder), ["images.plc"]);
    assert_eq!(epochs(&filed, None, 3).unwrap(), whole);
}

#[test]
fn a_cache_that_can_have_all_rows_has_them_before_slots_and_large_files_get_more() {
    let folder = twelve();
    let data = |slots| {
        let data = folder.data().map("x", [decode(), resize(256, 256, Method::Bilinear), scale(1.0 / 255.0)]);
        data.parallelism(Parallelism::Threads(2)).cache(Cache::Memory).batch(4).prefetch(slots)
    };
    let plan = |limit| data(Prefetch::Auto).plan(Some(limit)).unwrap();
    insta::assert_snapshot!(plan(Bytes::mib(16)), @"
    2 worker stacks            1.00 MiB
    names                         388 B
    decode (each ≤ 2.40 MiB)    157 KiB
    map x                       542 KiB
    cache (12 of 12 rows)      2.25 MiB
    staging ring               9.00 MiB
    total                      12.9 MiB  (3 slots of 1 × 4 rows; minimum: 3.84 MiB)
    ");
    // The more there is, the more of it is for what else makes a pipeline fast.
    for (limit, slots, rows) in [(5, 1, 1), (8, 1, 12), (11, 2, 12), (14, 3, 12), (100, 3, 12)] {
        let plan = plan(Bytes::mib(limit));
        assert!(plan.total() <= Bytes::mib(limit));
        assert_eq!((plan.slots(), plan.cached_rows()), (slots, rows), "{limit} MiB");
    }
    // Slots that were asked for are left alone.
    let asked = data(Prefetch::Batches(2)).plan(Some(Bytes::mib(27))).unwrap();
    assert_eq!((asked.slots(), asked.cached_rows()), (3, 12));
    // An item that was asked for can be decoded, whatever else there is.
    let large = data(Prefetch::Auto).max_item(Bytes::mib(9)).plan(Some(Bytes::mib(16))).unwrap();
    assert_eq!(large.cached_rows(), 12, "{large}");

    let mut feed =
        Feed::start(&data(Prefetch::Auto), &plan(Bytes::mib(16)), &Ledger::new("host", Some(Bytes::mib(16))), Options::default()).unwrap();
    while feed.next().unwrap().is_some() {}
    fs::remove_dir_all(folder.path().join("data")).unwrap();
    while feed.next().unwrap().is_some() {}
}

#[test]
fn a_picture_larger_than_all_there_is_is_refused_with_both_numbers() {
    let folder = twelve();
    folder.write("cat/00.png", &png(&picture(1900, 1900, 7), 1900, 1900, png::ColorType::Rgb));
    let data = build(&folder).parallelism(Parallelism::Threads(1)).cache(Cache::Memory);
    let error = epochs(&data, Some(Bytes::mib(8)), 1).unwrap_err();
    insta::assert_snapshot!(folder.text(error), @"the input pipeline cannot run in 8.00 MiB: it needs at least 11.4 MiB (producer stack 512 KiB, names 388 B, shuffle 8 B, decode (each ≤ 10.8 MiB) 10.8 MiB, map x 56.7 KiB, staging ring 15.1 KiB); raise the limit or lower the batch size");
}

/// Makes every byte of the rows in the file this one, with checksums that say so.
fn fill_with(byte: u8, folder: &Folder) {
    let mut bytes = fs::read(cache_file(folder)).unwrap();
    let record = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
    for row in bytes[4096..].chunks_exact_mut(record) {
        let (row, check) = row.split_at_mut(record - 4);
        row.fill(byte);
        check.copy_from_slice(&crc32c::crc32c(row).to_le_bytes());
    }
    fs::write(cache_file(folder), bytes).unwrap();
}

#[test]
fn a_picture_that_changed_in_the_file_is_an_error_that_is_never_left_out() {
    let folder = twelve();
    let data = build(&folder).cache(Cache::File(cache_file(&folder)));
    epochs(&data, None, 1).unwrap();
    let mut bytes = fs::read(cache_file(&folder)).unwrap();
    bytes[4096 + 1000] ^= 16;
    fs::write(cache_file(&folder), bytes).unwrap();
    let told = folder.text(epochs(&data, None, 1).unwrap_err());
    insta::assert_snapshot!(told, @"FOLDER/images.plc cannot be used as a cache: its row 1 does not match its checksum; the file is damaged: remove it, and it is recomputed");
    let lenient = folder.data().map("x", [decode(), resize(16, 16, Method::Bilinear), scale(1.0 / 255.0)]);
    let lenient = lenient.cache(Cache::File(cache_file(&folder))).ignore_errors(12).batch(5);
    assert_eq!(folder.text(epochs(&lenient, None, 1).unwrap_err()), told, "it is no bad row");
}

#[test]
fn a_later_run_reads_the_file() {
    let folder = twelve();
    let data = build(&folder).cache(Cache::File(cache_file(&folder)));
    let first = epochs(&data, None, 1).unwrap();
    // Change what is in the file; if it shows, the file was read.
    fill_with(51, &folder);
    let second = epochs(&data, None, 1).unwrap();
    assert_ne!(first, second);
    assert!(floats(&second[0]).iter().all(|value| (value - 0.2).abs() < 1e-6));
}

#[test]
fn what_changes_upstream_makes_a_new_cache() {
    let folder = twelve();
    let file = Cache::File(cache_file(&folder));
    let spoil = || fill_with(51, &folder);
    let fresh = |data: &Dataset| {
        let columns = epochs(&data.clone().cache(file.clone()), None, 1).unwrap();
        !floats(&columns[0]).iter().all(|value| (value - 0.2).abs() < 1e-6)
    };
    let with = |ops| folder.data().map("x", ops).map("x", [scale(1.0 / 255.0)]).batch(5);
    let same = || with([decode(), resize(16, 16, Method::Bilinear)]);
    assert!(fresh(&same()));
    spoil();
    assert!(!fresh(&same()), "the same data finds it");
    assert!(!fresh(&same().rebatch(3)), "what comes after does not matter");
    assert!(fresh(&with([decode(), resize(16, 16, Method::Nearest)])), "another operation");
    spoil();
    assert!(fresh(&same().rebatch(3)), "the first again");
    spoil();
    folder.write("cat/03.png", &png(&picture(90, 90, 9), 90, 90, png::ColorType::Rgb));
    assert!(fresh(&same()), "another image");
    spoil();
    folder.write("dog/new.png", &png(&picture(9, 9, 9), 9, 9, png::ColorType::Rgb));
    assert!(fresh(&same()), "one more image");
    spoil();
    assert!(
        fresh(&folder.data().take(6).map("x", [decode(), resize(16, 16, Method::Bilinear), scale(1.0 / 255.0)]).batch(5)),
        "other rows"
    );
}

#[test]
fn half_a_cache_is_never_left() {
    let folder = twelve();
    let data = build(&folder).cache(Cache::File(cache_file(&folder)));
    let plan = data.plan(None).unwrap();
    let ledger = Ledger::new("host", None);
    let mut feed = Feed::start(&data, &plan, &ledger, Options::default()).unwrap();
    assert!(feed.next().unwrap().is_some());
    drop(feed);
    let after = left(&folder);
    assert!(after.is_empty() || after == ["images.plc"], "a whole one or none: {after:?}");
    folder.write("cat/02.png", b"broken");
    assert!(epochs(&build(&folder).cache(Cache::File(cache_file(&folder))), None, 1).is_err());
    assert!(left(&folder).iter().all(|name| name == "images.plc"));
}

#[test]
fn refusals_say_what_to_do() {
    let folder = twelve();
    let refused = |data: Dataset, cache| folder.text(epochs(&data.cache(cache), None, 1).unwrap_err());
    fs::write(cache_file(&folder), "my diary").unwrap();
    insta::assert_snapshot!(refused(build(&folder), Cache::File(cache_file(&folder))), @"FOLDER/images.plc cannot be used as a cache: there is already a file of another kind; give the cache a name of its own");
    assert_eq!(fs::read_to_string(cache_file(&folder)).unwrap(), "my diary");
    let itself = Cache::File(folder.path().to_path_buf());
    insta::assert_snapshot!(refused(build(&folder), itself), @"FOLDER cannot be used as a cache: it is a folder; say which file in it");
    // An empty file is nobody's.
    fs::write(cache_file(&folder), "").unwrap();
    let data = build(&folder).cache(Cache::File(cache_file(&folder)));
    epochs(&data, None, 1).unwrap();
    assert!(data.cache_file().unwrap().unwrap().whole);
    let by_lot = folder.data().map("x", [decode(), random_crop(4, 4, 1)]).batch(5);
    insta::assert_snapshot!(refused(by_lot, Cache::Memory), @"random_crop(4, 4, seed 1) cannot be applied to column `x`: it differs from epoch to epoch and stands before what is cached; put it after the resize");
    let sized = || folder.data().map("x", [decode(), resize(4, 4, Method::Area)]);
    let taken = folder.text(sized().cache(Cache::Memory).filter(|_| true).batch(5).plan(None).unwrap_err());
    insta::assert_snapshot!(taken, @"image_folder FOLDER/data → map(x: decode(), resize(4, 4, area)) → cache(memory): its images are cached in memory by their number, and the stage that follows takes them one after the other; put the cache behind that stage, or keep them in a file");
    assert!(sized().filter(|_| true).cache(Cache::Memory).batch(5).plan(None).is_ok());
    let missing = folder.path().join("no/such/folder/images.plc");
    let error = refused(build(&folder), Cache::File(missing));
    let form: String = error.chars().map(|c| if c.is_ascii_digit() { '#' } else { c }).collect();
    insta::assert_snapshot!(form.replace("##", "#").replace("##", "#").replace("##", "#"), @"cannot make the cache FOLDER/no/such/folder/images.plc.part-#-#: No such file or directory (os error #)");
}

#[test]
fn lots_are_drawn_after_the_cache() {
    let folder = twelve();
    let data = folder.data().map("x", [decode(), center_crop(12, 12), flip_left_right(3)]).batch(5).cache(Cache::Memory);
    let all = epochs(&data, None, 4).unwrap().swap_remove(0);
    let epochs: Vec<&[u8]> = all.chunks_exact(all.len() / 4).collect();
    assert!(epochs.iter().skip(1).any(|epoch| epoch != &epochs[0]), "which are mirrored differs from epoch to epoch");
}
