//! Operations on images against `tf.image`; `reference/make_images.py` makes the expectations.

use plimsoll_core::DType;
use plimsoll_data::ops::{Op, brightness, contrast, crop_or_pad, grey, hue, rot90, rotate, saturation, standardize};
use plimsoll_data::{Column, Rows};
use std::sync::Arc;

fn numbers(line: &str) -> Vec<f32> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

fn op(name: &str, arguments: &[f32]) -> Arc<dyn Op> {
    match (name, arguments) {
        ("brightness", &[by]) => brightness(by),
        ("contrast", &[by]) => contrast(by),
        ("saturation", &[by]) => saturation(by),
        ("hue", &[by]) => hue(by),
        ("grey", []) => grey(),
        ("standardize", []) => standardize(),
        ("rot90", &[quarters]) => rot90(quarters as u32),
        ("crop_or_pad", &[height, width]) => crop_or_pad(height as usize, width as usize, 0.0),
        ("rotate", &[degrees, fill]) => rotate(degrees, fill),
        other => panic!("{other:?} is not known"),
    }
}

/// Two images in one call, so that nothing kept from the first may show in the second.
fn run(op: &dyn Op, column: &Column, input: &[u8]) -> (Column, Vec<u8>) {
    let output = op.output(column).unwrap();
    let twice = [input, input].concat();
    if op.in_place(column) {
        let mut bytes = twice;
        op.kernel(column).run_in_place(Rows::From(0), &mut bytes).unwrap();
        return (output, bytes);
    }
    let mut bytes = vec![0xAA; 2 * output.row_bytes().get()];
    op.kernel(column).run(Rows::From(0), &twice, &mut bytes).unwrap();
    (output, bytes)
}

#[test]
fn agrees_with_tensorflow() {
    let lines: Vec<&str> = include_str!("reference/images.txt").lines().collect();
    let mut seen = std::collections::BTreeSet::new();
    for case in lines.chunks_exact(3) {
        let (call, kind) = case[0].split_once(" : ").unwrap();
        let (name, arguments) = call.split_once(' ').unwrap_or((call, ""));
        let (dtype, shape) = kind.split_once(' ').unwrap();
        let shape: Vec<usize> = numbers(shape).iter().map(|&side| side as usize).collect();
        let (dtype, input) = match dtype {
            "u8" => (DType::U8, numbers(case[1]).iter().map(|&value| value as u8).collect::<Vec<u8>>()),
            _ => (DType::F32, numbers(case[1]).iter().flat_map(|value| value.to_ne_bytes()).collect()),
        };
        let (output, bytes) = run(&*op(name, &numbers(arguments)), &Column::new("x", dtype, &shape[..]), &input);
        let expected = numbers(case[2]);
        assert_eq!(output.elements(), expected.len(), "{}", case[0]);
        let actual: Vec<f32> = match output.dtype {
            DType::U8 => bytes.iter().map(|&byte| f32::from(byte)).collect(),
            _ => bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect(),
        };
        for (index, (actual, expected)) in actual.iter().zip(expected.iter().cycle()).enumerate() {
            // Where a value is cut off to an integer, the last bit of the arithmetic may decide.
            let tolerance = if output.dtype == DType::U8 && name != "rot90" { 1.0 } else { 3e-6 };
            assert!((actual - expected).abs() <= tolerance, "{}: element {index} is {actual}, not {expected}", case[0]);
        }
        if output.dtype == DType::U8 {
            let off = actual.iter().zip(expected.iter().cycle()).filter(|(actual, expected)| actual != expected).count();
            assert!(off * 20 <= actual.len(), "{}: {off} of {} elements differ by one", case[0], actual.len());
        }
        seen.insert(name);
    }
    assert_eq!(seen.len(), 9, "{seen:?}");
}
