//! The programs of `examples/from_keras.rs`, which docs/coming-from-keras.md and docs/coming-from-pytorch.md show, on a
//! few rows.

#[path = "../examples/from_keras.rs"]
#[allow(dead_code, reason = "a test calls the programs, not `main`")]
mod from_keras;

use plimsoll::prelude::*;
use std::path::{Path, PathBuf};

/// A folder with small files of the names that `tools/book_data.py` writes.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let folder = Folder(std::env::temp_dir().join(format!("plimsoll-from-keras-{}", std::process::id())));
        std::fs::create_dir_all(&folder.0).unwrap();
        folder.write("x.npy", "<f4", "(96, 100)", &floats(96 * 100));
        folder.write("y.npy", "<f4", "(96, 10)", &floats(96 * 10));
        folder.write("images.npy", "|u1", "(40, 28, 28, 1)", &(0..40 * 28 * 28).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        folder.write("labels.npy", "<i4", "(40,)", &integers(40, 10));
        folder.write("tokens.npy", "<i4", "(2, 4)", &integers(8, 50_000));
        folder.write("next.npy", "<i4", "(2, 4)", &integers(8, 50_000));
        folder.write("series.npy", "<f4", "(4, 32, 8)", &floats(4 * 32 * 8));
        folder.write("target.npy", "<f4", "(4, 1)", &floats(4));
        for i in 0..4u8 {
            let path = folder.0.join("photos").join(format!("class{}", i % 2)).join(format!("{i}.png"));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            let file = std::fs::File::create(path).unwrap();
            let mut encoder = png::Encoder::new(file, 40, 30);
            encoder.set_color(png::ColorType::Rgb);
            encoder.write_header().unwrap().write_image_data(&vec![i * 60; 40 * 30 * 3]).unwrap();
        }
        folder
    }

    fn write(&self, name: &str, descr: &str, shape: &str, data: &[u8]) {
        let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
        header.push_str(&" ".repeat(63 - (header.len() + 10) % 64));
        header.push('\n');
        let mut file = b"\x93NUMPY\x01\x00".to_vec();
        file.extend((header.len() as u16).to_le_bytes());
        file.extend(header.as_bytes());
        file.extend(data);
        std::fs::write(self.0.join(name), file).unwrap();
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn floats(count: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i * 37 % 101) as f32 / 101.0 - 0.5).to_le_bytes()).collect()
}

fn integers(count: usize, below: usize) -> Vec<u8> {
    (0..count).flat_map(|i| ((i * 7919 % below) as i32).to_le_bytes()).collect()
}

/// A program that trains on the files of a folder.
type Program = fn(&Path) -> plimsoll::Result<plimsoll::History>;

#[test]
fn programs_that_train_stay_within_their_budgets() {
    let folder = Folder::new();
    let programs: [(&str, Program, u64); 10] = [
        ("arrays", from_keras::arrays, 3),
        ("images", from_keras::images, 2),
        ("photos", from_keras::photos, 2),
        ("augmented", from_keras::augmented, 2),
        ("cached", from_keras::cached, 2),
        ("accumulated", from_keras::accumulated, 1),
        ("half", from_keras::half, 1),
        ("vocabulary", from_keras::vocabulary, 1),
        ("series", from_keras::series, 1),
        ("adamw_loop", from_keras::adamw_loop, 3),
    ];
    for (name, program, steps) in programs {
        let history = program(&folder.0).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(history.steps, steps, "{name}");
        assert!(history.epochs.last().unwrap().training.loss.is_finite(), "{name}");
        assert!(history.planned <= history.host_budget, "{name}");
    }
    assert!(folder.0.join("photos.plc").exists());
    assert!(from_keras::custom_loop(&folder.0).unwrap().is_finite());
}

#[test]
fn programs_that_plan_need_no_gpu() {
    assert!(from_keras::placed().is_ok());
    let limited = from_keras::limited().unwrap().to_string();
    assert!(limited.contains("device budget  4.00 GiB"), "{limited}");
}

#[test]
fn custom_layers_and_rows_in_memory_train() {
    let data = from_keras::rows_in_memory().unwrap().batch(20);
    let model = Sequential::new().add(from_keras::SquaredScale).add(Dense::new(2));
    let history = Trainer::new(model, &data).optimizer(Adam::default()).fit(Fit::epochs(2)).unwrap();
    assert!(history.epochs[1].training.loss < history.epochs[0].training.loss);
}

#[test]
fn a_compiled_closure_learns() {
    assert!(from_keras::explore().unwrap() < 1e-2);
}
