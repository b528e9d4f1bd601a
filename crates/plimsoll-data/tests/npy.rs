//! `.npy` files: what is read, and what each kind of bad file is reported.

mod npy_file;

use npy_file::{write, write_raw};
use plimsoll_core::{Bytes, Ledger};
use plimsoll_data::{DataError, Dataset, Feed, Options, Shuffle};
use std::fs;
use std::path::Path;
use tempfile::tempdir;

/// All bytes of one epoch, column by column.
fn epoch(data: &Dataset) -> Result<Vec<Vec<u8>>, DataError> {
    epoch_in(data, None)
}

/// The same within a limit.
fn epoch_in(data: &Dataset, limit: Option<Bytes>) -> Result<Vec<Vec<u8>>, DataError> {
    let (plan, ledger) = (data.plan(limit)?, Ledger::new("host", limit));
    let mut feed = Feed::start(data, &plan, &ledger, Options { epochs: Some(1), ..Options::default() })?;
    let mut columns = vec![Vec::new(); data.output_schema()?.columns().len()];
    while let Some(batch) = feed.next()? {
        for (index, column) in columns.iter_mut().enumerate() {
            column.extend(batch.column(index));
        }
    }
    Ok(columns)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

fn ints(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect()
}

/// The text of the error, with the directory left out of paths.
fn refusal<T: std::fmt::Debug>(result: Result<T, DataError>, directory: &Path) -> String {
    result.unwrap_err().to_string().replace(&format!("{}/", directory.display()), "")
}

#[test]
fn every_element_type_arrives_as_the_consumer_gets_it() {
    let dir = tempdir().unwrap();
    let whole = [3i8, -2, 100];
    for (descr, data, column) in [
        ("<f8", bytes_of!([0.5f64, -1e300, 1.0 / 3.0]), "f32[]"),
        ("<f4", bytes_of!([0.5f32, f32::NEG_INFINITY, 1.0 / 3.0]), "f32[]"),
        ("<f2", bytes_of!([0x3800u16, 0xFC00, 0x3555]), "f32[]"),
        ("|i1", bytes_of!(whole), "i32[]"),
        ("<i2", bytes_of!(whole.map(i16::from)), "i32[]"),
        ("<i4", bytes_of!(whole.map(i32::from)), "i32[]"),
        ("<i8", bytes_of!(whole.map(i64::from)), "i32[]"),
        ("<u2", bytes_of!([3u16, 65_535, 100]), "i32[]"),
        ("<u4", bytes_of!([3u32, 2_147_483_647, 100]), "i32[]"),
        ("|u1", vec![3, 254, 100], "u8[]"),
    ] {
        let path = write(dir.path(), "x.npy", descr, &[3], &data);
        let data = Dataset::npy(&[("x", path)]).unwrap().batch(2);
        assert_eq!(data.output_schema().unwrap().to_string(), format!("x: {column}"), "{descr}");
        let column = epoch(&data).unwrap().remove(0);
        match descr {
            "<f8" | "<f4" => assert_eq!(floats(&column), [0.5, f32::NEG_INFINITY, 1.0 / 3.0]),
            "<f2" => assert_eq!(floats(&column), [0.5, f32::NEG_INFINITY, 0.333_251_95]),
            "<u2" => assert_eq!(ints(&column), [3, 65_535, 100]),
            "<u4" => assert_eq!(ints(&column), [3, i32::MAX, 100]),
            "|u1" => assert_eq!(column, [3, 254, 100]),
            _ => assert_eq!(ints(&column), [3, -2, 100], "{descr}"),
        }
    }
}

#[test]
fn all_three_header_versions_are_read() {
    let dir = tempdir().unwrap();
    for version in 1..=3 {
        let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }          ";
        let path = write_raw(dir.path(), "x.npy", version, header, &bytes_of!([1f32, 2.0, 3.0, 4.0]));
        let data = Dataset::npy(&[("x", path)]).unwrap().batch(2);
        assert_eq!(floats(&epoch(&data).unwrap()[0]), [1.0, 2.0, 3.0, 4.0]);
    }
}

/// Rows close together, far apart, converted and not, wide and narrow: gathering must give what reading gives.
#[test]
fn gathered_rows_are_the_rows_that_were_asked_for() {
    let dir = tempdir().unwrap();
    let rows = 3000usize;
    let wide = write(dir.path(), "wide.npy", "<f4", &[rows, 1100], &bytes_of!((0..rows * 1100).map(|i| i as f32)));
    let cast = write(dir.path(), "cast.npy", "<f8", &[rows, 3], &bytes_of!((0..rows * 3).map(|i| i as f64)));
    let label = write(dir.path(), "label.npy", "<i4", &[rows], &bytes_of!(0..rows as i32));
    let data = Dataset::npy(&[("wide", wide), ("cast", cast), ("label", label)]).unwrap();
    let mut orders = Vec::new();
    for data in [data.clone().batch(64), data.clone().shuffle(Shuffle::seed(3)).batch(64), data.skip(1).shuffle(Shuffle::seed(3)).batch(7)]
    {
        let columns = epoch(&data).unwrap();
        let order = ints(&columns[2]);
        assert_eq!(order.len() as u64, data.len());
        for (place, &row) in order.iter().enumerate() {
            assert_eq!(floats(&columns[1][place * 12..][..12]), [row * 3, row * 3 + 1, row * 3 + 2].map(|value| value as f32));
            assert_eq!(floats(&columns[0][place * 4400..][..4]), [(row * 1100) as f32]);
        }
        orders.push(order);
    }
    assert!(orders[0].is_sorted());
    assert!(!orders[1].is_sorted());
    orders[1].sort_unstable();
    assert_eq!(orders[1], orders[0]);
}

#[test]
fn bad_files_are_told_apart() {
    let dir = tempdir().unwrap();
    let at = dir.path();
    let open = |path| refusal(Dataset::npy(&[("x", path)]), at);
    let header = |descr: &str, order: &str, shape: &str| format!("{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}");
    let file = |header: &str| write_raw(at, "x.npy", 1, header, &[0; 64]);

    insta::assert_snapshot!(open(write(at, "x.npy", "<f8", &[3, 4], &[0; 90])), @"x.npy is truncated: its header promises 168 bytes and it has 162; copy or write it again");
    insta::assert_snapshot!(open(write(at, "x.npy", "<c8", &[2], &[0; 16])), @"x.npy cannot be read as .npy: its elements are `<c8`, which is not supported; convert it with array.astype to one of f2, f4, f8, i1, u1, i2, u2, i4, u4, i8, bool");
    insta::assert_snapshot!(open(file(&header("[('a', '<f4')]", "False", "(2,)"))), @"x.npy cannot be read as .npy: its elements are records of several fields; save one plain array for each column");
    insta::assert_snapshot!(open(file(&header("'<f4'", "False", "()"))), @"x.npy cannot be read as .npy: it holds a single number; save an array whose first dimension is the row");
    insta::assert_snapshot!(open(file(&header("'<f4'", "False", "(99999999999, 99999999999)"))), @"x.npy cannot be read as .npy: its shape [99999999999, 99999999999] is larger than any file");
    insta::assert_snapshot!(open(file("{'descr': '<f4'}")), @"x.npy cannot be read as .npy: its header is not the dictionary numpy.save writes; the file is damaged");
    insta::assert_snapshot!(open(write_raw(at, "x.npy", 9, "", &[])), @"x.npy cannot be read as .npy: its format version 9 is unknown; save it as version 1, 2 or 3");
    fs::write(at.join("x.npy"), b"PK\x03\x04 and more than that").unwrap();
    insta::assert_snapshot!(open(at.join("x.npy")), @"x.npy cannot be read as .npy: it does not begin with the .npy magic number; save it with numpy.save");
    fs::write(at.join("x.npy"), b"\x93NUM").unwrap();
    insta::assert_snapshot!(open(at.join("x.npy")), @"x.npy cannot be read as .npy: it ends inside its header; copy or write it again");
    fs::write(at.join("x.npy"), b"\x93NUMPY\x02\x00\xFF\xFF\xFF\x7F").unwrap();
    insta::assert_snapshot!(open(at.join("x.npy")), @"x.npy cannot be read as .npy: its header claims 2147483647 bytes, more than the 65536 one may have; the file is damaged");
    insta::assert_snapshot!(open(write(at, "x.npy", "<f4", &[5, 0], &[])), @"column `x` has rows of shape [0], which hold nothing; leave the column out");
}

#[test]
fn files_of_one_data_set_have_as_many_rows() {
    let dir = tempdir().unwrap();
    let x = write(dir.path(), "x.npy", "|u1", &[4, 2], &[0; 8]);
    let y = write(dir.path(), "y.npy", "|u1", &[3], &[0; 3]);
    insta::assert_snapshot!(refusal(Dataset::npy(&[("x", &x), ("y", &y)]), dir.path()), @"x.npy has 4 rows but y.npy has 3; columns of one data set need the same number of rows");
    insta::assert_snapshot!(refusal(Dataset::npy::<&Path>(&[]), dir.path()), @"a data set of .npy files needs at least one file; name one for each column");
    insta::assert_snapshot!(refusal(Dataset::npy(&[("x", &x), ("x", &x)]), dir.path()), @"column `x` appears twice; give each column its own name");
}

#[test]
fn numbers_that_do_not_fit_are_named() {
    let dir = tempdir().unwrap();
    let y = write(dir.path(), "y.npy", "<i8", &[3, 2], &bytes_of!([0i64, 1, 2, 3, 4, 5_000_000_000]));
    let data = Dataset::npy(&[("y", &y)]).unwrap();
    insta::assert_snapshot!(refusal(epoch(&data.clone().batch(2)), dir.path()), @"y.npy holds 5000000000 in row 2, which does not fit i32; store smaller numbers or use a float type");
    let shuffled = epoch(&data.shuffle(Shuffle::seed(1)).batch(2));
    insta::assert_snapshot!(refusal(shuffled, dir.path()), @"y.npy holds 5000000000 in row 2, which does not fit i32; store smaller numbers or use a float type");
}

#[test]
fn a_file_cut_after_it_was_opened_is_an_error_with_its_row() {
    let dir = tempdir().unwrap();
    let x = write(dir.path(), "x.npy", "<f4", &[4, 2], &[0; 32]);
    let data = Dataset::npy(&[("x", &x)]).unwrap().batch(4);
    fs::OpenOptions::new().write(true).open(&x).unwrap().set_len(70).unwrap();
    insta::assert_snapshot!(refusal(epoch(&data), dir.path()), @"cannot read row 0 of x.npy: failed to fill whole buffer");
}

#[test]
fn no_rows_are_no_batches() {
    let dir = tempdir().unwrap();
    let x = write(dir.path(), "x.npy", "<f8", &[0, 10], &[]);
    let data = Dataset::npy(&[("x", &x)]).unwrap();
    assert_eq!(epoch(&data.clone().batch(32)).unwrap(), [[0u8; 0]]);
    assert_eq!(epoch(&data.shuffle(Shuffle::seed(1)).batch(32)).unwrap(), [[0u8; 0]]);
}

/// Elements of a row are spread over the file: whatever the order and the budget, rows are those of the same array in C
/// order.
#[test]
fn rows_in_fortran_order_are_collected_under_any_budget() {
    let dir = tempfile::tempdir().unwrap();
    let (rows, columns) = (5000usize, 3usize);
    let value = |row: usize, column: usize| (row * columns + column) as f32;
    let c: Vec<u8> = (0..rows * columns).flat_map(|n| value(n / columns, n % columns).to_le_bytes()).collect();
    let fortran: Vec<u8> = (0..rows * columns).flat_map(|n| value(n % rows, n / rows).to_be_bytes()).collect();
    let plain = write(dir.path(), "c.npy", "<f4", &[rows, columns], &c);
    let header = format!("{{'descr': '>f4', 'fortran_order': True, 'shape': ({rows}, {columns}), }}");
    let spread = write_raw(dir.path(), "f.npy", 1, &header, &fortran);
    for shuffled in [false, true] {
        let data = |path: &Path| {
            let data = Dataset::npy(&[("x", path)]).unwrap();
            if shuffled { data.shuffle(Shuffle::seed(3)).batch(64) } else { data.skip(17).batch(64) }
        };
        let expected = epoch(&data(&plain)).unwrap();
        assert_eq!(epoch(&data(&spread)).unwrap(), expected);
        // With memory for all rows, and without.
        let Err(DataError::OverLimit { minimum, .. }) = data(&spread).plan(Some(Bytes(1))) else { panic!("one byte suffices") };
        assert!(minimum < Bytes::mib(1), "{minimum}");
        assert_eq!(epoch_in(&data(&spread), Some(minimum)).unwrap(), expected);
    }
}
