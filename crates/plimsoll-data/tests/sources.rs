//! Embedded and synthetic rows.

use plimsoll_core::{DType, Ledger};
use plimsoll_data::ops::{cast_f32, normalize, scale};
use plimsoll_data::{Column, Dataset, Feed, Options, RandomSpec, Rows, Shuffle, Split};
use std::collections::HashSet;

/// All rows of one epoch; a row is the bytes of its columns.
fn rows(data: &Dataset) -> Vec<Vec<u8>> {
    let plan = data.plan(None).unwrap();
    let mut feed = Feed::start(data, &plan, &Ledger::new("host", None), Options { epochs: Some(1), ..Options::default() }).unwrap();
    let mut rows = Vec::new();
    while let Some(batch) = feed.next().unwrap() {
        for row in 0..batch.rows {
            let column = |index| {
                let bytes = batch.column(index);
                let size = bytes.len() / batch.rows;
                &bytes[row * size..][..size]
            };
            rows.push((0..batch.columns()).flat_map(column).copied().collect());
        }
    }
    rows
}

#[test]
fn digits_are_split_into_two_parts_of_one_whole() {
    let train = rows(&Dataset::digits(Split::Train).batch(100));
    let test = rows(&Dataset::digits(Split::Test).batch(100));
    assert_eq!((train.len(), test.len()), (1438, 359));
    // No two of the 1,797 digits are the same, so a row in both parts would show.
    let all: HashSet<&Vec<u8>> = train.iter().chain(&test).collect();
    assert_eq!(all.len(), 1797);
    for part in [&train, &test] {
        let mut classes = [0; 10];
        for row in part {
            assert!(row[..64].iter().all(|&pixel| pixel <= 16));
            assert_eq!(row[65..], [0; 3]);
            classes[usize::from(row[64])] += 1;
        }
        let even = part.len() / 10;
        assert!(classes.iter().all(|count| (even * 6 / 10..even * 14 / 10).contains(count)), "{classes:?}");
    }
}

#[test]
fn the_split_of_the_digits_never_changes() {
    let labels = |split| rows(&Dataset::digits(split).take(16).batch(16)).iter().map(|row| char::from(b'0' + row[64])).collect::<String>();
    insta::assert_snapshot!(labels(Split::Train), @"2891195610222574");
    insta::assert_snapshot!(labels(Split::Test), @"2174077251577073");
}

#[test]
fn a_random_row_is_the_same_in_any_order() {
    let spec = RandomSpec::new(1000).seed(3).floats("x", [5]).bytes("b", [3]).labels("y", 7);
    let data = Dataset::random(spec).unwrap();
    let mut in_order = rows(&data.clone().batch(32));
    let mut shuffled = rows(&data.clone().shuffle(Shuffle::seed(9)).batch(7));
    assert_ne!(in_order, shuffled);
    assert_eq!(rows(&data.skip(500).batch(10)), in_order[500..]);
    in_order.sort_unstable();
    shuffled.sort_unstable();
    assert_eq!(in_order, shuffled);
}

#[test]
fn random_values_are_spread_evenly_over_their_range() {
    let spec = RandomSpec::new(10_000).floats("x", [10]).labels("y", 7);
    let (mut tenths, mut classes, mut seeds) = ([0; 10], [0; 7], HashSet::new());
    for row in rows(&Dataset::random(spec.clone()).unwrap().batch(100)) {
        let (floats, label) = row.split_at(40);
        for bytes in floats.as_chunks().0 {
            let value = f32::from_ne_bytes(*bytes);
            assert!((0.0..1.0).contains(&value));
            tenths[(value * 10.0) as usize] += 1;
        }
        classes[usize::from(label[0])] += 1;
        seeds.insert(row);
    }
    assert!(tenths.iter().all(|count| (9_600..10_400).contains(count)), "{tenths:?}");
    assert!(classes.iter().all(|count| (1_300..1_560).contains(count)), "{classes:?}");
    assert_eq!(seeds.len(), 10_000, "no two rows are the same");
    assert!(rows(&Dataset::random(spec.seed(1)).unwrap().batch(100)).iter().all(|row| !seeds.contains(row)), "another seed, other rows");
}

/// The table of pointwise operations: what is given, what is done, what comes out.
#[test]
fn pointwise_operations_compute_what_they_say() {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    let ints = |values: &[i32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    let channels = normalize([1.0, 2.0, 3.0], [2.0, 4.0, 8.0]);
    for (op, dtype, input, expected) in [
        (cast_f32(), DType::U8, vec![0, 7, 255], vec![0.0, 7.0, 255.0]),
        (cast_f32(), DType::I32, ints(&[-5, 0, 1 << 20]), vec![-5.0, 0.0, 1_048_576.0]),
        (cast_f32(), DType::F32, bytes(&[0.5, -1.5, 2.0]), vec![0.5, -1.5, 2.0]),
        (scale(0.5), DType::U8, vec![0, 7, 255], vec![0.0, 3.5, 127.5]),
        (scale(0.5), DType::F32, bytes(&[1.0, -2.0, 3.0]), vec![0.5, -1.0, 1.5]),
        (normalize([1.0], [2.0]), DType::U8, vec![0, 7, 255], vec![-0.5, 3.0, 127.0]),
        (normalize([1.0], [2.0]), DType::F32, bytes(&[1.0, -2.0, 3.0]), vec![0.0, -1.5, 1.0]),
        (channels.clone(), DType::U8, vec![3, 6, 11], vec![1.0, 1.0, 1.0]),
        (channels, DType::F32, bytes(&[1.0, 0.0, 3.5]), vec![0.0, -0.5, 0.0625]),
    ] {
        // Enough rows that tables repeat and vectors have a remainder.
        let rows = 101;
        let column = Column::new("x", dtype, [3]);
        let (mut input, expected) = (input.repeat(rows), bytes(&expected).repeat(rows));
        assert_eq!(op.output(&column).unwrap(), Column::new("x", DType::F32, [3]));
        let mut output = vec![0; expected.len()];
        op.kernel(&column).run(Rows::From(0), &input, &mut output).unwrap();
        assert_eq!(output, expected, "{} of {dtype}", op.describe());
        if op.in_place(&column) {
            op.kernel(&column).run_in_place(Rows::From(0), &mut input).unwrap();
            assert_eq!(input, expected, "{} of {dtype} in place", op.describe());
        }
    }
}
