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
    // Only the numbers that are there are looked at: row 0 has none, so nothing about it is wrong.
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
    // What was wrong before is told first.
    assert!(problem(digits().shard(2, 2).filter_where(Condition::on("z").is([1.0]))).starts_with("shard(2, 2) is none of 2"));
}
