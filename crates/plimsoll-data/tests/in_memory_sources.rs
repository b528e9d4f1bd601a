//! Rows from memory, from closures and synthetic images.

use collect::{column, complaint, floats, ints, numbers};
use plimsoll_core::DType;
use plimsoll_data::source::ShapesSpec;
use plimsoll_data::{Column, DataError, Dataset, Parallelism, Schema, Shuffle, Tensor};
use std::path::Path;
use std::sync::Arc;

mod collect;

#[test]
fn tensors_are_shared_and_given_out_row_by_row() {
    let numbers: Arc<[f32]> = (0..12).map(|n| n as f32).collect();
    let x = Tensor::f32([4, 3], Arc::clone(&numbers)).unwrap();
    let data = Dataset::from_tensor_slices([("x", x), ("y", Tensor::u8([4], [7, 8, 9, 10]).unwrap())]).unwrap();
    assert_eq!(Arc::strong_count(&numbers), 2, "shared, not copied");
    assert_eq!(floats(&data.clone().batch(3), 0), [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0], [6.0, 7.0, 8.0], [9.0, 10.0, 11.0]]);
    let shuffled = data.shuffle(Shuffle::seed(1)).batch(3);
    let (x, y) = (floats(&shuffled, 0), column(&shuffled, 1, 0, None).unwrap());
    assert!(x.iter().zip(&y).all(|(x, y)| x[0] == f32::from(y[0] - 7) * 3.0), "rows stay together: {x:?} {y:?}");
    assert!(shuffled.plan(None).unwrap().stages().iter().any(|(name, bytes)| name == "tensors" && bytes.0 == 52));
}

#[test]
fn tensors_that_do_not_fit_together_are_refused() {
    let complaints = [
        complaint(Tensor::f32([2, 2], vec![1.0]), Path::new("/")),
        complaint(Dataset::from_tensor_slices([("x", Tensor::f32([], vec![1.0]).unwrap())]), Path::new("/")),
        complaint(
            Dataset::from_tensor_slices([("x", Tensor::u8([2], [1, 2]).unwrap()), ("y", Tensor::u8([1], [1]).unwrap())]),
            Path::new("/"),
        ),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    a tensor of shape [2, 2] cannot hold 1 numbers; give it the shape the numbers have
    column `x` is a single number and has no rows; give it a first dimension
    column `y` has 1 rows where column `x` has 2; give all columns as many
    ");
}

#[test]
fn a_range_counts_up_and_down() {
    let range = |start, stop, step| numbers(&Dataset::range(start, stop, step).unwrap().batch(4), 0);
    assert_eq!(range(2, 11, 3), [2, 5, 8]);
    assert_eq!(range(2, 12, 3), [2, 5, 8, 11]);
    assert_eq!(range(3, -3, -2), [3, 1, -1]);
    assert_eq!(range(0, 0, 1), [0; 0]);
    assert_eq!(Dataset::range(i32::MIN, i32::MAX, 1).unwrap().len(), u64::from(u32::MAX));
    assert_eq!(Dataset::range(0, 5, 0).err().unwrap().to_string(), "range(0, 5, 0) never ends; step by at least 1");
}

#[test]
fn a_function_makes_the_same_rows_on_any_thread() {
    let schema = Schema::new(vec![Column::new("x", DType::F32, [2]), Column::new("y", DType::I32, [])]).unwrap();
    let data = Dataset::from_fn(schema, 1000, |n, row| {
        if n % 2 == 0 {
            row.f32(0, &[n as f32, 0.5])?;
        }
        row.i32(1, &[n as i32])
    });
    let data = data.shuffle(Shuffle::seed(2)).batch(10);
    let (x, y) = (floats(&data, 0), numbers(&data, 1));
    assert!(x.iter().zip(&y).all(|(x, y)| *x == if y % 2 == 0 { [*y as f32, 0.5] } else { [0.0, 0.0] }));
    assert_eq!(numbers(&data.parallelism(Parallelism::Threads(4)), 1), y);
}

#[test]
fn a_function_that_fails_or_writes_the_wrong_thing_is_told() {
    let made = |make: fn(u64, &mut plimsoll_data::source::RowMut<'_, '_, '_>) -> Result<(), DataError>| {
        let schema = Schema::new(vec![Column::new("x", DType::F32, [2])]).unwrap();
        complaint(column(&Dataset::from_fn(schema, 10, make).batch(4), 0, 0, None), Path::new("/"))
    };
    let complaints = [
        made(|_, row| row.f32(0, &[1.0])),
        made(|_, row| row.i32(0, &[1, 2])),
        made(|_, row| row.f32(1, &[1.0])),
        made(|n, _| if n == 6 { Err(DataError::Stage("row 6 is not in the data base".into())) } else { Ok(()) }),
        made(|n, _| if n == 6 { panic!("row {n} is rotten") } else { Ok(()) }),
    ];
    insta::assert_snapshot!(complaints.join("\n"), @"
    column `x` is declared as x: f32[2], and 1 values of f32 were written to it
    column `x` is declared as x: f32[2], and 2 values of i32 were written to it
    column `1` is not there: the schema declares x: f32[2]
    row 6 is not in the data base
    a source or an operation panicked: row 6 is rotten; correct it if the code is yours, otherwise please report a bug
    ");
}

#[test]
fn shapes_are_where_their_mask_says() {
    let data = Dataset::shapes(ShapesSpec::new(200, 32, 48).seed(3)).unwrap();
    assert_eq!(data.output_schema().unwrap().columns()[1].classes.as_ref().unwrap()[3], "triangle");
    let batched = data.clone().batch(16);
    let (images, masks) = (column(&batched, 0, 0, None).unwrap(), ints(&batched, 1));
    let mut counts = [0usize; 4];
    for (image, mask) in images.iter().zip(&masks) {
        for (pixel, &class) in image.chunks_exact(3).zip(mask) {
            counts[class as usize] += 1;
            let bright = pixel.iter().all(|&channel| channel >= 128);
            assert_eq!(bright, class != 0, "shapes are bright and the ground is dark");
        }
    }
    let all = 200 * 32 * 48;
    assert!(counts.iter().all(|count| *count > all / 50), "{counts:?}");
    assert_eq!(
        column(&data.clone().parallelism(Parallelism::Threads(3)).batch(16), 0, 1, None).unwrap(),
        images,
        "epochs do not change them"
    );
    let other = Dataset::shapes(ShapesSpec::new(200, 32, 48).seed(4)).unwrap().batch(16);
    assert_ne!(column(&other, 0, 0, None).unwrap(), images);
}
