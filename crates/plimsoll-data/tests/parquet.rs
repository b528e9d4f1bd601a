//! Parquet files, written by `reference/make_parquet.py`.

use collect::{column, complaint, floats, ints, numbers};
use plimsoll_core::Bytes;
use plimsoll_data::source::ParquetSpec;
use plimsoll_data::{DataError, Dataset, Shuffle};
use std::fs;
use std::path::{Path, PathBuf};

mod collect;

fn reference(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference").join(name)
}

fn open(name: &str, spec: &ParquetSpec) -> Result<Dataset, DataError> {
    Dataset::parquet(reference(name), spec)
}

#[test]
fn every_way_of_writing_gives_the_same_rows() {
    let spec = ParquetSpec::new().features(["third", "even", "whole", "half"]).targets(["few"]);
    for name in ["plain.parquet", "snappy.parquet", "gzip.parquet"] {
        let data = open(name, &spec).unwrap();
        assert_eq!((data.size(), data.output_schema().unwrap().to_string()), (Some(300), "x: f32[4], y: i32[]".to_string()));
        let data = data.batch(7);
        let row = |row: i32| vec![row as f32 / 3.0, f32::from(row % 2 == 0), (row * 7 - 100) as f32, row as f32 / 2.0];
        assert_eq!(floats(&data, 0), (0..300).map(row).collect::<Vec<_>>(), "{name}");
        assert_eq!(numbers(&data, 1), (0..300).map(|row| row % 5).collect::<Vec<_>>(), "{name}");
        let least = data.plan(None).unwrap().minimum();
        // 96 KiB of it are for the errors of 300 rows, all of which may be bad.
        assert!(least < Bytes::mib(1) + Bytes::kib(96), "a page of each column and no more: {least}");
        assert_eq!(column(&data, 0, 3, Some(least)).unwrap(), column(&data, 0, 3, None).unwrap());
    }
}

#[test]
fn columns_and_groups_are_chosen() {
    let all = open("snappy.parquet", &ParquetSpec::new().targets(["half", "third"])).unwrap();
    assert_eq!(all.output_schema().unwrap().to_string(), "x: f32[5], y: f32[2]");
    assert_eq!(floats(&all.clone().batch(300), 0)[9], [4.0, 0.0, -37.0, 9.0, 9.0], "lists of one length are features");
    assert_eq!(floats(&all.batch(300), 1)[9], [4.5, 3.0]);
    let zstd = open("zstd.parquet", &ParquetSpec::new()).unwrap();
    assert_eq!(floats(&zstd.batch(2), 0), [[0.0], [0.5], [1.0]]);
    let last = open("gzip.parquet", &ParquetSpec::new().features(["half"]).targets(["whole"]).row_groups(1..3)).unwrap();
    assert_eq!(last.size(), Some(180));
    assert_eq!(ints(&last.clone().batch(50), 1)[0], [740]);
    let mut shuffled: Vec<i32> = numbers(&last.shuffle(Shuffle::seed(1)).batch(50), 1);
    assert_ne!(shuffled[0], 740);
    shuffled.sort_unstable();
    assert_eq!(shuffled, (120..300).map(|row| row * 7 - 100).collect::<Vec<_>>());
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let whole = fs::read(reference("snappy.parquet")).unwrap();
    let half = ParquetSpec::new().features(["half"]);
    let told = |outcome: Result<Dataset, DataError>| {
        complaint(outcome.and_then(|data| column(&data.batch(9), 0, 0, None)), reference("any").parent().unwrap())
    };
    let damaged = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        complaint(Dataset::parquet(&path, &half).and_then(|data| column(&data.batch(9), 0, 0, None)), folder.path())
    };
    let mut page = whole.clone();
    page[60..90].fill(0xFF);
    let complaints = [
        told(open("snappy.parquet", &ParquetSpec::new().features(["hlaf"]))),
        told(open("snappy.parquet", &half.clone().row_groups(2..9))),
        told(open("holes.parquet", &half)),
        damaged("cut.parquet", &whole[..whole.len() - 9]),
        damaged("start.parquet", &whole[..40]),
        damaged("end.parquet", &whole[whole.len() - 60..]),
        damaged("page.parquet", &page),
        damaged("empty.parquet", b""),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    snappy.parquet cannot be read as Parquet: it has no column `hlaf`; its columns are half, name, third, few, even, whole, pairs
    snappy.parquet cannot be read as Parquet: it has 3 groups of rows, and 2..9 were asked for
    holes.parquet, row 1 (the first is 0): column `half` is empty; fill missing values (`missing`), or leave the row or the column out
    cut.parquet cannot be read as Parquet: it is no Parquet file, or its end is cut off
    start.parquet cannot be read as Parquet: it is no Parquet file, or its end is cut off
    end.parquet cannot be read as Parquet: its end cannot be read; the file is damaged or cut off, copy or write it again
    page.parquet, the record at byte 4: a page of column `half` cannot be unpacked (its Snappy data is broken)
    empty.parquet cannot be read as Parquet: it is no Parquet file
    ");
}
