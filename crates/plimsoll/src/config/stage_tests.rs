//! Lists of stages: what each entry becomes, what is wrong with others, and that a list is the same calls made by hand.

use super::data::datasets;
use crate::reader::Reader;
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::ops::{cast_f32, normalize, one_hot, scale};
use plimsoll_data::{Condition, DataError, Dataset, Feed, Options, PadTo, Parallelism, Prefetch, RandomSpec, Relation, Shuffle};
use std::path::Path;

/// The rows of a `[data]` table: what is trained on, and what is held out; or what is wrong.
fn read(folder: &Path, batch: Option<usize>, text: &str) -> String {
    let table: toml::Table = text.parse().unwrap_or_else(|error| panic!("{error} in {text}"));
    let described = match datasets(&Reader::root(&table), folder, batch, 1) {
        Ok((training, None)) => training.describe(),
        Ok((training, Some(held_out))) => format!("{}\n  held out: {}", training.describe(), held_out.describe()),
        Err(error) => error.to_string(),
    };
    described.replace(&format!("{}/", folder.display()), "")
}

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for class in ["ant", "bee"] {
        std::fs::create_dir_all(folder.path().join("train").join(class)).unwrap();
        std::fs::write(folder.path().join("train").join(class).join("1.png"), "").unwrap();
    }
    let rows: String = (0..20).map(|row| format!("{row},{}\n", row % 3)).collect();
    std::fs::write(folder.path().join("t.csv"), format!("t,class\n{rows}")).unwrap();
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../plimsoll-data/tests/reference/examples.tfrecord");
    std::fs::copy(records, folder.path().join("a.tfrecord")).unwrap();
    folder
}

/// A table of digits with a list of stages.
fn digits(stages: &str) -> String {
    format!("[data]\nsource = 'digits'\nstages = [{stages}]")
}

#[test]
fn every_stage_stands_where_it_is_written() {
    let folder = folder();
    let words = "input = { name = 'words', dtype = 'i32', shape = [5], up_to = true }\nlabel = { name = 'label', dtype = 'i32' }";
    let ragged = |stages: &str| format!("[data]\nsource = 'tfrecord'\npath = 'a.tfrecord'\n{words}\nstages = [{stages}]");
    let pictures = |stages: &str| format!("[data]\nsource = 'image_folder'\npath = 'train'\nstages = [{stages}]");
    let cases = [
        digits(""),
        digits("{ op = 'take', rows = 9 }, { op = 'skip', rows = 2 }, { op = 'shard', count = 4, index = 1 }, { op = 'repeat', times = 3 }"),
        digits("{ op = 'shuffle' }, { op = 'scale', by = 2 }, { op = 'one_hot', classes = 10 }, { op = 'map', column = 'x', ops = [{ op = 'cast' }, { op = 'normalize', mean = 1, std = 2 }] }"),
        digits("{ op = 'filter', column = 'y', is = [0, 3] }, { op = 'shuffle', seed = 7, buffer = '1MiB' }, { op = 'take_while', column = 'x', at_most = 16, above = -1 }, { op = 'enumerate', column = 'n' }"),
        digits("{ op = 'filter', column = 'y', not = 7, below = 9, at_least = 1 }, { op = 'cardinality', rows = 1000 }"),
        digits("{ op = 'ignore_errors', cap = 3 }, { op = 'window', size = 4 }, { op = 'unbatch' }, { op = 'window', size = 2, shift = 1, stride = 3 }"),
        digits("{ op = 'bucket_by_length', column = 'y', bounds = [2, 5], rows = 16 }, { op = 'batch', rows = 16, drop_remainder = true }, { op = 'rebatch', rows = 4 }"),
        digits("{ op = 'one_hot', classes = 10 }, { op = 'cast' }, { op = 'batch' }, { op = 'mixup', alpha = 0.4, seed = 2 }, { op = 'prefetch', batches = 3 }, { op = 'parallelism', threads = 2 }, { op = 'deterministic', is = false }"),
        digits("{ op = 'one_hot', classes = 10 }, { op = 'batch', rows = 4 }, { op = 'unbatch' }, { op = 'take', rows = 3 }, { op = 'batch', rows = 5 }, { op = 'cutmix' }"),
        pictures("{ op = 'decode' }, { op = 'resize', size = 4 }, { op = 'cache', in = { file = 'c.plc' } }, { op = 'flip_left_right', seed = 5 }, { op = 'max_item', bytes = '4MiB' }, { op = 'prefetch' }, { op = 'parallelism' }"),
        pictures("{ op = 'decode' }, { op = 'resize', size = 4 }, { op = 'cache', in = 'memory' }"),
        ragged("{ op = 'filter', column = 'x', length_above = 1, length_at_most = 4 }, { op = 'padded_batch', value = -1 }"),
        ragged("{ op = 'padded_batch', rows = 2, to = 'longest', drop_remainder = true }"),
        ragged("{ op = 'fill', value = 9 }"),
        "[data]\nsource = 'concatenate'\nparts = [{ source = 'range', stop = 9, stages = [{ op = 'filter', column = 'x', below = 4 }, { op = 'repeat', times = 2 }] }, { source = 'range', stop = 2 }]\nstages = [{ op = 'skip', rows = 1 }]".into(),
        "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'class'\nholdout = 0.25\nbatch = 6\nstages = [{ op = 'filter', column = 'y', is = 1 }, { op = 'batch' }]".into(),
    ];
    insta::assert_snapshot!(cases.map(|case| read(folder.path(), None, &case)).join("\n"), @r"
    digits (train) → batch(32)
      held out: digits (test) → batch(32)
    digits (train) → take(9) → skip(2) → shard(4, 1) → repeat(3) → batch(32)
      held out: digits (test) → batch(32)
    digits (train) → shuffle(seed 1) → map(x: scale(2)) → map(y: one_hot(10)) → map(x: cast_f32(), normalize([1.0], [2.0])) → batch(32)
      held out: digits (test) → map(x: scale(2)) → map(y: one_hot(10)) → map(x: cast_f32(), normalize([1.0], [2.0])) → batch(32)
    digits (train) → filter(y is 0 or 3) → shuffle(seed 7, 1.00 MiB) → take_while(x above -1 and x at most 16) → enumerate(n) → batch(32)
      held out: digits (test) → filter(y is 0 or 3) → enumerate(n) → batch(32)
    digits (train) → filter(y is not 7 and y below 9 and y at least 1) → assert_cardinality(1000) → batch(32)
      held out: digits (test) → filter(y is not 7 and y below 9 and y at least 1) → batch(32)
    digits (train) → ignore_errors(3) → window(4, 4, 1) → unbatch → window(2, 1, 3) → batch(32)
      held out: digits (test) → ignore_errors(3) → window(4, 4, 1) → unbatch → window(2, 1, 3) → batch(32)
    digits (train) → bucket_by_length(y, [2, 5], 16) → batch(16) → drop_remainder → rebatch(4)
      held out: digits (test) → batch(16) → rebatch(4)
    digits (train) → map(y: one_hot(10)) → map(x: cast_f32()) → batch(32) → mixup(0.4, seed 2) → prefetch(3) → parallelism(2) → deterministic(false)
      held out: digits (test) → map(y: one_hot(10)) → map(x: cast_f32()) → batch(32) → prefetch(3) → parallelism(2)
    digits (train) → map(y: one_hot(10)) → batch(4) → unbatch → take(3) → batch(5) → cutmix(1, seed 1)
      held out: digits (test) → map(y: one_hot(10)) → batch(4) → unbatch → batch(5)
    image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache(c.plc) → map(x: flip_left_right(seed 5)) → max_item(4.00 MiB) → prefetch(auto) → parallelism(auto) → batch(32)
    image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache(memory) → batch(32)
    tfrecord a.tfrecord → filter(length of x above 1 and length of x at most 4) → map(x: fill(-1)) → batch(32)
    tfrecord a.tfrecord → pad(0) → batch(2) → drop_remainder
    tfrecord a.tfrecord → map(x: fill(9)) → batch(32)
    concatenate(9 numbers from 0 by 1 → filter(x below 4) → repeat(2) | 2 numbers from 0 by 1) → skip(1) → batch(32)
    csv t.csv (rows 0 to 20, t → class) → without holdout(0.25, seed 0) → filter(y is 1) → batch(6)
      held out: csv t.csv (rows 0 to 20, t → class) → holdout(0.25, seed 0) → filter(y is 1) → batch(6)
    ");
}

#[test]
fn what_is_said_of_batches_for_the_whole_run_is_said_of_those_that_come_out() {
    let folder = folder();
    let list = "{ op = 'batch', rows = 4 }, { op = 'unbatch' }, { op = 'bucket_by_length', column = 'y', bounds = [5] }, { op = 'batch' }";
    let cases = [
        digits(""),
        digits("{ op = 'batch', rows = 16 }"),
        digits(list),
        digits("{ op = 'batch', rows = 4 }, { op = 'unbatch' }"),
        format!("{}\nbatch = 6", digits("{ op = 'batch', rows = 4 }, { op = 'unbatch' }, { op = 'batch' }")),
        format!("{}\nbatch = 6", digits("")),
        format!("{}\nbatch = 6", digits("{ op = 'padded_batch' }")),
        format!("{}\nbatch = 6", digits("{ op = 'padded_batch', rows = 7 }")),
    ];
    let described =
        cases.map(|case| [None, Some(8)].map(|batch| read(folder.path(), batch, &case).replace("\n  held out: ", " | ")).join("\n"));
    insta::assert_snapshot!(described.join("\n"), @r"
    digits (train) → batch(32) | digits (test) → batch(32)
    digits (train) → batch(8) | digits (test) → batch(8)
    digits (train) → batch(16) | digits (test) → batch(16)
    digits (train) → batch(8) | digits (test) → batch(8)
    digits (train) → batch(4) → unbatch → bucket_by_length(y, [5], 32) → batch(32) | digits (test) → batch(4) → unbatch → batch(32)
    digits (train) → batch(4) → unbatch → bucket_by_length(y, [5], 8) → batch(8) | digits (test) → batch(4) → unbatch → batch(8)
    digits (train) → batch(4) → unbatch → batch(32) | digits (test) → batch(4) → unbatch → batch(32)
    digits (train) → batch(4) → unbatch → batch(8) | digits (test) → batch(4) → unbatch → batch(8)
    digits (train) → batch(4) → unbatch → batch(6) | digits (test) → batch(4) → unbatch → batch(6)
    digits (train) → batch(4) → unbatch → batch(8) | digits (test) → batch(4) → unbatch → batch(8)
    digits (train) → batch(6) | digits (test) → batch(6)
    digits (train) → batch(8) | digits (test) → batch(8)
    digits (train) → batch(6) | digits (test) → batch(6)
    digits (train) → batch(8) | digits (test) → batch(8)
    `data.stages[0].rows` and `data.batch` both say how many rows a batch has; leave one of them out
    `data.stages[0].rows` and `data.batch` both say how many rows a batch has; leave one of them out
    ");
}

#[test]
fn rows_that_are_measured_pass_what_makes_a_row_what_it_is_or_a_list_of_their_own() {
    let folder = folder();
    let all = "{ op = 'skip', rows = 1 }, { op = 'take', rows = 900 }, { op = 'shard', count = 2, index = 0 }, { op = 'shuffle' }, { op = 'repeat', times = 2 }, \
               { op = 'take_while', column = 'y', at_most = 9 }, { op = 'filter', column = 'y', not = 3 }, { op = 'enumerate', column = 'n' }, \
               { op = 'one_hot', classes = 10 }, { op = 'cast' }, { op = 'bucket_by_length', column = 'n', bounds = [5] }, { op = 'cardinality', rows = 7 }, \
               { op = 'parallelism', threads = 1 }, { op = 'batch', rows = 8, drop_remainder = true }, { op = 'mixup' }, { op = 'deterministic', is = false }, \
               { op = 'prefetch', batches = 2 }";
    let csv = "[data]\nsource = 'csv'\npath = 't.csv'\ntarget = 'class'\n";
    let own = "[data.validation]\nstages = [{ op = 'filter', column = 'y', above = 0 }]";
    let kept = "[data]\nsource = 'image_folder'\npath = 'train'\nstages = [{ op = 'decode' }, { op = 'resize', size = 4 }, { op = 'cache', in = { file = 'c.plc' } }]\n[data.validation]\npath = 'train'";
    let cases = [
        digits(all),
        digits(
            "{ op = 'window', size = 2 }, { op = 'unbatch' }, { op = 'ignore_errors', cap = 2 }, { op = 'rebatch', rows = 3 }, { op = 'max_item', bytes = 4096 }",
        ),
        format!("{}\n{own}", digits("{ op = 'take', rows = 9 }")),
        format!("{csv}shuffle = true\nholdout = 0.2\n{own}"),
        format!("{csv}holdout = 0.2\n{own}\nrows = [0, 5]"),
        format!("{csv}split = 0.5\nstages = [{{ op = 'scale', by = 2 }}]\n{own}"),
        kept.to_string(),
        kept.replace("{ file = 'c.plc' }", "'auto'"),
        kept.replace("{ op = 'decode' }", "{ op = 'filter', column = 'y', is = 0 }, { op = 'decode' }"),
    ];
    insta::assert_snapshot!(cases.map(|case| read(folder.path(), None, &case)).join("\n"), @r"
    digits (train) → skip(1) → take(900) → shard(2, 0) → shuffle(seed 1) → repeat(2) → take_while(y at most 9) → filter(y is not 3) → enumerate(n) → map(y: one_hot(10)) → map(x: cast_f32()) → bucket_by_length(n, [5], 8) → assert_cardinality(7) → parallelism(1) → batch(8) → drop_remainder → mixup(0.2, seed 1) → deterministic(false) → prefetch(2)
      held out: digits (test) → filter(y is not 3) → enumerate(n) → map(y: one_hot(10)) → map(x: cast_f32()) → parallelism(1) → batch(8) → prefetch(2)
    digits (train) → window(2, 2, 1) → unbatch → ignore_errors(2) → rebatch(3) → max_item(4.00 KiB)
      held out: digits (test) → window(2, 2, 1) → unbatch → ignore_errors(2) → rebatch(3) → max_item(4.00 KiB)
    digits (train) → take(9) → batch(32)
      held out: digits (test) → filter(y above 0) → batch(32)
    csv t.csv (rows 0 to 20, t → class) → without holdout(0.2, seed 0) → shuffle(seed 1) → parallelism(auto) → batch(32) → prefetch(auto)
      held out: csv t.csv (rows 0 to 20, t → class) → holdout(0.2, seed 0) → filter(y above 0) → batch(32)
    `data.holdout` and `data.validation` exclude each other
    csv t.csv (rows 0 to 10, t → class) → map(x: scale(2)) → batch(32)
      held out: csv t.csv (rows 10 to 20, t → class) → filter(y above 0) → batch(32)
    image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache(c.plc) → batch(32)
      held out: image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache(memory) → batch(32)
    image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache(auto) → batch(32)
      held out: image_folder train → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache(auto) → batch(32)
    image_folder train → filter(y is 0) → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache → batch(32)
      held out: image_folder train → filter(y is 0) → map(x: decode()) → map(x: resize(4, 4, bilinear)) → cache → batch(32)
    ");
}

#[test]
fn bad_rows_of_parts_are_left_out_by_what_follows_them() {
    let folder = folder();
    std::fs::write(folder.path().join("bad.csv"), "t,class\n1,0\n2\n3,nan\n4,1\n").unwrap();
    let parts = "parts = [{ source = 'csv', path = 't.csv', target = 'class' }, { source = 'csv', path = 'bad.csv', target = 'class' }]";
    for source in ["concatenate", "interleave", "sample_from"] {
        let table = |how: &str| format!("[data]\nsource = '{source}'\n{parts}\n{how}").parse::<toml::Table>().unwrap();
        let rows = |how: &str| datasets(&Reader::root(&table(how)), folder.path(), Some(4), 1).map(|(rows, _)| rows.count_rows());
        assert!(
            rows("")
                .unwrap_err()
                .to_string()
                .ends_with("bad.csv, line 3: it has 1 fields where the first line names 2 columns; correct it")
        );
        assert_eq!(rows("ignore_errors = 2").unwrap().unwrap(), 22);
        assert_eq!(rows("stages = [{ op = 'ignore_errors', cap = 2 }]").unwrap().unwrap(), 22);
        assert!(rows("ignore_errors = 1").unwrap().is_err());
    }
}

#[test]
fn parts_that_number_classes_differently_are_not_put_together() {
    let folder = folder();
    std::fs::create_dir_all(folder.path().join("more/bee")).unwrap();
    std::fs::write(folder.path().join("more/bee/1.png"), "").unwrap();
    let parts = |classes: &str| {
        let more = format!("{{ source = 'image_folder', path = 'more'{classes} }}");
        format!(
            "[data]\nsource = 'concatenate'\nparts = [{{ source = 'image_folder', path = 'train' }}, {more}]\nmap = [{{ op = 'decode' }}, {{ op = 'resize', size = 4 }}]"
        )
    };
    let table = parts("").parse::<toml::Table>().unwrap();
    let (rows, _) = datasets(&Reader::root(&table), folder.path(), None, 1).unwrap();
    insta::assert_snapshot!(rows.plan(None).unwrap_err(), @"concatenate would mix up classes: column `y` numbers ant, bee in one part and bee in another; name the folder to take them from (classes)");
    let named = read(folder.path(), None, &parts(", classes = 'train'"));
    assert!(named.starts_with("concatenate(image_folder train | image_folder more) → "), "{named}");
}

#[test]
fn errors_of_a_list_name_their_entry() {
    let folder = folder();
    let beside = |key: &str| format!("{}\n{key}", digits("{ op = 'shuffle' }"));
    let part = |stages: &str| format!("[data]\nsource = 'zip'\nparts = [{{ source = 'range', stop = 9, stages = [{stages}] }}]");
    let words = "input = { name = 'words', dtype = 'i32', shape = [5], up_to = true, padded = 3 }";
    let pictures = |stages: &str| format!("[data]\nsource = 'image_folder'\npath = 'train'\nstages = [{stages}]");
    let cases = [
        digits("{ op = 'shufle' }"),
        digits("{ op = 'shuffle' }, { op = 'scal', by = 2 }"),
        digits("{ rows = 3 }"),
        digits("{ op = 'flat_map' }"),
        digits("{ op = 'zip' }"),
        digits("'shuffle'"),
        digits("{ op = 3 }"),
        "[data]\nsource = 'digits'\nstages = { op = 'shuffle' }".into(),
        digits("{ op = 'shuffle', sed = 3 }"),
        digits("{ op = 'shuffle', buffer = 'much' }"),
        digits("{ op = 'shuffle', buffer = 0 }"),
        digits("{ op = 'shuffle', buffer = '100B' }"),
        digits("{ op = 'take' }"),
        digits("{ op = 'take', rows = 0 }"),
        digits("{ op = 'take', rows = 'all' }"),
        digits("{ op = 'scale', by = 2, column = 'z' }"),
        digits("{ op = 'filter', is = 3 }"),
        digits("{ op = 'filter', column = 'y' }"),
        digits("{ op = 'filter', column = 'y', is = [] }"),
        digits("{ op = 'filter', column = 'y', is = 'three' }"),
        digits("{ op = 'filter', column = 'z', is = 3 }"),
        digits("{ op = 'filter', column = 'x', length_below = 3 }"),
        digits("{ op = 'filter', column = 'y', equals = 3 }"),
        digits("{ op = 'shard', count = 4, index = 4 }"),
        digits("{ op = 'shard', count = 4 }"),
        digits("{ op = 'window', shift = 2 }"),
        digits("{ op = 'window', size = 2, stride = 9000000000000000000 }"),
        digits("{ op = 'window', size = 16000000 }, { op = 'window', size = 16000000 }"),
        digits("{ op = 'bucket_by_length', column = 'y', bounds = [4], rows = 9000000000000000000 }"),
        digits("{ op = 'unbatch' }"),
        digits("{ op = 'enumerate', column = 'y' }"),
        digits("{ op = 'bucket_by_length', column = 'y' }"),
        digits("{ op = 'bucket_by_length', column = 'y', bounds = [4, -1] }"),
        digits("{ op = 'bucket_by_length', column = 'y', bounds = [4, 2] }"),
        digits("{ op = 'bucket_by_length', column = 'x', bounds = [4] }"),
        digits("{ op = 'bucket_by_length', column = 'z', bounds = [4] }"),
        digits("{ op = 'batch', rows = 4 }, { op = 'shuffle' }"),
        digits("{ op = 'batch', rows = 4 }, { op = 'filter', column = 'y', is = 1 }"),
        digits("{ op = 'batch', rows = 4 }, { op = 'padded_batch', rows = 4 }"),
        digits("{ op = 'padded_batch', to = 'shortest' }"),
        digits("{ op = 'batch', drop_remainder = 3 }"),
        digits("{ op = 'mixup' }"),
        digits("{ op = 'map', ops = [{ op = 'scale', by = 2, column = 'y' }] }"),
        digits("{ op = 'map', column = 'x' }"),
        digits("{ op = 'map', ops = [{ op = 'shuffle' }] }"),
        digits("{ op = 'cache' }"),
        digits("{ op = 'cache', in = 'disk' }"),
        digits("{ op = 'cache', at = 'memory' }"),
        digits("{ op = 'cache', in = { fil = 'x' } }"),
        digits("{ op = 'cache', in = {} }"),
        digits("{ op = 'cache', in = { file = 'x', memory = '1MiB' } }"),
        digits("{ op = 'cache', in = { memory = '1MiB', on_full = 'stop' } }"),
        digits("{ op = 'parallelism', threads = 0 }"),
        digits("{ op = 'parallelism', threads = 100000 }"),
        digits("{ op = 'prefetch', batches = 'all' }"),
        digits("{ op = 'max_item' }"),
        digits("{ op = 'deterministic' }"),
        digits("{ op = 'ignore_errors' }"),
        beside("shuffle = true"),
        beside("map = []"),
        beside("cache = 'memory'"),
        beside("take = 3"),
        beside("drop_remainder = true"),
        beside("mixup = {}"),
        beside("prefetch = 3"),
        beside("[data.validation]\nstages = [{ op = 'repeat' }]"),
        beside("[data.validation]\nstages = [{ op = 'take', rows = 1 }]\nshuffle = true"),
        beside("stage = []"),
        pictures("{ op = 'filter', column = 'x', is = 0 }, { op = 'decode' }, { op = 'resize', size = 4 }"),
        pictures("{ op = 'decode' }, { op = 'ignore_errors', cap = 3 }, { op = 'resize', size = 4 }"),
        pictures("{ op = 'window', size = 2 }"),
        part("{ op = 'batch', rows = 3 }"),
        part("{ op = 'take', rows = 3 }], map = ["),
        part("{ op = 'take', row = 3 }"),
        "[data]\nsource = 'zip'\nparts = [{ source = 'range', stop = 9, stages = [{ op = 'filter', column = 'x', is = 3 }] }]\nholdout = 0.5".into(),
        format!("[data]\nsource = 'tfrecord'\npath = 'a.tfrecord'\n{words}"),
    ];
    insta::assert_snapshot!(cases.map(|case| read(folder.path(), None, &case)).join("\n"), @r#"
    `data.stages[0].op` is "shufle", but should be one of map, filter, take_while, shuffle, skip, take, shard, repeat, enumerate, window, unbatch, bucket_by_length, ignore_errors, cache, cardinality, batch, padded_batch, rebatch, mixup, cutmix, prefetch, parallelism, max_item, deterministic, decode, resize, center_crop, random_crop, random_resized_crop, pad, crop_or_pad, flip_left_right, flip_up_down, rot90, random_rot90, rotate, random_rotate, brightness, random_brightness, contrast, random_contrast, saturation, random_saturation, hue, random_hue, grey, standardize, scale, normalize, cast, one_hot, finite, fill; did you mean "shuffle"?
    `data.stages[1].op` is "scal", but should be one of map, filter, take_while, shuffle, skip, take, shard, repeat, enumerate, window, unbatch, bucket_by_length, ignore_errors, cache, cardinality, batch, padded_batch, rebatch, mixup, cutmix, prefetch, parallelism, max_item, deterministic, decode, resize, center_crop, random_crop, random_resized_crop, pad, crop_or_pad, flip_left_right, flip_up_down, rot90, random_rot90, rotate, random_rotate, brightness, random_brightness, contrast, random_contrast, saturation, random_saturation, hue, random_hue, grey, standardize, scale, normalize, cast, one_hot, finite, fill; did you mean "scale"?
    `data.stages[0].op` is missing: which stage, such as "shuffle"
    `data.stages[0].op` is "flat_map", which needs a program: `Dataset::flat_map` is given code that makes rows of a row
    `data.stages[0].op` is "zip", which puts several sources together: make it the `source`, with `parts` that have stages of their own
    `data.stages[0]` is "shuffle", but should be a table
    `data.stages[0].op` is 3, but should be text in quotes
    `data.stages` is { op = "shuffle" }, but should be a list of tables
    unknown key `data.stages[0].sed`; did you mean `data.stages[0].seed`?
    `data.stages[0].buffer`: `much` is not a size; write a number and a unit, such as 256MiB, 2GB or 1048576 (units: B, KiB, MiB, GiB, TiB, kB, MB, GB, TB)
    `data.stages[0]` (shuffle) with a buffer of 0 B leaves rows as they are: it takes two of 68 B at least
    `data.stages[0]` (shuffle) with a buffer of 100 B leaves rows as they are: it takes two of 68 B at least
    `data.stages[0].rows` is missing: how many rows are kept
    `data.stages[0].rows` is 0, but should be an integer, 1 or more
    `data.stages[0].rows` is "all", but should be an integer, 1 or more
    `data.stages[0]` (scale): there is no column `z`; the columns are x, y
    `data.stages[0].column` is missing: which column is inspected
    `data.stages[0].is` is missing: what has to hold for `y`: is, not, below, above, at_least, at_most, or the same of its length, such as length_below
    `data.stages[0].is` is missing: what has to hold for `y`: is, not, below, above, at_least, at_most, or the same of its length, such as length_below
    `data.stages[0].is` is "three", but should be a number or a list of numbers
    `data.stages[0]` (filter): there is no column `z` to look at; the columns are x, y
    `data.stages[0]` (filter): column `x` is to be asked for its length, and its rows are all of one; leave that out
    unknown key `data.stages[0].equals`; the keys here are op, column, is, not, below, above, at_least, at_most, length_below, length_above, length_at_least, length_at_most
    `data.stages[0]` (shard): shard(4, 4) is none of 4; number them from 0
    `data.stages[0].index` is missing: which part this is, counted from 0
    `data.stages[0].size` is missing: how many rows become one
    `data.stages[0].stride` is 9000000000000000000, but should be at most 16777216
    `data.stages[1]` (window): window(16000000, 16000000, 1) reaches over more rows than can be held; ask for fewer
    `data.stages[0].rows` is 9000000000000000000, but should be at most 16777216
    `data.stages[0]` (unbatch): column `y` has rows of shape [], and unbatch takes rows apart that all begin with one dimension
    `data.stages[0]` (enumerate): column `y` appears twice; give each column its own name
    `data.stages[0].bounds` is missing: the lengths at which a bucket begins, such as [16, 32, 64]
    `data.stages[0].bounds` is [4, -1], but should be a list of integers, such as [28, 28, 1]
    `data.stages[0]` (bucket_by_length): bucket_by_length(y, [4, 2], 32) needs boundaries that grow and batches of at least one row
    `data.stages[0]` (bucket_by_length): bucket_by_length(x, [4], 32) needs a column whose rows vary in length, or one with one integer a row
    `data.stages[0]` (bucket_by_length): there is no column `z` to look at; the columns are x, y
    `data.stages[1]` (shuffle) counts rows and stands after the batch; put it before, or put { op = "unbatch" } between
    `data.stages[1]` (filter) counts rows and stands after the batch; put it before, or put { op = "unbatch" } between
    `data.stages[1]` (padded_batch): batch(4) stands after batch(4); a data set is batched once
    `data.stages[0].to` is "shortest", but should be one of declared, longest
    `data.stages[0].drop_remainder` is 3, but should be true or false
    `data.stages[0]` (mixup): mixup(0.2, seed 1) cannot be done: column y: i32[] holds no share per class; map it with one_hot before
    unknown key `data.stages[0].ops[0].column`; the keys here are op, by
    `data.stages[0].ops` is missing: a list of operations, such as [{ op = "cast" }, { op = "scale", by = 0.5 }]
    `data.stages[0].ops[0].op` is "shuffle", but should be one of decode, resize, center_crop, random_crop, random_resized_crop, pad, crop_or_pad, flip_left_right, flip_up_down, rot90, random_rot90, rotate, random_rotate, brightness, random_brightness, contrast, random_contrast, saturation, random_saturation, hue, random_hue, grey, standardize, scale, normalize, cast, one_hot, finite, fill
    `data.stages[0].in` is missing: "memory", "auto" or a table such as { file = "cache.plc" } or { memory = "256MiB" }
    `data.stages[0].in` is "disk", but should be "memory", "auto" or a table such as { file = "cache.plc" } or { memory = "256MiB" }
    unknown key `data.stages[0].at`; did you mean `data.stages[0].in`?
    unknown key `data.stages[0].in.fil`; did you mean `data.stages[0].in.file`?
    `data.stages[0].in.file` is missing: the path of the cache; or `memory`, the most memory to use
    `data.stages[0].in.memory` excludes the keys of a cache file; use one of the two
    `data.stages[0].in.memory` excludes the keys of a cache file; use one of the two
    `data.stages[0].threads` is 0, but should be "auto" or a number of threads
    `data.stages[0]` (parallelism): parallelism(100000) is more threads than do any good; ask for at most 1024
    `data.stages[0].batches` is "all", but should be "auto" or a number of batches
    `data.stages[0].bytes` is missing: a size such as "64MiB"
    `data.stages[0].is` is missing: whether batches come in the order of their rows
    `data.stages[0].cap` is missing: how many rows of an epoch may be left out
    `data.shuffle` has no place beside `data.stages`: write { op = "shuffle" } into the list instead
    `data.map` has no place beside `data.stages`: write { op = "map", ops = … } into the list instead
    `data.cache` has no place beside `data.stages`: write { op = "cache", in = … } into the list instead
    `data.take` has no place beside `data.stages`: write { op = "take", rows = … } into the list instead
    `data.drop_remainder` has no place beside `data.stages`: write { op = "batch", drop_remainder = true } into the list instead
    `data.mixup` has no place beside `data.stages`: write { op = "mixup" } into the list instead
    `data.prefetch` has no place beside `data.stages`: write { op = "prefetch", batches = … } into the list instead
    `data.validation.stages[0].times` is missing: how often an epoch has each row
    `data.validation.shuffle` has no place beside `data.validation.stages`: write { op = "shuffle" } into the list instead
    unknown key `data.stage`; did you mean `data.stages`?
    `data.stages[0]` (filter): column `x` is to be asked for its numbers, and its rows are not of one size yet; map it first
    `data.stages[1]` (ignore_errors): column `x` has rows that differ in size, which ignore_errors(3) cannot hold; put decode and resize before it
    `data.stages[0]` (window): column `x` has rows that differ in size, and window puts rows together that are all of one size; put decode and resize before it
    `data.parts[0].stages` ends in batches, and parts are composed row by row; leave the batch out
    `data.parts[0].map` has no place beside `data.parts[0].stages`: write { op = "map", ops = … } into the list instead
    unknown key `data.parts[0].stages[0].row`; did you mean `data.parts[0].stages[0].rows`?
    `data.holdout` is a fraction of the rows, and the number of rows of 9 numbers from 0 by 1 → filter(x is 3) → zip is not known beforehand; use `data.validation` instead
    `data.input.padded` and `data.input.up_to` exclude each other: rows are padded when they are read, or batch by batch
    "#);
}

/// One stage as configurations write it, and as a call made by hand.
type Drawn = (String, Box<dyn Fn(Dataset) -> Dataset>);

/// Numbers at random.
struct Draws(u64);

impl Draws {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

fn drawn(text: String, call: impl Fn(Dataset) -> Dataset + 'static) -> Drawn {
    (text, Box::new(call))
}

/// What stands in the first quotes of an entry.
fn name(text: &str) -> &str {
    text.split('\'').nth(1).unwrap()
}

/// A stage that counts rows or changes them; the place in the list gives new columns a name of their own.
fn row_stage(lots: &mut Draws, place: usize) -> Drawn {
    let (a, b) = (lots.below(4), 1 + lots.below(5));
    match lots.below(18) {
        0 => drawn(format!("{{ op = 'skip', rows = {a} }}"), move |data| data.skip(a)),
        1 => drawn(format!("{{ op = 'take', rows = {} }}", 20 + b), move |data| data.take(20 + b)),
        2 => drawn(format!("{{ op = 'shard', count = {b}, index = {a} }}"), move |data| data.shard(b, a)),
        3 => drawn(format!("{{ op = 'repeat', times = {b} }}"), move |data| data.repeat(b)),
        4 => drawn(format!("{{ op = 'shuffle', seed = {a} }}"), move |data| data.shuffle(Shuffle::seed(a))),
        5 => drawn("{ op = 'shuffle' }".into(), |data| data.shuffle(Shuffle::seed(1))),
        6 => drawn(format!("{{ op = 'shuffle', buffer = {} }}", 4000 * b), move |data| {
            data.shuffle_buffer(Shuffle::seed(1), Bytes(4000 * b))
        }),
        7 => drawn(format!("{{ op = 'filter', column = 'y', is = [{a}, {b}] }}"), move |data| {
            data.filter_where(Condition::on("y").is([a as f64, b as f64]))
        }),
        8 => drawn(format!("{{ op = 'filter', column = 'x', below = 0.{b}, not = 3 }}"), move |data| {
            data.filter_where(Condition::on("x").is_not([3.0]).number(Relation::Below, format!("0.{b}").parse().unwrap()))
        }),
        9 => drawn(format!("{{ op = 'take_while', column = 'y', at_most = {a}, at_least = 0 }}"), move |data| {
            data.take_while_where(Condition::on("y").number(Relation::AtLeast, 0.0).number(Relation::AtMost, a as f64))
        }),
        10 => drawn(format!("{{ op = 'enumerate', column = 'n{place}' }}"), move |data| data.enumerate(format!("n{place}"))),
        11 => drawn(format!("{{ op = 'window', size = {b}, shift = {}, stride = {} }}", a + 1, a / 2 + 1), move |data| {
            data.window(b as usize, a as usize + 1, a as usize / 2 + 1)
        }),
        12 => drawn("{ op = 'unbatch' }".into(), Dataset::unbatch),
        13 => drawn(format!("{{ op = 'bucket_by_length', column = 'y', bounds = [1, 3], rows = {b} }}"), move |data| {
            data.bucket_by_length("y", [1, 3], b as usize)
        }),
        14 => drawn(format!("{{ op = 'scale', by = {b} }}"), move |data| data.map("x", [scale(b as f32)])),
        15 => drawn("{ op = 'map', ops = [{ op = 'cast' }, { op = 'normalize', mean = 1, std = 2 }] }".into(), |data| {
            data.map("x", [cast_f32(), normalize(vec![1.0], vec![2.0])])
        }),
        16 => drawn("{ op = 'one_hot', classes = 4 }".into(), |data| data.map("y", [one_hot(4)])),
        _ => drawn(format!("{{ op = 'ignore_errors', cap = {a} }}"), move |data| data.ignore_errors(a)),
    }
}

/// A stage that says how rows are made or handed on.
fn last_stage(lots: &mut Draws) -> Drawn {
    let (a, b) = (lots.below(2) == 1, 1 + lots.below(5));
    match lots.below(6) {
        0 => drawn(format!("{{ op = 'batch', rows = {b}, drop_remainder = {a} }}"), move |data| {
            let data = data.batch(b as usize);
            if a { data.drop_remainder() } else { data }
        }),
        1 => drawn(format!("{{ op = 'padded_batch', rows = {b}, value = 2 }}"), move |data| {
            data.padded_batch(b as usize, PadTo::Declared, 2.0)
        }),
        2 => drawn(format!("{{ op = 'rebatch', rows = {b} }}"), move |data| data.rebatch(b as usize)),
        3 => drawn(format!("{{ op = 'prefetch', batches = {b} }}"), move |data| data.prefetch(Prefetch::Batches(b as usize))),
        4 => drawn(format!("{{ op = 'parallelism', threads = {b} }}"), move |data| data.parallelism(Parallelism::Threads(b as usize))),
        _ => drawn("{ op = 'scale', by = 3 }".into(), |data| data.map("x", [scale(3.0)])),
    }
}

/// All bytes of two epochs, batch by batch and column by column; or what is wrong.
fn bytes(data: &Dataset) -> Result<Vec<Vec<u8>>, DataError> {
    let plan = data.plan(None)?;
    let ledger = Ledger::new("host", None);
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(2), ..Options::default() })?;
    let mut all = Vec::new();
    for _ in 0..2 {
        while let Some(batch) = feed.next()? {
            all.extend((0..batch.columns()).map(|column| batch.column(column).to_vec()));
        }
        all.push(Vec::new());
    }
    Ok(all)
}

#[test]
fn any_list_is_the_same_calls_made_by_hand() {
    let source = "[data]\nsource = 'random'\nrows = 40\nx = [2]\nclasses = 4\nseed = 5\n";
    let (mut whole, mut refused, mut rows) = (0, 0, 0);
    for seed in 0..400 {
        let mut lots = Draws(seed);
        for _ in 0..4 {
            lots.below(2);
        }
        let mut stages: Vec<Drawn> = (0..lots.below(5) as usize).map(|place| row_stage(&mut lots, place)).collect();
        stages.extend((0..lots.below(4)).map(|_| last_stage(&mut lots)));
        let list: Vec<&str> = stages.iter().map(|(text, _)| text.as_str()).collect();
        let text = format!("{source}stages = [{}]", list.join(", "));
        let table: toml::Table = text.parse().unwrap();
        let read = datasets(&Reader::root(&table), Path::new(""), None, 1).map(|(training, _)| training);

        let made = Dataset::random(RandomSpec::new(40).seed(5).floats("x", [2]).labels("y", 4)).unwrap();
        let by_hand = stages.iter().enumerate().try_fold(made, |data, (place, (text, call))| {
            let data = call(data);
            data.output_schema().map(|_| data).map_err(|error| format!("`data.stages[{place}]` ({}): {error}", name(text)))
        });
        match (read, by_hand) {
            (Ok(read), Ok(by_hand)) => {
                let by_hand = if by_hand.batch_size().is_some() { by_hand } else { by_hand.batch(32) };
                assert_eq!(read.describe(), by_hand.describe(), "{text}");
                assert_eq!(read.size(), by_hand.size(), "{text}");
                let (read, by_hand) = (bytes(&read), bytes(&by_hand));
                assert_eq!(read.as_ref().map_err(ToString::to_string), by_hand.as_ref().map_err(ToString::to_string), "{text}");
                whole += 1;
                rows += read.map_or(0, |read| read.len());
            }
            (Err(read), Err(by_hand)) => {
                assert_eq!(read.to_string(), by_hand, "{text}");
                refused += 1;
            }
            (read, by_hand) => panic!("{text}: {:?} and by hand {:?}", read.map(|data| data.describe()), by_hand),
        }
    }
    assert!(whole > 200 && refused > 20 && rows > 2000, "{whole} lists, {refused} refused, {rows} columns of batches");
}
