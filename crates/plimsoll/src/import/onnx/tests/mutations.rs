//! Damaged files: whatever is in them, importing gives a model or an error.

use super::folder;
use super::nodes::from_archive;
use crate::import::onnx;
use plimsoll_formats::FormatError;
use plimsoll_formats::onnx::OnnxModel;
use plimsoll_formats::source::Region;
use std::fs::File;

/// The next of a sequence of random numbers.
fn draw(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn attempt(bytes: Vec<u8>) -> bool {
    let mut external = |name: &str| {
        let file = File::open(folder().join(name)).and_then(Region::file);
        file.map_err(|error| FormatError::Damaged(error.to_string()))
    };
    let Ok(saved) = OnnxModel::open(Region::bytes(bytes), &mut external) else { return false };
    let Ok(imported) = onnx::model(&saved, "mutated") else { return false };
    imported.check_weights().is_ok()
}

/// Files of the repository: whole models, and node tests.
fn files() -> Vec<Vec<u8>> {
    let mut files: Vec<Vec<u8>> = from_archive().into_values().flatten().filter(|(file, _)| file == "model.onnx").map(|(_, b)| b).collect();
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "onnx") {
            files.push(std::fs::read(path).unwrap());
        }
    }
    files
}

#[test]
fn damaged_files_give_an_error_or_a_model() {
    // PLIMSOLL_MUTATIONS sets the number per file.
    let rounds = std::env::var("PLIMSOLL_MUTATIONS").ok().and_then(|text| text.parse().ok()).unwrap_or(24);
    let mut state = 9;
    let (mut tried, mut imported) = (0, 0);
    for original in files() {
        for _ in 0..rounds {
            let mut bytes = original.clone();
            for _ in 0..=draw(&mut state) % 4 {
                let at = draw(&mut state) as usize % bytes.len();
                match draw(&mut state) % 4 {
                    0 => bytes[at] ^= 1 << (draw(&mut state) % 8),
                    1 => bytes[at] = draw(&mut state) as u8,
                    2 => bytes.truncate(at.max(1)),
                    _ => {
                        let from = draw(&mut state) as usize % bytes.len();
                        let length = (draw(&mut state) as usize % 16).min(bytes.len() - at.max(from));
                        bytes.copy_within(from..from + length, at);
                    }
                }
            }
            tried += 1;
            imported += usize::from(attempt(bytes));
        }
    }
    assert!(tried > 1000 && imported > 50, "{imported} of {tried}");
}
