//! `resize` against `tf.image.resize`; `reference/make_resize.py` makes the expectations.

use plimsoll_core::DType;
use plimsoll_data::ops::{Method, resize};
use plimsoll_data::{Column, Rows};

fn numbers(line: &str) -> Vec<f32> {
    line.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

#[test]
fn agrees_with_tensorflow() {
    let lines: Vec<&str> = include_str!("reference/resize.txt").lines().collect();
    let mut seen = std::collections::BTreeSet::new();
    for case in lines.chunks_exact(3) {
        let words: Vec<&str> = case[0].split(' ').collect();
        let dims: Vec<usize> = words[2..].iter().map(|word| word.parse().unwrap()).collect();
        let method = Method::ALL.into_iter().find(|method| method.name() == words[0]).unwrap();
        seen.insert(words[0]);
        let (dtype, input) = match words[1] {
            "u8" => (DType::U8, numbers(case[1]).iter().map(|&value| value as u8).collect::<Vec<u8>>()),
            _ => (DType::F32, numbers(case[1]).iter().flat_map(|value| value.to_ne_bytes()).collect()),
        };
        let expected = numbers(case[2]);
        let peak = numbers(case[1]).iter().fold(1f32, |peak, value| peak.max(value.abs()));

        let op = resize(dims[3], dims[4], method);
        let column = Column::new("x", dtype, &dims[..3]);
        let output = op.output(&column).unwrap();
        assert_eq!(output.elements(), expected.len(), "{}", case[0]);
        // Two images in one call, so that nothing kept from the first may show in the second.
        let mut bytes = vec![0; 2 * output.row_bytes().get()];
        op.kernel(&column).run(Rows::From(0), &[input.clone(), input].concat(), &mut bytes).unwrap();
        let actual = bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes));
        for (index, (actual, expected)) in actual.zip(expected.iter().cycle()).enumerate() {
            // Sums over many pixels may be added in another order than TensorFlow's.
            let tolerance = match method {
                Method::Nearest => 0.0,
                Method::Bilinear => 1e-6 * expected.abs().max(1.0),
                _ => 2e-6 * peak,
            };
            assert!((actual - expected).abs() <= tolerance, "{}: element {index} is {actual}, not {expected}", case[0]);
        }
    }
    assert_eq!(seen.len(), Method::ALL.len());
}
