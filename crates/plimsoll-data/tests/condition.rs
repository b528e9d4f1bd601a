//! Conditions: they keep what a closure that says the same keeps, and say what they are.

use collect::column;
use plimsoll_core::DType;
use plimsoll_data::{Column, Condition, Dataset, Relation, Row, Schema, Split, Tensor};

mod collect;

fn all(data: Dataset) -> Vec<Vec<u8>> {
    column(&data.batch(7), 0, 0, None).unwrap()
}

/// That a condition and a closure keep the same rows, filtered and up to the first that is not kept; some, but not all.
fn check(data: &Dataset, condition: Condition, keep: impl Fn(&Row<'_>) -> bool + Clone + Send + Sync + 'static) {
    let kept = all(data.clone().filter_where(condition.clone()));
    assert_eq!(kept, all(data.clone().filter(keep.clone())), "{condition}");
    assert!(!kept.is_empty() && (kept.len() as u64) < data.len(), "{condition} keeps {} rows", kept.len());
    assert_eq!(all(data.clone().take_while_where(condition.clone())), all(data.clone().take_while(keep)), "{condition}");
}

#[test]
fn conditions_keep_what_closures_keep() {
    let numbers = Dataset::range(-50, 50, 1).unwrap();
    check(&numbers, Condition::on("x").is([3.0, -7.0, 1000.0]), |row| [3, -7].contains(&row.int("x")));
    check(&numbers, Condition::on("x").is_not([3.0, -7.0]), |row| ![3, -7].contains(&row.int("x")));
    check(&numbers, Condition::on("x").number(Relation::Below, 3.5), |row| row.int("x") <= 3);
    check(&numbers, Condition::on("x").number(Relation::Above, -3.0), |row| row.int("x") > -3);
    check(&numbers, Condition::on("x").number(Relation::AtLeast, -3.0), |row| row.int("x") >= -3);
    check(&numbers, Condition::on("x").number(Relation::AtMost, 0.0), |row| row.int("x") <= 0);
    let several = Condition::on("x").number(Relation::AtLeast, -10.0).number(Relation::Below, 10.0).is_not([0.0]);
    check(&numbers, several, |row| (-10..10).contains(&row.int("x")) && row.int("x") != 0);

    // Of several numbers, each has to be so.
    let digits = Dataset::digits(Split::Test);
    check(&digits, Condition::on("x").number(Relation::Below, 16.0), |row| row.numbers("x").all(|pixel| pixel < 16.0));
    check(&digits, Condition::on("x").is_not([13.0]), |row| row.numbers("x").all(|pixel| pixel != 13.0));
}

#[test]
fn numbers_are_compared_as_they_are_kept() {
    // Single precision cannot tell these apart.
    let large = Dataset::range(16_777_210, 16_777_230, 1).unwrap();
    check(&large, Condition::on("x").is([16_777_217.0]), |row| row.int("x") == 16_777_217);
    check(&large, Condition::on("x").number(Relation::Above, 16_777_216.0), |row| row.int("x") > 16_777_216);
    // 0.1 is what it is in single precision; what is no number is nothing, and so none of those that are named.
    let values = [0.1f32, f32::NAN, -0.0, f32::INFINITY, 0.2, 0.1];
    let reals = Dataset::from_tensor_slices([("x", Tensor::f32([6], values).unwrap())]).unwrap();
    let count = |condition: Condition| all(reals.clone().filter_where(condition)).len();
    assert_eq!(count(Condition::on("x").is([0.1])), 2);
    assert_eq!(count(Condition::on("x").is_not([0.1])), 4);
    assert_eq!(count(Condition::on("x").number(Relation::AtMost, 0.1)), 3);
    assert_eq!(count(Condition::on("x").number(Relation::Above, 0.1)), 2);
    assert_eq!(count(Condition::on("x").is([0.0])), 1);
    assert_eq!(count(Condition::on("x").is([])), 0);
}

#[test]
fn rows_are_chosen_by_their_length() {
    let schema = Schema::new(vec![Column::up_to("x", DType::I32, [9])]).unwrap();
    let words =
        Dataset::from_generator(schema, |_| (0..40).map(|n: usize| Ok(vec![Tensor::i32([n * 7 % 10], vec![n as i32; n * 7 % 10])?])));
    let lengths = |condition: Condition| {
        let data = words.clone().filter_where(condition).map("x", [plimsoll_data::ops::fill(-1.0)]);
        let rows = all(data);
        rows.iter().map(|row| row.chunks(4).filter(|number| **number != (-1i32).to_ne_bytes()).count()).collect::<Vec<usize>>()
    };
    let expected = |keep: fn(usize) -> bool| (0..40usize).map(|n| n * 7 % 10).filter(|length| keep(*length)).collect::<Vec<_>>();
    assert_eq!(lengths(Condition::on("x").length(Relation::Below, 3)), expected(|length| length < 3));
    assert_eq!(
        lengths(Condition::on("x").length(Relation::Above, 3).length(Relation::AtMost, 7)),
        expected(|length| length > 3 && length <= 7)
    );
    assert_eq!(lengths(Condition::on("x").length(Relation::AtLeast, 9)), expected(|length| length >= 9));
    // Only the numbers that are there are inspected: row 0 has none, so nothing about it is wrong.
    assert_eq!(lengths(Condition::on("x").is([0.0, 1.0])), [0, 7, 0, 0, 0]);
}

#[test]
fn conditions_say_what_they_are_and_what_they_cannot_be_asked_of() {
    let condition = Condition::on("y").is([1.0, 2.5]).is_not([7.0]).number(Relation::AtLeast, -1.0).length(Relation::Below, 3);
    assert_eq!(condition.to_string(), "y is 1 or 2.5 and y is not 7 and y at least -1 and length of y below 3");
    let digits = || Dataset::digits(Split::Test);
    let problem = |data: Dataset| data.output_schema().unwrap_err().to_string();
    assert_eq!(problem(digits().filter_where(Condition::on("z").is([1.0]))), "there is no column `z` to look at; the columns are x, y");
    assert_eq!(
        problem(digits().take_while_where(Condition::on("y").length(Relation::Below, 3))),
        "column `y` is to be asked for its length, and its rows are all of one; leave that out"
    );
    // What was wrong before is reported first.
    assert!(problem(digits().shard(2, 2).filter_where(Condition::on("z").is([1.0]))).starts_with("shard(2, 2) is none of 2"));
}

/// Rows of two elements of a type that no file is read as, written as bytes.
fn stored(dtype: DType, rows: [[Vec<u8>; 2]; 3]) -> Dataset {
    let schema = Schema::new(vec![Column::new("x", dtype, [2])]).unwrap();
    Dataset::from_fn(schema, 3, move |n, row| {
        row.bytes(0).copy_from_slice(&rows[n as usize].concat());
        Ok(())
    })
}

#[test]
fn elements_of_every_type_are_numbers() {
    let values = [[0.5, -2.0], [3.0, 3.0], [1024.0, 0.25]];
    let bytes = |dtype: DType| {
        values.map(|row| {
            row.map(|value: f64| match dtype {
                DType::F64 => value.to_ne_bytes().to_vec(),
                DType::F32 => (value as f32).to_ne_bytes().to_vec(),
                DType::BF16 => (((value as f32).to_bits() >> 16) as u16).to_ne_bytes().to_vec(),
                DType::F16 => match value {
                    0.5 => 0x3800u16,
                    -2.0 => 0xC000,
                    3.0 => 0x4200,
                    1024.0 => 0x6400,
                    _ => 0x3400,
                }
                .to_ne_bytes()
                .to_vec(),
                DType::I64 => (value as i64).to_ne_bytes().to_vec(),
                DType::I32 => (value as i32).to_ne_bytes().to_vec(),
                DType::U8 => vec![value as u8],
                DType::Bool => vec![u8::from(value != 0.0)],
            })
        })
    };
    for dtype in [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I64, DType::I32, DType::U8] {
        let held = move |value: f64| match dtype {
            DType::U8 => f64::from(value as u8),
            DType::I32 | DType::I64 => value.trunc(),
            _ => value,
        };
        let data = stored(dtype, bytes(dtype));
        let kept = |data: Dataset| data.batch(1).count_rows().unwrap();
        for row in values {
            let is = move |at: &Row<'_>| at.numbers("x").eq(row.map(held));
            assert_eq!(kept(data.clone().filter(is)), 1, "{dtype} {row:?}");
        }
        assert_eq!(kept(data.clone().filter_where(Condition::on("x").is([3.0]))), 1, "{dtype}");
        // 1024 as a byte is 255, which a cast of floats saturates to.
        let at_most_3 = values.iter().filter(|row| row.iter().all(|value| held(*value) <= 3.0)).count() as u64;
        assert_eq!(kept(data.clone().filter_where(Condition::on("x").number(Relation::AtMost, 3.0))), at_most_3, "{dtype}");
        assert_eq!(kept(data.clone().filter_where(Condition::on("x").is_not([3.0, held(1024.0)]))), 1, "{dtype}");
        let first = data.filter(|row| row.int("x") == 3).batch(1).count_rows();
        match dtype.is_float() {
            true => {
                assert_eq!(first.unwrap_err().to_string(), format!("column `x` holds {dtype} and is read as an integer; use Row::numbers"))
            }
            false => assert_eq!(first.unwrap(), 1, "{dtype}"),
        }
    }
}

#[test]
fn truth_values_are_zero_and_one() {
    let data = stored(DType::Bool, [[0, 1], [1, 1], [0, 0]].map(|row| row.map(|value: u8| vec![value])));
    let kept = |data: Dataset| data.batch(1).count_rows().unwrap();
    assert_eq!(kept(data.clone().filter_where(Condition::on("x").is([1.0]))), 1);
    assert_eq!(kept(data.clone().filter_where(Condition::on("x").number(Relation::AtMost, 0.0))), 1);
    assert_eq!(kept(data.filter(|row| row.numbers("x").eq([0.0, 1.0]))), 1);
}

#[test]
fn large_integers_are_read_exactly() {
    let large = [i64::MAX, 1 << 40, (1 << 53) - 1];
    let data = stored(DType::I64, large.map(|value| [value.to_ne_bytes().to_vec(), value.to_ne_bytes().to_vec()]));
    for value in large {
        assert_eq!(data.clone().filter(move |row| row.int("x") == value).batch(1).count_rows().unwrap(), 1);
    }
    assert_eq!(data.filter_where(Condition::on("x").is([9_007_199_254_740_991.0])).batch(1).count_rows().unwrap(), 1);
}

#[test]
fn a_mistyped_column_is_named_with_the_columns_there_are() {
    let digits = || Dataset::digits(Split::Test);
    let schema = || Schema::new(vec![Column::new("x", DType::F32, [2])]).unwrap();
    let one = |n: u64| Dataset::range(n as i32, n as i32 + 1, 1);
    let number = Schema::new(vec![Column::new("x", DType::I32, [])]).unwrap();
    let cases = [
        digits().filter(|row| row.int("label") == 3),
        digits().filter(|row| row.numbers("image").all(|pixel| pixel > 0.0)),
        digits().take_while(|row| row.bytes("label").len() == 4),
        digits().map("x", [plimsoll_data::ops::scale(0.5)]).filter(|row| row.int("x") == 3),
        digits().flat_map(number, plimsoll_core::Bytes::mib(1), move |row| one(row.int("label") as u64)),
        Dataset::from_fn(schema(), 3, |_, row| row.f32(1, &[0.0, 1.0])),
        Dataset::from_fn(schema(), 3, |_, row| row.i32(0, &[0, 1])),
        Dataset::from_fn(schema(), 3, |_, row| {
            row.bytes(1).fill(0);
            Ok(())
        }),
        Dataset::from_generator(schema(), |_| [Ok(vec![Tensor::i32([2], [1, 2]).unwrap()])].into_iter()),
    ];
    let errors = cases.map(|data| data.batch(4).count_rows().unwrap_err().to_string());
    insta::assert_snapshot!(errors.join("\n"), @"
    there is no column `label`; the columns are x, y
    there is no column `image`; the columns are x, y
    there is no column `label`; the columns are x, y
    column `x` holds f32 and is read as an integer; use Row::numbers
    there is no column `label`; the columns are x, y
    column `1` is not there: the schema declares x: f32[2]
    column `x` is declared as x: f32[2], and 2 values of i32 were written to it
    column `1` is not there: the schema declares x: f32[2]
    column `x` is declared as x: f32[2], and i32[2] was given for it
    ");
}
